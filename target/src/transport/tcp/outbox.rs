//! What is to be sent on a connection: PDUs, whose data may be borrowed for a turn.

use super::capsules::Capsule;
use crate::exec::place::Place;
use crate::exec::transport::Arrival;
use core::ops::Range;
use nvmf_memory::{Crc32c, Memory};
use nvmf_stream::{Chunks, Frame, Region};
use nvmf_tcp::Head;
use std::collections::VecDeque;

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

#[derive(Debug)]
struct Note {
    done: Option<Done>,
    /// The data are borrowed for this turn; where they are to be after it.
    spare: Option<(Memory, usize)>,
}

/// PDUs in their order.
#[derive(Debug)]
pub(super) struct Outbox {
    pdus: nvmf_stream::Outbox<Head, Note>,
    /// PDUs from here on may have borrowed data.
    settled: usize,
}

impl Outbox {
    /// Bytes that each PDU takes that it has room for.
    pub(super) const PDU_BYTES: usize = size_of::<nvmf_stream::Frame<Head, Note>>();

    /// An outbox for so many PDUs.
    pub(super) fn with_capacity(pdus: usize) -> Self {
        Self { pdus: nvmf_stream::Outbox::with_capacity(pdus), settled: 0 }
    }

    /// Makes room for so many more PDUs.
    pub(super) fn reserve(&mut self, pdus: usize) {
        self.pdus.reserve(pdus);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pdus.is_empty()
    }

    /// Whether the stream is between two PDUs.
    pub(super) fn is_between_pdus(&self) -> bool {
        self.pdus.is_between_frames()
    }

    /// A PDU without data.
    pub(super) fn add(&mut self, head: Head, done: Option<Done>) {
        self.pdus.push(Frame { head, data: None, trailer: None, note: Note { done, spare: None } });
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
        let (data, spare) = match borrowed {
            Some((memory, at)) if !digest => {
                (Region { memory: memory.clone(), offset: at, len }, Some((own.clone(), offset)))
            }
            Some((memory, at)) => {
                memory.copy_to(at, own, offset, len);
                (Region { memory: own.clone(), offset, len }, None)
            }
            None => (Region { memory: own.clone(), offset, len }, None),
        };
        let trailer = digest.then(|| Crc32c::of_memory(&data.memory, data.offset, len).to_le_bytes());
        let note = Note { done: Some(done), spare };
        self.pdus.push(Frame { head, data: Some(data), trailer, note });
    }

    /// Lets the last PDU stand for the response of its command, if it is the end of that command's data: no response
    /// follows then.
    pub(super) fn succeed(&mut self, of: Place) -> bool {
        let Some(last) = self.pdus.last_mut() else { return false };
        let is_of = matches!(last.note.done, Some(Done::Unsignaled(place)) if place.slot() == of.slot());
        let stands = is_of && last.head.set_success();
        if stands {
            last.note.done = Some(Done::Responded(of));
        }
        stands
    }

    /// What to hand to the socket next.
    pub(super) fn chunks(&self) -> Chunks<'_> {
        self.pdus.chunks()
    }

    /// The socket took so many bytes.
    pub(super) fn on_sent(
        &mut self,
        bytes: usize,
        arrivals: &mut VecDeque<(u32, Arrival<Capsule>)>,
        queue: u32,
    ) {
        let Self { pdus, settled } = self;
        pdus.on_sent(bytes, |note| {
            *settled = settled.saturating_sub(1);
            match note.done {
                Some(Done::Pushed(place)) => arrivals.push_back((queue, Arrival::Pushed(place))),
                Some(Done::Responded(place)) => arrivals.push_back((queue, Arrival::Responded(place))),
                Some(Done::Unsignaled(_)) | None => {}
            }
        });
    }

    /// The turn is over: copies borrowed data that did not leave.
    pub(super) fn settle(&mut self) {
        for pdu in self.pdus.frames_from(self.settled) {
            if let (Some(data), Some((spare, at))) = (&mut pdu.data, pdu.note.spare.take()) {
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

    #[test]
    fn success_is_set_only_in_the_last_data_of_the_same_command() {
        let own = Memory::alloc(4096).unwrap();
        let to_host = nvmf_tcp::ToHost::new(Default::default(), Default::default());
        let place = |slot| Place::new(0, slot, 0);
        for (done, of, stands) in [
            (Done::Unsignaled(place(1)), 1, true),
            (Done::Unsignaled(place(1)), 2, false),
            (Done::Pushed(place(1)), 1, false),
        ] {
            let data = nvme_proto::tcp::C2hData {
                cid: nvme_proto::Cid(9),
                offset: 0,
                len: 512,
                last: true,
                success: false,
            };
            let mut outbox = Outbox::with_capacity(1);
            outbox.add_data(to_host.c2h_data(&data).unwrap(), 0..512, &own, None, false, done);
            assert_eq!(outbox.succeed(place(of)), stands, "{done:?}, {of}");
            assert_eq!(bytes(&outbox)[1] & 8 != 0, stands, "SUCCESS");
        }
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
        let done = Done::Pushed(Place::new(0, 0, 0));
        let mut outbox = Outbox::with_capacity(1);
        outbox.add_data(head, 512..1536, &own, Some((&disk, 0)), true, done);
        disk.fill(0, 4096, 2);
        let sent = bytes(&outbox);
        let (data, digest) = sent[128..].split_at(1024);
        assert!(data == [1; 1024] && digest == Crc32c::of(data).to_le_bytes());
        // Without one they are borrowed until the turn is over, and kept then.
        let mut outbox = Outbox::with_capacity(1);
        outbox.add_data(head, 0..1024, &own, Some((&disk, 0)), false, done);
        outbox.settle();
        disk.fill(0, 4096, 3);
        assert!(bytes(&outbox)[128..] == [2; 1024]);
    }
}
