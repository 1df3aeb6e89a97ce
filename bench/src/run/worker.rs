//! The loop of a job's thread: submit, flush, poll.

mod ending;

use super::depth_search::DepthSearch;
use super::nanoseconds;
use super::record::{Record, Times};
use super::source::{Next, Source};
use crate::engine::Engine;
use crate::job::{JobOptions, Poll};
use crate::message::say;
use crate::result::{Cpu, Direction, Verified};
use crate::verify::Verification;
use crate::workload::{Operation, Random};
use core::time::Duration;
use nvmf_block::{BlockError, BlockOp, BlockRange, Buffer, Completion, DeviceId, RegionId, Tag};
use nvmf_memory::Memory;
use nvmf_spin::Spin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The longest sleep, so that the thread notices in time that the run should stop.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// Completions per poll.
const COMPLETIONS_AT_ONCE: usize = 256;
/// Verification errors that are reported individually.
const VERIFY_MESSAGES_MAX: u64 = 10;

/// The operation in flight under one tag.
#[derive(Debug, Clone, Copy)]
struct Slot {
    /// `None`: a sync.
    operation: Option<Operation>,
    due: Option<u64>,
    begun: u64,
    submitted: u64,
}

/// The parts of a worker besides its options.
pub(super) struct Parts<'a, E, M> {
    pub(super) engine: E,
    pub(super) source: Source,
    pub(super) verification: Option<Verification>,
    pub(super) record: Record<'a, M>,
    /// One buffer of `slot_len` bytes for each operation in flight.
    pub(super) memory: Memory,
    pub(super) region: RegionId,
    pub(super) slot_len: usize,
    pub(super) block_size: u32,
    /// Start of the run's clock.
    pub(super) clock: Instant,
}

/// The state of a job's thread.
pub(super) struct Worker<'a, E: Engine, M> {
    parts: Parts<'a, E, M>,
    options: &'a JobOptions,
    name: &'a str,
    stop: &'a AtomicBool,
    device: DeviceId,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Submitted but not flushed yet.
    batch: Vec<u32>,
    completions: Vec<Completion>,
    depth: usize,
    /// Operations per flush.
    batch_len: usize,
    /// More operations are submitted once at most this many are in flight.
    low: usize,
    search: Option<DepthSearch>,
    refill: Option<(Random, Vec<u8>)>,
    /// Time before which the next operation must not start, if any.
    wake_at: Option<u64>,
    spin: Spin,
    ramp_ends: Option<u64>,
    stopped_at: Option<u64>,
    /// When the last completion came.
    last_end: u64,
    ended: bool,
    first_error: Option<BlockError>,
    first_wrong: Option<String>,
}

/// The result of a thread.
pub(super) struct Outcome<'a, E, M> {
    pub(super) engine: E,
    pub(super) record: Record<'a, M>,
    pub(super) error: Option<BlockError>,
    pub(super) wrong: Option<String>,
    /// Operations that did not complete.
    pub(super) outstanding: u64,
    pub(super) verified: Option<Verified>,
    pub(super) latency_depth: u32,
    /// From the job's start to its end.
    pub(super) elapsed: Duration,
    /// Of that time.
    pub(super) cpu: Cpu,
}

impl<'a, E: Engine, M> Worker<'a, E, M> {
    pub(super) fn new(
        parts: Parts<'a, E, M>,
        name: &'a str,
        options: &'a JobOptions,
        stop: &'a AtomicBool,
    ) -> Self {
        let depth = options.iodepth as usize;
        let slot = Slot { operation: None, due: None, begun: 0, submitted: 0 };
        let low = depth - options.batch_complete_min().max(1) as usize;
        let refill = options.refill_buffers && options.verify.is_none();
        Self {
            device: parts.engine.device(),
            slots: vec![slot; depth],
            free: (0..options.iodepth).rev().collect(),
            batch: Vec::with_capacity(depth),
            // A poll returns no more than fit.
            completions: Vec::with_capacity((options.batch_complete_max() as usize).min(COMPLETIONS_AT_ONCE)),
            depth,
            batch_len: options.batch_submit() as usize,
            low: options.iodepth_low.map_or(low, |least| low.min(least as usize)),
            search: options.latency_search().map(|target| DepthSearch::new(target, options.iodepth)),
            refill: refill.then(|| (Random::new(options.seed(), u64::MAX), vec![0; parts.slot_len])),
            wake_at: None,
            spin: Spin::new(),
            ramp_ends: None,
            stopped_at: None,
            last_end: 0,
            ended: false,
            first_error: None,
            first_wrong: None,
            parts,
            options,
            name,
            stop,
        }
    }

    /// Runs the whole job.
    pub(super) fn run(mut self) -> Outcome<'a, E, M> {
        let now = self.now();
        self.parts.source.start(now);
        self.parts.record.start(now);
        if let Some(search) = &mut self.search {
            search.start(now);
        }
        let ramp = nanoseconds(self.options.ramp_time);
        self.ramp_ends = (ramp > 0).then(|| now.saturating_add(ramp));
        while !self.turn() {}
        let now = self.now();
        // What follows is not the job's: counting what never started may take longer than it did.
        let (elapsed, cpu) = self.parts.record.finish(now);
        let outstanding = self.give_up(now);
        let record = &mut self.parts.record;
        self.parts.source.never_started(|direction, waited, number| {
            record.never_started(direction, waited, number);
        });
        Outcome {
            engine: self.parts.engine,
            record: self.parts.record,
            error: self.first_error,
            wrong: self.first_wrong,
            outstanding,
            verified: self.parts.verification.as_ref().map(|v| v.verified(self.parts.source.read_back_to())),
            latency_depth: self.search.as_ref().map_or(0, DepthSearch::held),
            elapsed,
            cpu,
        }
    }

    fn now(&self) -> u64 {
        nanoseconds(self.parts.clock.elapsed())
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Submits, takes completions, or waits; `true` when the job is done.
    fn turn(&mut self) -> bool {
        if self.stop.load(Ordering::Relaxed) && self.stopped_at.is_none() {
            let now = self.now();
            self.stopped_at = Some(now);
            self.parts.source.stop(now);
        }
        let submitted = self.in_flight() <= self.low && self.submit();
        let ended = self.reap();
        if ended {
            if self.spin.is_waiting() {
                self.spin.on_work(Duration::from_nanos(self.now()));
            }
        } else if self.ended && self.in_flight() == 0 {
            return true;
        } else if !submitted {
            return self.idle();
        }
        false
    }

    /// Submits as many operations as the depth allows, in batches; `false` if there are none.
    fn submit(&mut self) -> bool {
        let depth = self.search.as_ref().map_or(self.depth, |search| search.depth() as usize);
        self.wake_at = None;
        let mut any = false;
        while self.in_flight() < depth {
            let begun = self.now();
            let was_reading_back = self.parts.source.reads_back();
            let next = self.parts.source.next(begun, self.in_flight(), &mut self.parts.verification);
            if self.parts.source.reads_back() && !was_reading_back {
                self.parts.record.read_back(begun);
            }
            match next {
                Next::Do(operation, due) => self.begin(Some(operation), due, begun),
                Next::Sync => self.begin(None, None, begun),
                Next::At(time) => {
                    self.wake_at = Some(time);
                    break;
                }
                Next::Blocked => break,
                Next::End => {
                    self.ended = true;
                    break;
                }
            }
            any = true;
            if self.batch.len() >= self.batch_len {
                self.flush();
            }
        }
        if !self.batch.is_empty() {
            self.flush();
        }
        any
    }

    /// Flushes the submitted operations to the engine.
    fn flush(&mut self) {
        self.parts.engine.flush();
        let now = self.now();
        let in_flight = self.in_flight();
        self.parts.record.batch_submitted(self.batch.len());
        while let Some(index) = self.batch.pop() {
            let slot = &mut self.slots[index as usize];
            slot.submitted = now;
            if let Some(operation) = slot.operation {
                self.parts.record.submitted(operation.direction, now - slot.begun, in_flight);
            }
        }
    }

    fn begin(&mut self, operation: Option<Operation>, due: Option<u64>, begun: u64) {
        let index = self.free.pop().expect("fewer operations than the depth are in flight");
        self.slots[index as usize] = Slot { operation, due, begun, submitted: begun };
        let op = operation.map_or(BlockOp::Flush, |operation| self.block_op(&operation, index));
        // The engine was created for this depth: it is full only until its completions have been polled.
        while self.parts.engine.submit(Tag(index.into()), self.device, op).is_err() {
            self.flush();
            self.reap();
        }
        self.batch.push(index);
    }

    /// Converts an operation for the backend, and fills the buffer of a write.
    fn block_op(&mut self, operation: &Operation, index: u32) -> BlockOp {
        let parts = &mut self.parts;
        let size = u64::from(parts.block_size);
        let range = BlockRange::new(operation.offset / size, u64::from(operation.len) / size);
        let at = index as usize * parts.slot_len;
        let buffer = Buffer { region: parts.region, offset: at, len: operation.len as usize };
        match operation.direction {
            Direction::Read => BlockOp::Read { range, into: buffer },
            Direction::Trim => BlockOp::Deallocate { range },
            Direction::Write => {
                if let Some(verification) = &mut parts.verification {
                    verification.fill(operation, &parts.memory, at);
                } else if let Some((random, bytes)) = &mut self.refill {
                    let bytes = &mut bytes[..buffer.len];
                    bytes
                        .as_chunks_mut::<8>()
                        .0
                        .iter_mut()
                        .for_each(|word| *word = random.next_u64().to_le_bytes());
                    parts.memory.write(at, bytes);
                }
                BlockOp::Write { range, from: buffer, fua: self.options.sync }
            }
        }
    }

    /// Processes completions; `false` if there are none.
    fn reap(&mut self) -> bool {
        let mut completions = core::mem::take(&mut self.completions);
        self.parts.engine.poll(&mut completions);
        let any = !completions.is_empty();
        if any {
            let ended = self.now();
            self.last_end = ended;
            self.parts.record.batch_completed(completions.len());
            for completion in completions.drain(..) {
                self.end(completion, ended);
            }
            self.tick(ended);
        }
        self.completions = completions;
        any
    }

    fn tick(&mut self, now: u64) {
        if self.ramp_ends.is_some_and(|end| now >= end) {
            self.ramp_ends = None;
            self.parts.record.start(now);
        }
        if self.ramp_ends.is_none() {
            self.parts.record.tick(now);
        }
        if let Some(search) = &mut self.search {
            search.tick(now);
            if search.over() {
                self.parts.source.stop(now);
            }
        }
    }

    fn end(&mut self, completion: Completion, ended: u64) {
        let index = u32::try_from(completion.tag.0).expect("the tag is a slot's index");
        let slot = self.slots[index as usize];
        self.free.push(index);
        let times = Times { due: slot.due, begun: slot.begun, submitted: slot.submitted, ended };
        let Some(operation) = slot.operation else {
            match completion.result {
                Ok(()) => self.parts.record.synced(times),
                Err(error) => self.on_error(error, ended),
            }
            return;
        };
        self.verify(&operation, index, completion.result.is_ok(), ended);
        match completion.result {
            Ok(()) => {
                self.parts.record.completed(operation.direction, operation.len, times);
                if let Some(search) = &mut self.search {
                    search.on_latency(times.ended - times.begun);
                }
            }
            Err(error) => self.on_error(error, ended),
        }
    }

    fn on_error(&mut self, error: BlockError, now: u64) {
        self.parts.record.errors += 1;
        self.first_error.get_or_insert(error);
        if !self.options.continue_on_error {
            self.parts.source.stop(now);
        }
    }

    fn verify(&mut self, operation: &Operation, index: u32, well: bool, now: u64) {
        let Some(verification) = &mut self.parts.verification else { return };
        match operation.direction {
            Direction::Write => verification.on_written(operation, well),
            Direction::Read if well => {
                let (record, first, name) = (&mut self.parts.record, &mut self.first_wrong, self.name);
                let at = index as usize * self.parts.slot_len;
                verification.on_read(operation, &self.parts.memory, at, |address, wrong| {
                    record.verify_errors += 1;
                    if record.verify_errors <= VERIFY_MESSAGES_MAX {
                        say(format_args!("{name}: verify: the block at byte {address}: {wrong}"));
                    }
                    first.get_or_insert_with(|| format!("the block at byte {address}: {wrong}"));
                });
                if self.first_wrong.is_some() && self.options.verify_fatal {
                    self.parts.source.stop(now);
                }
            }
            _ => verification.release(operation),
        }
    }

    /// Waits because there is nothing to do; `true` if outstanding operations are given up.
    fn idle(&mut self) -> bool {
        let now = self.now();
        if self.in_flight() > 0 && self.waited_enough(now) {
            self.first_error.get_or_insert(BlockError::Aborted);
            return true;
        }
        let wake =
            self.wake_at.map_or(SLEEP_MAX, |at| Duration::from_nanos(at.saturating_sub(now)).min(SLEEP_MAX));
        let spins = match self.options.poll {
            Poll::Busy => true,
            Poll::Adaptive => {
                self.spin.goes_on(Duration::from_nanos(now), self.options.spin) || wake < self.options.spin
            }
            Poll::Interrupt => false,
        };
        if spins && self.options.poll == Poll::Adaptive {
            self.spin.pause(Duration::from_nanos(now));
        } else if spins {
            core::hint::spin_loop();
        } else if self.in_flight() == 0 {
            std::thread::sleep(wake);
        } else {
            self.parts.engine.wait(wake);
        }
        self.tick(self.now());
        false
    }
}
