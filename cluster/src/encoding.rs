//! How values are stored: JSON with a format number, so that a later version can change it without being misread.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The newest format that this version reads, and the one that it writes.
pub(crate) const FORMAT: u32 = 1;

/// Why a stored value is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// A newer version wrote it.
    #[error("{what} has format {format}, this version reads up to {FORMAT}: upgrade this gateway")]
    Newer {
        /// The value.
        what: String,
        /// Its format.
        format: u32,
    },
    /// It is not what this version writes.
    #[error("{what} is damaged: {cause}")]
    Damaged {
        /// The value.
        what: String,
        /// What is wrong.
        cause: String,
    },
}

#[derive(Deserialize)]
struct Format {
    format: u32,
}

#[derive(Serialize)]
struct Stored<'a, T> {
    format: u32,
    #[serde(flatten)]
    value: &'a T,
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    // Only maps with keys that are no strings, and values that refuse, cannot be written. There are none here.
    serde_json::to_vec(&Stored { format: FORMAT, value }).unwrap_or_default()
}

/// `what` is for the message. Fields that are not known are ignored: within a format, fields may be added.
pub(crate) fn decode<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, Unreadable> {
    let damaged =
        |cause: serde_json::Error| Unreadable::Damaged { what: what.to_string(), cause: cause.to_string() };
    // The format first: whatever else there is may be of a kind that this version does not know.
    let Format { format } = serde_json::from_slice(bytes).map_err(damaged)?;
    match format {
        0 => Err(Unreadable::Damaged { what: what.to_string(), cause: format!("format {format}") }),
        1..=FORMAT => serde_json::from_slice(bytes).map_err(damaged),
        _ => Err(Unreadable::Newer { what: what.to_string(), format }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Value {
        number: u64,
    }

    #[test]
    fn newer_format_is_told_from_damage() {
        assert_eq!(decode::<Value>("x", &encode(&Value { number: 7 })), Ok(Value { number: 7 }));
        let newer = decode::<Value>("x", br#"{"format":2,"number":"seven"}"#);
        assert_eq!(newer, Err(Unreadable::Newer { what: "x".into(), format: 2 }));
        for bytes in [&b""[..], b"{}", br#"{"format":1}"#, br#"{"format":0,"number":1}"#, b"\xff"] {
            assert!(matches!(decode::<Value>("x", bytes), Err(Unreadable::Damaged { .. })), "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode::<Value>("x", &bytes);
        }
    }
}
