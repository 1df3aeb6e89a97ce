//! Statistics of rates over a job's samples and over the jobs of a group.

use crate::result::{Direction, JobResult, RunResult, rate};
use core::time::Duration;

/// A rate's minimum, maximum, mean and deviation over a job's samples.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Spread {
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) mean: f64,
    pub(super) deviation: f64,
    pub(super) samples: u64,
}

impl Spread {
    pub(super) fn of(values: impl Iterator<Item = f64> + Clone) -> Self {
        let samples = values.clone().count() as u64;
        if samples == 0 {
            return Self::default();
        }
        let mean = values.clone().sum::<f64>() / samples as f64;
        let squares: f64 = values.clone().map(|value| (value - mean).powi(2)).sum();
        let deviation = if samples > 1 { (squares / (samples - 1) as f64).sqrt() } else { 0.0 };
        let min = values.clone().fold(f64::INFINITY, f64::min);
        Self { min, max: values.fold(0.0, f64::max), mean, deviation, samples }
    }

    /// Statistics of the operations per second of one direction.
    pub(super) fn iops(job: &JobResult, direction: Direction) -> Self {
        Self::of(job.samples.iter().map(|s| rate(s.ios[direction as usize], s.length)))
    }

    /// Statistics of the KiB per second of one direction.
    pub(super) fn kib_per_second(job: &JobResult, direction: Direction) -> Self {
        Self::of(job.samples.iter().map(|s| rate(s.bytes[direction as usize], s.length) / 1024.0))
    }
}

/// Sums of one direction over the concurrent jobs of a group.
#[derive(Debug, Default)]
pub(super) struct Total {
    pub(super) bytes: u64,
    /// Bytes per second of each job.
    pub(super) bandwidths: Vec<f64>,
    /// Run time of each job.
    pub(super) runtimes: Vec<Duration>,
}

impl Total {
    pub(super) fn of(run: &RunResult, group: u32, direction: Direction) -> Self {
        let mut total = Self::default();
        let jobs = run.jobs.iter().filter(|job| job.group == group);
        for d in jobs.map(|job| &job.directions[direction as usize]).filter(|d| d.ios > 0) {
            total.bytes += d.bytes;
            total.bandwidths.push(d.bandwidth());
            total.runtimes.push(d.runtime);
        }
        total
    }

    /// Bytes per second of all jobs together, over the run time of the longest job.
    pub(super) fn bandwidth(&self) -> f64 {
        rate(self.bytes, self.runtimes.iter().copied().max().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_uses_sample_deviation() {
        let spread = Spread::of([2.0, 4.0, 6.0].into_iter());
        assert_eq!(spread, Spread { min: 2.0, max: 6.0, mean: 4.0, deviation: 2.0, samples: 3 });
        assert_eq!(Spread::of([].into_iter()), Spread::default());
    }
}
