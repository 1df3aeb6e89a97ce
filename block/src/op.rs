//! Operations on a device, and their errors.

use crate::{BlockRange, DeviceId};
use thiserror::Error;

/// Memory that was given to [`crate::Backend::register`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RegionId(pub u16);

/// `len` bytes at `offset` of a registered region. The backend checks them against the region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// The region.
    pub region: RegionId,
    /// Bytes from its start.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// One operation on one device. A buffer is exactly as long as its range, but for [`BlockOp::CompareAndWrite`].
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
        /// The data.
        from: Buffer,
        /// Force unit access: the data are durable when the write completes.
        fua: bool,
    },
    /// Makes durable everything that completed before the flush was submitted.
    Flush,
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// The range.
        range: BlockRange,
        /// The device may free the space.
        deallocate: bool,
        /// Force unit access: the zeroes are durable when the operation completes.
        fua: bool,
    },
    /// A hint that the range's content is no longer needed: reads return the old bytes or zeroes, never data of others.
    Deallocate {
        /// The range.
        range: BlockRange,
    },
    /// Succeeds if the range equals the buffer, else [`BlockError::CompareFailed`].
    Compare {
        /// The range.
        range: BlockRange,
        /// The expected bytes.
        with: Buffer,
    },
    /// Writes the range if it holds what is expected, else fails with [`BlockError::CompareFailed`]; no other operation
    /// of any user of the device changes the range in between.
    CompareAndWrite {
        /// The range, at most [`COMPARE_AND_WRITE_MAX`] bytes.
        range: BlockRange,
        /// Twice as long as the range: the expected bytes, and behind them the new ones.
        data: Buffer,
        /// Force unit access: the data are durable when the operation completes.
        fua: bool,
    },
    /// Reads the range and discards the data, to find out whether it can be read.
    Verify {
        /// The range.
        range: BlockRange,
    },
    /// The range reads as the blocks of a device from `from` on: both share the space until one of them is written.
    /// Where that cannot be it fails with [`BlockError::Unsupported`], and any of the range may have changed already:
    /// whoever wants it reads and writes then. See [`crate::Backend::sharing_unit`].
    Share {
        /// The range.
        range: BlockRange,
        /// The device whose blocks it shares; it may be the same.
        source: DeviceId,
        /// The first of those blocks.
        from: u64,
        /// Force unit access: the data are durable when the operation completes.
        fua: bool,
    },
}

/// Nearly every device can use a buffer whose offset is a multiple of this. Where a device cannot use a buffer, the
/// backend copies the data.
pub const MEMORY_ALIGNMENT: usize = 512;

/// The most bytes of a [`BlockOp::CompareAndWrite`]: one block of the largest size.
pub const COMPARE_AND_WRITE_MAX: usize = 65536;

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
            | Self::CompareAndWrite { range, .. }
            | Self::Share { range, .. }
            | Self::Verify { range } => Some(range),
        }
    }

    /// The buffer that it names.
    #[must_use]
    pub fn buffer(&self) -> Option<Buffer> {
        match *self {
            Self::Read { into: buffer, .. }
            | Self::Write { from: buffer, .. }
            | Self::Compare { with: buffer, .. }
            | Self::CompareAndWrite { data: buffer, .. } => Some(buffer),
            _ => None,
        }
    }

    /// Whether its buffer, if it has one, is as long as it must be for a range of `len` bytes.
    #[must_use]
    pub fn fits(&self, len: usize) -> bool {
        match *self {
            Self::CompareAndWrite { data, .. } => len <= COMPARE_AND_WRITE_MAX && data.len == 2 * len,
            _ => self.buffer().is_none_or(|buffer| buffer.len == len),
        }
    }

    /// Whether its success means that data are durable: a flush, or an operation with FUA.
    #[must_use]
    pub fn makes_durable(&self) -> bool {
        matches!(
            self,
            Self::Flush
                | Self::Write { fua: true, .. }
                | Self::WriteZeroes { fua: true, .. }
                | Self::CompareAndWrite { fua: true, .. }
                | Self::Share { fua: true, .. }
        )
    }

    /// Whether it changes the device's content.
    #[must_use]
    pub fn writes(&self) -> bool {
        matches!(
            self,
            Self::Write { .. }
                | Self::WriteZeroes { .. }
                | Self::Deallocate { .. }
                | Self::CompareAndWrite { .. }
                | Self::Share { .. }
        )
    }
}

/// Why an operation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BlockError {
    /// The range leaves the device.
    #[error("the range lies beyond the end of the device")]
    OutOfRange,
    /// The buffer is not as long as the range, or not in its region.
    #[error("the buffer does not match the range, or is not in its region")]
    BadBuffer,
    /// The device does not accept writes.
    #[error("the device is read-only")]
    ReadOnly,
    /// The file system or thin pool behind the device is full.
    #[error("no space is left behind the device")]
    NoSpace,
    /// The medium could not be read or written.
    #[error("the medium failed")]
    Medium,
    /// A flush failed, so acknowledged writes may be lost. From then on every flush and every operation with FUA
    /// fails with this error, for all users of the device, until it is reopened. A retry does not help.
    #[error("a flush of the device failed, so acknowledged writes may be lost; the device must be reopened")]
    CacheLost,
    /// The range and the buffer differ.
    #[error("the compared data differ")]
    CompareFailed,
    /// A [`BlockOp::CompareAndWrite`] could not read the range: nothing was compared or written.
    #[error("the range could not be read to be compared")]
    NotCompared,
    /// The device does not support the operation.
    #[error("the device does not support the operation")]
    Unsupported,
    /// The device is gone (removed, closed, connection lost). Whether a write took effect is not known.
    #[error("the device is gone")]
    Gone,
    /// This machine has no way to the device: it was fenced, another client has the device for itself, or it has not come
    /// to who was asked yet. Another path may lead to it. Whether a write took effect is not known.
    #[error(
        "the way to the device is closed to this machine: it was fenced, or another client has the device"
    )]
    Path,
    /// The operation was cancelled, or the connection was lost at every attempt. Whether a write took effect is not
    /// known.
    #[error("the operation was aborted")]
    Aborted,
    /// A reservation of another host's refuses it. Nothing took effect.
    #[error("another host's reservation refuses it (Reservation Conflict)")]
    ReservationConflict,
    /// The device's own error: a status of NVMe, with SC in bits 7:0, SCT in bits 10:8 and Do Not Retry in bit 14.
    #[error("the device failed with NVMe status {0:#x}")]
    Device(u16),
    /// Another error of the operating system.
    #[error("the device failed with errno {0}")]
    Os(i32),
}
