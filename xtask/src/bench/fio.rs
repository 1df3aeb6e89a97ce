//! fio as a peer, and its JSON, which `nvmf-bench` speaks as well.

use super::Site;
use super::workload::Workload;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// What fio reports of the direction that a job had.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Report {
    pub(super) iops: f64,
    pub(super) bytes_per_second: f64,
    /// From before the submission to the completion at the median, nanoseconds.
    pub(super) latency_p50: Option<f64>,
}

impl Report {
    /// Reads `--output-format=json` with one job, or several that were added up.
    pub(super) fn parse(json: &[u8]) -> Result<Self> {
        // fio writes what it has to say before the object.
        let start = json.iter().position(|&byte| byte == b'{').context("no JSON came")?;
        let report: Value = serde_json::from_slice(&json[start..]).context("the report is no JSON")?;
        let job = &report["jobs"][0];
        ensure!(job["error"].as_i64().unwrap_or(0) == 0, "the job ended with error {}", job["error"]);
        let bytes = |direction: &Value| direction["bw_bytes"].as_f64().unwrap_or(0.0);
        let used =
            ["read", "write"].map(|name| &job[name]).into_iter().max_by(|a, b| bytes(a).total_cmp(&bytes(b)));
        let used = used.filter(|used| bytes(used) > 0.0).context("the job moved nothing")?;
        let number = |pointer: &str| used.pointer(pointer).and_then(Value::as_f64);
        Ok(Self {
            iops: number("/iops").context("no iops")?,
            bytes_per_second: bytes(used),
            // Only with `lat_percentiles` does fio have those of the whole; else it is the sum that comes nearest.
            latency_p50: number("/lat_ns/percentile/50.000000").or_else(|| {
                Some(number("/clat_ns/percentile/50.000000")? + number("/slat_ns/mean").unwrap_or(0.0))
            }),
        })
    }
}

/// What to install for the engine, or nothing.
pub(super) fn missing(engine: &str) -> Option<String> {
    if !crate::step::on_path("fio") {
        return Some("not here: install fio".into());
    }
    let help = Command::new("fio").arg(format!("--enghelp={engine}")).output();
    let known = help.is_ok_and(|help| help.status.success());
    (!known).then(|| format!("not here: this fio has no engine {engine}"))
}

/// Runs fio on the initiator's core.
pub(super) fn run(site: &Site, engine: &str, more: &[String], workload: &Workload) -> Result<Report> {
    let mut fio = Command::new("fio");
    fio.args(["--name=bench", "--output-format=json", "--eta=never", &format!("--ioengine={engine}")]);
    fio.arg(format!("--cpus_allowed={}", site.cores.initiator)).args(workload.arguments(site)).args(more);
    Report::parse(&site.run(&mut fio)?)
}

/// fio's `io_uring` engine on a file, past the page cache.
pub(super) fn on_file(site: &Site, file: &Path, workload: &Workload) -> Result<Report> {
    let more = [format!("--filename={}", file.display()), "--direct=1".into(), "--readonly".into()];
    run(site, "io_uring", &more, workload)
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: &str = r#"fio: some note of its own
{ "fio version": "fio-3.33", "jobs": [ { "jobname": "bench", "error": 0,
  "read": { "io_bytes": 1000, "bw_bytes": 479232000, "bw": 468000, "iops": 117000.25,
    "slat_ns": { "min": 1, "max": 9, "mean": 1500.5, "stddev": 1.0, "N": 7 },
    "clat_ns": { "mean": 270000.0, "percentile": { "1.000000": 1, "50.000000": 260000, "99.000000": 400000 } } },
  "write": { "io_bytes": 0, "bw_bytes": 0, "iops": 0.0 } } ] }"#;

    #[test]
    fn a_report_of_fio_is_read() {
        let report = Report::parse(READ.as_bytes()).unwrap();
        assert_eq!(
            report,
            Report { iops: 117_000.25, bytes_per_second: 479_232_000.0, latency_p50: Some(261_500.5) }
        );
    }

    #[test]
    fn percentiles_of_the_whole_latency_come_before_sums_of_its_parts() {
        let whole = "\"lat_ns\": { \"percentile\": { \"50.000000\": 262000 } }, \"clat_ns\"";
        let report = Report::parse(READ.replace("\"clat_ns\"", whole).as_bytes()).unwrap();
        assert_eq!(report.latency_p50, Some(262_000.0));
    }

    #[test]
    fn the_direction_that_was_used_counts() {
        let text = READ.replace("\"bw_bytes\": 0, \"iops\": 0.0", "\"bw_bytes\": 900000000, \"iops\": 7.0");
        assert_eq!(Report::parse(text.as_bytes()).unwrap().iops, 7.0);
    }

    #[test]
    fn a_failed_or_empty_report_is_an_error() {
        let failed = READ.replace("\"error\": 0", "\"error\": 5");
        assert!(Report::parse(failed.as_bytes()).unwrap_err().to_string().contains("error 5"));
        let idle = READ.replace("479232000", "0");
        assert!(Report::parse(idle.as_bytes()).is_err());
        assert!(Report::parse(b"fio: cannot").is_err());
    }
}
