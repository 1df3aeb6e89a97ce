//! The metrics of a comparison, and their values in a run.

use crate::report::number;
use crate::result::{RunResult, histogram, rate};
use core::time::Duration;
use hdrhistogram::Histogram;

/// A metric over all jobs and directions of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Operations per second.
    Iops,
    /// Bytes per second.
    Bandwidth,
    /// Mean latency, nanoseconds.
    Mean,
    /// Median latency, nanoseconds.
    P50,
    /// 99th percentile of latency, nanoseconds.
    P99,
    /// 99.9th percentile of latency, nanoseconds.
    P999,
    /// User and system processor time per operation, nanoseconds.
    CpuPerOperation,
}

impl Metric {
    /// All metrics, in the order in which they are printed.
    pub const ALL: [Self; 7] =
        [Self::Iops, Self::Bandwidth, Self::Mean, Self::P50, Self::P99, Self::P999, Self::CpuPerOperation];

    /// Its name in texts, usable after "A's".
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Iops => "IOPS",
            Self::Bandwidth => "bandwidth",
            Self::Mean => "mean latency",
            Self::P50 => "p50 latency",
            Self::P99 => "p99 latency",
            Self::P999 => "p99.9 latency",
            Self::CpuPerOperation => "CPU per operation",
        }
    }

    /// Its key in JSON, which includes the unit.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Iops => "iops",
            Self::Bandwidth => "bw_bytes",
            Self::Mean => "lat_ns_mean",
            Self::P50 => "lat_ns_p50",
            Self::P99 => "lat_ns_p99",
            Self::P999 => "lat_ns_p99.9",
            Self::CpuPerOperation => "cpu_ns_per_io",
        }
    }

    /// Whether greater values are better.
    #[must_use]
    pub fn more_is_better(self) -> bool {
        matches!(self, Self::Iops | Self::Bandwidth)
    }

    pub(super) fn text(self, value: f64) -> String {
        match self {
            Self::Iops => number::plain(value),
            Self::Bandwidth => number::bandwidth(value),
            _ => number::latency(value),
        }
    }
}

/// The sums of a run over its jobs and directions.
pub(super) struct Figures {
    ios: u64,
    bytes: u64,
    time: Duration,
    cpu: Duration,
    latencies: Histogram<u64>,
}

impl Figures {
    pub(super) fn of(run: &RunResult) -> Self {
        let mut figures =
            Self { ios: 0, bytes: 0, time: Duration::ZERO, cpu: Duration::ZERO, latencies: histogram() };
        for job in &run.jobs {
            figures.cpu += job.cpu.user + job.cpu.system;
            for direction in &job.directions {
                figures.ios += direction.ios;
                figures.bytes += direction.bytes;
                figures
                    .latencies
                    .add(&direction.total)
                    .expect("all histograms have the bounds of `histogram`");
            }
        }
        // The jobs of a stage run at the same time, whatever their groups, and the stages one after the other.
        let mut stages: Vec<u32> = run.jobs.iter().map(|job| job.stage).collect();
        stages.sort_unstable();
        stages.dedup();
        for stage in stages {
            let jobs = || run.jobs.iter().filter(|job| job.stage == stage);
            let (first, last) =
                (jobs().map(|job| job.started).min(), jobs().map(|job| job.started + job.elapsed).max());
            let span = first.zip(last).and_then(|(first, last)| last.duration_since(first).ok());
            figures.time += span.unwrap_or_default();
        }
        figures
    }

    pub(super) fn get(&self, metric: Metric) -> f64 {
        match metric {
            Metric::Iops => rate(self.ios, self.time),
            Metric::Bandwidth => rate(self.bytes, self.time),
            Metric::Mean => self.latencies.mean(),
            Metric::P50 => self.latencies.value_at_percentile(50.0) as f64,
            Metric::P99 => self.latencies.value_at_percentile(99.0) as f64,
            Metric::P999 => self.latencies.value_at_percentile(99.9) as f64,
            Metric::CpuPerOperation if self.ios == 0 => 0.0,
            Metric::CpuPerOperation => self.cpu.as_nanos() as f64 / self.ios as f64,
        }
    }
}
