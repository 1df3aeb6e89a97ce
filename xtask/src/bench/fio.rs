//! fio as a peer, and a parser of its JSON, which `nvmf-bench` also writes.

use super::Site;
use super::workload::Workload;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Figures of the direction that a job used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Report {
    pub(super) iops: f64,
    pub(super) bytes_per_second: f64,
    /// Median of the total latency (submission and completion), nanoseconds.
    pub(super) latency_p50: Option<f64>,
}

impl Report {
    /// Parses the output of `--output-format=json` with one job or one group.
    pub(super) fn parse(json: &[u8]) -> Result<Self> {
        // fio prints messages before the JSON object.
        let start = json.iter().position(|&byte| byte == b'{').context("there is no JSON in the output")?;
        let report: Value = serde_json::from_slice(&json[start..]).context("the report is not valid JSON")?;
        let job = &report["jobs"][0];
        ensure!(job["error"].as_i64().unwrap_or(0) == 0, "the job ended with error {}", job["error"]);
        let bytes = |direction: &Value| direction["bw_bytes"].as_f64().unwrap_or(0.0);
        let used =
            ["read", "write"].map(|name| &job[name]).into_iter().max_by(|a, b| bytes(a).total_cmp(&bytes(b)));
        let used = used.filter(|used| bytes(used) > 0.0).context("the job transferred nothing")?;
        let number = |pointer: &str| used.pointer(pointer).and_then(Value::as_f64);
        Ok(Self {
            iops: number("/iops").context("no iops")?,
            bytes_per_second: bytes(used),
            // fio reports percentiles of the total latency only with `lat_percentiles`; the sum is an approximation.
            latency_p50: number("/lat_ns/percentile/50.000000").or_else(|| {
                Some(number("/clat_ns/percentile/50.000000")? + number("/slat_ns/mean").unwrap_or(0.0))
            }),
        })
    }
}

/// What to install for the engine; `None` if it is available.
pub(super) fn missing(engine: &str) -> Option<String> {
    if !crate::step::on_path("fio") {
        return Some("not here: install fio".into());
    }
    let help = Command::new("fio").arg(format!("--enghelp={engine}")).output();
    let known = help.is_ok_and(|help| help.status.success());
    (!known).then(|| format!("not here: this fio has no engine {engine}"))
}

/// Runs fio, a call of which this is: bound to one core, or to both.
fn run(site: &Site, mut fio: Command, engine: &str, more: &[&str], workload: &Workload) -> Result<Report> {
    fio.args(["--name=bench", "--output-format=json", "--eta=never", &format!("--ioengine={engine}")]);
    Report::parse(&site.run(fio.args(workload.arguments(site)).args(more))?)
}

/// Runs fio's `io_uring` engine on a file, without the page cache, with registered files and buffers, as ours has them.
pub(super) fn on_file(site: &Site, file: &Path, workload: &Workload) -> Result<Report> {
    let file = format!("--filename={}", file.display());
    let more = [file.as_str(), "--direct=1", "--readonly", "--fixedbufs", "--registerfiles"];
    run(site, site.on(site.cores.initiator, "fio"), "io_uring", &more, workload)
}

/// Runs fio's `nbd` engine, on the initiator's core.
pub(super) fn on_nbd(site: &Site, uri: &str, workload: &Workload) -> Result<Report> {
    run(site, site.on(site.cores.initiator, "fio"), "nbd", &[&format!("--uri={uri}")], workload)
}

/// Runs fio's `nbd` engine, which may use both cores.
pub(super) fn on_nbd_on_both(site: &Site, uri: &str, workload: &Workload) -> Result<Report> {
    run(site, site.on_both("fio"), "nbd", &[&format!("--uri={uri}")], workload)
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
    fn fio_report_is_parsed() {
        let report = Report::parse(READ.as_bytes()).unwrap();
        assert_eq!(
            report,
            Report { iops: 117_000.25, bytes_per_second: 479_232_000.0, latency_p50: Some(261_500.5) }
        );
    }

    #[test]
    fn total_latency_percentile_is_preferred() {
        let whole = "\"lat_ns\": { \"percentile\": { \"50.000000\": 262000 } }, \"clat_ns\"";
        let report = Report::parse(READ.replace("\"clat_ns\"", whole).as_bytes()).unwrap();
        assert_eq!(report.latency_p50, Some(262_000.0));
    }

    #[test]
    fn used_direction_is_selected() {
        let text = READ.replace("\"bw_bytes\": 0, \"iops\": 0.0", "\"bw_bytes\": 900000000, \"iops\": 7.0");
        assert_eq!(Report::parse(text.as_bytes()).unwrap().iops, 7.0);
    }

    #[test]
    fn failed_or_empty_report_is_error() {
        let failed = READ.replace("\"error\": 0", "\"error\": 5");
        assert!(Report::parse(failed.as_bytes()).unwrap_err().to_string().contains("error 5"));
        let idle = READ.replace("479232000", "0");
        assert!(Report::parse(idle.as_bytes()).is_err());
        assert!(Report::parse(b"fio: cannot").is_err());
    }
}
