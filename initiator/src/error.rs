//! What can go wrong, on what, and what to do about it.

use nvme_proto::{Nqn, Nsid};
use nvmf_block::BlockError;
use nvmf_host::{AssociationError, Mismatch, Namespace};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why something could not be done.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The controller cannot be connected to, or was lost for good.
    #[error("cannot use {nqn} at {address}")]
    Association {
        /// The subsystem.
        nqn: String,
        /// Its address.
        address: SocketAddr,
        /// The layer, and what it says.
        source: Box<AssociationError>,
    },
    /// An operation failed.
    #[error("{what} of {len} bytes at byte {offset} failed")]
    Io {
        /// Which.
        what: &'static str,
        /// Where.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Why.
        source: BlockError,
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
    /// There is no such namespace.
    #[error("{nqn} has no namespace {nsid} for this host; it has: {there}")]
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
    Closed,
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
    pub(crate) fn no_such_namespace(nqn: &Nqn, nsid: Nsid, namespaces: &[Namespace]) -> Self {
        let mut there: Vec<_> = namespaces.iter().map(|namespace| namespace.nsid.to_string()).collect();
        if there.is_empty() {
            there.push("none".to_owned());
        }
        Self::NoSuchNamespace { nqn: nqn.to_string(), nsid, there: there.join(", ") }
    }

    /// What the device said, when it is an operation that failed.
    #[must_use]
    pub fn block_error(&self) -> Option<BlockError> {
        match self {
            Self::Io { source, .. } => Some(*source),
            Self::Misaligned { .. } => Some(BlockError::BadBuffer),
            // ENOMEM: nothing is wrong with the disk.
            Self::Memory { .. } => Some(BlockError::Os(12)),
            Self::Closed | Self::Association { .. } | Self::Foreign { .. } => Some(BlockError::Gone),
            _ => None,
        }
    }
}
