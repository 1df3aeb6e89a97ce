//! What can go wrong, on what, and what to do about it.

use crate::Buffer;
use core::fmt;
use nvme_proto::{Nqn, Nsid, Status};
use nvmf_block::BlockError;
use nvmf_host::{AssociationError, Mismatch, Namespace, status};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Where on the disk, for what is not of the disk as a whole.
fn place(offset: u64, len: u64) -> String {
    if len == 0 { String::new() } else { format!(" of {len} bytes at byte {offset}") }
}

/// Why something could not be done.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The controller cannot be connected to, or was lost for good.
    #[error("cannot use {nqn} at {address}")]
    Association {
        /// The subsystem.
        nqn: String,
        /// The address of the path that failed.
        address: SocketAddr,
        /// What the operation may have done that failed with it; of an attempt to connect: nothing.
        effect: Effect,
        /// The layer, and what it says.
        source: Box<AssociationError>,
    },
    /// An operation failed.
    #[error("{what}{} failed", place(*offset, *len))]
    Io {
        /// Which.
        what: &'static str,
        /// Where.
        offset: u64,
        /// Bytes.
        len: u64,
        /// What it may have done.
        effect: Effect,
        /// Why.
        source: BlockError,
    },
    /// An operation took longer than its [`crate::Device`] lets it. What was not sent of it by then is not sent any more.
    #[error("{what}{} has not ended in time", place(*offset, *len))]
    TimedOut {
        /// Which.
        what: &'static str,
        /// Where.
        offset: u64,
        /// Bytes.
        len: u64,
        /// What it may have done, or may do: of what was sent and not answered. [`crate::Device::with_timeout`] has the rest.
        effect: Effect,
    },
    /// Not whole blocks.
    #[error("{what} of {len} bytes at byte {offset}: both must be multiples of the block size, {block_size}")]
    Misaligned {
        /// Which.
        what: &'static str,
        /// Where.
        offset: u64,
        /// Bytes.
        len: u64,
        /// The block size.
        block_size: u32,
    },
    /// The controller does not take so much in one command, and it cannot be split.
    #[error("{what} of {len} bytes: the controller takes {max} at most")]
    TooLong {
        /// What was asked.
        what: &'static str,
        /// Bytes.
        len: u64,
        /// The most.
        max: u32,
    },
    /// The two ranges of a copy overlap.
    #[error("a copy of {len} bytes from byte {from} to byte {to}: they overlap")]
    Overlap {
        /// From where.
        from: u64,
        /// Where to.
        to: u64,
        /// Bytes.
        len: u64,
    },
    /// The controller does not say what was asked of it.
    #[error("{what} failed: {reason}")]
    Identify {
        /// What was asked.
        what: &'static str,
        /// Its status, or what is wrong with its answer.
        reason: String,
    },
    /// Not the URI of a disk.
    #[error("{uri}: {reason}")]
    Uri {
        /// What was given.
        uri: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The name in the URI of a disk has no address now. It may have one later.
    #[error("{uri}: {reason}")]
    Unresolved {
        /// What was given.
        uri: String,
        /// What the system's resolver says.
        reason: String,
    },
    /// There is no such namespace, or none of a size and format that can be used.
    #[error("{nqn} has no namespace {nsid} for this host that can be used; it has: {there}")]
    NoSuchNamespace {
        /// The subsystem.
        nqn: String,
        /// The namespace.
        nsid: Nsid,
        /// Those that there are.
        there: String,
    },
    /// Who we are is not known, and cannot be written down.
    #[error("cannot use the host identity in {}: {reason}", path.display())]
    Identity {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A namespace is not the disk that this connection opened under its number.
    #[error(
        "namespace {nsid} was opened on this connection as another disk: {mismatch}; connect anew to use this one"
    )]
    Foreign {
        /// The namespace.
        nsid: Nsid,
        /// In what it differs.
        mismatch: Mismatch,
    },
    /// There is no memory for a buffer, or the transport does not register it.
    #[error("no memory for a buffer of {bytes} bytes: {reason}")]
    Memory {
        /// Bytes.
        bytes: u64,
        /// Who refused, and why.
        reason: String,
    },
    /// The system refused something: a thread, a descriptor, the transport's device.
    #[error("{what}: {reason}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why not.
        reason: String,
    },
    /// A raw command cannot be sent.
    #[error("command {opcode:#04x} cannot be sent raw: {reason}")]
    Raw {
        /// Which.
        opcode: u8,
        /// Why not.
        reason: String,
    },
    /// The connection was closed, by its owner or because it was lost for good.
    #[error("the connection is closed")]
    Closed {
        /// What the operation may have done that failed with it.
        effect: Effect,
    },
}

impl From<nvmf_rdma_any::OpenError> for Error {
    fn from(error: nvmf_rdma_any::OpenError) -> Self {
        let mut reason = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(error) = source {
            reason = format!("{reason}: {error}");
            source = error.source();
        }
        Self::System { what: "cannot start a connection", reason }
    }
}

impl Error {
    /// This namespace is not among those that there are.
    #[must_use]
    pub fn no_such_namespace(nqn: &Nqn, nsid: Nsid, namespaces: &[Namespace]) -> Self {
        let mut there: Vec<_> = namespaces.iter().map(|namespace| namespace.nsid.to_string()).collect();
        if there.is_empty() {
            there.push("none".to_owned());
        }
        Self::NoSuchNamespace { nqn: nqn.to_string(), nsid, there: there.join(", ") }
    }

    /// As the error of the whole of which the operation that failed with it was a part. `effect` is what all the parts
    /// may have done.
    pub(crate) fn of_whole(self, what: &'static str, offset: u64, len: u64, effect: Effect) -> Self {
        match self {
            Self::Io { source, .. } => Self::Io { what, offset, len, effect, source },
            Self::TimedOut { .. } => Self::TimedOut { what, offset, len, effect },
            Self::Association { nqn, address, source, .. } => {
                Self::Association { nqn, address, effect, source }
            }
            Self::Closed { .. } => Self::Closed { effect },
            // It says that nothing was done, which holds for its own part.
            error if error.effect() != effect => {
                let source = error.block_error().unwrap_or(BlockError::Gone);
                Self::Io { what, offset, len, effect, source }
            }
            error => error,
        }
    }

    /// What the device said, when it is an operation that failed.
    #[must_use]
    pub fn block_error(&self) -> Option<BlockError> {
        match self {
            Self::Io { source, .. } => Some(*source),
            Self::Misaligned { .. } | Self::TooLong { .. } | Self::Overlap { .. } => {
                Some(BlockError::BadBuffer)
            }
            Self::TimedOut { .. } => Some(crate::engine::TIMED_OUT),
            // ENOMEM: nothing is wrong with the disk.
            Self::Memory { .. } => Some(BlockError::Os(12)),
            Self::Closed { .. } | Self::Association { .. } | Self::Foreign { .. } => Some(BlockError::Gone),
            _ => None,
        }
    }
}

/// An operation that failed, and the buffer that it had.
#[derive(Debug)]
pub struct Failed {
    /// Why.
    pub error: Error,
    /// Its buffer; of a read, with bytes of any kind in it. `None` where the connection ended and took it along.
    pub buffer: Option<Buffer>,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}

/// What an operation that failed may have done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// Nothing: it was refused before anything was done.
    Nothing,
    /// It is not known: all of it, a part, or nothing. A write may be done again; what must not be done twice must be looked at first.
    Unknown,
}

impl Effect {
    /// What a command may have done that ended with this status, which is not success.
    #[must_use]
    pub fn of_status(status: Status) -> Self {
        match status::is_without_effect(status) {
            true => Self::Nothing,
            false => Self::of(status::block_error(status)),
        }
    }

    /// What a command may have done that failed so.
    pub(crate) fn of(error: BlockError) -> Self {
        match error {
            BlockError::OutOfRange
            | BlockError::BadBuffer
            | BlockError::ReadOnly
            | BlockError::CompareFailed
            | BlockError::NotCompared
            | BlockError::Unsupported
            | BlockError::ReservationConflict => Self::Nothing,
            BlockError::NoSpace
            | BlockError::Medium
            | BlockError::CacheLost
            | BlockError::Gone
            | BlockError::Path
            | BlockError::Aborted
            | BlockError::Device(_)
            | BlockError::Os(_) => Self::Unknown,
        }
    }
}

impl Error {
    /// What the operation may have done that failed with it: all its attempts, and all the commands that it was split into. One
    /// that was sent, lost with its connection, sent again and refused then ([`BlockError::ReservationConflict`]) may have been done
    /// the first time.
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Self::Io { effect, .. }
            | Self::TimedOut { effect, .. }
            | Self::Association { effect, .. }
            | Self::Closed { effect } => *effect,
            Self::Misaligned { .. }
            | Self::TooLong { .. }
            | Self::Overlap { .. }
            | Self::Identify { .. }
            | Self::Uri { .. }
            | Self::Unresolved { .. }
            | Self::NoSuchNamespace { .. }
            | Self::Identity { .. }
            | Self::Foreign { .. }
            | Self::Memory { .. }
            | Self::System { .. }
            | Self::Raw { .. } => Effect::Nothing,
        }
    }

    /// The kind of error of the standard library that says the same.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        use io::ErrorKind;
        match self {
            Self::Io { source, .. } => match source {
                BlockError::OutOfRange | BlockError::BadBuffer => ErrorKind::InvalidInput,
                BlockError::ReadOnly => ErrorKind::ReadOnlyFilesystem,
                BlockError::NoSpace => ErrorKind::StorageFull,
                BlockError::CompareFailed => ErrorKind::InvalidData,
                BlockError::Unsupported => ErrorKind::Unsupported,
                BlockError::Gone | BlockError::Path => ErrorKind::NotConnected,
                BlockError::Aborted => ErrorKind::ConnectionAborted,
                BlockError::ReservationConflict => ErrorKind::ResourceBusy,
                BlockError::Os(errno) => io::Error::from_raw_os_error(*errno).kind(),
                BlockError::Medium
                | BlockError::CacheLost
                | BlockError::NotCompared
                | BlockError::Device(_) => ErrorKind::Other,
            },
            Self::Association { .. } | Self::Foreign { .. } | Self::Closed { .. } => ErrorKind::NotConnected,
            Self::Misaligned { .. }
            | Self::TooLong { .. }
            | Self::Overlap { .. }
            | Self::Raw { .. }
            | Self::Uri { .. } => ErrorKind::InvalidInput,
            Self::Unresolved { .. } => ErrorKind::HostUnreachable,
            Self::NoSuchNamespace { .. } => ErrorKind::NotFound,
            Self::TimedOut { .. } => ErrorKind::TimedOut,
            Self::Memory { .. } => ErrorKind::OutOfMemory,
            Self::Identity { .. } | Self::Identify { .. } | Self::System { .. } => ErrorKind::Other,
        }
    }
}

impl From<Error> for io::Error {
    /// Of the kind that [`Error::kind`] says, with the error in it.
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error)
    }
}

impl From<Failed> for io::Error {
    fn from(failed: Failed) -> Self {
        failed.error.into()
    }
}
