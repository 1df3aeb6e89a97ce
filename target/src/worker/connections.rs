//! Connections of a worker: asked for, accepted or handed over, set up, gone.

use super::Worker;
use crate::limits::{ACCEPT_TIMEOUT, CM_BUDGET};
use crate::message::{Recipient, WorkerId, WorkerMessage};
use crate::transport::rdma::buffers::Class;
use crate::transport::rdma::listener::{Offer, Terms, rejection};
use crate::transport::rdma::queue::Queue;
use crate::transport::rdma::resources::{DeferredAction, Resources};
use core::time::Duration;
use nvme_proto::rdma::{RejectStatus, Request};
use nvmf_block::Backend;
use nvmf_rdma::{CmEvent, ConnectParameters, DisconnectCause, Provider, QueuePairId, RequestId};

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
        let to = self.pick(&offer);
        if to == self.id {
            return self.accept(now, request, &offer);
        }
        if let Some(detached) = self.resources.provider.detach(request) {
            self.outbox.push_back((Recipient::Worker(to), WorkerMessage::Adopt(detached, Box::new(offer))));
        }
    }

    /// An Admin queue goes where the fewest queues are; I/O queues go round, so that those of one host spread out.
    fn pick(&mut self, offer: &Offer) -> WorkerId {
        match Request::parse(offer.private_data.as_bytes()) {
            Err(_) => self.id,
            Ok(request) if request.qid.0 == 0 => self.load.least(),
            Ok(_) => {
                self.last_pick = self.load.after(self.last_pick);
                self.last_pick
            }
        }
    }

    pub(super) fn accept(&mut self, now: Duration, request: RequestId, offer: &Offer) {
        if let Err(status) = self.try_accept(now, request, offer) {
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
    }

    fn try_accept(&mut self, now: Duration, request: RequestId, offer: &Offer) -> Result<(), RejectStatus> {
        let capabilities = self.resources.provider.capabilities();
        let terms = Terms::agree(
            offer,
            self.settings.queue_entries,
            self.settings.io_queues,
            capabilities.max_read_depth,
        )?;
        if self.resources.draining || !Queue::fits(&mut self.resources, &terms) {
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
        self.load.add(self.id);
        self.timers_due = self.timers_due.min(queue.poll_timeout().unwrap_or(Duration::MAX));
        self.by_qp.insert(queue.qp(), index);
        self.queues[index as usize] = Some(Box::new(queue));
        self.vacant.pop();
        Ok(())
    }

    /// Removes a queue of which nothing is in use any more, and tells the registry.
    pub(super) fn remove_queue(&mut self, index: u32) {
        let slot = &mut self.queues[index as usize];
        let Some(queue) = slot.take_if(|queue| queue.is_over()) else { return };
        self.by_qp.remove(&queue.qp());
        self.vacant.push(index);
        for class in Class::ALL {
            self.resources.buffers.line(class).retain(|&queued| queued != index);
        }
        self.resources.ready_list.retain(|&queued| queued != index);
        self.resources.newly_ready.retain(|&queued| queued != index);
        self.load.remove(self.id);
        self.resources.counters.closed.add(1);
        let Some((association, qid)) = queue.into_parts(&mut self.resources) else { return };
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
