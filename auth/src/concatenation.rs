//! Secure channel concatenation: an authentication over a connection in the clear that makes a key for TLS (NVMe Base,
//! "Secure Channel Concatenation"; NVMe/TCP Transport, "Generated PSK").

use crate::{Digest, Hash};
use core::fmt;
use nvme_proto::fabrics::auth::SecureChannel;

/// What a controller allows on one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Concatenation {
    /// Nothing: there is no TLS, or its key is a configured one, or this is an I/O queue.
    #[default]
    No,
    /// A new key: the connection is in the clear. An authentication that makes one does not unlock the queue: all that
    /// follows comes over another connection, with that key.
    New {
        /// Whether an authentication must make one.
        required: bool,
    },
    /// A key in place of this one, which protects the connection, by its number with the caller.
    Replace {
        /// The number.
        key: u64,
    },
}

impl Concatenation {
    /// Whether a host may negotiate this.
    pub(crate) fn allows(self, wanted: SecureChannel) -> bool {
        match (self, wanted) {
            (Self::New { required }, SecureChannel::NONE) => !required,
            (_, SecureChannel::NONE)
            | (Self::New { .. }, SecureChannel::NEW_TLS_PSK)
            | (Self::Replace { .. }, SecureChannel::REPLACE_TLS_PSK) => true,
            _ => false,
        }
    }

    /// The key that a generated one takes the place of.
    pub(crate) fn replaced(self) -> Option<u64> {
        match self {
            Self::Replace { key } => Some(key),
            Self::No | Self::New { .. } => None,
        }
    }
}

/// A key that an authentication made: what the key of TLS is derived from.
#[derive(Clone)]
pub struct GeneratedKey {
    pub(crate) hash: Hash,
    pub(crate) bytes: Digest,
}

impl GeneratedKey {
    /// The hash function: SHA-256 or SHA-384, which those of TLS are.
    #[must_use]
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// The key, as long as the hash function's digest.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for GeneratedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GeneratedKey").field("hash", &self.hash).finish_non_exhaustive()
    }
}
