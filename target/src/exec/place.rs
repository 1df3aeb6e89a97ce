//! Where a command is in its worker, in 64 bits: what operations are called, so that their ends find it.

use nvmf_block::Tag;

/// A place in a worker: a queue, a request of it, a chunk of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index of the queue in its worker.
    pub queue: u32,
    /// Index of the request in its queue.
    pub slot: u16,
    /// Index of the chunk in its request.
    pub chunk: u8,
}

impl Place {
    /// In 56 bits.
    #[must_use]
    pub fn bits(self) -> u64 {
        u64::from(self.queue) << 24 | u64::from(self.slot) << 8 | u64::from(self.chunk)
    }

    /// The reverse of [`Place::bits`].
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the reverse of bits()")]
    pub fn from_bits(bits: u64) -> Self {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        let place = Place { queue: u32::MAX, slot: u16::MAX - 1, chunk: 7 };
        assert_eq!(Place::of_tag(place.tag()), place);
    }
}
