//! A pre-shared key as TLS takes it.

use aws_lc_rs::{digest, hmac};
use core::fmt;
use zeroize::Zeroizing;

/// The hash of a cipher suite, and with it the suite: NVMe/TCP has one of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hash {
    /// TLS_AES_128_GCM_SHA256 (1301h).
    Sha256,
    /// TLS_AES_256_GCM_SHA384 (1302h).
    Sha384,
}

impl Hash {
    /// By its number in the interchange format and in identities: 1 or 2.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Sha256),
            2 => Some(Self::Sha384),
            _ => None,
        }
    }

    /// Its number there.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha384 => 2,
        }
    }

    /// The cipher suite's name (RFC 8446, B.4).
    #[must_use]
    pub fn suite(self) -> &'static str {
        match self {
            Self::Sha256 => "TLS_AES_128_GCM_SHA256",
            Self::Sha384 => "TLS_AES_256_GCM_SHA384",
        }
    }

    /// Bytes of its result, and of a key for it.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a length of a kind of result, not of a collection")]
    pub fn len(self) -> usize {
        match self {
            Self::Sha256 => digest::SHA256_OUTPUT_LEN,
            Self::Sha384 => digest::SHA384_OUTPUT_LEN,
        }
    }

    /// That of keys of so many bytes.
    #[must_use]
    pub fn of_len(len: usize) -> Option<Self> {
        [Self::Sha256, Self::Sha384].into_iter().find(|hash| hash.len() == len)
    }

    /// HMAC of parts in their order.
    #[must_use]
    pub fn hmac(self, key: &[u8], parts: &[&[u8]]) -> hmac::Tag {
        let algorithm = match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha384 => hmac::HMAC_SHA384,
        };
        let mut context = hmac::Context::with_key(&hmac::Key::new(algorithm, key));
        parts.iter().for_each(|part| context.update(part));
        context.sign()
    }

    /// HKDF-Expand-Label of TLS 1.3 (RFC 8446, 7.1), for up to [`Hash::len`] bytes and a context of up to 255.
    #[must_use]
    pub fn expand_label(self, secret: &[u8], label: &str, context: &[u8], len: usize) -> Zeroizing<Vec<u8>> {
        let label_len = "tls13 ".len() + label.len();
        debug_assert!(len <= self.len() && label_len <= 255 && context.len() <= 255);
        let tag = self.hmac(
            secret,
            &[
                &(len as u16).to_be_bytes(),
                &[label_len as u8],
                b"tls13 ",
                label.as_bytes(),
                &[context.len() as u8],
                context,
                &[1],
            ],
        );
        Zeroizing::new(tag.as_ref()[..len].to_vec())
    }
}

/// A pre-shared key for TLS 1.3, and what peers call it by.
#[derive(Clone, PartialEq, Eq)]
pub struct Psk {
    /// The identity, as it is on the wire.
    pub identity: String,
    /// The cipher suite that it is for.
    pub hash: Hash,
    /// The key: [`Hash::len`] bytes.
    pub secret: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Psk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Psk").field("identity", &self.identity).finish_non_exhaustive()
    }
}
