//! From a capsule to its response: what the engine says, done.

use super::name::{Kind, Place};
use super::queue::{Queue, QueueState};
use super::request::{RequestState, Stage};
use super::resources::{DeferredAction, Resources};
use crate::limits::CAPSULES_IN_A_ROW;
use core::time::Duration;
use nvme_proto::{Sgl, Sqe};
use nvmf_block::Backend;
use nvmf_rdma::{Payload, PostError, Provider, RemoteKey, SendOperation, SendRequest};
use nvmf_subsystem::limits::SQE_LEN;
use nvmf_subsystem::{ControllerType, Notice, Response, Step, Transfer, Violation};
use std::sync::Arc;

impl Queue {
    /// The connection is set up: what arrived early is looked at now.
    pub fn on_established<P: Provider, B: Backend>(&mut self, resources: &mut Resources<P, B>) {
        if self.state == QueueState::Accepting {
            self.state = QueueState::Live;
            self.announce_capsules(resources);
        }
    }

    /// A capsule of `len` bytes landed in a receive slot.
    pub fn on_receive<P: Provider, B: Backend>(
        &mut self,
        resources: &mut Resources<P, B>,
        slot: u16,
        len: u32,
    ) {
        if self.free.is_empty() {
            resources.counters.waits_request.add(1);
        }
        self.received.push_back((slot, len));
        self.announce_capsules(resources);
    }

    /// Marks the queue as newly ready, unless it is in the ready list, or has no requests to take capsules up with.
    fn announce_capsules<P: Provider, B: Backend>(&mut self, resources: &mut Resources<P, B>) {
        if !self.in_ready_list && self.is_ready() {
            self.in_ready_list = true;
            resources.newly_ready.push_back(self.index);
        }
    }

    /// Whether capsules wait that can be taken up.
    pub fn is_ready(&self) -> bool {
        self.state == QueueState::Live && !self.received.is_empty() && !self.free.is_empty()
    }

    /// Whether so few capsules wait that one go will do.
    pub fn is_short(&self) -> bool {
        self.received.len() <= CAPSULES_IN_A_ROW
    }

    /// It is this queue's turn: takes up to `max` capsules, fewer where their answers would begin another packet, and
    /// says how many.
    pub fn take_capsules<P: Provider, B: Backend>(
        &mut self,
        resources: &mut Resources<P, B>,
        now: Duration,
        max: usize,
    ) -> usize {
        self.in_ready_list = false;
        let mut taken = 0;
        while taken < max
            && !resources.packet_is_full()
            && self.state == QueueState::Live
            && !self.free.is_empty()
            && let Some((slot, len)) = self.received.pop_front()
        {
            taken += 1;
            // A target that drains takes no more commands; their hosts learn of it when the connection ends.
            if !resources.draining {
                self.on_capsule(resources, now, slot, len);
            }
        }
        taken
    }

    /// Stands at the end of the line.
    pub fn join_ready_list<P: Provider, B: Backend>(&mut self, resources: &mut Resources<P, B>) {
        self.in_ready_list = true;
        resources.ready_list.push_back(self.index);
    }

    pub(super) fn take_request(&mut self) -> u16 {
        let request = self.free.pop().expect("the caller saw a free request");
        self.request(request).state = RequestState::Executing;
        request
    }

    pub(super) fn on_capsule<P: Provider, B: Backend>(
        &mut self,
        resources: &mut Resources<P, B>,
        now: Duration,
        slot: u16,
        len: u32,
    ) {
        resources.counters.commands.add(1);
        let Some(data_len) = (len as usize).checked_sub(SQE_LEN) else {
            return self.on_violation(resources, now, &Violation::ShortCapsule(len as usize));
        };
        let buffer = self.receive(slot);
        let sqe = resources.receives(self.is_admin()).read_entry(buffer);
        let step = self.engine.on_capsule(now, &sqe, data_len);
        let request = self.take_request();
        if matches!(step, Step::Execute { .. }) && has_in_capsule_data(sqe) {
            // Until the response: a command may want its data in a later step than the first.
            self.request(request).receive = Some(slot);
        } else {
            // Reposted before the response leaves: the host never finds fewer receives than it has entries.
            self.repost(resources, slot);
        }
        self.take_step(resources, now, request, step);
        self.take_own_steps(resources, now);
    }

    pub(super) fn repost<P: Provider, B: Backend>(&mut self, resources: &mut Resources<P, B>, slot: u16) {
        let posted = self.post_receive(resources, slot);
        self.check_post(resources, posted);
    }

    /// A post may fail because the connection ended, which an event reports. Anything else is a mistake between us
    /// and the provider, and costs this connection.
    pub(super) fn check_post<P: Provider, B: Backend>(
        &mut self,
        resources: &mut Resources<P, B>,
        posted: Result<(), PostError>,
    ) {
        match posted {
            Ok(()) | Err(PostError::NotReady) => {}
            Err(error) => {
                tracing::error!(parent: &self.span, %error, "the provider does not take a work request: closing the connection");
                resources.counters.transport_errors.add(1);
                resources.deferred.push_back(DeferredAction::Remove(self.index));
            }
        }
    }

    /// Does what the engine wants for the command of `request`.
    pub(super) fn take_step<P: Provider, B: Backend>(
        &mut self,
        resources: &mut Resources<P, B>,
        now: Duration,
        request: u16,
        step: Step,
    ) {
        match step {
            Step::Respond(response) => self.respond(resources, request, &response),
            Step::Execute { ticket, work, transfer } => {
                self.request(request).begin(ticket, work, transfer);
                self.advance(resources, now, request, false);
            }
            Step::Held => self.free_request(resources, request),
            Step::Connect(connect) => {
                let admission = {
                    let mut registry =
                        resources.registry.lock().expect("no panic happened under the registry's lock");
                    registry.connect(now, &connect)
                };
                self.on_admission(resources, now, &admission);
                let step = self.engine.on_admission(now, connect, admission);
                self.take_step(resources, now, request, step);
            }
            Step::CloseQueue | Step::CloseIoQueues | Step::CloseAssociation(_) => {
                self.free_request(resources, request);
                self.take_own_step(resources, now, &step);
            }
        }
    }

    /// Drains what the engine wants on its own.
    pub fn take_own_steps<P: Provider, B: Backend>(
        &mut self,
        resources: &mut Resources<P, B>,
        now: Duration,
    ) {
        while let Some(step) = self.engine.poll_step(now) {
            self.take_own_step(resources, now, &step);
        }
        self.send_unsent(resources);
    }

    pub(super) fn take_own_step<P: Provider, B: Backend>(
        &mut self,
        resources: &mut Resources<P, B>,
        now: Duration,
        step: &Step,
    ) {
        match step {
            Step::Respond(response) => self.unsent.push_back(*response),
            Step::CloseQueue => {
                self.send_unsent(resources);
                self.close(resources);
            }
            Step::CloseIoQueues => {
                if let Some(key) = self.association() {
                    resources.deferred.push_back(DeferredAction::CloseIoQueues(key));
                }
            }
            Step::CloseAssociation(violation) => self.on_violation(resources, now, violation),
            Step::Execute { .. } | Step::Connect(_) | Step::Held => {
                unreachable!("the engine has no command that no capsule brought")
            }
        }
    }

    /// Sends responses that no capsule asked for, while requests are free.
    pub(super) fn send_unsent<P: Provider, B: Backend>(&mut self, resources: &mut Resources<P, B>) {
        while self.state == QueueState::Live && !self.free.is_empty() {
            let Some(response) = self.unsent.pop_front() else { break };
            let request = self.take_request();
            self.respond(resources, request, &response);
        }
    }

    pub(super) fn on_admission<P: Provider, B: Backend>(
        &mut self,
        resources: &mut Resources<P, B>,
        now: Duration,
        admission: &nvmf_subsystem::Admission,
    ) {
        if let Some(duplicate) = &admission.duplicate_host_id {
            resources.counters.duplicate_host_ids.add(1);
            if resources.log.allow(now, &resources.counters) {
                tracing::warn!(parent: &self.span, "{duplicate}");
            }
        }
        if let Some(key) = admission.closed {
            resources.counters.discovery_closed.add(1);
            resources.deferred.push_back(DeferredAction::CloseAssociation(key));
        }
        match &admission.outcome {
            Ok(admitted) => {
                let association = admitted.association().clone();
                self.span.record("cntlid", association.key().cntlid.0);
                self.span.record("hostnqn", tracing::field::display(association.host_nqn()));
                if resources.log.allow(now, &resources.counters) {
                    let (subsystem, entries) = (association.subsystem_nqn(), self.terms.entries);
                    tracing::info!(parent: &self.span, "connected to {subsystem} with {entries} entries");
                }
                let owner = resources.buffers.owners.add_connected(&association, self.peer);
                resources.buffers.owners.remove(self.owner);
                self.owner = owner;
                if self.is_admin() && association.controller_type() == ControllerType::Io {
                    let free = resources.load.io_queues_free();
                    association.limit_io_queues(u16::try_from(free).unwrap_or(u16::MAX));
                    resources.load.add_controller(Arc::clone(&association), self.peer);
                }
                self.admitted = Some((association, admitted.qid()));
            }
            Err(refusal) => {
                resources.counters.connects_refused.add(1);
                if resources.log.allow(now, &resources.counters) {
                    tracing::warn!(parent: &self.span, "Connect refused: {refusal}");
                }
            }
        }
    }

    pub(super) fn on_violation<P: Provider, B: Backend>(
        &mut self,
        resources: &mut Resources<P, B>,
        now: Duration,
        violation: &Violation,
    ) {
        if matches!(violation, Violation::KeepAliveExpired { .. }) {
            resources.counters.keep_alive_expired.add(1);
        } else {
            resources.counters.violations.add(1);
        }
        if resources.log.allow(now, &resources.counters) {
            tracing::warn!(parent: &self.span, "closing the association: {violation}");
        }
        resources.deferred.push_back(match self.association() {
            Some(key) => DeferredAction::CloseAssociation(key),
            None => DeferredAction::Remove(self.index),
        });
    }

    /// Posts the response, behind the WRITEs of its command.
    pub(super) fn respond<P: Provider, B: Backend>(
        &mut self,
        resources: &mut Resources<P, B>,
        request: u16,
        response: &Response,
    ) {
        if let Some(slot) = self.request(request).receive.take() {
            self.repost(resources, slot);
        }
        self.request(request).state = RequestState::Responding;
        let operation = SendOperation::Send {
            payload: Payload::Inline(&response.cqe),
            invalidate: response.invalidate.filter(|_| resources.sends_invalidate).map(RemoteKey),
            solicited: true,
        };
        let id = self.place(request, 0).work_request(Kind::Send);
        resources.counters.responses.add(1);
        self.post(resources, SendRequest { id, operation, signaled: true });
    }

    /// A response left, and with it the WRITEs before it.
    pub fn on_sent<P: Provider, B: Backend>(
        &mut self,
        resources: &mut Resources<P, B>,
        now: Duration,
        place: Place,
    ) {
        let request = place.slot;
        self.on_progress(now);
        for chunk in 0..crate::limits::CHUNKS_MAX {
            let chunk = u8::try_from(chunk).expect("few");
            if self.request(request).chunk(chunk).stage == Stage::WritingUnsignaled {
                self.send_credits += 1;
                self.release_chunk(&mut resources.buffers, request, chunk);
            }
        }
        self.free_request(resources, request);
        self.post_writes(resources, now);
        self.send_unsent(resources);
        self.announce_capsules(resources);
    }

    pub(super) fn free_request<P: Provider, B: Backend>(
        &mut self,
        resources: &mut Resources<P, B>,
        request: u16,
    ) {
        if let Some(slot) = self.request(request).receive.take() {
            self.repost(resources, slot);
        }
        let this = self.request(request);
        assert!(this.chunks.iter().all(|chunk| chunk.stage == Stage::Idle), "a free request holds nothing");
        this.state = RequestState::Free;
        this.work = None;
        this.transfer = Transfer::None;
        self.free.push(request);
    }

    /// A time of the engine's came.
    pub fn on_timeout<P: Provider, B: Backend>(&mut self, resources: &mut Resources<P, B>, now: Duration) {
        self.engine.on_timeout(now);
        self.take_own_steps(resources, now);
    }

    /// The registry has news.
    pub fn on_notice<P: Provider, B: Backend>(
        &mut self,
        resources: &mut Resources<P, B>,
        now: Duration,
        notice: &Notice,
    ) {
        if self.state == QueueState::Closed {
            return;
        }
        self.engine.on_notice(now, notice);
        self.take_own_steps(resources, now);
    }
}

/// Whether the command's data pointer names bytes of its own capsule.
fn has_in_capsule_data(sqe: [u8; SQE_LEN]) -> bool {
    let sqe: Sqe = zerocopy::transmute!(sqe);
    matches!(sqe.sgl.parse(), Ok(Sgl::InCapsule { .. }))
}
