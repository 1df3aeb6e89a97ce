//! fio's JSON: the same fields with the same types and order, so that programs that read fio's JSON can read this.
//!
//! Additional fields are `nvmf-bench version` and, for each job, `total_err` and `first_error` (fio writes these only
//! with `continue_on_error`), `verify_errors`, `error_message`, and `samples` with the figures of each interval. With
//! `rate` or `rate_iops`, each direction has `scheduled_lat_ns`: the latencies from when the rate had the operations
//! start, which include the wait for those before them. fio's own (`lat_ns`) begin at the actual start.

use super::distribution::{BATCHES, BOUNDS, BOUNDS_MS, DEPTHS, Distribution, PERCENTILES, percent, percents};
use super::number::{date, since_epoch};
use super::rates::{Spread, Total};
use crate::result::{Direction, JobResult, RunResult, Sample};
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

/// The version of fio with this form of JSON; parsers use it to choose the form.
const FIO_VERSION: &str = "fio-3.33";

/// The run in the form of fio's `--output-format=json`. `time` is UTC.
#[must_use]
pub fn document(run: &RunResult) -> Value {
    let finished = since_epoch(run.finished);
    let mut document = json!({
        "fio version": FIO_VERSION,
        "nvmf-bench version": env!("CARGO_PKG_VERSION"),
        "timestamp": finished.as_secs(),
        "timestamp_ms": milliseconds(finished),
        "time": date(run.finished),
        "global options": options(&run.global),
    });
    document["jobs"] = run.jobs.iter().map(|job| job_object(run, job)).collect();
    // fio reports this machine's disks; most engines here use remote ones.
    document["disk_util"] = json!([]);
    document
}

fn job_object(run: &RunResult, job: &JobResult) -> Value {
    let direction = |direction| direction_object(run, job, direction);
    let thread_time = job.elapsed.as_secs_f64() * f64::from(job.threads);
    let distribution = Distribution::of(job);
    let target = job.latency_target;
    let mut milliseconds_labels: Vec<String> = BOUNDS_MS.iter().map(u64::to_string).collect();
    milliseconds_labels.push(">=2000".to_string());
    json!({
        "jobname": job.name,
        "groupid": job.group,
        "job_start": milliseconds(since_epoch(job.started)),
        "error": job.error,
        "error_message": job.message,
        "eta": 0,
        "elapsed": job.elapsed.as_secs_f64().ceil() as u64,
        "job options": options(&job.options),
        "read": direction(Direction::Read),
        "write": direction(Direction::Write),
        "trim": direction(Direction::Trim),
        "sync": { "total_ios": job.sync.len(), "lat_ns": latencies(&job.sync, true) },
        "job_runtime": milliseconds(job.elapsed) * u64::from(job.threads),
        "usr_cpu": percent(job.cpu.user.as_secs_f64(), thread_time),
        "sys_cpu": percent(job.cpu.system.as_secs_f64(), thread_time),
        "ctx": job.cpu.context_switches,
        "majf": job.cpu.major_faults,
        "minf": job.cpu.minor_faults,
        "iodepth_level": buckets(&DEPTHS, &percents(&job.depth)),
        "iodepth_submit": buckets(&BATCHES, &percents(&job.submit)),
        "iodepth_complete": buckets(&BATCHES, &percents(&job.complete)),
        "latency_ns": buckets(&BOUNDS, &distribution.nanoseconds),
        "latency_us": buckets(&BOUNDS, &distribution.microseconds),
        "latency_ms": buckets(&milliseconds_labels, &distribution.milliseconds),
        "latency_depth": target.map_or(job.iodepth, |t| t.depth),
        "latency_target": target.map_or(0, |t| t.target.as_nanos() as u64),
        "latency_percentile": target.map_or(100.0, |t| t.percentile),
        "latency_window": target.map_or(0, |t| t.window.as_micros() as u64),
        "total_err": job.errors,
        "first_error": job.error,
        "verify_errors": job.verify_errors,
        "samples": job.samples.iter().map(sample).collect::<Value>(),
    })
}

fn direction_object(run: &RunResult, job: &JobResult, direction: Direction) -> Value {
    let d = &job.directions[direction as usize];
    let bandwidth = Spread::kib_per_second(job, direction);
    let iops = Spread::iops(job, direction);
    // In fio, an unused direction has no samples.
    let (bandwidth, iops) = if d.ios == 0 { Default::default() } else { (bandwidth, iops) };
    let group = Total::of(run, job.group, direction).bandwidth() / 1024.0;
    let mut object = json!({
        "io_bytes": d.bytes,
        "io_kbytes": d.bytes / 1024,
        "bw_bytes": d.bandwidth() as u64,
        "bw": (d.bandwidth() / 1024.0) as u64,
        "iops": d.iops(),
        "runtime": milliseconds(d.runtime),
        "total_ios": d.ios,
        "short_ios": 0,
        "drop_ios": 0,
        "slat_ns": latencies(&d.submission, false),
        "clat_ns": latencies(&d.completion, true),
        // fio has percentiles of the total latency only with `lat_percentiles`.
        "lat_ns": latencies(&d.total, true),
        "bw_min": bandwidth.min as u64,
        "bw_max": bandwidth.max as u64,
        "bw_agg": percent(bandwidth.mean, group).min(100.0),
        "bw_mean": bandwidth.mean,
        "bw_dev": bandwidth.deviation,
        "bw_samples": bandwidth.samples,
        "iops_min": iops.min as u64,
        "iops_max": iops.max as u64,
        "iops_mean": iops.mean,
        "iops_stddev": iops.deviation,
        "iops_samples": iops.samples,
    });
    if !d.scheduled.is_empty() {
        object["scheduled_lat_ns"] = latencies(&d.scheduled, true);
    }
    object
}

fn latencies(latencies: &Histogram<u64>, with_percentiles: bool) -> Value {
    let mut object = json!({
        "min": latencies.min(),
        "max": latencies.max(),
        "mean": latencies.mean(),
        "stddev": latencies.stdev(),
        "N": latencies.len(),
    });
    if with_percentiles && !latencies.is_empty() {
        let value = |p: f64| (format!("{p:.6}"), json!(latencies.value_at_percentile(p)));
        object["percentile"] = Value::Object(PERCENTILES.into_iter().map(value).collect());
    }
    object
}

fn buckets(labels: &[impl ToString], percents: &[f64]) -> Value {
    let entries = labels.iter().zip(percents).map(|(label, percent)| (label.to_string(), json!(percent)));
    Value::Object(entries.collect())
}

fn options(options: &[(String, String)]) -> Value {
    Value::Object(options.iter().map(|(name, value)| (name.clone(), json!(value))).collect())
}

fn sample(sample: &Sample) -> Value {
    let percentiles: Map<String, Value> = Sample::PERCENTILES
        .iter()
        .zip(sample.percentiles)
        .map(|(p, nanoseconds)| (format!("{p:.6}"), json!(nanoseconds)))
        .collect();
    json!({
        "at_ms": milliseconds(sample.at),
        "length_ms": milliseconds(sample.length),
        "ios": sample.ios,
        "bytes": sample.bytes,
        "lat_ns": percentiles,
    })
}

fn milliseconds(time: core::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
