//! One connection: slots, credits, and a list for every kind of wait.

use super::buffers::{Buffers, Class};
use super::connect::PendingConnect;
use super::owners::Owner;
use super::place::Place;
use super::request::{Request, Stage};
use super::resources::{DeferredAction, Resources};
use super::transport::{Terms, Transport};
use crate::barrier::Scope;
use crate::limits::{ENTRIES_MIN, PAUSE, SPARE_SLOTS};
use crate::metrics::hosts::Host;
use core::time::Duration;
use nvme_proto::Status;
use nvmf_block::{Backend, BlockOp};
use nvmf_stream::machine_of;
use nvmf_subsystem::{Association, AssociationKey, ControllerType, Link, Qid, Queue as Engine, Response};
use std::collections::VecDeque;
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

/// A capsule that arrived, so many bytes; whether its data are as they were sent.
pub(super) struct Received<C> {
    pub(super) capsule: C,
    pub(super) len: u32,
    pub(super) intact: bool,
    /// When, in microseconds.
    pub(super) at_us: u64,
}

/// One connection.
pub struct Queue<T: Transport> {
    pub(super) index: u32,
    pub(super) state: QueueState,
    pub(super) engine: Engine,
    pub(super) terms: Terms,
    pub(super) span: Span,
    /// Whose share of the buffers it uses.
    pub(super) owner: Owner,
    /// Set once the registry admitted the queue: its end must be reported there.
    pub(super) admitted: Option<(Arc<Association>, Qid)>,
    /// Where its commands are counted, if they are.
    pub(super) host: Option<Arc<Host>>,
    /// The Connect that is not answered yet.
    pub(super) pending_connect: Option<PendingConnect>,
    pub(super) requests: Vec<Request<T::Capsule>>,
    pub(super) free: Vec<u16>,
    /// Capsules that wait for a request.
    pub(super) received: VecDeque<Received<T::Capsule>>,
    /// The queue is in the worker's list of those whose capsules are to be taken up.
    pub(super) in_ready_list: bool,
    /// Responses that no capsule asked for just now; they wait for a request.
    pub(super) unsent: VecDeque<Response>,
    /// Requests that wait for a buffer of each class, or for a pull to use it with.
    pub(super) await_buffer: [VecDeque<u16>; Class::COUNT],
    /// The queue is in the worker's list of those that wait for one.
    pub(super) queued: [bool; Class::COUNT],
    /// Chunks that wait for a push credit: of each request at most one, the one whose turn it is.
    pub(super) await_push: VecDeque<(u16, u8)>,
    /// The number of its host's limit.
    pub(super) host_limit: Option<u16>,
    /// Commands that wait for a limit, and for which.
    pub(super) limited: VecDeque<(u16, u16)>,
    /// Pulls that may begin.
    pub(super) pull_credits: u16,
    /// Pushes that may begin.
    pub(super) push_credits: u16,
    /// How many of both there are in all.
    credits: Credits,
    /// Pulls, signalled pushes and responses under way.
    unfinished: u32,
    /// The queue is in the worker's list of those that have such.
    in_unfinished_list: bool,
    /// How many of them are responses.
    pub(super) responding: u32,
    /// When the last of them ended; when the first began, if none was under way.
    progress_at: Duration,
    /// Operations that devices have, or that wait for devices.
    pub(super) device_pending: u32,
}

/// Requests of a queue of so many entries.
#[must_use]
pub fn slots(entries: u16) -> u16 {
    entries + SPARE_SLOTS
}

/// Pulls and pushes that may be under way at once beside the responses.
#[must_use]
pub fn transfers(entries: u16) -> u16 {
    slots(entries) * 2
}

/// Pulls and pushes that a queue may have under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Credits {
    pulls: u16,
    pushes: u16,
}

impl Credits {
    /// Pulls have places of their own: one that has its credit waits for nothing but a buffer.
    fn of(terms: &Terms, entries: u16) -> Self {
        let pulls = terms.pulls.min(slots(entries));
        Self { pulls, pushes: transfers(entries) - pulls }
    }
}

impl<T: Transport> Queue<T> {
    /// The queue of a connection that was accepted.
    pub fn new<B: Backend>(resources: &mut Resources<T, B>, now: Duration, index: u32, terms: Terms) -> Self {
        let owners = &mut resources.buffers.owners;
        let owner = owners.add_unconnected(index, terms.peer.ip(), now, terms.is_for_io());
        let (qid, cntlid) = (terms.qid.map(|qid| qid.0), terms.cntlid.map(|cntlid| cntlid.0));
        let peer = terms.peer;
        let Terms { port, local, entries, secure_channel, .. } = terms;
        let link = Link {
            transport: T::TYPE,
            port,
            local,
            peer: peer.ip(),
            machine: machine_of(peer.ip()),
            qid,
            cntlid,
            secure_channel,
            entries,
        };
        let mut queue = Self {
            index,
            state: QueueState::Accepting,
            engine: Engine::new(now, link),
            terms,
            span: tracing::info_span!("queue", %peer, qid = qid, cntlid = Empty, hostnqn = Empty),
            owner,
            admitted: None,
            host: None,
            pending_connect: None,
            requests: Vec::new(),
            free: Vec::new(),
            received: VecDeque::new(),
            in_ready_list: false,
            unsent: VecDeque::with_capacity(8),
            await_buffer: std::array::from_fn(|_| VecDeque::new()),
            queued: [false; Class::COUNT],
            await_push: VecDeque::new(),
            host_limit: None,
            limited: VecDeque::new(),
            pull_credits: 0,
            push_credits: 0,
            credits: Credits::default(),
            unfinished: 0,
            in_unfinished_list: false,
            responding: 0,
            progress_at: now,
            device_pending: 0,
        };
        // Where the Connect says how large the queue is to be, it gets no more before.
        queue.grow(if terms.qid.is_some() { terms.entries } else { ENTRIES_MIN });
        queue
    }

    /// Bytes of memory that an idle one of so many entries takes, with its connection.
    #[must_use]
    pub fn bytes(entries: u16, is_admin: bool) -> usize {
        let slot = size_of::<Request<T::Capsule>>()
            + size_of::<Received<T::Capsule>>()
            + (1 + Class::COUNT) * size_of::<u16>()
            + size_of::<(u16, u8)>();
        size_of::<Self>()
            + Engine::bytes(is_admin)
            + usize::from(slots(entries)) * slot
            + T::connection_bytes(entries)
    }

    /// Makes room for so many entries: all that it will ever allocate.
    pub(super) fn grow(&mut self, entries: u16) {
        let (before, count) = (self.requests.len(), usize::from(slots(entries)));
        let (old, new) = (self.credits, Credits::of(&self.terms, entries));
        if count <= before {
            return;
        }
        self.requests.resize_with(count, Request::new);
        self.free.extend((u16::try_from(before).expect("few")..slots(entries)).rev());
        self.received.reserve(count);
        self.await_buffer.iter_mut().for_each(|waiting| waiting.reserve(count));
        self.await_push.reserve(count);
        self.pull_credits += new.pulls - old.pulls;
        self.push_credits += new.pushes - old.pushes;
        self.credits = new;
    }

    /// Its number on its worker.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
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

    /// The Keep Alive Timeout of its association.
    #[must_use]
    pub fn keep_alive(&self) -> Option<Duration> {
        self.admitted.as_ref().and_then(|(association, _)| association.keep_alive())
    }

    /// Whether it is an I/O queue of that association.
    #[must_use]
    pub fn is_io_of(&self, key: AssociationKey) -> bool {
        self.association() == Some(key) && !self.is_admin()
    }

    /// Whether nothing is under way that a stop waits for. An Admin queue waits for its I/O queues, on whichever
    /// worker: they end with it.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let idle = self.free.len() == self.requests.len();
        let alone = |association: &Association, qid: Qid| qid.0 != 0 || association.io_queues() == 0;
        idle && self.admitted.as_ref().is_none_or(|(association, qid)| alone(association, *qid))
    }

    pub(super) fn place(&self, request: u16, chunk: u8) -> Place {
        Place::new(self.index, request, chunk)
    }

    pub(super) fn request(&mut self, request: u16) -> &mut Request<T::Capsule> {
        &mut self.requests[usize::from(request)]
    }

    /// Its number, once the host has said it.
    #[must_use]
    pub fn qid(&self) -> Option<Qid> {
        self.admitted.as_ref().map(|&(_, qid)| qid).or(self.terms.qid)
    }

    /// Whether it is an Admin queue.
    #[must_use]
    pub fn is_admin(&self) -> bool {
        self.qid() == Some(Qid(0))
    }

    /// What it was accepted with.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The class of buffer that the next chunk of a request takes.
    pub(super) fn class(&self, request: u16, buffers: &Buffers<T::Key>) -> Class {
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
    pub(super) fn release_chunk(&mut self, buffers: &mut Buffers<T::Key>, request: u16, chunk: u8) {
        let owner = self.owner;
        let chunk = self.request(request).chunk(chunk);
        chunk.stage = Stage::Idle;
        if let Some(buffer) = chunk.buffer.take() {
            buffers.put(buffer, owner);
        }
    }

    /// A pull, a push or a response begins.
    pub(super) fn on_begun(&mut self, now: Duration, unfinished: &mut Vec<u32>, signaled: bool) {
        if !signaled {
            return;
        }
        if self.unfinished == 0 {
            self.progress_at = now;
        }
        self.unfinished += 1;
        if !core::mem::replace(&mut self.in_unfinished_list, true) {
            unfinished.push(self.index);
        }
    }

    /// Whether any of them is under way still. If not, the queue leaves the worker's list of those.
    pub fn stays_unfinished(&mut self) -> bool {
        self.in_unfinished_list = self.unfinished > 0;
        self.in_unfinished_list
    }

    /// One of these ended.
    pub(super) fn on_progress<B: Backend>(&mut self, resources: &mut Resources<T, B>, now: Duration) {
        if self.is_stalled(now, PAUSE) {
            // Those that waited for that may have their buffers.
            Class::ALL.iter().for_each(|&class| resources.buffers.recheck(class));
        }
        self.unfinished -= 1;
        self.progress_at = now;
    }

    /// A barrier has come: commands that it names and that are not let in any more do not reach a device, whatever becomes
    /// of what it took away. Of the hosts of a Preempt and Abort none does.
    pub fn on_barrier(&mut self, scope: &Scope) {
        let Some((association, _)) = &self.admitted else { return };
        for request in &mut self.requests {
            let (None, Some(ticket), Some(work)) = (request.condemned, &request.ticket, &request.work) else {
                continue;
            };
            let device = request.device().or_else(|| self.engine.device_of(request.nsid));
            if request.is_named(scope, association, device) {
                request.condemned = match &scope.hosts {
                    Some(_) => {
                        scope.aborts.contains(&association.host_id()).then_some(Status::ABORTED_PREEMPT)
                    }
                    None => self.engine.check_under_way(ticket, request.nsid, work).err(),
                };
            }
        }
    }

    /// A barrier has come, and an operation waits for its device: if its command is not let in any more, the device is
    /// not given it. Says when it began, in microseconds; [`Queue::on_taken_back`] is to follow.
    pub fn take_back(&mut self, place: Place, op: &BlockOp) -> Option<u64> {
        let request = self.request(place.slot());
        request.condemned?;
        request.changes -= u32::from(op.writes());
        let since_us = request.chunk(place.chunk()).since_us;
        self.device_pending -= 1;
        Some(since_us)
    }

    /// Whether a device has something yet of a command that was taken up before the barrier of that epoch, and that it
    /// names.
    #[must_use]
    pub fn has_older(&self, scope: &Scope, epoch: u64) -> bool {
        let Some((association, _)) = &self.admitted else { return false };
        let gone = self.state == QueueState::Closed;
        self.requests.iter().any(|request| {
            request.epoch < epoch
                && request.holds_barriers(gone)
                && request.is_named(scope, association, request.device())
        })
    }

    /// Whether something of the queue goes on when what was begun ends. Most responses are not waited for: what they
    /// hold is taken back with the next capsule.
    #[must_use]
    pub fn awaits_transport(&self) -> bool {
        let needs_request = !self.received.is_empty() || !self.unsent.is_empty();
        self.state == QueueState::Closing
            || self.unfinished > self.responding
            || !self.await_push.is_empty()
            || needs_request && self.free.is_empty()
    }

    /// Whether nothing of that has ended for so long.
    #[must_use]
    pub fn is_stalled(&self, now: Duration, timeout: Duration) -> bool {
        self.state == QueueState::Live
            && self.unfinished > 0
            && now >= self.progress_at.saturating_add(timeout)
    }

    /// Whether commands of it wait for buffers, and nothing of it has ended for so long.
    #[must_use]
    pub fn waits_in_vain(&self, now: Duration, timeout: Duration) -> bool {
        self.state == QueueState::Live
            && self.await_buffer.iter().any(|waiting| !waiting.is_empty())
            && now >= self.progress_at.saturating_add(timeout)
    }

    /// Whether it has no command under way and yet not all its credits.
    #[must_use]
    pub fn has_lost_credits(&self) -> bool {
        let idle = self.free.len() == self.requests.len();
        let free = Credits { pulls: self.pull_credits, pushes: self.push_credits };
        let whole = free == self.credits && self.unfinished == 0;
        self.state == QueueState::Live && idle && !whole
    }

    /// Ends the connection; what is posted is still sent.
    pub fn close<B: Backend>(&mut self, resources: &mut Resources<T, B>) {
        match self.state {
            QueueState::Live => {
                self.state = QueueState::Closing;
                resources.transport.disconnect(self.index);
            }
            QueueState::Accepting => resources.deferred.push_back(DeferredAction::Remove(self.index)),
            QueueState::Closing | QueueState::Closed => {}
        }
    }

    /// The connection ended: buffers that the transport used are free at once, those that devices use when their
    /// operations end.
    pub fn on_gone<B: Backend>(&mut self, resources: &mut Resources<T, B>) {
        if self.state == QueueState::Closed {
            return;
        }
        self.state = QueueState::Closed;
        self.unfinished = 0;
        // From here on nothing of the peer's can reach the buffers, so they may serve others.
        resources.transport.destroy(self.index);
        // A controller ends with its Admin queue, whatever a device still has of it.
        if let Some((association, Qid(0))) = &self.admitted {
            association.close();
            resources.deferred.push_back(DeferredAction::CloseIoQueues(association.key()));
        }
        self.abandon();
        // What no device has yet is not begun any more.
        resources.drop_waiting(|buffers, place, _| {
            if place.queue() != self.index {
                return None;
            }
            self.device_pending -= 1;
            let since_us = self.request(place.slot()).chunk(place.chunk()).since_us;
            self.release_chunk(buffers, place.slot(), place.chunk());
            Some(since_us)
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
        // After its operations were counted: whoever sees the one sees the other.
        if let Some((association, _)) = &self.admitted {
            association.on_connection_gone();
        }
        self.received.clear();
        self.limited.clear();
        self.unsent.clear();
    }

    /// Nobody waits for the responses any more.
    fn abandon(&mut self) {
        for ticket in self.requests.iter_mut().filter_map(|request| request.ticket.take()) {
            ticket.abandon();
        }
        if let Some(pending) = self.pending_connect.take() {
            pending.abandon();
        }
    }

    /// Whether nothing of it is in use any more: then [`Queue::into_parts`].
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state == QueueState::Closed && self.device_pending == 0
    }

    /// Gives everything back. What is returned must be reported to the registry.
    pub fn into_parts<B: Backend>(
        mut self,
        resources: &mut Resources<T, B>,
    ) -> Option<(Arc<Association>, Qid)> {
        assert!(self.is_over(), "a queue is taken apart when nothing of it is in use");
        resources.transport.forget(self.index);
        resources.buffers.forget(self.index);
        resources.limited.forget(self.index);
        resources.buffers.owners.remove(self.index, self.owner);
        self.admitted.take()
    }

    /// When [`Queue::on_timeout`] is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        // Until it is established, the transport bounds the time.
        if matches!(self.state, QueueState::Accepting | QueueState::Closed) {
            None
        } else {
            self.engine.poll_timeout()
        }
    }
}

impl<T: Transport> Drop for Queue<T> {
    /// A worker that ends takes its commands with it; the transport and the backend hold on to the memory that they use.
    fn drop(&mut self) {
        self.abandon();
    }
}
