//! Distribution of latencies over fio's buckets.

use crate::result::{Direction, JobResult};

/// Upper bounds of the buckets below 1000 ns, and of those below 1000 µs.
pub(super) const BOUNDS: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];
/// Upper bounds of the buckets of milliseconds; a last bucket holds all longer latencies.
pub(super) const BOUNDS_MS: [u64; 11] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000, 2000];

/// Percentages of a job's operations in each of fio's buckets of completion latency.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Distribution {
    pub(super) nanoseconds: [f64; 10],
    pub(super) microseconds: [f64; 10],
    pub(super) milliseconds: [f64; 12],
}

impl Distribution {
    pub(super) fn of(job: &JobResult) -> Self {
        let mut counts = ([0_u64; 10], [0_u64; 10], [0_u64; 12]);
        for direction in &job.directions {
            for recorded in direction.completion.iter_recorded() {
                let (ns, count) = (recorded.value_iterated_to(), recorded.count_since_last_iteration());
                match ns {
                    0..1_000 => counts.0[bucket(&BOUNDS, ns)] += count,
                    1_000..1_000_000 => counts.1[bucket(&BOUNDS, ns / 1_000)] += count,
                    _ => counts.2[bucket(&BOUNDS_MS, ns / 1_000_000)] += count,
                }
            }
        }
        let total: u64 = Direction::ALL.iter().map(|&d| job.directions[d as usize].completion.len()).sum();
        Self {
            nanoseconds: counts.0.map(|count| percent_seen(count, total)),
            microseconds: counts.1.map(|count| percent_seen(count, total)),
            milliseconds: counts.2.map(|count| percent_seen(count, total)),
        }
    }
}

fn bucket(bounds: &[u64], value: u64) -> usize {
    bounds.partition_point(|&bound| bound <= value)
}

/// Percentage of `part` in `whole`; 0 if `whole` is 0.
pub(super) fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}

/// Percentage of a count; at least 0.01 if the count is not 0.
fn percent_seen(count: u64, total: u64) -> f64 {
    if count == 0 { 0.0 } else { percent(count as f64, total as f64).max(0.01) }
}

/// The counts of fio's depth or batch buckets as percentages of their sum.
pub(super) fn percents(counts: &[u64; 7]) -> [f64; 7] {
    let total: u64 = counts.iter().sum();
    counts.map(|count| percent(count as f64, total as f64))
}

/// Labels of the buckets of `JobResult::depth`.
pub(super) const DEPTHS: [&str; 7] = ["1", "2", "4", "8", "16", "32", ">=64"];
/// Labels of the buckets of `JobResult::submit` and `complete`.
pub(super) const BATCHES: [&str; 7] = ["0", "4", "8", "16", "32", "64", ">=64"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_is_in_upper_bucket() {
        assert_eq!(bucket(&BOUNDS, 0), 0);
        assert_eq!(bucket(&BOUNDS, 2), 1);
        assert_eq!(bucket(&BOUNDS, 999), 9);
        assert_eq!(bucket(&BOUNDS_MS, 2000), 11);
    }

    #[test]
    fn rare_latency_is_at_least_one_hundredth_percent() {
        assert_eq!(percent_seen(1, 1_000_000_000), 0.01);
        assert_eq!(percent_seen(0, 1_000_000_000), 0.0);
        assert_eq!(percent_seen(0, 0), 0.0);
    }
}
