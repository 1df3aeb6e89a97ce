//! What can be wrong with a disk.

use std::io;
use std::path::PathBuf;
use thiserror::Error;

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
    /// Not a size that blocks have.
    #[error("{what} cannot have blocks of {block_size} bytes: choose a power of two from 512 to 65536")]
    NoBlockSize {
        /// What.
        what: String,
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
        io::ErrorKind::ReadOnlyFilesystem => " (it is write-protected: export it read-only)",
        io::ErrorKind::StorageFull => " (the file system is full)",
        _ => "",
    }
}
