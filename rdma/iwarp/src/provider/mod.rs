//! The provider: sockets on one side, queue pairs on the other.
//!
//! | module | what it does |
//! |---|---|
//! | `connection` | what a queue pair is connected by |
//! | `establish` | listening, connecting, accepting; the MPA frames |
//! | `progress` | reads and writes sockets, within budgets |
//! | `close` | ends, in order and otherwise; deadlines |

mod close;
mod connection;
mod establish;
mod progress;

pub use connection::DetachedRequest;

use crate::config::{
    IwarpConfig, MAX_COMPLETIONS, MAX_INLINE, MAX_QUEUE_DEPTH, MAX_READ_DEPTH, MAX_SGE, PACKET_LEN,
    READY_COMPLETIONS,
};
use crate::qp::receive::ReceiveQueue;
use crate::qp::{self, Domain, QueuePair, SharedReceiveQueue};
use connection::{Connection, Link, Pending};
use core::time::Duration;
use nvmf_memory::Memory;
use nvmf_rdma::slots::Slots;
use nvmf_rdma::{
    Access, Capabilities, CmEvent, Completion, CompletionQueueId, ConnectError, ConnectParameters,
    ListenError, ListenerId, LocalKey, MemoryRegion, PostError, PrivateData, Provider, QueuePairAttributes,
    QueuePairId, QueuePairState, ReceiveRequest, RegisterError, RemoteMemory, RequestId, ResourceError,
    SendRequest, Sge, SharedReceiveQueueId, Stranger, WakeOn,
};
use nvmf_stream::{Deadlines, Lingering, Listener, Poller, ReadSchedule, SendSchedule};
use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;

/// Bytes of the staging buffer, which all queue pairs share.
const STAGING: usize = 64 * 1024;
/// Listeners at once.
const LISTENERS_MAX: u16 = 1024;
/// Strangers that wait to be told of; those that come while there are so many are forgotten.
const STRANGERS_MAX: usize = 1024;

/// Userspace iWARP for one thread.
///
/// Waits that no parameter bounds are bounded by [`IwarpConfig`]: the request of a new connection, the answer to it, a
/// disconnect.
#[derive(Debug)]
pub struct IwarpProvider {
    config: IwarpConfig,
    poller: Poller,
    domain: Domain,
    connections: Slots<Connection>,
    listeners: Slots<Listener>,
    pendings: Slots<Pending>,
    lingering: Slots<Lingering>,
    staging: Box<[u8]>,
    events: VecDeque<CmEvent>,
    /// At most [`STRANGERS_MAX`].
    strangers: VecDeque<Stranger>,
    /// As of the last call that passed it.
    now: Duration,
    /// Which queue pairs are read in a turn.
    reads: ReadSchedule,
    /// Queue pairs with something to send.
    dirty: SendSchedule,
    /// Whatever has a deadline.
    deadlines: Deadlines,
    /// `poll_cq` has read the sockets since the last `poll_cm`: a caller that polls both in turn reads them once.
    looked: bool,
}

impl IwarpProvider {
    /// A provider with nothing in it.
    ///
    /// # Errors
    /// When the system gives no epoll descriptor.
    pub fn new(config: IwarpConfig) -> io::Result<Self> {
        Ok(Self {
            poller: Poller::new()?,
            domain: Domain::new(&config),
            connections: Slots::new(config.queue_pairs_max),
            listeners: Slots::new(LISTENERS_MAX),
            pendings: Slots::new(u16::MAX),
            lingering: Slots::new(config.queue_pairs_max),
            staging: vec![0; STAGING].into_boxed_slice(),
            events: VecDeque::new(),
            strangers: VecDeque::new(),
            now: Duration::ZERO,
            reads: ReadSchedule::default(),
            dirty: SendSchedule::default(),
            deadlines: Deadlines::default(),
            looked: false,
            config,
        })
    }

    fn has_queue(&self, queue: CompletionQueueId) -> bool {
        (queue.0 as usize) < self.domain.completion_queues.len()
    }

    fn mark_dirty(&mut self, key: u32) {
        if let Some(connection) = self.connections.get_mut(key) {
            self.dirty.add(key, &mut connection.dirty);
        }
    }
}

fn within(what: &'static str, asked: u32, limit: u32) -> Result<(), ResourceError> {
    if asked > limit { Err(ResourceError::Limit { what, asked, limit }) } else { Ok(()) }
}

impl Provider for IwarpProvider {
    type Detached = DetachedRequest;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_sge: MAX_SGE as u32,
            max_inline: MAX_INLINE as u32,
            max_read_depth: MAX_READ_DEPTH,
            max_queue_depth: MAX_QUEUE_DEPTH,
            per_command_keys: true,
            strict_keys: true,
            early_messages_wait: true,
            receives_on_demand: true,
            sends_invalidate: true,
            packet_len: Some(PACKET_LEN),
            completion_is_ack: false,
        }
    }

    fn register(&mut self, memory: &Memory, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.domain.stags.register(memory, access)
    }

    fn deregister(&mut self, key: LocalKey) {
        self.end_readers(key);
        self.domain.stags.deregister(key);
    }

    fn expose(
        &mut self,
        queue_pair: QueuePairId,
        range: Sge,
        access: Access,
    ) -> Result<RemoteMemory, RegisterError> {
        // The keys of a queue pair end with it.
        match self.connections.get(queue_pair.0) {
            Some(connection) if !matches!(connection.link, Link::Over) => {
                self.domain.stags.expose(queue_pair, range, access)
            }
            _ => Err(RegisterError::OutOfBounds),
        }
    }

    fn create_completion_queue(&mut self, capacity: u32) -> Result<CompletionQueueId, ResourceError> {
        within("completions in a queue", capacity, MAX_COMPLETIONS)?;
        let queues = &mut self.domain.completion_queues;
        queues.push(VecDeque::with_capacity(READY_COMPLETIONS.min(capacity as usize)));
        Ok(CompletionQueueId(queues.len() as u32 - 1))
    }

    fn create_shared_receive_queue(&mut self, capacity: u32) -> Result<SharedReceiveQueueId, ResourceError> {
        within("receives in a shared queue", capacity, MAX_QUEUE_DEPTH)?;
        let queue = ReceiveQueue::new(capacity);
        self.domain.shared.push(SharedReceiveQueue { queue, starved: VecDeque::new() });
        Ok(SharedReceiveQueueId(self.domain.shared.len() as u32 - 1))
    }

    fn create_queue_pair(&mut self, attributes: &QueuePairAttributes) -> Result<QueuePairId, ResourceError> {
        within("sends of a queue pair", attributes.max_send, MAX_QUEUE_DEPTH)?;
        within("receives of a queue pair", attributes.max_receive, MAX_QUEUE_DEPTH)?;
        let shared = attributes.shared_receive_queue;
        let has_shared = shared.is_none_or(|queue| (queue.0 as usize) < self.domain.shared.len());
        if !has_shared || !self.has_queue(attributes.send_cq) || !self.has_queue(attributes.receive_cq) {
            return Err(ResourceError::NoSuchQueue);
        }
        let limit = u32::from(self.config.queue_pairs_max);
        let full = ResourceError::Limit { what: "queue pairs", asked: limit + 1, limit };
        let make = |key| Connection::new(QueuePair::new(QueuePairId(key), attributes));
        self.connections.insert(make).map(QueuePairId).ok_or(full)
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) {
        self.destroy(queue_pair);
    }

    fn state(&self, queue_pair: QueuePairId) -> QueuePairState {
        self.connections.get(queue_pair.0).map_or(QueuePairState::Error, Connection::state)
    }

    fn listen(&mut self, address: SocketAddr, backlog: u32) -> Result<(ListenerId, SocketAddr), ListenError> {
        let socket = nvmf_stream::listen(address, backlog);
        socket.and_then(|it| self.open_listener(it)).map_err(|source| ListenError { address, source })
    }

    fn listen_on(&mut self, socket: TcpListener) -> Result<(ListenerId, SocketAddr), ListenError> {
        let address = socket.local_addr().unwrap_or(SocketAddr::from(([0; 4], 0)));
        self.open_listener(socket).map_err(|source| ListenError { address, source })
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.close_listener(listener);
    }

    fn connect(
        &mut self,
        now: Duration,
        queue_pair: QueuePairId,
        address: SocketAddr,
        source: Option<SocketAddr>,
        parameters: &ConnectParameters,
    ) -> Result<(), ConnectError> {
        self.now = self.now.max(now);
        self.start_connect(queue_pair.0, address, source, parameters)
    }

    fn accept(
        &mut self,
        now: Duration,
        request: RequestId,
        queue_pair: QueuePairId,
        parameters: &ConnectParameters,
    ) -> Result<(), ConnectError> {
        self.now = self.now.max(now);
        self.accept_request(request, queue_pair.0, parameters)
    }

    fn reject(&mut self, request: RequestId, private_data: &PrivateData) {
        self.reject_request(request, private_data);
    }

    fn detach(&mut self, request: RequestId) -> Option<Self::Detached> {
        self.detach_request(request)
    }

    fn adopt(&mut self, now: Duration, detached: Self::Detached) -> RequestId {
        self.now = self.now.max(now);
        self.adopt_request(detached)
    }

    fn disconnect(&mut self, queue_pair: QueuePairId) {
        self.start_disconnect(queue_pair.0);
    }

    fn post_receive(&mut self, queue_pair: QueuePairId, request: ReceiveRequest) -> Result<(), PostError> {
        let connection = self.connections.get_mut(queue_pair.0).ok_or(PostError::NoSuchQueue)?;
        if connection.state() == QueuePairState::Error {
            return Err(PostError::NotReady);
        }
        if connection.qp.post_receive(&mut self.domain, &request)? {
            self.on_resumed(queue_pair.0);
        }
        Ok(())
    }

    fn post_shared_receive(
        &mut self,
        queue: SharedReceiveQueueId,
        request: ReceiveRequest,
    ) -> Result<(), PostError> {
        let index = queue.0 as usize;
        if index >= self.domain.shared.len() {
            return Err(PostError::NoSuchQueue);
        }
        let receive = qp::receive(&self.domain, &request)?;
        self.domain.shared[index].queue.post(receive)?;
        while let Some(&starved) = self.domain.shared[index].starved.front() {
            if let Some(connection) = self.connections.get_mut(starved.0) {
                let starves_on = connection.qp.on_shared_receive(&mut self.domain);
                self.on_resumed(starved.0);
                if starves_on {
                    break;
                }
            }
            self.domain.shared[index].starved.pop_front();
        }
        Ok(())
    }

    fn post_send(&mut self, queue_pair: QueuePairId, request: SendRequest<'_>) -> Result<(), PostError> {
        let connection = self.connections.get_mut(queue_pair.0).ok_or(PostError::NoSuchQueue)?;
        if connection.state() != QueuePairState::Ready {
            return Err(PostError::NotReady);
        }
        connection.qp.post_send(&self.domain, &request)?;
        self.mark_dirty(queue_pair.0);
        Ok(())
    }

    fn flush(&mut self) {
        self.send_dirty();
    }

    fn poll_cq(&mut self, queue: CompletionQueueId, completions: &mut Vec<Completion>) {
        self.progress();
        self.looked = true;
        if let Some(queue) = self.domain.completion_queues.get_mut(queue.0 as usize) {
            let room = completions.capacity() - completions.len();
            completions.extend(queue.drain(..room.min(queue.len())));
        }
    }

    fn poll_cm(&mut self, now: Duration) -> Option<CmEvent> {
        self.now = self.now.max(now);
        self.expire();
        if !core::mem::take(&mut self.looked) {
            self.progress();
        }
        let event = self.events.pop_front()?;
        if let CmEvent::Established { queue_pair, .. } = &event {
            self.announce(queue_pair.0);
        }
        Some(event)
    }

    fn next_stranger(&mut self) -> Option<Stranger> {
        self.strangers.pop_front()
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.next_deadline()
    }

    fn arm(&mut self, _: WakeOn) -> bool {
        self.reads.on_sleep();
        let sendable = self.dirty.keys().any(|key| self.can_send(key));
        let completed = self.domain.completion_queues.iter().any(|queue| !queue.is_empty());
        self.events.is_empty() && self.strangers.is_empty() && !completed && !sendable
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.poller.fd())
    }
}
