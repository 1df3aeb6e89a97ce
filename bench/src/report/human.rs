//! fio's `normal` output: the text report of a run.

use super::distribution::{BATCHES, BOUNDS, BOUNDS_MS, DEPTHS, Distribution, percent, percents};
use super::failure::{errno_text, failures};
use super::number::{bytes_binary, bytes_decimal, count, date, latency_bound};
use super::rates::{Spread, Total};
use crate::result::{Direction, JobResult, RunResult};
use core::fmt::{self, Display, Formatter};
use hdrhistogram::Histogram;

/// Latencies that fio does not have: from when the job meant the operations to start.
const SCHEDULED: &str = "scheduled lat";

/// Displays a run in the form of fio's `--output-format=normal`. Dates are UTC.
#[derive(Debug, Clone, Copy)]
pub struct Human<'a>(pub &'a RunResult);

impl Display for Human<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let run = self.0;
        interrupted_text(f, run)?;
        for job in &run.jobs {
            job_text(f, run, job)?;
        }
        let mut groups: Vec<u32> = run.jobs.iter().map(|job| job.group).collect();
        groups.sort_unstable();
        groups.dedup();
        for group in groups {
            group_text(f, run, group)?;
        }
        failed_text(f, run)?;
        interrupted_text(f, run)
    }
}

fn job_text(f: &mut Formatter<'_>, run: &RunResult, job: &JobResult) -> fmt::Result {
    let reason = if job.error == 0 { String::new() } else { format!(" ({})", errno_text(job.error)) };
    writeln!(
        f,
        "{}: (groupid={}, jobs={}): err={:>2}{reason}: pid={}: {} UTC",
        job.name,
        job.group,
        job.threads,
        job.error,
        run.pid,
        date(run.finished)
    )?;
    for failure in failures(job) {
        writeln!(f, "  ERROR: {}", failure.what)?;
        writeln!(f, "         {}", failure.advice)?;
    }
    for direction in Direction::ALL {
        let d = &job.directions[direction as usize];
        if d.ios > 0 || d.never_started > 0 {
            direction_text(f, run, job, direction)?;
        }
    }
    distribution_text(f, &Distribution::of(job))?;
    if !job.sync.is_empty() {
        writeln!(f, "  fsync/fdatasync:")?;
        latency_line(f, "sync", &job.sync)?;
        percentiles_text(f, "sync", &job.sync, &job.percentiles)?;
    }
    let time = job.elapsed.as_secs_f64() * f64::from(job.threads);
    writeln!(
        f,
        "  cpu          : usr={:3.2}%, sys={:3.2}%, ctx={}, majf={}, minf={}",
        percent(job.cpu.user.as_secs_f64(), time),
        percent(job.cpu.system.as_secs_f64(), time),
        job.cpu.context_switches,
        job.cpu.major_faults,
        job.cpu.minor_faults
    )?;
    writeln!(f, "  IO depths    : {}", buckets(&DEPTHS, &job.depth))?;
    writeln!(f, "     submit    : {}", buckets(&BATCHES, &job.submit))?;
    writeln!(f, "     complete  : {}", buckets(&BATCHES, &job.complete))?;
    let [read, write, trim] = job.directions.each_ref().map(|d| d.ios);
    writeln!(
        f,
        "     issued rwts: total={read},{write},{trim},{} short=0,0,0,0 dropped=0,0,0,0",
        job.sync.len()
    )?;
    if let Some(verified) = job.verified {
        let run = verified.run.map_or_else(String::new, |run| format!(", run={run}"));
        writeln!(
            f,
            "     verify    : blocks checked={}, wrong={}, skipped={}, not read back={}{run}",
            verified.checked, job.verify_errors, verified.skipped, verified.not_read_back
        )?;
    }
    if let Some(t) = job.latency_target {
        writeln!(
            f,
            "     latency   : target={}, window={}, percentile={:.2}%, depth={}",
            t.target.as_nanos(),
            t.window.as_micros(),
            t.percentile,
            t.depth
        )?;
    }
    Ok(())
}

fn direction_text(
    f: &mut Formatter<'_>,
    run: &RunResult,
    job: &JobResult,
    direction: Direction,
) -> fmt::Result {
    let d = &job.directions[direction as usize];
    let name = ["  read:", "  write:", "  trim:"][direction as usize];
    writeln!(
        f,
        "{name} IOPS={}, BW={}/s ({}/s)({}/{}msec)",
        count(d.iops()),
        bytes_binary(d.bandwidth()),
        bytes_decimal(d.bandwidth()),
        bytes_binary(d.bytes as f64),
        d.runtime.as_millis()
    )?;
    for (name, latencies) in [("slat", &d.submission), ("clat", &d.completion), (" lat", &d.total)] {
        if !latencies.is_empty() {
            latency_line(f, name, latencies)?;
        }
    }
    if !d.completion.is_empty() {
        percentiles_text(f, "clat", &d.completion, &job.percentiles)?;
    }
    if !d.scheduled.is_empty() {
        latency_line(f, SCHEDULED, &d.scheduled)?;
        percentiles_text(f, SCHEDULED, &d.scheduled, &job.percentiles)?;
        writeln!(f, "    {SCHEDULED}: due={}, never started={}", d.scheduled.len(), d.never_started)?;
    }
    let bandwidth = Spread::kib_per_second(job, direction);
    if bandwidth.samples == 0 {
        return Ok(());
    }
    let group = Total::of(run, job.group, direction);
    let share = percent(bandwidth.mean, group.bandwidth() / 1024.0).min(100.0);
    let (unit, divisor) = if bandwidth.mean > 1024.0 * 1024.0 { ("MiB", 1024.0) } else { ("KiB", 1.0) };
    writeln!(
        f,
        "   bw (  {unit}/s): min={:>5.0}, max={:>5.0}, per={share:3.2}%, avg={:>5.2}, stdev={:>5.2}, samples={}",
        bandwidth.min / divisor,
        bandwidth.max / divisor,
        bandwidth.mean / divisor,
        bandwidth.deviation / divisor,
        bandwidth.samples
    )?;
    let iops = Spread::iops(job, direction);
    writeln!(
        f,
        "   iops        : min={:>5.0}, max={:>5.0}, avg={:>5.2}, stdev={:>5.2}, samples={}",
        iops.min, iops.max, iops.mean, iops.deviation, iops.samples
    )
}

/// Writes `clat (usec): min=…`, in the unit that suits both the smallest and the largest value.
fn latency_line(f: &mut Formatter<'_>, name: &str, latencies: &Histogram<u64>) -> fmt::Result {
    let (min, max) = (latencies.min() as f64, latencies.max() as f64);
    let (mean, deviation) = (latencies.mean(), latencies.stdev());
    let (unit, divisor) = if min > 2e6 && max > 99_999_999.0 && deviation > 1e6 {
        ("msec", 1e6)
    } else if min > 2e3 && max > 99_999.0 && deviation > 1e3 {
        ("usec", 1e3)
    } else {
        ("nsec", 1.0)
    };
    writeln!(
        f,
        "    {name} ({unit}): min={}, max={}, avg={:>5.2}, stdev={:>5.2}",
        latency_bound((min / divisor).floor()),
        latency_bound((max / divisor).floor()),
        mean / divisor,
        deviation / divisor
    )
}

fn percentiles_text(
    f: &mut Formatter<'_>,
    name: &str,
    latencies: &Histogram<u64>,
    percentiles: &[f64],
) -> fmt::Result {
    let values: Vec<u64> = percentiles.iter().map(|&p| latencies.value_at_percentile(p)).collect();
    let (Some(&least), Some(&greatest)) = (values.first(), values.last()) else { return Ok(()) };
    let (unit, divisor) = match () {
        () if least > 2_000_000 && greatest > 99_999_999 => ("msec", 1_000_000),
        () if least > 2_000 && greatest > 99_999 => ("usec", 1_000),
        () => ("nsec", 1),
    };
    let values: Vec<String> = values.iter().map(|value| value.div_ceil(divisor).to_string()).collect();
    let width = values.iter().map(String::len).max().unwrap_or(0).max(5);
    writeln!(f, "    {name} percentiles ({unit}):")?;
    for row in percentiles.iter().zip(&values).collect::<Vec<_>>().chunks(4) {
        let cells: Vec<String> =
            row.iter().map(|(p, value)| format!("{p:>5.2}th=[{value:>width$}]")).collect();
        let comma = if row.len() == 4 { "," } else { "" };
        writeln!(f, "     | {}{comma}", cells.join(", "))?;
    }
    Ok(())
}

fn distribution_text(f: &mut Formatter<'_>, d: &Distribution) -> fmt::Result {
    let labels = |bounds: &[u64]| bounds.iter().map(u64::to_string).collect::<Vec<_>>();
    let mut milliseconds = labels(&BOUNDS_MS);
    milliseconds.push(">=2000".to_string());
    let units: [(&str, Vec<String>, &[f64]); 3] = [
        ("nsec", labels(&BOUNDS), &d.nanoseconds),
        ("usec", labels(&BOUNDS), &d.microseconds),
        ("msec", milliseconds, &d.milliseconds),
    ];
    for (unit, labels, percents) in units {
        let seen = labels.iter().zip(percents).filter(|(_, percent)| **percent > 0.0);
        let cells: Vec<String> = seen.map(|(label, percent)| format!("{label}={percent:3.2}%")).collect();
        for row in cells.chunks(5) {
            writeln!(f, "  lat ({unit})   : {}", row.join(", "))?;
        }
    }
    Ok(())
}

fn buckets(labels: &[&str; 7], counts: &[u64; 7]) -> String {
    let cells: Vec<String> = labels
        .iter()
        .zip(percents(counts))
        .map(|(label, percent)| format!("{label}={percent:3.1}%"))
        .collect();
    cells.join(", ")
}

fn group_text(f: &mut Formatter<'_>, run: &RunResult, group: u32) -> fmt::Result {
    writeln!(f, "\nRun status group {group} (all jobs):")?;
    for direction in Direction::ALL {
        let total = Total::of(run, group, direction);
        let (Some(shortest), Some(longest)) = (total.runtimes.iter().min(), total.runtimes.iter().max())
        else {
            continue;
        };
        let slowest = total.bandwidths.iter().copied().fold(f64::INFINITY, f64::min);
        let fastest = total.bandwidths.iter().copied().fold(0.0, f64::max);
        writeln!(
            f,
            "{}: bw={}/s ({}/s), {}/s-{}/s ({}/s-{}/s), io={} ({}), run={}-{}msec",
            ["   READ", "  WRITE", "   TRIM"][direction as usize],
            bytes_binary(total.bandwidth()),
            bytes_decimal(total.bandwidth()),
            bytes_binary(slowest),
            bytes_binary(fastest),
            bytes_decimal(slowest),
            bytes_decimal(fastest),
            bytes_binary(total.bytes as f64),
            bytes_decimal(total.bytes as f64),
            shortest.as_millis(),
            longest.as_millis()
        )?;
    }
    Ok(())
}

/// Says first and last that the figures are not those of the whole run.
fn interrupted_text(f: &mut Formatter<'_>, run: &RunResult) -> fmt::Result {
    let Some(signal) = run.interrupted else { return Ok(()) };
    writeln!(
        f,
        "INTERRUPTED by signal {signal}: the figures are of the time until then, and jobs or verification are missing"
    )
}

/// Repeats the failures at the end, where the reader of a long output sees them.
fn failed_text(f: &mut Formatter<'_>, run: &RunResult) -> fmt::Result {
    let failed: Vec<&JobResult> = run.jobs.iter().filter(|job| job.is_failed()).collect();
    if failed.is_empty() {
        return Ok(());
    }
    writeln!(f, "\nFAILED: {} of {} jobs", failed.len(), run.jobs.len())?;
    for job in failed {
        for failure in failures(job) {
            writeln!(f, "  {}: {}", job.name, failure.what)?;
        }
    }
    Ok(())
}
