//! Secrets, and the form that they are passed on in.

use crate::{Digest, Hash, NoRandom, Random};
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use core::fmt;
use nvme_proto::Nqn;
use nvme_proto::fabrics::auth::HashId;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// What a secret begins with.
const PREFIX: &str = "DHHC-1:";
/// Bytes of its checksum.
const CRC_LEN: usize = 4;

/// A secret of a host or of a controller: what an administrator gives to both.
#[derive(Clone)]
pub struct Secret {
    key: Zeroizing<Vec<u8>>,
    /// The hash that makes a key for each owner of it; `None`: it is used as it is.
    transform: Option<Hash>,
}

/// Not a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Another form.
    #[error("a secret has the form DHHC-1:00:BASE64: (nvmf gen-dhchap-key makes one)")]
    Format,
    /// The number behind the prefix.
    #[error("a secret's hash is 00 (none), 01 (SHA-256), 02 (SHA-384) or 03 (SHA-512), not {0}")]
    Hash(String),
    /// What it holds is not base64.
    #[error("the secret is not valid base64: was it copied whole?")]
    Base64,
    /// The checksum.
    #[error("the secret's checksum is wrong: was it copied whole?")]
    Checksum,
    /// So many bytes are none of the three lengths.
    #[error("the secret has {0} bytes: it must have 32, 48 or 64")]
    Len(usize),
    /// The system has no random numbers.
    #[error(transparent)]
    Random(#[from] NoRandom),
}

impl Secret {
    /// A secret of these bytes: 32, 48 or 64.
    ///
    /// # Errors
    /// [`SecretError::Len`].
    pub fn new(key: &[u8], transform: Option<Hash>) -> Result<Self, SecretError> {
        match key.len() {
            32 | 48 | 64 => Ok(Self { key: Zeroizing::new(key.to_vec()), transform }),
            len => Err(SecretError::Len(len)),
        }
    }

    /// A new secret of so many bytes: 32, 48 or 64.
    ///
    /// # Errors
    /// [`SecretError::Random`], [`SecretError::Len`].
    pub fn generate(len: usize, transform: Option<Hash>, random: Random<'_>) -> Result<Self, SecretError> {
        let mut bytes = Zeroizing::new(vec![0; len.min(64 + 1)]);
        random(&mut bytes)?;
        Self::new(&bytes, transform)
    }

    /// The secret of so many bytes that nvme-cli makes of a PIN. It is as weak as the PIN.
    ///
    /// # Errors
    /// [`SecretError::Len`].
    pub fn of_pin(pin: &str, len: usize, transform: Option<Hash>) -> Result<Self, SecretError> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(64));
        for counter in 0u32..2 {
            let mut block = Zeroizing::new(pin.as_bytes().to_vec());
            block.extend_from_slice(&counter.to_be_bytes());
            bytes.extend_from_slice(&Hash::Sha256.digest(&block));
        }
        Self::new(bytes.get(..len).ok_or(SecretError::Len(len))?, transform)
    }

    /// Reads the form `DHHC-1:hh:base64:`. The last colon may be missing, as some tools leave it out.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn parse(text: &str) -> Result<Self, SecretError> {
        let rest = text.strip_prefix(PREFIX).ok_or(SecretError::Format)?;
        let (number, rest) = rest.split_once(':').ok_or(SecretError::Format)?;
        let data = rest.strip_suffix(':').unwrap_or(rest);
        let transform = match number {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(SecretError::Hash(number.chars().take(8).collect())),
        };
        let bytes = Zeroizing::new(STANDARD.decode(data).map_err(|_| SecretError::Base64)?);
        let (key, crc) = bytes.split_last_chunk::<CRC_LEN>().ok_or(SecretError::Len(0))?;
        if crc32(key) != *crc {
            return Err(SecretError::Checksum);
        }
        Self::new(key, transform)
    }

    /// The form `DHHC-1:hh:base64:`. It is the secret itself.
    #[must_use]
    pub fn to_interchange(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(self.key.to_vec());
        bytes.extend_from_slice(&crc32(&self.key));
        let number = self.transform.map_or(HashId(0), Hash::id).0;
        Zeroizing::new(format!("{PREFIX}{number:02}:{}:", *Zeroizing::new(STANDARD.encode(&*bytes))))
    }

    /// Its bytes: 32, 48 or 64.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.key.len()
    }

    /// The hash that makes a key for each owner of it, if there is one.
    #[must_use]
    pub fn transform(&self) -> Option<Hash> {
        self.transform
    }

    /// The key of its owner: the host, or for a controller's secret the subsystem.
    #[must_use]
    pub fn key_of(&self, owner: &Nqn) -> Key {
        Key(match self.transform {
            Some(hash) => {
                Transformed::Digest(hash.hmac(&self.key, &[owner.as_str().as_bytes(), b"NVMe-over-Fabrics"]))
            }
            None => Transformed::Plain(self.key.clone()),
        })
    }
}

/// Equal secrets are the same bytes in the same form. In constant time for secrets of one length.
impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.transform == other.transform && bool::from(self.key.ct_eq(&*other.key))
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("transform", &self.transform).finish_non_exhaustive()
    }
}

/// A secret made into the key of its owner.
pub struct Key(Transformed);

enum Transformed {
    Plain(Zeroizing<Vec<u8>>),
    Digest(Digest),
}

impl Key {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Transformed::Plain(key) => key,
            Transformed::Digest(key) => key,
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").finish_non_exhaustive()
    }
}

/// The checksum: CRC-32 of zlib, little-endian.
fn crc32(bytes: &[u8]) -> [u8; CRC_LEN] {
    crc_fast::crc32_iso_hdlc(bytes).to_le_bytes()
}
