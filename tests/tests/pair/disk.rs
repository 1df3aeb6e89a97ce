//! The disk of all namespaces: a map of blocks.

use nvmf_block::{BlockError, BlockRange};
use nvmf_subsystem::{BlockWork, CompareAndWriteWork, CopyWork};
use std::collections::BTreeMap;

pub(crate) const BLOCK: usize = 512;

/// The disk of all namespaces.
#[derive(Default)]
pub(crate) struct Disk {
    blocks: BTreeMap<u64, Vec<u8>>,
    pub(crate) flushes: u32,
    pub(crate) forced: u32,
}

impl Disk {
    pub(crate) fn read(&self, range: BlockRange) -> Vec<u8> {
        let block = |lba| self.blocks.get(&lba).cloned().unwrap_or_else(|| vec![0; BLOCK]);
        (range.start..range.start + range.blocks).flat_map(block).collect()
    }

    fn clear(&mut self, range: BlockRange) {
        (range.start..range.start + range.blocks).for_each(|lba| drop(self.blocks.remove(&lba)));
    }

    /// Executes an operation; `data` contains the host's data, or receives the data read.
    pub(crate) fn execute(&mut self, op: &BlockWork, data: &mut Vec<u8>) -> Result<(), BlockError> {
        match op {
            BlockWork::Read { range } => *data = self.read(*range),
            BlockWork::Write { range, fua } => {
                self.forced += u32::from(*fua);
                self.blocks.extend((range.start..).zip(data.chunks(BLOCK).map(<[u8]>::to_vec)));
            }
            BlockWork::Flush => self.flushes += 1,
            BlockWork::WriteZeroes { range, fua, .. } => {
                self.forced += u32::from(*fua);
                self.clear(*range);
            }
            BlockWork::Deallocate(ranges) => ranges.iter().for_each(|range| self.clear(*range)),
            BlockWork::CompareAndWrite(work) => {
                let CompareAndWriteWork { range, data: both, fua } = &**work;
                self.forced += u32::from(*fua);
                let (expected, new) = both.split_at(both.len() / 2);
                if self.read(*range) != expected {
                    return Err(BlockError::CompareFailed);
                }
                self.blocks.extend((range.start..).zip(new.chunks(BLOCK).map(<[u8]>::to_vec)));
            }
            BlockWork::Copy(copy) => {
                let CopyWork { sources, to, fua, .. } = &**copy;
                self.forced += u32::from(*fua);
                let copied: Vec<u8> = sources.iter().flat_map(|source| self.read(source.range)).collect();
                self.blocks.extend((to.start..).zip(copied.chunks(BLOCK).map(<[u8]>::to_vec)));
            }
            BlockWork::Compare { range } if self.read(*range) != *data => {
                return Err(BlockError::CompareFailed);
            }
            BlockWork::Compare { .. } | BlockWork::Verify { .. } => {}
        }
        Ok(())
    }
}
