//! Opening a block device.

use super::{FileDisk, Kind, OpenError, lock, retrying, whole_blocks};
use nvmf_block::Geometry;
use nvmf_memory::PAGE;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Opens a block device that nobody else has mounted or claimed.
pub(super) fn open(
    path: &Path,
    metadata: &std::fs::Metadata,
    asked: Option<u32>,
    read_only: bool,
) -> Result<(Kind, Geometry), OpenError> {
    let os = |source| OpenError::Os { path: path.to_owned(), source };
    let limits = Limits::new(|name| queue_attribute(metadata.rdev(), name));
    let Limits { block_size: least, direct, .. } = limits;
    // O_EXCL on a block device: refused if it is mounted or claimed, and nobody can do so later.
    let flags = if direct { libc::O_DIRECT } else { 0 } | if read_only { 0 } else { libc::O_EXCL };
    let mut file =
        retrying(|| match OpenOptions::new().read(true).write(!read_only).custom_flags(flags).open(path) {
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
        volatile_write_cache: limits.volatile_write_cache,
        deallocate: limits.deallocate,
        optimal_blocks: limits.physical_block_size.map_or(1, |bytes| (bytes / block_size).max(1)),
        ..geometry
    };
    Ok((Kind::File(FileDisk { file, memory_alignment: limits.memory_alignment, direct }), geometry))
}

/// The properties of a block device, from the kernel's attributes.
#[derive(Debug, PartialEq, Eq)]
struct Limits {
    block_size: u32,
    physical_block_size: Option<u32>,
    memory_alignment: usize,
    /// Bypasses the page cache.
    direct: bool,
    volatile_write_cache: bool,
    deallocate: bool,
}

impl Limits {
    fn new(attribute: impl Fn(&str) -> Option<String>) -> Self {
        let number = |name| attribute(name).and_then(|text| text.parse::<u32>().ok());
        let block_size = number("logical_block_size").unwrap_or(512);
        // Since Linux 6.0 the kernel tells the alignment. Before, a block's alignment is enough.
        let memory_alignment =
            number("dma_alignment").map_or(block_size, |mask| mask.saturating_add(1)) as usize;
        let direct = memory_alignment <= PAGE;
        Self {
            block_size,
            physical_block_size: number("physical_block_size"),
            memory_alignment: if direct { memory_alignment } else { 1 },
            direct,
            // The page cache is volatile, whatever the device behind it is.
            volatile_write_cache: !direct || attribute("write_cache").as_deref() != Some("write through"),
            deallocate: attribute("discard_max_bytes").is_some_and(|text| text != "0"),
        }
    }
}

/// Whether a power loss may undo completed writes, by the kernel's attributes now. For a regular file it always may.
pub(super) fn volatile_write_cache(file: &File, direct: bool) -> bool {
    let Some(number) = device_number(file) else { return true };
    !direct || Limits::new(|name| queue_attribute(number, name)).volatile_write_cache
}

/// The physical block size of a device, or of the device of a file's file system.
pub(super) fn atomic_unit(file: &File) -> Option<u32> {
    let number = device_number(file).or_else(|| file.metadata().ok().map(|metadata| metadata.dev()))?;
    Limits::new(|name| queue_attribute(number, name)).physical_block_size
}

fn device_number(file: &File) -> Option<u64> {
    let metadata = file.metadata().ok()?;
    metadata.file_type().is_block_device().then(|| metadata.rdev())
}

/// An attribute of a block device's queue; of the whole disk's, for a partition.
fn queue_attribute(rdev: u64, name: &str) -> Option<String> {
    let device = format!("/sys/dev/block/{}:{}", nix::sys::stat::major(rdev), nix::sys::stat::minor(rdev));
    let read = |path: String| std::fs::read_to_string(path).ok();
    let text =
        read(format!("{device}/queue/{name}")).or_else(|| read(format!("{device}/../queue/{name}")))?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(attributes: &[(&str, &str)]) -> Limits {
        let value =
            |name: &str| attributes.iter().find(|(of, _)| *of == name).map(|(_, value)| value.to_string());
        Limits::new(value)
    }

    #[test]
    fn a_device_with_page_alignment_bypasses_the_page_cache() {
        let crypt = limits(&[
            ("logical_block_size", "4096"),
            ("dma_alignment", "4095"),
            ("write_cache", "write through"),
        ]);
        assert!(crypt.direct && !crypt.volatile_write_cache);
        assert_eq!(crypt.memory_alignment, 4096);
    }

    #[test]
    fn a_device_behind_the_page_cache_has_a_volatile_cache() {
        let device = limits(&[("dma_alignment", "8191"), ("write_cache", "write through")]);
        assert!(!device.direct && device.volatile_write_cache);
        assert_eq!(device.memory_alignment, 1);
    }

    #[test]
    fn only_write_through_means_no_volatile_cache() {
        for (mode, volatile) in [("write back", true), ("write through", false), ("", true)] {
            assert_eq!(limits(&[("write_cache", mode)]).volatile_write_cache, volatile, "{mode}");
        }
        assert!(limits(&[]).volatile_write_cache, "a kernel that does not say");
    }
}
