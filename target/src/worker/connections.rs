//! The connections of a worker: asked for, accepted or handed over, established, closed.

use super::Worker;
use crate::exec::anonymous::Among;
use crate::exec::queue::Queue;
use crate::exec::resources::{DeferredAction, Resources};
use crate::exec::transport::{Event, Fault, Route, Terms, Transport};
use crate::limits::{ANONYMOUS_SHARE, CM_BUDGET, SHORTAGE_INTERVAL};
use crate::log::AUDIT;
use crate::message::{Recipient, WorkerMessage};
use crate::places::Queues;
use crate::telemetry::Line;
use core::time::Duration;
use nvmf_block::Backend;
use nvmf_subsystem::{Cntlid, ControllerType};
use std::io;
use std::net::IpAddr;

impl<T: Transport, B: Backend> Worker<T, B> {
    pub(super) fn reap_connections(&mut self, now: Duration) -> bool {
        for done in 0..CM_BUDGET {
            let Some(event) = self.resources.transport.poll_event(now) else { return done > 0 };
            self.on_event(now, event);
        }
        true
    }

    fn on_event(&mut self, now: Duration, event: Event<T::Incoming>) {
        match event {
            Event::Incoming(incoming) => self.on_incoming(now, incoming),
            Event::Established(queue) => {
                let mut due = None;
                self.with_queue(queue, |queue, resources| {
                    queue.on_established(resources);
                    due = queue.poll_timeout();
                });
                self.timers_due = self.timers_due.min(due.unwrap_or(Duration::MAX));
            }
            Event::Failed(index, failure) => {
                self.with_queue(index, |queue, resources| {
                    tracing::debug!(parent: queue.span(), %failure, "connection set-up failed");
                    queue.on_gone(resources);
                });
                self.remove_queue(index);
            }
            Event::Disconnected { queue: index, fault, cause } => {
                self.with_queue(index, |queue, resources| {
                    match fault {
                        Some(Fault::Violation) => resources.counters.violations.add(1),
                        Some(Fault::Stall) => resources.counters.transfer_timeouts.add(1),
                        None => {}
                    }
                    let line = if fault.is_some() { Line::Fault } else { Line::Usual };
                    if resources.log.allow(now, queue.terms().peer.ip(), line, &resources.counters) {
                        tracing::info!(target: AUDIT, parent: queue.span(), audit = "disconnect", "queue disconnected: {cause}");
                    }
                    queue.on_gone(resources);
                });
                self.remove_queue(index);
            }
            Event::Refused { peer, cause, at_tls } => {
                let counters = &self.resources.counters;
                if at_tls { &counters.tls_refused } else { &counters.rejected_parameters }.add(1);
                if self.resources.log.allow(now, peer.ip(), Line::Fault, counters) {
                    tracing::warn!(target: AUDIT, %peer, audit = "refuse", "connection rejected: {cause}");
                }
            }
            Event::NotAllowed { peer, local } => {
                let counters = &self.resources.counters;
                counters.rejected_address.add(1);
                if self.resources.log.allow(now, peer.ip(), Line::Fault, counters) {
                    tracing::warn!(
                        target: AUDIT, %peer, audit = "refuse",
                        "connection rejected: `allow` of the listener at {local} has not this address"
                    );
                }
            }
            Event::Shortage(error) => self.on_shortage(now, &error),
            Event::Yielded { peer } => {
                let counters = &self.resources.counters;
                counters.half_open_closed.add(1);
                if self.resources.log.allow(now, peer.ip(), Line::Fault, counters) {
                    tracing::warn!(%peer, "connection closed: it asked for nothing, and newer ones need its place");
                }
            }
            Event::DeviceRemoved => self.device_removed = true,
        }
    }

    /// While it lasts, there is one for each connection that comes in.
    fn on_shortage(&mut self, now: Duration, error: &io::Error) {
        self.resources.counters.accepts_failed.add(1);
        if self.shortage_told.is_none_or(|told| now.saturating_sub(told) >= SHORTAGE_INTERVAL) {
            self.shortage_told = Some(now);
            tracing::warn!(
                "no connection can be accepted: {error}: raise the limit of open files (LimitNOFILE= in the unit, \
                 ulimit -n), or lower connections or workers"
            );
        }
    }

    fn with_queue(&mut self, index: u32, act: impl FnOnce(&mut Queue<T>, &mut Resources<T, B>)) {
        if let Some(queue) = &mut self.queues[index as usize] {
            act(queue, &mut self.resources);
        }
    }

    /// Accepts, rejects, or hands over.
    fn on_incoming(&mut self, now: Duration, incoming: T::Incoming) {
        let load = &self.resources.load;
        let route = Route { here: self.id, load, settings: &self.settings };
        let to = match self.resources.transport.route(&incoming, route) {
            Ok(to) => to,
            Err(refusal) => return self.refuse(now, incoming, refusal),
        };
        if to == self.id {
            return self.accept(now, incoming);
        }
        if let Some(detached) = self.resources.transport.detach(incoming) {
            self.outbox.push_back((Recipient::Worker(to), WorkerMessage::Adopt(detached)));
        }
    }

    pub(super) fn accept(&mut self, now: Duration, incoming: T::Incoming) {
        if let Err((incoming, refusal)) = self.try_accept(now, incoming) {
            self.refuse(now, incoming, refusal);
        }
    }

    fn refuse(&mut self, now: Duration, incoming: T::Incoming, refusal: T::Refusal) {
        let counters = &self.resources.counters;
        if refusal == T::NO_ROOM {
            counters.rejected_resources.add(1);
        } else {
            counters.rejected_parameters.add(1);
        }
        let peer = T::peer(&incoming);
        if self.resources.log.allow(now, peer.ip(), Line::Fault, counters) {
            tracing::warn!(target: AUDIT, %peer, audit = "refuse", "connection rejected: {refusal}");
        }
        self.resources.transport.refuse(incoming, refusal);
    }

    /// Whether there is room for a queue on these terms, if need be in the place of connections that have brought no
    /// Connect, or of discovery controllers.
    fn make_room(&mut self, now: Duration, terms: &Terms) -> bool {
        let peer = terms.peer.ip();
        let share = (self.settings.connections / ANONYMOUS_SHARE).max(1);
        // Hosts set up the connections of all the I/O queues that they were granted before the first Connect.
        let is_host = || self.resources.load.has_controller(Cntlid(0), peer);
        if self.resources.buffers.owners.anonymous(peer) >= share
            && !is_host()
            && !self.close_anonymous(now, peer, Among::Own)
        {
            return false;
        }
        while !self.resources.transport.has_room(terms) {
            if !self.close_anonymous(now, peer, Among::Kind { io: terms.is_for_io() }) {
                return false;
            }
        }
        !self.vacant.is_empty() || self.close_anonymous(now, peer, Among::Any)
    }

    /// Closes a connection that anyone may have, for one from the address `new`: one that has brought no Connect, or else a
    /// discovery controller's.
    fn close_anonymous(&mut self, now: Duration, new: IpAddr, among: Among) -> bool {
        let counters = &self.resources.counters;
        let owners = &mut self.resources.buffers.owners;
        let index = if let Some(index) = owners.first_to_yield(now, new, among) {
            counters.unconnected_closed.add(1);
            index
        } else if let Some(index) = owners.take_discovery(now, new, among) {
            counters.discovery_closed.add(1);
            index
        } else {
            return false;
        };
        if let Some(queue) = &mut self.queues[index as usize] {
            queue.on_gone(&mut self.resources);
        }
        self.remove_queue(index);
        true
    }

    /// Tells the other workers how many queues this one takes.
    pub(super) fn publish_places(&self) {
        let all = self.settings.connections;
        let io = self.resources.transport.io_queues_free(self.settings.queue_entries);
        let io = u32::try_from(io).unwrap_or(u32::MAX).min(all);
        self.resources.load.add_places(Queues { all, io });
    }

    /// Tells the other workers how many I/O queues would still fit here.
    pub(super) fn publish_room(&self) {
        let free =
            self.resources.transport.io_queues_free(self.settings.queue_entries).min(self.vacant.len());
        self.resources.load.set_io_queues_free(self.id, free);
    }

    fn try_accept(&mut self, now: Duration, incoming: T::Incoming) -> Result<(), (T::Incoming, T::Refusal)> {
        let terms = match self.resources.transport.terms(&incoming, &self.settings) {
            Ok(terms) => terms,
            Err(refusal) => return Err((incoming, refusal)),
        };
        if self.resources.draining || !self.make_room(now, &terms) {
            return Err((incoming, T::NO_ROOM));
        }
        let Some(&index) = self.vacant.last() else { return Err((incoming, T::NO_ROOM)) };
        if !self.resources.transport.accept(now, incoming, index, &terms)? {
            return Ok(());
        }
        self.resources.counters.tls_accepted.add(terms.secure_channel.is_some().into());
        let queue = Queue::new(&mut self.resources, now, index, terms);
        self.resources.counters.accepted.add(1);
        self.resources.load.add(self.id);
        self.timers_due = self.timers_due.min(queue.poll_timeout().unwrap_or(Duration::MAX));
        self.queues[index as usize] = Some(Box::new(queue));
        self.vacant.pop();
        self.publish_room();
        Ok(())
    }

    /// Removes a closed queue without operations in flight, and reports it to the registry.
    pub(super) fn remove_queue(&mut self, index: u32) {
        let slot = &mut self.queues[index as usize];
        let Some(queue) = slot.take_if(|queue| queue.is_over()) else { return };
        self.vacant.push(index);
        // What was to end it must not end the next that has its place.
        self.resources.deferred.retain(|&action| action != DeferredAction::Remove(index));
        self.resources.ready_list.retain(|&queued| queued != index);
        self.resources.newly_ready.retain(|&queued| queued != index);
        self.resources.unfinished.retain(|&listed| listed != index);
        self.resources.load.remove(self.id);
        self.resources.counters.closed.add(1);
        let peer = queue.terms().peer.ip();
        let admitted = queue.into_parts(&mut self.resources);
        self.publish_room();
        let Some((association, qid)) = admitted else { return };
        if association.controller_type() == ControllerType::Io {
            self.resources.load.give_place_back(peer, qid.0 != 0);
        }
        if qid.0 == 0 {
            self.resources.load.remove_controller(association.key());
        }
        let others = {
            let mut registry =
                self.resources.registry.lock().expect("no panic happened under the registry's lock");
            registry.close_queue(&association, qid)
        };
        if !others.is_empty() {
            self.resources.deferred.push_back(DeferredAction::CloseIoQueues(association.key()));
        }
    }
}
