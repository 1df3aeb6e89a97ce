//! The hash functions, and HMAC.

use core::fmt;
use core::ops::Deref;
use hmac::{Hmac, KeyInit, Mac};
use nvme_proto::fabrics::auth::HashId;
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// A hash function; a later one is stronger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Hash {
    /// All, the weakest first.
    pub const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    /// Its number on the wire and in secrets.
    #[must_use]
    pub const fn id(self) -> HashId {
        match self {
            Self::Sha256 => HashId::SHA256,
            Self::Sha384 => HashId::SHA384,
            Self::Sha512 => HashId::SHA512,
        }
    }

    /// By its number.
    #[must_use]
    pub fn of_id(id: HashId) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.id() == id)
    }

    /// Bytes of a digest.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a length of a kind of digest, not of a collection")]
    pub const fn len(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// Its name as people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }

    /// The digest of some bytes.
    #[must_use]
    pub fn digest(self, bytes: &[u8]) -> Digest {
        match self {
            Self::Sha256 => Digest::of(&Sha256::digest(bytes)),
            Self::Sha384 => Digest::of(&Sha384::digest(bytes)),
            Self::Sha512 => Digest::of(&Sha512::digest(bytes)),
        }
    }

    /// HMAC of parts in their order.
    #[must_use]
    pub fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Digest {
        match self {
            Self::Sha256 => hmac::<Hmac<Sha256>>(key, parts),
            Self::Sha384 => hmac::<Hmac<Sha384>>(key, parts),
            Self::Sha512 => hmac::<Hmac<Sha512>>(key, parts),
        }
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn hmac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> Digest {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    Digest::of(&mac.finalize().into_bytes())
}

/// The result of a hash function or of HMAC. It may be a secret.
#[derive(Clone)]
pub struct Digest {
    bytes: Zeroizing<[u8; 64]>,
    len: usize,
}

impl Digest {
    fn of(from: &[u8]) -> Self {
        let mut bytes = Zeroizing::new([0; 64]);
        bytes[..from.len()].copy_from_slice(from);
        Self { bytes, len: from.len() }
    }

    /// Whether a peer sent this, in constant time.
    #[must_use]
    pub fn is(&self, other: &[u8]) -> bool {
        self.ct_eq(other).into()
    }
}

impl Deref for Digest {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Digest").finish_non_exhaustive()
    }
}
