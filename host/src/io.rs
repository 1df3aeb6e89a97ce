//! Block operations on a namespace, split at the controller's limits.

use crate::{Command, Nsid};
use nvmf_block::{BlockError, BlockOp, BlockRange, Geometry};

/// A block operation without its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Controller to host.
    Read {
        /// The range.
        range: BlockRange,
    },
    /// Host to controller.
    Write {
        /// The range.
        range: BlockRange,
        /// Durable before it completes.
        fua: bool,
    },
    /// What completed before is durable afterwards.
    Flush,
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// The range.
        range: BlockRange,
        /// The space may be given back.
        deallocate: bool,
        /// Durable before it completes.
        fua: bool,
    },
    /// The range's content is no longer needed.
    Deallocate {
        /// The range.
        range: BlockRange,
    },
    /// The range is held against the host's bytes.
    Compare {
        /// The range.
        range: BlockRange,
    },
    /// The range is read and thrown away.
    Verify {
        /// The range.
        range: BlockRange,
    },
}

impl From<BlockOp> for Operation {
    fn from(op: BlockOp) -> Self {
        match op {
            BlockOp::Read { range, .. } => Self::Read { range },
            BlockOp::Write { range, fua, .. } => Self::Write { range, fua },
            BlockOp::Flush => Self::Flush,
            BlockOp::WriteZeroes { range, deallocate, fua } => Self::WriteZeroes { range, deallocate, fua },
            BlockOp::Deallocate { range } => Self::Deallocate { range },
            BlockOp::Compare { range, .. } => Self::Compare { range },
            BlockOp::Verify { range } => Self::Verify { range },
        }
    }
}

/// The data of one [`Part`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartData {
    /// None.
    None,
    /// `len` bytes into the operation's buffer at `offset`: exposed for remote write.
    FromController {
        /// Bytes from the start of the operation's buffer.
        offset: usize,
        /// Bytes.
        len: u32,
    },
    /// `len` bytes of the operation's buffer at `offset`: in the capsule, or exposed for remote read.
    ToController {
        /// Bytes from the start of the operation's buffer.
        offset: usize,
        /// Bytes.
        len: u32,
        /// Small enough for the capsule ([`crate::DataPointer::InCapsule`] is allowed, not demanded).
        in_capsule: bool,
    },
    /// These bytes (a Dataset Management range); in the capsule when `in_capsule`.
    Range {
        /// The range as on the wire.
        bytes: [u8; 16],
        /// Small enough for the capsule.
        in_capsule: bool,
    },
}

/// One command of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The command.
    pub command: Command,
    /// Its data.
    pub data: PartData,
}

/// What a namespace is, and what its controller lets one command do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// NSID.
    pub nsid: Nsid,
    /// Block size and so on.
    pub geometry: Geometry,
    /// NGUID; all zeroes when it has none.
    pub nguid: [u8; 16],
    /// EUI-64; all zeroes when it has none.
    pub eui64: [u8; 8],
    /// UUID; all zeroes when it has none.
    pub uuid: [u8; 16],
    /// ANAGRPID; 0 when there are no groups.
    pub ana_group: u32,
    /// What one command may do.
    pub limits: CommandLimits,
}

/// What one command may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandLimits {
    /// Blocks in a read, write or compare (MDTS).
    pub transfer_blocks: u32,
    /// Blocks in a Write Zeroes; 0 when it is not supported.
    pub write_zeroes_blocks: u32,
    /// Blocks in a Verify; 0 when it is not supported.
    pub verify_blocks: u32,
    /// Blocks in one range of a deallocation; 0 when it is not supported.
    pub deallocate_blocks: u32,
    /// Ranges in one deallocation.
    pub deallocate_ranges: u16,
    /// Compare is supported.
    pub compare: bool,
    /// Data bytes that a capsule carries.
    pub in_capsule_bytes: u32,
}

impl Namespace {
    /// The commands that `operation` takes.
    ///
    /// # Errors
    /// [`BlockError::OutOfRange`], [`BlockError::Unsupported`], [`BlockError::ReadOnly`]: found here, before anything is sent.
    pub fn split(&self, operation: Operation) -> Result<Parts, BlockError> {
        let _ = operation;
        Err(BlockError::Unsupported)
    }

    /// Takes as many of `ranges` (off the front) as fit one deallocation, writes them into `out` and gives the command and the bytes
    /// used, at most 4096. `None` when none is left.
    ///
    /// # Errors
    /// As [`Namespace::split`].
    pub fn deallocate(
        &self,
        ranges: &mut &[BlockRange],
        out: &mut [u8],
    ) -> Result<Option<(Command, usize)>, BlockError> {
        let _ = (ranges, out);
        Err(BlockError::Unsupported)
    }
}

/// The commands of one operation: an iterator without memory of its own. They may be in flight together and complete in any order.
#[derive(Debug, Clone)]
pub struct Parts {}

impl Iterator for Parts {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        None
    }
}
