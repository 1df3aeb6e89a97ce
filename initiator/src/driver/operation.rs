//! Block operations: issued part by part, finished, issued again after a loss.

use super::Driver;
use super::disks::Admission;
use super::queue::Owner;
use crate::transport::{Data, Payload, Transport};
use core::time::Duration;
use nvme_proto::Nsid;
use nvmf_block::{BlockError, BlockOp, Buffer, Completion, Full, Tag};
use nvmf_host::io::{PartData, Parts};
use nvmf_host::{Association, Fate, Outcome, Recovery};
use std::collections::VecDeque;

/// An operation, waiting or in flight.
#[derive(Debug)]
struct Operation {
    tag: Tag,
    nsid: Nsid,
    op: BlockOp,
    /// Which I/O queues it goes to: [`READS`], [`OTHERS`].
    kind: usize,
    /// The parts that are still to be issued; `None` before the first.
    parts: Option<Parts>,
    /// Parts in flight.
    outstanding: u32,
    /// How often it was begun.
    begun: u8,
    error: Option<BlockError>,
    /// A part failed in a way that another try may mend.
    again: bool,
    /// Not before then.
    not_before: Option<Duration>,
    /// When a part of it first failed.
    failed_at: Option<Duration>,
    /// It stands in the queue of those that have something to issue.
    queued: bool,
    /// It stands among those that wait.
    waits: bool,
}

/// Kinds of operations, by the I/O queues that they go to: reads, or all where none are apart; everything but reads.
const READS: usize = 0;
pub(super) const OTHERS: usize = 1;

/// What an operation waits for that is not room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// The time at which it may be issued again.
    Until(Duration),
    /// The disk that was opened.
    Disk,
}

/// Every operation of a driver. Sized once.
#[derive(Debug)]
pub(super) struct Operations {
    all: Vec<Option<Operation>>,
    free: Vec<u32>,
    /// Those that have something to issue, by kind of I/O queue; each issues one part in its turn, so that a long one does
    /// not hold up the short.
    queues: [VecDeque<u32>; 2],
    /// Reads have I/O queues of their own.
    reads_apart: bool,
    /// Those that wait before they stand in the queue again.
    waiting: Vec<(u32, Wait)>,
    done: VecDeque<Completion>,
}

impl Operations {
    pub(super) fn new(count: u32, reads_apart: bool) -> Self {
        Self {
            all: (0..count).map(|_| None).collect(),
            free: (0..count).rev().collect(),
            queues: [(); 2].map(|()| VecDeque::with_capacity(count as usize)),
            reads_apart,
            waiting: Vec::with_capacity(count as usize),
            done: VecDeque::with_capacity(count as usize),
        }
    }

    pub(super) fn submit(&mut self, tag: Tag, nsid: Nsid, op: BlockOp, may_queue: bool) -> Result<(), Full> {
        if self.done.len() >= self.all.len() {
            return Err(Full);
        }
        if !may_queue {
            self.done.push_back(Completion { tag, result: Err(BlockError::Gone) });
            return Ok(());
        }
        let index = self.free.pop().ok_or(Full)?;
        let operation = Operation {
            tag,
            nsid,
            op,
            kind: if self.reads_apart && !matches!(op, BlockOp::Read { .. }) { OTHERS } else { READS },
            parts: None,
            outstanding: 0,
            begun: 0,
            error: None,
            again: false,
            not_before: None,
            failed_at: None,
            queued: true,
            waits: false,
        };
        self.queues[operation.kind].push_back(index);
        self.all[index as usize] = Some(operation);
        Ok(())
    }

    pub(super) fn poll(&mut self, completions: &mut Vec<Completion>) {
        while completions.len() < completions.capacity()
            && let Some(completion) = self.done.pop_front()
        {
            completions.push(completion);
        }
    }

    fn get(&mut self, index: u32) -> Option<&mut Operation> {
        self.all[index as usize].as_mut()
    }

    /// A part in flight has ended; `fate` says what becomes of one that failed, given how often it was begun and how long ago it
    /// first failed.
    pub(super) fn on_part(
        &mut self,
        now: Duration,
        index: u32,
        outcome: Outcome,
        fate: impl FnOnce(u8, Duration) -> Fate,
    ) {
        let Some(operation) = self.get(index) else { return };
        operation.outstanding -= 1;
        if !outcome.status.is_success() {
            let failed_at = *operation.failed_at.get_or_insert(now);
            match fate(operation.begun, now.saturating_sub(failed_at)) {
                Fate::Requeue(delay) => {
                    operation.again = true;
                    operation.not_before = operation.not_before.max(Some(now.saturating_add(delay)));
                }
                Fate::Fail(error) => {
                    operation.error.get_or_insert(error);
                }
            }
        }
        self.settle(index);
    }

    /// Ends an operation that has nothing in flight and nothing to issue, or begins it again.
    fn settle(&mut self, index: u32) {
        let Some(operation) = self.get(index) else { return };
        if operation.outstanding > 0 {
            return;
        }
        if let Some(error) = operation.error {
            return self.end(index, Err(error));
        }
        if operation.again {
            operation.again = false;
            operation.parts = None;
            return match operation.not_before.take() {
                Some(at) => self.wait(index, Wait::Until(at)),
                None => self.enqueue(index),
            };
        }
        if operation.parts.as_ref().is_some_and(|parts| parts.remaining() == 0) {
            self.end(index, Ok(()));
        }
    }

    fn enqueue(&mut self, index: u32) {
        let Some(operation) = self.get(index) else { return };
        let (waited, kind) = (core::mem::take(&mut operation.waits), operation.kind);
        if !core::mem::replace(&mut operation.queued, true) {
            self.queues[kind].push_back(index);
        }
        if waited {
            self.waiting.retain(|(waiting, _)| *waiting != index);
        }
    }

    /// Sets an operation aside that does not stand in the queue.
    fn wait(&mut self, index: u32, wait: Wait) {
        if let Some(operation) = self.get(index)
            && !core::mem::replace(&mut operation.waits, true)
        {
            self.waiting.push((index, wait));
        }
    }

    /// When an operation that waits may be issued again.
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        let until = |(_, wait): &(u32, Wait)| if let Wait::Until(at) = wait { Some(*at) } else { None };
        self.waiting.iter().filter_map(until).min()
    }

    /// Puts what waited long enough into the queue.
    pub(super) fn on_timeout(&mut self, now: Duration) {
        self.enqueue_waiting(|wait| matches!(wait, Wait::Until(at) if at <= now));
    }

    /// Which disks are where may have changed: what waits for its disk is looked at again.
    pub(super) fn resume(&mut self) {
        self.enqueue_waiting(|wait| wait == Wait::Disk);
    }

    fn enqueue_waiting(&mut self, ready: impl Fn(Wait) -> bool) {
        while let Some(&(index, _)) = self.waiting.iter().find(|(_, wait)| ready(*wait)) {
            self.enqueue(index);
        }
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

    /// It is over; its place is free once the queue no longer names it.
    fn end(&mut self, index: u32, result: Result<(), BlockError>) {
        let Some(operation) = self.all[index as usize].take() else { return };
        if operation.queued {
            self.queues[operation.kind].retain(|&queued| queued != index);
        }
        if operation.waits {
            self.waiting.retain(|(waiting, _)| *waiting != index);
        }
        self.free.push(index);
        self.done.push_back(Completion { tag: operation.tag, result });
    }

    /// Whether an operation that changes a disk was sent and not answered.
    pub(super) fn has_writes_in_flight(&self) -> bool {
        self.all.iter().flatten().any(|operation| operation.outstanding > 0 && operation.op.writes())
    }

    /// The connections are gone, and with them whatever was in flight.
    pub(super) fn on_lost(&mut self, recovery: &Recovery) {
        for index in 0..self.all.len() as u32 {
            let Some(operation) = self.get(index) else { continue };
            if operation.parts.is_none() {
                continue;
            }
            operation.outstanding = 0;
            operation.again = true;
            if let (None, Fate::Fail(error)) = (operation.error, recovery.fate_of_lost(operation.begun)) {
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

impl<T: Transport> Driver<T> {
    /// Issues parts while there is room.
    pub(super) fn issue(&mut self, now: Duration) {
        if !self.recovery.may_issue() {
            return;
        }
        self.issue_admin(now);
        self.issue_raw(now);
        // While a change is looked into, nobody knows which disk is where.
        if self.association.as_ref().is_none_or(Association::is_scanning) {
            return;
        }
        for kind in [READS, OTHERS] {
            while let Some(&index) = self.operations.queues[kind].front()
                && let Some(queue) = self.next_queue(kind)
                && self.issue_part(now, index, queue)
            {}
        }
    }

    /// The next I/O queue for operations of this kind, in turn, that has room.
    pub(super) fn next_queue(&mut self, kind: usize) -> Option<usize> {
        let all = self.queues.len().checked_sub(1)?;
        // A controller may give fewer queues than there are to be for the others alone.
        let others = Some(usize::from(self.config.write_queues)).filter(|&others| others < all).unwrap_or(0);
        let (first, count) = match kind {
            _ if others == 0 => (1, all),
            OTHERS => (1, others),
            _ => (1 + others, all - others),
        };
        for _ in 0..count {
            let round = &mut self.rounds[kind];
            *round = (*round + 1) % count;
            let index = first + *round;
            if self.queues[index].as_ref().is_some_and(|queue| queue.room() > 0) {
                return Some(index);
            }
        }
        None
    }

    /// Issues one part of the operation at the head of the queue; `false` when it could not be sent.
    fn issue_part(&mut self, now: Duration, index: u32, queue: usize) -> bool {
        let Some(mut parts) = self.begin(index) else { return true };
        let Some(operation) = self.operations.get(index) else { return true };
        let op = operation.op;
        if let Some(part) = parts.next() {
            // It was found to lie in its region.
            let user = op.buffer().and_then(|buffer| {
                let region = self.regions.get(usize::from(buffer.region.0))?.as_ref()?;
                Some((&region.region, buffer.offset))
            });
            let user_data = |at: usize, len, payload| {
                user.map_or(Data::None, |(region, start)| Data::User {
                    region,
                    offset: start + at,
                    len,
                    payload,
                })
            };
            let data = match part.data {
                PartData::None => Data::None,
                PartData::Range { ref bytes, in_capsule } => Data::Bytes { bytes, in_capsule },
                PartData::FromController { offset, len } => user_data(offset, len, Payload::FromController),
                PartData::ToController { offset, len, in_capsule } => {
                    let payload = if in_capsule { Payload::InCapsule } else { Payload::ToController };
                    user_data(offset, len, payload)
                }
            };
            let deadline = Some(now.saturating_add(self.config.io_timeout));
            let Some(Some(pair)) = self.queues.get_mut(queue) else { return false };
            let owner = Owner::Operation(index);
            match pair.send(&mut self.transport, owner, &part.command, data, deadline) {
                Ok(()) => self.on_sent(now),
                Err(refused) => {
                    self.on_refused(now, queue, refused);
                    return false;
                }
            }
        }
        let Some(operation) = self.operations.get(index) else { return true };
        operation.outstanding += 1;
        let kind = operation.kind;
        operation.queued = parts.remaining() > 0;
        let more = operation.queued;
        operation.parts = Some(parts);
        self.operations.queues[kind].pop_front();
        if more {
            self.operations.queues[kind].push_back(index);
        }
        true
    }

    /// The parts of the operation at the head of the queue, of which there is at least one; `None` when it left the queue instead.
    fn begin(&mut self, index: u32) -> Option<Parts> {
        let operation = self.operations.get(index)?;
        let kind = operation.kind;
        if operation.error.is_some() || operation.again {
            // Nothing more of it is sent: it waits for what is in flight.
            operation.queued = false;
            self.operations.queues[kind].pop_front();
            self.operations.settle(index);
            return None;
        }
        match self.disks.admission(operation.nsid) {
            Admission::Issue => {}
            Admission::Wait => {
                operation.queued = false;
                // The parts that were issued were cut for the geometry before the change: it begins anew.
                operation.again = operation.parts.is_some();
                self.operations.queues[kind].pop_front();
                self.operations.wait(index, Wait::Disk);
                return None;
            }
            Admission::Fail(error) if operation.outstanding == 0 => {
                self.operations.end(index, Err(error));
                return None;
            }
            Admission::Fail(error) => {
                operation.error = Some(error);
                operation.queued = false;
                self.operations.queues[kind].pop_front();
                return None;
            }
        }
        if let Some(parts) = &operation.parts {
            return Some(parts.clone());
        }
        let (nsid, op) = (operation.nsid, operation.op);
        match self.split(nsid, op) {
            Ok(parts) if parts.remaining() > 0 => {
                if let Some(operation) = self.operations.get(index) {
                    operation.begun = operation.begun.saturating_add(1);
                }
                Some(parts)
            }
            Ok(_) => {
                self.operations.end(index, Ok(()));
                None
            }
            Err(error) => {
                self.operations.end(index, Err(error));
                None
            }
        }
    }

    fn split(&self, nsid: Nsid, op: BlockOp) -> Result<Parts, BlockError> {
        let namespace = self.association.as_ref().and_then(|a| a.namespace(nsid)).ok_or(BlockError::Gone)?;
        // The range counts in blocks of the disk that was opened.
        if self.disks.block_size(nsid) != Some(namespace.geometry.block_size) {
            return Err(BlockError::Gone);
        }
        let parts = namespace.split(op.try_into()?)?;
        if let (Some(range), Some(buffer)) = (op.range(), op.buffer()) {
            let len = namespace.geometry.bytes_in(range).ok_or(BlockError::OutOfRange)?;
            if buffer.len != len || !self.holds(&buffer) {
                return Err(BlockError::BadBuffer);
            }
        }
        Ok(parts)
    }

    fn holds(&self, buffer: &Buffer) -> bool {
        let region = self.regions.get(usize::from(buffer.region.0)).and_then(Option::as_ref);
        region.is_some_and(|region| region.memory.contains(buffer.offset, buffer.len))
    }
}
