//! A remote namespace as what the NBD server serves.

use super::nbd::{Disk, DiskInfo};
use nvmf_block::BlockError;
use nvmf_host::Namespace;
use nvmf_initiator::{Device, Error};

/// A remote namespace.
#[derive(Clone)]
pub(super) struct RemoteDisk {
    device: Device,
    info: DiskInfo,
}

impl RemoteDisk {
    pub(super) fn new(device: Device, namespace: &Namespace) -> Self {
        let (geometry, limits) = (namespace.geometry, namespace.limits);
        let optimal = geometry.block_size.saturating_mul(geometry.optimal_blocks);
        let info = DiskInfo {
            bytes: geometry.bytes(),
            block_size: geometry.block_size,
            preferred: optimal.clamp(4096, 1 << 20).next_power_of_two(),
            read_only: geometry.read_only,
            trim: geometry.deallocate && limits.deallocate_blocks > 0,
            write_zeroes: limits.write_zeroes_blocks > 0,
        };
        Self { device, info }
    }
}

impl Disk for RemoteDisk {
    fn info(&self) -> DiskInfo {
        self.info
    }

    async fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), BlockError> {
        let buffer = self.device.buffer(into.len()).map_err(|e| block_error(&e))?;
        let buffer = self.device.read(offset, buffer).await.map_err(|e| block_error(&e))?;
        buffer.copy_to(into);
        Ok(())
    }

    async fn write(&self, offset: u64, data: &[u8], fua: bool) -> Result<(), BlockError> {
        let mut buffer = self.device.buffer(data.len()).map_err(|e| block_error(&e))?;
        buffer.copy_from(data);
        let written = match fua {
            true => self.device.write_fua(offset, buffer).await,
            false => self.device.write(offset, buffer).await,
        };
        written.map(drop).map_err(|e| block_error(&e))
    }

    async fn flush(&self) -> Result<(), BlockError> {
        self.device.flush().await.map_err(|e| block_error(&e))
    }

    async fn trim(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.device.deallocate(offset, len).await.map_err(|e| block_error(&e))
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        deallocate: bool,
        fua: bool,
    ) -> Result<(), BlockError> {
        self.device.write_zeroes(offset, len, deallocate, fua).await.map_err(|e| block_error(&e))
    }
}

fn block_error(error: &Error) -> BlockError {
    match error {
        // No memory, say: the disk is there, and the next request may go well.
        Error::System { .. } => BlockError::Os(nix::libc::ENOMEM),
        error => error.block_error().unwrap_or(BlockError::Gone),
    }
}
