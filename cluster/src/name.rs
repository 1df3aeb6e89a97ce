//! Names of gateways, their processes, their clients of the store, and ANA groups.

use alloc::string::{String, ToString};
use core::fmt;
use core::net::SocketAddr;
use serde::{Deserialize, Serialize};

/// The longest name of a gateway.
const NAME_MAX: usize = 64;

/// A gateway's name, which is one of its own in the group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct GatewayName(String);

/// A gateway has a name that it cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} cannot be a gateway's name: letters, digits, '.', '-' and '_', at most {NAME_MAX}")]
pub struct InvalidName {
    name: String,
}

impl GatewayName {
    /// Checks a name.
    ///
    /// # Errors
    /// If it is empty, too long, or has other characters than names of objects should have.
    pub fn new(name: &str) -> Result<Self, InvalidName> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(allowed) {
            return Err(InvalidName { name: name.chars().take(NAME_MAX).collect() });
        }
        Ok(Self(name.to_string()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for GatewayName {
    type Error = InvalidName;

    fn try_from(name: String) -> Result<Self, InvalidName> {
        Self::new(&name)
    }
}

impl fmt::Display for GatewayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What tells one run of a gateway from the next: random, new at each start.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BootId(pub String);

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One run of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Process {
    /// The gateway.
    pub gateway: GatewayName,
    /// Its run.
    pub boot: BootId,
}

/// The address of a client of the store, with its nonce, as `rados_getaddrs` gives it: what is fenced.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Address(pub String);

impl Address {
    /// Whether a fence of this address meets one client only. Nonce 0 means every client of that machine, ours included.
    #[must_use]
    pub fn names_one_client(&self) -> bool {
        let Some((at, nonce)) = self.0.split_once('/') else { return false };
        let at = ["v1:", "v2:", "any:"].iter().find_map(|kind| at.strip_prefix(kind)).unwrap_or(at);
        // Ceph takes of a nonce what 32 bits hold.
        at.parse::<SocketAddr>().is_ok() && nonce.parse::<u32>().is_ok_and(|nonce| nonce != 0)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The ID of an ANA group: what is owned and fenced as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupId(pub u32);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_without_nonce_is_never_fenced() {
        for text in ["127.0.0.1:0/123", "v1:127.0.0.1:6800/4294967295", "[fd00::1]:0/1"] {
            assert!(Address(text.into()).names_one_client(), "{text:?}");
        }
        let none = ["127.0.0.1:0/0", "127.0.0.1:0", "", "/", "127.0.0.1:0/x", "127.0.0.1:0/4294967296"];
        let others = ["127.0.0.1:0/0/7", "127.0.0.0/8", "range 127.0.0.0/8/1", "nonsense/5"];
        for text in none.into_iter().chain(others) {
            assert!(!Address(text.into()).names_one_client(), "{text:?}");
        }
    }

    #[test]
    fn name_that_no_object_could_have_is_refused() {
        assert!(GatewayName::new("gw-1.example_net").is_ok());
        for name in ["", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(GatewayName::new(name).is_err(), "{name:?}");
        }
        assert!(serde_json::from_str::<GatewayName>("\"a/b\"").is_err());
    }
}
