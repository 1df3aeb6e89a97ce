//! The sequence of a thread's operations, syncs and pauses, and the reading back of written blocks.

use crate::job::JobOptions;
use crate::result::Direction;
use crate::verify::Verification;
use crate::workload::{Generator, Operation, Pace};
use core::time::Duration;

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Submit this operation now. If there is a rate limit, this is when it had the operation start, in nanoseconds of
    /// the run's clock.
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
    /// Read written blocks back, from this address on.
    ReadBack(u64),
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
    /// A generated operation that could not start yet.
    held: Option<Operation>,
    sync_every: u32,
    writes_since_sync: u32,
    sync_at_end: bool,
    read_back: bool,
    read_back_len: u32,
    think_time: u64,
    think_every: u32,
    issued_since_thought: u32,
    thinking_until: Option<u64>,
}

impl Source {
    pub(super) fn new(options: &JobOptions, generator: Generator) -> Self {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            pace: Pace::new(options),
            phase: Phase::Work,
            start: 0,
            deadline: options.runtime.map(|runtime| nanoseconds(runtime + options.ramp_time)),
            held: None,
            sync_every: if options.rw.writes { options.fsync } else { 0 },
            writes_since_sync: 0,
            sync_at_end: options.end_fsync && options.rw.writes,
            read_back: options.verify.is_some() && options.do_verify && options.rw.writes,
            read_back_len: options.bs_most(),
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
    pub(super) fn stop(&mut self) {
        self.phase = Phase::End;
        self.held = None;
    }

    /// Whether written blocks are now being read back.
    pub(super) fn reads_back(&self) -> bool {
        matches!(self.phase, Phase::ReadBack(_))
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
                self.phase =
                    if self.read_back { Phase::ReadBack(self.generator.region().offset) } else { Phase::End };
                if core::mem::take(&mut self.sync_at_end) {
                    Next::Sync
                } else {
                    self.next(now, in_flight, verification)
                }
            }
            Phase::ReadBack(from) => self.next_read_back(from, verification),
            Phase::End => Next::End,
        }
    }

    fn next_work(&mut self, now: u64, in_flight: usize, verification: &mut Option<Verification>) -> Next {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
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
        }
        if self.sync_every > 0 && self.writes_since_sync >= self.sync_every {
            self.writes_since_sync = 0;
            return Next::Sync;
        }
        let Some(operation) = self.held.take().or_else(|| self.generator.next()) else {
            return self.end_work(in_flight, now, verification);
        };
        let due = self.pace.due(operation.direction);
        let due = due.map(|due| self.start.saturating_add(u64::try_from(due.as_nanos()).unwrap_or(u64::MAX)));
        if let Some(due) = due.filter(|due| now < *due) {
            self.held = Some(operation);
            return Next::At(due.min(self.deadline.unwrap_or(u64::MAX)));
        }
        if verification.as_mut().is_some_and(|verification| !verification.claim(&operation)) {
            self.held = Some(operation);
            return Next::Blocked;
        }
        self.pace.issue(operation.direction, operation.len);
        self.issued_since_thought = self.issued_since_thought.saturating_add(1);
        self.writes_since_sync += u32::from(operation.direction == Direction::Write);
        Next::Do(operation, due)
    }

    fn end_work(&mut self, in_flight: usize, now: u64, verification: &mut Option<Verification>) -> Next {
        self.held = None;
        self.phase = Phase::LastSync;
        self.next(now, in_flight, verification)
    }

    fn next_read_back(&mut self, from: u64, verification: &mut Option<Verification>) -> Next {
        let region = self.generator.region();
        let verification = verification.as_mut().filter(|_| from < region.offset + region.len);
        let Some((verification, (offset, len))) =
            verification.and_then(|v| v.written_from(from, self.read_back_len).map(|run| (v, run)))
        else {
            self.phase = Phase::End;
            return Next::End;
        };
        let operation = Operation { direction: Direction::Read, offset, len };
        if !verification.claim(&operation) {
            return Next::Blocked;
        }
        self.phase = Phase::ReadBack(offset + u64::from(len));
        Next::Do(operation, None)
    }
}
