//! The provider: the contract on one side, the device on the other.

use crate::completion::Queue;
use crate::config::VerbsConfig;
use crate::connection::Role;
use crate::ffi::{
    Channel, CmId, CompletionChannel, Device, DeviceLimits, INLINE_MAX, IdKey, PathChoice, Transport, Wc,
};
use crate::loss::Lost;
use crate::make::os;
use crate::memory::{Regions, Retired, Windows};
use crate::queue_pair::QueuePair;
use crate::requests::{DetachedRequest, Request};
use crate::shared::SharedQueue;
use crate::sleep::Watched;
use core::time::Duration;
use nvmf_memory::Memory;
use nvmf_rdma::slots::Slots;
use nvmf_rdma::{
    Access, Capabilities, CmEvent, Completion, CompletionQueueId, ConnectError, ConnectParameters,
    ListenError, ListenerId, LocalKey, MemoryRegion, PostError, PrivateData, Provider, QueuePairAttributes,
    QueuePairId, QueuePairState, ReceiveRequest, RegisterError, RemoteMemory, RequestId, ResourceError,
    SendRequest, Sge, SharedReceiveQueueId, WakeOn, WcStatus,
};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Elements of a gather list: a capsule and its data. Every place of a send queue has room for all of them, in the
/// device's memory too.
const GATHER_MAX: u32 = 2;
/// RDMA READs outstanding a connection: the most that initiators and targets ask for today.
const READ_DEPTH_MAX: u16 = 128;

/// RDMA through one device, for one thread at a time.
pub struct VerbsProvider {
    // Dropped in this order: whatever names another object comes before it. A bound window names its queue pair and its
    // region.
    pub(crate) windows: Windows,
    pub(crate) queue_pairs: Slots<QueuePair>,
    pub(crate) requests: Slots<Request>,
    /// When the first of them is old, or earlier.
    pub(crate) requests_due: Option<Duration>,
    pub(crate) listeners: Slots<CmId>,
    pub(crate) shared_queues: Vec<SharedQueue>,
    pub(crate) completion_queues: Vec<Queue>,
    pub(crate) regions: Regions,
    /// Gone for the caller, while work that names them is under way.
    pub(crate) retired: Vec<Retired>,
    pub(crate) watched: Watched,
    pub(crate) channel: Arc<Channel>,
    pub(crate) completion_channel: Arc<CompletionChannel>,
    pub(crate) device: Arc<Device>,

    pub(crate) device_name: String,
    pub(crate) config: VerbsConfig,
    pub(crate) path: PathChoice,
    pub(crate) transport: Transport,
    pub(crate) limits: DeviceLimits,
    /// The flag of a receive that invalidated a key.
    pub(crate) invalidate_flag: u32,
    /// Commands have keys of their own.
    pub(crate) has_windows: bool,
    pub(crate) roles: HashMap<IdKey, Role>,
    pub(crate) events: VecDeque<CmEvent>,
    /// Queue pairs that are being set up or torn down.
    pub(crate) attended: Vec<QueuePairId>,
    /// Those with work that waits for the doorbell.
    pub(crate) dirty: Vec<QueuePairId>,
    /// Those whose work failed, and how.
    pub(crate) failed: Vec<(QueuePairId, WcStatus)>,
    /// By the device's number: whose a receive of a shared queue was.
    pub(crate) numbers: HashMap<u32, QueuePairId>,
    pub(crate) now: Duration,
    /// When the connection manager and the device were asked for events.
    pub(crate) events_polled: Option<Duration>,
    /// The caller may have slept since events were asked for.
    pub(crate) slept: bool,
    /// Where completions are taken from the device.
    pub(crate) batch: Vec<Wc>,
    pub(crate) lost: Lost,
}

impl VerbsProvider {
    pub(crate) fn max_sge(&self) -> u32 {
        self.limits.max_sge.min(GATHER_MAX)
    }
}

impl Provider for VerbsProvider {
    type Detached = DetachedRequest;

    fn capabilities(&self) -> Capabilities {
        // An exposure takes a place of its own on the send queue.
        let share = if self.has_windows { 2 } else { 1 };
        Capabilities {
            max_sge: self.max_sge(),
            max_inline: INLINE_MAX as u32,
            max_read_depth: self.limits.max_read_depth.min(READ_DEPTH_MAX),
            max_queue_depth: self.limits.max_queue_depth / share,
            per_command_keys: self.has_windows,
            strict_keys: self.has_windows && !self.limits.is_rxe,
            early_messages_wait: self.transport == Transport::InfiniBand,
            receives_on_demand: false,
            sends_invalidate: self.limits.sends_invalidate,
            packet_len: None,
            completion_is_ack: self.transport == Transport::InfiniBand,
        }
    }

    fn register(&mut self, memory: &Memory, access: Access) -> Result<MemoryRegion, RegisterError> {
        if self.is_lost() {
            return Err(RegisterError::DeviceRemoved);
        }
        self.regions.register(&self.device, memory, access, self.has_windows)
    }

    fn deregister(&mut self, key: LocalKey) {
        self.retire(key);
    }

    fn expose(
        &mut self,
        queue_pair: QueuePairId,
        range: Sge,
        access: Access,
    ) -> Result<RemoteMemory, RegisterError> {
        self.expose_window(queue_pair, range, access)
    }

    fn create_completion_queue(&mut self, capacity: u32) -> Result<CompletionQueueId, ResourceError> {
        if capacity == 0 {
            return Err(ResourceError::Limit { what: "completion queue entries", asked: 0, limit: u32::MAX });
        }
        let name = CompletionQueueId(self.completion_queues.len() as u32);
        self.completion_queues.push(Queue::new());
        Ok(name)
    }

    fn create_shared_receive_queue(&mut self, capacity: u32) -> Result<SharedReceiveQueueId, ResourceError> {
        if self.is_lost() {
            return Err(ResourceError::DeviceRemoved);
        }
        let limit = self.limits.max_shared_receives;
        if capacity > limit {
            return Err(ResourceError::Limit { what: "shared receives", asked: capacity, limit });
        }
        let index =
            u16::try_from(self.shared_queues.len()).map_err(|_| os(io::ErrorKind::OutOfMemory.into()))?;
        self.shared_queues.push(SharedQueue::new(&self.device, index, capacity).map_err(os)?);
        Ok(SharedReceiveQueueId(index.into()))
    }

    fn create_queue_pair(&mut self, attributes: &QueuePairAttributes) -> Result<QueuePairId, ResourceError> {
        self.add_queue_pair(attributes)
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) {
        self.remove_queue_pair(queue_pair);
    }

    fn state(&self, queue_pair: QueuePairId) -> QueuePairState {
        self.queue_pairs.get(queue_pair.0).map_or(QueuePairState::Error, QueuePair::state)
    }

    fn listen(&mut self, address: SocketAddr, backlog: u32) -> Result<(ListenerId, SocketAddr), ListenError> {
        self.start_listening(address, backlog)
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.stop_listening(listener);
    }

    fn connect(
        &mut self,
        now: Duration,
        queue_pair: QueuePairId,
        address: SocketAddr,
        source: Option<SocketAddr>,
        parameters: &ConnectParameters,
    ) -> Result<(), ConnectError> {
        self.now = now;
        self.start_connecting(now, queue_pair, address, source, parameters)
    }

    fn accept(
        &mut self,
        now: Duration,
        request: RequestId,
        queue_pair: QueuePairId,
        parameters: &ConnectParameters,
    ) -> Result<(), ConnectError> {
        self.now = now;
        // What the peer did in the meantime counts.
        self.poll_events();
        self.accept_request(now, request, queue_pair, parameters)
    }

    fn reject(&mut self, request: RequestId, private_data: &PrivateData) {
        self.reject_request(request, private_data);
    }

    fn detach(&mut self, request: RequestId) -> Option<DetachedRequest> {
        self.detach_request(request)
    }

    fn adopt(&mut self, now: Duration, detached: DetachedRequest) -> RequestId {
        self.now = now;
        self.adopt_request(now, detached)
    }

    fn disconnect(&mut self, queue_pair: QueuePairId) {
        self.start_closing(queue_pair);
    }

    fn post_receive(&mut self, queue_pair: QueuePairId, request: ReceiveRequest) -> Result<(), PostError> {
        self.collect_receive(queue_pair, request)
    }

    fn post_shared_receive(
        &mut self,
        queue: SharedReceiveQueueId,
        request: ReceiveRequest,
    ) -> Result<(), PostError> {
        self.collect_shared_receive(queue, request)
    }

    fn post_send(&mut self, queue_pair: QueuePairId, request: SendRequest<'_>) -> Result<(), PostError> {
        self.collect_send(queue_pair, request)
    }

    fn flush(&mut self) {
        self.ring_all();
    }

    fn poll_cq(&mut self, queue: CompletionQueueId, completions: &mut Vec<Completion>) {
        self.ring_all();
        let room = |completions: &Vec<Completion>| completions.capacity() - completions.len();
        let Some(it) = self.completion_queues.get(queue.0 as usize) else { return };
        if it.ready.len() < room(completions) {
            self.take(queue);
        }
        if let Some(it) = self.completion_queues.get_mut(queue.0 as usize) {
            let count = room(completions).min(it.ready.len());
            completions.extend(it.ready.drain(..count));
        }
        self.end_failed();
    }

    fn poll_cm(&mut self, now: Duration) -> Option<CmEvent> {
        self.now = now;
        if self.events.is_empty() {
            self.poll_events_in_time();
            self.end_failed();
            if !self.attended.is_empty() {
                self.look_after();
            }
            self.forget_old_requests();
            if !self.retired.is_empty() {
                self.release_retired();
            }
            self.report_loss();
        }
        self.events.pop_front()
    }

    fn poll_timeout(&self) -> Option<Duration> {
        if self.lost == Lost::Ending { Some(self.now) } else { self.next_deadline() }
    }

    fn arm(&mut self, wake_on: WakeOn) -> bool {
        self.prepare_sleep(wake_on)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watched.fd())
    }
}
