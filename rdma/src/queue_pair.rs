//! Queue pairs and what is posted to them.

use crate::{CompletionQueueId, RemoteKey, RemoteMemory, Sge};
use nvmf_memory::Memory;

/// A queue pair. Never reused for another while completions of the first may be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueuePairId(pub u32);

/// A shared receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SharedReceiveQueueId(pub u32);

/// The poster's name for a work request; comes back in its completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkRequestId(pub u64);

/// What a queue pair is made with. Queues are sized once, here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePairAttributes {
    /// Where sends, writes, reads and invalidations complete.
    pub send_cq: CompletionQueueId,
    /// Where receives complete.
    pub receive_cq: CompletionQueueId,
    /// Receives come from here instead of from a queue of its own.
    pub shared_receive_queue: Option<SharedReceiveQueueId>,
    /// Work requests outstanding on the send queue.
    pub max_send: u32,
    /// Receives posted at once (0 with a shared receive queue).
    pub max_receive: u32,
    /// Calls of [`crate::Provider::expose`] whose effect may be outstanding: where keys are memory windows, each takes
    /// a place on the send queue until a later work request completes. 0 for a side that exposes nothing.
    pub max_exposed: u32,
}

/// States of a queue pair: `Idle → Connecting → Ready → Error`, and `Error` from anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueuePairState {
    /// Made; receives may be posted, sends not yet.
    Idle,
    /// `connect` or `accept` is under way.
    Connecting,
    /// Connected.
    Ready,
    /// Ended. What was outstanding completes with [`crate::WcStatus::Flushed`], in the order posted.
    Error,
}

/// A receive: one SEND of the peer lands in `buffer`, which needs local write access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// Comes back in the completion.
    pub id: WorkRequestId,
    /// Where to. One element: a capsule's buffer is contiguous.
    pub buffer: Sge,
}

/// The bytes of a SEND or RDMA WRITE.
#[derive(Debug, Clone, Copy)]
pub enum Payload<'a> {
    /// Copied out when posted: at most [`crate::Capabilities::max_inline`] bytes, from any memory.
    Inline(&'a [u8]),
    /// Gathered from registered memory, which stays untouched until the completion: at most
    /// [`crate::Capabilities::max_sge`].
    Gather(&'a [Sge]),
    /// Taken from memory that is the poster's until [`crate::Provider::flush`] returns and no longer, registered or
    /// not. What a provider cannot send by then it copies to `spare`, and sends from there: a provider that sends from
    /// registered memory alone copies all of it.
    Borrowed {
        /// Whose bytes.
        from: &'a Memory,
        /// Where they begin.
        offset: usize,
        /// As many bytes of registered memory (local write access), which stay untouched until the completion.
        spare: &'a Sge,
    },
}

/// What a send work request does.
#[derive(Debug, Clone, Copy)]
pub enum SendOperation<'a> {
    /// SEND, optionally invalidating a key of the peer's and raising its solicited event.
    Send {
        /// The message.
        payload: Payload<'a>,
        /// A key of the peer's that its provider invalidates before it completes the receive.
        invalidate: Option<RemoteKey>,
        /// Wakes a peer that armed its completion queue for solicited events only.
        solicited: bool,
    },
    /// RDMA WRITE: the bytes are placed before any later SEND of this queue pair completes at the peer.
    Write {
        /// The data.
        payload: Payload<'a>,
        /// Where to: as many bytes as the payload has, from its address on.
        remote: RemoteMemory,
    },
    /// RDMA READ of `remote` into `into` (local write access). Takes one of the connection's outbound read credits; the
    /// provider holds back what would exceed them.
    Read {
        /// Where to. One element (iWARP takes no more).
        into: Sge,
        /// From where: `into.len` bytes from its address on.
        remote: RemoteMemory,
    },
    /// Ends a key that [`crate::Provider::expose`] made.
    LocalInvalidate {
        /// The key.
        key: RemoteKey,
    },
}

/// A work request for the send queue.
#[derive(Debug, Clone, Copy)]
pub struct SendRequest<'a> {
    /// Comes back in the completion.
    pub id: WorkRequestId,
    /// What to do.
    pub operation: SendOperation<'a>,
    /// Completes visibly on success too. An unsignalled request's slot is free once a later one of the same
    /// queue pair completed. Failures always complete.
    pub signaled: bool,
}
