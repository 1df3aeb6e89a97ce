//! Queues: opened, connected, closed; the provider, replaced when its device is lost.

use super::{Driver, DriverEvent, EVENTS_AT_ONCE};
use crate::transport::{LinkState, MakeError, Owner, QueuePair};
use core::time::Duration;
use nvme_proto::Qid;
use nvmf_host::{Association, AssociationError, FlowControl, QueueFailure};
use nvmf_rdma::{
    CmEvent, ConnectFailure, ConnectParameters, DisconnectCause, PrivateData, Provider, QueuePairId,
};

impl<P: Provider> Driver<P> {
    /// Begins a new association, over a new provider if the device of the last one may be gone.
    pub(super) fn reconnect(&mut self, now: Duration) {
        self.ended_by_controller = false;
        let made = self
            .replace_provider()
            .map_err(|reason| AssociationError::Queue { qid: Qid(0), failure: QueueFailure::Other(reason) });
        match made.and_then(|()| Association::new(self.config.association.clone(), now)) {
            Ok(association) => self.association = Some(association),
            Err(error) => {
                self.recovery.on_lost(now, &error);
                self.events.push_back(DriverEvent::AttemptFailed(error));
                // There is nothing to close.
                self.recovery.on_closed(now, core::time::Duration::ZERO);
            }
        }
    }

    /// Replaces the provider if its device may be gone, and registers all memory with the new one.
    fn replace_provider(&mut self) -> Result<(), String> {
        let Some(factory) = self.factory.as_mut().filter(|_| self.suspect) else { return Ok(()) };
        let mut provider = factory()?;
        let cq =
            provider.create_completion_queue(self.config.completions_max()).map_err(|e| e.to_string())?;
        let access = crate::transport::local_access(provider.capabilities().per_command_keys);
        let mut regions = Vec::with_capacity(self.regions.len());
        for region in &self.regions {
            let registered = region.as_ref().map(|region| provider.register(&region.memory, access));
            regions.push(registered.transpose().map_err(|e| e.to_string())?);
        }
        for (region, anew) in self.regions.iter_mut().zip(regions) {
            if let (Some(region), Some(anew)) = (region, anew) {
                region.region = anew;
            }
        }
        (self.provider, self.cq, self.suspect) = (provider, cq, false);
        self.replaced = self.replaced.wrapping_add(1);
        Ok(())
    }

    pub(super) fn open_queue(&mut self, now: Duration, qid: Qid, private_data: &[u8; 32], entries: u16) {
        if let Err(failure) = self.try_open(now, qid, private_data, entries)
            && let Some(association) = &mut self.association
        {
            association.on_queue_failed(now, qid, failure);
        }
    }

    fn try_open(
        &mut self,
        now: Duration,
        qid: Qid,
        private_data: &[u8; 32],
        entries: u16,
    ) -> Result<(), QueueFailure> {
        let other = |error: &dyn core::fmt::Display| QueueFailure::Other(error.to_string());
        let queue = QueuePair::new(&mut self.provider, self.cq, qid, entries).map_err(|error| {
            // The device may be gone: the provider does not say whether it is that or a lack of resources.
            self.suspect |= !matches!(error, MakeError::Memory(_));
            other(&error)
        })?;
        let parameters = ConnectParameters {
            private_data: PrivateData::new(private_data).expect("32 bytes fit"),
            // The controller reads our memory, we never read its.
            responder_resources: self.provider.capabilities().max_read_depth,
            initiator_depth: 0,
            timeout: self.config.association.connect_timeout,
        };
        let id = queue.id;
        let index = usize::from(qid.0);
        if self.queues.len() <= index {
            self.queues.resize_with(index + 1, || None);
        }
        if let Some(old) = self.queues[index].replace(queue) {
            drop(old.destroy(&mut self.provider));
        }
        self.provider
            .connect(now, id, self.config.address, self.config.source, &parameters)
            .map_err(|e| QueueFailure::Unreachable(chain(&e)))
    }

    pub(super) fn poll_connections(&mut self, now: Duration) -> bool {
        let mut worked = false;
        for _ in 0..EVENTS_AT_ONCE {
            let Some(event) = self.provider.poll_cm(now) else { break };
            worked = true;
            match event {
                CmEvent::Established { queue_pair, private_data, .. } => {
                    self.on_established(now, queue_pair, private_data.as_bytes());
                }
                CmEvent::ConnectFailed { queue_pair, failure } => {
                    self.on_connect_failed(now, queue_pair, &failure)
                }
                CmEvent::Disconnected { queue_pair, cause } => {
                    self.suspect |= cause == DisconnectCause::DeviceRemoved;
                    let Some(queue) = self.queue_of(queue_pair) else { continue };
                    queue.link = LinkState::Closed;
                    let qid = queue.qid;
                    if let (false, Some(association)) = (self.closing, &mut self.association) {
                        self.ended_by_controller = cause.peer_has_ended();
                        association.on_disconnected(now, qid, &cause.to_string());
                    }
                }
                // Its connections ended before.
                CmEvent::DeviceRemoved => self.suspect = true,
                // We listen nowhere.
                CmEvent::ConnectRequest { request, .. } => self.provider.reject(request, &PrivateData::EMPTY),
            }
            self.act(now);
            self.close_if_gone(now);
        }
        worked
    }

    fn queue_of(&mut self, id: QueuePairId) -> Option<&mut QueuePair> {
        self.queues.iter_mut().flatten().find(|queue| queue.id == id)
    }

    fn on_established(&mut self, now: Duration, id: QueuePairId, private_data: &[u8]) {
        let Some(queue) = self.queue_of(id) else { return };
        queue.link = LinkState::Connected;
        let qid = queue.qid;
        let Some(association) = &mut self.association else { return };
        if let Some(entries) = association.on_queue_connected(now, qid, private_data)
            && let Some(queue) = self.queue_of(id)
        {
            queue.agree(entries, FlowControl::Sqhd);
        }
    }

    fn on_connect_failed(&mut self, now: Duration, id: QueuePairId, failure: &ConnectFailure) {
        let Some(queue) = self.queue_of(id) else { return };
        queue.link = LinkState::Closed;
        let qid = queue.qid;
        let failure = match failure {
            ConnectFailure::Rejected { private_data } => QueueFailure::from_reject(private_data.as_bytes()),
            ConnectFailure::TimedOut => QueueFailure::TimedOut,
            ConnectFailure::Unreachable(error) => QueueFailure::Unreachable(error.to_string()),
            ConnectFailure::Protocol(_) => QueueFailure::Other(failure.to_string()),
        };
        if let Some(association) = &mut self.association {
            association.on_queue_failed(now, qid, failure);
        }
    }

    /// Every queue is connected: what Connect agreed about flow control holds now.
    pub(super) fn on_ready(&mut self) {
        let Some(association) = &self.association else { return };
        let controller = association.controller();
        if controller.flow_control == FlowControl::Disabled {
            for queue in self.queues.iter_mut().skip(1).flatten() {
                queue.agree(controller.io_queue_entries, FlowControl::Disabled);
            }
        }
    }

    /// Closes what is connected in order, and the rest at once.
    pub(super) fn close_queues(&mut self, now: Duration) {
        self.closing = true;
        for queue in self.queues.iter_mut().flatten() {
            match queue.link {
                LinkState::Connected => self.provider.disconnect(queue.id),
                LinkState::Connecting => queue.link = LinkState::Closed,
                LinkState::Closed => {}
            }
        }
        self.close_if_gone(now);
    }

    fn close_if_gone(&mut self, now: Duration) {
        if !self.closing || self.queues.iter().flatten().any(|queue| queue.link != LinkState::Closed) {
            return;
        }
        self.destroy_queues();
        if let Some(association) = &mut self.association {
            association.on_closed(now);
        }
        self.act(now);
    }

    /// Destroys every queue pair. From here on nothing that was in flight can reach our memory.
    pub(super) fn destroy_queues(&mut self) {
        self.closing = false;
        for queue in self.queues.drain(..).flatten() {
            for owner in queue.destroy(&mut self.provider) {
                if let Owner::Admin(number) = owner {
                    self.events.push_back(DriverEvent::Admin(number, None));
                }
            }
        }
        self.forget_admin_in_flight();
    }

    /// The association is at its end.
    pub(super) fn on_closed(&mut self, now: Duration) {
        // What was in flight and changes nothing may be carried out at any time.
        let no_matter = self.ended_by_controller || !self.operations.has_writes_in_flight();
        let quiesce = self
            .association
            .take()
            .map_or(Duration::ZERO, |association| association.quiesce_time(now, no_matter));
        if self.shut {
            self.recovery.stop();
        }
        self.recovery.on_closed(now, quiesce);
        self.operations.on_lost(&self.recovery);
        if self.shut {
            self.operations.fail_waiting(nvmf_block::BlockError::Gone);
            self.fail_admin();
            self.events.push_back(DriverEvent::Closed);
        }
    }
}

/// An error and its sources in one line.
fn chain(error: &dyn core::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
