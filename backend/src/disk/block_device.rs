//! Opening a block device.

use super::{FileDisk, Kind, OpenError, lock, patiently, whole_blocks};
use nvmf_block::{Geometry, MEMORY_ALIGNMENT};
use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Opens a block device that nobody else has mounted or claimed.
pub(super) fn open(
    path: &Path,
    metadata: &std::fs::Metadata,
    asked: Option<u32>,
    read_only: bool,
) -> Result<(Kind, Geometry), OpenError> {
    let os = |source| OpenError::Os { path: path.to_owned(), source };
    let number = |name| queue_attribute(metadata.rdev(), name).and_then(|text| text.parse::<u32>().ok());
    let least = number("logical_block_size").unwrap_or(512);
    // Linux 6.0 says what the device needs; before, a block's alignment does.
    let memory_alignment = number("dma_alignment").map_or(least as usize, |mask| mask as usize + 1);
    let direct = memory_alignment <= MEMORY_ALIGNMENT;
    // O_EXCL on a block device: nobody else has it mounted or claimed, and nobody will.
    let flags = if direct { libc::O_DIRECT } else { 0 } | if read_only { 0 } else { libc::O_EXCL };
    let mut file =
        patiently(|| match OpenOptions::new().read(true).write(!read_only).custom_flags(flags).open(path) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                Err(OpenError::InUse { path: path.to_owned() })
            }
            other => other.map_err(os),
        })?;
    lock(&file, path, read_only)?;
    let bytes = file.seek(SeekFrom::End(0)).map_err(os)?;
    let block_size = asked.unwrap_or(least);
    if block_size < least {
        return Err(OpenError::BlockSize { path: path.to_owned(), least, block_size });
    }
    let geometry = whole_blocks(&path.display().to_string(), bytes, Some(block_size), least)?;
    let geometry = Geometry {
        volatile_write_cache: queue_attribute(metadata.rdev(), "write_cache").as_deref()
            != Some("write through"),
        deallocate: queue_attribute(metadata.rdev(), "discard_max_bytes").is_some_and(|text| text != "0"),
        optimal_blocks: number("physical_block_size").map_or(1, |bytes| (bytes / block_size).max(1)),
        ..geometry
    };
    let memory_alignment = if direct { memory_alignment } else { 1 };
    Ok((Kind::File(FileDisk { file, memory_alignment, direct }), geometry))
}

/// An attribute of a block device's queue; of the whole disk's, for a partition.
fn queue_attribute(rdev: u64, name: &str) -> Option<String> {
    let device = format!("/sys/dev/block/{}:{}", nix::sys::stat::major(rdev), nix::sys::stat::minor(rdev));
    let read = |path: String| std::fs::read_to_string(path).ok();
    let text =
        read(format!("{device}/queue/{name}")).or_else(|| read(format!("{device}/../queue/{name}")))?;
    Some(text.trim().to_owned())
}
