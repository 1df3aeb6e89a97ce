//! Queue pairs and their queues: made, flushed, removed.

use super::memory::Slice;
use super::state::{Due, MemberId, State};
use crate::{
    CmEvent, Completion, CompletionQueueId, Opcode, QueuePairAttributes, QueuePairId, QueuePairState,
    RemoteKey, RemoteMemory, RequestId, ResourceError, SharedReceiveQueueId, WcStatus, WorkRequestId,
};
use core::time::Duration;
use std::collections::VecDeque;

pub(super) const MAX_SGE: usize = 16;
pub(super) const MAX_INLINE: usize = 512;
pub(super) const MAX_READ_DEPTH: u16 = 64;
pub(super) const MAX_QUEUE_DEPTH: u32 = 65_536;

/// A completion, and the slots that come free when it is polled.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) completion: Completion,
    pub(super) slots: Slots,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Slots {
    /// Of the send queue: its own, and those of unsignalled requests before it.
    Send(u32),
    Receive,
    Shared(SharedReceiveQueueId),
}

#[derive(Debug)]
pub(super) struct CompletionQueue {
    pub(super) owner: MemberId,
    pub(super) capacity: usize,
    pub(super) entries: VecDeque<Entry>,
}

#[derive(Debug)]
pub(super) struct SharedReceiveQueue {
    pub(super) owner: MemberId,
    pub(super) capacity: u32,
    pub(super) taken: u32,
    pub(super) receives: VecDeque<Receive>,
}

/// A posted receive.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) id: WorkRequestId,
    pub(super) buffer: Slice,
    pub(super) slots: Slots,
}

/// The bytes of a SEND or WRITE.
#[derive(Debug)]
pub(super) enum Source {
    Inline(Vec<u8>),
    Gather(Vec<Slice>),
}

#[derive(Debug)]
pub(super) enum Operation {
    Send { source: Source, invalidate: Option<RemoteKey> },
    Write { source: Source, remote: RemoteMemory },
    Read { into: Slice, remote: RemoteMemory },
    LocalInvalidate { key: RemoteKey },
}

/// A posted send work request. It holds the memory that it names.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) id: WorkRequestId,
    pub(super) operation: Operation,
    pub(super) signaled: bool,
}

/// A SEND that arrived before its receive.
#[derive(Debug)]
pub(super) struct Spilled {
    pub(super) bytes: Vec<u8>,
    pub(super) invalidate: Option<RemoteKey>,
}

#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) owner: MemberId,
    pub(super) attributes: QueuePairAttributes,
    pub(super) state: QueuePairState,
    pub(super) peer: Option<QueuePairId>,
    /// The set-up that it is part of, and when that must be over.
    pub(super) request: Option<RequestId>,
    pub(super) deadline: Option<Due>,
    /// `disconnect` was called, and whether the peer was notified.
    pub(super) closing: bool,
    pub(super) disconnect_sent: bool,
    /// It takes nothing more from its peer.
    pub(super) stopped: bool,
    /// Outbound read credits, and how many are in use.
    pub(super) read_depth: u16,
    pub(super) reads: u16,
    /// Not started yet; the first `rung` of them may be.
    pub(super) posted: VecDeque<Work>,
    pub(super) rung: usize,
    /// Under way, in order.
    pub(super) started: VecDeque<Work>,
    pub(super) last_arrival: Duration,
    pub(super) sends_taken: u32,
    pub(super) silent: u32,
    pub(super) receives: VecDeque<Receive>,
    pub(super) receives_taken: u32,
    pub(super) spill: VecDeque<Spilled>,
    /// Work requests that arrived while an RDMA READ at their head waited behind those.
    pub(super) delayed: u32,
}

impl Source {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Inline(bytes) => bytes.len(),
            Self::Gather(slices) => slices.iter().map(|slice| slice.len).sum(),
        }
    }
}

impl Operation {
    pub(super) fn opcode(&self) -> Opcode {
        match self {
            Self::Send { .. } => Opcode::Send,
            Self::Write { .. } => Opcode::Write,
            Self::Read { .. } => Opcode::Read,
            Self::LocalInvalidate { .. } => Opcode::LocalInvalidate,
        }
    }
}

fn within(what: &'static str, asked: u32) -> Result<u32, ResourceError> {
    let limit = MAX_QUEUE_DEPTH;
    if asked <= limit { Ok(asked) } else { Err(ResourceError::Limit { what, asked, limit }) }
}

impl State {
    pub(super) fn create_completion_queue(
        &mut self,
        owner: MemberId,
        capacity: u32,
    ) -> Result<CompletionQueueId, ResourceError> {
        // A completion queue serves many queue pairs: it is bounded by what memory takes, not by one queue's depth.
        let id = CompletionQueueId(self.fresh());
        let queue = CompletionQueue { owner, capacity: capacity as usize, entries: VecDeque::new() };
        self.completion_queues.insert(id, queue);
        Ok(id)
    }

    pub(super) fn create_shared_receive_queue(
        &mut self,
        owner: MemberId,
        capacity: u32,
    ) -> Result<SharedReceiveQueueId, ResourceError> {
        let capacity = within("shared receives", capacity)?;
        let id = SharedReceiveQueueId(self.fresh());
        let queue = SharedReceiveQueue { owner, capacity, taken: 0, receives: VecDeque::new() };
        self.shared_queues.insert(id, queue);
        Ok(id)
    }

    pub(super) fn create_queue_pair(
        &mut self,
        owner: MemberId,
        attributes: &QueuePairAttributes,
    ) -> Result<QueuePairId, ResourceError> {
        within("sends", attributes.max_send)?;
        within("receives", attributes.max_receive)?;
        let owned =
            |id: &CompletionQueueId| self.completion_queues.get(id).is_some_and(|cq| cq.owner == owner);
        let shared = attributes.shared_receive_queue;
        let shared_owned =
            shared.is_none_or(|id| self.shared_queues.get(&id).is_some_and(|srq| srq.owner == owner));
        if !(owned(&attributes.send_cq) && owned(&attributes.receive_cq) && shared_owned) {
            return Err(ResourceError::NoSuchQueue);
        }
        let id = QueuePairId(self.fresh());
        self.queue_pairs.insert(id, QueuePair::new(owner, *attributes));
        Ok(id)
    }

    /// The oldest receive that a message for this queue pair may have.
    pub(super) fn take_receive(&mut self, id: QueuePairId) -> Option<Receive> {
        let qp = self.queue_pairs.get_mut(&id)?;
        match qp.attributes.shared_receive_queue {
            Some(shared) => self.shared_queues.get_mut(&shared)?.receives.pop_front(),
            None => qp.receives.pop_front(),
        }
    }

    /// Puts a queue pair into error: everything outstanding completes as flushed, in the order posted.
    pub(super) fn flush_queue_pair(&mut self, id: QueuePairId) {
        let Some(qp) = self.queue_pairs.get_mut(&id) else { return };
        qp.state = QueuePairState::Error;
        let sends: Vec<_> = qp.started.drain(..).chain(qp.posted.drain(..)).collect();
        let receives: Vec<_> = qp.receives.drain(..).collect();
        qp.spill.clear();
        qp.delayed = 0;
        self.spilled.remove(&id);
        sends.iter().for_each(|work| self.complete_send(id, work, WcStatus::Flushed, 0));
        receives.iter().for_each(|it| self.complete_receive(id, it, WcStatus::Flushed, 0, None));
    }

    /// Forgets a queue pair, with every trace of it that could still be polled.
    pub(super) fn remove_queue_pair(&mut self, id: QueuePairId) {
        self.spilled.remove(&id);
        let Some(qp) = self.queue_pairs.remove(&id) else { return };
        self.exposures.retain(|_, exposure| exposure.scope != Some(id));
        for queue in [qp.attributes.send_cq, qp.attributes.receive_cq] {
            let Some(queue) = self.completion_queues.get_mut(&queue) else { continue };
            let (gone, kept): (VecDeque<_>, _) =
                queue.entries.drain(..).partition(|entry| entry.completion.queue_pair == id);
            queue.entries = kept;
            gone.into_iter().for_each(|entry| self.give_back(id, entry.slots));
        }
        if let Some(member) = self.members.get_mut(&qp.owner) {
            member.unrung.retain(|&unrung| unrung != id);
            member.events.retain(|event| match event {
                CmEvent::Established { queue_pair, .. }
                | CmEvent::ConnectFailed { queue_pair, .. }
                | CmEvent::Disconnected { queue_pair, .. } => *queue_pair != id,
                CmEvent::ConnectRequest { .. } | CmEvent::DeviceRemoved => true,
            });
        }
    }
}

impl QueuePair {
    fn new(owner: MemberId, attributes: QueuePairAttributes) -> Self {
        Self {
            owner,
            attributes,
            state: QueuePairState::Idle,
            peer: None,
            request: None,
            deadline: None,
            closing: false,
            stopped: false,
            disconnect_sent: false,
            read_depth: 0,
            reads: 0,
            posted: VecDeque::new(),
            rung: 0,
            started: VecDeque::new(),
            last_arrival: Duration::ZERO,
            sends_taken: 0,
            silent: 0,
            receives: VecDeque::new(),
            receives_taken: 0,
            spill: VecDeque::new(),
            delayed: 0,
        }
    }
}
