//! The connections of a worker: requested, accepted or handed over, established, closed.

use super::Worker;
use crate::limits::{ACCEPT_TIMEOUT, ANONYMOUS_SHARE, CM_BUDGET, UNCONNECTED_CROWD, UNCONNECTED_GRACE};
use crate::message::{Recipient, WorkerMessage};
use crate::transport::rdma::listener::{Offer, Terms, rejection};
use crate::transport::rdma::queue::Queue;
use crate::transport::rdma::resources::{DeferredAction, Resources};
use core::cmp::Reverse;
use core::time::Duration;
use nvme_proto::rdma::{RejectStatus, Request};
use nvmf_block::Backend;
use nvmf_rdma::{CmEvent, ConnectParameters, DisconnectCause, Provider, QueuePairId, RequestId};
use nvmf_subsystem::limits::DISCOVERY_GRACE;
use std::net::IpAddr;

impl<P: Provider, B: Backend> Worker<P, B> {
    pub(super) fn reap_connections(&mut self, now: Duration) -> bool {
        for done in 0..CM_BUDGET {
            let Some(event) = self.resources.provider.poll_cm(now) else { return done > 0 };
            self.on_cm_event(now, event);
        }
        true
    }

    fn on_cm_event(&mut self, now: Duration, event: CmEvent) {
        match event {
            CmEvent::ConnectRequest {
                listener,
                request,
                peer,
                private_data,
                peer_responder_resources,
                ..
            } => {
                let port = self.listeners.iter().find(|(id, _)| *id == listener).map_or(0, |&(_, port)| port);
                self.on_offer(now, request, Offer { port, peer, private_data, peer_responder_resources });
            }
            CmEvent::Established { queue_pair, .. } => {
                let mut due = None;
                self.with_qp(queue_pair, |queue, resources| {
                    queue.on_established(resources);
                    due = queue.poll_timeout();
                });
                self.timers_due = self.timers_due.min(due.unwrap_or(Duration::MAX));
            }
            CmEvent::ConnectFailed { queue_pair, failure } => {
                self.with_qp(queue_pair, |queue, resources| {
                    tracing::debug!(parent: queue.span(), %failure, "connection set-up failed");
                    queue.on_gone(resources);
                });
                self.remove_queue_of(queue_pair);
            }
            CmEvent::Disconnected { queue_pair, cause } => {
                self.with_qp(queue_pair, |queue, resources| {
                    if matches!(cause, DisconnectCause::PeerViolation(_)) {
                        resources.counters.violations.add(1);
                    }
                    if resources.log.allow(now, &resources.counters) {
                        tracing::info!(parent: queue.span(), "queue disconnected: {cause}");
                    }
                    queue.on_gone(resources);
                });
                self.remove_queue_of(queue_pair);
            }
            CmEvent::DeviceRemoved => self.device_removed = true,
        }
    }

    fn with_qp(&mut self, qp: QueuePairId, act: impl FnOnce(&mut Queue, &mut Resources<P, B>)) {
        if let Some(&index) = self.by_qp.get(&qp)
            && let Some(queue) = &mut self.queues[index as usize]
        {
            act(queue, &mut self.resources);
        }
    }

    fn remove_queue_of(&mut self, qp: QueuePairId) {
        if let Some(&index) = self.by_qp.get(&qp) {
            self.remove_queue(index);
        }
    }

    /// Accepts, rejects, or hands over.
    fn on_offer(&mut self, now: Duration, request: RequestId, offer: Offer) {
        let wanted = Request::parse(offer.private_data.as_bytes());
        if let Ok(Request { qid, cntlid, .. }) = wanted
            && qid.0 != 0
            && qid.0 <= self.settings.io_queues
            && !self.resources.load.has_controller(cntlid, offer.peer.ip())
        {
            return self.reject(now, request, &offer, RejectStatus::INVALID_CNTLID);
        }
        let to = match wanted {
            Err(_) => self.id,
            // An Admin queue goes where the fewest queues are; I/O queues go round, so that those of one host spread
            // out.
            Ok(request) if request.qid.0 == 0 => self.resources.load.least(),
            Ok(_) => {
                self.last_pick = self.resources.load.after(self.last_pick);
                self.last_pick
            }
        };
        if to == self.id {
            return self.accept(now, request, &offer);
        }
        if let Some(detached) = self.resources.provider.detach(request) {
            let message = WorkerMessage::Adopt(detached, Box::new(offer));
            self.outbox.push_back((Recipient::Worker(to), message));
        }
    }

    pub(super) fn accept(&mut self, now: Duration, request: RequestId, offer: &Offer) {
        if let Err(status) = self.try_accept(now, request, offer) {
            self.reject(now, request, offer, status);
        }
    }

    fn reject(&mut self, now: Duration, request: RequestId, offer: &Offer, status: RejectStatus) {
        let counters = &self.resources.counters;
        if status == RejectStatus::NO_RESOURCES {
            counters.rejected_resources.add(1);
        } else {
            counters.rejected_parameters.add(1);
        }
        if self.resources.log.allow(now, counters) {
            tracing::warn!(peer = %offer.peer, "connection rejected: {status}");
        }
        self.resources.provider.reject(request, &rejection(status));
    }

    /// Whether there is room for a queue on these terms, if need be in the place of connections that have brought no
    /// Connect, or of silent discovery controllers.
    fn make_room(&mut self, now: Duration, terms: &Terms, peer: IpAddr) -> bool {
        let share = (self.settings.connections / ANONYMOUS_SHARE).max(1);
        if self.resources.buffers.owners.anonymous(peer) >= share
            && !self.close_anonymous(now, peer, |queue_peer, _| queue_peer == peer)
        {
            return false;
        }
        let admin = terms.qid.0 == 0;
        while !Queue::fits(&mut self.resources, terms) {
            if !self.close_anonymous(now, peer, |_, is_admin| is_admin == admin) {
                return false;
            }
        }
        !self.vacant.is_empty() || self.close_anonymous(now, peer, |_, _| true)
    }

    /// Closes a connection that anyone may have, for one from `newcomer`: one that has brought no Connect, or else a
    /// silent discovery controller's; of the machine that has most of both, the one that has been silent for longest.
    fn close_anonymous(
        &mut self,
        now: Duration,
        newcomer: IpAddr,
        among: impl Fn(IpAddr, bool) -> bool,
    ) -> bool {
        let owners = &self.resources.buffers.owners;
        let of_newcomer = owners.unconnected(newcomer);
        let candidates = self.queues.iter().flatten().filter_map(|queue| {
            let unconnected = queue.unconnected();
            let (since, peer) = unconnected.or_else(|| queue.discovery())?;
            let crowded = || {
                let count = owners.unconnected(peer);
                count >= UNCONNECTED_CROWD && count >= 2 * of_newcomer
            };
            let silent = now.saturating_sub(since);
            let yields = match unconnected {
                Some(_) => silent >= UNCONNECTED_GRACE || crowded(),
                None => silent >= DISCOVERY_GRACE,
            };
            let rank = (unconnected.is_none(), Reverse(owners.anonymous(peer)), since, queue.index());
            (yields && among(peer, queue.is_admin())).then_some(rank)
        });
        let Some((is_discovery, .., index)) = candidates.min() else { return false };
        let counters = &self.resources.counters;
        if is_discovery { &counters.discovery_closed } else { &counters.unconnected_closed }.add(1);
        if let Some(queue) = &mut self.queues[index as usize] {
            queue.on_gone(&mut self.resources);
        }
        self.remove_queue(index);
        true
    }

    /// Tells the other workers how many I/O queues would still fit here.
    pub(super) fn publish_room(&self) {
        let receives = Queue::receives_for(self.settings.queue_entries);
        let free = (self.resources.io_receives.available() / receives).min(self.vacant.len());
        self.resources.load.set_io_queues_free(self.id, free);
    }

    fn try_accept(&mut self, now: Duration, request: RequestId, offer: &Offer) -> Result<(), RejectStatus> {
        let capabilities = self.resources.provider.capabilities();
        let terms = Terms::agree(
            offer,
            self.settings.queue_entries,
            self.settings.io_queues,
            capabilities.max_read_depth,
        )?;
        if self.resources.draining || !self.make_room(now, &terms, offer.peer.ip()) {
            return Err(RejectStatus::NO_RESOURCES);
        }
        let index = *self.vacant.last().ok_or(RejectStatus::NO_RESOURCES)?;
        let mut queue = Queue::new(&mut self.resources, now, index, offer.port, terms, offer.peer)
            .map_err(|_| RejectStatus::NO_RESOURCES)?;
        let parameters = ConnectParameters {
            private_data: terms.private_data(),
            responder_resources: 0,
            initiator_depth: terms.read_depth,
            timeout: ACCEPT_TIMEOUT,
        };
        if self.resources.provider.accept(now, request, queue.qp(), &parameters).is_err() {
            // The host did not wait.
            queue.on_gone(&mut self.resources);
            let _ = queue.into_parts(&mut self.resources);
            return Ok(());
        }
        self.resources.counters.accepted.add(1);
        self.resources.load.add(self.id);
        self.timers_due = self.timers_due.min(queue.poll_timeout().unwrap_or(Duration::MAX));
        self.by_qp.insert(queue.qp(), index);
        self.queues[index as usize] = Some(Box::new(queue));
        self.vacant.pop();
        self.publish_room();
        Ok(())
    }

    /// Removes a closed queue without operations in flight, and reports it to the registry.
    pub(super) fn remove_queue(&mut self, index: u32) {
        let slot = &mut self.queues[index as usize];
        let Some(queue) = slot.take_if(|queue| queue.is_over()) else { return };
        self.by_qp.remove(&queue.qp());
        self.vacant.push(index);
        self.resources.ready_list.retain(|&queued| queued != index);
        self.resources.newly_ready.retain(|&queued| queued != index);
        self.resources.load.remove(self.id);
        self.resources.counters.closed.add(1);
        let admitted = queue.into_parts(&mut self.resources);
        self.publish_room();
        let Some((association, qid)) = admitted else { return };
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
