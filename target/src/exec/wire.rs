//! Pulls and pushes: begun while there are credits for them, in the order in which they were asked for.

use super::buffers::Buffers;
use super::place::Place;
use super::queue::Queue;
use super::request::Stage;
use super::resources::Resources;
use super::transport::{Piece, Transport};
use crate::metrics::worker::Phase;
use core::time::Duration;
use nvmf_block::Backend;
use nvmf_subsystem::limits::PARAMETERS_LEN_MAX;
use nvmf_subsystem::{Remote, Transfer, Work};

impl<T: Transport> Queue<T> {
    /// Fetches a chunk from the host: it has its credit and its buffer.
    pub(super) fn pull<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        request: u16,
        chunk: u8,
        remote: Remote,
    ) {
        self.pull_credits -= 1;
        self.on_begun(resources.now, &mut resources.unfinished, true);
        let place = self.place(request, chunk);
        let this = self.request(request);
        let piece = this.piece(chunk, remote);
        let this = this.chunk(chunk);
        this.stage = Stage::Pulling;
        this.since_us = resources.meter.now_us();
        let into = resources.buffers.part(this.buffer.as_ref().expect("it has its buffer"));
        let begun = resources.transport.pull(place, piece, into);
        self.check(resources, begun);
    }

    /// A pull is done: the data are here, as they were sent or not.
    pub fn on_pulled<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        now: Duration,
        place: Place,
        intact: bool,
    ) {
        let (request, chunk) = (place.slot(), place.chunk());
        self.return_pull_credit(&mut resources.buffers);
        self.on_progress(resources, now);
        let this = self.request(request);
        let (len, since_us) = (this.chunk(chunk).len, this.chunk(chunk).since_us);
        resources.meter.record(&mut this.footprint, Phase::Pull, since_us);
        resources.counters.bytes_in.add(len.into());
        if !intact {
            this.damage();
            self.leave_waits(request);
        }
        let this = self.request(request);
        if matches!(this.work, Some(Work::Parameters)) && intact {
            let mut parameters = [0; PARAMETERS_LEN_MAX];
            let into = &mut parameters[..len as usize];
            let buffer = this.chunk(chunk).buffer.as_ref().expect("it has its buffer");
            let (memory, at) = resources.buffers.memory(buffer);
            memory.read(at, into);
            self.release_chunk(&mut resources.buffers, request, chunk);
            self.give_parameters(resources, now, request, &parameters[..len as usize]);
        } else if this.result.is_err() {
            self.release_chunk(&mut resources.buffers, request, chunk);
            self.advance(resources, now, request, false);
        } else {
            self.execute_buffered(resources, request, chunk);
            self.finish(resources, now, request);
        }
    }

    /// A chunk is ready for the host. It goes when those before it in its command have gone.
    pub(super) fn queue_push<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        now: Duration,
        request: u16,
        chunk: u8,
    ) {
        let this = self.request(request);
        this.chunk(chunk).stage = Stage::AwaitPush;
        this.chunk(chunk).since_us = resources.meter.now_us();
        if this.next_push() == Some(chunk) {
            self.await_push.push_back((request, chunk));
            self.begin_pushes(resources, now);
        }
    }

    /// Begins the pushes that there is room for.
    pub(super) fn begin_pushes<B: Backend>(&mut self, resources: &mut Resources<T, B>, now: Duration) {
        while let Some(&(request, chunk)) = self.await_push.front() {
            if self.push_credits == 0 {
                resources.counters.waits_send.add(1);
                break;
            }
            self.await_push.pop_front();
            let Some(push) = self.begin_push(request, chunk) else { continue };
            if let Some(next) = self.request(request).next_push() {
                self.await_push.push_back((request, next));
            }
            self.on_begun(resources.now, &mut resources.unfinished, push.signaled);
            let buffer = self.request(request).chunk(chunk).buffer.as_ref().expect("it has its buffer");
            let from = resources.buffers.part(buffer);
            let begun = resources.transport.push(push.place, push.piece, from, None, push.signaled);
            self.on_push_begun(resources, now, &push, begun);
        }
    }

    /// Pushes a chunk from where the device has its bytes, if it borrows them and nothing is in the way. The transport
    /// copies what does not leave in this turn into the chunk's buffer.
    pub(super) fn push_borrowed<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        now: Duration,
        request: u16,
        chunk: u8,
    ) -> bool {
        if self.push_credits == 0 || !self.await_push.is_empty() {
            return false;
        }
        let this = self.request(request);
        // What a barrier came behind is checked again, with the operation that the device is given.
        if this.chunk(chunk).offset != this.pushed || this.epoch < resources.epoch {
            return false;
        }
        let Some((device, range)) = this.block_read(chunk) else { return false };
        let begun_us = resources.meter.now_us();
        let Resources { backend, transport, buffers, now: begun_at, unfinished, .. } = resources;
        let Some(borrowed) = backend.borrow_read(device, range) else { return false };
        let Some(push) = self.begin_push(request, chunk) else { return false };
        self.request(request).chunk(chunk).since_us = begun_us;
        self.on_begun(*begun_at, unfinished, push.signaled);
        let buffer = self.request(request).chunk(chunk).buffer.as_ref().expect("it has its buffer");
        let from = buffers.part(buffer);
        let begun = transport.push(push.place, push.piece, from, Some(borrowed), push.signaled);
        resources.borrowed.add(push.piece.len);
        self.on_push_begun(resources, now, &push, begun);
        true
    }

    /// What the push of a chunk is to be.
    fn begin_push(&mut self, request: u16, chunk: u8) -> Option<Push> {
        let place = self.place(request, chunk);
        let this = self.request(request);
        let Transfer::ToHost { sink, .. } = this.transfer else { return None };
        let signaled = !this.is_last(chunk);
        let piece = this.piece(chunk, sink);
        this.pushed += piece.len;
        this.chunk(chunk).stage = if signaled { Stage::Pushing } else { Stage::PushingUnsignaled };
        Some(Push { place, piece, signaled })
    }

    fn on_push_begun<B: Backend>(
        &mut self,
        resources: &mut Resources<T, B>,
        now: Duration,
        push: &Push,
        begun: Result<(), T::Error>,
    ) {
        self.push_credits -= 1;
        resources.counters.bytes_out.add(push.piece.len.into());
        self.check(resources, begun);
        self.finish(resources, now, push.place.slot());
    }

    /// A push left: its buffer can carry the next chunk.
    pub fn on_pushed<B: Backend>(&mut self, resources: &mut Resources<T, B>, now: Duration, place: Place) {
        self.on_progress(resources, now);
        self.push_credits += 1;
        let this = self.request(place.slot());
        let since_us = this.chunk(place.chunk()).since_us;
        resources.meter.record(&mut this.footprint, Phase::Push, since_us);
        self.release_chunk(&mut resources.buffers, place.slot(), place.chunk());
        self.begin_pushes(resources, now);
        self.advance(resources, now, place.slot(), false);
    }

    /// A command failed: what comes behind the failed part is not pushed any more.
    pub(super) fn release_unpushed(&mut self, buffers: &mut Buffers<T::Key>, request: u16) {
        let in_line = self.request(request).next_push();
        for chunk in 0..crate::limits::CHUNKS_MAX {
            let chunk = u8::try_from(chunk).expect("few");
            if self.request(request).chunk(chunk).stage == Stage::AwaitPush && in_line != Some(chunk) {
                self.release_chunk(buffers, request, chunk);
            }
        }
    }
}

/// The push of a chunk, but for where its bytes come from.
struct Push {
    place: Place,
    piece: Piece,
    signaled: bool,
}
