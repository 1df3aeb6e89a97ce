//! Tests of the reports with synthetic runs, whose figures are always the same.

mod html;
mod json;
mod normal;
mod synthetic;

use nvmf_bench::report::compare::compare;
use nvmf_bench::report::{Format, write};
use nvmf_bench::result::RunResult;
use synthetic::Plan;

/// One run as text in a format.
fn written(format: Format, runs: &[(String, RunResult)]) -> String {
    let mut out = Vec::new();
    write(format, runs, &mut out).expect("memory takes everything");
    String::from_utf8(out).expect("reports are UTF-8")
}

fn alone(run: RunResult) -> [(String, RunResult); 1] {
    [("run".to_string(), run)]
}

#[test]
fn faster_run_has_verdict_better() {
    let rounds: Vec<_> = (0..5)
        .map(|round| {
            let a = Plan { seed: 2 * round, ..Plan::default() };
            let b = Plan { seed: 2 * round + 1, base_ns: 7_000 + 50 * round, ..Plan::default() };
            (a.run(), b.run())
        })
        .collect();
    let report = compare("a.toml", "b.toml", &rounds);
    assert_eq!(report.to_string(), include_str!("compare.txt"));
    let json = report.json();
    assert_eq!(json["metrics"]["iops"]["verdict"], "better");
    assert_eq!(json["metrics"]["lat_ns_p50"]["verdict"], "better");
    assert_eq!(json["metrics"]["iops"]["ratios"].as_array().unwrap().len(), 5);
}

#[test]
fn comparison_lists_failures_first() {
    let failing = Plan { errors: 3, ..Plan::default() };
    let report = compare("a.toml", "b.toml", &[(Plan::default().run(), failing.run())]);
    let text = report.to_string();
    assert!(text.starts_with("ERROR: b.toml, round 1, mixed: 3 operations failed, the first: "), "{text}");
    assert!(text.contains("too few rounds for a verdict"), "{text}");
}

/// Groups are for reports: what runs at the same time does, in one group or in two.
#[test]
fn comparison_counts_the_time_of_concurrent_jobs_once() {
    let two = |groups: [u32; 2], stages: [u32; 2]| {
        let mut run = Plan::default().run();
        run.jobs.push(run.jobs[0].clone());
        for (job, (group, stage)) in run.jobs.iter_mut().zip(groups.into_iter().zip(stages)) {
            (job.group, job.stage) = (group, stage);
            job.started += job.elapsed * stage;
        }
        run
    };
    let ratio = |a: RunResult, b: RunResult| {
        let rounds = vec![(a, b); 3];
        compare("a", "b", &rounds).comparisons[0].ratio
    };
    assert_eq!(ratio(two([0, 0], [0, 0]), two([0, 1], [0, 0])), 1.0);
    assert_eq!(ratio(two([0, 0], [0, 0]), two([0, 1], [0, 1])), 0.5);
}
