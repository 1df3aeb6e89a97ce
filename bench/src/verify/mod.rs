//! Whether what is read is what was written.
//!
//! | file | what it is |
//! |---|---|
//! | `stamp` | the mark in each block: address, generation, seed, checksum |
//! | `ledger` | which generation each block must have |

mod ledger;
mod stamp;

pub use ledger::Ledger;
pub use stamp::{Stamp, Wrong};

use crate::workload::{Operation, Region};
use nvmf_memory::Memory;

/// A job's verification.
#[derive(Debug)]
pub struct Verification {
    stamp: Stamp,
    ledger: Ledger,
    /// One block, on its way to or from the registered memory.
    block: Vec<u8>,
    /// The job writes: what it has not written itself, it does not know.
    only_own: bool,
}

impl Verification {
    /// Verifies a region in blocks of `unit` bytes.
    #[must_use]
    pub fn new(stamp: Stamp, region: Region, unit: u32, only_own: bool) -> Self {
        Self { stamp, ledger: Ledger::new(region, unit), block: vec![0; unit as usize], only_own }
    }

    /// Lets an operation begin; `false` when it must wait for another on the same blocks.
    pub fn claim(&mut self, operation: &Operation) -> bool {
        self.ledger.claim(operation)
    }

    /// Puts the next generation of every block of a write into `memory`, from `at` on.
    pub fn fill(&mut self, operation: &Operation, memory: &Memory, at: usize) {
        for from in (0..operation.len as usize).step_by(self.block.len()) {
            let address = operation.offset + from as u64;
            let generation = self.ledger.advance(address);
            self.stamp.write(&mut self.block, address, generation);
            memory.write(at + from, &self.block);
        }
    }

    /// A write has ended.
    pub fn on_written(&mut self, operation: &Operation, well: bool) {
        if !well {
            self.ledger.forget(operation);
        }
        self.ledger.release(operation);
    }

    /// A read has ended, well, with its data in `memory` from `at` on: tells of every wrong block.
    pub fn on_read(
        &mut self,
        operation: &Operation,
        memory: &Memory,
        at: usize,
        mut wrong: impl FnMut(u64, Wrong),
    ) {
        self.ledger.release(operation);
        for from in (0..operation.len as usize).step_by(self.block.len()) {
            let address = operation.offset + from as u64;
            let generation = self.ledger.generation(address);
            if generation.is_none() && self.only_own {
                continue;
            }
            memory.read(at + from, &mut self.block);
            if let Err(reason) = self.stamp.check(&self.block, address, generation) {
                wrong(address, reason);
            }
        }
    }

    /// An operation has ended whose data do not matter.
    pub fn release(&mut self, operation: &Operation) {
        self.ledger.release(operation);
    }

    /// The next run of blocks to read back, at or behind `from`, of at most `most` bytes.
    #[must_use]
    pub fn written_from(&self, from: u64, most: u32) -> Option<(u64, u32)> {
        self.ledger.written_from(from, most)
    }
}
