//! The provider: the contract on one side, the device on the other.

use crate::completion::{Name, Queue};
use crate::config::VerbsConfig;
use crate::connection::{DetachedRequest, Request, Role};
use crate::ffi::{
    self, Channel, CmId, CompletionChannel, Device, DeviceLimits, IdKey, PathChoice, QueueSizes, Transport,
};
use crate::memory::{Regions, Registered, Windows};
use crate::open::os;
use crate::outstanding::Work;
use crate::queue_pair::{INLINE_MAX, Phase, QueuePair};
use crate::shared::SharedQueue;
use core::time::Duration;
use nix::sys::epoll::Epoll;
use nvmf_memory::Memory;
use nvmf_rdma::slots::Slots;
use nvmf_rdma::{
    Access, Capabilities, CmEvent, Completion, CompletionQueueId, ConnectError, ConnectParameters,
    ListenError, ListenerId, LocalKey, MemoryRegion, Opcode, Payload, PostError, PrivateData, Provider,
    QueuePairAttributes, QueuePairId, QueuePairState, ReceiveRequest, RegisterError, RemoteKey, RemoteMemory,
    RequestId, ResourceError, SendOperation, SendRequest, Sge, SharedReceiveQueueId, WcStatus,
};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;

/// Elements of a gather list, if the device takes so many. Every place of a send queue has room for all of them, in the device's
/// memory too.
const GATHER_MAX: u32 = 4;
/// RDMA READs outstanding a connection: what initiators and targets of today ask for at the most.
const READ_DEPTH_MAX: u16 = 128;
/// How often the connection manager is asked while the provider is busy: a system call that the data path need not pay for.
const LISTEN_INTERVAL: Duration = Duration::from_micros(500);

/// RDMA through one device, for one thread.
pub struct VerbsProvider {
    // Dropped in this order: whatever names another object comes before it. A bound window names its queue pair and its region.
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
    pub(crate) epoll: Epoll,
    pub(crate) channel: Arc<Channel>,
    pub(crate) completion_channel: Rc<CompletionChannel>,
    pub(crate) device: Rc<Device>,

    pub(crate) device_name: String,
    pub(crate) config: VerbsConfig,
    pub(crate) path: PathChoice,
    pub(crate) transport: Transport,
    pub(crate) limits: DeviceLimits,
    /// How a receive says that it invalidated a key.
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
    pub(crate) heard: Option<Duration>,
}

/// A region whose registration ended while work was under way.
pub(crate) struct Retired {
    pub(crate) _registered: Registered,
    /// Its name, which is nothing's any more.
    pub(crate) key: LocalKey,
    /// How far each queue pair must come: its sends, and the receives that land here.
    pub(crate) queue_pairs: Vec<(QueuePairId, u32, Option<u32>)>,
}

impl VerbsProvider {
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

    fn gather(&self, payload: &[Sge]) -> Result<(), PostError> {
        let ok = payload.len() <= self.max_sge() as usize
            && payload.iter().all(|&sge| self.regions.source(sge).is_some())
            && payload.iter().try_fold(0u32, |len, sge| len.checked_add(sge.len)).is_some();
        ok.then_some(()).ok_or(PostError::Invalid)
    }

    pub(crate) fn max_sge(&self) -> u32 {
        self.limits.max_sge.min(GATHER_MAX)
    }
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
            .map(|qp| (qp, qp.receives.end_of(key)))
            .filter(|(qp, receives)| receives.is_some() || !qp.sends.is_empty())
            .map(|(qp, receives)| (qp.name, qp.sends.end(), receives))
            .collect();
        let retired = Retired { _registered: registered, key, queue_pairs };
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
        if qp.sends.hidden() >= limit || !matches!(qp.phase, Phase::Ready) || qp.is_broken() {
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
        if capacity == 0 {
            return Err(ResourceError::Limit { what: "completion queue entries", asked: 0, limit: u32::MAX });
        }
        let name = CompletionQueueId(self.completion_queues.len() as u32);
        self.completion_queues.push(Queue::new());
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
        let shared = attributes.shared_receive_queue.map(|name| self.shared_queues.get(name.0 as usize));
        let shared = shared.map(|found| found.ok_or(ResourceError::NoSuchQueue)).transpose()?;
        let sends = attributes.max_send.max(1) * if self.has_windows { 2 } else { 1 };
        let receives = if shared.is_some() { 0 } else { attributes.max_receive.max(1) };
        // Receives of a shared queue complete with whichever queue pair their message came to.
        let heard = shared.map_or(receives, SharedQueue::capacity);
        let (send_cq, send_claim) = self.claim(attributes.send_cq, sends)?;
        let (receive_cq, receive_claim) = match self.claim(attributes.receive_cq, heard) {
            Ok(claimed) => claimed,
            Err(error) => {
                self.release(send_claim);
                return Err(error);
            }
        };
        let claims = [send_claim, receive_claim];
        let sizes = QueueSizes { sends, receives, gather: self.max_sge(), inline: INLINE_MAX as u32 };
        let made = self.make_queue_pair(&attributes, [&send_cq, &receive_cq], sizes, claims);
        if made.is_err() {
            claims.into_iter().for_each(|claim| self.release(claim));
        }
        made
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
        let claims = qp.claims;
        drop(qp);
        // What the device completed of it takes places until it is read, which the next queue pair may count on.
        claims.into_iter().for_each(|claim| self.take_all(claim.queue()));
        claims.into_iter().for_each(|claim| self.release(claim));
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
        self.now = now;
        self.adopt_request(now, detached)
    }

    fn disconnect(&mut self, queue_pair: QueuePairId) {
        self.start_closing(queue_pair);
    }

    fn post_receive(&mut self, queue_pair: QueuePairId, request: ReceiveRequest) -> Result<(), PostError> {
        let buffer = self.regions.sink(request.buffer);
        let qp = self.queue_pairs.get_mut(queue_pair.0).ok_or(PostError::NoSuchQueue)?;
        if matches!(qp.state(), QueuePairState::Error) || qp.is_broken() {
            return Err(PostError::NotReady);
        }
        let buffer = buffer.ok_or(PostError::Invalid)?;
        if qp.receives.is_full() {
            return Err(PostError::Full);
        }
        let hw = qp.hw.as_mut().ok_or(PostError::NotReady)?;
        let (id, opcode, len) = (request.id, Opcode::Receive, request.buffer.len);
        let sink = Some(request.buffer.local_key);
        let sequence =
            qp.receives.push(Work::Posted { id, opcode, signaled: true, len, invalidates: None, sink });
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
        queue.post(request.id, buffer, request.buffer.local_key)?;
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
        if !matches!(qp.phase, Phase::Ready) || qp.is_broken() {
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
        let staged = inline.filter(|bytes| !bytes.is_empty()).map(|bytes| qp.staging.stage(bytes));
        let gathered = list.iter().filter(|sge| sge.len > 0).filter_map(|&sge| self.regions.source(sge));
        let elements = staged.into_iter().chain(sink.filter(|sge| sge.length > 0)).chain(gathered);
        let len = inline.map_or(0, <[u8]>::len) as u32
            + list.iter().map(|sge| sge.len).sum::<u32>()
            + sink.map_or(0, |sge| sge.length);
        // In silence no more than half of the queue: the other half's room comes back while this is under way.
        let quiet = !signaled && qp.silent + 1 < qp.attributes.max_send.div_ceil(2);
        qp.silent = if quiet { qp.silent + 1 } else { 0 };
        let sequence = qp.sends.push(Work::Posted { id, opcode, signaled, len, invalidates, sink: None });
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
            self.forget_old_requests();
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
            if queue.arm().is_err() {
                return false;
            }
        }
        for at in 0..self.completion_queues.len() {
            self.take_all(CompletionQueueId(at as u32));
        }
        self.hear();
        self.end_failed();
        // A queue pair that has nothing to flush says nothing when it is over.
        self.look_after();
        // What wakes the sleeper is heard at the first poll.
        self.heard = None;
        let nothing = self.failed.is_empty() && self.events.is_empty();
        nothing && self.completion_queues.iter().all(|queue| queue.ready.is_empty())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.0.as_fd())
    }
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
