//! What a job has written where, and where it is busy.

use crate::workload::{Operation, Region};
use core::ops::Range;

/// The top bit: an operation is in flight there.
const BUSY: u32 = 1 << 31;
/// A write failed there: what it holds now is not known.
const UNKNOWN: u32 = BUSY - 1;

/// One number a block: the generation that was last written, 0 for none.
#[derive(Debug, Clone)]
pub struct Ledger {
    region: Region,
    /// Bytes in a block.
    unit: u64,
    blocks: Vec<u32>,
}

impl Ledger {
    /// For a region in blocks of `unit` bytes.
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
        // Both are below the length, which is a usize.
        first as usize..end as usize
    }

    /// Claims an operation's blocks; `false` when one of them is in flight already: it must wait.
    pub fn claim(&mut self, operation: &Operation) -> bool {
        let range = self.blocks_of(operation);
        let blocks = &mut self.blocks[range];
        if blocks.iter().any(|block| block & BUSY != 0) {
            return false;
        }
        blocks.iter_mut().for_each(|block| *block |= BUSY);
        true
    }

    /// Gives them back.
    pub fn release(&mut self, operation: &Operation) {
        let range = self.blocks_of(operation);
        self.blocks[range].iter_mut().for_each(|block| *block &= !BUSY);
    }

    /// The next generation of the block at this address.
    pub fn advance(&mut self, address: u64) -> u32 {
        let block = self.block_mut(address);
        let (busy, last) = (*block & BUSY, *block & !BUSY);
        let next = if last >= UNKNOWN - 1 { 1 } else { last + 1 };
        *block = busy | next;
        next
    }

    /// What the block at this address holds is not known any more.
    pub fn forget(&mut self, operation: &Operation) {
        let range = self.blocks_of(operation);
        self.blocks[range].iter_mut().for_each(|block| *block = *block & BUSY | UNKNOWN);
    }

    /// The generation that the block at this address must have, if that is known.
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

    /// The first run of blocks at or behind `from` whose content is known, at most `most` bytes: (address, bytes).
    #[must_use]
    pub fn written_from(&self, from: u64, most: u32) -> Option<(u64, u32)> {
        let known = |block: &u32| *block & !BUSY != 0 && *block & !BUSY != UNKNOWN;
        let from = self.index(from).min(self.blocks.len());
        let first = from + self.blocks[from..].iter().position(known)?;
        let run = self.blocks[first..]
            .iter()
            .take_while(|block| known(block))
            .take((u64::from(most) / self.unit) as usize);
        let len = run.count() as u64 * self.unit;
        Some((self.region.offset + first as u64 * self.unit, u32::try_from(len).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Direction;

    #[test]
    fn blocks_are_claimed_written_and_found_again() {
        let mut ledger = Ledger::new(Region { offset: 4096, len: 16 * 512 }, 512);
        let write = |offset, len| Operation { direction: Direction::Write, offset, len };
        let (first, second) = (write(4096 + 512, 1024), write(4096 + 1024, 512));
        assert!(ledger.claim(&first));
        assert!(!ledger.claim(&second), "it overlaps the first");
        assert_eq!((ledger.advance(4608), ledger.advance(5120)), (1, 1));
        ledger.release(&first);
        assert!(ledger.claim(&second));
        assert_eq!(ledger.advance(5120), 2);
        ledger.release(&second);
        assert_eq!((ledger.generation(4096), ledger.generation(5120)), (None, Some(2)));
        assert_eq!(ledger.written_from(4096, 4096), Some((4608, 1024)));
        assert_eq!(ledger.written_from(5120, 4096), Some((5120, 512)));
        assert_eq!(ledger.written_from(5632, 4096), None);
        ledger.forget(&second);
        assert_eq!(ledger.written_from(4096, 4096), Some((4608, 512)));
    }
}
