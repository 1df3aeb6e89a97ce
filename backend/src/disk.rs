//! Opening a disk, once, before any worker uses it.

use crate::ram::RamDisk;
use nix::errno::Errno;
use nvmf_block::Geometry;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// What to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskSpec {
    /// A file or a block device.
    Path {
        /// Where.
        path: PathBuf,
        /// If it is not there: make a sparse file of this many bytes.
        create: Option<u64>,
    },
    /// Memory, zeroed, gone with the last handle.
    Memory {
        /// Bytes.
        size: u64,
    },
    /// Writes vanish, reads give zeroes.
    Null {
        /// Bytes.
        size: u64,
    },
}

/// Why a disk could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// There is nothing of that name.
    #[error("{} does not exist: create it (truncate -s 10G {}), or give a size to have it made", path.display(), path.display())]
    Missing {
        /// Where.
        path: PathBuf,
    },
    /// It is neither file nor block device.
    #[error("{} is neither a file nor a block device", path.display())]
    WrongKind {
        /// Where.
        path: PathBuf,
    },
    /// Another process, or another namespace, has it.
    #[error("{} is in use: another process or namespace has it open or mounted (see: fuser -v {})", path.display(), path.display())]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// Its size does not go with its block size.
    #[error(
        "{what} has {bytes} bytes, which is no multiple of its {block_size}-byte blocks: resize it, or choose a smaller block size"
    )]
    Size {
        /// Of what.
        what: String,
        /// Bytes.
        bytes: u64,
        /// Bytes in a block.
        block_size: u32,
    },
    /// There is nothing in it.
    #[error("{what} is empty: give it a size first (truncate -s 10G …)")]
    Empty {
        /// What.
        what: String,
    },
    /// The device's own blocks are larger.
    #[error("{} has blocks of {least} bytes: block size {block_size} is too small", path.display())]
    BlockSize {
        /// Where.
        path: PathBuf,
        /// Its own.
        least: u32,
        /// What was asked for.
        block_size: u32,
    },
    /// No memory of that size.
    #[error("cannot have {bytes} bytes of memory for a memory disk")]
    Memory {
        /// Bytes.
        bytes: u64,
    },
    /// The system refused.
    #[error("cannot open {}: {source}{}", path.display(), hint(source))]
    Os {
        /// Where.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            " (the target's user needs to read and write it: check its owner, its group and its folders)"
        }
        io::ErrorKind::StorageFull => " (the file system is full)",
        _ => "",
    }
}

/// An open disk. Cheap to clone; every worker attaches its own clone.
#[derive(Debug, Clone)]
pub struct Disk(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) kind: Kind,
    pub(crate) geometry: Geometry,
}

#[derive(Debug)]
pub(crate) enum Kind {
    File(FileDisk),
    Ram(RamDisk),
    Null,
}

/// A file or block device.
#[derive(Debug)]
pub(crate) struct FileDisk {
    /// Open, and locked against a second export for as long as it is.
    pub(crate) file: File,
    /// Buffers must be aligned so; 1 when the page cache copies anyway.
    pub(crate) memory_alignment: usize,
    direct: bool,
}

impl Disk {
    /// Opens it. `block_size` is the logical block's, where the default will not do.
    ///
    /// # Errors
    /// [`OpenError`] says what is wrong, on what, and what to do.
    pub fn open(spec: &DiskSpec, block_size: Option<u32>, read_only: bool) -> Result<Self, OpenError> {
        let (kind, mut geometry) = match spec {
            DiskSpec::Path { path, create } => open_path(path, *create, block_size, read_only)?,
            DiskSpec::Memory { size } => {
                let geometry = whole_blocks("the memory disk", *size, block_size, 512)?;
                let ram = RamDisk::new(*size).map_err(|_| OpenError::Memory { bytes: *size })?;
                (Kind::Ram(ram), Geometry { deallocate: true, zero_after_deallocate: true, ..geometry })
            }
            DiskSpec::Null { size } => (Kind::Null, whole_blocks("the null disk", *size, block_size, 512)?),
        };
        geometry.read_only = read_only;
        Ok(Self(Arc::new(Inner { kind, geometry })))
    }

    /// What it is.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    /// Whether its data go past the page cache (`O_DIRECT`). A file system that refuses that costs a copy and honesty about memory.
    #[must_use]
    pub fn direct(&self) -> bool {
        match &self.0.kind {
            Kind::File(file) => file.direct,
            Kind::Ram(_) | Kind::Null => true,
        }
    }
}

/// The geometry of `bytes` bytes in blocks of what was asked for, or else 4096, or else 512.
fn whole_blocks(what: &str, bytes: u64, asked: Option<u32>, least: u32) -> Result<Geometry, OpenError> {
    let fits = |size: u32| bytes.is_multiple_of(u64::from(size));
    let block_size = asked.unwrap_or(if fits(4096) { 4096 } else { least });
    if bytes == 0 {
        return Err(OpenError::Empty { what: what.to_owned() });
    }
    if !fits(block_size) {
        return Err(OpenError::Size { what: what.to_owned(), bytes, block_size });
    }
    Ok(Geometry::new(block_size, bytes / u64::from(block_size)))
}

fn open_path(
    path: &Path,
    create: Option<u64>,
    asked: Option<u32>,
    read_only: bool,
) -> Result<(Kind, Geometry), OpenError> {
    let os = |source| OpenError::Os { path: path.to_owned(), source };
    match (std::fs::metadata(path), create) {
        (Ok(metadata), _) if metadata.file_type().is_file() => {}
        (Ok(metadata), _) if metadata.file_type().is_block_device() => {
            return open_device(path, &metadata, asked, read_only);
        }
        (Ok(_), _) => return Err(OpenError::WrongKind { path: path.to_owned() }),
        (Err(error), Some(bytes)) if error.kind() == io::ErrorKind::NotFound => {
            whole_blocks(&path.display().to_string(), bytes, asked, 512)?;
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(path)
                .and_then(|file| file.set_len(bytes))
                .map_err(os)?;
        }
        (Err(error), _) if error.kind() == io::ErrorKind::NotFound => {
            return Err(OpenError::Missing { path: path.to_owned() });
        }
        (Err(error), _) => return Err(os(error)),
    }
    let open = |flags| OpenOptions::new().read(true).write(!read_only).custom_flags(flags).open(path);
    let (file, direct) = match open(libc::O_DIRECT) {
        Ok(file) => (file, true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (open(0).map_err(os)?, false),
        Err(error) => return Err(os(error)),
    };
    lock(&file, path, read_only)?;
    let bytes = file.metadata().map_err(os)?.len();
    let least = if direct { direct_alignment(&file, bytes).map_err(os)? } else { 512 };
    let geometry = whole_blocks(&path.display().to_string(), bytes, asked, least)?;
    if geometry.block_size < least {
        return Err(OpenError::BlockSize { path: path.to_owned(), least, block_size: geometry.block_size });
    }
    let memory_alignment = if direct { least as usize } else { 1 };
    let geometry =
        Geometry { volatile_write_cache: true, deallocate: true, zero_after_deallocate: true, ..geometry };
    Ok((Kind::File(FileDisk { file, memory_alignment, direct }), geometry))
}

fn open_device(
    path: &Path,
    metadata: &std::fs::Metadata,
    asked: Option<u32>,
    read_only: bool,
) -> Result<(Kind, Geometry), OpenError> {
    let os = |source| OpenError::Os { path: path.to_owned(), source };
    // O_EXCL on a block device: nobody else has it mounted or claimed, and nobody will.
    let flags = libc::O_DIRECT | if read_only { 0 } else { libc::O_EXCL };
    let mut file = match OpenOptions::new().read(true).write(!read_only).custom_flags(flags).open(path) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            return Err(OpenError::InUse { path: path.to_owned() });
        }
        other => other.map_err(os)?,
    };
    lock(&file, path, read_only)?;
    let bytes = file.seek(SeekFrom::End(0)).map_err(os)?;
    let least = queue_attribute(metadata.rdev(), "logical_block_size")
        .and_then(|text| text.parse().ok())
        .unwrap_or(512);
    let block_size = asked.unwrap_or(least);
    if block_size < least {
        return Err(OpenError::BlockSize { path: path.to_owned(), least, block_size });
    }
    let geometry = whole_blocks(&path.display().to_string(), bytes, Some(block_size), least)?;
    let geometry = Geometry {
        volatile_write_cache: queue_attribute(metadata.rdev(), "write_cache").as_deref()
            != Some("write through"),
        deallocate: queue_attribute(metadata.rdev(), "discard_max_bytes").is_some_and(|text| text != "0"),
        ..geometry
    };
    Ok((Kind::File(FileDisk { file, memory_alignment: least as usize, direct: true }), geometry))
}

/// One export at a time may write a disk; any number may read it.
fn lock(file: &File, path: &Path, read_only: bool) -> Result<(), OpenError> {
    match if read_only { file.try_lock_shared() } else { file.try_lock() } {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(source)) => Err(OpenError::Os { path: path.to_owned(), source }),
    }
}

/// The alignment that direct reads of this file need, 512 or 4096: found by trying, as not every kernel tells.
fn direct_alignment(file: &File, bytes: u64) -> io::Result<u32> {
    if bytes < 1024 {
        return Ok(512);
    }
    // A buffer that is aligned to 512 and, wherever the allocator put it, not to 1024.
    let mut space = vec![0_u8; 4096];
    let start = (1536 - space.as_ptr() as usize % 1024) % 1024;
    match nix::sys::uio::pread(file, &mut space[start..start + 512], 512) {
        Ok(_) => Ok(512),
        Err(Errno::EINVAL) => Ok(4096),
        Err(errno) => Err(errno.into()),
    }
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

    fn open(path: &Path, create: Option<u64>) -> Result<Disk, OpenError> {
        Disk::open(&DiskSpec::Path { path: path.to_owned(), create }, None, false)
    }

    #[test]
    fn what_is_wrong_is_said_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        assert!(open(&path, None).unwrap_err().to_string().contains("does not exist: create it"));
        assert!(
            open(folder.path(), None).unwrap_err().to_string().contains("neither a file nor a block device")
        );
        assert!(open(&path, Some(1000)).unwrap_err().to_string().contains("no multiple"));
        let disk = open(&path, Some(1 << 20)).unwrap();
        assert_eq!((disk.geometry().block_size, disk.geometry().blocks), (4096, 256));
        assert!(open(&path, None).unwrap_err().to_string().contains("is in use"));
        drop(disk);
        std::fs::write(&path, [0; 1536]).unwrap();
        assert_eq!(open(&path, None).unwrap().geometry().block_size, 512);
        std::fs::write(&path, [0; 100]).unwrap();
        assert!(
            open(&path, None)
                .unwrap_err()
                .to_string()
                .contains("100 bytes, which is no multiple of its 512-byte blocks")
        );
        std::fs::write(&path, []).unwrap();
        assert!(open(&path, None).unwrap_err().to_string().contains("is empty"));
    }

    #[test]
    fn a_file_system_without_direct_io_still_serves() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let disk = open(&folder.path().join("disk.img"), Some(8192)).unwrap();
        assert_eq!(disk.geometry().bytes(), 8192);
    }
}
