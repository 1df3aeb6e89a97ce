//! The counters of a job's thread.

use crate::result::{Cpu, Direction, DirectionResult, histogram};
use core::time::Duration;
use hdrhistogram::Histogram;
use nix::sys::resource::{UsageWho, getrusage};
use std::sync::mpsc::{Receiver, Sender};
use std::time::SystemTime;

/// The figures of a thread in one interval.
pub(super) struct Interval {
    /// Index of the thread.
    pub(super) thread: usize,
    /// End of the interval, measured from the start.
    pub(super) at: Duration,
    pub(super) length: Duration,
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
    /// By direction: the run time of earlier phases.
    phases_before: [Duration; 3],
    last: u64,
    cpu: Cpu,
    channel: IntervalChannel<'a, M>,
    interval_start: u64,
    interval: Option<Interval>,
}

impl<'a, M> Record<'a, M> {
    pub(super) fn new(thread: usize, channel: IntervalChannel<'a, M>) -> Self {
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
            phases_before: [Duration::ZERO; 3],
            last: 0,
            cpu: Cpu::default(),
            channel,
            interval_start: 0,
            interval: None,
        }
    }

    /// Starts or restarts the measurement: resets all counters except those of errors.
    pub(super) fn start(&mut self, now: u64) {
        for direction in &mut self.directions {
            direction.ios = 0;
            direction.bytes = 0;
            direction.runtime = Duration::ZERO;
            for latencies in [&mut direction.submission, &mut direction.completion, &mut direction.total] {
                latencies.reset();
            }
        }
        self.sync.reset();
        (self.depth, self.submit, self.complete) = ([0; 7], [0; 7], [0; 7]);
        self.started = SystemTime::now();
        (self.start, self.phase_start, self.last, self.interval_start) = (now, now, now, now);
        self.phases_before = [Duration::ZERO; 3];
        self.cpu = cpu();
        if let Some(interval) = &mut self.interval {
            (interval.ios, interval.bytes) = ([0; 3], [0; 3]);
            interval.latencies.reset();
        }
        self.next_interval();
    }

    /// Starts a new phase.
    pub(super) fn phase(&mut self, now: u64) {
        self.phase_start = now;
        self.phases_before = Direction::ALL.map(|direction| self.directions[direction as usize].runtime);
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
        let in_phase = Duration::from_nanos(times.ended.saturating_sub(self.phase_start));
        result.runtime = self.phases_before[direction as usize] + in_phase;
        self.last = times.ended;
        if let Some(interval) = &mut self.interval {
            interval.ios[direction as usize] += 1;
            interval.bytes[direction as usize] += u64::from(bytes);
            interval.latencies.saturating_record(total);
        }
    }

    /// Records a sync that succeeded.
    pub(super) fn synced(&mut self, times: Times) {
        self.sync.saturating_record(times.ended.saturating_sub(times.begun).max(1));
        self.last = times.ended;
    }

    /// Sends the interval to the collector if it is complete.
    pub(super) fn tick(&mut self, now: u64) {
        let length = Duration::from_nanos(now.saturating_sub(self.interval_start));
        if length >= self.channel.length {
            self.hand_over(now, length);
        }
    }

    fn hand_over(&mut self, now: u64, length: Duration) {
        let Some(mut interval) = self.interval.take() else { return self.next_interval() };
        interval.at = Duration::from_nanos(now.saturating_sub(self.start));
        interval.length = length;
        self.interval_start = now;
        // Sending fails only if the run is being cancelled.
        let _ = self.channel.out.send((self.channel.wrap)(interval));
        self.next_interval();
    }

    /// Starts an interval if there is an empty histogram; without one (the collector is late) it is not recorded.
    fn next_interval(&mut self) {
        if self.interval.is_none()
            && let Ok(latencies) = self.channel.back.try_recv()
        {
            let zero = Duration::ZERO;
            let (ios, bytes) = ([0; 3], [0; 3]);
            self.interval =
                Some(Interval { thread: self.thread, at: zero, length: zero, ios, bytes, latencies });
        }
    }

    /// Ends the measurement; returns its duration and processor time.
    pub(super) fn finish(&mut self, now: u64) -> (Duration, Cpu) {
        let length = Duration::from_nanos(now.saturating_sub(self.interval_start));
        if self.interval.as_ref().is_some_and(|interval| interval.ios != [0; 3]) {
            self.hand_over(now, length);
        }
        let (before, after) = (self.cpu, cpu());
        let cpu = Cpu {
            user: after.user.saturating_sub(before.user),
            system: after.system.saturating_sub(before.system),
            context_switches: after.context_switches - before.context_switches,
            major_faults: after.major_faults - before.major_faults,
            minor_faults: after.minor_faults - before.minor_faults,
        };
        (Duration::from_nanos(self.last.saturating_sub(self.start)), cpu)
    }
}

/// Timestamps of an operation, in nanoseconds of the run's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
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

/// This thread's usage so far.
fn cpu() -> Cpu {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) else { return Cpu::default() };
    let time = |time: nix::sys::time::TimeVal| {
        let microseconds = time.tv_sec().saturating_mul(1_000_000).saturating_add(time.tv_usec());
        Duration::from_micros(u64::try_from(microseconds).unwrap_or(0))
    };
    let count = |count: i64| u64::try_from(count).unwrap_or(0);
    Cpu {
        user: time(usage.user_time()),
        system: time(usage.system_time()),
        context_switches: count(usage.voluntary_context_switches())
            + count(usage.involuntary_context_switches()),
        major_faults: count(usage.major_page_faults()),
        minor_faults: count(usage.minor_page_faults()),
    }
}
