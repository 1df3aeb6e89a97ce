//! Tests of the HTML page. Two sample pages remain in cargo's folder for test files (`.build/tmp`), for viewing in a
//! browser.

use crate::synthetic::Plan;
use crate::{alone, written};
use nvmf_bench::report::Format;
use std::path::Path;

fn keep(name: &str, page: &str) {
    std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), page).expect("the folder is cargo's");
}

#[test]
fn one_run_has_four_plots_and_table() {
    let page = written(Format::Html, &alone(Plan::default().run()));
    keep("report-one.html", &page);
    for title in
        ["Latency distribution", "Latency percentiles over time", "IOPS over time", "Bandwidth over time"]
    {
        assert!(page.contains(&format!("<figcaption>{title}</figcaption>")), "{title}");
        assert!(page.contains(&format!("role=\"img\" aria-label=\"{title}, ")), "{title}");
    }
    assert!(page.contains("<th scope=\"row\">read</th>") && page.contains("<th scope=\"row\">write</th>"));
    assert!(!page.contains("<th scope=\"row\">trim</th>"));
}

#[test]
fn several_runs_share_plots_with_ratios() {
    let runs = [
        ("ours".to_string(), Plan { samples: 600, ..Plan::default() }.run()),
        ("theirs".to_string(), Plan { seed: 7, base_ns: 14_000, samples: 600, ..Plan::default() }.run()),
        ("broken".to_string(), Plan { seed: 8, base_ns: 30_000, errors: 2, ..Plan::default() }.run()),
    ];
    let page = written(Format::Html, &runs);
    keep("report-three.html", &page);
    assert_eq!(page.matches("<figure>").count(), 4, "one set of plots for all runs");
    assert!(page.contains("ours read") && page.contains("theirs p99.9"));
    assert!(page.contains(" ×</small>"));
    assert!(page.contains("role=\"alert\"") && page.contains("broken, mixed: 2 operations failed"));
    assert!(page.len() < 500_000, "{} bytes for ten minutes' samples", page.len());
}

#[test]
fn page_has_no_links_or_scripts() {
    let page = written(Format::Html, &alone(Plan::default().run()));
    for word in ["http:", "https:", "<script", "src=", "href=", "url(", "@import"] {
        assert!(!page.contains(word), "{word}");
    }
}

#[test]
fn user_text_is_escaped() {
    let evil = "\"'><script>alert(1)</script>&";
    let mut run = Plan { name: evil.to_string(), errors: 1, ..Plan::default() }.run();
    run.jobs[0].message = Some(evil.to_string());
    run.jobs[0].engine = evil.to_string();
    run.jobs[0].options.push((evil.to_string(), evil.to_string()));
    run.global.push((evil.to_string(), evil.to_string()));
    let page = written(Format::Html, &[(evil.to_string(), run.clone()), (evil.to_string(), run)]);
    assert!(!page.contains("<script") && !page.contains("\"'>"));
    assert!(page.contains("&quot;&#39;&gt;&lt;script&gt;alert(1)&lt;/script&gt;&amp;"));
}

#[test]
fn empty_job_has_empty_plots() {
    let page = written(Format::Html, &alone(Plan { samples: 0, ..Plan::default() }.run()));
    assert_eq!(page.matches("Nothing was measured.").count(), 4);
    assert!(!page.contains("NaN") && !page.contains("inf "));
}
