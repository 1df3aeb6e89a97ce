//! A submission queue's commands in flight.

use alloc::vec::Vec;
use core::time::Duration;
use nvme_proto::{Cid, Cqe, Qid, Status};
use thiserror::Error;
use zerocopy::FromBytes;

/// Whether the controller reports how far it has read the submission queue (SQHD).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowControl {
    /// It does: one entry of the queue stays free.
    Sqhd,
    /// Agreed away in Connect: commands in flight are the only bound.
    Disabled,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Command-specific.
    pub dw0: u32,
    /// Command-specific.
    pub dw1: u32,
    /// Where the controller says the head of the submission queue is; [`Cqe::SQHD_NONE`] without flow control.
    pub sqhd: u16,
    /// Success or not.
    pub status: Status,
}

impl Outcome {
    /// The 64-bit result.
    #[must_use]
    pub fn result(&self) -> u64 {
        u64::from(self.dw1) << 32 | u64::from(self.dw0)
    }
}

/// No slot is free: wait for a completion. The owner comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the submission queue is full")]
pub struct Full<T>(pub T);

/// The controller broke the protocol on this queue: the association must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Violation {
    /// A completion for no command in flight: never sent, or completed before.
    #[error("queue {}: a completion for CID {:#06x}, which is not in flight (stale or duplicate)", qid.0, cid.0)]
    StaleCompletion {
        /// The queue.
        qid: Qid,
        /// The CID that it named.
        cid: Cid,
    },
    /// A response that invalidated a key which is not its command's: another command's memory is cut off, or nobody knows whose.
    #[error("queue {}: a response invalidated the key {key:#010x}, which is not its command's", qid.0)]
    ForeignKey {
        /// The queue.
        qid: Qid,
        /// The key.
        key: u32,
    },
    /// A message of another length than a CQE's.
    #[error("queue {}: a response capsule of {len} bytes instead of 16", qid.0)]
    ResponseLength {
        /// The queue.
        qid: Qid,
        /// Its bytes.
        len: usize,
    },
}

#[derive(Debug)]
struct Slot<T> {
    /// Grows by one each time that the slot is taken; the high bits of the CID.
    sequence: u16,
    deadline: Option<Duration>,
    /// It had a deadline: the controller answers on its own.
    timed: bool,
    owner: Option<T>,
}

/// Commands in flight on one submission queue, each with an owner of the caller's choice. Sized once; nothing allocates later.
///
/// CID = slot in the low bits, the slot's rolling sequence in the high bits: a completion that comes twice or late finds another sequence
/// and is a [`Violation`], not a match.
#[derive(Debug)]
pub struct Queue<T> {
    qid: Qid,
    slots: Vec<Slot<T>>,
    free: Vec<u16>,
    slot_bits: u32,
    entries: u16,
    flow_control: FlowControl,
    in_flight: usize,
    /// Of these, the ones with a deadline.
    timed: usize,
    tail: u16,
    head: u16,
    /// Never later than the earliest deadline in flight.
    earliest: Option<Duration>,
}

impl<T> Queue<T> {
    /// An empty queue of `entries` entries (clamped to [`crate::limits`]).
    #[must_use]
    pub fn new(qid: Qid, entries: u16, flow_control: FlowControl) -> Self {
        use crate::limits::{QUEUE_ENTRIES_MAX, QUEUE_ENTRIES_MIN};
        let entries = entries.clamp(QUEUE_ENTRIES_MIN, QUEUE_ENTRIES_MAX);
        let mut slots = Vec::new();
        slots.resize_with(usize::from(entries), || Slot {
            sequence: 0,
            deadline: None,
            timed: false,
            owner: None,
        });
        Self {
            qid,
            slots,
            free: (0..entries).rev().collect(),
            slot_bits: u16::BITS - (entries - 1).leading_zeros(),
            entries,
            flow_control,
            in_flight: 0,
            timed: 0,
            tail: 0,
            head: 0,
            earliest: None,
        }
    }

    /// Which queue it is.
    #[must_use]
    pub fn qid(&self) -> Qid {
        self.qid
    }

    /// Commands in flight.
    #[must_use]
    pub fn len(&self) -> usize {
        self.in_flight
    }

    /// No command is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.in_flight == 0
    }

    /// Commands that can be in flight at once.
    #[must_use]
    pub fn capacity(&self) -> usize {
        match self.flow_control {
            // A ring whose tail met its head would look empty: one entry stays free.
            FlowControl::Sqhd => usize::from(self.entries) - 1,
            FlowControl::Disabled => usize::from(self.entries),
        }
    }

    /// Commands that can be submitted now.
    #[must_use]
    pub fn room(&self) -> usize {
        let by_count = self.capacity() - self.in_flight.min(self.capacity());
        match self.flow_control {
            FlowControl::Sqhd => by_count.min(self.capacity() - usize::from(self.unread())),
            FlowControl::Disabled => by_count,
        }
    }

    /// Shrinks an empty queue to what Connect agreed on: fewer entries, or no flow control after all.
    pub fn agree(&mut self, entries: u16, flow_control: FlowControl) {
        *self = Self::new(self.qid, entries.min(self.entries), flow_control);
    }

    /// Takes a slot for a command of `owner`'s. With a deadline, [`Queue::pop_expired`] names it when it is not completed by then.
    ///
    /// # Errors
    /// [`Full`], with the owner.
    pub fn submit(&mut self, owner: T, deadline: Option<Duration>) -> Result<Cid, Full<T>> {
        if self.room() == 0 {
            return Err(Full(owner));
        }
        let Some(index) = self.free.pop() else { return Err(Full(owner)) };
        let slot = &mut self.slots[usize::from(index)];
        slot.sequence = slot.sequence.wrapping_add(1);
        slot.deadline = deadline;
        slot.owner = Some(owner);
        let cid = Self::cid(self.slot_bits, index, slot.sequence);
        if let Some(deadline) = deadline {
            self.earliest = Some(self.earliest.map_or(deadline, |earliest| earliest.min(deadline)));
        }
        slot.timed = deadline.is_some();
        self.timed += usize::from(slot.timed);
        self.in_flight += 1;
        self.tail = (self.tail + 1) % self.entries;
        Ok(cid)
    }

    /// The owner of a command in flight.
    #[must_use]
    pub fn get(&self, cid: Cid) -> Option<&T> {
        self.slots[self.slot_of(cid)?].owner.as_ref()
    }

    /// The same, to change.
    pub fn get_mut(&mut self, cid: Cid) -> Option<&mut T> {
        let slot = self.slot_of(cid)?;
        self.slots[slot].owner.as_mut()
    }

    /// A response capsule came in: whose it is and how it ended. The slot is free again.
    ///
    /// # Errors
    /// [`Violation`]: end the association.
    pub fn on_completion(&mut self, capsule: &[u8]) -> Result<(T, Outcome), Violation> {
        let cqe = Cqe::read_from_bytes(capsule)
            .map_err(|_| Violation::ResponseLength { qid: self.qid, len: capsule.len() })?;
        let owner = self.take(cqe.cid())?;
        self.on_head(cqe.sqhd.get());
        let outcome =
            Outcome { dw0: cqe.dw0.get(), dw1: cqe.dw1.get(), sqhd: cqe.sqhd.get(), status: cqe.status() };
        Ok((owner, outcome))
    }

    /// Takes back a command that was not sent after all (the post failed). `None` when it is not in flight.
    pub fn cancel(&mut self, cid: Cid) -> Option<T> {
        let owner = self.take(cid).ok()?;
        self.tail = (self.tail + self.entries - 1) % self.entries;
        Some(owner)
    }

    /// When [`Queue::pop_expired`] must be asked: never later than the earliest deadline, sometimes earlier.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.earliest
    }

    /// A command whose deadline has passed, named once. It stays in flight: the controller may still use its memory until the
    /// connection is gone.
    pub fn pop_expired(&mut self, now: Duration) -> Option<Cid> {
        if self.earliest.is_none_or(|earliest| earliest > now) {
            return None;
        }
        let expired =
            self.slots.iter().position(|slot| slot.deadline.is_some_and(|deadline| deadline <= now));
        let Some(index) = expired else {
            self.earliest = self.slots.iter().filter_map(|slot| slot.deadline).min();
            return None;
        };
        let slot = &mut self.slots[index];
        slot.deadline = None;
        Some(Self::cid(self.slot_bits, u16::try_from(index).ok()?, slot.sequence))
    }

    /// Empties the queue after its connection is gone: every owner comes back, in no particular order.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        let entries = self.entries;
        self.free.clear();
        self.free.extend((0..entries).rev());
        (self.in_flight, self.timed, self.head, self.tail, self.earliest) = (0, 0, 0, 0, None);
        self.slots.iter_mut().filter_map(|slot| {
            slot.deadline = None;
            slot.owner.take()
        })
    }

    fn cid(slot_bits: u32, index: u16, sequence: u16) -> Cid {
        Cid(index | sequence.checked_shl(slot_bits).unwrap_or(0))
    }

    fn slot_of(&self, cid: Cid) -> Option<usize> {
        let index = cid.0 & ((1 << self.slot_bits) - 1);
        let slot = self.slots.get(usize::from(index))?;
        let ours = slot.owner.is_some() && Self::cid(self.slot_bits, index, slot.sequence) == cid;
        ours.then_some(usize::from(index))
    }

    fn take(&mut self, cid: Cid) -> Result<T, Violation> {
        let stale = Violation::StaleCompletion { qid: self.qid, cid };
        let index = self.slot_of(cid).ok_or(stale)?;
        let slot = &mut self.slots[index];
        let owner = slot.owner.take().ok_or(stale)?;
        slot.deadline = None;
        self.in_flight -= 1;
        self.timed -= usize::from(slot.timed);
        self.free.push(u16::try_from(index).map_err(|_| stale)?);
        if self.in_flight == 0 {
            self.earliest = None;
        }
        Ok(owner)
    }

    /// Entries that the controller has not said to have read.
    fn unread(&self) -> u16 {
        (self.tail + self.entries - self.head) % self.entries
    }

    /// A head outside what is unread says nothing (some controllers count otherwise): then only the commands in flight
    /// bound us, each of which takes at most one entry. So do they when no completion is owed that could say more: a
    /// head that stands still would leave no room for ever.
    fn on_head(&mut self, sqhd: u16) {
        if self.flow_control == FlowControl::Disabled {
            return;
        }
        let plausible =
            sqhd < self.entries && (sqhd + self.entries - self.head) % self.entries <= self.unread();
        if plausible {
            self.head = sqhd;
        }
        let in_flight = u16::try_from(self.in_flight).unwrap_or(0);
        if !plausible || self.timed == 0 {
            self.head = (self.tail + self.entries - in_flight) % self.entries;
        }
    }
}

#[cfg(test)]
mod tests;
