//! Configured keys, and the format that they are passed on in.

use crate::derive::{self, CONTEXT_MAX};
use crate::{Hash, Identity, Psk, Version};
use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use core::fmt;
use nvme_proto::nqn::Nqn;
use thiserror::Error;
use zeroize::Zeroizing;

/// What a key begins with in the interchange format.
const PREFIX: &str = "NVMeTLSkey-1:";
/// What a key of TLS for an identity of version 0 begins with in nvme-cli's exports.
const PREFIX_DERIVED: &str = "NVMeTLSkey-0:";
/// Bytes of its checksum.
const CRC_LEN: usize = 4;

/// A configured key: what an administrator gives to a host and to a target.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    configured: Zeroizing<Vec<u8>>,
    /// The hash that turns it into the retained key; `None`: it is used as it is.
    retained: Option<Hash>,
}

/// Not a key.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeyError {
    /// Another format.
    #[error("a key has the form NVMeTLSkey-1:01:BASE64: (nvmf gen-tls-key makes one)")]
    Format,
    /// A key of TLS for an identity of version 0, as nvme-cli exports it.
    #[error(
        "NVMeTLSkey-0 is a key of TLS for one identity, not the configured key that it was made from: give that, \
         NVMeTLSkey-1:"
    )]
    Derived,
    /// The number behind the prefix.
    #[error("a key's hash is 00 (none), 01 (SHA-256) or 02 (SHA-384), not {0}")]
    Hash(String),
    /// What it holds is not base64.
    #[error("the key is not valid base64: was it copied whole?")]
    Base64,
    /// The checksum.
    #[error("the key's checksum is wrong: was it copied whole?")]
    Checksum,
    /// So many bytes do not fit the hash.
    #[error("the key has {len} bytes: {}", expected(.hash))]
    Len {
        /// How many it has.
        len: usize,
        /// What it is for.
        hash: Option<Hash>,
    },
    /// The names are longer than a derivation takes.
    #[error(
        "the NQNs of host and subsystem are too long together for a PSK identity of version 0; use version 1"
    )]
    Names,
    /// The system has no random numbers.
    #[error("the system gives no random numbers")]
    Random,
}

fn expected(hash: &Option<Hash>) -> &'static str {
    match hash {
        None => "it must have 32 or 48",
        Some(Hash::Sha256) => "with hash 01 (SHA-256) it must have 32",
        Some(Hash::Sha384) => "with hash 02 (SHA-384) it must have 48",
    }
}

impl Key {
    /// A key of these bytes: 32 or 48. With `retained`, each host has one of its own made from it, by that hash, whose
    /// length the key has; without, it is used as it is.
    ///
    /// # Errors
    /// [`KeyError::Len`].
    pub fn new(configured: &[u8], retained: Option<Hash>) -> Result<Self, KeyError> {
        let len = configured.len();
        match (Hash::of_len(len), retained) {
            (Some(of_len), Some(hash)) if of_len == hash => {}
            (Some(_), None) => {}
            _ => return Err(KeyError::Len { len, hash: retained }),
        }
        Ok(Self { configured: Zeroizing::new(configured.to_vec()), retained })
    }

    /// A new key of so many bytes, 32 or 48.
    ///
    /// # Errors
    /// [`KeyError::Random`], [`KeyError::Len`].
    pub fn generate(len: usize, retained: Option<Hash>) -> Result<Self, KeyError> {
        let mut bytes = Zeroizing::new(vec![0; len.min(64)]);
        rand::fill(&mut bytes).map_err(|_| KeyError::Random)?;
        Self::new(&bytes, retained)
    }

    /// Reads the interchange format.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        if text.starts_with(PREFIX_DERIVED) {
            return Err(KeyError::Derived);
        }
        let rest = text.strip_prefix(PREFIX).ok_or(KeyError::Format)?;
        let (number, rest) = rest.split_once(':').ok_or(KeyError::Format)?;
        let data = rest.strip_suffix(':').ok_or(KeyError::Format)?;
        let retained = match number {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            _ => return Err(KeyError::Hash(number.chars().take(8).collect())),
        };
        let bytes = Zeroizing::new(STANDARD.decode(data).map_err(|_| KeyError::Base64)?);
        let (key, crc) = bytes.split_last_chunk::<CRC_LEN>().ok_or(KeyError::Format)?;
        if crc32(key) != *crc {
            return Err(KeyError::Checksum);
        }
        Self::new(key, retained)
    }

    /// The key in the interchange format. It is the secret itself.
    #[must_use]
    pub fn to_interchange(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(self.configured.to_vec());
        bytes.extend_from_slice(&crc32(&self.configured));
        let number = self.retained.map_or(0, Hash::number);
        Zeroizing::new(format!("{PREFIX}{number:02}:{}:", *Zeroizing::new(STANDARD.encode(&*bytes))))
    }

    /// The hash that makes the retained key of it, if there is to be one.
    #[must_use]
    pub fn retained(&self) -> Option<Hash> {
        self.retained
    }

    /// The hash of the cipher suite that it is for, by its length.
    #[must_use]
    pub fn hash(&self) -> Hash {
        Hash::of_len(self.configured.len()).expect("its length was checked")
    }

    /// The key of TLS for a host and a subsystem, with its identity.
    ///
    /// # Errors
    /// [`KeyError::Names`].
    pub fn psk(&self, version: Version, host: &Nqn, subsystem: &Nqn) -> Result<Psk, KeyError> {
        let hash = self.hash();
        let retained = match self.retained {
            Some(hash) => derive::retained(hash, &self.configured, host.as_str()),
            None => self.configured.clone(),
        };
        psk_of(&retained, hash, false, version, host, subsystem)
    }
}

/// The key of TLS of a retained or generated key, with its identity.
pub(crate) fn psk_of(
    key: &[u8],
    hash: Hash,
    generated: bool,
    version: Version,
    host: &Nqn,
    subsystem: &Nqn,
) -> Result<Psk, KeyError> {
    let digest =
        (version == Version::V1).then(|| derive::digest(hash, key, host.as_str(), subsystem.as_str()));
    let context = digest.as_ref().map(|digest| format!("{:02} {digest}", hash.number()));
    let (host, subsystem) = (*host, *subsystem);
    let identity = Identity { version, generated, hash, host, subsystem, digest }.to_string();
    let context = context.as_deref().unwrap_or(&identity);
    if context.len() > CONTEXT_MAX {
        return Err(KeyError::Names);
    }
    let secret = derive::tls_psk(hash, key, context);
    Ok(Psk { identity, hash, secret })
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("retained", &self.retained).finish_non_exhaustive()
    }
}

/// The checksum of the interchange format: CRC-32 of zlib, little-endian.
fn crc32(bytes: &[u8]) -> [u8; CRC_LEN] {
    crc_fast::crc32_iso_hdlc(bytes).to_le_bytes()
}
