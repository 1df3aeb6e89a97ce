//! Receives that were posted.

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
