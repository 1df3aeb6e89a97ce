//! A key on its way over the control socket.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::io::{self, Read as _};
use std::path::Path;
use zeroize::Zeroizing;

/// Bytes that are read of standard input: keys have less than a hundred.
const LEN_MAX: u64 = 64 << 10;

/// The text of a key. It is cleared from memory when it is dropped, and no log and no `Debug` text shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyText(Zeroizing<String>);

impl KeyText {
    /// What is said in the place of a key.
    pub(super) fn hidden() -> Self {
        Self(Zeroizing::new("not shown".to_owned()))
    }

    /// From a file that nobody but its owner may read, or for `-` from standard input.
    pub(super) fn read(file: &str) -> Result<Self, String> {
        if file != "-" {
            let line = nvmf_tls::read_line(Path::new(file), true).map_err(|error| error.to_string())?;
            return Ok(Self(line));
        }
        let mut text = Zeroizing::new(String::new());
        let read = io::stdin().lock().take(LEN_MAX).read_to_string(&mut text);
        read.map_err(|error| format!("cannot read standard input: {error}"))?;
        let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
        let line =
            line.ok_or("standard input has no key: name a file with --keyfile, or write the key there")?;
        Ok(Self(Zeroizing::new(line.to_owned())))
    }

    /// The key itself.
    #[must_use]
    pub fn text(&self) -> &Zeroizing<String> {
        &self.0
    }
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(not shown)")
    }
}

impl Serialize for KeyText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for KeyText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Zeroizing::new(text)))
    }
}
