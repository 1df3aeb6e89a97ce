//! Opening a block device.

use super::{FileDisk, Kind, OpenError, lock, whole_blocks};
use nvmf_block::{Geometry, Preferred};
use nvmf_memory::PAGE;
use std::fs::{Metadata, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Opens a block device that nobody else has mounted or claimed.
pub(super) fn open(
    path: &Path,
    metadata: &Metadata,
    asked: Option<u32>,
    read_only: bool,
) -> Result<(Kind, Geometry), OpenError> {
    let os = |source| OpenError::Os { path: path.to_owned(), source };
    let limits = Limits::new(|name| attribute_of(metadata.rdev(), name));
    let Limits { block_size: least, direct, .. } = limits;
    // O_EXCL on a block device: refused if it is mounted or claimed, and nobody can do so later.
    let flags = if direct { libc::O_DIRECT } else { 0 } | if read_only { 0 } else { libc::O_EXCL };
    let mut file = match OpenOptions::new().read(true).write(!read_only).custom_flags(flags).open(path) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            return Err(OpenError::InUse { path: path.to_owned() });
        }
        other => other.map_err(os)?,
    };
    lock(&file, path, read_only)?;
    let opened = file.metadata().map_err(os)?;
    let bytes = file.seek(SeekFrom::End(0)).map_err(os)?;
    let block_size = asked.unwrap_or(least);
    if block_size < least {
        return Err(OpenError::BlockSize { path: path.to_owned(), least, block_size });
    }
    let geometry = whole_blocks(&path.display().to_string(), bytes, Some(block_size), least)?;
    let geometry = Geometry {
        volatile_write_cache: limits.volatile_write_cache,
        deallocate: limits.deallocate,
        preferred: limits.preferred(block_size),
        ..geometry
    };
    Ok((
        Kind::File(FileDisk {
            file,
            memory_alignment: limits.memory_alignment,
            direct,
            write_through: direct,
            drive: None,
            place: None,
            below: Below::of(&opened),
            served: None,
        }),
        geometry,
    ))
}

/// The properties of a block device, from the kernel's attributes.
#[derive(Debug, PartialEq, Eq)]
struct Limits {
    block_size: u32,
    physical_block_size: Option<u32>,
    /// Bytes from the first block on to the first that begins a physical block.
    physical_offset: u32,
    /// Bytes; 0 is no preference.
    optimal_io_size: u32,
    /// Bytes; 0 where there is no deallocation.
    discard_granularity: u32,
    discard_offset: u32,
    /// Bytes between boundaries that operations had better not cross, from the first block on; 0 is none.
    boundary: u64,
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
        let deallocate = attribute("discard_max_bytes").is_some_and(|text| text != "0");
        let sectors = |name| attribute(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        let (chunk, start) = (sectors("chunk_sectors"), sectors("start"));
        let from_first_block = chunk > 0 && start.is_multiple_of(chunk);
        Self {
            block_size,
            physical_block_size: number("physical_block_size"),
            // The kernel says -1 where the parts of an array do not fit together.
            physical_offset: match attribute("alignment_offset").as_deref() {
                Some("-1") => block_size,
                _ => number("alignment_offset").unwrap_or(0),
            },
            optimal_io_size: number("optimal_io_size").unwrap_or(0),
            discard_granularity: number("discard_granularity").filter(|_| deallocate).unwrap_or(0),
            discard_offset: number("discard_alignment").unwrap_or(0),
            boundary: if from_first_block { chunk.saturating_mul(512) } else { 0 },
            memory_alignment: if direct { memory_alignment } else { 1 },
            direct,
            // The page cache is volatile, whatever the device behind it is.
            volatile_write_cache: !direct || attribute("write_cache").as_deref() != Some("write through"),
            deallocate,
        }
    }

    /// What is no multiple of the block is no preference.
    fn preferred(&self, block_size: u32) -> Preferred {
        let blocks =
            |bytes: u32| if bytes.is_multiple_of(block_size) { (bytes / block_size).max(1) } else { 1 };
        let (write, deallocate) =
            (self.physical_block_size.unwrap_or(block_size), self.discard_granularity.max(block_size));
        let boundary = self.boundary / u64::from(block_size);
        let whole = self.boundary.is_multiple_of(block_size.into());
        Preferred {
            write: blocks(write),
            write_alignment: blocks(common_divisor(write, self.physical_offset)),
            stripe: blocks(self.optimal_io_size),
            deallocate: blocks(deallocate),
            deallocate_alignment: blocks(common_divisor(deallocate, self.discard_offset)),
            boundary: if whole { u32::try_from(boundary).unwrap_or(0) } else { 0 },
        }
    }
}

/// The largest alignment that both have.
fn common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// The block device that a disk is, or that its file system is on. Noted when the disk is opened: a file system that
/// hangs later need not be asked.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Below {
    number: Option<u64>,
    is_disk: bool,
}

impl Below {
    /// Of an open file, whose metadata these are.
    pub(super) fn of(metadata: &Metadata) -> Self {
        let kind = metadata.file_type();
        let number = match kind.is_char_device() {
            true => super::nvme::block_device_number(metadata.rdev()),
            false if kind.is_block_device() => Some(metadata.rdev()),
            false => Some(metadata.dev()),
        };
        Self { number, is_disk: kind.is_block_device() }
    }

    /// Its number.
    pub(super) fn number(self) -> Option<u64> {
        self.number
    }

    /// Whether a power loss may undo completed writes, by the kernel's attributes now. For a regular file it always may.
    pub(super) fn volatile_write_cache(self, direct: bool) -> bool {
        let Some(number) = self.number.filter(|_| self.is_disk && direct) else { return true };
        Limits::new(|name| attribute_of(number, name)).volatile_write_cache
    }

    /// The physical block size of a device, or of the device of a file's file system.
    pub(super) fn atomic_unit(self) -> Option<u32> {
        Limits::new(|name| attribute_of(self.number?, name)).physical_block_size
    }
}

/// An attribute of a block device or of its queue; for a partition, of the whole disk's queue.
fn attribute_of(rdev: u64, name: &str) -> Option<String> {
    let device = format!("/sys/dev/block/{}:{}", nix::sys::stat::major(rdev), nix::sys::stat::minor(rdev));
    let read = |path: String| std::fs::read_to_string(path).ok();
    let of_queue = read(format!("{device}/queue/{name}"));
    let text = of_queue
        .or_else(|| read(format!("{device}/{name}")))
        .or_else(|| read(format!("{device}/../queue/{name}")))?;
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
    fn preferred_sizes_are_those_of_the_queue() {
        let array = limits(&[
            ("logical_block_size", "512"),
            ("physical_block_size", "4096"),
            ("optimal_io_size", "1048576"),
            ("discard_max_bytes", "2147450880"),
            ("discard_granularity", "65536"),
            ("discard_alignment", "0"),
            ("alignment_offset", "0"),
            ("chunk_sectors", "256"),
        ]);
        let expected = Preferred { stripe: 2048, boundary: 256, ..Preferred::blocks(8) };
        let expected = Preferred { deallocate: 128, deallocate_alignment: 128, ..expected };
        assert_eq!(array.preferred(512), expected);
        assert_eq!(array.preferred(4096).write, 1);
        assert_eq!(array.preferred(4096).boundary, 32);
        assert_eq!(limits(&[]).preferred(512), Preferred::default(), "a kernel that does not say");
    }

    #[test]
    fn misaligned_partition_has_the_alignment_that_is_left() {
        let partition = limits(&[
            ("physical_block_size", "4096"),
            ("alignment_offset", "1024"),
            ("discard_max_bytes", "65536"),
            ("discard_granularity", "4096"),
            ("discard_alignment", "3584"),
            ("chunk_sectors", "256"),
            ("start", "63"),
        ]);
        let preferred = partition.preferred(512);
        assert_eq!((preferred.write, preferred.write_alignment), (8, 2));
        assert_eq!((preferred.deallocate, preferred.deallocate_alignment, preferred.boundary), (8, 1, 0));
    }

    #[test]
    fn device_without_deallocation_prefers_no_granularity_of_it() {
        let device = limits(&[("discard_granularity", "4096"), ("discard_max_bytes", "0")]);
        assert_eq!(device.preferred(512).deallocate, 1);
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
