//! The trait that every provider implements.

use crate::{
    Access, CmEvent, Completion, CompletionQueueId, ConnectError, ConnectParameters, ListenError, ListenerId,
    LocalKey, MemoryRegion, PrivateData, QueuePairAttributes, QueuePairId, QueuePairState, ReceiveRequest,
    RegisterError, RemoteMemory, RequestId, SendRequest, Sge, SharedReceiveQueueId, Stranger,
};
use core::time::Duration;
use nvmf_memory::Memory;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use thiserror::Error;

/// What a provider can do, and up to where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Elements in a gather list.
    pub max_sge: u32,
    /// Bytes that can be posted inline.
    pub max_inline: u32,
    /// RDMA READs that can be served, and be outstanding, on a queue pair.
    pub max_read_depth: u16,
    /// Work requests on a queue, and as many exposures beside them ([`crate::QueuePairAttributes::max_exposed`]).
    pub max_queue_depth: u32,
    /// [`Provider::expose`] makes a key for one command (an STag, a memory window).
    pub per_command_keys: bool,
    /// Such a key reaches only the bytes that were exposed, and only the peer that it was made for can invalidate it
    /// (Soft-RoCE checks neither).
    pub strict_keys: bool,
    /// Our own SENDs can invalidate a key of the peer's. What a peer's SEND ends here are the keys of
    /// `per_command_keys`.
    pub sends_invalidate: bool,
    /// A SEND that finds no receive posted waits (law 6). iWARP devices have no place for it: there it ends the
    /// connection.
    pub early_messages_wait: bool,
    /// Any number of SENDs that find no receive posted wait in order, for as long as it takes, and behind them what else
    /// the peer sends, answers to RDMA READs included. So a queue pair needs only the receives that it is to fill at a
    /// time; but no receive may be kept until an RDMA READ of its own queue pair is answered. Elsewhere a SEND without a
    /// receive costs time, or the connection.
    pub receives_on_demand: bool,
    /// The bytes of one packet, where a few more would need a second one; `None` where packets are too small for that
    /// to matter.
    pub packet_len: Option<u32>,
    /// A completed SEND or WRITE is at the peer (InfiniBand, RoCE), rather than handed to the network (iWARP).
    pub completion_is_ack: bool,
}

/// A queue could not be made.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ResourceError {
    /// More than the provider takes.
    #[error("{what}: {asked} asked for, the provider takes {limit}")]
    Limit {
        /// Of what.
        what: &'static str,
        /// How many were asked for.
        asked: u32,
        /// How many there can be.
        limit: u32,
    },
    /// A queue that the attributes name does not exist.
    #[error("the attributes name a queue that does not exist")]
    NoSuchQueue,
    /// The device is gone.
    #[error("the RDMA device is gone")]
    DeviceRemoved,
    /// The device or the kernel refused.
    #[error("the system refused to make the queue: errno {0}")]
    Os(i32),
}

/// A work request was not taken. These are errors of the caller, except that a peer can cause `NotReady` at any moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PostError {
    /// As many as the queue was made for are outstanding: posted, and their completion not yet polled.
    #[error("the queue is full")]
    Full,
    /// The queue pair is not in a state that takes it.
    #[error("the queue pair is not ready")]
    NotReady,
    /// No such queue.
    #[error("there is no such queue")]
    NoSuchQueue,
    /// An element outside its region or without the access; too many elements, too much inline; an RDMA READ on a
    /// connection that was set up with no outbound read credit.
    #[error("the work request is malformed")]
    Invalid,
}

/// What ends a sleep on [`Provider::fd`], beside events. A provider may end it for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeOn {
    /// Every completion.
    Completions,
    /// Completions of receives. Those of send queues may come meanwhile, and wait to be polled: nothing depends on them
    /// now. On a device each would end a sleep of its own, for the sake of a place in a queue.
    Receives,
}

/// One thread's access to RDMA. Its queue pairs, queues, regions and listeners belong to one protection domain. One
/// thread at a time uses it, not always the same where the provider is [`Send`], as all of ours are.
///
/// Every implementation keeps these laws; the conformance suite checks them:
///
/// 1. Nothing blocks. Every wait is bounded by a time that the caller gave or that the provider documents.
/// 2. Posting does not ring the doorbell: work starts at [`Provider::flush`] or at the next poll.
/// 3. Sends of one queue pair take effect in the order posted, and complete in it. An RDMA WRITE is placed before a
///    later SEND is received.
/// 4. A posted work request completes exactly once (an unsignalled one makes no completion on success). When a
///    connection ends, everything outstanding completes as flushed, in order, before or with [`CmEvent::Disconnected`].
/// 5. A peer reaches only memory that was exposed to it, by key, within bounds, with the right access, while the key is
///    valid. What it does wrong ends its own connection and nothing else.
/// 6. A SEND that finds no receive posted waits in a bounded place; the connection ends only when that is full
///    (where [`Capabilities::early_messages_wait`]). Where [`Capabilities::receives_on_demand`], it never is: that place
///    is the peer's.
/// 7. Memory that work is in flight on is held by the provider; dropping the caller's handle is safe.
/// 8. A peer learns no key but those that the caller sends it. Where an RDMA READ sends the peer a key for its sink
///    (iWARP), the key covers only the bytes of this READ and becomes invalid when it completes. The region needs local
///    write access only.
/// 9. When the device goes away, every connection ends with [`crate::DisconnectCause::DeviceRemoved`], then
///    [`CmEvent::DeviceRemoved`] comes, once. From then on every call is refused; a new provider has to be opened.
pub trait Provider {
    /// A connection request under way from one thread's provider to another's.
    type Detached: Send;

    /// What the provider can do.
    fn capabilities(&self) -> Capabilities;

    /// Registers all of `memory`.
    ///
    /// # Errors
    /// See [`RegisterError`].
    fn register(&mut self, memory: &Memory, access: Access) -> Result<MemoryRegion, RegisterError>;

    /// Ends a registration. Its keys are invalid at once, those that [`Provider::expose`] made of it included. Work in
    /// flight holds the memory.
    fn deregister(&mut self, key: LocalKey);

    /// Makes a key under which the peer of this one queue pair reaches exactly `range`, until it is invalidated by the
    /// peer's SEND with invalidate, by [`crate::SendOperation::LocalInvalidate`], or with the queue pair. In effect
    /// before any SEND that is posted later.
    ///
    /// The region needs no remote access of its own, so that no peer reaches it between commands. A key for remote read
    /// needs nothing of it, one for remote write needs local write.
    ///
    /// # Errors
    /// See [`RegisterError`].
    fn expose(
        &mut self,
        queue_pair: QueuePairId,
        range: Sge,
        access: Access,
    ) -> Result<RemoteMemory, RegisterError>;

    /// A completion queue with room for `capacity` completions: at least the send and receive queues that will
    /// complete in it together. To overrun it is an error of the caller, with no defined outcome.
    ///
    /// # Errors
    /// See [`ResourceError`].
    fn create_completion_queue(&mut self, capacity: u32) -> Result<CompletionQueueId, ResourceError>;

    /// A shared receive queue with room for `capacity` receives.
    ///
    /// # Errors
    /// See [`ResourceError`].
    fn create_shared_receive_queue(&mut self, capacity: u32) -> Result<SharedReceiveQueueId, ResourceError>;

    /// A queue pair, idle.
    ///
    /// # Errors
    /// See [`ResourceError`].
    fn create_queue_pair(&mut self, attributes: &QueuePairAttributes) -> Result<QueuePairId, ResourceError>;

    /// Ends a queue pair and its connection at once. No completion or event of it is seen afterwards; its keys are
    /// invalid.
    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId);

    /// Its state; `Error` when there is none of that name.
    fn state(&self, queue_pair: QueuePairId) -> QueuePairState;

    /// Listens. Port 0 takes a free one; the address that was taken is returned.
    ///
    /// # Errors
    /// [`ListenError`].
    fn listen(&mut self, address: SocketAddr, backlog: u32) -> Result<(ListenerId, SocketAddr), ListenError>;

    /// Listens on a TCP socket that listens already: one that outlives this process, in the hands of its supervisor.
    /// Returns its address.
    ///
    /// # Errors
    /// [`ListenError`], of the kind `Unsupported` for a provider that does not run on TCP sockets.
    fn listen_on(&mut self, socket: TcpListener) -> Result<(ListenerId, SocketAddr), ListenError> {
        let address = socket.local_addr().unwrap_or(SocketAddr::from(([0; 4], 0)));
        Err(ListenError { address, source: io::ErrorKind::Unsupported.into() })
    }

    /// Stops listening. Requests that were not yet answered are dropped.
    fn unlisten(&mut self, listener: ListenerId);

    /// Starts a connection, from `source` if given. [`CmEvent::Established`] or [`CmEvent::ConnectFailed`] follows
    /// within the time in `parameters`.
    ///
    /// # Errors
    /// [`ConnectError`]: then no event follows, and the queue pair is still idle.
    fn connect(
        &mut self,
        now: Duration,
        queue_pair: QueuePairId,
        address: SocketAddr,
        source: Option<SocketAddr>,
        parameters: &ConnectParameters,
    ) -> Result<(), ConnectError>;

    /// Accepts a request on an idle queue pair, whose receives are posted already. [`CmEvent::Established`] or
    /// [`CmEvent::ConnectFailed`] follows.
    ///
    /// # Errors
    /// [`ConnectError`]: then no event follows, and the queue pair is still idle.
    fn accept(
        &mut self,
        now: Duration,
        request: RequestId,
        queue_pair: QueuePairId,
        parameters: &ConnectParameters,
    ) -> Result<(), ConnectError>;

    /// Rejects a request; the peer sees [`crate::ConnectFailure::Rejected`] with this private data.
    fn reject(&mut self, request: RequestId, private_data: &PrivateData);

    /// Takes a request out of this provider, to be adopted by another thread's of the same kind. `None` when it is
    /// gone.
    fn detach(&mut self, request: RequestId) -> Option<Self::Detached>;

    /// Takes over a request that another provider let go.
    fn adopt(&mut self, now: Duration, detached: Self::Detached) -> RequestId;

    /// Closes a connection: what was posted is still sent, if the peer takes it within a bounded time. Then everything
    /// outstanding is flushed, and [`CmEvent::Disconnected`] comes.
    fn disconnect(&mut self, queue_pair: QueuePairId);

    /// Posts a receive.
    ///
    /// # Errors
    /// [`PostError`]: nothing was taken.
    fn post_receive(&mut self, queue_pair: QueuePairId, request: ReceiveRequest) -> Result<(), PostError>;

    /// Posts a receive to a shared queue.
    ///
    /// # Errors
    /// [`PostError`]: nothing was taken.
    fn post_shared_receive(
        &mut self,
        queue: SharedReceiveQueueId,
        request: ReceiveRequest,
    ) -> Result<(), PostError>;

    /// Posts to the send queue.
    ///
    /// # Errors
    /// [`PostError`]: nothing was taken.
    fn post_send(&mut self, queue_pair: QueuePairId, request: SendRequest<'_>) -> Result<(), PostError>;

    /// Rings the doorbell for everything posted, on all queue pairs.
    fn flush(&mut self);

    /// Makes progress, and appends the completions that are there, up to the capacity left in `completions`; never
    /// grows it.
    fn poll_cq(&mut self, queue: CompletionQueueId, completions: &mut Vec<Completion>);

    /// Makes progress on set-up, tear-down and their deadlines; `now` only ever grows. One event a call.
    fn poll_cm(&mut self, now: Duration) -> Option<CmEvent>;

    /// A connection that was closed because its peer does not speak the provider's protocol, for the caller's log. A
    /// provider whose device sets connections up knows of none.
    fn next_stranger(&mut self) -> Option<Stranger> {
        None
    }

    /// When [`Provider::poll_cm`] must be called again even if nothing arrives.
    fn poll_timeout(&self) -> Option<Duration>;

    /// Arms [`Provider::fd`]: it becomes readable at the next completion that `wake_on` names, or at the next event; at
    /// once if one is there that was not looked at. `false` when it is known that something is there already: poll, do
    /// not sleep.
    fn arm(&mut self, wake_on: WakeOn) -> bool;

    /// The descriptor to sleep on. It never changes, and becomes readable when something comes after [`Provider::arm`],
    /// whichever thread called that. `None` for a provider without one (virtual time).
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}
