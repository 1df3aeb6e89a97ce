//! The contract of a storage backend: submit, flush, poll.

use crate::{BlockError, BlockOp, BlockRange, Geometry, RegionId};
use alloc::vec::Vec;
use nvmf_memory::Memory;

/// A device that a backend has open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u32);

/// The submitter's identifier of an operation, returned in its [`Completion`]. The backend does not interpret it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tag(pub u64);

/// The result of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// As submitted.
    pub tag: Tag,
    /// Success, or why it failed.
    pub result: Result<(), BlockError>,
}

/// The backend or the device has as many operations in flight as it accepts: poll, then submit again. Another device
/// may still have room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the backend's or the device's queue is full")]
pub struct Full;

/// A range of a memory device, read in place.
#[derive(Debug, Clone, Copy)]
pub struct BorrowedRead<'a> {
    /// The memory that holds the range.
    pub memory: &'a Memory,
    /// Where the range begins in it, in bytes.
    pub offset: usize,
}

/// One worker's access to its devices.
///
/// - An accepted operation completes exactly once, through [`Backend::poll`], success or not; never inside `submit`.
/// - Operations in flight are not ordered among each other. [`BlockOp::Flush`] covers what *completed* before it was
///   submitted.
/// - The backend validates the range, the buffer and the access itself, because only it knows the device's current
///   state.
/// - A buffer belongs to the operation from `submit` to its completion: the backend holds the memory, so dropping the
///   submitter's handle does not free it.
/// - One device's operations never take all the room while there are other devices, so a device that hangs does not
///   stop the others. A single device may take all of it.
/// - No method blocks. After start-up, none allocates but [`Backend::register`], and the submission of a
///   [`BlockOp::Share`].
pub trait Backend {
    /// Makes `memory` usable in [`crate::Buffer`]s, until [`Backend::deregister`].
    ///
    /// # Errors
    /// [`BlockError::Os`] when the kernel refuses to pin it (see the memlock limit), [`BlockError::Unsupported`] past
    /// the number of regions that it takes.
    fn register(&mut self, memory: &Memory) -> Result<RegionId, BlockError>;

    /// Ends a registration; no operation may be in flight on the region. Its number may be another's afterwards. Unless
    /// a backend says otherwise, it keeps the region for as long as it lives.
    fn deregister(&mut self, region: RegionId) {
        let _ = region;
    }

    /// A device's current geometry; `None` when there is no device of that id.
    fn geometry(&self, device: DeviceId) -> Option<Geometry>;

    /// Accepts an operation. It may wait in the backend until [`Backend::flush`].
    ///
    /// # Errors
    /// [`Full`]: the operation was not accepted.
    fn submit(&mut self, tag: Tag, device: DeviceId, op: BlockOp) -> Result<(), Full>;

    /// Reads a range in place, without a copy, from a device that is memory; the read is complete when this returns.
    /// The bytes change when later operations are polled: those of this backend change whole blocks, those of other
    /// workers may change any byte at any time. `None`: submit a read instead.
    fn borrow_read(&mut self, device: DeviceId, range: BlockRange) -> Option<BorrowedRead<'_>> {
        let _ = (device, range);
        None
    }

    /// Whether [`BlockOp::Share`] may succeed from `source` to `to`, and in units of how many blocks: both ranges begin
    /// and end at multiples of it. `None`: read and write instead.
    fn sharing_unit(&self, source: DeviceId, to: DeviceId) -> Option<u32> {
        let _ = (source, to);
        None
    }

    /// Starts all operations that were submitted since the last flush.
    fn flush(&mut self);

    /// Appends the completions available now to `completions`, within its capacity: it never reallocates.
    fn poll(&mut self, completions: &mut Vec<Completion>);
}
