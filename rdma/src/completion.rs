//! Completions.

use crate::{QueuePairId, RemoteKey, WorkRequestId};
use thiserror::Error;

/// A completion queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CompletionQueueId(pub u32);

/// What completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opcode {
    /// A SEND of ours. The buffer may be reused; whether the peer has it depends on
    /// [`crate::Capabilities::completion_is_ack`].
    Send,
    /// An RDMA WRITE of ours; likewise.
    Write,
    /// An RDMA READ of ours: the data are in place.
    Read,
    /// A local invalidation.
    LocalInvalidate,
    /// A SEND of the peer's landed.
    Receive,
}

/// How a work request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum WcStatus {
    /// Done.
    #[error("success")]
    Success,
    /// The queue pair went into error before this could be done.
    #[error("flushed: the connection is gone")]
    Flushed,
    /// A local element lies outside its region, or lacks the access.
    #[error("local protection error")]
    LocalProtection,
    /// The peer's message is longer than the receive buffer.
    #[error("the message is longer than the buffer that was posted for it")]
    LocalLength,
    /// The peer refused the key, the bounds or the access.
    #[error("the peer refused the remote key, bounds or access")]
    RemoteAccess,
    /// The peer found the request itself wrong, or could not do it.
    #[error("the peer could not carry out the operation")]
    RemoteOperation,
    /// The peer had no receive posted, for too long.
    #[error("the peer posted no receive buffer in time")]
    ReceiverNotReady,
    /// The transport gave up.
    #[error("the transport gave up retrying")]
    RetryExceeded,
    /// Anything else; the number is the provider's own.
    #[error("provider error {0}")]
    Other(u32),
}

impl WcStatus {
    /// Whether it went well.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Success
    }
}

/// One completed work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// As posted.
    pub id: WorkRequestId,
    /// On which queue pair (for a shared receive queue: the one whose peer sent).
    pub queue_pair: QueuePairId,
    /// Which operation. Unless `status` is success it only tells receives from sends.
    pub opcode: Opcode,
    /// How it ended.
    pub status: WcStatus,
    /// Bytes received or read.
    pub byte_len: u32,
    /// The key of ours that the peer's SEND invalidated.
    pub invalidated: Option<RemoteKey>,
}
