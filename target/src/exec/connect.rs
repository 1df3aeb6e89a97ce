//! Connect: from the registry's answer to the queue's.

use super::queue::Queue;
use super::resources::{DeferredAction, Resources};
use super::transport::Transport;
use crate::limits::{CONNECT_RETRY, CONNECT_WAIT};
use crate::log::AUDIT;
use crate::telemetry::Line;
use core::time::Duration;
use nvmf_block::Backend;
use nvmf_subsystem::{Admission, Admitted, AssociationKey, ConnectRequest, ControllerType, Refusal};
use std::sync::Arc;

/// A Connect that the registry is asked about, again while what refuses it is about to pass: hosts give up at the first
/// refusal where they were told to connect, not to reconnect.
pub(super) struct PendingConnect {
    request: u16,
    connect: Box<ConnectRequest>,
    /// From then on the refusal is told.
    until: Duration,
    again: Duration,
    /// What was told of it to log, counters and other workers.
    duplicate_told: bool,
    lost_told: Vec<AssociationKey>,
}

impl PendingConnect {
    pub(super) fn new(now: Duration, request: u16, connect: Box<ConnectRequest>) -> Self {
        let until = now + CONNECT_WAIT;
        Self { request, connect, until, again: now, duplicate_told: false, lost_told: Vec::new() }
    }

    /// The connection is gone.
    pub(super) fn abandon(self) {
        self.connect.abandon();
    }
}

impl<T: Transport> Queue<T> {
    /// Asks the registry, and answers, or waits.
    pub(super) fn connect<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        now: Duration,
        mut pending: PendingConnect,
    ) {
        let mut registry = resources.registry.lock().expect("no panic happened under the registry's lock");
        let has_place =
            registry.asks_for_discovery(&pending.connect) || self.has_place(resources, &pending.connect);
        let admission = if has_place {
            registry.connect(now, &pending.connect, now >= resources.no_timer_before)
        } else {
            Admission::refused(Refusal::Share)
        };
        drop(registry);
        self.act_on(resources, now, &mut pending, &admission);
        match &admission.outcome {
            Err(refusal) if refusal.passes_soon() && now < pending.until => {
                pending.again = now + CONNECT_RETRY;
                self.await_registry(resources, pending);
                return;
            }
            Err(refusal) => {
                resources.counters.connects_refused.add(1);
                resources.meter.on_refused(refusal.reason());
                if resources.log.allow(now, self.terms.peer.ip(), Line::Fault, &resources.counters) {
                    tracing::warn!(target: AUDIT, parent: &self.span, audit = "refuse", "Connect refused: {refusal}");
                }
            }
            Ok(admitted) => self.on_admitted(resources, now, &pending.connect, admitted),
        }
        let step = self.engine.on_admission(now, pending.connect, admission);
        self.take_step(resources, now, pending.request, step);
    }

    /// Whether the machine may have one more queue of an I/O controller: others need places, too.
    fn has_place<B: Backend>(&self, resources: &Resources<T, B>, connect: &ConnectRequest) -> bool {
        let left = || resources.load.places_left_for(self.terms.peer.ip());
        if connect.qid().0 == 0 { left().all > 0 } else { left().io > 0 }
    }

    /// Discovery controllers, which anyone may have and keep active, never take the places of hosts with disks.
    fn bound_discovery<B: Backend>(&self, resources: &mut Resources<T, B>) {
        let max = resources.discovery_max;
        if let Some(index) = resources.buffers.owners.take_surplus_discovery(self.owner, max) {
            resources.counters.discovery_closed.add(1);
            resources.deferred.push_back(DeferredAction::Remove(index));
        }
    }

    fn await_registry<B: Backend>(&mut self, resources: &mut Resources<T, B>, pending: PendingConnect) {
        resources.connects_due = resources.connects_due.into_iter().chain([pending.again]).min();
        self.pending_connect = Some(pending);
    }

    /// Asks the registry again, if it is time.
    pub fn retry_connect<B: Backend>(&mut self, resources: &mut Resources<T, B>, now: Duration) {
        match self.pending_connect.take() {
            Some(pending) if now < pending.again => self.await_registry(resources, pending),
            Some(pending) => self.connect(resources, now, pending),
            None => {}
        }
    }

    /// What the answer means to others than the host.
    fn act_on<B: Backend>(
        &self,
        resources: &mut Resources<T, B>,
        now: Duration,
        pending: &mut PendingConnect,
        admission: &Admission,
    ) {
        if let Some(duplicate) = &admission.duplicate_host_id
            && !pending.duplicate_told
        {
            pending.duplicate_told = true;
            resources.counters.duplicate_host_ids.add(1);
            if resources.log.allow(now, self.terms.peer.ip(), Line::Fault, &resources.counters) {
                tracing::warn!(parent: &self.span, "{duplicate}");
            }
        }
        if let Some(key) = admission.closed {
            resources.counters.discovery_closed.add(1);
            resources.deferred.push_back(DeferredAction::CloseAssociation(key));
        }
        for &key in &admission.lost {
            if !pending.lost_told.contains(&key) {
                pending.lost_told.push(key);
                resources.counters.lost_closed.add(1);
                resources.deferred.push_back(DeferredAction::CloseAssociation(key));
            }
        }
    }

    fn on_admitted<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        now: Duration,
        connect: &ConnectRequest,
        admitted: &Admitted,
    ) {
        self.grow(admitted.entries());
        let (association, qid) = (admitted.association().clone(), admitted.qid());
        resources.transport.resize(self.index, admitted.entries(), qid.0 == 0);
        if self.terms.qid.is_none() {
            self.span.record("qid", qid.0);
        }
        self.span.record("cntlid", association.key().cntlid.0);
        self.span.record("hostnqn", tracing::field::display(association.host_nqn()));
        if resources.log.allow(now, self.terms.peer.ip(), Line::Usual, &resources.counters) {
            let tls = if self.terms.secure_channel.is_some() { " over TLS" } else { "" };
            let (subsystem, entries) = (association.subsystem_nqn(), admitted.entries());
            let flow = if connect.disables_sq_flow_control() { ", without SQ flow control" } else { "" };
            let next = if admitted.must_authenticate() { ", must authenticate" } else { "" };
            tracing::info!(target: AUDIT, parent: &self.span, audit = "connect", "connected to {subsystem} with {entries} entries{tls}{flow}{next}");
        }
        resources.buffers.owners.connect(self.index, &mut self.owner, &association, now);
        if association.controller_type() == ControllerType::Discovery {
            self.bound_discovery(resources);
        } else {
            let (load, peer) = (&resources.load, self.terms.peer.ip());
            load.take_place(peer, qid.0 != 0);
            if qid.0 == 0 {
                let served = load.io_queues_free().min(load.places_left_for(peer).io);
                association.limit_io_queues(u16::try_from(served).unwrap_or(u16::MAX));
                load.add_controller(Arc::clone(&association), peer);
            }
        }
        self.host = resources.meter.connect(&association, qid);
        self.admitted = Some((association, qid));
        self.find_host_limit(resources);
    }
}
