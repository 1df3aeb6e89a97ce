//! Errors of opening a disk.

use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a disk could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The path does not exist.
    #[error("{} does not exist: {}", path.display(), how_to_have(path))]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// The path is neither a file nor a disk's device.
    #[error("{} is neither a file nor a block device, nor an NVMe drive's /dev/ngXnY", path.display())]
    WrongKind {
        /// The path.
        path: PathBuf,
    },
    /// Another process or namespace uses the disk.
    #[error("{} is in use: another process or namespace has it open or mounted (see: fuser -v {})", path.display(), path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// The size is not a multiple of the block size.
    #[error(
        "{what} has {bytes} bytes, which is no multiple of its {block_size}-byte blocks: resize it{}",
        if *block_size > 512 { ", or choose a smaller block size" } else { "" }
    )]
    Size {
        /// The disk.
        what: String,
        /// Bytes.
        bytes: u64,
        /// Bytes in a block.
        block_size: u32,
    },
    /// The size is 0.
    #[error("{what} is empty: give it a size first (truncate -s 10G …)")]
    Empty {
        /// The disk.
        what: String,
    },
    /// The same of an image.
    #[error("the image {image} is empty: give it a size first (rbd resize --size 10G {image})")]
    EmptyImage {
        /// Its name, with the pool.
        image: String,
    },
    /// The block size is smaller than the device's.
    #[error("{} has blocks of {least} bytes: block size {block_size} is too small", path.display())]
    BlockSize {
        /// The path.
        path: PathBuf,
        /// The device's block size.
        least: u32,
        /// The block size asked for.
        block_size: u32,
    },
    /// The block size is invalid.
    #[error("{what} cannot have blocks of {block_size} bytes: choose a power of two from 512 to 65536")]
    NoBlockSize {
        /// The disk.
        what: String,
        /// The block size asked for.
        block_size: u32,
    },
    /// The drive cannot be asked what it is.
    #[error(
        "cannot ask the drive of {} what it is{}", path.display(),
        if source.kind() == io::ErrorKind::PermissionDenied { " (users other than root may since Linux 6.2)" } else { "" }
    )]
    Drive {
        /// Its generic device.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// Its blocks have metadata, or a size that no disk has.
    #[error("{} is formatted with metadata, which is not supported: format it without (nvme format)", path.display())]
    Format {
        /// Its generic device.
        path: PathBuf,
    },
    /// An image, or its cluster.
    #[error(transparent)]
    Ceph(#[from] nvmf_rados::Error),
    /// Not enough memory for a memory disk.
    #[error("cannot have {bytes} bytes of memory for a memory disk")]
    Memory {
        /// Bytes.
        bytes: u64,
    },
    /// The operating system's error.
    #[error("cannot open {}{}", path.display(), hint(source))]
    Os {
        /// The path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

fn how_to_have(path: &Path) -> String {
    if path.starts_with("/dev") {
        return "is the device there (lsblk), and its name right?".to_owned();
    }
    format!(
        "create it (`nvmf-target ctl disk create {path} --size 10GiB`, or truncate -s 10G {path}), or have it created (`size` \
         and `create = true` in the configuration; with --export: --size 10GiB)",
        path = path.display()
    )
}

pub(super) fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            " (the user of this process needs to read and write it: check its owner, its group and its folders)"
        }
        io::ErrorKind::ReadOnlyFilesystem => " (it is write-protected: export it read-only)",
        io::ErrorKind::StorageFull => " (the file system is full)",
        _ => "",
    }
}
