//! Statistics of rates over a job's samples and over the jobs of a group.

use crate::result::{Direction, JobResult, RunResult, Sample, rate};
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
    /// The statistics of counts, each of a span of time: a long one weighs more, so that the mean is the count of the
    /// whole time.
    fn of(counts: impl Iterator<Item = (f64, Duration)>) -> Self {
        let samples: Vec<(f64, f64)> = counts
            .filter(|(_, time)| !time.is_zero())
            .map(|(count, time)| (count / time.as_secs_f64(), time.as_secs_f64()))
            .collect();
        if samples.is_empty() {
            return Self::default();
        }
        let time: f64 = samples.iter().map(|(_, time)| time).sum();
        let mean = samples.iter().map(|(rate, time)| rate * time).sum::<f64>() / time;
        let squares: f64 = samples.iter().map(|(rate, time)| (rate - mean).powi(2) * time).sum();
        let (number, rates) = (samples.len() as f64, samples.iter().map(|(rate, _)| *rate));
        Self {
            min: rates.clone().fold(f64::INFINITY, f64::min),
            max: rates.fold(0.0, f64::max),
            mean,
            deviation: if number > 1.0 { (squares / time * number / (number - 1.0)).sqrt() } else { 0.0 },
            samples: samples.len() as u64,
        }
    }

    /// Statistics of the operations per second of one direction.
    pub(super) fn iops(job: &JobResult, direction: Direction) -> Self {
        Self::of(samples(job, direction).map(|s| (s.ios[direction as usize] as f64, s.length)))
    }

    /// Statistics of the KiB per second of one direction.
    pub(super) fn kib_per_second(job: &JobResult, direction: Direction) -> Self {
        Self::of(samples(job, direction).map(|s| (s.bytes[direction as usize] as f64 / 1024.0, s.length)))
    }
}

/// The samples of the phases that a direction is used in: nothing is written while written blocks are read back.
fn samples(job: &JobResult, direction: Direction) -> impl Iterator<Item = &Sample> + Clone {
    let is_used =
        |reads_back| job.samples.iter().any(|s| s.reads_back == reads_back && s.ios[direction as usize] > 0);
    let used = [false, true].map(is_used);
    job.samples.iter().filter(move |s| used[usize::from(s.reads_back)])
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

    fn spread(counts: &[(f64, u64)]) -> Spread {
        Spread::of(counts.iter().map(|&(count, ms)| (count, Duration::from_millis(ms))))
    }

    #[test]
    fn spread_uses_sample_deviation() {
        let equal = spread(&[(1.0, 500), (2.0, 500), (3.0, 500)]);
        assert_eq!(equal, Spread { min: 2.0, max: 6.0, mean: 4.0, deviation: 2.0, samples: 3 });
        assert_eq!(spread(&[]), Spread::default());
        assert_eq!(spread(&[(1.0, 0)]), Spread::default());
    }

    #[test]
    fn mean_of_unequal_samples_is_that_of_the_whole_time() {
        let unequal = spread(&[(100.0, 1000), (0.0, 500), (60.0, 300)]);
        assert!((unequal.mean - 160.0 / 1.8).abs() < 1e-9, "{unequal:?}");
        assert_eq!((unequal.min, unequal.max, unequal.samples), (0.0, 200.0, 3));
    }
}
