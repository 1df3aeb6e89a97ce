//! Blocks and their data, as nvme-cli's `read`, `write` and `compare` name them.

use super::nvm::bytes;
use super::raw::number;
use crate::print::wrong_arguments;
use anyhow::{Context, Result, ensure};
use nvmf_initiator::Device;
use std::path::PathBuf;

/// A range in blocks, in place of one in bytes.
#[derive(clap::Args)]
pub(super) struct Blocks {
    /// First block, in place of --offset; 0 by default where --block-count is given
    #[arg(long, value_parser = number, conflicts_with_all = ["offset", "length"])]
    start_block: Option<u64>,
    /// Blocks after the first, in place of --length (0's based, as nvme-cli has it: 0, the default beside --data-size, is one block)
    #[arg(long = "block-count", value_parser = number, conflicts_with_all = ["offset", "length"])]
    block_count_z: Option<u64>,
    #[command(flatten)]
    size: DataSize,
    /// The file, in place of FILE
    #[arg(short = 'd', long, value_name = "FILE", conflicts_with = "file")]
    pub(super) data: Option<PathBuf>,
}

/// How much data there is, which the blocks say.
#[derive(clap::Args)]
pub(super) struct DataSize {
    /// Bytes of data, as nvme-cli needs it: those of the blocks
    #[arg(short = 'z', long, value_name = "BYTES", value_parser = number)]
    data_size: Option<u64>,
}

impl Blocks {
    /// Whether a range is named so.
    pub(super) fn names_a_range(&self) -> bool {
        self.start_block.is_some() || self.block_count_z.is_some()
    }

    /// First byte and number of bytes, if a range is named so; checked to be on the device.
    pub(super) fn bytes(&self, device: &Device) -> Result<Option<(u64, u64)>> {
        if !self.names_a_range() {
            return Ok(None);
        }
        if self.block_count_z.is_none() && self.size.data_size.is_none() {
            return wrong_arguments("--start-block needs --block-count, which is 0's based: 0 is one block");
        }
        let blocks = u128::from(self.block_count_z.unwrap_or(0)) + 1;
        let range = bytes(device, self.start_block.unwrap_or(0), blocks)?;
        Ok(Some(range))
    }

    /// Fails where this many bytes are not those that were named.
    pub(super) fn check_size(&self, device: &Device, len: u64) -> Result<()> {
        let checked = self.size.check(device, len);
        match self.names_a_range() {
            true => checked,
            false => checked.context(
                "which blocks --data-size is of is not said: what nvme-cli does without them, one block from block 0 on, is \
                 --start-block 0 --block-count 0 here",
            ),
        }
    }
}

impl DataSize {
    /// Fails where this many bytes are not those that were named: which of the two is meant, nobody knows.
    pub(super) fn check(&self, device: &Device, len: u64) -> Result<()> {
        let block = device.geometry().block_size;
        ensure!(
            self.data_size.is_none_or(|named| named == len),
            "--data-size {} is not what is transferred: {} block(s) of {block} bytes are {len} bytes (--block-count 0 is one block)",
            self.data_size.unwrap_or(0),
            len / u64::from(block)
        );
        Ok(())
    }
}
