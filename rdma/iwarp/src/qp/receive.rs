//! Receives that were posted, and the bounded place for SENDs that came before their receive.

use super::Parts;
use super::domain::Domain;
use nvmf_memory::Memory;
use nvmf_rdma::{Completion, Opcode, PostError, RemoteKey, WcStatus, WorkRequestId};
use std::collections::VecDeque;

/// Part of a region, held so that it outlives the work on it.
#[derive(Debug, Clone)]
pub(crate) struct Piece {
    pub(crate) memory: Memory,
    pub(crate) offset: usize,
    pub(crate) len: u32,
}

#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) id: WorkRequestId,
    pub(crate) buffer: Piece,
}

/// Posted receives, in order.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    posted: VecDeque<Receive>,
    capacity: usize,
}

impl ReceiveQueue {
    pub(crate) fn new(capacity: u32) -> Self {
        let capacity = capacity as usize;
        Self { posted: VecDeque::with_capacity(capacity), capacity }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.posted.len() >= self.capacity
    }

    pub(crate) fn post(&mut self, receive: Receive) -> Result<(), PostError> {
        if self.is_full() {
            return Err(PostError::Full);
        }
        self.posted.push_back(receive);
        Ok(())
    }

    pub(crate) fn take(&mut self) -> Option<Receive> {
        self.posted.pop_front()
    }

    /// Gives back what was taken and not filled.
    pub(crate) fn put_back(&mut self, receive: Receive) {
        self.posted.push_front(receive);
    }
}

/// A SEND that found no receive.
#[derive(Debug, Default)]
pub(crate) struct Early {
    pub(crate) bytes: Vec<u8>,
    pub(crate) invalidated: Option<u32>,
    pub(crate) whole: bool,
}

/// Early SENDs, in order. Allocates only while there are some, and only within the limits.
#[derive(Debug, Default)]
pub(crate) struct Spill {
    messages: VecDeque<Early>,
    bytes: usize,
}

impl Spill {
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Begins a message; whether there is room for one.
    pub(crate) fn begin(&mut self, domain: &Domain) -> bool {
        let room = self.messages.len() < domain.spill_messages_max;
        if room {
            self.messages.push_back(Early::default());
        }
        room
    }

    /// Whether `len` more bytes have room.
    pub(crate) fn has_room(&self, domain: &Domain, len: usize) -> bool {
        len <= domain.spill_left && self.bytes + len <= domain.spill_bytes_max
    }

    /// More of the message that was begun last; `false` when there is no room after all.
    pub(crate) fn extend(&mut self, domain: &mut Domain, bytes: &[u8]) -> bool {
        if !self.has_room(domain, bytes.len()) {
            return false;
        }
        let Some(message) = self.messages.back_mut() else { return false };
        message.bytes.extend_from_slice(bytes);
        self.bytes += bytes.len();
        domain.spill_left -= bytes.len();
        true
    }

    /// The message that was begun last is whole.
    pub(crate) fn finish(&mut self, invalidated: Option<u32>) {
        if let Some(message) = self.messages.back_mut() {
            (message.whole, message.invalidated) = (true, invalidated);
        }
    }

    /// Whether a message is there to be delivered.
    pub(crate) fn is_ready(&self) -> bool {
        self.messages.front().is_some_and(|message| message.whole)
    }

    /// The oldest message, if it is whole.
    pub(crate) fn take(&mut self, domain: &mut Domain) -> Option<Early> {
        if !self.is_ready() {
            return None;
        }
        let message = self.messages.pop_front()?;
        self.give_back(domain, message.bytes.len());
        if self.messages.is_empty() {
            self.messages = VecDeque::new();
        }
        Some(message)
    }

    pub(crate) fn clear(&mut self, domain: &mut Domain) {
        self.messages = VecDeque::new();
        self.give_back(domain, self.bytes);
    }

    fn give_back(&mut self, domain: &mut Domain, bytes: usize) {
        self.bytes -= bytes;
        domain.spill_left += bytes;
    }
}

impl Parts {
    pub(super) fn complete_receive(
        &self,
        domain: &mut Domain,
        receive: &Receive,
        byte_len: u32,
        invalidated: Option<u32>,
    ) {
        let completion = Completion {
            id: receive.id,
            queue_pair: self.id,
            opcode: Opcode::Receive,
            status: WcStatus::Success,
            byte_len,
            invalidated: invalidated.map(RemoteKey),
        };
        domain.complete(self.attributes.receive_cq, completion);
    }

    pub(super) fn fail_receive(&self, domain: &mut Domain, receive: &Receive, status: WcStatus) {
        let completion = Completion {
            id: receive.id,
            queue_pair: self.id,
            opcode: Opcode::Receive,
            status,
            byte_len: 0,
            invalidated: None,
        };
        domain.complete(self.attributes.receive_cq, completion);
    }
}
