//! What can be asked of a device, and what it can answer.

use crate::BlockRange;
use thiserror::Error;

/// Memory that was given to [`crate::Backend::register`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RegionId(pub u16);

/// `len` bytes at `offset` of a registered region. Plain numbers: the backend checks them against the region, which it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// The region.
    pub region: RegionId,
    /// Bytes from its start.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// One operation on one device. Buffers are exactly as long as their range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockOp {
    /// Device to memory.
    Read {
        /// What to read.
        range: BlockRange,
        /// Where to.
        into: Buffer,
    },
    /// Memory to device.
    Write {
        /// What to overwrite.
        range: BlockRange,
        /// With what.
        from: Buffer,
        /// Durable before it completes (force unit access).
        fua: bool,
    },
    /// Everything that completed before this was submitted is durable when it completes.
    Flush,
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// The range.
        range: BlockRange,
        /// The space may be given back to the file system.
        deallocate: bool,
        /// Durable before it completes.
        fua: bool,
    },
    /// The range's content is no longer needed (a hint: reads give old bytes or zeroes, never another's).
    Deallocate {
        /// The range.
        range: BlockRange,
    },
    /// Succeeds if the range equals the buffer, else [`BlockError::CompareFailed`].
    Compare {
        /// The range.
        range: BlockRange,
        /// What it is held against.
        with: Buffer,
    },
    /// Reads the range and throws it away: an error says that it cannot be read.
    Verify {
        /// The range.
        range: BlockRange,
    },
}

/// A buffer whose offset is a multiple of this is used as it is by nearly every device. Others are taken too: where a device cannot use one,
/// the backend copies.
pub const MEMORY_ALIGNMENT: usize = 512;

impl BlockOp {
    /// The blocks that it touches; `None` for a flush.
    #[must_use]
    pub fn range(&self) -> Option<BlockRange> {
        match *self {
            Self::Flush => None,
            Self::Read { range, .. }
            | Self::Write { range, .. }
            | Self::WriteZeroes { range, .. }
            | Self::Deallocate { range }
            | Self::Compare { range, .. }
            | Self::Verify { range } => Some(range),
        }
    }

    /// The buffer that it names.
    #[must_use]
    pub fn buffer(&self) -> Option<Buffer> {
        match *self {
            Self::Read { into: buffer, .. }
            | Self::Write { from: buffer, .. }
            | Self::Compare { with: buffer, .. } => Some(buffer),
            _ => None,
        }
    }

    /// Whether its success says that something is durable: a flush, or what has FUA.
    #[must_use]
    pub fn makes_durable(&self) -> bool {
        matches!(self, Self::Flush | Self::Write { fua: true, .. } | Self::WriteZeroes { fua: true, .. })
    }

    /// Whether it changes the device's content.
    #[must_use]
    pub fn writes(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::WriteZeroes { .. } | Self::Deallocate { .. })
    }
}

/// Why a device did not do what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BlockError {
    /// The range leaves the device.
    #[error("the range lies beyond the end of the device")]
    OutOfRange,
    /// The buffer is not as long as the range, not in its region, or not aligned as the device needs it.
    #[error("the buffer does not fit the range or the device's alignment")]
    BadBuffer,
    /// The device does not take writes.
    #[error("the device is read-only")]
    ReadOnly,
    /// The file system or thin pool behind the device is full.
    #[error("no space is left behind the device")]
    NoSpace,
    /// The medium could not be read or written.
    #[error("the medium failed")]
    Medium,
    /// A flush of the device failed once: writes that it acknowledged before may be lost. Every flush and every write with FUA fails like
    /// this from then on, by whomever, until the device is opened anew; trying again is useless.
    #[error("a flush failed: writes that were acknowledged may be lost; the device has to be opened anew")]
    CacheLost,
    /// The range does not equal the buffer.
    #[error("the compared data differ")]
    CompareFailed,
    /// The device cannot do this at all.
    #[error("the device does not support the operation")]
    Unsupported,
    /// The device is gone (removed, closed, connection lost). Whether a write took effect is not known.
    #[error("the device is gone")]
    Gone,
    /// The operation was cancelled before it was done. Whether a write took effect is not known.
    #[error("the operation was aborted")]
    Aborted,
    /// Anything else that the operating system said.
    #[error("the device failed with errno {0}")]
    Os(i32),
}
