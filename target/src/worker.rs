//! One worker: a road, a floor, the memory between them, and the queues that live on it.
//!
//! [`Worker::turn`] is all there is: it reads no clock, makes no system call of its own, and takes no lock but the
//! registry's when a host connects or leaves. The daemon's threads call it in a loop; the simulator calls it under a virtual
//! clock.

mod connections;

use crate::limits::{
    BACKLOG, BATCH, BATCH_IN_COMPANY, CAPSULES_IN_A_ROW, COMPANY_TURNS, COMPLETIONS_BUDGET, MAIL_BUDGET,
    TIMER_GRAIN,
};
use crate::mail::{Mail, Recipient, WorkerId};
use crate::settings::{Load, Settings};
use crate::telemetry::Counters;
use crate::transport::rdma::buffers::{Class, SetUpError};
use crate::transport::rdma::edges::{Deed, Edges, Lent};
use crate::transport::rdma::name::{Kind, Place};
use crate::transport::rdma::queue::{Life, Queue};
use core::time::Duration;
use nvmf_block::Backend;
use nvmf_rdma::{Completion, ListenError, ListenerId, Provider, QueuePairId};
use nvmf_subsystem::{AssociationKey, Registry};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// What a turn came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Something was done: turn again before sleeping.
    pub worked: bool,
    /// When to turn again even if nothing comes.
    pub timeout: Option<Duration>,
}

/// One worker. `D` travels in its mails.
pub struct Worker<P: Provider, B: Backend> {
    id: WorkerId,
    settings: Settings,
    load: Arc<Load>,
    edges: Edges<P, B>,
    queues: Vec<Option<Box<Queue>>>,
    vacant: Vec<u32>,
    by_qp: HashMap<QueuePairId, u32>,
    listeners: Vec<(ListenerId, u16)>,
    /// Where the last I/O queue went.
    last_pick: WorkerId,
    inbox: VecDeque<Mail<P::Detached>>,
    outbox: VecDeque<(Recipient, Mail<P::Detached>)>,
    completions: Vec<Completion>,
    executed: Vec<nvmf_block::Completion>,
    timers_due: Duration,
    /// Turns for which it is remembered that somebody with little came between.
    company: u8,
}

impl<P: Provider, B: Backend> Worker<P, B> {
    /// A worker without listeners and queues.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn new(
        id: WorkerId,
        load: Arc<Load>,
        settings: Settings,
        registry: Arc<Mutex<Registry>>,
        provider: P,
        backend: B,
    ) -> Result<Self, SetUpError> {
        let edges = Edges::new(provider, backend, registry, &settings)?;
        let connections = settings.connections;
        Ok(Self {
            id,
            load,
            edges,
            queues: (0..connections).map(|_| None).collect(),
            vacant: (0..connections).rev().collect(),
            by_qp: HashMap::with_capacity(connections as usize),
            listeners: Vec::new(),
            last_pick: id,
            inbox: VecDeque::with_capacity(MAIL_BUDGET),
            outbox: VecDeque::with_capacity(MAIL_BUDGET),
            completions: Vec::with_capacity(COMPLETIONS_BUDGET),
            executed: Vec::with_capacity(BATCH),
            timers_due: Duration::ZERO,
            company: 0,
            settings,
        })
    }

    /// Listens for connections of the port of that number.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen(&mut self, address: SocketAddr, port: u16) -> Result<SocketAddr, ListenError> {
        let (listener, address) = self.edges.provider.listen(address, BACKLOG)?;
        self.listeners.push((listener, port));
        Ok(address)
    }

    /// Puts a mail into the inbox: read in the next turn.
    pub fn deliver(&mut self, mail: Mail<P::Detached>) {
        self.inbox.push_back(mail);
    }

    /// A mail for another worker.
    pub fn poll_mail(&mut self) -> Option<(Recipient, Mail<P::Detached>)> {
        self.outbox.pop_front()
    }

    /// What it counts.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.edges.counters
    }

    /// Queues that are there.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.queues.len() - self.vacant.len()
    }

    /// Data buffers that are out.
    #[must_use]
    pub fn buffers_out(&self) -> usize {
        self.edges.buffers.out()
    }

    /// The road, to arm and to sleep on.
    pub fn provider(&mut self) -> &mut P {
        &mut self.edges.provider
    }

    /// The floor, to sleep in.
    pub fn backend(&mut self) -> &mut B {
        &mut self.edges.backend
    }

    /// Does what there is to do, each kind up to its budget, then rings each doorbell once.
    pub fn turn(&mut self, now: Duration) -> Progress {
        let mut worked = self.reap_connections(now);
        worked |= self.reap_road(now);
        worked |= self.take_newcomers(now);
        worked |= self.take_capsules(now);
        worked |= self.reap_floor(now);
        worked |= self.read_mail(now);
        self.expire_timers(now);
        worked |= self.grant_buffers(now);
        worked |= self.do_deeds(now);
        self.ring();
        let provider = self.edges.provider.poll_timeout();
        let timers = (self.queues() > 0).then_some(self.timers_due);
        let timeout = provider.into_iter().chain(timers).min();
        Progress { worked, timeout }
    }

    fn ring(&mut self) {
        self.edges.submit_waiting();
        self.edges.provider.flush();
        self.edges.backend.flush();
        self.edges.lent = Lent::default();
    }

    fn reap_road(&mut self, now: Duration) -> bool {
        self.completions.clear();
        self.edges.provider.poll_cq(self.edges.cq, &mut self.completions);
        for at in 0..self.completions.len() {
            let completion = self.completions[at];
            self.on_completion(now, &completion);
        }
        !self.completions.is_empty()
    }

    fn on_completion(&mut self, now: Duration, completion: &Completion) {
        let (kind, place) = Place::of_work_request(completion.id);
        // A queue that was removed earlier in this batch has nothing more to say.
        let Some(queue) = self.queues.get_mut(place.queue as usize).and_then(Option::as_mut) else { return };
        if queue.qp() != completion.queue_pair || queue.life() == Life::Gone {
            return;
        }
        let edges = &mut self.edges;
        if !completion.status.is_success() {
            // An event tells of the end; what made it come is worth a line.
            if queue.life() == Life::Live && completion.status != nvmf_rdma::WcStatus::Flushed {
                edges.counters.transport_errors.add(1);
                if edges.log.allow(now, &edges.counters) {
                    tracing::warn!(parent: queue.span(), "{kind:?} failed, closing the queue: {}", completion.status);
                }
                queue.close(edges);
            }
            return;
        }
        match kind {
            Kind::Receive => queue.on_receive(edges, place.slot, completion.byte_len),
            Kind::Read => queue.on_read(edges, now, place),
            Kind::Write => queue.on_written(edges, now, place),
            Kind::Send => queue.on_sent(edges, now, place),
        }
    }

    /// Lets those go first who were not in line and bring little, and answers them before the others' work begins: a turn
    /// full of a flood takes many times as long as one command. They stand in line for that all the same: who comes back
    /// before the line went round has its turn there, so that many who bring little do not starve one who brings much.
    fn take_newcomers(&mut self, now: Duration) -> bool {
        let contested = self.edges.capsule_line.len() + self.edges.newcomers.len() > 1;
        let mut left = BATCH;
        while let Some(index) = self.edges.newcomers.pop_front() {
            let Some(queue) = &mut self.queues[index as usize] else { continue };
            if contested && queue.is_modest() && left >= CAPSULES_IN_A_ROW {
                left -= queue.take_capsules(&mut self.edges, now, CAPSULES_IN_A_ROW);
                // Admin commands set timers (the Keep Alive Timeout).
                self.timers_due = self.timers_due.min(queue.poll_timeout().unwrap_or(Duration::MAX));
            }
            queue.stand_in_line(&mut self.edges);
        }
        if left < BATCH {
            self.company = COMPANY_TURNS;
            self.reap_floor(now);
            self.ring();
        }
        left < BATCH
    }

    /// Lets the queues hand in capsules, some each in turn: who floods does not keep the others waiting.
    fn take_capsules(&mut self, now: Duration) -> bool {
        let batch = if self.company == 0 { BATCH } else { BATCH_IN_COMPANY };
        self.company = self.company.saturating_sub(1);
        let mut left = batch;
        let mut full = false;
        while left > 0
            && !full
            && let Some(index) = self.edges.capsule_line.pop_front()
        {
            let Some(queue) = &mut self.queues[index as usize] else { continue };
            left -= queue.take_capsules(&mut self.edges, now, left.min(CAPSULES_IN_A_ROW));
            full = self.edges.packet_is_full();
            if queue.is_ready() {
                queue.stand_in_line(&mut self.edges);
            }
            // Admin commands set timers (the Keep Alive Timeout).
            self.timers_due = self.timers_due.min(queue.poll_timeout().unwrap_or(Duration::MAX));
        }
        left < batch
    }

    fn reap_floor(&mut self, now: Duration) -> bool {
        self.executed.clear();
        self.edges.backend.poll(&mut self.executed);
        for at in 0..self.executed.len() {
            let nvmf_block::Completion { tag, result } = self.executed[at];
            let place = Place::of_tag(tag);
            let queue = self.queues[place.queue as usize].as_mut();
            let queue = queue.expect("a queue lives until its last operation completed");
            queue.on_executed(&mut self.edges, now, place, result);
            if queue.life() == Life::Gone {
                self.bury(place.queue);
            }
        }
        !self.executed.is_empty()
    }

    fn read_mail(&mut self, now: Duration) -> bool {
        for done in 0..MAIL_BUDGET {
            let Some(mail) = self.inbox.pop_front() else { return done > 0 };
            match mail {
                Mail::Adopt(detached, offer) => {
                    let request = self.edges.provider.adopt(now, detached);
                    self.accept(now, request, &offer);
                }
                Mail::CloseIoQueues(key) => self.close_io_queues(key),
                Mail::CloseAssociation(key) => self.close_association(key),
                Mail::Notice(notice) => self.each_queue(|queue, edges| queue.on_notice(edges, now, &notice)),
                Mail::Drain => self.drain(),
                Mail::Close => {
                    self.each_queue(|queue, edges| edges.deeds.push_back(Deed::Remove(queue.index())))
                }
            }
        }
        true
    }

    fn each_queue(&mut self, mut act: impl FnMut(&mut Queue, &mut Edges<P, B>)) {
        for queue in self.queues.iter_mut().flatten() {
            act(queue, &mut self.edges);
        }
    }

    fn close_io_queues(&mut self, key: AssociationKey) {
        self.each_queue(|queue, edges| {
            if queue.is_io_of(key) {
                queue.close(edges);
            }
        });
    }

    fn close_association(&mut self, key: AssociationKey) {
        self.each_queue(|queue, edges| {
            if queue.association() == Some(key) {
                edges.deeds.push_back(Deed::Remove(queue.index()));
            }
        });
    }

    fn drain(&mut self) {
        self.edges.draining = true;
        for (listener, _) in self.listeners.drain(..) {
            self.edges.provider.unlisten(listener);
        }
    }

    fn expire_timers(&mut self, now: Duration) {
        if self.edges.draining {
            self.each_queue(|queue, edges| {
                if queue.is_drained() {
                    queue.close(edges);
                }
            });
        }
        if now < self.timers_due {
            return;
        }
        let mut next = Duration::MAX;
        self.each_queue(|queue, edges| {
            if queue.poll_timeout().is_some_and(|due| due <= now) {
                queue.on_timeout(edges, now);
            }
            next = next.min(queue.poll_timeout().unwrap_or(Duration::MAX));
        });
        self.timers_due = next.max(now + TIMER_GRAIN);
    }

    /// Gives free buffers to the queues in line, one a turn each.
    fn grant_buffers(&mut self, now: Duration) -> bool {
        let mut granted = false;
        for class in Class::ALL {
            while self.edges.buffers.available(class) > 0
                && let Some(index) = self.edges.buffers.line(class).pop_front()
            {
                // A queue that is gone leaves its place in line behind.
                if let Some(queue) = &mut self.queues[index as usize] {
                    queue.on_buffer(&mut self.edges, now, class);
                    granted = true;
                }
            }
        }
        granted
    }

    fn do_deeds(&mut self, now: Duration) -> bool {
        let mut done = false;
        while let Some(deed) = self.edges.deeds.pop_front() {
            done = true;
            match deed {
                Deed::CloseIoQueues(key) => {
                    self.close_io_queues(key);
                    self.outbox.push_back((Recipient::Others, Mail::CloseIoQueues(key)));
                }
                Deed::CloseAssociation(key) => {
                    self.close_association(key);
                    self.outbox.push_back((Recipient::Others, Mail::CloseAssociation(key)));
                }
                Deed::Remove(index) => {
                    if let Some(queue) = &mut self.queues[index as usize] {
                        if queue.life() != Life::Gone && self.edges.log.allow(now, &self.edges.counters) {
                            tracing::info!(parent: queue.span(), "queue closed");
                        }
                        queue.on_gone(&mut self.edges);
                    }
                    self.bury(index);
                }
            }
        }
        done
    }
}
