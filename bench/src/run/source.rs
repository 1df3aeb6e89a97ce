//! The sequence of a thread's operations, syncs and pauses, and the reading back of written blocks.

use super::nanoseconds;
use crate::job::JobOptions;
use crate::result::Direction;
use crate::verify::Verification;
use crate::workload::{Generator, Operation, Pace};

/// Operations that never started and are counted one by one.
const EACH_ALONE: u64 = 1 << 18;

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Submit this operation now. If there is a rate limit, this is when the job meant it to start, in nanoseconds of the
    /// run's clock.
    Do(Operation, Option<u64>),
    /// Submit a sync now.
    Sync,
    /// Wait until this time, in nanoseconds of the run's clock.
    At(u64),
    /// Wait for a completion.
    Blocked,
    /// The job has ended.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Work,
    /// Wait for outstanding operations, then submit the last sync.
    LastSync,
    /// Read written blocks back, from `read_back_to` on.
    ReadBack,
    End,
}

/// Source of a thread's operations.
pub(super) struct Source {
    generator: Generator,
    pace: Pace,
    phase: Phase,
    /// Start of the job, in nanoseconds of the run's clock.
    start: u64,
    /// Time after which no operation starts, if `runtime` is set.
    deadline: Option<u64>,
    /// When the last operation could start, once that is over.
    ended: Option<u64>,
    /// A generated operation that could not start yet.
    held: Option<Operation>,
    /// No operation is due before the one that was generated before it, nor during a pause: operations form one
    /// sequence, whatever the rates of the directions.
    not_before: u64,
    sync_every: u32,
    writes_since_sync: u32,
    sync_at_end: bool,
    read_back: bool,
    read_back_len: u32,
    read_back_to: u64,
    think_time: u64,
    think_every: u32,
    issued_since_thought: u32,
    thinking_until: Option<u64>,
}

impl Source {
    pub(super) fn new(options: &JobOptions, generator: Generator) -> Self {
        Self {
            pace: Pace::new(options),
            phase: Phase::Work,
            start: 0,
            deadline: options.runtime.map(|runtime| nanoseconds(runtime + options.ramp_time)),
            ended: None,
            held: None,
            not_before: 0,
            sync_every: if options.rw.writes { options.fsync } else { 0 },
            writes_since_sync: 0,
            sync_at_end: options.end_fsync && options.rw.writes,
            read_back: options.verify.is_some() && options.do_verify && options.rw.writes,
            read_back_len: options.bs_most(),
            read_back_to: generator.region().offset,
            think_time: nanoseconds(options.thinktime),
            think_every: options.thinktime_blocks,
            issued_since_thought: 0,
            thinking_until: None,
            generator,
        }
    }

    pub(super) fn start(&mut self, now: u64) {
        self.start = now;
        self.deadline = self.deadline.map(|runtime| now.saturating_add(runtime));
    }

    /// Stops: no more operations, and no reading back.
    pub(super) fn stop(&mut self, now: u64) {
        self.phase = Phase::End;
        self.end(now);
    }

    fn end(&mut self, now: u64) {
        self.ended.get_or_insert(self.deadline.map_or(now, |deadline| now.min(deadline)));
    }

    /// The end of `runtime`, if that is over.
    pub(super) fn deadline_passed(&self, now: u64) -> Option<u64> {
        self.deadline.filter(|deadline| now >= *deadline)
    }

    /// The operations that were due before the end of the job and never started, for lack of a free place in the queue:
    /// their direction, the time that they waited, and their number. Called once the job is over.
    pub(super) fn never_started(&mut self, mut each: impl FnMut(Direction, u64, u64)) {
        let Some(ended) = self.ended else { return };
        let (mut seen, mut weight) = (0_u64, 1);
        while self.think_time == 0 || self.issued_since_thought < self.think_every {
            let Some(operation) = self.held.take().or_else(|| self.generator.next()) else { return };
            let Some(due) = self.due(operation.direction).filter(|due| *due < ended) else { return };
            self.generator.leave_out(operation.len, weight - 1);
            self.not_before = due;
            self.pace.issue(operation.direction, operation.len, weight);
            self.issued_since_thought = self.issued_since_thought.saturating_add(1);
            each(operation.direction, ended - due, weight);
            seen += 1;
            // A rate far above what the device can do leaves billions: the more there are, the more does one stand for.
            if seen.is_multiple_of(EACH_ALONE) {
                weight *= 2;
            }
        }
    }

    /// When an operation of this direction is due, if there is a rate for it.
    fn due(&self, direction: Direction) -> Option<u64> {
        let due = self.pace.due(direction)?;
        let due = self.start.saturating_add(nanoseconds(due));
        Some(due.max(self.not_before))
    }

    /// Whether written blocks are now being read back.
    pub(super) fn reads_back(&self) -> bool {
        self.phase == Phase::ReadBack
    }

    /// The address up to which written blocks have been read back, if they are to be.
    pub(super) fn read_back_to(&self) -> Option<u64> {
        self.read_back.then_some(self.read_back_to)
    }

    /// What to do next, with `in_flight` operations outstanding.
    pub(super) fn next(
        &mut self,
        now: u64,
        in_flight: usize,
        verification: &mut Option<Verification>,
    ) -> Next {
        match self.phase {
            Phase::Work => self.next_work(now, in_flight, verification),
            _ if in_flight > 0 && !self.reads_back() => Next::Blocked,
            Phase::LastSync => {
                self.phase = if self.read_back { Phase::ReadBack } else { Phase::End };
                if core::mem::take(&mut self.sync_at_end) {
                    Next::Sync
                } else {
                    self.next(now, in_flight, verification)
                }
            }
            Phase::ReadBack => self.next_read_back(verification),
            Phase::End => Next::End,
        }
    }

    fn next_work(&mut self, now: u64, in_flight: usize, verification: &mut Option<Verification>) -> Next {
        if self.deadline_passed(now).is_some() {
            return self.end_work(in_flight, now, verification);
        }
        if self.think_time > 0 && self.issued_since_thought >= self.think_every {
            if in_flight > 0 {
                return Next::Blocked;
            }
            let until = *self.thinking_until.get_or_insert(now.saturating_add(self.think_time));
            if now < until {
                return Next::At(until);
            }
            (self.thinking_until, self.issued_since_thought) = (None, 0);
            self.not_before = self.not_before.max(until);
        }
        if self.sync_every > 0 && self.writes_since_sync >= self.sync_every {
            self.writes_since_sync = 0;
            return Next::Sync;
        }
        let Some(operation) = self.held.take().or_else(|| self.generator.next()) else {
            return self.end_work(in_flight, now, verification);
        };
        let due = self.due(operation.direction);
        if let Some(due) = due.filter(|due| now < *due) {
            self.held = Some(operation);
            return Next::At(due.min(self.deadline.unwrap_or(u64::MAX)));
        }
        if verification.as_mut().is_some_and(|verification| !verification.claim(&operation)) {
            self.held = Some(operation);
            return Next::Blocked;
        }
        self.not_before = due.unwrap_or(self.not_before);
        self.pace.issue(operation.direction, operation.len, 1);
        self.issued_since_thought = self.issued_since_thought.saturating_add(1);
        self.writes_since_sync += u32::from(operation.direction == Direction::Write);
        Next::Do(operation, due)
    }

    fn end_work(&mut self, in_flight: usize, now: u64, verification: &mut Option<Verification>) -> Next {
        self.end(now);
        self.phase = Phase::LastSync;
        self.next(now, in_flight, verification)
    }

    fn next_read_back(&mut self, verification: &mut Option<Verification>) -> Next {
        let (region, from) = (self.generator.region(), self.read_back_to);
        let verification = verification.as_mut().filter(|_| from < region.offset + region.len);
        let Some((verification, (offset, len))) =
            verification.and_then(|v| v.written_from(from, self.read_back_len).map(|run| (v, run)))
        else {
            self.phase = Phase::End;
            self.read_back_to = u64::MAX;
            return Next::End;
        };
        let operation = Operation { direction: Direction::Read, offset, len };
        if !verification.claim(&operation) {
            return Next::Blocked;
        }
        self.read_back_to = offset + u64::from(len);
        Next::Do(operation, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Given, Plan, Section};
    use crate::workload::Region;

    const SECOND: u64 = 1_000_000_000;
    const MILLISECOND: u64 = 1_000_000;

    /// The source of a job of random operations on a large disk that began at a second.
    fn source(options: &str) -> Source {
        let given = options.split_whitespace().map(|option| {
            let (name, value) = option.split_once('=').unwrap();
            Given { name: name.to_owned(), value: value.to_owned(), place: String::new() }
        });
        let section = Section { name: "job".to_owned(), options: given.collect() };
        let options = Plan::new(&[section], &[]).unwrap().jobs.remove(0).options;
        let generator = Generator::new(&options, Region { offset: 0, len: 1 << 40 }, 0).unwrap();
        let mut source = Source::new(&options, generator);
        source.start(SECOND);
        source
    }

    /// What a disk makes of it that takes `latency` for each operation, one at a time: by direction, how long after they
    /// were due the operations ended.
    fn run(source: &mut Source, latency: u64) -> [Vec<u64>; 3] {
        let (mut now, mut late) = (SECOND, [const { Vec::new() }; 3]);
        loop {
            match source.next(now, 0, &mut None) {
                Next::Do(operation, due) => {
                    now += latency;
                    late[operation.direction as usize].push(now - due.unwrap());
                }
                Next::At(time) => now = time,
                Next::End => return late,
                next => panic!("{next:?} with nothing outstanding"),
            }
        }
    }

    #[test]
    fn directions_of_a_mix_do_not_wait_for_each_other() {
        let mut source = source("rw=randrw rwmixread=90 rate_iops=1000 time_based=1 runtime=4s");
        let [reads, writes, _] = run(&mut source, 1000);
        assert!(reads.len() > 3500 && writes.len() > 300, "{} and {}", reads.len(), writes.len());
        assert!(
            reads.iter().chain(&writes).all(|&late| late < MILLISECOND),
            "the disk takes a microsecond for each"
        );
        source.never_started(|direction, _, _| panic!("{direction:?} was not started"));
    }

    #[test]
    fn pause_is_no_latency() {
        let mut source = source("rw=randread rate_iops=1000 thinktime=5ms time_based=1 runtime=4s");
        let [reads, ..] = run(&mut source, 1000);
        assert!((790..=801).contains(&reads.len()), "one every 5 ms: {}", reads.len());
        assert!(reads.iter().all(|&late| late == 1000), "{:?}", reads.iter().max());
    }

    #[test]
    fn operations_that_were_due_and_never_started_are_told() {
        // It does 100 a second of the thousand.
        let mut source = source("rw=randread rate_iops=1000 time_based=1 runtime=2s");
        let [reads, ..] = run(&mut source, 10 * MILLISECOND);
        assert_eq!(reads.len(), 200);
        let mut waits = Vec::new();
        source.never_started(|_, wait, number| {
            assert_eq!(number, 1);
            waits.push(wait);
        });
        assert_eq!(waits.len(), 1800);
        assert_eq!((waits[0], waits[1799]), (1800 * MILLISECOND, MILLISECOND));
    }

    #[test]
    fn stop_ends_what_is_due() {
        let mut source = source("rw=randread rate_iops=1000 time_based=1 runtime=2s");
        source.stop(SECOND + 500 * MILLISECOND);
        let mut count = 0;
        source.never_started(|_, _, number| count += number);
        assert_eq!(count, 500);
    }

    #[test]
    fn billions_that_never_started_are_counted_in_short() {
        let mut source = source("rw=randread rate_iops=1g time_based=1 runtime=100s");
        source.stop(101 * SECOND);
        let (mut count, mut calls, mut sum) = (0_u64, 0, 0_u128);
        source.never_started(|_, wait, number| {
            calls += 1;
            count += number;
            sum += u128::from(wait) * u128::from(number);
        });
        let exact = 100_u64 << 30;
        assert!(calls < 20 * EACH_ALONE && count.abs_diff(exact) < exact / 100_000, "{count} in {calls}");
        let mean = u64::try_from(sum / u128::from(count)).unwrap();
        assert!(mean.abs_diff(50 * SECOND) < SECOND / 10_000, "{mean}");
        // No more than the job has left.
        let mut source = self::source("rw=randread rate_iops=1g io_size=4g runtime=100s");
        source.stop(101 * SECOND);
        let mut count = 0;
        source.never_started(|_, _, number| count += number);
        assert!(count <= 1 << 20 && count > (1 << 20) - 16, "{count}");
    }
}
