//! How a command moves from one state to the next.
//!
//! Every event (a capsule, a completion of the road or of the floor, a buffer, a timer) comes in here as an `on_*`,
//! moves what it can, and leaves the rest standing in a line.

use super::buffers::Class;
use super::name::{Kind, Place};
use super::queue::{Deed, Edges, Life, Queue};
use super::request::{RequestState, Stage};
use crate::limits::IN_CAPSULE_ALIGN;
use core::time::Duration;
use nvmf_block::{Backend, BlockError};
use nvmf_rdma::{Payload, PostError, Provider, RemoteKey, RemoteMemory, SendOperation, SendRequest};
use nvmf_subsystem::limits::{PARAMETERS_LEN_MAX, SQE_LEN};
use nvmf_subsystem::{BlockWork, Keyed, Notice, Response, Source, Step, Transfer, Violation, Work};

impl Queue {
    /// The connection is set up: what arrived early is looked at now.
    pub fn on_established<P: Provider, B: Backend>(&mut self, edges: &mut Edges<P, B>, now: Duration) {
        if self.life == Life::Accepting {
            self.life = Life::Live;
            self.take_received(edges, now);
        }
    }

    /// A capsule of `len` bytes landed in a receive slot.
    pub fn on_receive<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        now: Duration,
        slot: u16,
        len: u32,
    ) {
        if self.free.is_empty() {
            edges.counters.waits_request.add(1);
        }
        self.received.push_back((slot, len));
        self.take_received(edges, now);
    }

    /// Gives capsules, and responses that no capsule asked for, the requests that are free.
    fn take_received<P: Provider, B: Backend>(&mut self, edges: &mut Edges<P, B>, now: Duration) {
        while self.life == Life::Live {
            if self.free.is_empty() {
                return;
            }
            if let Some(response) = self.unsent.pop_front() {
                let request = self.take_request();
                self.respond(edges, request, &response);
            } else if let Some((slot, len)) = self.received.pop_front()
                && !edges.draining
            {
                self.on_capsule(edges, now, slot, len);
            } else {
                return;
            }
        }
    }

    fn take_request(&mut self) -> u16 {
        let request = self.free.pop().expect("the caller saw a free request");
        self.request(request).state = RequestState::Executing;
        request
    }

    fn on_capsule<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        now: Duration,
        slot: u16,
        len: u32,
    ) {
        edges.counters.commands.add(1);
        let Some(data_len) = (len as usize).checked_sub(SQE_LEN) else {
            return self.on_violation(edges, now, &Violation::ShortCapsule(len as usize));
        };
        let buffer = self.receive(slot);
        let sqe = edges.receives(self.is_admin()).read_entry(buffer);
        let step = self.engine.on_capsule(now, &sqe, data_len);
        let in_capsule = matches!(
            step,
            Step::Execute { transfer: Transfer::FromHost { source: Source::InCapsule { .. }, .. }, .. }
        );
        let request = self.take_request();
        if in_capsule {
            self.request(request).receive = Some(slot);
        } else {
            // Reposted before the response leaves: the host never finds fewer receives than it has entries.
            self.repost(edges, slot);
        }
        self.take_step(edges, now, request, step);
        self.take_own_steps(edges, now);
    }

    fn repost<P: Provider, B: Backend>(&mut self, edges: &mut Edges<P, B>, slot: u16) {
        let posted = self.post_receive(edges, slot);
        self.check_post(edges, posted);
    }

    /// A post may fail because the peer is gone, of which an event tells. Anything else is a mistake between us and the
    /// provider, and costs this connection.
    fn check_post<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        posted: Result<(), PostError>,
    ) {
        match posted {
            Ok(()) | Err(PostError::NotReady) => {}
            Err(error) => {
                tracing::error!(parent: &self.span, %error, "the provider does not take a work request: closing the connection");
                edges.counters.transport_errors.add(1);
                edges.deeds.push_back(Deed::Remove(self.index));
            }
        }
    }

    /// Does what the engine wants for the command of `request`.
    fn take_step<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        now: Duration,
        request: u16,
        step: Step,
    ) {
        match step {
            Step::Respond(response) => self.respond(edges, request, &response),
            Step::Execute { ticket, work, transfer } => {
                self.request(request).begin(ticket, work, transfer);
                self.advance(edges, now, request, false);
            }
            Step::Held => self.free_request(edges, request),
            Step::Connect(connect) => {
                let admission = {
                    let mut registry =
                        edges.registry.lock().expect("no panic happened under the registry's lock");
                    registry.connect(now, &connect)
                };
                self.on_admission(edges, now, &admission);
                let step = self.engine.on_admission(now, connect, admission);
                self.take_step(edges, now, request, step);
            }
            Step::CloseQueue | Step::CloseIoQueues | Step::CloseAssociation(_) => {
                self.free_request(edges, request);
                self.take_own_step(edges, now, &step);
            }
        }
    }

    /// Drains what the engine wants on its own.
    pub fn take_own_steps<P: Provider, B: Backend>(&mut self, edges: &mut Edges<P, B>, now: Duration) {
        while let Some(step) = self.engine.poll_step(now) {
            self.take_own_step(edges, now, &step);
        }
        if !self.unsent.is_empty() {
            self.take_received(edges, now);
        }
    }

    fn take_own_step<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        now: Duration,
        step: &Step,
    ) {
        match step {
            Step::Respond(response) => self.unsent.push_back(*response),
            Step::CloseQueue => {
                self.send_unsent(edges);
                self.close(edges);
            }
            Step::CloseIoQueues => {
                if let Some(key) = self.association() {
                    edges.deeds.push_back(Deed::CloseIoQueues(key));
                }
            }
            Step::CloseAssociation(violation) => self.on_violation(edges, now, violation),
            Step::Execute { .. } | Step::Connect(_) | Step::Held => {
                unreachable!("the engine has no command that no capsule brought")
            }
        }
    }

    /// What can still be said before the connection is closed.
    fn send_unsent<P: Provider, B: Backend>(&mut self, edges: &mut Edges<P, B>) {
        while self.life == Life::Live && !self.free.is_empty() {
            let Some(response) = self.unsent.pop_front() else { break };
            let request = self.take_request();
            self.respond(edges, request, &response);
        }
    }

    fn on_admission<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        now: Duration,
        admission: &nvmf_subsystem::Admission,
    ) {
        if let Some(duplicate) = &admission.duplicate_host_id {
            edges.counters.duplicate_host_ids.add(1);
            if edges.log.allow(now, &edges.counters) {
                tracing::warn!(parent: &self.span, "{duplicate}");
            }
        }
        match &admission.outcome {
            Ok(admitted) => {
                let association = admitted.association().clone();
                self.span.record("cntlid", association.key().cntlid.0);
                self.span.record("hostnqn", tracing::field::display(association.host_nqn()));
                if edges.log.allow(now, &edges.counters) {
                    let (subsystem, entries) = (association.subsystem_nqn(), self.terms.entries);
                    tracing::info!(parent: &self.span, "connected to {subsystem} with {entries} entries");
                }
                self.admitted = Some((association, admitted.qid()));
            }
            Err(refusal) => {
                edges.counters.connects_refused.add(1);
                if edges.log.allow(now, &edges.counters) {
                    tracing::warn!(parent: &self.span, "Connect refused: {refusal}");
                }
            }
        }
    }

    fn on_violation<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        now: Duration,
        violation: &Violation,
    ) {
        if matches!(violation, Violation::KeepAliveExpired { .. }) {
            edges.counters.keep_alive_expired.add(1);
        } else {
            edges.counters.violations.add(1);
        }
        if edges.log.allow(now, &edges.counters) {
            tracing::warn!(parent: &self.span, "closing the association: {violation}");
        }
        edges.deeds.push_back(match self.association() {
            Some(key) => Deed::CloseAssociation(key),
            None => Deed::Remove(self.index),
        });
    }

    /// Hands out as many chunks of a request as there are buffers and chunks for. `granted`: the worker called this
    /// queue out of the line for buffers.
    fn advance<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        now: Duration,
        request: u16,
        mut granted: bool,
    ) {
        while self.request(request).state == RequestState::Executing {
            let this = self.request(request);
            if this.next >= this.end {
                break;
            }
            let Some(chunk) = this.idle_chunk() else { break };
            let handed_out = match (this.transfer, &this.work) {
                (Transfer::None, _) => {
                    self.execute_bare(edges, request, chunk);
                    true
                }
                (Transfer::FromHost { source: Source::InCapsule { offset }, .. }, Some(Work::Parameters)) => {
                    return self.take_parameters_in_capsule(edges, now, request, offset);
                }
                (Transfer::FromHost { source: Source::InCapsule { offset }, .. }, _)
                    if (offset as usize).is_multiple_of(IN_CAPSULE_ALIGN) =>
                {
                    self.execute_in_capsule(edges, request, chunk, offset);
                    true
                }
                _ => {
                    self.take_buffer(edges, request, chunk, granted) && {
                        self.begin_chunk(edges, now, request, chunk);
                        true
                    }
                }
            };
            granted = false;
            if !handed_out {
                break;
            }
        }
        self.finish(edges, now, request);
    }

    /// Work without data: one operation, or one for each range.
    fn execute_bare<P: Provider, B: Backend>(&mut self, edges: &mut Edges<P, B>, request: u16, chunk: u8) {
        let this = self.request(request);
        let offset = this.next;
        this.next += 1;
        *this.chunk(chunk) = super::request::Chunk { stage: Stage::Idle, buffer: None, offset, len: 0 };
        self.execute(edges, request, chunk, None);
    }

    /// In-capsule data go to the device from where they landed.
    fn execute_in_capsule<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        request: u16,
        chunk: u8,
        offset: u32,
    ) {
        let this = self.request(request);
        let len = this.end;
        this.next = len;
        *this.chunk(chunk) = super::request::Chunk { stage: Stage::Idle, buffer: None, offset: 0, len };
        let slot = this.receive.expect("the slot of in-capsule data is kept");
        edges.counters.bytes_in.add(len.into());
        let buffer = edges.receives(self.is_admin()).block(self.receive(slot), offset, len);
        self.execute(edges, request, chunk, Some(buffer));
    }

    fn take_parameters_in_capsule<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        now: Duration,
        request: u16,
        offset: u32,
    ) {
        let slot = self.request(request).receive.expect("the slot of in-capsule data is kept");
        let buffer = self.receive(slot);
        let len = self.request(request).end as usize;
        let mut parameters = [0; PARAMETERS_LEN_MAX];
        let (memory, at) = edges.receives(self.is_admin()).data(buffer, offset);
        memory.read(at, &mut parameters[..len]);
        edges.counters.bytes_in.add(len as u64);
        self.give_parameters(edges, now, request, &parameters[..len]);
    }

    fn give_parameters<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        now: Duration,
        request: u16,
        parameters: &[u8],
    ) {
        let this = self.request(request);
        this.next = this.end;
        this.work = None;
        let ticket = this.ticket.take().expect("a request under way has its ticket");
        let step = self.engine.on_parameters(now, ticket, parameters);
        self.take_step(edges, now, request, step);
        self.take_own_steps(edges, now);
    }

    /// Takes a buffer for the next chunk, or stands in line for one.
    fn take_buffer<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        request: u16,
        chunk: u8,
        granted: bool,
    ) -> bool {
        let class = self.class(request, &edges.buffers);
        let at = class as usize;
        // Whoever comes while others stand in line goes behind them.
        let may = granted || (edges.buffers.line(class).is_empty() && self.await_buffer[at].is_empty());
        if may
            && self.held[at] < edges.buffers.share(class)
            && let Some(buffer) = edges.buffers.take(class)
        {
            self.held[at] += 1;
            let len_max = edges.buffers.len(class);
            let this = self.request(request);
            let (offset, len) = (this.next, (this.end - this.next).min(len_max));
            this.next += len;
            *this.chunk(chunk) =
                super::request::Chunk { stage: Stage::Idle, buffer: Some(buffer), offset, len };
            return true;
        }
        edges.counters.waits_buffer.add(1);
        self.request(request).state = RequestState::AwaitBuffer;
        self.await_buffer[at].push_back(request);
        self.join_line(&mut edges.buffers, class);
        false
    }

    /// The worker has a buffer of this class for this queue. Stands in line again if there is more to wait for.
    pub fn on_buffer<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        now: Duration,
        class: Class,
    ) {
        let at = class as usize;
        self.in_line[at] = false;
        if self.life == Life::Gone {
            return;
        }
        if let Some(request) = self.await_buffer[at].pop_front() {
            self.request(request).state = RequestState::Executing;
            self.advance(edges, now, request, true);
        }
        self.join_line(&mut edges.buffers, class);
    }

    /// A chunk has its buffer: where does its way begin?
    fn begin_chunk<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        now: Duration,
        request: u16,
        chunk: u8,
    ) {
        let this = self.request(request);
        match this.transfer {
            Transfer::FromHost { source: Source::Keyed(_), .. } => {
                this.chunk(chunk).stage = Stage::AwaitRead;
                self.await_read.push_back((request, chunk));
                self.post_reads(edges);
            }
            Transfer::FromHost { source: Source::InCapsule { offset }, .. } => {
                self.copy_from_capsule(edges, request, chunk, offset);
                self.execute_buffered(edges, request, chunk);
            }
            Transfer::ToHost { .. } if matches!(this.work, Some(Work::Page(_))) => {
                self.fill_page(edges, request, chunk);
                self.queue_write(edges, now, request, chunk);
            }
            Transfer::ToHost { .. } => self.execute_buffered(edges, request, chunk),
            Transfer::None => unreachable!("work without data takes no buffer"),
        }
    }

    /// In-capsule data that lie where the device cannot take them from are copied once.
    fn copy_from_capsule<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        request: u16,
        chunk: u8,
        capsule_offset: u32,
    ) {
        let slot = self.request(request).receive.expect("the slot of in-capsule data is kept");
        let slot = self.receive(slot);
        let admin = self.is_admin();
        let chunk = self.request(request).chunk(chunk);
        let (len, offset) = (chunk.len, capsule_offset + chunk.offset);
        let (to, to_offset) = edges.buffers.memory(chunk.buffer.as_ref().expect("it has its buffer"));
        let receives = if admin { &edges.admin_receives } else { &edges.io_receives };
        let (from, from_offset) = receives.data(slot, offset);
        from.copy_to(from_offset, to, to_offset, len as usize);
        edges.counters.bytes_in.add(len.into());
    }

    fn fill_page<P: Provider, B: Backend>(&mut self, edges: &mut Edges<P, B>, request: u16, chunk: u8) {
        let this = &self.requests[usize::from(request)];
        let Some(Work::Page(page)) = &this.work else { return };
        let chunk = &this.chunks[usize::from(chunk)];
        let (memory, at) = edges.buffers.memory(chunk.buffer.as_ref().expect("it has its buffer"));
        let mut piece = [0; 1024];
        for done in (0..chunk.len).step_by(piece.len()) {
            let len = (chunk.len - done).min(1024) as usize;
            page.fill(chunk.offset + done, &mut piece[..len]);
            memory.write(at + done as usize, &piece[..len]);
        }
    }

    fn execute_buffered<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        request: u16,
        chunk: u8,
    ) {
        let this = self.request(request).chunk(chunk);
        let buffer = edges.buffers.block(this.buffer.as_ref().expect("it has its buffer"), this.len);
        self.execute(edges, request, chunk, Some(buffer));
    }

    /// Onto the storage floor.
    fn execute<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        request: u16,
        chunk: u8,
        buffer: Option<nvmf_block::Buffer>,
    ) {
        let tag = self.place(request, chunk).tag();
        let this = self.request(request);
        let (offset, len) = (this.chunk(chunk).offset, this.chunk(chunk).len);
        let (Some(Work::Block { device, .. }), Some(op)) = (&this.work, this.block_op(offset, len, buffer))
        else {
            // A range that its data do not fit: the engine computed one from the other.
            this.fail(BlockError::BadBuffer);
            return self.release_chunk(&mut edges.buffers, request, chunk);
        };
        let device = *device;
        this.chunk(chunk).stage = Stage::Executing;
        self.floor_pending += 1;
        edges.submit(tag, device, op);
    }

    /// The storage floor is done with a chunk.
    pub fn on_executed<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        now: Duration,
        place: Place,
        result: Result<(), BlockError>,
    ) {
        let (request, chunk) = (place.slot, place.chunk);
        self.floor_pending -= 1;
        if self.life == Life::Gone {
            return self.release_chunk(&mut edges.buffers, request, chunk);
        }
        let this = self.request(request);
        let reads = matches!(this.work, Some(Work::Block { op: BlockWork::Read { .. }, .. }));
        match result {
            Ok(()) if reads => self.queue_write(edges, now, request, chunk),
            Ok(()) => self.release_chunk(&mut edges.buffers, request, chunk),
            Err(error) => {
                // A failed comparison is an answer, not a failure of the floor.
                edges.counters.block_errors.add(u64::from(error != BlockError::CompareFailed));
                this.fail(error);
                self.release_chunk(&mut edges.buffers, request, chunk);
            }
        }
        self.advance(edges, now, request, false);
    }

    /// Posts the RDMA READs that there are credits for.
    fn post_reads<P: Provider, B: Backend>(&mut self, edges: &mut Edges<P, B>) {
        while let Some(&(request, chunk)) = self.await_read.front() {
            if self.read_credits == 0 || self.send_credits == 0 {
                edges.counters.waits_read.add(1);
                break;
            }
            self.await_read.pop_front();
            let id = self.place(request, chunk).work_request(Kind::Read);
            let this = self.request(request);
            let Transfer::FromHost { source: Source::Keyed(keyed), .. } = this.transfer else { continue };
            let this = this.chunk(chunk);
            this.stage = Stage::Reading;
            let remote = part(keyed, this.offset, this.len);
            let into = edges.buffers.sge(this.buffer.as_ref().expect("it has its buffer"), this.len);
            let operation = SendOperation::Read { into, remote };
            self.read_credits -= 1;
            self.send_credits -= 1;
            let posted = edges.provider.post_send(self.qp, SendRequest { id, operation, signaled: true });
            self.check_post(edges, posted);
        }
    }

    /// An RDMA READ is done: the data are here.
    pub fn on_read<P: Provider, B: Backend>(&mut self, edges: &mut Edges<P, B>, now: Duration, place: Place) {
        let (request, chunk) = (place.slot, place.chunk);
        self.read_credits += 1;
        self.send_credits += 1;
        self.post_reads(edges);
        self.post_writes(edges, now);
        let this = self.request(request);
        let len = this.chunk(chunk).len;
        edges.counters.bytes_in.add(len.into());
        if matches!(this.work, Some(Work::Parameters)) {
            let mut parameters = [0; PARAMETERS_LEN_MAX];
            let into = &mut parameters[..len as usize];
            let buffer = this.chunk(chunk).buffer.as_ref().expect("it has its buffer");
            let (memory, at) = edges.buffers.memory(buffer);
            memory.read(at, into);
            self.release_chunk(&mut edges.buffers, request, chunk);
            self.give_parameters(edges, now, request, &parameters[..len as usize]);
        } else if this.result.is_err() {
            self.release_chunk(&mut edges.buffers, request, chunk);
            self.advance(edges, now, request, false);
        } else {
            self.execute_buffered(edges, request, chunk);
            self.finish(edges, now, request);
        }
    }

    fn queue_write<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        now: Duration,
        request: u16,
        chunk: u8,
    ) {
        self.request(request).chunk(chunk).stage = Stage::AwaitWrite;
        self.await_write.push_back((request, chunk));
        self.post_writes(edges, now);
    }

    /// Posts the RDMA WRITEs that there is room for.
    fn post_writes<P: Provider, B: Backend>(&mut self, edges: &mut Edges<P, B>, now: Duration) {
        while let Some(&(request, chunk)) = self.await_write.front() {
            if self.send_credits == 0 {
                edges.counters.waits_send.add(1);
                break;
            }
            self.await_write.pop_front();
            let id = self.place(request, chunk).work_request(Kind::Write);
            let this = self.request(request);
            let Transfer::ToHost { sink, .. } = this.transfer else { continue };
            let signaled = !this.is_last(chunk);
            let this = this.chunk(chunk);
            this.stage = if signaled { Stage::Writing } else { Stage::WritingUnsignaled };
            let len = this.len;
            let remote = part(sink, this.offset, len);
            let sge = [edges.buffers.sge(this.buffer.as_ref().expect("it has its buffer"), len)];
            let operation = SendOperation::Write { payload: Payload::Gather(&sge), remote };
            self.send_credits -= 1;
            edges.counters.bytes_out.add(len.into());
            let posted = edges.provider.post_send(self.qp, SendRequest { id, operation, signaled });
            self.check_post(edges, posted);
            self.finish(edges, now, request);
        }
    }

    /// An RDMA WRITE is done: its buffer can carry the next chunk.
    pub fn on_written<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        now: Duration,
        place: Place,
    ) {
        self.send_credits += 1;
        self.release_chunk(&mut edges.buffers, place.slot, place.chunk);
        self.post_writes(edges, now);
        self.post_reads(edges);
        self.advance(edges, now, place.slot, false);
    }

    /// When all chunks are through, the engine is told.
    fn finish<P: Provider, B: Backend>(&mut self, edges: &mut Edges<P, B>, now: Duration, request: u16) {
        let this = self.request(request);
        if !this.is_done() {
            return;
        }
        let Some(ticket) = this.ticket.take() else { return };
        let (work, result) = (this.work.take(), this.result);
        if matches!(work, Some(Work::Parameters)) && this.end == 0 {
            return self.give_nothing(edges, now, request, ticket);
        }
        let step = self.engine.on_done(now, ticket, result);
        self.take_step(edges, now, request, step);
        self.take_own_steps(edges, now);
    }

    /// Parameters of no bytes.
    fn give_nothing<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        now: Duration,
        request: u16,
        ticket: nvmf_subsystem::Ticket,
    ) {
        let step = self.engine.on_parameters(now, ticket, &[]);
        self.take_step(edges, now, request, step);
        self.take_own_steps(edges, now);
    }

    /// Posts the response, behind the WRITEs of its command.
    fn respond<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        request: u16,
        response: &Response,
    ) {
        if let Some(slot) = self.request(request).receive.take() {
            self.repost(edges, slot);
        }
        self.request(request).state = RequestState::Responding;
        let operation = SendOperation::Send {
            payload: Payload::Inline(&response.cqe),
            invalidate: response.invalidate.filter(|_| edges.remote_invalidate).map(RemoteKey),
            solicited: true,
        };
        let id = self.place(request, 0).work_request(Kind::Send);
        edges.counters.responses.add(1);
        let posted = edges.provider.post_send(self.qp, SendRequest { id, operation, signaled: true });
        self.check_post(edges, posted);
    }

    /// A response left, and with it the WRITEs before it.
    pub fn on_sent<P: Provider, B: Backend>(&mut self, edges: &mut Edges<P, B>, now: Duration, place: Place) {
        let request = place.slot;
        for chunk in 0..crate::limits::CHUNKS_MAX {
            let chunk = u8::try_from(chunk).expect("few");
            if self.request(request).chunk(chunk).stage == Stage::WritingUnsignaled {
                self.send_credits += 1;
                self.release_chunk(&mut edges.buffers, request, chunk);
            }
        }
        self.free_request(edges, request);
        self.post_writes(edges, now);
        self.post_reads(edges);
        self.take_received(edges, now);
    }

    fn free_request<P: Provider, B: Backend>(&mut self, edges: &mut Edges<P, B>, request: u16) {
        if let Some(slot) = self.request(request).receive.take() {
            self.repost(edges, slot);
        }
        let this = self.request(request);
        assert!(this.chunks.iter().all(|chunk| chunk.stage == Stage::Idle), "a free request holds nothing");
        this.state = RequestState::Free;
        this.work = None;
        this.transfer = Transfer::None;
        self.free.push(request);
    }

    /// A time of the engine's came.
    pub fn on_timeout<P: Provider, B: Backend>(&mut self, edges: &mut Edges<P, B>, now: Duration) {
        self.engine.on_timeout(now);
        self.take_own_steps(edges, now);
    }

    /// The registry has news.
    pub fn on_notice<P: Provider, B: Backend>(
        &mut self,
        edges: &mut Edges<P, B>,
        now: Duration,
        notice: &Notice,
    ) {
        if self.life == Life::Gone {
            return;
        }
        self.engine.on_notice(now, notice);
        self.take_own_steps(edges, now);
    }
}

/// `len` bytes at `offset` of what a keyed SGL names. A peer whose address wraps gets what it asked for: its own
/// provider refuses the access.
fn part(keyed: Keyed, offset: u32, len: u32) -> RemoteMemory {
    RemoteMemory { key: RemoteKey(keyed.key), address: keyed.address.wrapping_add(offset.into()), len }
}
