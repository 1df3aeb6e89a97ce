//! RDMA READs and WRITEs: posted while there are credits for them, in the order in which they were asked for.

use super::name::{Kind, Place};
use super::queue::Queue;
use super::request::Stage;
use super::resources::Resources;
use core::time::Duration;
use nvmf_block::{Backend, BorrowedRead};
use nvmf_rdma::{
    Payload, PostError, Provider, RemoteKey, RemoteMemory, SendOperation, SendRequest, WorkRequestId,
};
use nvmf_subsystem::limits::PARAMETERS_LEN_MAX;
use nvmf_subsystem::{Keyed, Transfer, Work};

impl Queue {
    /// Posts the RDMA READ of a chunk, which has its credit and its buffer.
    pub(super) fn post_read<P: Provider, B: Backend>(
        &mut self,
        resources: &mut Resources<P, B>,
        request: u16,
        chunk: u8,
        keyed: Keyed,
    ) {
        let id = self.place(request, chunk).work_request(Kind::Read);
        self.read_credits -= 1;
        let this = self.request(request).chunk(chunk);
        this.stage = Stage::Reading;
        let remote = part(keyed, this.offset, this.len);
        let into = resources.buffers.sge(this.buffer.as_ref().expect("it has its buffer"), this.len);
        let operation = SendOperation::Read { into, remote };
        self.post(resources, SendRequest { id, operation, signaled: true });
    }

    /// An RDMA READ is done: the data are here.
    pub fn on_read<P: Provider, B: Backend>(
        &mut self,
        resources: &mut Resources<P, B>,
        now: Duration,
        place: Place,
    ) {
        let (request, chunk) = (place.slot, place.chunk);
        self.return_read_credit(&mut resources.buffers);
        self.on_progress(now);
        let this = self.request(request);
        let len = this.chunk(chunk).len;
        resources.counters.bytes_in.add(len.into());
        if matches!(this.work, Some(Work::Parameters)) {
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

    pub(super) fn queue_write<P: Provider, B: Backend>(
        &mut self,
        resources: &mut Resources<P, B>,
        now: Duration,
        request: u16,
        chunk: u8,
    ) {
        self.request(request).chunk(chunk).stage = Stage::AwaitWrite;
        self.await_write.push_back((request, chunk));
        self.post_writes(resources, now);
    }

    /// Posts the RDMA WRITEs that there is room for.
    pub(super) fn post_writes<P: Provider, B: Backend>(
        &mut self,
        resources: &mut Resources<P, B>,
        now: Duration,
    ) {
        while let Some(&(request, chunk)) = self.await_write.front() {
            if self.send_credits == 0 {
                resources.counters.waits_send.add(1);
                break;
            }
            self.await_write.pop_front();
            let Some(write) = self.begin_write(request, chunk) else { continue };
            let buffer = self.request(request).chunk(chunk).buffer.as_ref().expect("it has its buffer");
            let sge = [resources.buffers.sge(buffer, write.remote.len)];
            self.on_posted(resources.now, write.signaled);
            let posted = resources.provider.post_send(self.qp, write.request(Payload::Gather(&sge)));
            self.on_write_posted(resources, now, request, &write, posted);
        }
    }

    /// Posts the RDMA WRITE of a chunk from where the device has its bytes, if it borrows them and nothing is in the
    /// way. The provider copies what does not leave in this turn into the chunk's buffer.
    pub(super) fn post_borrowed_write<P: Provider, B: Backend>(
        &mut self,
        resources: &mut Resources<P, B>,
        now: Duration,
        request: u16,
        chunk: u8,
    ) -> bool {
        if self.send_credits == 0 || !self.await_write.is_empty() {
            return false;
        }
        let Some((device, range)) = self.request(request).block_read(chunk) else { return false };
        let Resources { backend, provider, buffers, now: posted_at, .. } = resources;
        let Some(BorrowedRead { memory, offset }) = backend.borrow_read(device, range) else { return false };
        let Some(write) = self.begin_write(request, chunk) else { return false };
        self.on_posted(*posted_at, write.signaled);
        let buffer = self.request(request).chunk(chunk).buffer.as_ref().expect("it has its buffer");
        let spare = buffers.sge(buffer, write.remote.len);
        let payload = Payload::Borrowed { from: memory, offset, spare: &spare };
        let posted = provider.post_send(self.qp, write.request(payload));
        resources.borrowed.add(write.remote.len);
        self.on_write_posted(resources, now, request, &write, posted);
        true
    }

    /// What the RDMA WRITE of a chunk is to be.
    fn begin_write(&mut self, request: u16, chunk: u8) -> Option<Write> {
        let id = self.place(request, chunk).work_request(Kind::Write);
        let this = self.request(request);
        let Transfer::ToHost { sink, .. } = this.transfer else { return None };
        let signaled = !this.is_last(chunk);
        let this = this.chunk(chunk);
        this.stage = if signaled { Stage::Writing } else { Stage::WritingUnsignaled };
        Some(Write { id, signaled, remote: part(sink, this.offset, this.len) })
    }

    fn on_write_posted<P: Provider, B: Backend>(
        &mut self,
        resources: &mut Resources<P, B>,
        now: Duration,
        request: u16,
        write: &Write,
        posted: Result<(), PostError>,
    ) {
        self.send_credits -= 1;
        resources.counters.bytes_out.add(write.remote.len.into());
        self.check_post(resources, posted);
        self.finish(resources, now, request);
    }

    /// An RDMA WRITE is done: its buffer can carry the next chunk.
    pub fn on_written<P: Provider, B: Backend>(
        &mut self,
        resources: &mut Resources<P, B>,
        now: Duration,
        place: Place,
    ) {
        self.on_progress(now);
        self.send_credits += 1;
        self.release_chunk(&mut resources.buffers, place.slot, place.chunk);
        self.post_writes(resources, now);
        self.advance(resources, now, place.slot, false);
    }
}

/// The RDMA WRITE of a chunk, but for where its bytes come from.
struct Write {
    id: WorkRequestId,
    signaled: bool,
    remote: RemoteMemory,
}

impl Write {
    fn request<'a>(&self, payload: Payload<'a>) -> SendRequest<'a> {
        let operation = SendOperation::Write { payload, remote: self.remote };
        SendRequest { id: self.id, operation, signaled: self.signaled }
    }
}

/// `len` bytes at `offset` of what a keyed SGL names. A peer whose address wraps gets what it asked for: its own
/// provider refuses the access.
fn part(keyed: Keyed, offset: u32, len: u32) -> RemoteMemory {
    RemoteMemory { key: RemoteKey(keyed.key), address: keyed.address.wrapping_add(offset.into()), len }
}
