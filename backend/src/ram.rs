//! Disks without a medium.

use nvmf_block::{BlockError, BlockOp};
use nvmf_memory::{Memory, OutOfMemory};

/// Bytes fetched ahead for one operation: of a longer one the rest comes by itself.
const PREFETCH_MAX: usize = 8 * 1024;

/// Memory as a disk. Workers share it: what one wrote, another reads; blocks that two write at once may mix, as on any disk.
#[derive(Debug)]
pub(crate) struct RamDisk {
    memory: Memory,
}

impl RamDisk {
    /// `bytes` zeroes. They take their memory now, not when they are first written.
    pub(crate) fn new(bytes: u64) -> Result<Self, OutOfMemory> {
        let bytes = usize::try_from(bytes).map_err(|_| OutOfMemory { len: usize::MAX })?;
        let memory = Memory::alloc(bytes)?;
        memory.fill(0, memory.len(), 0);
        Ok(Self { memory })
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Has the processor fetch what an operation will copy: several that wait are fetched at once, where one copy after the other would
    /// wait for the memory each time.
    pub(crate) fn prefetch(&self, at: u64, len: usize) {
        if let Ok(at) = usize::try_from(at) {
            self.memory.prefetch(at, len.min(PREFETCH_MAX));
        }
    }

    /// Carries out an operation on `len` bytes from `at` on, which lie on the disk, and whose buffer, if it has one, begins at an offset of a
    /// memory.
    pub(crate) fn carry_out(
        &self,
        op: &BlockOp,
        at: u64,
        len: usize,
        buffer: Option<(&Memory, usize)>,
    ) -> Result<(), BlockError> {
        let at = usize::try_from(at).map_err(|_| BlockError::OutOfRange)?;
        match (op, buffer) {
            (BlockOp::Read { .. }, Some((memory, offset))) => self.memory.copy_to(at, memory, offset, len),
            (BlockOp::Write { .. }, Some((memory, offset))) => memory.copy_to(offset, &self.memory, at, len),
            (BlockOp::WriteZeroes { .. } | BlockOp::Deallocate { .. }, _) => self.memory.fill(at, len, 0),
            (BlockOp::Compare { .. }, Some((memory, offset)))
                if !self.memory.equals(at, memory, offset, len) =>
            {
                return Err(BlockError::CompareFailed);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Carries out an operation on nothing.
pub(crate) fn carry_out_on_null(
    op: &BlockOp,
    len: usize,
    buffer: Option<(&Memory, usize)>,
) -> Result<(), BlockError> {
    match (op, buffer) {
        (BlockOp::Read { .. }, Some((memory, offset))) => memory.fill(offset, len, 0),
        (BlockOp::Compare { .. }, Some((memory, offset))) => {
            let mut chunk = [0; 512];
            for at in (0..len).step_by(512) {
                memory.read(offset + at, &mut chunk);
                if chunk != [0; 512] {
                    return Err(BlockError::CompareFailed);
                }
            }
        }
        _ => {}
    }
    Ok(())
}
