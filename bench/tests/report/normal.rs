//! Tests of the text report.

use crate::synthetic::Plan;
use crate::{alone, written};
use nvmf_bench::report::Format;
use nvmf_bench::result::{JobResult, LatencyTarget, Verified};
use std::time::Duration;

#[test]
fn text_report_matches_fio_format() {
    let mut run = Plan::default().run();
    let target = Duration::from_micros(500);
    run.jobs[0].latency_target =
        Some(LatencyTarget { target, window: Duration::from_secs(1), percentile: 99.9, depth: 24 });
    assert_eq!(written(Format::Human, &alone(run)), include_str!("normal.txt"));
}

#[test]
fn group_summary_sums_jobs() {
    let mut run = Plan { name: "first".to_string(), ..Plan::default() }.run();
    run.jobs
        .extend(Plan { name: "second".to_string(), seed: 2, base_ns: 16_000, ..Plan::default() }.run().jobs);
    run.jobs.extend(Plan { name: "later".to_string(), seed: 3, ..Plan::default() }.run().jobs);
    run.jobs[2].group = 1;
    let text = written(Format::Human, &alone(run));
    let summary = text.split_once("\nRun status").map(|(_, summary)| format!("Run status{summary}"));
    assert_eq!(summary.as_deref(), Some(include_str!("groups.txt")));
}

#[test]
fn failures_are_first_and_last_with_advice() {
    let run = Plan { errors: 3, verify_errors: 1, ..Plan::default() }.run();
    let text = written(Format::Human, &alone(run));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        "mixed: (groupid=0, jobs=1): err= 5 (Input/output error): pid=4711: Sat Nov 21 14:04:30 2026 UTC"
    );
    assert_eq!(lines[1], "  ERROR: 3 operations failed, the first: Input/output error");
    assert!(lines[2].trim().starts_with("See the log: the kernel's (dmesg)"), "{}", lines[2]);
    assert_eq!(lines[3], "  ERROR: 1 block failed verification: the contents differ from what was written");
    assert!(lines[4].trim().starts_with("Do not rely on the data or these figures."), "{}", lines[4]);
    assert_eq!(lines[lines.len() - 3], "FAILED: 1 of 1 jobs");
    assert_eq!(
        lines[lines.len() - 1],
        "  mixed: 1 block failed verification: the contents differ from what was written"
    );
}

#[test]
fn scheduled_latency_is_shown_after_the_completion_latency() {
    let mut run = Plan::default().run();
    run.jobs[0].directions[0].scheduled.record_n(5_000_000, 107).unwrap();
    run.jobs[0].directions[0].never_started = 7;
    let text = written(Format::Human, &alone(run));
    let (_, after) = text.split_once("    scheduled lat (nsec): min=").expect("the latency is shown");
    assert!(after.contains("scheduled lat percentiles (usec):"), "{after}");
    assert!(after.contains("scheduled lat: due=107, never started=7\n"), "{after}");
    assert_eq!(text.matches("scheduled lat").count(), 3, "only where there is a rate");
}

#[test]
fn empty_job_has_no_figures() {
    let text = written(Format::Human, &alone(Plan { samples: 0, ..Plan::default() }.run()));
    assert!(!text.contains("IOPS"), "{text}");
    assert!(!text.contains("NaN") && !text.contains("=inf"), "{text}");
}

#[test]
fn interrupted_run_says_so_first_and_last() {
    let mut run = Plan::default().run();
    run.interrupted = Some(2);
    let text = written(Format::Human, &alone(run));
    let lines: Vec<&str> = text.lines().collect();
    for line in [lines[0], lines[lines.len() - 1]] {
        assert!(
            line.starts_with("INTERRUPTED by signal 2: the figures are of the time until then"),
            "{line}"
        );
    }
    assert!(!written(Format::Human, &alone(Plan::default().run())).contains("INTERRUPTED"));
}

#[test]
fn failures_say_what_is_true_of_the_job() {
    let text = |change: fn(&mut JobResult)| {
        let mut run = Plan::default().run();
        change(&mut run.jobs[0]);
        written(Format::Human, &alone(run))
    };
    let unanswered = text(|job| (job.error, job.outstanding) = (110, 8));
    assert!(
        unanswered.contains("ERROR: 8 operations had not completed when the job was over"),
        "{unanswered}"
    );
    let wrong = text(|job| {
        (job.error, job.verify_errors, job.mismatch) = (84, 2, Some("the block at byte 0: stale".to_owned()));
        job.verified = Some(Verified { checked: 16, skipped: 3, not_read_back: 0, run: Some(9) });
    });
    assert!(wrong.contains("ERROR: 2 blocks failed verification"), "{wrong}");
    assert!(wrong.contains("; the first: the block at byte 0: stale\n"), "{wrong}");
    assert!(
        wrong.contains("verify    : blocks checked=16, wrong=2, skipped=3, not read back=0, run=9\n"),
        "{wrong}"
    );
    for text in [unanswered, wrong] {
        assert!(text.contains("FAILED: 1 of 1 jobs") && !text.contains("ended early"), "{text}");
    }
}
