//! One worker: a transport, a backend, the memory between them, and the queues that live on it.
//!
//! [`Worker::turn`] is all there is: it reads no clock, makes no system call of its own, and takes no lock but the
//! registry's when a host connects or leaves. The daemon's threads call it in a loop; the simulator calls it under a
//! virtual clock.

mod connections;

use crate::barrier::Barrier;
use crate::exec::buffers::{Class, slot};
use crate::exec::place::Place;
use crate::exec::queue::{Queue, QueueState};
use crate::exec::resources::{Borrowed, DeferredAction, Resources, SetUpError};
use crate::exec::transport::{Arrival, ListenAt, Transport};
use crate::limits::{
    BARRIER_INTERVAL, BATCH, BATCH_CONTENDED, CAPSULES_IN_A_ROW, CONTENTION_TURNS, MESSAGE_BUDGET, STALL,
    STALL_GRACE, TIMER_GRAIN, TRANSFER_CHECKS,
};
use crate::log::AUDIT;
use crate::message::{Answered, Asked, Recipient, WorkerId, WorkerMessage};
use crate::metrics::meter::Measuring;
use crate::metrics::namespaces::Device;
use crate::settings::{Load, Settings};
use crate::telemetry::{Counters, Line};
use core::time::Duration;
use nvmf_block::{Backend, DeviceId};
use nvmf_rdma::{ListenError, WakeOn};
use nvmf_subsystem::{AssociationKey, Notice, Registry};
use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

/// What a turn came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Something was done: turn again before sleeping.
    pub worked: bool,
    /// When to turn again even if nothing comes.
    pub timeout: Option<Duration>,
    /// The transport's device is gone: nothing comes any more.
    pub device_removed: bool,
}

/// One worker.
pub struct Worker<T: Transport, B: Backend> {
    id: WorkerId,
    settings: Settings,
    resources: Resources<T, B>,
    queues: Vec<Option<Box<Queue<T>>>>,
    vacant: Vec<u32>,
    inbox: VecDeque<WorkerMessage<T::Detached>>,
    /// The registry's news, which is read before the inbox.
    notices: VecDeque<Notice>,
    outbox: VecDeque<(Recipient, WorkerMessage<T::Detached>)>,
    executed: Vec<nvmf_block::Completion>,
    timers_due: Duration,
    /// When the last turn was.
    turned_at: Duration,
    device_removed: bool,
    /// When the log was told last that no connection can be accepted.
    shortage_told: Option<Duration>,
    /// Turns that still count as contended: a short queue came up recently.
    contended_turns: u8,
    /// Not reached yet, with the epoch of each: commands of earlier epochs are older.
    barriers: Vec<(Arc<Barrier>, u64)>,
    /// When to look at them again.
    barriers_due: Duration,
}

impl<T: Transport, B: Backend> Worker<T, B> {
    /// A worker without listeners and queues.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn new(
        id: WorkerId,
        load: Arc<Load>,
        settings: Settings,
        registry: Arc<Mutex<Registry>>,
        transport: T,
        backend: B,
    ) -> Result<Self, SetUpError> {
        let resources = Resources::new(transport, backend, registry, load, &settings)?;
        let connections = settings.connections;
        let worker = Self {
            id,
            resources,
            queues: (0..connections).map(|_| None).collect(),
            vacant: (0..connections).rev().collect(),
            inbox: VecDeque::with_capacity(MESSAGE_BUDGET),
            notices: VecDeque::new(),
            outbox: VecDeque::with_capacity(MESSAGE_BUDGET),
            executed: Vec::with_capacity(BATCH),
            timers_due: Duration::ZERO,
            turned_at: Duration::MAX,
            device_removed: false,
            shortage_told: None,
            contended_turns: 0,
            barriers: Vec::new(),
            barriers_due: Duration::ZERO,
            settings,
        };
        worker.publish_places();
        worker.publish_room();
        Ok(worker)
    }

    /// Measures commands from now on.
    pub fn measure(&mut self, measuring: Measuring) {
        self.resources.meter.start(measuring);
    }

    /// The operations of the device are counted there from now on.
    pub fn count_device(&mut self, device: DeviceId, counted: Arc<Device>) {
        self.resources.meter.attach(slot(device), counted);
    }

    /// Listens for connections of the port of that number.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen(&mut self, address: SocketAddr, port: u16) -> Result<SocketAddr, ListenError> {
        self.listen_at(ListenAt::Address(address), port)
    }

    /// Listens for connections of the port of that number, on an address or a socket.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen_at(&mut self, at: ListenAt, port: u16) -> Result<SocketAddr, ListenError> {
        self.resources.transport.listen(at, port)
    }

    /// Puts a message into the inbox: read in the next turn, the registry's news before the first command.
    pub fn deliver(&mut self, message: WorkerMessage<T::Detached>) {
        match message {
            WorkerMessage::Notice(notice) => self.notices.push_back(notice),
            message => self.inbox.push_back(message),
        }
    }

    /// A question for the control plane; its answer comes as [`WorkerMessage::Answer`].
    pub fn poll_question(&mut self) -> Option<Asked> {
        let (place, serial, question) = self.resources.questions.pop_front()?;
        Some(Asked { worker: self.id, place, serial, question })
    }

    /// A message for another worker.
    pub fn poll_message(&mut self) -> Option<(Recipient, WorkerMessage<T::Detached>)> {
        self.outbox.pop_front()
    }

    /// Delivers the messages of a whole group that one thread turns, such as a simulation's: each worker is at the place
    /// of its number. Says whether there were any.
    ///
    /// # Panics
    /// When a message is for a worker that is not there.
    pub fn exchange_messages(group: &mut [Self]) -> bool {
        let mut any = false;
        for from in 0..group.len() {
            while let Some((to, message)) = group[from].poll_message() {
                any = true;
                let Recipient::Worker(to) = to else {
                    for to in (0..group.len()).filter(|&to| to != from) {
                        group[to].deliver(message.copy().expect("what is for several can be copied"));
                    }
                    continue;
                };
                group[to.0].deliver(message);
            }
        }
        any
    }

    /// What it counts.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.resources.counters
    }

    /// Queues that are there.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.queues.len() - self.vacant.len()
    }

    /// Data buffers that are out.
    #[must_use]
    pub fn buffers_out(&self) -> usize {
        self.resources.buffers.out()
    }

    /// Queues that have no command under way and yet not all their credits: a mistake of ours.
    #[must_use]
    pub fn queues_without_credits(&self) -> usize {
        self.queues.iter().flatten().filter(|queue| queue.has_lost_credits()).count()
    }

    /// The transport, to sleep on.
    pub fn transport(&mut self) -> &mut T {
        &mut self.resources.transport
    }

    /// Arms the transport for a sleep; `false` when there is something to do. That a response left wakes only a worker
    /// where something waits for it.
    pub fn arm(&mut self) -> bool {
        let Self { queues, resources, .. } = self;
        let mut is_awaited = resources.draining || resources.buffers.is_awaited();
        // Of thousands of connections few have something under way.
        resources.unfinished.retain(|&index| {
            let Some(queue) = &mut queues[index as usize] else { return false };
            let stays = queue.stays_unfinished();
            is_awaited |= stays && queue.awaits_transport();
            stays
        });
        let wake_on = if is_awaited { WakeOn::Completions } else { WakeOn::Receives };
        self.resources.transport.arm(wake_on)
    }

    /// The backend, to sleep in.
    pub fn backend(&mut self) -> &mut B {
        &mut self.resources.backend
    }

    /// One turn: [`Worker::gather`], then [`Worker::act`].
    pub fn turn(&mut self, now: Duration) -> Progress {
        let gathered = self.gather(now);
        self.act(now, gathered)
    }

    /// Begins a turn: takes what hosts have sent, and begins none of it. Whether there was anything.
    ///
    /// Messages are to be delivered between this and [`Worker::act`]. A host may know of a new namespace from another
    /// worker, and use it on a queue of this one: then the news of it was sent to this worker before, too.
    pub fn gather(&mut self, now: Duration) -> bool {
        self.resources.now = now;
        self.resources.meter.on_turn(now);
        self.on_time(now);
        let worked = self.reap_connections(now);
        worked | self.reap_transport(now)
    }

    /// Ends a turn: does what there is to do, each kind up to its budget, then rings each doorbell once.
    pub fn act(&mut self, now: Duration, gathered: bool) -> Progress {
        let mut worked = gathered | self.read_notices(now);
        // Before new commands are taken up, so that those that wait go first.
        worked |= self.grant_buffers(now);
        worked |= self.grant_limited(now);
        worked |= self.take_newly_ready(now);
        worked |= self.take_capsules(now);
        worked |= self.reap_backend(now);
        worked |= self.read_messages(now);
        self.expire_timers(now);
        self.retry_connects(now);
        worked |= self.grant_buffers(now);
        worked |= self.run_deferred(now);
        self.look_at_barriers(now);
        self.ring();
        self.publish_gauges();
        // What left with that has arrived already, and needs no turn of its own.
        worked |= self.take_arrivals(now);
        let transport = self.resources.transport.poll_timeout();
        let timers = (self.queues() > 0).then_some(self.timers_due.max(self.resources.no_timer_before));
        let barriers = (!self.barriers.is_empty()).then_some(self.barriers_due);
        let timeout = transport.into_iter().chain(timers).chain(self.resources.connects_due).chain(barriers);
        let timeout = timeout.chain(self.resources.limited.due()).min();
        Progress { worked, timeout, device_removed: self.device_removed }
    }

    /// Hosts have not been silent for as long as this worker did not listen. But those that could not wait for it have gone
    /// elsewhere: what they had sent before must not be carried out any more.
    fn on_time(&mut self, now: Duration) {
        let stall = now.saturating_sub(self.turned_at);
        self.turned_at = now;
        if stall > STALL {
            self.resources.no_timer_before = now + STALL_GRACE;
            self.end_given_up(now, stall);
        }
    }

    /// Ends the queues whose host may have given this target up in a stall of that length, before anything is taken from them: with
    /// two Keep Alive Timeouts, a host trusts that nothing of its commands follows.
    #[cold]
    fn end_given_up(&mut self, now: Duration, stall: Duration) {
        self.each_queue(|queue, resources| {
            let Some(keep_alive) = queue.keep_alive().filter(|keep_alive| stall >= *keep_alive) else { return };
            if queue.is_admin() {
                resources.counters.keep_alive_expired.add(1);
            }
            if resources.log.allow(now, queue.terms().peer.ip(), Line::Fault, &resources.counters) {
                tracing::warn!(
                    parent: queue.span(),
                    "this target did not run for {stall:?}, and the host waits for {keep_alive:?}: closing the queue"
                );
            }
            queue.on_gone(resources);
            resources.deferred.push_back(DeferredAction::Remove(queue.index()));
        });
    }

    fn ring(&mut self) {
        self.resources.submit_waiting();
        self.resources.transport.flush();
        self.resources.backend.flush();
        self.resources.borrowed = Borrowed::default();
    }

    /// Where metrics are on, shows what is free and who is there.
    fn publish_gauges(&self) {
        let Some(measures) = self.resources.meter.measures() else { return };
        for class in Class::ALL {
            measures.buffers_free[class as usize].set(self.resources.buffers.free(class));
        }
        measures.queues.set(self.queues());
        measures.unconnected.set(self.resources.buffers.owners.unconnected());
    }

    fn reap_transport(&mut self, now: Duration) -> bool {
        self.resources.transport.poll();
        let mut worked = false;
        while let Some(arrival) = self.resources.transport.next_arrival() {
            // That a response left is no work: a spin that only sees that was in vain, and what it makes room for is begun
            // in this turn.
            worked |= !matches!(arrival, Arrival::Responded(_));
            self.on_arrival(now, arrival);
        }
        worked
    }

    fn take_arrivals(&mut self, now: Duration) -> bool {
        let mut any = false;
        while let Some(arrival) = self.resources.transport.next_arrival() {
            any = true;
            self.on_arrival(now, arrival);
        }
        any
    }

    fn on_arrival(&mut self, now: Duration, arrival: Arrival<T::Capsule>) {
        match arrival {
            Arrival::Capsule(queue, capsule, len, intact) => {
                if let Some((queue, resources)) = self.open_queue(queue) {
                    queue.on_arrival(resources, capsule, len, intact);
                }
            }
            Arrival::Pulled(place, intact) => {
                if let Some((queue, resources)) = self.open_queue(place.queue()) {
                    queue.on_pulled(resources, now, place, intact);
                }
            }
            Arrival::Pushed(place) => {
                if let Some((queue, resources)) = self.open_queue(place.queue()) {
                    queue.on_pushed(resources, now, place);
                }
            }
            Arrival::Responded(place) => {
                if let Some((queue, resources)) = self.open_queue(place.queue()) {
                    queue.on_responded(resources, now, place);
                }
            }
            // The end itself comes as an event.
            Arrival::Failed(queue, cause) => {
                let Some((queue, resources)) = self.open_queue(queue) else { return };
                if queue.state() == QueueState::Live {
                    resources.counters.transport_errors.add(1);
                    if resources.log.allow(now, queue.terms().peer.ip(), Line::Fault, &resources.counters) {
                        tracing::warn!(parent: queue.span(), "closing the queue: {cause}");
                    }
                    queue.close(resources);
                }
            }
        }
    }

    /// A queue that is not closed.
    fn open_queue(&mut self, index: u32) -> Option<(&mut Queue<T>, &mut Resources<T, B>)> {
        let queue = self.queues.get_mut(index as usize)?.as_mut()?;
        (queue.state() != QueueState::Closed).then_some((queue, &mut self.resources))
    }

    /// Serves short queues that were not in the ready list before the queues in it, and submits their work at once: a
    /// turn full of a heavy queue's commands takes many times as long as one command. They join the ready list all
    /// the same: one that is ready again before the list went round waits for its place in it, so that many short
    /// queues do not starve a heavy one.
    fn take_newly_ready(&mut self, now: Duration) -> bool {
        let contested = self.resources.ready_list.len() + self.resources.newly_ready.len() > 1;
        let mut left = BATCH;
        while let Some(index) = self.resources.newly_ready.pop_front() {
            let Some(queue) = &mut self.queues[index as usize] else { continue };
            if contested && queue.is_short() && left >= CAPSULES_IN_A_ROW {
                left -= queue.take_capsules(&mut self.resources, now, CAPSULES_IN_A_ROW);
                // Admin commands set timers (the Keep Alive Timeout).
                self.timers_due = self.timers_due.min(queue.poll_timeout().unwrap_or(Duration::MAX));
            }
            queue.join_ready_list(&mut self.resources);
        }
        if left < BATCH {
            self.contended_turns = CONTENTION_TURNS;
            self.reap_backend(now);
            self.ring();
        }
        left < BATCH
    }

    /// Takes capsules from the queues of the ready list, a few from each in turn: a busy host does not delay the
    /// others.
    fn take_capsules(&mut self, now: Duration) -> bool {
        let batch = if self.contended_turns == 0 { BATCH } else { BATCH_CONTENDED };
        self.contended_turns = self.contended_turns.saturating_sub(1);
        let mut left = batch;
        let mut full = false;
        while left > 0
            && !full
            && let Some(index) = self.resources.ready_list.pop_front()
        {
            let Some(queue) = &mut self.queues[index as usize] else { continue };
            left -= queue.take_capsules(&mut self.resources, now, left.min(CAPSULES_IN_A_ROW));
            full = self.resources.packet_is_full();
            if queue.is_ready() {
                queue.join_ready_list(&mut self.resources);
            }
            // Admin commands set timers (the Keep Alive Timeout).
            self.timers_due = self.timers_due.min(queue.poll_timeout().unwrap_or(Duration::MAX));
        }
        left < batch
    }

    fn reap_backend(&mut self, now: Duration) -> bool {
        self.executed.clear();
        self.resources.backend.poll(&mut self.executed);
        for at in 0..self.executed.len() {
            let nvmf_block::Completion { tag, result } = self.executed[at];
            let place = Place::of_tag(tag);
            let queue = self.queues[place.queue() as usize].as_mut();
            let queue = queue.expect("a queue lives until its last operation completed");
            queue.on_executed(&mut self.resources, now, place, result);
            if queue.state() == QueueState::Closed {
                self.remove_queue(place.queue());
            }
        }
        !self.executed.is_empty()
    }

    /// Acts on every message that was delivered so far, before the next turn.
    pub fn read_delivered(&mut self, now: Duration) {
        self.read_notices(now);
        while self.read_messages(now) {}
    }

    /// All of them: a barrier that was sent behind them is never read before them.
    fn read_notices(&mut self, now: Duration) -> bool {
        let any = !self.notices.is_empty();
        while let Some(notice) = self.notices.pop_front() {
            self.each_queue(|queue, resources| queue.on_notice(resources, now, &notice));
        }
        any
    }

    fn read_messages(&mut self, now: Duration) -> bool {
        for done in 0..MESSAGE_BUDGET {
            let Some(message) = self.inbox.pop_front() else { return done > 0 };
            match message {
                WorkerMessage::Adopt(detached) => {
                    let incoming = self.resources.transport.adopt(now, detached);
                    self.accept(now, incoming);
                }
                WorkerMessage::CloseIoQueues(key) => self.close_io_queues(key),
                WorkerMessage::CloseAssociation(key) => self.close_association(key),
                WorkerMessage::Notice(notice) => self.notices.push_back(notice),
                WorkerMessage::Barrier(barrier) => {
                    self.resources.epoch += 1;
                    if !barrier.scope().is_empty() {
                        self.each_queue(|queue, _| queue.on_barrier(barrier.scope()));
                        self.take_back_waiting(now);
                    }
                    self.barriers.push((barrier, self.resources.epoch));
                    self.barriers_due = now;
                }
                WorkerMessage::Answer(answered) => {
                    let Answered { place, serial, answer } = *answered;
                    if let Some((queue, resources)) = self.open_queue(place.queue()) {
                        queue.on_answer(resources, now, place, serial, answer);
                    }
                }
                WorkerMessage::TellHolders(barrier, tell) => self.tell_holders(&barrier, &tell),
                WorkerMessage::TakeSlowest(tell) => {
                    // Whoever asked may have given up.
                    let _ = tell.send(self.resources.meter.take_slowest());
                }
                WorkerMessage::Limits(table) => {
                    self.resources.limited.replace(table);
                    self.each_queue(|queue, resources| queue.on_limits(resources, now));
                }
                WorkerMessage::Drain => self.drain(),
                WorkerMessage::Close => self.each_queue(|queue, resources| {
                    resources.deferred.push_back(DeferredAction::Remove(queue.index()))
                }),
            }
        }
        true
    }

    fn each_queue(&mut self, mut act: impl FnMut(&mut Queue<T>, &mut Resources<T, B>)) {
        for queue in self.queues.iter_mut().flatten() {
            act(queue, &mut self.resources);
        }
    }

    /// What waits for a device that may never have room again, and is not let in any more, ends.
    fn take_back_waiting(&mut self, now: Duration) {
        let (queues, mut taken) = (&mut self.queues, Vec::new());
        self.resources.drop_waiting(|_, place, op| {
            let since_us = queues[place.queue() as usize].as_mut()?.take_back(place, op)?;
            taken.push(place);
            Some(since_us)
        });
        for place in taken {
            if let Some((queue, resources)) = self.open_queue(place.queue()) {
                queue.on_taken_back(resources, now, place);
            }
        }
    }

    /// Names the associations whose operations a barrier waits for here.
    fn tell_holders(&self, barrier: &Arc<Barrier>, tell: &Sender<AssociationKey>) {
        let Some((_, epoch)) = self.barriers.iter().find(|(other, _)| Arc::ptr_eq(other, barrier)) else {
            return;
        };
        let holders = self.queues.iter().flatten().filter(|queue| queue.has_older(barrier.scope(), *epoch));
        // Whoever asked may have given up.
        for key in holders.filter_map(|queue| queue.association()) {
            let _ = tell.send(key);
        }
    }

    fn close_io_queues(&mut self, key: AssociationKey) {
        self.each_queue(|queue, resources| {
            if queue.is_io_of(key) {
                queue.close(resources);
            }
        });
    }

    fn close_association(&mut self, key: AssociationKey) {
        self.each_queue(|queue, resources| {
            if queue.association() == Some(key) {
                resources.deferred.push_back(DeferredAction::Remove(queue.index()));
            }
        });
    }

    /// Reports the barriers that nothing older is in flight of. It looks at every request, and so not in every turn.
    fn look_at_barriers(&mut self, now: Duration) {
        if self.barriers.is_empty() || now < self.barriers_due {
            return;
        }
        self.barriers_due = now + BARRIER_INTERVAL;
        let queues = &self.queues;
        for (barrier, _) in self.barriers.extract_if(.., |(barrier, epoch)| {
            let scope = barrier.scope();
            scope.is_empty() || !queues.iter().flatten().any(|queue| queue.has_older(scope, *epoch))
        }) {
            barrier.reach(self.id);
        }
    }

    fn drain(&mut self) {
        self.resources.draining = true;
        self.resources.limited.release();
        self.resources.transport.stop_listening();
    }

    fn expire_timers(&mut self, now: Duration) {
        if self.resources.draining {
            self.each_queue(|queue, resources| {
                if queue.is_drained() {
                    queue.close(resources);
                }
            });
        }
        if now < self.timers_due.max(self.resources.no_timer_before) {
            return;
        }
        let transfer_timeout = self.settings.transfer_timeout;
        let mut next = now + transfer_timeout / TRANSFER_CHECKS;
        let mut stalled: HashSet<AssociationKey> = HashSet::new();
        self.each_queue(|queue, resources| {
            if queue.poll_timeout().is_some_and(|due| due <= now) {
                queue.on_timeout(resources, now);
            }
            // Capsules that wait for requests wait for responses to leave: for the host.
            let awaits_us = resources.transport.awaits_us(queue.index()) && !queue.has_capsules();
            if queue.is_stalled(now, transfer_timeout) && !awaits_us {
                resources.counters.transfer_timeouts.add(1);
                if resources.log.allow(now, queue.terms().peer.ip(), Line::Fault, &resources.counters) {
                    tracing::warn!(parent: queue.span(), "the host has taken nothing for {transfer_timeout:?}: closing the queue");
                }
                resources.deferred.push_back(DeferredAction::Remove(queue.index()));
                stalled.extend(queue.association());
            }
            next = next.min(queue.poll_timeout().unwrap_or(Duration::MAX));
        });
        self.timers_due = next.max(now + TIMER_GRAIN);
        if stalled.is_empty() {
            return;
        }
        // What those had is not for queues of the same associations that have done as little.
        self.each_queue(|queue, resources| {
            let is_of_stalled = queue.association().is_some_and(|key| stalled.contains(&key));
            if is_of_stalled && !queue.is_admin() && queue.waits_in_vain(now, transfer_timeout) {
                resources.deferred.push_back(DeferredAction::Remove(queue.index()));
            }
        });
    }

    fn retry_connects(&mut self, now: Duration) {
        if self.resources.connects_due.take_if(|due| *due <= now).is_some() {
            self.each_queue(|queue, resources| queue.retry_connect(resources, now));
        }
    }

    /// Gives free buffers to the queues that wait for them, one to each in turn.
    fn grant_buffers(&mut self, now: Duration) -> bool {
        let mut granted = false;
        for class in Class::ALL {
            // Until none gets one: a queue that got one may want another, for which it waits behind the others.
            loop {
                let mut in_round = false;
                for _ in 0..self.resources.buffers.take_recheck(class) {
                    let Some(index) = self.resources.buffers.next_waiting(class) else { break };
                    if let Some(queue) = &mut self.queues[index as usize] {
                        in_round |= queue.on_buffer(&mut self.resources, now, class);
                    }
                }
                granted |= in_round;
                if !in_round {
                    break;
                }
                self.resources.buffers.recheck(class);
            }
        }
        granted
    }

    /// Lets commands begin that their limits let through now: the queues of a limit take turns.
    fn grant_limited(&mut self, now: Duration) -> bool {
        if !self.resources.limited.is_due(now) {
            return false;
        }
        let (mut left, numbers) = (BATCH, self.resources.limited.take_awaited());
        for &number in &numbers {
            while left > 0
                && let Some(index) = self.resources.limited.next_waiting(number)
            {
                left -= 1;
                let Some((queue, resources)) = self.open_queue(index) else { continue };
                if !queue.on_limit(resources, now, number) {
                    break;
                }
            }
        }
        self.resources.limited.put_back(now, numbers, left == 0);
        left < BATCH
    }

    fn run_deferred(&mut self, now: Duration) -> bool {
        let mut done = false;
        while let Some(action) = self.resources.deferred.pop_front() {
            done = true;
            match action {
                DeferredAction::CloseIoQueues(key) => {
                    self.close_io_queues(key);
                    self.outbox.push_back((Recipient::Others, WorkerMessage::CloseIoQueues(key)));
                }
                DeferredAction::CloseAssociation(key) => {
                    self.close_association(key);
                    self.outbox.push_back((Recipient::Others, WorkerMessage::CloseAssociation(key)));
                }
                DeferredAction::Remove(index) => {
                    if let Some(queue) = &mut self.queues[index as usize] {
                        if queue.state() != QueueState::Closed
                            && self.resources.log.allow(
                                now,
                                queue.terms().peer.ip(),
                                Line::Usual,
                                &self.resources.counters,
                            )
                        {
                            tracing::info!(target: AUDIT, parent: queue.span(), audit = "disconnect", "queue closed");
                        }
                        queue.on_gone(&mut self.resources);
                    }
                    self.remove_queue(index);
                }
            }
        }
        done
    }
}
