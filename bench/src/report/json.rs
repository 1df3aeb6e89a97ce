//! fio's JSON: the same fields with the same types and order, so that programs that read fio's JSON can read this.
//!
//! Additional fields are `nvmf-bench version` and, for each job, `total_err` and `first_error` (fio writes these only
//! with `continue_on_error`), `error_message`, `outstanding_ios`, `verify_errors`, `verify` with the numbers of blocks that
//! were checked or not, and `samples` with the figures of each interval; `interrupted` says whether a signal ended the run. With
//! `rate` or `rate_iops`, each direction has `scheduled_lat_ns`: the latencies from when the job meant the operations to
//! start, which include the wait for those before them. fio's own (`lat_ns`) begin at the actual start. Operations that
//! were due and never started are among them with their wait until the end; `never_started_ios` is their number.

use super::distribution::{BATCHES, BOUNDS, BOUNDS_MS, DEPTHS, Distribution, percent, percents};
use super::number::{date, since_epoch};
use super::rates::{Spread, Total};
use crate::result::{Direction, JobResult, RunResult, Sample};
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

/// The version of fio with this form of JSON; parsers use it to choose the form.
const FIO_VERSION: &str = "fio-3.33";

/// The run in the form of fio's `--output-format=json`, or of its `json+`, which adds `bins`. `time` is UTC.
#[must_use]
pub fn document(run: &RunResult, with_bins: bool) -> Value {
    let finished = since_epoch(run.finished);
    let mut document = json!({
        "fio version": FIO_VERSION,
        "nvmf-bench version": env!("CARGO_PKG_VERSION"),
        "timestamp": finished.as_secs(),
        "timestamp_ms": milliseconds(finished),
        "time": date(run.finished),
        "interrupted": run.interrupted.is_some(),
        "global options": options(&run.global),
    });
    document["jobs"] = run.jobs.iter().map(|job| job_object(run, job, with_bins)).collect();
    // fio reports this machine's disks; most engines here use remote ones.
    document["disk_util"] = json!([]);
    document
}

fn job_object(run: &RunResult, job: &JobResult, with_bins: bool) -> Value {
    let direction = |direction| direction_object(run, job, direction, with_bins);
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
        "error_message": job.message.as_ref().or(job.mismatch.as_ref()),
        "eta": 0,
        "elapsed": job.elapsed.as_secs_f64().ceil() as u64,
        "job options": options(&job.options),
        "read": direction(Direction::Read),
        "write": direction(Direction::Write),
        "trim": direction(Direction::Trim),
        "sync": { "total_ios": job.sync.len(), "lat_ns": latencies(&job.sync, &job.percentiles, with_bins) },
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
        "outstanding_ios": job.outstanding,
        "verify_errors": job.verify_errors,
        "verify": job.verified.map(|verified| json!({
            "blocks_checked": verified.checked,
            "blocks_skipped": verified.skipped,
            "blocks_not_read_back": verified.not_read_back,
            "run": verified.run,
        })),
        "samples": job.samples.iter().map(sample).collect::<Value>(),
    })
}

fn direction_object(run: &RunResult, job: &JobResult, direction: Direction, with_bins: bool) -> Value {
    let latencies = |histogram| latencies(histogram, &job.percentiles, with_bins);
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
        "slat_ns": latencies(&d.submission),
        "clat_ns": latencies(&d.completion),
        // fio has percentiles of these only with `slat_percentiles` and `lat_percentiles`.
        "lat_ns": latencies(&d.total),
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
        object["scheduled_lat_ns"] = latencies(&d.scheduled);
        object["never_started_ios"] = json!(d.never_started);
    }
    object
}

fn latencies(latencies: &Histogram<u64>, percentiles: &[f64], with_bins: bool) -> Value {
    let mut object = json!({
        "min": latencies.min(),
        "max": latencies.max(),
        "mean": latencies.mean(),
        "stddev": latencies.stdev(),
        "N": latencies.len(),
    });
    if !latencies.is_empty() {
        let value = |&p: &f64| (format!("{p:.6}"), json!(latencies.value_at_percentile(p)));
        object["percentile"] = Value::Object(percentiles.iter().map(value).collect());
    }
    if with_bins {
        let bins = latencies.iter_recorded().map(|bin| {
            let middle = latencies.median_equivalent(bin.value_iterated_to());
            (middle.to_string(), json!(bin.count_since_last_iteration()))
        });
        object["bins"] = Value::Object(bins.collect());
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
