//! Block size, capacity and ranges.

use core::fmt;

/// The properties of a device. They stay the same while it is open; a resize replaces the whole value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes in a logical block: a power of two, 512 to 65536.
    pub block_size: u32,
    /// Logical blocks in the device.
    pub blocks: u64,
    /// Which sizes and alignments cost the device least.
    pub preferred: Preferred,
    /// A power loss may undo a completed write unless it had FUA or was flushed.
    pub volatile_write_cache: bool,
    /// [`crate::BlockOp::Deallocate`] frees space. Where this is false it is accepted and does nothing.
    pub deallocate: bool,
    /// Blocks that were deallocated read back as zeroes.
    pub zero_after_deallocate: bool,
    /// Writes fail with [`crate::BlockError::ReadOnly`].
    pub read_only: bool,
}

/// Which sizes and alignments cost a device least, in logical blocks. 1 is no preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preferred {
    /// A write of a multiple of this, aligned to [`Preferred::write_alignment`], reads nothing first.
    pub write: u32,
    /// Where such writes begin: multiples of this.
    pub write_alignment: u32,
    /// Long writes are fastest in multiples of this, for example a stripe of an array.
    pub stripe: u32,
    /// Deallocating less than this, or a part of it, frees nothing.
    pub deallocate: u32,
    /// Where ranges to deallocate begin: multiples of this.
    pub deallocate_alignment: u32,
    /// Operations that cross a multiple of this are slower; 0 is no boundary.
    pub boundary: u32,
}

impl Preferred {
    /// Writes and deallocation of this many blocks, aligned to them.
    #[must_use]
    pub fn blocks(blocks: u32) -> Self {
        Self {
            write: blocks,
            write_alignment: blocks,
            deallocate: blocks,
            deallocate_alignment: blocks,
            ..Self::default()
        }
    }

    /// Whether the device prefers any size or alignment.
    #[must_use]
    pub fn any(&self) -> bool {
        *self != Self { boundary: self.boundary, ..Self::default() }
    }
}

impl Default for Preferred {
    /// No preference.
    fn default() -> Self {
        Self { write: 1, write_alignment: 1, stripe: 1, deallocate: 1, deallocate_alignment: 1, boundary: 0 }
    }
}

impl Geometry {
    /// Whether blocks can have this size: a power of two from 512 to 65536 bytes.
    #[must_use]
    pub fn is_block_size(bytes: u32) -> bool {
        bytes.is_power_of_two() && (512..=65536).contains(&bytes)
    }

    /// A device of `blocks` blocks of `block_size` bytes, writable, with no write cache and no deallocation.
    ///
    /// # Panics
    /// When [`Geometry::is_block_size`] says no.
    #[must_use]
    pub fn new(block_size: u32, blocks: u64) -> Self {
        assert!(Self::is_block_size(block_size), "block size {block_size}");
        Self {
            block_size,
            blocks,
            preferred: Preferred::default(),
            volatile_write_cache: false,
            deallocate: false,
            zero_after_deallocate: false,
            read_only: false,
        }
    }

    /// Bytes in the device.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(u64::from(self.block_size))
    }

    /// Bytes in `range`, or `None` when it leaves the device or is too long for a `usize`.
    #[must_use]
    pub fn bytes_in(&self, range: BlockRange) -> Option<usize> {
        if !self.contains(range) {
            return None;
        }
        usize::try_from(range.blocks.checked_mul(u64::from(self.block_size))?).ok()
    }

    /// Whether the whole range is on the device.
    #[must_use]
    pub fn contains(&self, range: BlockRange) -> bool {
        range.end().is_some_and(|end| end <= self.blocks)
    }

    /// Where `range` begins, in bytes; `None` past `u64`.
    #[must_use]
    pub fn byte_offset(&self, range: BlockRange) -> Option<u64> {
        range.start.checked_mul(u64::from(self.block_size))
    }
}

/// `blocks` logical blocks from `start` on. It may be empty, and is not checked: see [`Geometry::contains`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockRange {
    /// The first block.
    pub start: u64,
    /// How many.
    pub blocks: u64,
}

impl BlockRange {
    /// `blocks` blocks from `start` on.
    #[must_use]
    pub fn new(start: u64, blocks: u64) -> Self {
        Self { start, blocks }
    }

    /// The block behind the last, or `None` past `u64`.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.start.checked_add(self.blocks)
    }

    /// Whether a block belongs to both.
    #[must_use]
    pub fn overlaps(&self, other: Self) -> bool {
        let end = |range: &Self| range.end().unwrap_or(u64::MAX);
        self.blocks > 0 && other.blocks > 0 && self.start < end(&other) && other.start < end(self)
    }

    /// Splits into the first `blocks` blocks and the rest.
    #[must_use]
    pub fn split_at(&self, blocks: u64) -> (Self, Self) {
        let first = blocks.min(self.blocks);
        (Self::new(self.start, first), Self::new(self.start.saturating_add(first), self.blocks - first))
    }
}

impl fmt::Display for BlockRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blocks {}+{}", self.start, self.blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked_without_overflow() {
        let geometry = Geometry::new(512, 100);
        assert_eq!(geometry.bytes_in(BlockRange::new(99, 1)), Some(512));
        assert_eq!(geometry.bytes_in(BlockRange::new(100, 0)), Some(0));
        for (start, blocks) in [(100, 1), (0, 101), (u64::MAX, 1), (u64::MAX, u64::MAX), (1, u64::MAX)] {
            assert_eq!(geometry.bytes_in(BlockRange::new(start, blocks)), None, "{start}+{blocks}");
        }
        assert_eq!(BlockRange::new(5, 3).split_at(2), (BlockRange::new(5, 2), BlockRange::new(7, 1)));
        assert_eq!(BlockRange::new(5, 3).split_at(9).1.blocks, 0);
    }
}
