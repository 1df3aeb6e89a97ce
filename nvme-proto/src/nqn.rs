//! NVMe qualified names (NVMe Base, "NVMe Qualified Names").

use core::fmt;
use core::hash::{Hash, Hasher};
use core::str::FromStr;
use thiserror::Error;

/// Bytes of the field that carries a name on the wire: NUL-terminated, zero-padded.
pub const FIELD_LEN: usize = 256;

/// A name: at most [`Nqn::LEN_MAX`] bytes of UTF-8 that begin with `nqn.`.
#[derive(Clone, Copy)]
pub struct Nqn {
    bytes: [u8; Self::LEN_MAX],
    len: u8,
}

/// Not a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NqnError {
    /// Longer than [`Nqn::LEN_MAX`] bytes, or without the NUL at its end.
    #[error("an NQN has at most 223 bytes")]
    TooLong,
    /// Does not begin with `nqn.`, or has nothing behind it.
    #[error("an NQN begins with \"nqn.\", followed by a name")]
    Prefix,
    /// Not UTF-8, or with control characters.
    #[error("an NQN is printable UTF-8 text")]
    Text,
}

impl Nqn {
    /// Bytes in the longest name.
    pub const LEN_MAX: usize = 223;

    /// The well-known name of the discovery service.
    pub const DISCOVERY: Self = Self::literal("nqn.2014-08.org.nvmexpress.discovery");

    const fn literal(text: &str) -> Self {
        let mut bytes = [0; Self::LEN_MAX];
        let source = text.as_bytes();
        let mut at = 0;
        while at < source.len() {
            bytes[at] = source[at];
            at += 1;
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "literals are short; indexing above would have failed"
        )]
        Self { bytes, len: source.len() as u8 }
    }

    /// `nqn.2014-08.org.nvmexpress:uuid:` and this UUID.
    #[must_use]
    pub fn from_uuid(uuid: [u8; 16]) -> Self {
        let mut name = Self::literal("nqn.2014-08.org.nvmexpress:uuid:");
        for (at, byte) in uuid.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                name.push(b'-');
            }
            for digit in [byte >> 4, byte & 0xf] {
                name.push(if digit < 10 { b'0' + digit } else { b'a' + digit - 10 });
            }
        }
        name
    }

    fn push(&mut self, byte: u8) {
        self.bytes[usize::from(self.len)] = byte;
        self.len += 1;
    }

    /// Reads the NUL-terminated field.
    ///
    /// # Errors
    /// [`NqnError`].
    pub fn from_field(field: &[u8; FIELD_LEN]) -> Result<Self, NqnError> {
        let len = field.iter().position(|&b| b == 0).ok_or(NqnError::TooLong)?;
        Self::from_bytes(&field[..len])
    }

    /// Reads a name without its NUL.
    ///
    /// # Errors
    /// [`NqnError`].
    pub fn from_bytes(name: &[u8]) -> Result<Self, NqnError> {
        let len = u8::try_from(name.len())
            .ok()
            .filter(|&n| usize::from(n) <= Self::LEN_MAX)
            .ok_or(NqnError::TooLong)?;
        let text = core::str::from_utf8(name).map_err(|_| NqnError::Text)?;
        if text.chars().any(char::is_control) {
            return Err(NqnError::Text);
        }
        if name.len() < 5 || !name.starts_with(b"nqn.") {
            return Err(NqnError::Prefix);
        }
        let mut bytes = [0; Self::LEN_MAX];
        bytes[..name.len()].copy_from_slice(name);
        Ok(Self { bytes, len })
    }

    /// The name.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// The field as on the wire.
    #[must_use]
    pub fn to_field(&self) -> [u8; FIELD_LEN] {
        let mut field = [0; FIELD_LEN];
        field[..usize::from(self.len)].copy_from_slice(self.as_bytes());
        field
    }
}

impl FromStr for Nqn {
    type Err = NqnError;
    fn from_str(text: &str) -> Result<Self, NqnError> {
        Self::from_bytes(text.as_bytes())
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl PartialEq for Nqn {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Nqn {}

impl PartialOrd for Nqn {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Nqn {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for Nqn {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn names_and_their_fields() {
        let name: Nqn =
            "nqn.2014-08.org.nvmexpress:uuid:00010203-0405-0607-0809-0a0b0c0d0e0f".parse().unwrap();
        assert_eq!(Nqn::from_uuid(core::array::from_fn(|i| u8::try_from(i).unwrap())), name);
        assert_eq!(Nqn::from_field(&name.to_field()), Ok(name));
        assert_eq!(Nqn::DISCOVERY.to_string(), "nqn.2014-08.org.nvmexpress.discovery");
    }

    #[test]
    fn invalid_nqn_is_refused() {
        let longest = std::format!("nqn.{}", "x".repeat(219));
        assert!(longest.parse::<Nqn>().is_ok());
        assert_eq!(std::format!("{longest}x").parse::<Nqn>(), Err(NqnError::TooLong));
        assert_eq!(Nqn::from_field(&[b'n'; FIELD_LEN]), Err(NqnError::TooLong));
        assert_eq!(Nqn::from_field(&[0; FIELD_LEN]), Err(NqnError::Prefix));
        assert_eq!("iqn.2003-01.org:x".parse::<Nqn>(), Err(NqnError::Prefix));
        assert_eq!(Nqn::from_bytes(b"nqn.\xff\xfe"), Err(NqnError::Text));
        assert_eq!("nqn.a\nb".parse::<Nqn>(), Err(NqnError::Text));
    }
}
