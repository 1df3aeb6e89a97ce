//! What completions are called, so that they find their command.

use nvmf_block::Tag;
use nvmf_rdma::WorkRequestId;

/// Which kind of work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A receive slot.
    Receive,
    /// An RDMA READ of a chunk.
    Read,
    /// An RDMA WRITE of a chunk.
    Write,
    /// The response of a request.
    Send,
}

/// A place in a worker: a queue, a request (or receive slot) of it, a chunk of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index of the queue in its worker.
    pub queue: u32,
    /// Index of the request, or of the receive slot, in its queue.
    pub slot: u16,
    /// Index of the chunk in its request.
    pub chunk: u8,
}

impl Place {
    fn bits(self) -> u64 {
        u64::from(self.queue) << 24 | u64::from(self.slot) << 8 | u64::from(self.chunk)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the reverse of bits()")]
    fn from_bits(bits: u64) -> Self {
        Self { queue: (bits >> 24) as u32, slot: (bits >> 8) as u16, chunk: bits as u8 }
    }

    /// The name of an operation of the storage backend.
    #[must_use]
    pub fn tag(self) -> Tag {
        Tag(self.bits())
    }

    /// The reverse of [`Place::tag`].
    #[must_use]
    pub fn of_tag(tag: Tag) -> Self {
        Self::from_bits(tag.0)
    }

    /// The name of a work request.
    #[must_use]
    pub fn work_request(self, kind: Kind) -> WorkRequestId {
        WorkRequestId((kind as u64) << 56 | self.bits())
    }

    /// The reverse of [`Place::work_request`].
    #[must_use]
    pub fn of_work_request(id: WorkRequestId) -> (Kind, Self) {
        let kind = match id.0 >> 56 {
            0 => Kind::Receive,
            1 => Kind::Read,
            2 => Kind::Write,
            _ => Kind::Send,
        };
        (kind, Self::from_bits(id.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        let place = Place { queue: u32::MAX, slot: u16::MAX - 1, chunk: 7 };
        assert_eq!(Place::of_tag(place.tag()), place);
        for kind in [Kind::Receive, Kind::Read, Kind::Write, Kind::Send] {
            assert_eq!(Place::of_work_request(place.work_request(kind)), (kind, place));
        }
    }
}
