//! Verification: checks that blocks contain what was last written.
//!
//! | module | contents |
//! |---|---|
//! | `stamp` | the verification header of a block: address, generation, run, checksum |
//! | `ledger` | the expected generation of each block |

mod ledger;
mod stamp;

pub use ledger::Ledger;
pub use stamp::{Mismatch, Stamp};

use crate::result::Verified;
use crate::workload::{Operation, Region};
use nvmf_memory::Memory;

/// The verification state of a job.
#[derive(Debug)]
pub struct Verification {
    stamp: Stamp,
    ledger: Ledger,
    /// Buffer for copying a block to or from the registered memory.
    block: Vec<u8>,
    /// The job writes, so it checks only blocks that it has written itself.
    only_own: bool,
    checked: u64,
    skipped: u64,
}

impl Verification {
    /// Verifies a region in blocks of `unit` bytes.
    #[must_use]
    pub fn new(stamp: Stamp, region: Region, unit: u32, only_own: bool) -> Self {
        let (ledger, block) = (Ledger::new(region, unit), vec![0; unit as usize]);
        Self { stamp, ledger, block, only_own, checked: 0, skipped: 0 }
    }

    /// Claims the operation's blocks; `false` if it must wait for another operation on the same blocks.
    pub fn claim(&mut self, operation: &Operation) -> bool {
        self.ledger.claim(operation)
    }

    /// Fills `memory` from `at` on with the next generation of each block of a write.
    pub fn fill(&mut self, operation: &Operation, memory: &Memory, at: usize) {
        for from in (0..operation.len as usize).step_by(self.block.len()) {
            let address = operation.offset + from as u64;
            let generation = self.ledger.advance(address);
            self.stamp.write(&mut self.block, address, generation);
            memory.write(at + from, &self.block);
        }
    }

    /// Records the end of a write.
    pub fn on_written(&mut self, operation: &Operation, well: bool) {
        if !well {
            self.ledger.forget(operation);
        }
        self.ledger.release(operation);
    }

    /// Checks the data of a successful read, in `memory` from `at` on; calls `wrong` for every block that fails.
    pub fn on_read(
        &mut self,
        operation: &Operation,
        memory: &Memory,
        at: usize,
        mut wrong: impl FnMut(u64, Mismatch),
    ) {
        self.ledger.release(operation);
        for from in (0..operation.len as usize).step_by(self.block.len()) {
            let address = operation.offset + from as u64;
            let generation = self.ledger.generation(address);
            if generation.is_none() && self.only_own {
                self.skipped += 1;
                continue;
            }
            self.checked += 1;
            memory.read(at + from, &mut self.block);
            if let Err(reason) = self.stamp.check(&self.block, address, generation) {
                wrong(address, reason);
            }
        }
    }

    /// Releases the blocks of an operation without checking data.
    pub fn release(&mut self, operation: &Operation) {
        self.ledger.release(operation);
    }

    /// The next run of blocks to read back, at or after `from`, of at most `most` bytes.
    #[must_use]
    pub fn written_from(&self, from: u64, most: u32) -> Option<(u64, u32)> {
        self.ledger.written_from(from, most)
    }

    /// What was verified. `read_back_to`: the address up to which what was written has been read back, if that was due.
    #[must_use]
    pub fn verified(&self, read_back_to: Option<u64>) -> Verified {
        let not_read_back = read_back_to.map_or(0, |address| self.ledger.written_behind(address));
        Verified { checked: self.checked, skipped: self.skipped, not_read_back, run: self.stamp.run() }
    }
}
