//! What the server serves.

use nvmf_host::Namespace;

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
    /// Clients may ask which parts of it are zeroes, which is found out by reading them.
    pub(crate) block_status: bool,
}

impl From<&Namespace> for DiskInfo {
    fn from(namespace: &Namespace) -> Self {
        let (geometry, limits) = (namespace.geometry, namespace.limits);
        let optimal = geometry.block_size.saturating_mul(geometry.preferred.write);
        Self {
            bytes: geometry.bytes(),
            block_size: geometry.block_size,
            preferred: optimal.clamp(4096, 1 << 20).next_power_of_two(),
            read_only: geometry.read_only,
            trim: geometry.deallocate && limits.deallocate_blocks > 0,
            write_zeroes: limits.write_zeroes_blocks > 0,
            block_status: false,
        }
    }
}
