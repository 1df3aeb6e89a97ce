//! How long something took: counts in buckets, each twice as wide as the one before.

use crate::telemetry::Counter;
use core::time::Duration;

/// Buckets with a bound; one more has none.
pub const BOUNDS: usize = 24;

/// Microseconds below which the times of a bucket lie: 4 µs, 8 µs, and so on to 33.5 s.
#[must_use]
pub fn bound(bucket: usize) -> Duration {
    Duration::from_micros(4 << bucket)
}

/// Times that one worker measures and anyone reads.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [Counter; BOUNDS + 1],
    sum_us: Counter,
}

impl Histogram {
    /// One more, of so many microseconds. Only the owning worker may.
    pub fn add(&self, us: u64) {
        let bits = (u64::BITS - (us >> 2).leading_zeros()) as usize;
        self.buckets[bits.min(BOUNDS)].add(1);
        self.sum_us.add(us);
    }
}

/// What histograms say together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// How many in each bucket, the last being without a bound.
    pub buckets: [u64; BOUNDS + 1],
    /// The sum of all, in microseconds.
    pub sum_us: u64,
}

impl Times {
    /// Adds what a histogram has.
    pub fn add(&mut self, histogram: &Histogram) {
        for (sum, bucket) in self.buckets.iter_mut().zip(&histogram.buckets) {
            *sum = sum.wrapping_add(bucket.get());
        }
        self.sum_us = self.sum_us.wrapping_add(histogram.sum_us.get());
    }

    /// Adds others.
    pub fn add_times(&mut self, other: &Self) {
        for (sum, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum = sum.wrapping_add(*more);
        }
        self.sum_us = self.sum_us.wrapping_add(other.sum_us);
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn time_lies_within_the_bounds_of_its_bucket(us in any::<u64>()) {
            let histogram = Histogram::default();
            histogram.add(us);
            let mut times = Times::default();
            times.add(&histogram);
            let at = times.buckets.iter().position(|&count| count == 1).unwrap();
            let time = Duration::from_micros(us);
            prop_assert!(at == BOUNDS || time < bound(at));
            prop_assert!(at == 0 || time >= bound(at - 1));
            prop_assert_eq!((times.count(), times.sum_us), (1, us));
        }
    }
}
