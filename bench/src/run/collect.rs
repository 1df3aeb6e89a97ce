//! Merging of the threads' intervals into the samples of the reports.

use super::record::Interval;
use crate::result::{Sample, histogram};
use core::time::Duration;
use hdrhistogram::Histogram;
use std::collections::{BTreeMap, HashMap};

/// Largest number of incomplete intervals, each with a histogram. A thread that lags further is not waited for: what it
/// sends later is added to the operations of the samples, but not to their latencies.
const OPEN_MAX: usize = 256;

/// Collects the intervals of one report: those of a thread, or of all threads of a group.
pub(super) struct Collector {
    interval: Duration,
    threads: usize,
    /// By thread: the number of its last interval, and whether blocks were read back in it.
    reached: HashMap<usize, (u128, bool)>,
    /// By number.
    open: BTreeMap<u128, Open>,
    idle: Vec<Histogram<u64>>,
    /// The numbers of the samples, in order.
    closed: Vec<u128>,
    pub(super) samples: Vec<Sample>,
}

/// An interval that is not complete yet.
struct Open {
    sample: Sample,
    latencies: Histogram<u64>,
}

impl Collector {
    pub(super) fn new(interval: Duration, threads: usize) -> Self {
        Self {
            interval,
            threads,
            reached: HashMap::new(),
            open: BTreeMap::new(),
            idle: Vec::new(),
            closed: Vec::new(),
            samples: Vec::new(),
        }
    }

    /// Adds a thread's interval and resets its histogram.
    pub(super) fn add(&mut self, interval: &mut Interval) {
        let number = interval.at.as_nanos() / self.interval.as_nanos().max(1);
        // What is shorter than half an interval, as the wait for the last operations, is a part of the sample before:
        // on its own it would be a rate of a few operations in nearly no time. Unless it is another phase of the job.
        let number = match self.reached.get(&interval.thread) {
            Some(&(reached, reads_back))
                if reads_back == interval.reads_back && interval.length < self.interval / 2 =>
            {
                reached
            }
            Some((reached, _)) => number.max(reached + 1),
            None => number,
        };
        let at = self.closed.partition_point(|&closed| closed < number);
        if at < self.closed.len() {
            add_operations(&mut self.samples[at], interval);
        } else {
            let idle = &mut self.idle;
            let open = self.open.entry(number).or_insert_with(|| Open {
                sample: Sample::default(),
                latencies: idle.pop().unwrap_or_else(histogram),
            });
            add_operations(&mut open.sample, interval);
            open.latencies.add(&interval.latencies).expect("all have the same bounds");
        }
        interval.latencies.reset();
        self.reached.insert(interval.thread, (number, interval.reads_back));
        self.close();
    }

    /// Notes that a thread has ended and sends no more intervals.
    pub(super) fn on_thread_ended(&mut self, thread: usize) {
        self.reached.insert(thread, (u128::MAX, false));
        self.close();
    }

    /// Completes all open intervals.
    pub(super) fn finish(&mut self) {
        while self.close_first() {}
    }

    /// Completes the intervals that all threads are past: a short rest may still follow to the last one.
    fn close(&mut self) {
        let all = self.reached.len() >= self.threads;
        let reached = if all { self.reached.values().map(|(number, _)| *number).min() } else { None };
        while let Some((&first, _)) = self.open.first_key_value()
            && (reached.is_some_and(|reached| first < reached) || self.open.len() > OPEN_MAX)
        {
            self.close_first();
        }
    }

    /// Completes the first open interval; `false` if there is none.
    fn close_first(&mut self) -> bool {
        let Some((number, mut open)) = self.open.pop_first() else { return false };
        for (slot, percentile) in open.sample.percentiles.iter_mut().zip(Sample::PERCENTILES) {
            *slot = open.latencies.value_at_percentile(percentile);
        }
        open.latencies.reset();
        self.idle.push(open.latencies);
        self.closed.push(number);
        self.samples.push(open.sample);
        true
    }
}

fn add_operations(sample: &mut Sample, interval: &Interval) {
    let is_first = sample.length.is_zero();
    let mut from = interval.at.saturating_sub(interval.length);
    if !is_first {
        from = from.min(sample.at.saturating_sub(sample.length));
    }
    sample.at = sample.at.max(interval.at);
    sample.length = sample.at - from;
    sample.reads_back = interval.reads_back && (is_first || sample.reads_back);
    for direction in 0..3 {
        sample.ios[direction] += interval.ios[direction];
        sample.bytes[direction] += interval.bytes[direction];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_millis(500);

    /// An interval of a thread with one read.
    fn interval(thread: usize, number: u32) -> Interval {
        let mut latencies = histogram();
        latencies.record(1000).unwrap();
        let (ios, bytes) = ([1, 0, 0], [4096, 0, 0]);
        Interval { thread, at: LENGTH * number, length: LENGTH, reads_back: false, ios, bytes, latencies }
    }

    #[test]
    fn thread_that_lags_is_in_all_samples() {
        let mut collector = Collector::new(LENGTH, 2);
        for thread in [0, 1] {
            for number in 1..=10 {
                collector.add(&mut interval(thread, number));
            }
        }
        collector.finish();
        let ios: Vec<u64> = collector.samples.iter().map(|sample| sample.ios[0]).collect();
        assert_eq!(ios, [2; 10]);
        let ends: Vec<Duration> = collector.samples.iter().map(|sample| sample.at).collect();
        assert!(ends.is_sorted(), "{ends:?}");
    }

    #[test]
    fn interval_without_a_thread_is_complete_with_its_next() {
        let mut collector = Collector::new(LENGTH, 2);
        collector.add(&mut interval(0, 1));
        collector.add(&mut interval(0, 2));
        // Thread 1 was held up for the length of two intervals, and sends them as one.
        collector.add(&mut interval(1, 2));
        collector.finish();
        let ios: Vec<u64> = collector.samples.iter().map(|sample| sample.ios[0]).collect();
        assert_eq!(ios, [1, 2]);
    }

    #[test]
    fn blocks_that_are_read_back_in_no_time_are_a_sample_of_their_own() {
        let mut collector = Collector::new(LENGTH, 1);
        collector.add(&mut interval(0, 1));
        let (at, length) = (Duration::from_millis(510), Duration::from_millis(10));
        collector.add(&mut Interval { at, length, reads_back: true, ..interval(0, 0) });
        collector.on_thread_ended(0);
        let samples: Vec<_> =
            collector.samples.iter().map(|it| (it.length.as_millis(), it.ios[0], it.reads_back)).collect();
        assert_eq!(samples, [(500, 1, false), (10, 1, true)]);
    }

    #[test]
    fn short_rest_belongs_to_the_sample_before() {
        let mut collector = Collector::new(LENGTH, 1);
        let rest = |at, length| Interval { at, length, ..interval(0, 0) };
        collector.add(&mut interval(0, 1));
        collector.add(&mut interval(0, 2));
        collector.add(&mut rest(Duration::from_millis(1001), Duration::from_millis(1)));
        collector.on_thread_ended(0);
        let samples: Vec<_> =
            collector.samples.iter().map(|sample| (sample.length.as_millis(), sample.ios[0])).collect();
        assert_eq!(samples, [(500, 1), (501, 2)]);
        // A long one is a sample, and so is the only one.
        for (at, length, expected) in [(1300, 300, vec![500, 500, 300]), (3, 3, vec![3])] {
            let mut collector = Collector::new(LENGTH, 1);
            for number in 1..=if at > 3 { 2 } else { 0 } {
                collector.add(&mut interval(0, number));
            }
            collector.add(&mut rest(Duration::from_millis(at), Duration::from_millis(length)));
            collector.on_thread_ended(0);
            let lengths: Vec<u128> =
                collector.samples.iter().map(|sample| sample.length.as_millis()).collect();
            assert_eq!(lengths, expected);
        }
    }
}
