//! Where a command is in its worker, in 64 bits: what operations are called, so that their ends find it.

use nvmf_block::Tag;

/// A place in a worker: a queue, a request of it, a chunk of that. Kept as one number, because it passes through every
/// operation and completion whole.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Place(u64);

impl Place {
    /// Request `slot` of `queue`, or chunk `chunk` of it.
    #[must_use]
    pub fn new(queue: u32, slot: u16, chunk: u8) -> Self {
        Self(u64::from(queue) << 24 | u64::from(slot) << 8 | u64::from(chunk))
    }

    /// Index of the queue in its worker.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "its 32 bits")]
    pub fn queue(self) -> u32 {
        (self.0 >> 24) as u32
    }

    /// Index of the request in its queue.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "its 16 bits")]
    pub fn slot(self) -> u16 {
        (self.0 >> 8) as u16
    }

    /// Index of the chunk in its request.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "its 8 bits")]
    pub fn chunk(self) -> u8 {
        self.0 as u8
    }

    /// In 56 bits.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The reverse of [`Place::bits`]; what lies above the 56 bits is ignored.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Self(bits & (u64::MAX >> 8))
    }

    /// The name of an operation of the storage backend.
    #[must_use]
    pub fn tag(self) -> Tag {
        Tag(self.0)
    }

    /// The reverse of [`Place::tag`].
    #[must_use]
    pub fn of_tag(tag: Tag) -> Self {
        Self::from_bits(tag.0)
    }
}

impl core::fmt::Debug for Place {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "queue {}, request {}, chunk {}", self.queue(), self.slot(), self.chunk())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        let place = Place::new(u32::MAX, u16::MAX - 1, 7);
        assert_eq!((place.queue(), place.slot(), place.chunk()), (u32::MAX, u16::MAX - 1, 7));
        assert_eq!(Place::of_tag(place.tag()), place);
    }
}
