//! The data of a command: cut into chunks, each with its buffer, to the device and back.
//!
//! Every event (a completion of the device, a buffer that came free) advances what it can; the rest waits in a list.

use super::buffers::{Buffers, Class, slot};
use super::place::Place;
use super::queue::{Queue, QueueState};
use super::request::{Chunk, Failure, RequestState, Stage};
use super::resources::Resources;
use super::share::Sharing;
use super::transport::Transport;
use crate::limits::PAUSE;
use crate::metrics::worker::Phase;
use core::time::Duration;
use nvme_proto::{Nsid, Status};
use nvmf_block::{Backend, BlockError, BlockOp, DeviceId};
use nvmf_subsystem::limits::PARAMETERS_LEN_MAX;
use nvmf_subsystem::{BlockWork, Source, Transfer, Work};

impl<T: Transport> Queue<T> {
    /// Hands out as many chunks of a request as there are buffers and chunks for. `granted`: the worker called this
    /// queue out of the line for buffers.
    pub(super) fn advance<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
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
                (Transfer::None, _) if !this.buffers_by_itself() => {
                    self.execute_bare(resources, request, chunk);
                    true
                }
                (Transfer::FromHost { source: Source::InCapsule { offset }, .. }, Some(Work::Parameters)) => {
                    return self.take_parameters_in_capsule(resources, now, request, offset);
                }
                // From where they landed, at any offset: such a command waits for no buffer, which others may hold
                // whose data come behind capsules that wait for its receive.
                (Transfer::FromHost { source: Source::InCapsule { offset }, .. }, _) => {
                    self.execute_in_capsule(resources, request, chunk, offset);
                    true
                }
                _ if this.sharing == Sharing::UnderWay => false,
                _ => {
                    let may_share = matches!(this.sharing, Sharing::From(offset) if offset <= this.next);
                    may_share && self.share(resources, request, chunk)
                        || self.take_buffer(resources, request, chunk, granted) && {
                            self.begin_chunk(resources, now, request, chunk);
                            true
                        }
                }
            };
            granted = false;
            if !handed_out {
                break;
            }
        }
        self.finish(resources, now, request);
    }

    /// Work without data: one operation, or one for each range.
    pub(super) fn execute_bare<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        request: u16,
        chunk: u8,
    ) {
        let this = self.request(request);
        let offset = this.next;
        this.next += 1;
        *this.chunk(chunk) =
            Chunk { stage: Stage::Idle, buffer: None, offset, len: 0, since_us: 0, reading: false };
        self.execute(resources, request, chunk, None);
    }

    /// In-capsule data go to the device from where they landed.
    pub(super) fn execute_in_capsule<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        request: u16,
        chunk: u8,
        offset: u32,
    ) {
        let this = self.request(request);
        let len = this.end;
        this.next = len;
        *this.chunk(chunk) =
            Chunk { stage: Stage::Idle, buffer: None, offset: 0, len, since_us: 0, reading: false };
        let capsule = this.capsule.as_ref().expect("the capsule of in-capsule data is kept");
        resources.counters.bytes_in.add(len.into());
        let buffer = resources.transport.capsule_block(capsule, offset, len);
        self.execute(resources, request, chunk, Some(buffer));
    }

    pub(super) fn take_parameters_in_capsule<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        now: Duration,
        request: u16,
        offset: u32,
    ) {
        let this = self.request(request);
        let capsule = this.capsule.as_ref().expect("the capsule of in-capsule data is kept");
        let len = this.end as usize;
        let mut parameters = [0; PARAMETERS_LEN_MAX];
        let (memory, at) = resources.transport.capsule_data(capsule, offset);
        memory.read(at, &mut parameters[..len]);
        resources.counters.bytes_in.add(len as u64);
        self.give_parameters(resources, now, request, &parameters[..len]);
    }

    pub(super) fn give_parameters<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        now: Duration,
        request: u16,
        parameters: &[u8],
    ) {
        let this = self.request(request);
        this.next = this.end;
        this.work = None;
        let ticket = this.ticket.take().expect("a request under way has its ticket");
        let step = self.engine.on_parameters(now, ticket, parameters);
        self.take_step(resources, now, request, step);
        self.take_own_steps(resources, now);
    }

    /// Whether the next chunk of a request can go on its way: there is a buffer for it, and a pull if it needs
    /// one. Both are taken together, so that no buffer waits for a pull that cannot begin yet.
    fn may_begin(&self, now: Duration, buffers: &Buffers<T::Key>, request: u16, class: Class) -> bool {
        let request = &self.requests[usize::from(request)];
        let reads = matches!(request.transfer, Transfer::FromHost { source: Source::Remote(_), .. });
        let goes_on = !self.is_stalled(now, PAUSE);
        goes_on && (!reads || self.pull_credits > 0) && buffers.may_take(class, self.owner, request.device())
    }

    /// Takes a buffer for the next chunk, or waits for one.
    pub(super) fn take_buffer<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        request: u16,
        chunk: u8,
        granted: bool,
    ) -> bool {
        let (now, buffers) = (resources.now, &mut resources.buffers);
        let class = self.class(request, buffers);
        let at = class as usize;
        // Whoever comes while others of its queue wait goes behind them.
        let in_turn = granted || self.await_buffer[at].is_empty();
        if in_turn
            && self.may_begin(now, buffers, request, class)
            && let Some(buffer) = buffers.take(class, self.owner)
        {
            let len_max = buffers.len(class);
            let this = self.request(request);
            let (offset, len) = (this.next, this.next_len(len_max));
            this.next += len;
            *this.chunk(chunk) =
                Chunk { stage: Stage::Idle, buffer: Some(buffer), offset, len, since_us: 0, reading: false };
            return true;
        }
        if self.pull_credits == 0 {
            resources.counters.waits_read.add(1);
        } else {
            resources.counters.waits_buffer.add(1);
        }
        let this = self.request(request);
        this.state = RequestState::AwaitBuffer;
        this.waits_since_us = resources.meter.now_us();
        self.await_buffer[at].push_back(request);
        if !self.queued[at] {
            self.queued[at] = true;
            buffers.wait(class, self.index);
        }
        buffers.recheck(class);
        false
    }

    /// The worker looks whether a request of this queue may have a buffer of this class: says whether one had.
    pub fn on_buffer<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        now: Duration,
        class: Class,
    ) -> bool {
        let at = class as usize;
        self.queued[at] = false;
        if self.state == QueueState::Closed {
            return false;
        }
        // Not always the first: one whose device has its share already lets the others go.
        let buffers = &resources.buffers;
        let position =
            self.await_buffer[at].iter().position(|&request| self.may_begin(now, buffers, request, class));
        let request = position.and_then(|position| self.await_buffer[at].remove(position));
        if let Some(request) = request {
            let this = self.request(request);
            this.state = RequestState::Executing;
            resources.meter.record(&mut this.footprint, Phase::Buffer, this.waits_since_us);
            self.advance(resources, now, request, true);
        }
        if !self.await_buffer[at].is_empty() && !self.queued[at] {
            self.queued[at] = true;
            resources.buffers.wait(class, self.index);
        }
        request.is_some()
    }

    /// A pull ended: a request may have waited for that.
    pub(super) fn return_pull_credit(&mut self, buffers: &mut Buffers<T::Key>) {
        self.pull_credits += 1;
        Class::ALL
            .into_iter()
            .filter(|&class| self.queued[class as usize])
            .for_each(|class| buffers.recheck(class));
    }

    /// A request that failed waits for nothing more.
    pub(super) fn leave_waits(&mut self, request: u16) {
        if self.request(request).state == RequestState::AwaitBuffer {
            self.await_buffer.iter_mut().for_each(|waiting| waiting.retain(|&other| other != request));
            self.request(request).state = RequestState::Executing;
        }
    }

    /// A chunk has its buffer: its way begins.
    pub(super) fn begin_chunk<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        now: Duration,
        request: u16,
        chunk: u8,
    ) {
        let this = self.request(request);
        match this.transfer {
            Transfer::FromHost { source: Source::Remote(remote), .. } => {
                self.pull(resources, request, chunk, remote);
            }
            Transfer::ToHost { .. } if matches!(this.work, Some(Work::Page(_))) => {
                self.fill_page(resources, request, chunk);
                self.queue_push(resources, now, request, chunk);
            }
            Transfer::ToHost { .. } => {
                if !self.push_borrowed(resources, now, request, chunk) {
                    self.execute_buffered(resources, request, chunk);
                }
            }
            Transfer::None if this.sources().next().is_some() => self.read_to_copy(resources, request, chunk),
            Transfer::None => {
                self.fill_with_own(resources, request, chunk);
                self.execute_buffered(resources, request, chunk);
            }
            Transfer::FromHost { source: Source::InCapsule { .. }, .. } => {
                unreachable!("work with the data of its capsule takes no buffer")
            }
        }
    }

    pub(super) fn fill_page<B: Backend>(&mut self, resources: &mut Resources<T, B>, request: u16, chunk: u8) {
        let this = &self.requests[usize::from(request)];
        let Some(Work::Page(page)) = &this.work else { return };
        let chunk = &this.chunks[usize::from(chunk)];
        let (memory, at) = resources.buffers.memory(chunk.buffer.as_ref().expect("it has its buffer"));
        let mut piece = [0; 1024];
        for done in (0..chunk.len).step_by(piece.len()) {
            let len = (chunk.len - done).min(1024) as usize;
            page.fill(chunk.offset + done, &mut piece[..len]);
            memory.write(at + done as usize, &piece[..len]);
        }
    }

    /// Data that the engine had for the device.
    fn fill_with_own<B: Backend>(&mut self, resources: &mut Resources<T, B>, request: u16, chunk: u8) {
        let this = &self.requests[usize::from(request)];
        if let Some(Work::Block { op: BlockWork::CompareAndWrite(work), .. }) = &this.work {
            let buffer = this.chunks[usize::from(chunk)].buffer.as_ref().expect("it has its buffer");
            let (memory, at) = resources.buffers.memory(buffer);
            memory.write(at, &work.data);
        }
    }

    /// A chunk of a Copy is read; [`Queue::on_executed`] writes it.
    fn read_to_copy<B: Backend>(&mut self, resources: &mut Resources<T, B>, request: u16, chunk: u8) {
        let place = self.place(request, chunk);
        let this = self.request(request);
        let (source, _) =
            this.copy(this.chunks[usize::from(chunk)].offset).expect("it is a part of the Copy");
        let geometry = resources.backend.geometry(source.device);
        let this = this.chunk(chunk);
        let buffer = this.buffer.as_mut().expect("it has its buffer");
        let blocks = geometry.map_or(0, |geometry| u64::from(this.len / geometry.block_size));
        let into = resources.buffers.block(buffer, this.len);
        this.reading = true;
        // A device that is gone says so itself.
        let op = BlockOp::Read { range: source.range.split_at(blocks).0, into };
        self.submit(resources, place, source.nsid, source.device, op);
    }

    pub(super) fn execute_buffered<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        request: u16,
        chunk: u8,
    ) {
        let this = self.request(request).chunk(chunk);
        let buffer = resources.buffers.block(this.buffer.as_ref().expect("it has its buffer"), this.len);
        self.execute(resources, request, chunk, Some(buffer));
    }

    /// Onto the storage backend.
    pub(super) fn execute<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        request: u16,
        chunk: u8,
        buffer: Option<nvmf_block::Buffer>,
    ) {
        let place = self.place(request, chunk);
        let this = self.request(request);
        let (offset, len, nsid) = (this.chunk(chunk).offset, this.chunk(chunk).len, this.nsid);
        let (Some(Work::Block { device, .. }), Some(op)) = (&this.work, this.block_op(offset, len, buffer))
        else {
            // A range that its data do not fit: the engine computed one from the other.
            this.fail(BlockError::BadBuffer);
            return self.release_chunk(&mut resources.buffers, request, chunk);
        };
        let device = *device;
        self.submit(resources, place, nsid, device, op);
    }

    /// Whether an operation may still be given to a device. If not, the command has failed.
    pub(super) fn may_submit<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        place: Place,
        nsid: Nsid,
        device: DeviceId,
        op: &BlockOp,
    ) -> bool {
        let (request, chunk) = (place.slot(), place.chunk());
        let this = self.request(request);
        if this.epoch == resources.epoch {
            return true;
        }
        let checked = this.condemned.map_or_else(|| self.engine.check_again(nsid, device, op), Err);
        if let Err(status) = checked {
            self.refuse(resources, request, chunk, status);
        }
        checked.is_ok()
    }

    /// Gives the device an operation of a chunk. Every operation passes here.
    pub(super) fn submit<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        place: Place,
        nsid: Nsid,
        device: DeviceId,
        op: BlockOp,
    ) {
        let (request, chunk) = (place.slot(), place.chunk());
        if !self.may_submit(resources, place, nsid, device, &op) {
            return;
        }
        let owner = self.owner;
        let this = self.request(request);
        this.changes += u32::from(op.writes());
        let this = this.chunk(chunk);
        this.stage = Stage::Executing;
        this.since_us = resources.meter.now_us();
        resources.meter.begin_operation(slot(device));
        if let Some(buffer) = &mut this.buffer {
            resources.buffers.charge_device(buffer, owner, device);
        }
        self.device_pending += 1;
        resources.submit(place.tag(), device, op);
    }

    /// A barrier came behind the command, and it is not let in any more.
    #[cold]
    fn refuse<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        request: u16,
        chunk: u8,
        status: Status,
    ) {
        let this = self.request(request);
        this.chunk(chunk).reading = false;
        this.refuse(status);
        self.stop(resources, request, chunk);
    }

    /// An operation that waited for its device was taken back. All of its command's that were are known by now.
    #[cold]
    pub fn on_taken_back<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        now: Duration,
        place: Place,
    ) {
        let (request, chunk) = (place.slot(), place.chunk());
        let Some(status) = self.request(request).condemned else { return };
        self.refuse(resources, request, chunk, status);
        self.finish(resources, now, request);
    }

    /// A command has failed: it needs this chunk no more, begins no other, and sends no more data.
    fn stop<B: Backend>(&mut self, resources: &mut Resources<T, B>, request: u16, chunk: u8) {
        self.leave_waits(request);
        self.release_chunk(&mut resources.buffers, request, chunk);
        self.release_unpushed(&mut resources.buffers, request);
    }

    /// The storage backend is done with a chunk.
    pub fn on_executed<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        now: Duration,
        place: Place,
        result: Result<(), BlockError>,
    ) {
        let (request, chunk) = (place.slot(), place.chunk());
        self.device_pending -= 1;
        let this = self.request(request);
        let (device, since_us) = (this.device(), this.chunk(chunk).since_us);
        let read_from = || this.copy(this.chunks[usize::from(chunk)].offset).map(|(source, _)| source.device);
        let busy = if this.chunks[usize::from(chunk)].reading { read_from() } else { device };
        if let Some(device) = busy {
            resources.meter.end_operation(slot(device), since_us);
        }
        resources.meter.record(&mut this.footprint, Phase::Disk, since_us);
        if self.state == QueueState::Closed {
            if let (Some((association, _)), Some(device)) = (&self.admitted, device) {
                association.on_orphan_done(device);
            }
            return self.release_chunk(&mut resources.buffers, request, chunk);
        }
        let this = self.request(request);
        let reads = matches!(this.work, Some(Work::Block { op: BlockWork::Read { .. }, .. }));
        let shared = self.take_shared(request, chunk);
        let this = self.request(request);
        match result {
            Err(BlockError::Unsupported) if shared => {
                if this.result.is_ok() {
                    self.read_unshared(request, chunk);
                }
                self.release_chunk(&mut resources.buffers, request, chunk);
            }
            Ok(()) if core::mem::take(&mut this.chunk(chunk).reading) && this.result.is_ok() => {
                self.execute_buffered(resources, request, chunk);
            }
            Ok(()) if reads && this.result.is_ok() => {
                let owner = self.owner;
                if let Some(buffer) = &mut self.request(request).chunk(chunk).buffer {
                    resources.buffers.charge_owner(buffer, owner);
                }
                self.queue_push(resources, now, request, chunk);
            }
            Ok(()) => self.release_chunk(&mut resources.buffers, request, chunk),
            Err(error) => {
                // A failed comparison is an answer, not a failure of the backend.
                resources.counters.block_errors.add(u64::from(error != BlockError::CompareFailed));
                this.fail(error);
                self.stop(resources, request, chunk);
            }
        }
        self.advance(resources, now, request, false);
    }

    /// When all chunks are through, the engine is told.
    pub(super) fn finish<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        now: Duration,
        request: u16,
    ) {
        let this = self.request(request);
        if !this.is_done() {
            return;
        }
        let Some(ticket) = this.ticket.take() else { return };
        let (result, failure) = (this.result, this.failure);
        this.work = None;
        let step = match failure {
            Some(Failure::Damaged) => self.fail_transfer(resources, ticket),
            Some(Failure::Refused(status)) => self.engine.on_refused(ticket, status),
            None => self.engine.on_done(now, ticket, result),
        };
        self.take_step(resources, now, request, step);
        self.take_own_steps(resources, now);
    }
}
