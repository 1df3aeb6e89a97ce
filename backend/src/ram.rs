//! Memory disks and null disks.

use nvmf_block::{BlockError, BlockOp};
use nvmf_memory::{Memory, OutOfMemory};

/// A disk in memory, shared by all workers. Where two write the same bytes at once, the result may be a mixture.
#[derive(Debug)]
pub(crate) struct RamDisk {
    memory: Memory,
}

impl RamDisk {
    /// A disk of `bytes` zeroes. All memory is allocated now, not when it is first written.
    pub(crate) fn new(bytes: u64) -> Result<Self, OutOfMemory> {
        let bytes = usize::try_from(bytes).map_err(|_| OutOfMemory { len: usize::MAX })?;
        let memory = Memory::alloc(bytes)?;
        memory.fill(0, memory.len(), 0);
        Ok(Self { memory })
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Has the processor fetch what an operation will copy. Several operations are fetched at the same time, where
    /// each copy would wait for the memory by itself.
    pub(crate) fn prefetch(&self, at: u64, len: usize) {
        if let Ok(at) = usize::try_from(at) {
            self.memory.prefetch(at, len);
        }
    }

    /// Carries out an operation on the `len` bytes at `at`, which are within the disk. `buffer`: memory and offset of
    /// its data.
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
            (BlockOp::CompareAndWrite { .. }, Some((memory, offset))) => {
                if !self.memory.equals(at, memory, offset, len) {
                    return Err(BlockError::CompareFailed);
                }
                memory.copy_to(offset + len, &self.memory, at, len);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Carries out an operation on a null disk.
pub(crate) fn carry_out_on_null(
    op: &BlockOp,
    len: usize,
    buffer: Option<(&Memory, usize)>,
) -> Result<(), BlockError> {
    match (op, buffer) {
        (BlockOp::Read { .. }, Some((memory, offset))) => memory.fill(offset, len, 0),
        (BlockOp::Compare { .. } | BlockOp::CompareAndWrite { .. }, Some((memory, offset))) => {
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
