//! Opening a regular file.

use super::block_device::Below;
use super::image::{self, ImageError, Space};
use super::served::Served;
use super::sharing::Place;
use super::{FileDisk, Kind, OpenError, lock, whole_blocks};
use nix::errno::Errno;
use nvmf_block::{Geometry, Preferred};
use nvmf_memory::PAGE;
use rustix::fs::{AtFlags, StatxFlags, statx};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The requirements of I/O through the page cache.
const BUFFERED: Alignment = Alignment { memory: 1, block: 512 };

/// The alignment that I/O on a file requires, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Alignment {
    memory: usize,
    block: u32,
}

/// Creates a sparse file of `bytes` bytes, readable by its owner only, and makes it durable.
pub(super) fn create(path: &Path, bytes: u64, asked: Option<u32>) -> Result<(), OpenError> {
    whole_blocks(&path.display().to_string(), bytes, asked, 512)?;
    let os = |source| OpenError::Os { path: path.to_owned(), source };
    image::create(path, bytes, Space::Sparse).map_err(|error| match error {
        ImageError::Os { source, .. } => os(source),
        ImageError::Exists(_) => os(io::ErrorKind::AlreadyExists.into()),
        other => os(io::Error::other(other)),
    })
}

/// Opens a regular file; with `direct`, bypassing the page cache where its file system can.
pub(super) fn open(
    path: &Path,
    asked: Option<u32>,
    read_only: bool,
    direct: bool,
) -> Result<(Kind, Geometry), OpenError> {
    let os = |source| OpenError::Os { path: path.to_owned(), source };
    let open = |flags| OpenOptions::new().read(true).write(!read_only).custom_flags(flags).open(path);
    let bypassing = match open(if direct { libc::O_DIRECT } else { 0 }) {
        Ok(file) if direct => direct_needs(&file).map_err(os)?.map(|needs| (file, needs)),
        Ok(_) => None,
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => None,
        Err(error) => return Err(os(error)),
    };
    let direct = bypassing.is_some();
    let (file, needs) = match bypassing {
        Some(opened) => opened,
        None => (open(0).map_err(os)?, BUFFERED),
    };
    lock(&file, path, read_only)?;
    let metadata = file.metadata().map_err(os)?;
    let geometry = whole_blocks(&path.display().to_string(), metadata.len(), asked, needs.block)?;
    let block_size = geometry.block_size;
    if block_size < needs.block {
        return Err(OpenError::BlockSize { path: path.to_owned(), least: needs.block, block_size });
    }
    let geometry = Geometry {
        volatile_write_cache: true,
        deallocate: true,
        zero_after_deallocate: true,
        preferred: preferred(&file, &metadata, block_size),
        ..geometry
    };
    let place = Place::of(&file, &metadata);
    let (below, served) = (Below::of(&metadata), Served::of(&file, &metadata));
    let disk = FileDisk {
        file,
        memory_alignment: needs.memory,
        direct,
        write_through: false,
        drive: None,
        place,
        below,
        served,
    };
    Ok((Kind::File(disk), geometry))
}

/// A part of a block of the file system is read before it is written, and holes are of whole blocks. What `stat` calls
/// the best size of I/O may be longer: a stripe, or what a network file system sends at once.
fn preferred(file: &File, metadata: &Metadata, block_size: u32) -> Preferred {
    let blocks = |bytes: u64| u32::try_from(bytes / u64::from(block_size)).map_or(1, |blocks| blocks.max(1));
    let of_file_system = rustix::fs::fstatvfs(file).map_or(1, |system| blocks(system.f_frsize));
    Preferred { stripe: blocks(metadata.blksize()).max(of_file_system), ..Preferred::blocks(of_file_system) }
}

/// The alignment that direct I/O on this file requires; `None` when there is no direct I/O. The kernel's answer is
/// preferred to a try, because a read of a hole in a sparse file succeeds with any alignment.
fn direct_needs(file: &File) -> io::Result<Option<Alignment>> {
    match direct_alignment(file) {
        Some((0, _) | (_, 0) | (_, 65537..)) => Ok(None),
        Some((memory, _)) if memory as usize > PAGE => Ok(None),
        Some((memory, block)) => Ok(Some(Alignment { memory: memory as usize, block: block.max(512) })),
        None => tried_alignment(file),
    }
}

/// The kernel's answer, in bytes: the alignment of memory, and that of offsets and lengths (0: no direct I/O). `None`
/// when it gives none (before Linux 6.1, and on some file systems).
fn direct_alignment(file: &File) -> Option<(u32, u32)> {
    let answer = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    StatxFlags::from_bits_retain(answer.stx_mask)
        .contains(StatxFlags::DIOALIGN)
        .then_some((answer.stx_dio_mem_align, answer.stx_dio_offset_align))
}

/// The smallest alignment with which a direct read succeeds.
fn tried_alignment(file: &File) -> io::Result<Option<Alignment>> {
    let mut space = vec![0_u8; 4 * PAGE];
    for (memory, block) in [(512, 512), (512, 4096), (PAGE, 4096)] {
        // Aligned to `memory` and to no more, wherever the allocator put the buffer.
        let start = (3 * memory - space.as_ptr() as usize % (2 * memory)) % (2 * memory);
        match nix::sys::uio::pread(file, &mut space[start..start + block as usize], 0) {
            Ok(_) => return Ok(Some(Alignment { memory, block })),
            Err(Errno::EINVAL) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(None)
}
