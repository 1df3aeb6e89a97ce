//! What is to be sent on a connection: PDUs, whose data stay where they are until the socket takes them.

use super::capsules::Capsule;
use crate::exec::place::Place;
use crate::exec::transport::Arrival;
use core::ops::Range;
use nvmf_memory::{Crc32c, Memory};
use nvmf_stream::{CHUNKS_MAX, Chunk, Chunks};
use nvmf_tcp::Head;
use std::collections::VecDeque;

/// Parts of a PDU: head, data, data digest.
const PARTS: usize = 3;

/// A PDU to be sent.
#[derive(Debug)]
struct OutPdu {
    head: Head,
    data: Option<OutData>,
    digest: Option<[u8; 4]>,
    done: Option<Done>,
}

/// What is told of a PDU when it has left.
#[derive(Debug, Clone, Copy)]
pub(super) enum Done {
    /// A signalled push.
    Pushed(Place),
    /// A response, or the data that stand for one.
    Responded(Place),
    /// Nothing: the last data of a command, which its response follows.
    Unsignaled(Place),
}

/// Data of a PDU.
#[derive(Debug)]
struct OutData {
    memory: Memory,
    offset: usize,
    len: usize,
    /// The bytes are borrowed for this turn; where they are to be after it.
    spare: Option<(Memory, usize)>,
}

impl OutPdu {
    fn len(&self) -> usize {
        let data = self.data.as_ref().map_or(0, |data| data.len);
        self.head.as_bytes().len() + data + self.digest.map_or(0, |digest| digest.len())
    }
}

/// PDUs in their order, the first of which may have left in part.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pdus: VecDeque<OutPdu>,
    /// Bytes of the first that the socket has.
    sent: usize,
    /// PDUs from here on may have borrowed data.
    settled: usize,
}

impl Outbox {
    /// An outbox that holds so many PDUs without an allocation.
    pub(super) fn reserve(&mut self, pdus: usize) {
        self.pdus.reserve(pdus);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pdus.is_empty()
    }

    /// Whether the stream is between two PDUs.
    pub(super) fn is_between_pdus(&self) -> bool {
        self.sent == 0
    }

    /// A PDU without data.
    pub(super) fn add(&mut self, head: Head, done: Option<Done>) {
        self.pdus.push_back(OutPdu { head, data: None, digest: None, done });
    }

    /// A PDU with data, a digest behind them if `digest`. Borrowed data may be overwritten once the turn is over, or,
    /// by another worker, at any time: with a digest they are copied at once.
    pub(super) fn add_data(
        &mut self,
        head: Head,
        range: Range<usize>,
        own: &Memory,
        borrowed: Option<(&Memory, usize)>,
        digest: bool,
        done: Done,
    ) {
        let (offset, len) = (range.start, range.len());
        let data = match borrowed {
            Some((memory, at)) if !digest => {
                let spare = Some((own.clone(), offset));
                OutData { memory: memory.clone(), offset: at, len, spare }
            }
            Some((memory, at)) => {
                memory.copy_to(at, own, offset, len);
                OutData { memory: own.clone(), offset, len, spare: None }
            }
            None => OutData { memory: own.clone(), offset, len, spare: None },
        };
        let digest = digest.then(|| {
            let mut crc = Crc32c::new();
            crc.update_memory(&data.memory, data.offset, len);
            crc.finish().to_le_bytes()
        });
        self.pdus.push_back(OutPdu { head, data: Some(data), digest, done: Some(done) });
    }

    /// Lets the last PDU stand for the response of its command, if it is the end of that command's data: no response
    /// follows then.
    pub(super) fn succeed(&mut self, of: Place) -> bool {
        let Some(last) = self.pdus.back_mut() else { return false };
        let is_of = matches!(last.done, Some(Done::Unsignaled(place)) if place.slot == of.slot);
        let stands = is_of && last.head.set_success();
        if stands {
            last.done = Some(Done::Responded(of));
        }
        stands
    }

    /// What to hand to the socket next.
    pub(super) fn chunks(&self) -> Chunks<'_> {
        let mut chunks = Chunks::new(self.sent);
        for pdu in self.pdus.iter().take(CHUNKS_MAX) {
            if !chunks.has_room_for(PARTS) {
                break;
            }
            chunks.push(Chunk::Bytes(pdu.head.as_bytes()));
            if let Some(data) = &pdu.data {
                chunks.push(Chunk::Region(&data.memory, data.offset, data.len));
            }
            if let Some(digest) = &pdu.digest {
                chunks.push(Chunk::Bytes(digest));
            }
        }
        chunks
    }

    /// The socket took so many bytes.
    pub(super) fn on_sent(
        &mut self,
        bytes: usize,
        arrivals: &mut VecDeque<(u32, Arrival<Capsule>)>,
        queue: u32,
    ) {
        self.sent += bytes;
        while let Some(first) = self.pdus.front()
            && self.sent >= first.len()
        {
            self.sent -= first.len();
            let done = self.pdus.pop_front().and_then(|first| first.done);
            self.settled = self.settled.saturating_sub(1);
            match done {
                Some(Done::Pushed(place)) => arrivals.push_back((queue, Arrival::Pushed(place))),
                Some(Done::Responded(place)) => arrivals.push_back((queue, Arrival::Responded(place))),
                Some(Done::Unsignaled(_)) | None => {}
            }
        }
    }

    /// The turn is over: copies borrowed data that did not leave.
    pub(super) fn settle(&mut self) {
        for pdu in self.pdus.iter_mut().skip(self.settled) {
            let Some(data) = &mut pdu.data else { continue };
            if let Some((spare, at)) = data.spare.take() {
                data.memory.copy_to(data.offset, &spare, at, data.len);
                (data.memory, data.offset) = (spare, at);
            }
        }
        self.settled = self.pdus.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(outbox: &Outbox) -> Vec<u8> {
        let mut bytes = Vec::new();
        outbox.chunks().append_to(&mut bytes);
        bytes
    }

    /// Another worker writes the disk at any time: what its digest covers is what leaves.
    #[test]
    fn borrowed_data_with_a_digest_are_taken_at_once() {
        let (disk, own) = (Memory::alloc(4096).unwrap(), Memory::alloc(4096).unwrap());
        disk.fill(0, 4096, 1);
        let head = nvmf_tcp::ToHost::ic_resp(&nvme_proto::tcp::IcResp {
            alignment: nvme_proto::tcp::DataAlignment::default(),
            digests: nvme_proto::tcp::Digests::default(),
            maxh2cdata: 4096,
        });
        let done = Done::Pushed(Place { queue: 0, slot: 0, chunk: 0 });
        let mut outbox = Outbox::default();
        outbox.add_data(head, 512..1536, &own, Some((&disk, 0)), true, done);
        disk.fill(0, 4096, 2);
        let sent = bytes(&outbox);
        let (data, digest) = sent[128..].split_at(1024);
        assert!(data == [1; 1024] && digest == Crc32c::of(data).to_le_bytes());
        // Without one they are borrowed until the turn is over, and kept then.
        let mut outbox = Outbox::default();
        outbox.add_data(head, 0..1024, &own, Some((&disk, 0)), false, done);
        outbox.settle();
        disk.fill(0, 4096, 3);
        assert!(bytes(&outbox)[128..] == [2; 1024]);
    }
}
