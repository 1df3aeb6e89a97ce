//! The provider: the contract on one side, the device on the other.

use crate::completion::{Name, Queue, status};
use crate::config::{OpenError, VerbsConfig};
use crate::connection::{DetachedRequest, Request, Role};
use crate::ffi::{
    self, AsyncNotice, Channel, CmId, CompletionChannel, CompletionQueue, Device, DeviceLimits, IdKey,
    PathChoice, QueueSizes, Region, Transport, Wc,
};
use crate::memory::{Regions, Registered, Windows};
use crate::outstanding::{Work, status_of_earlier};
use crate::queue_pair::{End, INLINE_MAX, Phase, QueuePair};
use crate::shared::SharedQueue;
use core::time::Duration;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nvmf_memory::Memory;
use nvmf_rdma::slots::Slots;
use nvmf_rdma::{
    Access, Capabilities, CmEvent, Completion, CompletionQueueId, ConnectError, ConnectParameters,
    DisconnectCause, ListenError, ListenerId, LocalKey, MemoryRegion, Opcode, Payload, PostError,
    PrivateData, Provider, QueuePairAttributes, QueuePairId, QueuePairState, ReceiveRequest, RegisterError,
    RemoteKey, RemoteMemory, RequestId, ResourceError, SendOperation, SendRequest, Sge, SharedReceiveQueueId,
    WcStatus,
};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;

/// Elements of a gather list, if the device takes so many.
const GATHER_MAX: u32 = 16;
/// RDMA READs outstanding a connection: what initiators and targets of today ask for at the most.
const READ_DEPTH_MAX: u16 = 128;
/// How often the connection manager is asked while the provider is busy: a system call that the data path need not pay for.
const LISTEN_INTERVAL: Duration = Duration::from_micros(500);
/// How long the reason may be waited for when work was flushed.
const REASON_TIME_MAX: Duration = Duration::from_millis(200);
/// Completions taken from the device at once.
const BATCH: usize = 32;

/// RDMA through one device, for one thread.
pub struct VerbsProvider {
    // Dropped in this order: whatever names another object comes before it. A bound window names its queue pair and its region.
    windows: Windows,
    pub(crate) queue_pairs: Slots<QueuePair>,
    pub(crate) requests: Slots<Request>,
    pub(crate) listeners: Slots<CmId>,
    shared_queues: Vec<SharedQueue>,
    completion_queues: Vec<Queue>,
    regions: Regions,
    /// Gone for the caller, while work that names them is under way.
    retired: Vec<Retired>,
    epoll: Epoll,
    pub(crate) channel: Arc<Channel>,
    completion_channel: Rc<CompletionChannel>,
    pub(crate) device: Rc<Device>,

    pub(crate) device_name: String,
    pub(crate) config: VerbsConfig,
    pub(crate) path: PathChoice,
    pub(crate) transport: Transport,
    limits: DeviceLimits,
    /// How a receive says that it invalidated a key.
    invalidate_flag: u32,
    /// Commands have keys of their own.
    has_windows: bool,
    pub(crate) roles: HashMap<IdKey, Role>,
    pub(crate) events: VecDeque<CmEvent>,
    /// Queue pairs that are being set up or torn down.
    pub(crate) attended: Vec<QueuePairId>,
    /// Those with work that waits for the doorbell.
    dirty: Vec<QueuePairId>,
    /// Those whose work failed, and how.
    failed: Vec<(QueuePairId, WcStatus)>,
    /// By the device's number: whose a receive of a shared queue was.
    numbers: HashMap<u32, QueuePairId>,
    pub(crate) now: Duration,
    heard: Option<Duration>,
}

/// A region whose registration ended while work was under way.
struct Retired {
    _registered: Registered,
    /// How far each queue pair must come, and each shared queue.
    queue_pairs: Vec<(QueuePairId, u32, u32)>,
    shared_queues: Vec<u64>,
}

impl VerbsProvider {
    /// Opens the device.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn new(config: VerbsConfig) -> Result<Self, OpenError> {
        let name = config.device.clone();
        let os = |what| {
            let device = name.clone();
            move |source| OpenError::Os { device, what, source }
        };
        let Some(device) = Device::open(&config.device)?.map_err(os("opening it"))? else {
            let there = ffi::device_names()?.join(", ");
            return Err(OpenError::NoDevice {
                name,
                there: if there.is_empty() { "none".to_owned() } else { there },
            });
        };
        let limits = device.limits().map_err(os("asking for its limits"))?;
        let completion_channel =
            CompletionChannel::new(&device).map_err(os("making a completion channel"))?;
        let channel = Channel::new()?
            .map_err(os("asking the connection manager (is rdma_ucm loaded? modprobe rdma_ucm)"))?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|e| os("making an epoll descriptor")(e.into()))?;
        for fd in [completion_channel.fd(), channel.fd(), device.async_fd()] {
            let added = epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0));
            added.map_err(|e| os("watching its descriptors")(e.into()))?;
        }
        let path = PathChoice {
            port: config.port,
            pkey_index: config.pkey_index,
            gid_index: config.gid_index,
            traffic_class: config.traffic_class,
            mtu: config.path_mtu.map(|mtu| mtu as u8),
            min_rnr_timer: config.min_rnr_timer,
        };
        Ok(Self {
            queue_pairs: Slots::new(u16::MAX - 1),
            requests: Slots::new(u16::MAX - 1),
            listeners: Slots::new(1024),
            shared_queues: Vec::new(),
            completion_queues: Vec::new(),
            windows: Windows::default(),
            regions: Regions::new(&limits),
            retired: Vec::new(),
            epoll,
            channel,
            completion_channel,
            transport: device.transport(),
            invalidate_flag: if limits.is_rxe { WITH_INVALIDATE_RXE } else { WITH_INVALIDATE },
            has_windows: limits.memory_windows && config.memory_windows,
            device,
            device_name: config.device.clone(),
            config,
            path,
            limits,
            roles: HashMap::new(),
            events: VecDeque::new(),
            attended: Vec::new(),
            dirty: Vec::new(),
            failed: Vec::new(),
            numbers: HashMap::new(),
            now: Duration::ZERO,
            heard: None,
        })
    }

    pub(crate) fn attend(&mut self, name: QueuePairId) {
        if !self.attended.contains(&name) {
            self.attended.push(name);
        }
    }

    /// Rings one queue pair's doorbells.
    pub(crate) fn ring(&mut self, name: QueuePairId) {
        if let Some(qp) = self.queue_pairs.get_mut(name.0)
            && qp.is_dirty
            && !qp.ring()
        {
            self.failed.push((name, WcStatus::LocalProtection));
        }
    }

    fn ring_all(&mut self) {
        while let Some(name) = self.dirty.pop() {
            self.ring(name);
        }
        for queue in &mut self.shared_queues {
            queue.ring();
        }
    }

    fn mark_dirty(dirty: &mut Vec<QueuePairId>, qp: &mut QueuePair) {
        if !qp.is_dirty {
            qp.is_dirty = true;
            dirty.push(qp.name);
        }
    }

    pub(crate) fn on_device_notice(&mut self, notice: AsyncNotice) {
        match notice {
            AsyncNotice::DeviceFatal => {
                let all: Vec<_> = self.queue_pairs.keys().map(QueuePairId).collect();
                for name in all {
                    self.end(name, End::Disconnected(DisconnectCause::DeviceRemoved));
                }
            }
            AsyncNotice::QueuePair(number) => {
                if let Some(&name) = self.numbers.get(&number)
                    && matches!(self.state(name), QueuePairState::Ready)
                {
                    self.end(
                        name,
                        End::Disconnected(DisconnectCause::PeerViolation(
                            "the device reported an access or request error",
                        )),
                    );
                }
            }
            // The transport retries until its own time is over; the port may be back before.
            AsyncNotice::PortDown | AsyncNotice::PortUp | AsyncNotice::Other => {}
        }
    }

    /// Takes what the device has completed of a queue pair's queues.
    pub(crate) fn reap(&mut self, name: QueuePairId) {
        let Some(qp) = self.queue_pairs.get(name.0) else { return };
        let (send, receive) = (qp.attributes.send_cq, qp.attributes.receive_cq);
        self.take_all(send);
        if receive != send {
            self.take_all(receive);
        }
    }

    fn take_all(&mut self, queue: CompletionQueueId) {
        while self.take(queue) == BATCH {}
    }

    /// Takes a batch from the device into the queue's store; how many.
    fn take(&mut self, queue: CompletionQueueId) -> usize {
        let mut batch = [Wc::default(); BATCH];
        let Some(it) = self.completion_queues.get(queue.0 as usize) else { return 0 };
        let count = it.hw.poll(&mut batch);
        for wc in &batch[..count] {
            self.on_completion(queue, wc);
        }
        count
    }

    fn on_completion(&mut self, queue: CompletionQueueId, wc: &Wc) {
        let status = status(wc);
        let (name, sequence, is_send) = match Name::decode(wc.wr_id) {
            Name::Send(name, sequence) => (name, sequence, true),
            Name::Receive(name, sequence) => (name, sequence, false),
            Name::Shared(shared, slot) => return self.on_shared(queue, wc, shared, slot, status),
        };
        // A queue pair that was destroyed: nobody waits for it.
        let Some(qp) = self.queue_pairs.get_mut(name.0) else { return };
        let Some(ready) = self.completion_queues.get_mut(queue.0 as usize).map(|it| &mut it.ready) else {
            return;
        };
        let outstanding = if is_send { &mut qp.sends } else { &mut qp.receives };
        let Some(count) = outstanding.up_to(sequence) else { return };
        for at in (0..count).rev() {
            let Some(work) = outstanding.pop() else { break };
            let status = if at == 0 { status } else { status_of_earlier(status) };
            let invalidated =
                invalidated(wc, self.invalidate_flag).filter(|_| status.is_success() && !is_send);
            let completion = finished(name, work, status, wc.byte_len, invalidated);
            if let Work::Posted { invalidates: Some(key), .. } = work {
                self.windows.invalidated(key);
            }
            if let Some(key) = invalidated {
                self.windows.invalidated(key);
            }
            ready.extend(completion);
        }
        if !status.is_success() && matches!(qp.phase, Phase::Ready | Phase::Closing | Phase::Farewell) {
            self.failed.push((name, status));
        }
    }

    fn on_shared(&mut self, queue: CompletionQueueId, wc: &Wc, shared: u16, slot: u32, status: WcStatus) {
        let Some(id) = self.shared_queues.get_mut(usize::from(shared)).and_then(|it| it.take(slot)) else {
            return;
        };
        let Some(&name) = self.numbers.get(&wc.qp_num) else { return };
        let invalidated = invalidated(wc, self.invalidate_flag).filter(|_| status.is_success());
        if let Some(key) = invalidated {
            self.windows.invalidated(key);
        }
        if let Some(it) = self.completion_queues.get_mut(queue.0 as usize) {
            let (queue_pair, opcode, byte_len) = (name, Opcode::Receive, wc.byte_len);
            it.ready.push_back(Completion { id, queue_pair, opcode, status, byte_len, invalidated });
        }
        if !status.is_success() {
            self.failed.push((name, status));
        }
    }

    /// Ends the connections whose work failed.
    fn end_failed(&mut self) {
        if self.failed.is_empty() {
            return;
        }
        // The connection manager knows better why work was flushed.
        self.hear();
        while let Some((name, status)) = self.failed.pop() {
            let now = self.now;
            let Some(qp) = self.queue_pairs.get_mut(name.0) else { continue };
            match qp.phase {
                Phase::Ready if status == WcStatus::Flushed => {
                    qp.deadline = qp.deadline.or(Some(now + REASON_TIME_MAX));
                    self.attend(name);
                }
                Phase::Ready => self.end(name, End::Disconnected(DisconnectCause::Broken)),
                Phase::Closing | Phase::Farewell => self.end(name, End::Disconnected(DisconnectCause::Local)),
                _ => {}
            }
        }
    }

    /// Completes, as flushed, what the device never took or never gave back.
    pub(crate) fn flush_untaken(&mut self, name: QueuePairId) {
        let Some(qp) = self.queue_pairs.get_mut(name.0) else { return };
        let queues = [(&mut qp.sends, qp.attributes.send_cq), (&mut qp.receives, qp.attributes.receive_cq)];
        for (outstanding, queue) in queues {
            let Some(it) = self.completion_queues.get_mut(queue.0 as usize) else { continue };
            while let Some(work) = outstanding.pop() {
                it.ready.extend(finished(name, work, WcStatus::Flushed, 0, None));
            }
        }
    }

    /// Takes the queue pair from a device that does not flush it.
    pub(crate) fn cut_off(&mut self, name: QueuePairId) {
        self.windows.forget_queue_pair(name);
        if let Some(hw) = self.queue_pairs.get_mut(name.0).and_then(|qp| qp.hw.take()) {
            self.numbers.remove(&hw.number());
        }
    }

    /// Lets go of regions that no work names any more.
    fn release_retired(&mut self) {
        let (queue_pairs, shared_queues) = (&self.queue_pairs, &self.shared_queues);
        self.retired.retain(|it| {
            let busy = |&(name, sends, receives): &(QueuePairId, u32, u32)| {
                queue_pairs.get(name.0).is_some_and(|qp: &QueuePair| {
                    !qp.sends.has_reached(sends) || !qp.receives.has_reached(receives)
                })
            };
            let shared = it.shared_queues.iter().zip(shared_queues);
            it.queue_pairs.iter().any(busy)
                || shared.into_iter().any(|(&before, queue)| queue.has_before(before))
        });
    }

    fn gather(&self, payload: &[Sge]) -> Result<(), PostError> {
        let ok = payload.len() <= self.max_sge() as usize
            && payload.iter().all(|&sge| self.regions.source(sge).is_some());
        ok.then_some(()).ok_or(PostError::Invalid)
    }

    fn max_sge(&self) -> u32 {
        self.limits.max_sge.min(GATHER_MAX)
    }
}

/// `IBV_WC_WITH_INV`
const WITH_INVALIDATE: u32 = 1 << 3;
/// The kernel's own `IB_WC_WITH_INVALIDATE`, which rxe hands to userspace as it is.
const WITH_INVALIDATE_RXE: u32 = 1 << 2;

/// The key that the peer's SEND invalidated, if `flag` says that it did.
fn invalidated(wc: &Wc, flag: u32) -> Option<RemoteKey> {
    (wc.wc_flags & flag != 0).then_some(RemoteKey(wc.invalidated_rkey))
}

/// What the caller hears of a request that is over: nothing of an unsignalled success, and nothing of our own.
fn finished(
    queue_pair: QueuePairId,
    work: Work,
    status: WcStatus,
    byte_len: u32,
    invalidated: Option<RemoteKey>,
) -> Option<Completion> {
    let Work::Posted { id, opcode, signaled, len, .. } = work else { return None };
    let byte_len = if opcode == Opcode::Receive { byte_len } else { len };
    (signaled || !status.is_success()).then_some(Completion {
        id,
        queue_pair,
        opcode,
        status,
        byte_len,
        invalidated,
    })
}

impl Provider for VerbsProvider {
    type Detached = DetachedRequest;

    fn capabilities(&self) -> Capabilities {
        // Every exposure takes a place of its own on the send queue.
        let share = if self.has_windows { 2 } else { 1 };
        Capabilities {
            max_sge: self.max_sge(),
            max_inline: INLINE_MAX as u32,
            max_read_depth: self.limits.max_read_depth.min(READ_DEPTH_MAX),
            max_queue_depth: self.limits.max_queue_depth / share,
            per_command_keys: self.has_windows,
            strict_keys: self.has_windows && !self.limits.is_rxe,
            early_messages_wait: self.transport == Transport::InfiniBand,
            remote_invalidate: self.has_windows,
            read_sink_needs_remote_write: self.transport == Transport::Iwarp,
            completion_is_ack: self.transport == Transport::InfiniBand,
        }
    }

    fn register(&mut self, memory: &Memory, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.regions.register(&self.device, memory, access, self.has_windows)
    }

    fn deregister(&mut self, key: LocalKey) {
        // Work that waits for the doorbell names regions and windows: the device must have seen it before they go.
        self.ring_all();
        self.windows.forget_region(key);
        let Some(registered) = self.regions.remove(key) else { return };
        // A standing key must be dead at once. Work of ours that still names the region fails then; it touches nothing.
        let standing =
            registered.access.allows(Access::REMOTE_READ) || registered.access.allows(Access::REMOTE_WRITE);
        let queue_pairs: Vec<_> = self
            .queue_pairs
            .keys()
            .filter_map(|key| self.queue_pairs.get(key))
            .filter(|qp| !qp.sends.is_empty() || !qp.receives.is_empty())
            .map(|qp| (qp.name, qp.sends.end(), qp.receives.end()))
            .collect();
        let shared_queues: Vec<_> = self.shared_queues.iter().map(SharedQueue::posted).collect();
        let retired = Retired { _registered: registered, queue_pairs, shared_queues };
        if !standing {
            self.retired.push(retired);
            self.release_retired();
        }
    }

    fn expose(
        &mut self,
        queue_pair: QueuePairId,
        range: Sge,
        access: Access,
    ) -> Result<RemoteMemory, RegisterError> {
        let registered = self.regions.exposable(range, access)?;
        let address = registered.region.address() + range.offset as u64;
        let qp = self.queue_pairs.get_mut(queue_pair.0).ok_or(RegisterError::OutOfBounds)?;
        if !self.has_windows {
            // The region's own key, which the peer keeps: see the crate's documentation.
            let allowed = registered.access.allows(access);
            let key = RemoteKey(registered.region.remote_key());
            return allowed
                .then_some(RemoteMemory { key, address, len: range.len })
                .ok_or(RegisterError::Access);
        }
        let limit = qp.attributes.max_send as usize;
        let no_key = RegisterError::NoKey { limit };
        if qp.sends.hidden() >= limit || !matches!(qp.phase, Phase::Ready) {
            return Err(no_key);
        }
        let Some(hw) = &mut qp.hw else { return Err(no_key) };
        let (key, window) = self.windows.show(&self.device, range.local_key, queue_pair)?;
        let region = &registered.region;
        // A window of no bytes is not a window: it would never be used, and binding it is an error.
        let len = range.len.max(1);
        let operation = ffi::WorkOperation::Bind { window, key, region, address, len, access };
        let id = Name::Send(queue_pair, qp.sends.push(Work::Bind)).encode();
        hw.push_send(&ffi::WorkRequest { id, operation, signaled: false, inline: false }, None);
        qp.silent += 1;
        Self::mark_dirty(&mut self.dirty, qp);
        Ok(RemoteMemory { key: RemoteKey(key), address, len: range.len })
    }

    fn create_completion_queue(&mut self, capacity: u32) -> Result<CompletionQueueId, ResourceError> {
        // Bindings complete here too when they fail.
        let entries = if self.has_windows { capacity.saturating_mul(2) } else { capacity };
        let limit = self.limits.max_completions;
        if capacity == 0 || capacity > limit {
            return Err(ResourceError::Limit { what: "completion queue entries", asked: capacity, limit });
        }
        let hw = CompletionQueue::new(&self.completion_channel, entries.min(limit)).map_err(os)?;
        let name = CompletionQueueId(self.completion_queues.len() as u32);
        self.completion_queues.push(Queue { hw, ready: VecDeque::with_capacity(capacity as usize + BATCH) });
        Ok(name)
    }

    fn create_shared_receive_queue(&mut self, capacity: u32) -> Result<SharedReceiveQueueId, ResourceError> {
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
        let attributes = *attributes;
        let limit = self.capabilities().max_queue_depth;
        for (what, asked) in
            [("send queue entries", attributes.max_send), ("receive queue entries", attributes.max_receive)]
        {
            if asked > limit {
                return Err(ResourceError::Limit { what, asked, limit });
            }
        }
        let cq = |name: CompletionQueueId| {
            self.completion_queues
                .get(name.0 as usize)
                .map(|it| Rc::clone(&it.hw))
                .ok_or(ResourceError::NoSuchQueue)
        };
        let (send_cq, receive_cq) = (cq(attributes.send_cq)?, cq(attributes.receive_cq)?);
        let shared = attributes.shared_receive_queue.map(|name| self.shared_queues.get(name.0 as usize));
        let shared = shared.map(|found| found.ok_or(ResourceError::NoSuchQueue)).transpose()?;
        let sends = attributes.max_send.max(1) * if self.has_windows { 2 } else { 1 };
        let receives = if shared.is_some() { 0 } else { attributes.max_receive.max(1) };
        let sizes = QueueSizes { sends, receives, gather: self.max_sge(), inline: INLINE_MAX as u32 };
        let shared = shared.map(|it| &it.hw);
        let hw = ffi::QueuePair::new(&self.device, &send_cq, &receive_cq, shared, sizes).map_err(os)?;
        if self.transport == Transport::InfiniBand {
            hw.initialise(self.path).map_err(os)?;
        }
        let memory = Memory::alloc(QueuePair::staging_len(attributes.max_send))
            .map_err(|_| os(io::ErrorKind::OutOfMemory.into()))?;
        let staging = Region::register(&self.device, &memory, Access::LOCAL_READ, false).map_err(os)?;
        let (number, windows) = (hw.number(), self.has_windows);
        let name = self
            .queue_pairs
            .insert(|name| QueuePair::new(QueuePairId(name), attributes, hw, staging, windows));
        let name = QueuePairId(name.ok_or_else(|| os(io::ErrorKind::OutOfMemory.into()))?);
        self.numbers.insert(number, name);
        Ok(name)
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) {
        let Some(mut qp) = self.queue_pairs.remove(queue_pair.0) else { return };
        // Before the queue pair, which a bound window keeps from being destroyed.
        self.windows.forget_queue_pair(queue_pair);
        if let Some(hw) = qp.hw.take() {
            self.numbers.remove(&hw.number());
            if let Some(id) = &qp.id {
                let _ = id.disconnect();
            }
        }
        self.forget_id(qp.id.as_ref().map(CmId::key));
        self.events.retain(|event| !is_about(event, queue_pair));
        for queue in &mut self.completion_queues {
            queue.ready.retain(|completion| completion.queue_pair != queue_pair);
        }
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
        self.start_connecting(now, queue_pair, address, source, parameters)
    }

    fn accept(
        &mut self,
        now: Duration,
        request: RequestId,
        queue_pair: QueuePairId,
        parameters: &ConnectParameters,
    ) -> Result<(), ConnectError> {
        // What the peer did in the meantime counts.
        self.hear();
        self.accept_request(now, request, queue_pair, parameters)
    }

    fn reject(&mut self, request: RequestId, private_data: &PrivateData) {
        self.reject_request(request, private_data);
    }

    fn detach(&mut self, request: RequestId) -> Option<DetachedRequest> {
        self.detach_request(request)
    }

    fn adopt(&mut self, now: Duration, detached: DetachedRequest) -> RequestId {
        self.adopt_request(now, detached)
    }

    fn disconnect(&mut self, queue_pair: QueuePairId) {
        if let Some(hw) = self.queue_pairs.get_mut(queue_pair.0).and_then(|qp| qp.hw.as_mut()) {
            hw.signal_last();
        }
        self.start_closing(queue_pair);
    }

    fn post_receive(&mut self, queue_pair: QueuePairId, request: ReceiveRequest) -> Result<(), PostError> {
        let buffer = self.regions.sink(request.buffer);
        let qp = self.queue_pairs.get_mut(queue_pair.0).ok_or(PostError::NoSuchQueue)?;
        if matches!(qp.state(), QueuePairState::Error) {
            return Err(PostError::NotReady);
        }
        let buffer = buffer.ok_or(PostError::Invalid)?;
        if qp.receives.is_full() {
            return Err(PostError::Full);
        }
        let hw = qp.hw.as_mut().ok_or(PostError::NotReady)?;
        let (id, opcode, len) = (request.id, Opcode::Receive, request.buffer.len);
        let sequence = qp.receives.push(Work::Posted { id, opcode, signaled: true, len, invalidates: None });
        hw.push_receive(Name::Receive(queue_pair, sequence).encode(), buffer);
        Self::mark_dirty(&mut self.dirty, qp);
        // On iWARP a message that finds no receive costs the connection: the device must know of it before the peer can.
        if self.transport == Transport::Iwarp && !qp.ring_receives() {
            self.failed.push((queue_pair, WcStatus::LocalProtection));
        }
        Ok(())
    }

    fn post_shared_receive(
        &mut self,
        queue: SharedReceiveQueueId,
        request: ReceiveRequest,
    ) -> Result<(), PostError> {
        let buffer = self.regions.sink(request.buffer).ok_or(PostError::Invalid)?;
        let queue = self.shared_queues.get_mut(queue.0 as usize).ok_or(PostError::NoSuchQueue)?;
        queue.post(request.id, buffer)?;
        if self.transport == Transport::Iwarp {
            queue.ring();
        }
        Ok(())
    }

    fn post_send(&mut self, queue_pair: QueuePairId, request: SendRequest<'_>) -> Result<(), PostError> {
        let SendRequest { id, operation, signaled } = request;
        if let SendOperation::Send { payload: Payload::Gather(list), .. }
        | SendOperation::Write { payload: Payload::Gather(list), .. } = operation
        {
            self.gather(list)?;
        }
        let qp = self.queue_pairs.get_mut(queue_pair.0).ok_or(PostError::NoSuchQueue)?;
        if !matches!(qp.phase, Phase::Ready) || qp.hw.is_none() {
            return Err(PostError::NotReady);
        }
        if qp.sends.is_full() {
            return Err(PostError::Full);
        }
        let (mut inline, mut list, mut sink, mut invalidates) = (None, &[][..], None, None);
        let (opcode, work) = match operation {
            SendOperation::Send { payload, invalidate, solicited } => {
                (inline, list) = split(payload)?;
                let invalidate = invalidate.map(|key| key.0);
                (Opcode::Send, ffi::WorkOperation::Send { invalidate, solicited })
            }
            SendOperation::Write { payload, remote } => {
                (inline, list) = split(payload)?;
                (Opcode::Write, ffi::WorkOperation::Write { address: remote.address, key: remote.key.0 })
            }
            SendOperation::Read { into, remote } => {
                if qp.read_depth == 0 {
                    return Err(PostError::Invalid);
                }
                sink = Some(self.regions.sink(into).ok_or(PostError::Invalid)?);
                (Opcode::Read, ffi::WorkOperation::Read { address: remote.address, key: remote.key.0 })
            }
            SendOperation::LocalInvalidate { key } => {
                if !self.windows.is_shown(key, queue_pair) {
                    return Err(PostError::Invalid);
                }
                invalidates = Some(key);
                (Opcode::LocalInvalidate, ffi::WorkOperation::LocalInvalidate { key: key.0 })
            }
        };
        let staged = inline.filter(|bytes| !bytes.is_empty()).map(|bytes| qp.stage(bytes));
        let gathered = list.iter().filter(|sge| sge.len > 0).filter_map(|&sge| self.regions.source(sge));
        let elements = staged.into_iter().chain(sink.filter(|sge| sge.length > 0)).chain(gathered);
        let len = inline.map_or(0, <[u8]>::len) as u32
            + list.iter().map(|sge| sge.len).sum::<u32>()
            + sink.map_or(0, |sge| sge.length);
        // A queue full of sends that complete in silence would never have room again.
        let quiet = !signaled && qp.silent + 1 < qp.attributes.max_send.div_ceil(2);
        qp.silent = if quiet { qp.silent + 1 } else { 0 };
        let sequence = qp.sends.push(Work::Posted { id, opcode, signaled, len, invalidates });
        if let Some(hw) = &mut qp.hw {
            let id = Name::Send(queue_pair, sequence).encode();
            let inline = staged.is_some_and(|bytes| bytes.length <= hw.inline_max());
            hw.push_send(&ffi::WorkRequest { id, operation: work, signaled: !quiet, inline }, elements);
        }
        Self::mark_dirty(&mut self.dirty, qp);
        Ok(())
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
            if self.heard.is_none_or(|heard| now.saturating_sub(heard) >= LISTEN_INTERVAL) {
                self.heard = Some(now);
                self.hear();
            }
            self.end_failed();
            if !self.attended.is_empty() {
                self.look_after();
            }
            if !self.retired.is_empty() {
                self.release_retired();
            }
        }
        self.events.pop_front()
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.next_deadline()
    }

    fn arm(&mut self) -> bool {
        self.ring_all();
        self.completion_channel.drain();
        for queue in &self.completion_queues {
            // A queue that cannot be armed must be polled.
            if queue.hw.arm().is_err() {
                return false;
            }
        }
        for at in 0..self.completion_queues.len() {
            self.take_all(CompletionQueueId(at as u32));
        }
        self.hear();
        // What wakes the sleeper is heard at the first poll.
        self.heard = None;
        let nothing = self.failed.is_empty() && self.events.is_empty();
        nothing && self.completion_queues.iter().all(|queue| queue.ready.is_empty())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.0.as_fd())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn os(error: io::Error) -> ResourceError {
    ResourceError::Os(error.raw_os_error().unwrap_or(libc::EIO))
}

/// The inline bytes of a payload, or its elements.
fn split(payload: Payload<'_>) -> Result<(Option<&[u8]>, &[Sge]), PostError> {
    match payload {
        Payload::Inline(bytes) if bytes.len() > INLINE_MAX => Err(PostError::Invalid),
        Payload::Inline(bytes) => Ok((Some(bytes), &[])),
        Payload::Gather(list) => Ok((None, list)),
    }
}

fn is_about(event: &CmEvent, name: QueuePairId) -> bool {
    match event {
        CmEvent::Established { queue_pair, .. }
        | CmEvent::ConnectFailed { queue_pair, .. }
        | CmEvent::Disconnected { queue_pair, .. } => *queue_pair == name,
        CmEvent::ConnectRequest { .. } => false,
    }
}
