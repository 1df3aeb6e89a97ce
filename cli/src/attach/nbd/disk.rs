//! What the server serves.

use core::future::Future;
use nvmf_block::BlockError;

/// What a client is told of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DiskInfo {
    /// Bytes in it.
    pub(crate) bytes: u64,
    /// Bytes in a block: the disk's offsets and lengths are multiples of it.
    pub(crate) block_size: u32,
    /// Bytes that are best moved at once.
    pub(crate) preferred: u32,
    /// It takes no writes.
    pub(crate) read_only: bool,
    /// It can be told which ranges are not needed.
    pub(crate) trim: bool,
    /// It can write zeroes that it is not sent.
    pub(crate) write_zeroes: bool,
}

/// A disk with blocks of [`DiskInfo::block_size`] bytes: a remote namespace, or in tests memory.
///
/// Offsets and lengths were checked against [`DiskInfo`]. Handles are cheap to clone and name the same disk.
pub(crate) trait Disk: Clone + Send + Sync + 'static {
    /// What it is.
    fn info(&self) -> DiskInfo;
    /// Reads as many bytes as `into` has.
    fn read(&self, offset: u64, into: &mut [u8]) -> impl Future<Output = Result<(), BlockError>> + Send;
    /// Writes `data`; durable when it ends, with `fua`.
    fn write(
        &self,
        offset: u64,
        data: &[u8],
        fua: bool,
    ) -> impl Future<Output = Result<(), BlockError>> + Send;
    /// Makes durable what was written, by whatever connection.
    fn flush(&self) -> impl Future<Output = Result<(), BlockError>> + Send;
    /// A hint that the range is not needed.
    fn trim(&self, offset: u64, len: u64) -> impl Future<Output = Result<(), BlockError>> + Send;
    /// Makes the range read as zeroes.
    fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        deallocate: bool,
        fua: bool,
    ) -> impl Future<Output = Result<(), BlockError>> + Send;
}
