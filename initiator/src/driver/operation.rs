//! Block operations: what waits for a path, for room, for a time; what is in flight, and how it ends.

use super::op::Op;
use super::policy::Chooser;
use super::withdraw::Withdrawn;
use crate::Effect;
use core::time::Duration;
use nvme_proto::Nsid;
use nvmf_block::{BlockError, BlockRange, Full, Tag};
use nvmf_host::io::Parts;
use nvmf_host::{Fate, Tries};
use std::collections::VecDeque;

/// An operation that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// As submitted.
    pub tag: Tag,
    /// Success, or how it failed.
    pub result: Result<(), Failure>,
}

/// How an operation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Why: what its last attempt said.
    pub error: BlockError,
    /// What all its attempts may have done.
    pub effect: Effect,
}

/// An operation, waiting or in flight.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) tag: Tag,
    pub(super) nsid: Nsid,
    pub(super) op: Op,
    /// Which I/O queues it goes to: [`READS`], [`OTHERS`].
    kind: usize,
    /// The path that it was given to: all its parts go there.
    pub(super) path: Option<usize>,
    /// A path that failed it in a way that another may not.
    pub(super) avoid: Option<usize>,
    /// The parts that are still to be issued; `None` before the first.
    pub(super) parts: Option<Parts>,
    /// Parts in flight.
    pub(super) outstanding: u32,
    /// When its first part was sent last.
    pub(super) begun_at: Duration,
    /// Whether a part has ended in this try with a status that is no success.
    refused: bool,
    /// In how many tries with one that does not have it wait only, and whether in this.
    failures: u8,
    failed: bool,
    /// How often it was put back for a while, and how often at once since.
    delays: u8,
    pub(super) hops: u8,
    pub(super) error: Option<BlockError>,
    /// What may have been done of it so far, in all its attempts: a status knows of its own command only.
    pub(super) effect: Effect,
    /// It begins anew when nothing of it is in flight: a part failed in a way that another try may mend, or it goes elsewhere.
    again: bool,
    /// The second command of a pair was aborted because of the first, whose status says why.
    second_aborted: bool,
    /// It was refused in a way that its namespace is looked at for, which is done once.
    pub(super) doubted: bool,
    /// Not before then.
    not_before: Option<Duration>,
    /// When a part of it first failed, since it was lost last.
    failed_at: Option<Duration>,
    /// When it was first lost with its connection, and how often.
    lost_at: Option<Duration>,
    pub(super) losses: u8,
    /// How often a path was given up because a command of it was not answered in time.
    pub(super) overdue: u8,
    /// It stands in the queue of those that have something to issue, or to be given to a path.
    pub(super) queued: bool,
    /// It stands among those that wait.
    waits: bool,
    /// Nobody waits for it any longer, and it was in flight then.
    pub(super) withdrawn: bool,
}

impl Operation {
    /// A command of it may have been carried out.
    pub(super) fn may_have_been_done(&mut self) {
        if self.op.has_effect() {
            self.effect = Effect::Unknown;
        }
    }

    /// Nothing more of it is sent: it waits for what is in flight, and begins anew.
    pub(super) fn is_held_back(&self) -> bool {
        self.error.is_some() || self.again
    }

    /// How often it was tried, since it first failed so long ago.
    pub(super) fn tries(&self, waited: Duration) -> Tries {
        Tries { failed: self.failures, delayed: self.delays, waited }
    }

    /// It goes elsewhere, as soon as nothing of it is in flight.
    pub(super) fn move_on(&mut self) {
        self.again = true;
    }

    /// Nothing of it is in flight, and all its parts are to be issued.
    pub(super) fn begin_anew(&mut self) {
        (self.again, self.second_aborted, self.refused, self.failed) = (false, false, false, false);
        self.parts = None;
    }
}

/// Kinds of operations, by the I/O queues that they go to: reads, or all where none are apart; everything but reads.
pub(super) const READS: usize = 0;
pub(super) const OTHERS: usize = 1;

/// What an operation waits for that is not room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// The time at which it may be issued again.
    Until(Duration),
    /// A path to the disk that was opened.
    Path,
    /// Blocks that it changes are fenced.
    Fence,
}

/// Operations that have something to issue on one path, by kind of I/O queue; each issues one part in its turn, so that a
/// long one does not hold up the short.
type Ready = [VecDeque<u32>; 2];

/// Every operation of a driver. Sized once.
#[derive(Debug)]
pub(super) struct Operations {
    pub(super) all: Vec<Option<Operation>>,
    free: Vec<u32>,
    /// By path.
    pub(super) ready: Vec<Ready>,
    /// Those that are to be given to a path.
    unrouted: VecDeque<u32>,
    pub(super) chooser: Chooser,
    /// Reads have I/O queues of their own.
    reads_apart: bool,
    /// Those that wait before they are given to a path again.
    waiting: Vec<(u32, Wait)>,
    pub(super) withdrawn: Withdrawn,
    done: VecDeque<Ended>,
}

impl Operations {
    pub(super) fn new(count: u32, reads_apart: bool, chooser: Chooser) -> Self {
        Self {
            all: (0..count).map(|_| None).collect(),
            free: (0..count).rev().collect(),
            ready: Vec::new(),
            unrouted: VecDeque::with_capacity(count as usize),
            chooser,
            reads_apart,
            waiting: Vec::with_capacity(count as usize),
            withdrawn: Withdrawn::default(),
            done: VecDeque::with_capacity(count as usize),
        }
    }

    pub(super) fn add_path(&mut self) {
        self.ready.push([(); 2].map(|()| VecDeque::with_capacity(self.all.len())));
        self.chooser.add_path();
    }

    /// Takes an operation, which is to be given to a path. `None`: it has ended at once.
    pub(super) fn submit(
        &mut self,
        tag: Tag,
        nsid: Nsid,
        op: Op,
        may_queue: bool,
    ) -> Result<Option<u32>, Full> {
        if self.done.len() >= self.all.len() {
            return Err(Full);
        }
        if !may_queue {
            let failure = Failure { error: BlockError::Gone, effect: Effect::Nothing };
            self.done.push_back(Ended { tag, result: Err(failure) });
            return Ok(None);
        }
        let index = self.free.pop().ok_or(Full)?;
        let operation = Operation {
            tag,
            nsid,
            op,
            kind: if self.reads_apart && !op.is_read() { OTHERS } else { READS },
            path: None,
            avoid: None,
            parts: None,
            outstanding: 0,
            begun_at: Duration::ZERO,
            refused: false,
            failures: 0,
            failed: false,
            delays: 0,
            hops: 0,
            error: None,
            effect: Effect::Nothing,
            again: false,
            second_aborted: false,
            doubted: false,
            not_before: None,
            failed_at: None,
            lost_at: None,
            losses: 0,
            overdue: 0,
            queued: false,
            waits: false,
            withdrawn: false,
        };
        self.all[index as usize] = Some(operation);
        Ok(Some(index))
    }

    pub(super) fn poll_ended(&mut self) -> Option<Ended> {
        self.done.pop_front()
    }

    pub(super) fn get(&mut self, index: u32) -> Option<&mut Operation> {
        self.all[index as usize].as_mut()
    }

    /// How many of its commands must find room in a queue together.
    pub(super) fn commands_at_once(&self, index: u32) -> usize {
        let operation = self.all[index as usize].as_ref();
        1 + usize::from(operation.is_some_and(|operation| operation.op.is_pair()))
    }

    /// The next operation to give to a path.
    pub(super) fn pop_unrouted(&mut self) -> Option<u32> {
        let index = self.unrouted.pop_front()?;
        if let Some(operation) = self.get(index) {
            operation.queued = false;
        }
        Some(index)
    }

    pub(super) fn has_unrouted(&self) -> bool {
        !self.unrouted.is_empty()
    }

    /// Gives an operation that has nothing in flight to a path.
    pub(super) fn route(&mut self, index: u32, path: usize) {
        let Some(operation) = self.all[index as usize].as_mut() else { return };
        operation.path = Some(path);
        operation.queued = true;
        self.ready[path][operation.kind].push_back(index);
        self.chooser.on_begin(path);
    }

    /// Takes an operation from its path. It stands in no queue.
    fn unbind(&mut self, index: u32) {
        if let Some(path) = self.get(index).and_then(|operation| operation.path.take()) {
            self.chooser.on_end(path);
        }
    }

    /// Takes the operation at the head of its path's queue out.
    pub(super) fn pop_ready(&mut self, path: usize, index: u32) {
        let Some(operation) = self.all[index as usize].as_mut() else { return };
        operation.queued = false;
        self.ready[path][operation.kind].pop_front();
    }

    /// So many parts were sent; `parts` are left. It goes to the end of its path's queue, or leaves it.
    pub(super) fn on_parts_sent(&mut self, now: Duration, path: usize, index: u32, sent: u32, parts: Parts) {
        let Some(operation) = self.all[index as usize].as_mut() else { return };
        if operation.parts.is_none() {
            operation.begun_at = now;
        }
        operation.outstanding += sent;
        operation.queued = parts.remaining() > 0;
        operation.parts = Some(parts);
        let ready = &mut self.ready[path][operation.kind];
        ready.pop_front();
        if operation.queued {
            ready.push_back(index);
        }
    }

    /// A part in flight has ended well.
    pub(super) fn on_part_done(&mut self, now: Duration, index: u32) {
        let Some(operation) = self.all[index as usize].as_mut() else { return };
        operation.outstanding -= 1;
        operation.may_have_been_done();
        if self.chooser.measures()
            && let (Some(path), 0) = (operation.path, operation.outstanding)
        {
            self.chooser.on_measured(path, now.saturating_sub(operation.begun_at));
        }
        self.settle(index);
    }

    /// The second command of a pair was aborted because of the first.
    pub(super) fn on_second_aborted(&mut self, index: u32) {
        let Some(operation) = self.get(index) else { return };
        operation.outstanding -= 1;
        operation.second_aborted = true;
        self.settle(index);
    }

    /// A part in flight has failed, or its status has it wait (`waits`); `fate` says what becomes of it, given the operation and how
    /// long ago it first failed. `effect` is what this part may have done.
    pub(super) fn on_part_failed(
        &mut self,
        now: Duration,
        index: u32,
        effect: Effect,
        waits: bool,
        fate: impl FnOnce(&Operation, Duration) -> Fate,
    ) {
        let Some(operation) = self.get(index) else { return };
        operation.outstanding -= 1;
        if effect == Effect::Unknown {
            operation.may_have_been_done();
        }
        let is_first = !core::mem::replace(&mut operation.refused, true);
        if !waits && !core::mem::replace(&mut operation.failed, true) {
            operation.failures = operation.failures.saturating_add(1);
        }
        let failed_at = *operation.failed_at.get_or_insert(now);
        match fate(operation, now.saturating_sub(failed_at)) {
            Fate::Requeue(delay) => {
                operation.again = true;
                if is_first {
                    (operation.delays, operation.hops) = match delay.is_zero() {
                        true => (operation.delays, operation.hops.saturating_add(1)),
                        false => (operation.delays.saturating_add(1), 0),
                    };
                }
                operation.avoid = operation.path;
                operation.not_before = operation.not_before.max(Some(now.saturating_add(delay)));
            }
            Fate::Fail(error) => {
                operation.error.get_or_insert(error);
            }
        }
        self.settle(index);
    }

    /// Ends an operation that has nothing in flight and nothing to issue, or begins it again.
    pub(super) fn settle(&mut self, index: u32) {
        let Some(operation) = self.get(index) else { return };
        if operation.outstanding > 0 {
            return;
        }
        if let Some(error) = operation.error {
            return self.end(index, Err(error));
        }
        if operation.again {
            operation.begin_anew();
            return match operation.not_before.take() {
                Some(at) => self.wait(index, Wait::Until(at)),
                None => self.unroute(index),
            };
        }
        if operation.second_aborted {
            // Without a first that failed: nobody knows what this controller did.
            return self.end(index, Err(BlockError::Aborted));
        }
        if operation.parts.as_ref().is_some_and(|parts| parts.remaining() == 0) {
            self.end(index, Ok(()));
        }
    }

    /// Takes an operation that has nothing in flight out of wherever it stands, to be given to a path.
    fn unroute(&mut self, index: u32) {
        self.leave_queue(index);
        self.unbind(index);
        if let Some(operation) = self.get(index) {
            operation.queued = true;
            self.unrouted.push_back(index);
        }
    }

    fn leave_queue(&mut self, index: u32) {
        let Some(operation) = self.all[index as usize].as_mut() else { return };
        if core::mem::take(&mut operation.queued) {
            let queue = match operation.path {
                Some(path) => &mut self.ready[path][operation.kind],
                None => &mut self.unrouted,
            };
            queue.retain(|&queued| queued != index);
        }
        if core::mem::take(&mut operation.waits) {
            self.waiting.retain(|&(waiting, _)| waiting != index);
        }
    }

    /// Sets an operation aside.
    pub(super) fn wait(&mut self, index: u32, wait: Wait) {
        self.leave_queue(index);
        self.unbind(index);
        if let Some(operation) = self.get(index) {
            operation.waits = true;
            self.waiting.push((index, wait));
        }
    }

    /// When an operation that waits may be issued again.
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        let until = |(_, wait): &(u32, Wait)| if let Wait::Until(at) = wait { Some(*at) } else { None };
        self.waiting.iter().filter_map(until).min()
    }

    /// Has what waited long enough given to a path.
    pub(super) fn on_timeout(&mut self, now: Duration) {
        self.release(|wait| matches!(wait, Wait::Until(at) if at <= now));
    }

    /// What was waited for may be there: what waits for it is given to a path.
    pub(super) fn resume(&mut self, what: Wait) {
        self.release(|wait| wait == what);
    }

    fn release(&mut self, ready: impl Fn(Wait) -> bool) {
        let Self { waiting, all, unrouted, .. } = self;
        waiting.retain(|&(index, wait)| {
            let released = ready(wait);
            if released && let Some(operation) = all[index as usize].as_mut() {
                (operation.waits, operation.queued) = (false, true);
                unrouted.push_back(index);
            }
            !released
        });
    }

    /// Fails what has nothing in flight on a namespace.
    pub(super) fn fail_waiting_on(&mut self, nsid: Nsid, error: BlockError) {
        for index in 0..self.all.len() as u32 {
            let of_it = |operation: &Operation| operation.nsid == nsid && operation.outstanding == 0;
            if self.all[index as usize].as_ref().is_some_and(of_it) {
                self.end(index, Err(error));
            }
        }
    }

    /// It is over; its place is free once no queue names it.
    pub(super) fn end(&mut self, index: u32, result: Result<(), BlockError>) {
        self.leave_queue(index);
        self.unbind(index);
        let Some(operation) = self.all[index as usize].take() else { return };
        self.free.push(index);
        if operation.withdrawn {
            self.withdrawn.on_end(index);
        }
        let result = result.map_err(|error| Failure { error, effect: operation.effect });
        self.done.push_back(Ended { tag: operation.tag, result });
    }

    /// The blocks that operations change which were sent on a path and not answered.
    pub(super) fn changes_in_flight(&self, path: usize) -> Vec<(Nsid, BlockRange)> {
        let changes = |operation: &&Operation| {
            operation.path == Some(path) && operation.outstanding > 0 && operation.op.writes()
        };
        let in_flight = self.all.iter().flatten().filter(changes);
        in_flight.filter_map(|operation| Some((operation.nsid, operation.op.range()?))).collect()
    }

    /// A path cannot be used for now: what it has in no queue pair goes elsewhere, but for what is of a namespace that
    /// `stays`.
    pub(super) fn leave_path(&mut self, path: usize, stays: impl Fn(Nsid) -> bool) {
        for kind in [READS, OTHERS] {
            for _ in 0..self.ready[path][kind].len() {
                let Some(&index) = self.ready[path][kind].front() else { break };
                if self.get(index).is_some_and(|operation| stays(operation.nsid)) {
                    self.ready[path][kind].rotate_left(1);
                    continue;
                }
                self.pop_ready(path, index);
                if let Some(operation) = self.get(index) {
                    // It waits for what is in flight.
                    operation.move_on();
                    self.settle(index);
                }
            }
        }
    }

    /// Its path is given up because it has not answered a command of this operation: another path may.
    pub(super) fn on_overdue(&mut self, index: u32) {
        if let Some(operation) = self.get(index) {
            operation.overdue = operation.overdue.saturating_add(1);
            operation.avoid = operation.path;
        }
    }

    /// A path's connections are gone, and with them whatever was in flight. `fate` says what becomes of an operation, given how long ago
    /// it was lost for the first time.
    pub(super) fn on_lost(
        &mut self,
        now: Duration,
        path: usize,
        fate: impl Fn(&Operation, Duration) -> Fate,
    ) {
        for index in 0..self.all.len() as u32 {
            let Some(operation) = self.get(index) else { continue };
            if operation.path != Some(path) || operation.parts.is_none() {
                continue;
            }
            let lost_at = *operation.lost_at.get_or_insert(now);
            operation.losses = operation.losses.saturating_add(1);
            // Whether a pair took effect is not known, and nobody may do it again but who can find out.
            let fate = match operation.op.is_pair() && operation.outstanding > 0 {
                true => Fate::Fail(BlockError::Aborted),
                false => fate(operation, now.saturating_sub(lost_at)),
            };
            if operation.outstanding > 0 {
                operation.may_have_been_done();
            }
            // It was under way, and waited for no status to pass: what it is told from now on is waited for as by a new one.
            operation.failed_at = None;
            operation.outstanding = 0;
            operation.move_on();
            if let (None, Fate::Fail(error)) = (operation.error, fate) {
                operation.error = Some(error);
            }
            self.settle(index);
        }
    }

    /// Fails whatever has nothing in flight.
    pub(super) fn fail_waiting(&mut self, error: BlockError) {
        for index in 0..self.all.len() as u32 {
            if self.get(index).is_some_and(|operation| operation.outstanding == 0) {
                self.end(index, Err(error));
            }
        }
    }
}
