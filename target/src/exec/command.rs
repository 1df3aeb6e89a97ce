//! From a capsule to its response: what the engine says, done.

use super::connect::PendingConnect;
use super::place::Place;
use super::queue::{Queue, QueueState, Received};
use super::request::{RequestState, Stage};
use super::resources::{DeferredAction, Resources};
use super::transport::Transport;
use crate::limits::CAPSULES_IN_A_ROW;
use crate::log::AUDIT;
use crate::telemetry::Line;
use core::time::Duration;
use nvme_proto::{Nsid, Sgl, Sqe};
use nvmf_block::Backend;
use nvmf_subsystem::limits::SQE_LEN;
use nvmf_subsystem::{Answer, Notice, Response, Step, Ticket, Transfer, Violation};

impl<T: Transport> Queue<T> {
    /// The connection is set up: what arrived early is looked at now.
    pub fn on_established<B: Backend>(&mut self, resources: &mut Resources<T, B>) {
        if self.state == QueueState::Accepting {
            self.state = QueueState::Live;
            self.announce_capsules(resources);
        }
    }

    /// A capsule of `len` bytes arrived.
    pub fn on_arrival<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        capsule: T::Capsule,
        len: u32,
        intact: bool,
    ) {
        if self.free.is_empty() {
            resources.counters.waits_request.add(1);
        }
        self.received.push_back(Received { capsule, len, intact, at_us: resources.meter.now_us() });
        self.announce_capsules(resources);
    }

    /// Marks the queue as newly ready, unless it is in the ready list, or has no requests to take capsules up with.
    fn announce_capsules<B: Backend>(&mut self, resources: &mut Resources<T, B>) {
        if !self.in_ready_list && self.is_ready() {
            self.in_ready_list = true;
            resources.newly_ready.push_back(self.index);
        }
    }

    /// Whether capsules wait that can be taken up.
    pub fn is_ready(&self) -> bool {
        self.state == QueueState::Live && !self.received.is_empty() && !self.free.is_empty()
    }

    /// Whether capsules wait to be taken up.
    pub fn has_capsules(&self) -> bool {
        !self.received.is_empty()
    }

    /// Whether so few capsules wait that one go will do.
    pub fn is_short(&self) -> bool {
        self.received.len() <= CAPSULES_IN_A_ROW
    }

    /// It is this queue's turn: takes up to `max` capsules, fewer where their answers would begin another packet, and
    /// says how many.
    pub fn take_capsules<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        now: Duration,
        max: usize,
    ) -> usize {
        self.in_ready_list = false;
        let mut taken = 0;
        while taken < max
            && !resources.packet_is_full()
            && self.state == QueueState::Live
            && !self.free.is_empty()
            && let Some(received) = self.received.pop_front()
        {
            taken += 1;
            // A target that drains takes no more commands; their hosts learn of it when the connection ends.
            if resources.draining {
                self.give_back(resources, received.capsule);
            } else {
                self.on_capsule(resources, now, received);
            }
        }
        taken
    }

    /// Stands at the end of the line.
    pub fn join_ready_list<B: Backend>(&mut self, resources: &mut Resources<T, B>) {
        self.in_ready_list = true;
        resources.ready_list.push_back(self.index);
    }

    pub(super) fn take_request(&mut self) -> u16 {
        let request = self.free.pop().expect("the caller saw a free request");
        self.request(request).state = RequestState::Executing;
        request
    }

    pub(super) fn on_capsule<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        now: Duration,
        received: Received<T::Capsule>,
    ) {
        let Received { capsule, len, intact, at_us } = received;
        resources.counters.commands.add(1);
        let Some(data_len) = (len as usize).checked_sub(SQE_LEN) else {
            return self.on_violation(resources, now, &Violation::ShortCapsule(len as usize));
        };
        let sqe = resources.transport.entry(&capsule);
        let step = self.engine.on_capsule(now, &sqe, data_len);
        let (request, is_measured) = (self.take_request(), self.host.is_some());
        let this = self.request(request);
        this.cid = u16::from_le_bytes([sqe[2], sqe[3]]);
        this.nsid = Nsid(u32::from_le_bytes([sqe[4], sqe[5], sqe[6], sqe[7]]));
        (this.epoch, this.condemned) = (resources.epoch, None);
        if is_measured {
            resources.meter.begin(&mut this.footprint, &sqe, at_us);
        }
        let step = match step {
            Step::Execute { ticket, .. } if !intact => self.fail_transfer(resources, ticket),
            step => step,
        };
        if matches!(step, Step::Execute { .. }) && has_in_capsule_data(sqe) {
            // Until the response: a command may want its data in a later step than the first.
            self.request(request).capsule = Some(capsule);
        } else {
            // Given back before the response leaves: the host never finds less room than its queue has entries.
            self.give_back(resources, capsule);
        }
        self.take_step(resources, now, request, step);
        self.take_own_steps(resources, now);
    }

    /// The data of a command were damaged on their way: nothing is done with them.
    pub(super) fn fail_transfer<B: Backend>(&mut self, resources: &Resources<T, B>, ticket: Ticket) -> Step {
        resources.counters.transport_errors.add(1);
        self.engine.on_transfer_failed(ticket)
    }

    pub(super) fn give_back<B: Backend>(&mut self, resources: &mut Resources<T, B>, capsule: T::Capsule) {
        let given = resources.transport.give_back(self.index, capsule);
        self.check(resources, given);
    }

    /// A mistake between us and the transport costs this connection.
    pub(super) fn check<B: Backend>(&mut self, resources: &mut Resources<T, B>, done: Result<(), T::Error>) {
        if let Err(error) = done {
            if resources.log.allow(resources.now, self.terms.peer.ip(), Line::Fault, &resources.counters) {
                tracing::error!(parent: &self.span, %error, "the transport does not do what it must: closing the connection");
            }
            resources.counters.transport_errors.add(1);
            resources.deferred.push_back(DeferredAction::Remove(self.index));
        }
    }

    /// Does what the engine wants for the command of `request`.
    pub(super) fn take_step<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        now: Duration,
        request: u16,
        step: Step,
    ) {
        match step {
            Step::Respond(response) => self.respond(resources, request, &response),
            Step::Execute { ticket, work, transfer } => {
                self.request(request).begin(ticket, work, transfer);
                if !resources.limited.is_on() || self.pass_limits(resources, request, 0) {
                    self.advance(resources, now, request, false);
                }
            }
            Step::Ask { ticket, question } => {
                resources.asked += 1;
                let serial = resources.asked;
                self.request(request).ask(ticket, serial);
                resources.questions.push_back((self.place(request, 0), serial, question));
            }
            Step::Held => self.free_request(resources, request),
            Step::Connect(connect) => {
                self.connect(resources, now, PendingConnect::new(now, request, connect))
            }
            Step::CloseQueue | Step::CloseIoQueues | Step::CloseAssociation(_) => {
                self.free_request(resources, request);
                self.take_own_step(resources, now, &step);
            }
        }
    }

    /// The control plane answered a command.
    pub fn on_answer<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        now: Duration,
        place: Place,
        serial: u64,
        answer: Answer,
    ) {
        let request = place.slot();
        // A later queue may have the number of the one that asked.
        let asking = self.requests.get_mut(usize::from(request)).and_then(|this| this.answered(serial));
        if let Some(ticket) = asking {
            let step = self.engine.on_answer(now, ticket, answer);
            self.take_step(resources, now, request, step);
            self.take_own_steps(resources, now);
        }
    }

    /// Drains what the engine wants on its own.
    pub fn take_own_steps<B: Backend>(&mut self, resources: &mut Resources<T, B>, now: Duration) {
        while let Some(step) = self.engine.poll_step(now) {
            self.take_own_step(resources, now, &step);
        }
        self.send_unsent(resources);
    }

    pub(super) fn take_own_step<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        now: Duration,
        step: &Step,
    ) {
        match step {
            Step::Respond(response) => self.unsent.push_back(*response),
            Step::CloseQueue => {
                if let Some(fault) = self.engine.authentication_fault() {
                    resources.counters.authentications_failed.add(1);
                    resources.meter.on_authentication_failed(fault.reason());
                    if resources.log.allow(now, self.terms.peer.ip(), Line::Fault, &resources.counters) {
                        tracing::warn!(target: AUDIT, parent: &self.span, audit = "refuse", "the host did not authenticate: {fault}");
                    }
                }
                self.send_unsent(resources);
                self.close(resources);
            }
            Step::CloseIoQueues => {
                if let Some(key) = self.association() {
                    resources.deferred.push_back(DeferredAction::CloseIoQueues(key));
                }
            }
            Step::CloseAssociation(violation) => self.on_violation(resources, now, violation),
            Step::Execute { .. } | Step::Ask { .. } | Step::Connect(_) | Step::Held => {
                unreachable!("the engine has no command that no capsule brought")
            }
        }
    }

    /// Sends responses that no capsule asked for, while requests are free.
    pub(super) fn send_unsent<B: Backend>(&mut self, resources: &mut Resources<T, B>) {
        while self.state == QueueState::Live && !self.free.is_empty() {
            let Some(response) = self.unsent.pop_front() else { break };
            let request = self.take_request();
            self.respond(resources, request, &response);
        }
    }

    pub(super) fn on_violation<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        now: Duration,
        violation: &Violation,
    ) {
        if matches!(violation, Violation::KeepAliveExpired { .. }) {
            resources.counters.keep_alive_expired.add(1);
        } else {
            resources.counters.violations.add(1);
        }
        if resources.log.allow(now, self.terms.peer.ip(), Line::Fault, &resources.counters) {
            tracing::warn!(parent: &self.span, "closing the association: {violation}");
        }
        resources.deferred.push_back(match self.association() {
            Some(key) => DeferredAction::CloseAssociation(key),
            None => DeferredAction::Remove(self.index),
        });
    }

    /// Sends the response, behind the data of its command.
    pub(super) fn respond<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        request: u16,
        response: &Response,
    ) {
        if let Some(capsule) = self.request(request).capsule.take() {
            self.give_back(resources, capsule);
        }
        let this = &mut self.requests[usize::from(request)];
        this.state = RequestState::Responding;
        if let Some(host) = &self.host {
            resources.meter.on_response(&mut this.footprint, host, &response.cqe);
        }
        resources.counters.responses.add(1);
        self.on_begun(resources.now, &mut resources.unfinished, true);
        self.responding += 1;
        let place = self.place(request, 0);
        let sent = resources.transport.respond(place, &response.cqe, response.invalidate);
        self.check(resources, sent);
    }

    /// A response left, and with it the pushes before it.
    pub fn on_responded<B: Backend>(&mut self, resources: &mut Resources<T, B>, now: Duration, place: Place) {
        let request = place.slot();
        self.responding -= 1;
        self.on_progress(resources, now);
        for chunk in 0..crate::limits::CHUNKS_MAX {
            let chunk = u8::try_from(chunk).expect("few");
            if self.request(request).chunk(chunk).stage == Stage::PushingUnsignaled {
                self.push_credits += 1;
                self.release_chunk(&mut resources.buffers, request, chunk);
            }
        }
        self.free_request(resources, request);
        self.begin_pushes(resources, now);
        self.send_unsent(resources);
        self.announce_capsules(resources);
    }

    pub(super) fn free_request<B: Backend>(&mut self, resources: &mut Resources<T, B>, request: u16) {
        if let Some(capsule) = self.request(request).capsule.take() {
            self.give_back(resources, capsule);
        }
        let this = self.request(request);
        assert!(this.chunks.iter().all(|chunk| chunk.stage == Stage::Idle), "a free request holds nothing");
        this.state = RequestState::Free;
        this.work = None;
        this.transfer = Transfer::None;
        self.free.push(request);
    }

    /// A time of the engine's came.
    pub fn on_timeout<B: Backend>(&mut self, resources: &mut Resources<T, B>, now: Duration) {
        self.engine.on_timeout(now);
        self.take_own_steps(resources, now);
    }

    /// The registry has news.
    pub fn on_notice<B: Backend>(&mut self, resources: &mut Resources<T, B>, now: Duration, notice: &Notice) {
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
