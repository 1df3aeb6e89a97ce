//! The generation of each block, and the blocks with an operation in flight.

use crate::workload::{Operation, Region};
use core::ops::Range;

/// Top bit: an operation on the block is in flight.
const BUSY: u32 = 1 << 31;
/// Generation of a block whose write failed: its contents are unknown.
const UNKNOWN: u32 = BUSY - 1;

/// The last written generation of each block; 0 for none.
#[derive(Debug, Clone)]
pub struct Ledger {
    region: Region,
    /// Bytes in a block.
    unit: u64,
    blocks: Vec<u32>,
}

impl Ledger {
    /// A ledger for a region in blocks of `unit` bytes.
    #[must_use]
    pub fn new(region: Region, unit: u32) -> Self {
        let unit = u64::from(unit);
        let blocks = usize::try_from(region.len / unit).expect("memory for every block's generation");
        Self { region, unit, blocks: vec![0; blocks] }
    }

    /// Bytes in a block.
    #[must_use]
    pub fn unit(&self) -> u64 {
        self.unit
    }

    fn blocks_of(&self, operation: &Operation) -> Range<usize> {
        let first = (operation.offset - self.region.offset) / self.unit;
        let end = first + u64::from(operation.len) / self.unit;
        // Both are at most the number of blocks, which is a usize.
        first as usize..end as usize
    }

    /// Claims an operation's blocks; `false` if one of them is already claimed, so that the operation must wait.
    pub fn claim(&mut self, operation: &Operation) -> bool {
        let range = self.blocks_of(operation);
        let blocks = &mut self.blocks[range];
        if blocks.iter().any(|block| block & BUSY != 0) {
            return false;
        }
        blocks.iter_mut().for_each(|block| *block |= BUSY);
        true
    }

    /// Releases an operation's blocks.
    pub fn release(&mut self, operation: &Operation) {
        let range = self.blocks_of(operation);
        self.blocks[range].iter_mut().for_each(|block| *block &= !BUSY);
    }

    /// Advances the generation of the block at this address; returns the new one.
    pub fn advance(&mut self, address: u64) -> u32 {
        let block = self.block_mut(address);
        let (busy, last) = (*block & BUSY, *block & !BUSY);
        let next = if last >= UNKNOWN - 1 { 1 } else { last + 1 };
        *block = busy | next;
        next
    }

    /// Marks the contents of an operation's blocks as unknown.
    pub fn forget(&mut self, operation: &Operation) {
        let range = self.blocks_of(operation);
        self.blocks[range].iter_mut().for_each(|block| *block = *block & BUSY | UNKNOWN);
    }

    /// The expected generation of the block at this address, if it is known.
    #[must_use]
    pub fn generation(&self, address: u64) -> Option<u32> {
        let block = self.blocks[self.index(address)] & !BUSY;
        Some(block).filter(|&block| block != 0 && block != UNKNOWN)
    }

    fn block_mut(&mut self, address: u64) -> &mut u32 {
        let index = self.index(address);
        &mut self.blocks[index]
    }

    fn index(&self, address: u64) -> usize {
        ((address - self.region.offset) / self.unit) as usize
    }

    /// The first run of blocks with known contents at or after `from`, of at most `most` bytes: (address, bytes).
    #[must_use]
    pub fn written_from(&self, from: u64, most: u32) -> Option<(u64, u32)> {
        let from = self.index(from).min(self.blocks.len());
        let first = from + self.blocks[from..].iter().position(is_known)?;
        let run = self.blocks[first..]
            .iter()
            .take_while(|block| is_known(block))
            .take((u64::from(most) / self.unit) as usize);
        let len = run.count() as u64 * self.unit;
        Some((self.region.offset + first as u64 * self.unit, u32::try_from(len).ok()?))
    }

    /// The number of blocks with known contents at or after `from`.
    #[must_use]
    pub fn written_behind(&self, from: u64) -> u64 {
        let from = usize::try_from((from - self.region.offset) / self.unit).unwrap_or(usize::MAX);
        self.blocks[from.min(self.blocks.len())..].iter().filter(|block| is_known(block)).count() as u64
    }
}

/// Whether the contents of a block are known.
fn is_known(block: &u32) -> bool {
    !matches!(*block & !BUSY, 0 | UNKNOWN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Direction;

    #[test]
    fn claimed_blocks_are_tracked_by_generation() {
        let mut ledger = Ledger::new(Region { offset: 4096, len: 16 * 512 }, 512);
        let write = |offset, len| Operation { direction: Direction::Write, offset, len };
        let (first, second) = (write(4096 + 512, 1024), write(4096 + 1024, 512));
        assert!(ledger.claim(&first));
        assert!(!ledger.claim(&second), "the second write overlaps the first");
        assert_eq!((ledger.advance(4608), ledger.advance(5120)), (1, 1));
        ledger.release(&first);
        assert!(ledger.claim(&second));
        assert_eq!(ledger.advance(5120), 2);
        ledger.release(&second);
        assert_eq!((ledger.generation(4096), ledger.generation(5120)), (None, Some(2)));
        assert_eq!(ledger.written_from(4096, 4096), Some((4608, 1024)));
        assert_eq!(ledger.written_from(5120, 4096), Some((5120, 512)));
        assert_eq!(ledger.written_from(5632, 4096), None);
        assert_eq!([4096, 5120, 5632, 4096 + 16 * 512].map(|from| ledger.written_behind(from)), [2, 1, 0, 0]);
        ledger.forget(&second);
        assert_eq!(ledger.written_from(4096, 4096), Some((4608, 512)));
    }
}
