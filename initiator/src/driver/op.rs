//! What a driver carries out.

use nvmf_block::{BlockError, BlockOp, BlockRange, Buffer};
use nvmf_host::io::Operation;

/// An operation on a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// One that every block device has.
    Block(BlockOp),
    /// `range` holds afterwards what the blocks from `from` on hold, which the controller copies there. The two do not overlap.
    Copy {
        /// Where to, in blocks.
        range: BlockRange,
        /// The first block of what is copied.
        from: u64,
        /// Durable before it completes.
        fua: bool,
    },
}

impl From<BlockOp> for Op {
    fn from(op: BlockOp) -> Self {
        Self::Block(op)
    }
}

impl TryFrom<Op> for Operation {
    type Error = BlockError;

    /// [`BlockError::Unsupported`] for what no commands are made of.
    fn try_from(op: Op) -> Result<Self, BlockError> {
        match op {
            Op::Block(op) => op.try_into(),
            Op::Copy { range, from, fua } => Ok(Self::Copy { range, from, fua }),
        }
    }
}

impl Op {
    /// The blocks that it touches, but for those that a copy reads; `None` for a flush.
    pub(crate) fn range(&self) -> Option<BlockRange> {
        match self {
            Self::Block(op) => op.range(),
            Self::Copy { range, .. } => Some(*range),
        }
    }

    /// The blocks that a copy reads.
    pub(super) fn source(&self) -> Option<BlockRange> {
        match self {
            Self::Block(_) => None,
            Self::Copy { range, from, .. } => Some(BlockRange::new(*from, range.blocks)),
        }
    }

    /// The buffer that it names.
    pub(super) fn buffer(&self) -> Option<Buffer> {
        match self {
            Self::Block(op) => op.buffer(),
            Self::Copy { .. } => None,
        }
    }

    /// Whether its buffer, if it has one, is as long as it must be for a range of `len` bytes.
    pub(super) fn fits(&self, len: usize) -> bool {
        match self {
            Self::Block(op) => op.fits(len),
            Self::Copy { .. } => true,
        }
    }

    /// Whether it changes the disk.
    pub(super) fn writes(&self) -> bool {
        match self {
            Self::Block(op) => op.writes(),
            Self::Copy { .. } => true,
        }
    }

    /// Whether anything is otherwise when it is done: the disk, or what of it is durable.
    pub(crate) fn has_effect(&self) -> bool {
        self.writes() || matches!(self, Self::Block(BlockOp::Flush))
    }

    /// Whether it goes to the I/O queues for reads, where there are such.
    pub(super) fn is_read(&self) -> bool {
        matches!(self, Self::Block(BlockOp::Read { .. }))
    }

    /// Whether it is two commands that must follow each other in one queue, and must not be done twice: the second time it
    /// would find what the first has written.
    pub(super) fn is_pair(&self) -> bool {
        matches!(self, Self::Block(BlockOp::CompareAndWrite { .. }))
    }
}
