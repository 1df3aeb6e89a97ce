//! Receives that I/O queues borrow.
//!
//! A command with data in its capsule keeps its receive until its response. Where messages that find no receive wait at no
//! cost ([`nvmf_rdma::Capabilities::receives_on_demand`]), a queue has receives of its own, which nobody takes from it,
//! for part of its entries. When half of them are in use it borrows another for each that is filled, within its share
//! and that of its machine. While as many as its own are posted, it gives back what it has borrowed.

use super::wire::{Capsule, taken};
use super::{QueuePair, Rdma};
use crate::exec::shares::Shares;
use nvmf_rdma::{PostError, Provider};
use std::collections::VecDeque;

/// What there is to lend, and to whom.
#[derive(Debug)]
pub(super) struct Lending {
    /// Receives that an I/O queue has for itself, at the most.
    pub(super) own_max: u16,
    /// Receives that are not lent: part of those that are free.
    pub(super) left: u32,
    /// Those that are.
    lent: u32,
    pub(super) shares: Shares,
    /// Queues that were refused one, each once.
    refused: VecDeque<u32>,
    /// Some came back that these were not asked about.
    came_back: bool,
}

impl Lending {
    pub(super) fn new(own_max: u16, receives: usize, queues: usize) -> Self {
        Self {
            own_max,
            left: u32::try_from(receives).unwrap_or(u32::MAX),
            lent: 0,
            shares: Shares::new(queues),
            refused: VecDeque::with_capacity(queues),
            came_back: false,
        }
    }

    fn take(&mut self, queue: u32) {
        self.left -= 1;
        self.lent += 1;
        self.shares.take(queue);
    }

    fn put(&mut self, queue: u32, count: u32) {
        self.left += count;
        self.lent -= count;
        self.came_back |= count > 0;
        self.shares.put(queue, count);
    }

    /// The queue is over: takes back what it has.
    pub(super) fn forget(&mut self, queue: u32, borrowed: u16) {
        self.put(queue, borrowed.into());
        self.shares.remove(queue);
        self.refused.retain(|&other| other != queue);
    }
}

impl QueuePair {
    /// Whether half of its own receives, or more, are in use, and it has entries for which it has none.
    fn is_short(&self) -> bool {
        self.posted < self.own / 2 && !self.vacant.is_empty() && !self.destroyed
    }
}

impl<P: Provider> Rdma<P> {
    /// Receives that I/O queues have borrowed.
    #[must_use]
    pub fn receives_lent(&self) -> u32 {
        self.lending.lent
    }

    fn borrower(&mut self, queue: u32) -> Option<&mut QueuePair> {
        self.queues.get_mut(queue as usize)?.as_mut()
    }

    /// A receive of the queue was filled.
    pub(super) fn on_filled(&mut self, queue: u32) {
        let Some(queue_pair) = self.borrower(queue) else { return };
        queue_pair.posted -= 1;
        if queue_pair.is_short() {
            self.borrow(queue);
        }
    }

    /// Lends a queue a receive, or remembers that it was refused one.
    fn borrow(&mut self, queue: u32) {
        let Some(queue_pair) = self.queues.get_mut(queue as usize).and_then(Option::as_mut) else { return };
        let lending = &mut self.lending;
        if lending.shares.may_take(queue, queue_pair.borrowed.into(), lending.left)
            && let Some(slot) = queue_pair.vacant.pop()
        {
            queue_pair.receives[usize::from(slot)] = self.io_receives.take();
            queue_pair.borrowed += 1;
            lending.take(queue);
            if self.post_receive(queue, slot).is_err() {
                // The connection is about to end.
                return self.return_borrowed(queue, slot);
            }
        }
        if let Some(queue_pair) = self.borrower(queue).filter(|it| it.is_short() && !it.refused) {
            queue_pair.refused = true;
            self.lending.refused.push_back(queue);
        }
    }

    /// A capsule is used no more: its receive is posted again, or goes back to those that are lent.
    pub(super) fn give_receive_back(&mut self, queue: u32, capsule: &Capsule) -> Result<(), PostError> {
        let slot = capsule.slot;
        match self.queue_pair(queue) {
            Some(it) if it.borrowed > 0 && it.posted >= it.own => {
                self.return_borrowed(queue, slot);
                Ok(())
            }
            _ => taken(self.post_receive(queue, slot)),
        }
    }

    fn return_borrowed(&mut self, queue: u32, slot: u16) {
        let Some(queue_pair) = self.queues.get_mut(queue as usize).and_then(Option::as_mut) else { return };
        let Some(index) = queue_pair.receives[usize::from(slot)].take() else { return };
        queue_pair.vacant.push(slot);
        queue_pair.borrowed -= 1;
        self.io_receives.put(index);
        self.lending.put(queue, 1);
    }

    /// Lends what came back in this turn to queues that were refused: first to those that have waited longest.
    pub(super) fn lend_again(&mut self) {
        if !core::mem::take(&mut self.lending.came_back) {
            return;
        }
        for _ in 0..self.lending.refused.len() {
            let Some(queue) = self.lending.refused.pop_front() else { return };
            let Some(queue_pair) = self.borrower(queue) else { continue };
            queue_pair.refused = false;
            if queue_pair.is_short() {
                self.borrow(queue);
            }
        }
    }
}
