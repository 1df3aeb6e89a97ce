//! Receives, READs, WRITEs and SENDs.

use super::Rdma;
use super::name::{Kind, of_work_request, work_request};
use super::receives::ReceiveSlots;
use crate::exec::place::Place;
use crate::exec::transport::{Arrival, Part, Piece};
use nvmf_block::BorrowedRead;
use nvmf_memory::{BufferIndex, Memory};
use nvmf_rdma::{
    LocalKey, Payload, PostError, Provider, ReceiveRequest, RemoteKey, RemoteMemory, SendOperation,
    SendRequest, Sge, WcStatus,
};
use nvmf_subsystem::limits::{CQE_LEN, SQE_LEN};
use nvmf_subsystem::{Keyed, Remote};

/// A capsule in a receive slot.
#[derive(Debug)]
pub struct Capsule {
    admin: bool,
    /// Its number in the queue.
    pub(super) slot: u16,
    buffer: BufferIndex,
}

impl<P: Provider> Rdma<P> {
    pub(super) fn poll_completions(&mut self) {
        self.completions.clear();
        self.taken = 0;
        self.provider.poll_cq(self.cq, &mut self.completions);
    }

    pub(super) fn take_completion(&mut self) -> Option<Arrival<Capsule>> {
        loop {
            let completion = *self.completions.get(self.taken)?;
            self.taken += 1;
            let (kind, place) = of_work_request(completion.id);
            // A queue that was removed earlier in this batch has nothing more to say.
            let Some(queue_pair) = self.queue_pair(place.queue()).filter(|qp| qp.id == completion.queue_pair)
            else {
                continue;
            };
            if completion.status == WcStatus::Flushed {
                continue;
            }
            if !completion.status.is_success() {
                let cause = format!("{kind:?} failed: {}", completion.status);
                return Some(Arrival::Failed(place.queue(), cause));
            }
            return Some(match kind {
                Kind::Receive => {
                    let Some(buffer) = queue_pair.receives[usize::from(place.slot())] else { continue };
                    let capsule = Capsule { admin: queue_pair.admin, slot: place.slot(), buffer };
                    self.on_filled(place.queue());
                    Arrival::Capsule(place.queue(), capsule, completion.byte_len, true)
                }
                Kind::Read => Arrival::Pulled(place, true),
                Kind::Write => Arrival::Pushed(place),
                Kind::Send => Arrival::Responded(place),
            });
        }
    }

    pub(super) fn slots_of(&self, capsule: &Capsule) -> &ReceiveSlots {
        if capsule.admin { &self.admin_receives } else { &self.io_receives }
    }

    pub(super) fn read_entry(&self, capsule: &Capsule) -> [u8; SQE_LEN] {
        self.slots_of(capsule).read_entry(capsule.buffer)
    }

    pub(super) fn in_capsule(&self, capsule: &Capsule, offset: u32) -> (&Memory, usize) {
        self.slots_of(capsule).data(capsule.buffer, offset)
    }

    pub(super) fn in_capsule_block(&self, capsule: &Capsule, offset: u32, len: u32) -> nvmf_block::Buffer {
        self.slots_of(capsule).block(capsule.buffer, offset, len)
    }

    /// Posts a receive slot.
    pub(super) fn post_receive(&mut self, queue: u32, slot: u16) -> Result<(), PostError> {
        let Some(queue_pair) = self.queue_pair(queue) else { return Err(PostError::NotReady) };
        let (id, admin) = (queue_pair.id, queue_pair.admin);
        let Some(index) = queue_pair.receives[usize::from(slot)] else { return Err(PostError::Invalid) };
        let buffer = self.receives(admin).sge(index);
        let place = Place::new(queue, slot, 0);
        self.provider.post_receive(id, ReceiveRequest { id: work_request(Kind::Receive, place), buffer })?;
        if let Some(Some(queue_pair)) = self.queues.get_mut(queue as usize) {
            queue_pair.posted += 1;
        }
        Ok(())
    }

    pub(super) fn read(
        &mut self,
        place: Place,
        piece: Piece,
        into: Part<'_, LocalKey>,
    ) -> Result<(), PostError> {
        let into = sge(into, piece.len);
        let operation = SendOperation::Read { into, remote: remote(piece)? };
        self.post(place, Kind::Read, operation, true)
    }

    pub(super) fn write(
        &mut self,
        place: Place,
        piece: Piece,
        from: Part<'_, LocalKey>,
        borrowed: Option<BorrowedRead<'_>>,
        signaled: bool,
    ) -> Result<(), PostError> {
        let sge = [sge(from, piece.len)];
        let payload = match borrowed {
            Some(BorrowedRead { memory, offset }) => {
                Payload::Borrowed { from: memory, offset, spare: &sge[0] }
            }
            None => Payload::Gather(&sge),
        };
        self.post(place, Kind::Write, SendOperation::Write { payload, remote: remote(piece)? }, signaled)
    }

    pub(super) fn send(
        &mut self,
        place: Place,
        cqe: &[u8; CQE_LEN],
        invalidate: Option<u32>,
    ) -> Result<(), PostError> {
        let invalidate = invalidate.filter(|_| self.sends_invalidate).map(RemoteKey);
        let operation = SendOperation::Send { payload: Payload::Inline(cqe), invalidate, solicited: true };
        self.post(place, Kind::Send, operation, true)
    }

    fn post(
        &mut self,
        place: Place,
        kind: Kind,
        operation: SendOperation<'_>,
        signaled: bool,
    ) -> Result<(), PostError> {
        let Some(queue_pair) = self.queue_pair(place.queue()) else { return Ok(()) };
        let request = SendRequest { id: work_request(kind, place), operation, signaled };
        taken(self.provider.post_send(queue_pair.id, request))
    }
}

/// A post may fail because the connection ended, which an event reports.
pub(super) fn taken(posted: Result<(), PostError>) -> Result<(), PostError> {
    match posted {
        Err(PostError::NotReady) => Ok(()),
        other => other,
    }
}

fn sge(part: Part<'_, LocalKey>, len: u32) -> Sge {
    Sge { local_key: part.key, offset: part.offset, len }
}

/// Where the host has a piece. A peer whose address wraps gets what it asked for: its own provider refuses the access.
fn remote(piece: Piece) -> Result<RemoteMemory, PostError> {
    let Remote::Keyed(Keyed { address, key }) = piece.remote else { return Err(PostError::Invalid) };
    Ok(RemoteMemory {
        key: RemoteKey(key),
        address: address.wrapping_add(piece.offset.into()),
        len: piece.len,
    })
}
