//! Merging of the threads' intervals into the samples of the reports.

use super::record::Interval;
use crate::result::{Sample, histogram};
use core::time::Duration;
use hdrhistogram::Histogram;
use std::collections::VecDeque;

/// Largest number of incomplete intervals: a thread that lags further is not waited for.
const OPEN_MAX: usize = 4;

/// Collects the intervals of one report: those of a thread, or of all threads of a group.
pub(super) struct Collector {
    interval: Duration,
    threads: usize,
    open: VecDeque<Open>,
    idle: Vec<Histogram<u64>>,
    pub(super) samples: Vec<Sample>,
}

/// An interval that is not complete yet.
struct Open {
    number: u128,
    threads: usize,
    sample: Sample,
    latencies: Histogram<u64>,
}

impl Collector {
    pub(super) fn new(interval: Duration, threads: usize) -> Self {
        Self { interval, threads, open: VecDeque::new(), idle: Vec::new(), samples: Vec::new() }
    }

    /// Adds a thread's interval and resets its histogram.
    pub(super) fn add(&mut self, interval: &mut Interval) {
        let number = interval.at.as_nanos() / self.interval.as_nanos().max(1);
        let at = match self.open.iter().position(|open| open.number == number) {
            Some(at) => at,
            None => {
                let latencies = self.idle.pop().unwrap_or_else(histogram);
                self.open.push_back(Open { number, threads: 0, sample: Sample::default(), latencies });
                self.open.len() - 1
            }
        };
        let open = &mut self.open[at];
        open.threads += 1;
        open.sample.at = open.sample.at.max(interval.at);
        open.sample.length = open.sample.length.max(interval.length);
        for direction in 0..3 {
            open.sample.ios[direction] += interval.ios[direction];
            open.sample.bytes[direction] += interval.bytes[direction];
        }
        open.latencies.add(&interval.latencies).expect("all have the same bounds");
        interval.latencies.reset();
        if open.threads >= self.threads || self.open.len() > OPEN_MAX {
            self.close_first();
        }
    }

    /// Notes that a thread has ended and sends no more intervals.
    pub(super) fn on_thread_ended(&mut self) {
        self.threads = self.threads.saturating_sub(1).max(1);
    }

    /// Completes all open intervals.
    pub(super) fn finish(&mut self) {
        while !self.open.is_empty() {
            self.close_first();
        }
    }

    fn close_first(&mut self) {
        let Some(mut open) = self.open.pop_front() else { return };
        for (slot, percentile) in open.sample.percentiles.iter_mut().zip(Sample::PERCENTILES) {
            *slot = open.latencies.value_at_percentile(percentile);
        }
        open.latencies.reset();
        self.idle.push(open.latencies);
        self.samples.push(open.sample);
    }
}
