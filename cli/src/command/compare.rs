//! `nvmf compare`: has the controller compare blocks with a file.

use super::blocks::DataSize;
use super::nvm::{BlockArguments, COMPARE, open};
use super::refused::{ForcedRead, NoForcedAccess};
use super::waiting::Waiting;
use crate::print::{complain, line};
use crate::runtime::run;
use anyhow::{Context, Result, anyhow};
use nvmf_block::BlockError;
use nvmf_initiator::Device;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit status when the data differ.
const DIFFERENT: u8 = 1;
/// Exit status of an error.
pub(super) const UNKNOWN: u8 = 2;
/// Bytes that are compared at once.
const CHUNK: u64 = 1 << 20;

#[derive(clap::Args)]
pub(crate) struct Compare {
    #[command(flatten)]
    range: BlockArguments,
    /// File to compare with; bytes beyond the last block are ignored
    #[arg(short = 'd', long, value_name = "FILE")]
    data: PathBuf,
    #[command(flatten)]
    size: DataSize,
    #[command(flatten)]
    _absent: NoForcedAccess,
    #[command(flatten)]
    _forced: ForcedRead,
}

impl Compare {
    /// Exit status as of `cmp`: 0 equal, 1 different, 2 error.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let Some(block) = run(self.first_difference())? else {
            line("compare: success")?;
            return Ok(ExitCode::SUCCESS);
        };
        let nqn = self.range.namespace.nqn;
        complain(format_args!(
            "Compare Failure: {nqn} differs from {}, first in block {block}",
            self.data.display()
        ));
        Ok(DIFFERENT.into())
    }

    /// The error of a failed read.
    fn unread(&self, error: io::Error, len: u64) -> anyhow::Error {
        let file = self.data.display();
        match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                anyhow!("{file} ends before the {len} bytes that --block-count asks to compare")
            }
            _ => anyhow::Error::new(error).context(format!("cannot read {file}")),
        }
    }

    /// The first block that differs.
    async fn first_difference(&self) -> Result<Option<u64>> {
        let mut file =
            File::open(&self.data).with_context(|| format!("cannot read {}", self.data.display()))?;
        let (connection, device) = open(&self.range.namespace, Some(COMPARE)).await?;
        let waiting = Waiting::new(&self.range.namespace, &connection, device.nsid());
        let (mut at, len) = self.range.bytes(&device)?;
        self.size.check(&device, len)?;
        let end = at + len;
        let mut bytes = vec![0; len.min(CHUNK) as usize];
        let mut difference = None;
        while difference.is_none() && at < end {
            let bytes = &mut bytes[..(end - at).min(CHUNK) as usize];
            file.read_exact(bytes).map_err(|error| self.unread(error, len))?;
            if !waiting.tell(equal(&device, at, bytes)).await? {
                difference = Some(first_block(&device, at, bytes).await?);
            }
            at += bytes.len() as u64;
        }
        connection.close().await;
        Ok(difference)
    }
}

async fn equal(device: &Device, offset: u64, bytes: &[u8]) -> Result<bool> {
    let mut buffer = device.buffer(bytes.len())?;
    buffer.copy_from(bytes);
    match device.compare(offset, buffer).await {
        Ok(_) => Ok(true),
        Err(failed) if failed.error.block_error() == Some(BlockError::CompareFailed) => Ok(false),
        Err(failed) => Err(failed.into()),
    }
}

/// The first block that differs, of a range that does. Compare Failure does not say which, so halves are compared.
async fn first_block(device: &Device, mut offset: u64, mut bytes: &[u8]) -> Result<u64> {
    let block = device.geometry().block_size as usize;
    while bytes.len() > block {
        let (first, second) = bytes.split_at(bytes.len() / block / 2 * block);
        if equal(device, offset, first).await? {
            offset += first.len() as u64;
            bytes = second;
        } else {
            bytes = first;
        }
    }
    Ok(offset / block as u64)
}
