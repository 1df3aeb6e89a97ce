//! A remote namespace as what the NBD server serves.

use super::nbd::{Disk, DiskInfo};
use nvmf_block::BlockError;
use nvmf_initiator::{Device, Error};

impl Disk for Device {
    fn info(&self) -> DiskInfo {
        let geometry = self.geometry();
        DiskInfo {
            bytes: geometry.bytes(),
            block_size: geometry.block_size,
            preferred: geometry
                .block_size
                .saturating_mul(geometry.optimal_blocks)
                .clamp(4096, 1 << 20)
                .next_power_of_two(),
            read_only: geometry.read_only,
        }
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, BlockError> {
        let buffer = self.buffer(len).map_err(|e| block_error(&e))?;
        let buffer = Self::read(self, offset, buffer).await.map_err(|e| block_error(&e))?;
        let mut bytes = vec![0; len];
        buffer.copy_to(&mut bytes);
        Ok(bytes)
    }

    async fn write(&self, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), BlockError> {
        let mut buffer = self.buffer(data.len()).map_err(|e| block_error(&e))?;
        buffer.copy_from(&data);
        let written =
            if fua { self.write_fua(offset, buffer).await } else { Self::write(self, offset, buffer).await };
        written.map(drop).map_err(|e| block_error(&e))
    }

    async fn flush(&self) -> Result<(), BlockError> {
        Self::flush(self).await.map_err(|e| block_error(&e))
    }

    async fn trim(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.deallocate(offset, len).await.map_err(|e| block_error(&e))
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        deallocate: bool,
        fua: bool,
    ) -> Result<(), BlockError> {
        Self::write_zeroes(self, offset, len, deallocate, fua).await.map_err(|e| block_error(&e))
    }
}

fn block_error(error: &Error) -> BlockError {
    error.block_error().unwrap_or(BlockError::Gone)
}
