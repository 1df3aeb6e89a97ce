//! One connection: slots, credits, and a list for every kind of wait.

use super::buffers::{Buffers, Class};
use super::listener::Terms;
use super::name::{Kind, Place};
use super::owners::Owner;
use super::receives::ReceiveSlots;
use super::request::{Request, Stage};
use super::resources::{DeferredAction, Resources};
use crate::limits::SPARE_SLOTS;
use core::time::Duration;
use nvmf_block::Backend;
use nvmf_memory::BufferIndex;
use nvmf_rdma::{
    PostError, Provider, QueuePairAttributes, QueuePairId, ReceiveRequest, ResourceError, SendRequest,
};
use nvmf_subsystem::{Association, AssociationKey, ControllerType, Link, Qid, Queue as Engine, Response};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tracing::Span;
use tracing::field::Empty;

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueState {
    /// Accepted, not yet established.
    Accepting,
    /// Established.
    Live,
    /// Being disconnected.
    Closing,
    /// The connection is gone; operations that devices have still use our memory.
    Closed,
}

/// One connection.
pub struct Queue {
    pub(super) index: u32,
    pub(super) qp: QueuePairId,
    pub(super) state: QueueState,
    pub(super) engine: Engine,
    pub(super) terms: Terms,
    pub(super) span: Span,
    pub(super) peer: IpAddr,
    /// Whose share of the buffers it uses.
    pub(super) owner: Owner,
    /// When it was accepted.
    accepted: Duration,
    /// Set once the registry admitted the queue: its end must be reported there.
    pub(super) admitted: Option<(Arc<Association>, Qid)>,
    receives: Box<[BufferIndex]>,
    pub(super) requests: Box<[Request]>,
    pub(super) free: Vec<u16>,
    /// Capsules that wait for a request (slot, bytes).
    pub(super) received: VecDeque<(u16, u32)>,
    /// The queue is in the worker's list of those whose capsules are to be taken up.
    pub(super) in_ready_list: bool,
    /// Responses that no capsule asked for just now; they wait for a request.
    pub(super) unsent: VecDeque<Response>,
    /// Requests that wait for a buffer of each class, or for an RDMA READ credit to use it with.
    pub(super) await_buffer: [VecDeque<u16>; Class::COUNT],
    /// The queue is in the worker's list of those that wait for one.
    pub(super) queued: [bool; Class::COUNT],
    /// Chunks that wait for a place in the send queue.
    pub(super) await_write: VecDeque<(u16, u8)>,
    /// RDMA READs that may be posted.
    pub(super) read_credits: u16,
    /// RDMA WRITEs that may be posted.
    pub(super) send_credits: u16,
    /// Signalled work requests of the send queue that are under way.
    unfinished: u32,
    /// When the last of them completed; when the first was posted, if none was under way.
    progress_at: Duration,
    /// Operations that devices have, or that wait for devices.
    pub(super) device_pending: u32,
}

/// Receives, and requests, of a queue of so many entries.
fn slots(entries: u16) -> u16 {
    entries + SPARE_SLOTS
}

/// WRITEs and READs that may be posted at once beside the responses.
fn transfers(entries: u16) -> u16 {
    slots(entries) * 2
}

/// RDMA READs among them. They have places of their own in the send queue: a READ that has its credit waits for nothing
/// but a buffer.
fn reads(terms: &Terms) -> u16 {
    terms.read_depth.min(slots(terms.entries))
}

impl Queue {
    /// Whether a queue on these terms finds the receive slots that it needs.
    pub fn fits<P: Provider, B: Backend>(resources: &mut Resources<P, B>, terms: &Terms) -> bool {
        resources.receives(terms.qid.0 == 0).available() >= usize::from(slots(terms.entries))
    }

    /// A queue with its queue pair, all receives posted.
    ///
    /// # Errors
    /// The provider has no queue pair left. Nothing was taken.
    ///
    /// # Panics
    /// When it does not fit ([`Queue::fits`]).
    pub fn new<P: Provider, B: Backend>(
        resources: &mut Resources<P, B>,
        now: Duration,
        index: u32,
        port: u16,
        terms: Terms,
        peer: SocketAddr,
    ) -> Result<Self, ResourceError> {
        let count = slots(terms.entries);
        let qp = resources.provider.create_queue_pair(&QueuePairAttributes {
            send_cq: resources.cq,
            receive_cq: resources.cq,
            shared_receive_queue: None,
            max_send: u32::from(count) + u32::from(transfers(terms.entries)),
            max_receive: count.into(),
            max_exposed: 0,
        })?;
        let pool = resources.receives(terms.qid.0 == 0);
        let receives = (0..count).map(|_| pool.take().expect("the queue fits")).collect();
        let owner = resources.buffers.owners.add_unconnected(peer.ip());
        let link =
            Link { port, qid: Some(terms.qid.0), cntlid: Some(terms.cntlid.0), entries: terms.entries };
        let line = || VecDeque::with_capacity(count.into());
        let received = VecDeque::with_capacity(count.into());
        let mut queue = Self {
            index,
            qp,
            state: QueueState::Accepting,
            engine: Engine::new(now, link),
            terms,
            span: tracing::info_span!("queue", %peer, qid = terms.qid.0, cntlid = Empty, hostnqn = Empty),
            peer: peer.ip(),
            owner,
            accepted: now,
            admitted: None,
            receives,
            requests: (0..count).map(|_| Request::new()).collect(),
            free: (0..count).rev().collect(),
            received,
            in_ready_list: false,
            unsent: VecDeque::with_capacity(8),
            await_buffer: std::array::from_fn(|_| line()),
            queued: [false; Class::COUNT],
            await_write: VecDeque::with_capacity(usize::from(count) * crate::limits::CHUNKS_MAX),
            read_credits: reads(&terms),
            send_credits: transfers(terms.entries) - reads(&terms),
            unfinished: 0,
            progress_at: now,
            device_pending: 0,
        };
        for slot in 0..count {
            if let Err(error) = queue.post_receive(resources, slot) {
                tracing::error!(parent: &queue.span, %error, "the provider does not take a receive");
                queue.on_gone(resources);
                let _ = queue.into_parts(resources);
                return Err(ResourceError::NoSuchQueue);
            }
        }
        Ok(queue)
    }

    /// Memory of the queue itself: pinned and not.
    #[must_use]
    pub fn memory(entries: u16, in_capsule_data: u32) -> usize {
        usize::from(slots(entries)) * (ReceiveSlots::slot_len(in_capsule_data) + size_of::<Request>())
    }

    /// Receive slots that a queue of so many entries takes.
    #[must_use]
    pub fn receives_for(entries: u16) -> usize {
        slots(entries).into()
    }

    /// Its number on its worker.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its queue pair.
    #[must_use]
    pub fn qp(&self) -> QueuePairId {
        self.qp
    }

    /// The state of its connection.
    #[must_use]
    pub fn state(&self) -> QueueState {
        self.state
    }

    /// Its span in the log.
    #[must_use]
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// The association that it belongs to, once connected.
    #[must_use]
    pub fn association(&self) -> Option<AssociationKey> {
        self.admitted.as_ref().map(|(association, _)| association.key())
    }

    /// Whether it is an I/O queue of that association.
    #[must_use]
    pub fn is_io_of(&self, key: AssociationKey) -> bool {
        self.association() == Some(key) && self.terms.qid.0 != 0
    }

    /// Whether nothing is under way that a stop waits for. An Admin queue waits for its I/O queues, on whichever
    /// worker: they end with it.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let idle = self.free.len() == self.requests.len();
        let alone = |association: &Association| self.terms.qid.0 != 0 || association.io_queues() == 0;
        idle && self.admitted.as_ref().is_none_or(|(association, _)| alone(association))
    }

    pub(super) fn place(&self, request: u16, chunk: u8) -> Place {
        Place { queue: self.index, slot: request, chunk }
    }

    pub(super) fn request(&mut self, request: u16) -> &mut Request {
        &mut self.requests[usize::from(request)]
    }

    pub(super) fn receive(&self, slot: u16) -> BufferIndex {
        self.receives[usize::from(slot)]
    }

    /// Whether it is an Admin queue.
    #[must_use]
    pub fn is_admin(&self) -> bool {
        self.terms.qid.0 == 0
    }

    /// Posts a receive slot (again).
    pub(super) fn post_receive<P: Provider, B: Backend>(
        &self,
        resources: &mut Resources<P, B>,
        slot: u16,
    ) -> Result<(), PostError> {
        let buffer = resources.receives(self.is_admin()).sge(self.receive(slot));
        let id = self.place(slot, 0).work_request(Kind::Receive);
        resources.provider.post_receive(self.qp, ReceiveRequest { id, buffer })
    }

    /// The class of buffer that the next chunk of a request takes.
    pub(super) fn class(&self, request: u16, buffers: &Buffers) -> Class {
        let Some((association, _)) = &self.admitted else { return Class::Connect };
        let request = &self.requests[usize::from(request)];
        if association.controller_type() == ControllerType::Discovery {
            Class::Discovery
        } else if self.is_admin() {
            Class::Admin
        } else if request.end - request.next <= buffers.len(Class::Small) {
            Class::Small
        } else {
            Class::Large
        }
    }

    /// Gives the buffer of a chunk back, and makes the chunk idle.
    pub(super) fn release_chunk(&mut self, buffers: &mut Buffers, request: u16, chunk: u8) {
        let owner = self.owner;
        let chunk = self.request(request).chunk(chunk);
        chunk.stage = Stage::Idle;
        if let Some(buffer) = chunk.buffer.take() {
            buffers.put(buffer, owner);
        }
    }

    /// Posts to the send queue.
    pub(super) fn post<P: Provider, B: Backend>(
        &mut self,
        resources: &mut Resources<P, B>,
        request: SendRequest<'_>,
    ) {
        self.on_posted(resources.now, request.signaled);
        let posted = resources.provider.post_send(self.qp, request);
        self.check_post(resources, posted);
    }

    /// A work request goes to the send queue.
    pub(super) fn on_posted(&mut self, now: Duration, signaled: bool) {
        if signaled {
            if self.unfinished == 0 {
                self.progress_at = now;
            }
            self.unfinished += 1;
        }
    }

    /// A signalled work request of the send queue completed.
    pub(super) fn on_progress(&mut self, now: Duration) {
        self.unfinished -= 1;
        self.progress_at = now;
    }

    /// Whether the host has taken nothing of what is posted for so long.
    #[must_use]
    pub fn is_stalled(&self, now: Duration, timeout: Duration) -> bool {
        self.state == QueueState::Live
            && self.unfinished > 0
            && now >= self.progress_at.saturating_add(timeout)
    }

    /// Whether it has no command under way and yet not all its credits.
    #[must_use]
    pub fn has_lost_credits(&self) -> bool {
        let idle = self.free.len() == self.requests.len();
        let whole = self.read_credits == reads(&self.terms)
            && self.send_credits == transfers(self.terms.entries) - reads(&self.terms)
            && self.unfinished == 0;
        self.state == QueueState::Live && idle && !whole
    }

    /// Since when it is waited for its Connect, and whose machine is to send it.
    #[must_use]
    pub fn unconnected(&self) -> Option<(Duration, IpAddr)> {
        let waits = self.admitted.is_none() && self.state != QueueState::Closed;
        waits.then_some((self.accepted, self.peer))
    }

    /// Since when its discovery controller has been silent, if it is one's queue, and whose machine has it.
    #[must_use]
    pub fn discovery(&self) -> Option<(Duration, IpAddr)> {
        let (association, _) = self.admitted.as_ref().filter(|_| self.state != QueueState::Closed)?;
        let is_discovery = association.controller_type() == ControllerType::Discovery;
        is_discovery.then(|| (association.last_activity(), self.peer))
    }

    /// Ends the connection; what is posted is still sent.
    pub fn close<P: Provider, B: Backend>(&mut self, resources: &mut Resources<P, B>) {
        match self.state {
            QueueState::Live => {
                self.state = QueueState::Closing;
                resources.provider.disconnect(self.qp);
            }
            QueueState::Accepting => resources.deferred.push_back(DeferredAction::Remove(self.index)),
            QueueState::Closing | QueueState::Closed => {}
        }
    }

    /// The connection ended: buffers that the provider used are free at once, those that devices use when their
    /// operations end.
    pub fn on_gone<P: Provider, B: Backend>(&mut self, resources: &mut Resources<P, B>) {
        if self.state == QueueState::Closed {
            return;
        }
        self.state = QueueState::Closed;
        // From here on nothing of the peer's can reach the buffers, so they may serve others.
        resources.provider.destroy_queue_pair(self.qp);
        self.abandon();
        // What no device has yet is not begun any more.
        resources.drop_waiting(self.index, |buffers, place| {
            self.device_pending -= 1;
            self.release_chunk(buffers, place.slot, place.chunk);
        });
        for at in 0..self.requests.len() {
            let request = u16::try_from(at).expect("as many as slots");
            let device = self.requests[at].device();
            for chunk in 0..self.requests[at].chunks.len() {
                let chunk = u8::try_from(chunk).expect("few");
                if self.request(request).chunk(chunk).stage != Stage::Executing {
                    self.release_chunk(&mut resources.buffers, request, chunk);
                } else if let (Some((association, _)), Some(device)) = (&self.admitted, device) {
                    // Its completion takes that back.
                    association.on_operation_orphaned(device);
                }
            }
        }
        self.received.clear();
        self.unsent.clear();
    }

    /// Nobody waits for the responses any more.
    fn abandon(&mut self) {
        for ticket in self.requests.iter_mut().filter_map(|request| request.ticket.take()) {
            ticket.abandon();
        }
    }

    /// Whether nothing of it is in use any more: then [`Queue::into_parts`].
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state == QueueState::Closed && self.device_pending == 0
    }

    /// Gives the receive slots back. What is returned must be reported to the registry.
    pub fn into_parts<P: Provider, B: Backend>(
        mut self,
        resources: &mut Resources<P, B>,
    ) -> Option<(Arc<Association>, Qid)> {
        assert!(self.is_over(), "a queue is taken apart when nothing of it is in use");
        let admin = self.is_admin();
        for &slot in &self.receives {
            resources.receives(admin).put(slot);
        }
        resources.buffers.forget(self.index);
        resources.buffers.owners.remove(self.owner);
        self.admitted.take()
    }

    /// When [`Queue::on_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        // Until it is established, the provider bounds the time.
        if matches!(self.state, QueueState::Accepting | QueueState::Closed) {
            None
        } else {
            self.engine.poll_timeout()
        }
    }
}

impl Drop for Queue {
    /// A worker that ends takes its commands with it; the provider and the backend hold on to the memory that they use.
    fn drop(&mut self) {
        self.abandon();
    }
}
