//! The tables of a fabric, the calendar of what is under way, and progress through it.

use super::FabricOptions;
use super::connection::{Listener, Request};
use super::half_open::Late;
use super::memory::{Exposure, Region};
use super::queue::{CompletionQueue, QueuePair, SharedReceiveQueue};
use crate::rng::Rng;
use crate::{
    CmEvent, CompletionQueueId, ConnectFailure, DisconnectCause, ListenerId, LocalKey, Opcode, PrivateData,
    QueuePairId, RemoteKey, RequestId, SharedReceiveQueueId, WakeOn,
};
use core::time::Duration;
use nix::sys::eventfd::EventFd;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// One provider on the fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MemberId(u32);

/// What one provider has waiting.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) events: VecDeque<CmEvent>,
    /// Queue pairs with posts since the doorbell last rang, in order of their first.
    pub(super) unrung: Vec<QueuePairId>,
    /// What ends its sleep, while it may sleep.
    pub(super) armed: Option<WakeOn>,
    event: Option<Arc<EventFd>>,
}

/// Something that happens at its time.
#[derive(Debug)]
pub(super) enum Message {
    /// The oldest work request that this queue pair has under way arrives.
    Work(QueuePairId),
    /// `disconnect` was called on this queue pair.
    Disconnect(QueuePairId),
    /// A connection request reaches its address.
    Hello(RequestId),
    /// The acceptance of it reaches the asker.
    Welcome(RequestId),
    /// The rejection does.
    Rejection(RequestId, Box<PrivateData>),
    /// The set-up time of this queue pair is over.
    Deadline(QueuePairId),
    /// Something reaches this half-open queue pair late.
    Late(QueuePairId, Late),
    /// This half-open queue pair notices that its connection is lost.
    Notice(QueuePairId),
}

/// When, and for equal times in which order.
pub(super) type Due = (Duration, u64);

/// Everything on a fabric. Ordered maps throughout: iteration must not depend on a hash.
#[derive(Debug)]
pub(super) struct State {
    pub(super) options: FabricOptions,
    pub(super) now: Duration,
    rng: Rng,
    next_id: u32,
    sequence: u64,
    calendar: BTreeMap<Due, Message>,
    pub(super) members: BTreeMap<MemberId, Member>,
    pub(super) regions: BTreeMap<LocalKey, Region>,
    pub(super) exposures: BTreeMap<RemoteKey, Exposure>,
    pub(super) completion_queues: BTreeMap<CompletionQueueId, CompletionQueue>,
    pub(super) shared_queues: BTreeMap<SharedReceiveQueueId, SharedReceiveQueue>,
    pub(super) queue_pairs: BTreeMap<QueuePairId, QueuePair>,
    pub(super) listeners: BTreeMap<ListenerId, Listener>,
    pub(super) requests: BTreeMap<RequestId, Request>,
    /// Queue pairs on which SENDs wait for a receive.
    pub(super) spilled: BTreeSet<QueuePairId>,
}

impl State {
    pub(super) fn new(options: FabricOptions, rng: Rng) -> Self {
        Self {
            options,
            now: Duration::ZERO,
            rng,
            next_id: 0,
            sequence: 0,
            calendar: BTreeMap::new(),
            members: BTreeMap::new(),
            regions: BTreeMap::new(),
            exposures: BTreeMap::new(),
            completion_queues: BTreeMap::new(),
            shared_queues: BTreeMap::new(),
            queue_pairs: BTreeMap::new(),
            listeners: BTreeMap::new(),
            requests: BTreeMap::new(),
            spilled: BTreeSet::new(),
        }
    }

    /// A number that was never a name before: a stale name finds nothing.
    pub(super) fn fresh(&mut self) -> u32 {
        self.next_id = self.next_id.checked_add(1).expect("fewer than 2^32 names on one fabric");
        self.next_id
    }

    pub(super) fn join(&mut self, event: Option<Arc<EventFd>>) -> MemberId {
        let id = MemberId(self.fresh());
        self.members.insert(id, Member { events: VecDeque::new(), unrung: Vec::new(), armed: None, event });
        id
    }

    /// Ends everything that a provider owns, as its destruction does.
    pub(super) fn leave(&mut self, member: MemberId) {
        let listeners: Vec<_> =
            self.listeners.iter().filter(|(_, l)| l.owner == member).map(|(&id, _)| id).collect();
        listeners.into_iter().for_each(|id| self.unlisten(member, id));
        let queue_pairs: Vec<_> =
            self.queue_pairs.iter().filter(|(_, qp)| qp.owner == member).map(|(&id, _)| id).collect();
        queue_pairs.into_iter().for_each(|id| self.destroy_queue_pair(member, id));
        let orphans: Vec<_> =
            self.requests.iter().filter(|(_, r)| r.owner == Some(member)).map(|(&id, _)| id).collect();
        orphans.into_iter().for_each(|id| self.drop_request(id));
        self.exposures.retain(|_, exposure| exposure.owner != member);
        self.regions.retain(|_, region| region.owner != member);
        self.completion_queues.retain(|_, queue| queue.owner != member);
        self.shared_queues.retain(|_, queue| queue.owner != member);
        self.members.remove(&member);
    }

    pub(super) fn on_time(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }

    /// Notes what happens at `at`, after everything noted for that time before.
    pub(super) fn schedule(&mut self, at: Duration, message: Message) -> Due {
        self.sequence += 1;
        let due = (at, self.sequence);
        self.calendar.insert(due, message);
        due
    }

    pub(super) fn unschedule(&mut self, due: Due) {
        self.calendar.remove(&due);
    }

    /// When a message that leaves now arrives.
    pub(super) fn arrival(&mut self) -> Duration {
        let nanoseconds = |d: &Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let (low, high) =
            (nanoseconds(self.options.latency.start()), nanoseconds(self.options.latency.end()));
        let latency = if high == 0 { 0 } else { self.rng.between(low, high) };
        self.now.saturating_add(Duration::from_nanos(latency))
    }

    pub(super) fn next_due(&self) -> Option<Duration> {
        self.calendar.keys().next().map(|&(at, _)| at)
    }

    /// Lets everything happen whose time has come, in order.
    pub(super) fn progress(&mut self) {
        while let Some(entry) = self.calendar.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            match entry.remove() {
                Message::Work(queue_pair) => self.on_work(queue_pair),
                Message::Disconnect(queue_pair) => self.on_peer_disconnect(queue_pair),
                Message::Hello(request) => self.on_hello(request),
                Message::Welcome(request) => self.on_welcome(request),
                Message::Rejection(request, private_data) => {
                    self.fail_request(request, ConnectFailure::Rejected { private_data: *private_data });
                }
                Message::Deadline(queue_pair) => self.on_deadline(queue_pair),
                Message::Late(queue_pair, late) => self.on_late(queue_pair, late),
                Message::Notice(queue_pair) => self.end(queue_pair, DisconnectCause::Broken),
            }
        }
    }

    pub(super) fn notify(&mut self, member: MemberId, event: CmEvent) {
        if let Some(it) = self.members.get_mut(&member) {
            it.events.push_back(event);
            it.wake();
        }
    }

    /// Whether there is something to poll; arms if not.
    pub(super) fn arm(&mut self, member: MemberId, wake_on: WakeOn) -> bool {
        let own = self.completion_queues.values().filter(|queue| queue.owner == member);
        let completed =
            own.flat_map(|queue| &queue.entries).any(|entry| wakes(wake_on, entry.completion.opcode));
        let Some(it) = self.members.get_mut(&member) else { return false };
        if completed || !it.events.is_empty() {
            return false;
        }
        // Only an armed provider is woken, so anything left of an earlier wake-up is stale.
        if let Some(event) = &it.event {
            let _ = event.read();
        }
        it.armed = Some(wake_on);
        true
    }
}

/// Whether a completion ends such a sleep.
fn wakes(wake_on: WakeOn, completed: Opcode) -> bool {
    wake_on == WakeOn::Completions || completed == Opcode::Receive
}

impl Member {
    /// Something completed.
    pub(super) fn on_completion(&mut self, completed: Opcode) {
        if self.armed.is_some_and(|wake_on| wakes(wake_on, completed)) {
            self.wake();
        }
    }

    /// Ends the sleep of a provider that armed.
    pub(super) fn wake(&mut self) {
        if self.armed.take().is_some()
            && let Some(event) = &self.event
        {
            // The counter starts at zero after `arm`, so one more always fits.
            let _ = event.write(1);
        }
    }
}
