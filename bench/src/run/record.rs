//! The counters of a job's thread.

use super::nanoseconds;
use crate::cpu::{Thread, cpu};
use crate::result::{Cpu, Direction, DirectionResult, histogram};
use core::time::Duration;
use hdrhistogram::Histogram;
use std::sync::mpsc::{Receiver, Sender};
use std::time::SystemTime;

/// The figures of a thread in one interval.
pub(super) struct Interval {
    /// Index of the thread.
    pub(super) thread: usize,
    /// End of the interval, measured from the start.
    pub(super) at: Duration,
    pub(super) length: Duration,
    /// Whether written blocks were read back in it.
    pub(super) reads_back: bool,
    pub(super) ios: [u64; 3],
    pub(super) bytes: [u64; 3],
    /// Total latencies, nanoseconds.
    pub(super) latencies: Histogram<u64>,
}

/// Channels to the collector: complete intervals out, used histograms back.
pub(super) struct IntervalChannel<'a, M> {
    pub(super) out: Sender<M>,
    pub(super) back: &'a Receiver<Histogram<u64>>,
    pub(super) wrap: fn(Interval) -> M,
    pub(super) length: Duration,
}

/// The counters of a thread. All times are nanoseconds of the run's clock.
pub(super) struct Record<'a, M> {
    pub(super) directions: [DirectionResult; 3],
    pub(super) sync: Histogram<u64>,
    pub(super) depth: [u64; 7],
    pub(super) submit: [u64; 7],
    pub(super) complete: [u64; 7],
    /// Wall-clock time of the start of the measurement.
    pub(super) started: SystemTime,
    pub(super) errors: u64,
    pub(super) verify_errors: u64,
    thread: usize,
    /// Start of the measurement.
    start: u64,
    /// Start of the current phase: the time of reading back does not count as time of writing.
    phase_start: u64,
    /// Whether that phase is the one of reading back.
    reads_back: bool,
    /// By direction: operations of earlier phases.
    ios_before: [u64; 3],
    threads: Vec<Thread>,
    cpu: Cpu,
    channel: IntervalChannel<'a, M>,
    interval_start: u64,
    /// When the interval is complete: a multiple of its length after the start.
    interval_end: u64,
    interval: Interval,
}

impl<M> IntervalChannel<'_, M> {
    /// An interval with nothing in it. Its histogram is a used one, or a new one if the collector is late.
    fn empty(&self, thread: usize) -> Interval {
        let zero = Duration::ZERO;
        let latencies = self.back.try_recv().unwrap_or_else(|_| histogram());
        Interval { thread, at: zero, length: zero, reads_back: false, ios: [0; 3], bytes: [0; 3], latencies }
    }
}

impl<'a, M> Record<'a, M> {
    /// The counters of a thread, whose engine works in `threads` as well.
    pub(super) fn new(thread: usize, threads: Vec<Thread>, channel: IntervalChannel<'a, M>) -> Self {
        Self {
            directions: Default::default(),
            sync: histogram(),
            depth: [0; 7],
            submit: [0; 7],
            complete: [0; 7],
            started: SystemTime::now(),
            errors: 0,
            verify_errors: 0,
            thread,
            start: 0,
            phase_start: 0,
            reads_back: false,
            ios_before: [0; 3],
            threads,
            cpu: Cpu::default(),
            interval_start: 0,
            interval_end: 0,
            interval: channel.empty(thread),
            channel,
        }
    }

    /// Starts or restarts the measurement: resets all counters except those of errors.
    pub(super) fn start(&mut self, now: u64) {
        for direction in &mut self.directions {
            direction.ios = 0;
            direction.bytes = 0;
            direction.never_started = 0;
            direction.runtime = Duration::ZERO;
            direction.histograms_mut().into_iter().for_each(Histogram::reset);
        }
        self.sync.reset();
        (self.depth, self.submit, self.complete) = ([0; 7], [0; 7], [0; 7]);
        self.started = SystemTime::now();
        (self.start, self.phase_start, self.interval_start) = (now, now, now);
        self.interval_end = now.saturating_add(self.interval_length());
        self.ios_before = [0; 3];
        self.cpu = cpu(&self.threads);
        (self.interval.ios, self.interval.bytes) = ([0; 3], [0; 3]);
        self.interval.latencies.reset();
    }

    fn interval_length(&self) -> u64 {
        nanoseconds(self.channel.length).max(1)
    }

    /// Ends the phase of writing, and starts the one of reading back.
    pub(super) fn read_back(&mut self, now: u64) {
        self.end_phase(now);
        self.reads_back = true;
    }

    /// Ends a phase: its time counts for the directions that it used, and its last interval is not the next one's.
    fn end_phase(&mut self, now: u64) {
        if now > self.interval_start {
            self.hand_over(now);
        }
        let time = Duration::from_nanos(now.saturating_sub(self.phase_start));
        for (direction, before) in self.directions.iter_mut().zip(&mut self.ios_before) {
            if direction.ios > *before {
                direction.runtime += time;
            }
            *before = direction.ios;
        }
        self.phase_start = now;
    }

    /// Records the submission of an operation.
    pub(super) fn submitted(&mut self, direction: Direction, nanoseconds: u64, in_flight: usize) {
        self.directions[direction as usize].submission.saturating_record(nanoseconds.max(1));
        let bucket = usize::BITS - 1 - in_flight.max(1).leading_zeros();
        self.depth[(bucket as usize).min(6)] += 1;
    }

    /// Records a call that submitted `count` operations.
    pub(super) fn batch_submitted(&mut self, count: usize) {
        self.submit[batch_bucket(count)] += 1;
    }

    /// Records a call that returned `count` completions.
    pub(super) fn batch_completed(&mut self, count: usize) {
        self.complete[batch_bucket(count)] += 1;
    }

    /// Records an operation that succeeded.
    pub(super) fn completed(&mut self, direction: Direction, bytes: u32, times: Times) {
        let result = &mut self.directions[direction as usize];
        result.ios += 1;
        result.bytes += u64::from(bytes);
        result.completion.saturating_record(times.ended.saturating_sub(times.submitted).max(1));
        let total = times.ended.saturating_sub(times.begun).max(1);
        result.total.saturating_record(total);
        if let Some(due) = times.due {
            result.scheduled.saturating_record(times.ended.saturating_sub(due).max(1));
        }
        self.interval.ios[direction as usize] += 1;
        self.interval.bytes[direction as usize] += u64::from(bytes);
        self.interval.latencies.saturating_record(total);
    }

    /// Records operations that were due and never started, with the time that they waited until the end.
    pub(super) fn never_started(&mut self, direction: Direction, waited: u64, number: u64) {
        let result = &mut self.directions[direction as usize];
        result.never_started += number;
        result.scheduled.saturating_record_n(waited.max(1), number);
    }

    /// Records an operation that was given up, if a rate had it start.
    pub(super) fn given_up(&mut self, direction: Direction, due: Option<u64>, now: u64) {
        if let Some(due) = due {
            let scheduled = &mut self.directions[direction as usize].scheduled;
            scheduled.saturating_record(now.saturating_sub(due).max(1));
        }
    }

    /// Records a sync that succeeded.
    pub(super) fn synced(&mut self, times: Times) {
        self.sync.saturating_record(times.ended.saturating_sub(times.begun).max(1));
    }

    /// Sends the interval to the collector if it is complete.
    pub(super) fn tick(&mut self, now: u64) {
        if now >= self.interval_end {
            self.hand_over(now);
        }
    }

    fn hand_over(&mut self, now: u64) {
        let next = self.channel.empty(self.thread);
        let mut interval = core::mem::replace(&mut self.interval, next);
        interval.at = Duration::from_nanos(now.saturating_sub(self.start));
        interval.length = Duration::from_nanos(now.saturating_sub(self.interval_start));
        interval.reads_back = self.reads_back;
        self.interval_start = now;
        let length = self.interval_length();
        self.interval_end = now.saturating_add(length - now.saturating_sub(self.start) % length);
        // Sending fails only if the run is being cancelled.
        let _ = self.channel.out.send((self.channel.wrap)(interval));
    }

    /// Ends the measurement; returns its duration and processor time.
    pub(super) fn finish(&mut self, now: u64) -> (Duration, Cpu) {
        self.end_phase(now);
        let (before, after) = (self.cpu, cpu(&self.threads));
        let cpu = Cpu {
            user: after.user.saturating_sub(before.user),
            system: after.system.saturating_sub(before.system),
            context_switches: after.context_switches.saturating_sub(before.context_switches),
            major_faults: after.major_faults.saturating_sub(before.major_faults),
            minor_faults: after.minor_faults.saturating_sub(before.minor_faults),
        };
        (Duration::from_nanos(now.saturating_sub(self.start)), cpu)
    }
}

/// Timestamps of an operation, in nanoseconds of the run's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// When the rate limit had it start, if there is one.
    pub(super) due: Option<u64>,
    pub(super) begun: u64,
    pub(super) submitted: u64,
    pub(super) ended: u64,
}

/// Index of the bucket: 0, 1 to 4, 5 to 8, 9 to 16, 17 to 32, 33 to 64, more.
fn batch_bucket(count: usize) -> usize {
    match count {
        0 => 0,
        1..=4 => 1,
        5..=8 => 2,
        9..=16 => 3,
        17..=32 => 4,
        33..=64 => 5,
        _ => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const SECOND: u64 = 1_000_000_000;

    /// A record that gets no histogram back.
    fn record(out: Sender<Interval>, back: &Receiver<Histogram<u64>>) -> Record<'_, Interval> {
        let channel =
            IntervalChannel { out, back, wrap: |interval| interval, length: Duration::from_secs(1) };
        Record::new(0, Vec::new(), channel)
    }

    fn ended_at(ended: u64) -> Times {
        Times { due: None, begun: ended - 1000, submitted: ended - 500, ended }
    }

    #[test]
    fn rate_is_over_the_job_time() {
        let ((out, _intervals), (_back, used)) = (channel(), channel());
        let mut record = record(out, &used);
        record.start(SECOND);
        record.completed(Direction::Read, 4096, ended_at(2 * SECOND));
        // The operations after the first one fail.
        let (elapsed, _) = record.finish(5 * SECOND);
        assert_eq!(elapsed, Duration::from_secs(4));
        let [read, write, _] = &record.directions;
        assert_eq!((read.runtime, write.runtime), (Duration::from_secs(4), Duration::ZERO));
        assert_eq!(read.iops(), 0.25);
    }

    #[test]
    fn phases_count_for_their_own_direction() {
        let ((out, _intervals), (_back, used)) = (channel(), channel());
        let mut record = record(out, &used);
        record.start(SECOND);
        record.completed(Direction::Write, 4096, ended_at(2 * SECOND));
        record.read_back(3 * SECOND);
        record.completed(Direction::Read, 4096, ended_at(4 * SECOND));
        record.finish(6 * SECOND);
        let [read, write, _] = &record.directions;
        assert_eq!((read.runtime, write.runtime), (Duration::from_secs(3), Duration::from_secs(2)));
    }

    /// A disk that answers nothing at the end was slow there: that time is a sample as any other.
    #[test]
    fn rest_without_operations_is_an_interval() {
        let ((out, intervals), (_back, used)) = (channel(), channel());
        let mut record = record(out, &used);
        record.start(0);
        record.completed(Direction::Write, 4096, ended_at(SECOND / 2));
        record.read_back(SECOND / 2);
        record.tick(SECOND);
        record.finish(2 * SECOND - 1);
        let intervals: Vec<_> = intervals
            .try_iter()
            .map(|interval| (interval.length.as_millis(), interval.ios[1], interval.reads_back))
            .collect();
        assert_eq!(intervals, [(500, 1, false), (500, 0, true), (999, 0, true)]);
    }

    #[test]
    fn scheduled_latency_begins_at_the_intended_start() {
        let ((out, _intervals), (_back, used)) = (channel(), channel());
        let mut record = record(out, &used);
        record.start(0);
        let times = Times { due: Some(SECOND), ..ended_at(4 * SECOND) };
        record.completed(Direction::Read, 4096, times);
        let read = &record.directions[0];
        assert_eq!(read.total.max(), 1000);
        assert!(read.scheduled.equivalent(read.scheduled.max(), 3 * SECOND));
    }

    #[test]
    fn interval_is_sent_when_the_collector_is_late() {
        let ((out, intervals), (_back, used)) = (channel(), channel());
        let mut record = record(out, &used);
        record.start(0);
        for second in 1..=3 {
            record.completed(Direction::Read, 4096, ended_at(second * SECOND - 1));
            record.tick(second * SECOND);
        }
        let ios: Vec<u64> = intervals.try_iter().map(|interval| interval.ios[0]).collect();
        assert_eq!(ios, [1, 1, 1]);
    }
}
