//! The verbs-shaped contract: what the product asks of any RDMA, whatever moves the bytes.
//!
//! | module | what it holds |
//! |---|---|
//! | [`provider`] | [`Provider`]: the trait, and its laws |
//! | [`memory`] | keys, access rights, scatter/gather elements |
//! | [`queue_pair`] | queue pairs, shared receive queues, work requests |
//! | [`completion`] | completions and their statuses |
//! | [`connection`] | listening, connecting, private data, connection events |
//! | [`loopback`] | the reference semantics: queue pairs within one process, deterministic |
//! | [`fault`] | [`fault::Faulty`]: any provider, with seeded faults that the contract allows |
//! | [`slots`] | a table whose keys go stale, for providers |
//! | [`trace`] | [`trace::Trace`]: any provider, with the last posts, completions and events on record |
//! | [`conformance`] | the suite that every provider passes |
//!
//! What it does not do: it knows no NVMe, and sets no policy (how deep, how many, when to retry).
#![forbid(unsafe_code)]

pub mod completion;
pub mod conformance;
pub mod connection;
pub mod fault;
pub mod loopback;
pub mod memory;
pub mod provider;
pub mod queue_pair;
mod rng;
pub mod slots;
pub mod trace;

pub use completion::{Completion, CompletionQueueId, Opcode, WcStatus};
pub use connection::{
    CmEvent, ConnectError, ConnectFailure, ConnectParameters, DisconnectCause, ListenError, ListenerId,
    PrivateData, RequestId, Stranger,
};
pub use memory::{Access, LocalKey, MemoryRegion, RegisterError, RemoteKey, RemoteMemory, Sge};
pub use provider::{Capabilities, PostError, Provider, ResourceError, WakeOn};
pub use queue_pair::{
    Payload, QueuePairAttributes, QueuePairId, QueuePairState, ReceiveRequest, SendOperation, SendRequest,
    SharedReceiveQueueId, WorkRequestId,
};
