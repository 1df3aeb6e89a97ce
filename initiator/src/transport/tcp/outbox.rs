//! What is to be sent on a connection: PDUs, whose data stay where they are until the socket takes them.

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
    /// Of the command that it belongs to.
    slot: Option<u16>,
}

/// Data of a PDU.
#[derive(Debug)]
pub(super) struct OutData {
    pub(super) memory: Memory,
    pub(super) offset: usize,
    pub(super) len: usize,
}

impl OutPdu {
    fn len(&self) -> usize {
        let data = self.data.as_ref().map_or(0, |data| data.len);
        self.head.as_bytes().len() + data + self.digest.map_or(0, |digest| digest.len())
    }
}

/// PDUs in their order, the first of which may have left in part.
#[derive(Debug)]
pub(super) struct Outbox {
    pdus: VecDeque<OutPdu>,
    /// Bytes of the first that the socket has.
    sent: usize,
}

impl Outbox {
    /// An outbox that holds so many PDUs without an allocation.
    pub(super) fn new(pdus: usize) -> Self {
        Self { pdus: VecDeque::with_capacity(pdus), sent: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pdus.is_empty()
    }

    /// PDUs in it.
    pub(super) fn len(&self) -> usize {
        self.pdus.len()
    }

    /// Whether the stream is between two PDUs.
    pub(super) fn is_between_pdus(&self) -> bool {
        self.sent == 0
    }

    /// Adds a PDU of the command in this slot, a digest behind its data if `digest`.
    pub(super) fn add(&mut self, head: Head, slot: Option<u16>, data: Option<OutData>, digest: bool) {
        let digest = data.as_ref().filter(|_| digest).map(|data| {
            let mut crc = Crc32c::new();
            crc.update_memory(&data.memory, data.offset, data.len);
            crc.finish().to_le_bytes()
        });
        self.pdus.push_back(OutPdu { head, data, digest, slot });
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

    /// The socket took so many bytes: passes on the slots of the PDUs that have left.
    pub(super) fn on_sent(&mut self, bytes: usize, mut left: impl FnMut(u16)) {
        self.sent += bytes;
        while let Some(first) = self.pdus.front()
            && self.sent >= first.len()
        {
            self.sent -= first.len();
            if let Some(slot) = self.pdus.pop_front().and_then(|first| first.slot) {
                left(slot);
            }
        }
    }
}
