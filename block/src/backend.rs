//! The contract of a storage backend: submit, flush, poll.

use crate::{BlockError, BlockOp, BlockRange, Geometry, RegionId};
use alloc::vec::Vec;
use nvmf_memory::Memory;

/// A device that a backend has open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u32);

/// The submitter's name for an operation; comes back in its [`Completion`]. The backend never looks into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag(pub u64);

/// One operation's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// As submitted.
    pub tag: Tag,
    /// How it went.
    pub result: Result<(), BlockError>,
}

/// The backend, or the device, has as many operations in flight as it takes: poll, then submit again. There may be room for another
/// device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the backend's or the device's queue is full")]
pub struct Full;

/// The bytes of a range, where the device has them.
#[derive(Debug, Clone, Copy)]
pub struct BorrowedRead<'a> {
    /// In which memory.
    pub memory: &'a Memory,
    /// Where they begin in it.
    pub offset: usize,
}

/// One worker's way to its devices.
///
/// - An accepted operation completes exactly once, through [`Backend::poll`], success or not; never inside `submit`.
/// - Operations in flight are not ordered among each other. [`BlockOp::Flush`] covers what *completed* before it was submitted.
/// - The backend validates the range, the buffer and the access itself: it alone knows what the device is now.
/// - A buffer belongs to the operation from `submit` to its completion: the backend holds the memory, so that no
///   drop of the submitter's can free it.
/// - A device never has so many operations in flight that there is no room for one of another device: one that hangs does not stop the
///   others. With a single device it may have all.
/// - Nothing blocks, nothing allocates once running.
pub trait Backend {
    /// Makes `memory` usable in [`crate::Buffer`]s. Regions live as long as the backend.
    ///
    /// # Errors
    /// [`BlockError::Os`] when the kernel refuses to pin it (see the memlock limit), [`BlockError::Unsupported`] past the
    /// number of regions that it takes.
    fn register(&mut self, memory: &Memory) -> Result<RegionId, BlockError>;

    /// What a device is now; `None` when there is none of that id.
    fn geometry(&self, device: DeviceId) -> Option<Geometry>;

    /// Takes an operation. It may wait in the backend until [`Backend::flush`].
    ///
    /// # Errors
    /// [`Full`]: nothing was taken.
    fn submit(&mut self, tag: Tag, device: DeviceId, op: BlockOp) -> Result<(), Full>;

    /// Where the bytes of a range lie, of a device that is memory: a read without a copy, done when this returns. Operations that are polled
    /// later change them, those of this backend whole blocks at a time, those of others that have the device at any moment. `None`: the read is to be submitted, and its completion says how it went.
    fn borrow_read(&mut self, device: DeviceId, range: BlockRange) -> Option<BorrowedRead<'_>> {
        let _ = (device, range);
        None
    }

    /// Rings the doorbell for all that was submitted since the last.
    fn flush(&mut self);

    /// Appends the completions that are there now, up to the capacity left in `completions`; never grows it.
    fn poll(&mut self, completions: &mut Vec<Completion>);
}
