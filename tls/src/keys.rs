//! The keys of many hosts.

use crate::{Hash, Identity, IdentityError, Key, KeyError, Psk};
use nvme_proto::nqn::Nqn;
use std::collections::HashMap;
use thiserror::Error;

/// The configured keys of hosts, by their NQN.
#[derive(Debug, Clone, Default)]
pub struct Keys {
    /// `None`: a key is configured, but it could not be had.
    hosts: HashMap<Nqn, Option<Key>>,
}

/// Why there is no key for an identity.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unknown {
    /// It is no identity of NVMe.
    #[error("{0}")]
    Identity(#[from] IdentityError),
    /// No key is configured for the host.
    #[error(
        "no key is configured for host {0}: add a [[host]] with its nqn and a tls_key_file, or, in a group of \
         gateways, use `nvmf-target ctl host set-key --tls`"
    )]
    Host(Nqn),
    /// The host's key could not be read.
    #[error("the key of host {0} could not be read: see the log of the start or of the last reload")]
    Unreadable(Nqn),
    /// The host's key is of the other length.
    #[error(
        "the key of host {host} is for {}, but the host has one for {}: give both the same key",
        suite(*.ours), suite(*.theirs)
    )]
    Hash {
        /// Whose.
        host: Nqn,
        /// What is configured here.
        ours: Hash,
        /// What the host has.
        theirs: Hash,
    },
    /// The host has another key.
    #[error("the key configured for host {0} is not the one that the host has: give both the same key")]
    Key(Nqn),
    /// The key comes from an authentication: it is not among the configured ones.
    #[error(
        "host {0} offers a key of an authentication that is not known here: it was replaced, its time is over, or this \
         target was restarted; the host must authenticate again"
    )]
    Generated(Nqn),
    /// It cannot be derived.
    #[error("{0}")]
    Derivation(#[from] KeyError),
}

fn suite(hash: Hash) -> &'static str {
    match hash {
        Hash::Sha256 => "SHA-256 (32 bytes)",
        Hash::Sha384 => "SHA-384 (48 bytes)",
    }
}

impl Keys {
    /// Sets the key of a host; `None`: it could not be read, and the host is refused.
    pub fn insert(&mut self, host: Nqn, key: Option<Key>) {
        self.hosts.insert(host, key);
    }

    /// The key that a host calls by this identity, which came over the wire.
    ///
    /// # Errors
    /// [`Unknown`].
    pub fn find(&self, identity: &[u8]) -> Result<Psk, Box<Unknown>> {
        let named = Identity::parse(identity).map_err(Unknown::from)?;
        let host = named.host;
        if named.generated {
            return Err(Box::new(Unknown::Generated(host)));
        }
        let key = self.hosts.get(&host).ok_or(Unknown::Host(host))?;
        let key = key.as_ref().ok_or(Unknown::Unreadable(host))?;
        if key.hash() != named.hash {
            return Err(Box::new(Unknown::Hash { host, ours: key.hash(), theirs: named.hash }));
        }
        let psk = key.psk(named.version, &host, &named.subsystem).map_err(Unknown::from)?;
        if psk.identity.as_bytes() == identity { Ok(psk) } else { Err(Box::new(Unknown::Key(host))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Version;

    fn nqn(text: &str) -> Nqn {
        text.parse().unwrap()
    }

    fn key(byte: u8, len: usize) -> Key {
        Key::new(&vec![byte; len], Hash::of_len(len)).unwrap()
    }

    #[test]
    fn key_is_found_by_each_of_its_identities() {
        let (host, subsystem) = (nqn("nqn.host"), nqn("nqn.subsystem"));
        for len in [32, 48] {
            let mut keys = Keys::default();
            keys.insert(host, Some(key(7, len)));
            for version in [Version::V0, Version::V1] {
                for subsystem in [subsystem, Nqn::DISCOVERY] {
                    let psk = key(7, len).psk(version, &host, &subsystem).unwrap();
                    assert_eq!(keys.find(psk.identity.as_bytes()), Ok(psk));
                }
            }
        }
    }

    #[test]
    fn identity_without_a_key_says_what_to_do() {
        let (host, other) = (nqn("nqn.host"), nqn("nqn.other"));
        let mut keys = Keys::default();
        keys.insert(host, Some(key(7, 32)));
        let of = |keys: &Keys, key: &Key, host| {
            let psk = key.psk(Version::V1, &host, &Nqn::DISCOVERY).unwrap();
            *keys.find(psk.identity.as_bytes()).unwrap_err()
        };
        assert_eq!(of(&keys, &key(7, 32), other), Unknown::Host(other));
        assert_eq!(of(&keys, &key(8, 32), host), Unknown::Key(host));
        let hash = Unknown::Hash { host, ours: Hash::Sha256, theirs: Hash::Sha384 };
        assert_eq!(of(&keys, &key(7, 48), host), hash);
        keys.insert(other, None);
        assert_eq!(of(&keys, &key(7, 32), other), Unknown::Unreadable(other));
        assert_eq!(*keys.find(b"NVMe0G01 nqn.host nqn.b").unwrap_err(), Unknown::Generated(host));
        assert_eq!(*keys.find(b"Client_identity").unwrap_err(), Unknown::Identity(IdentityError));
    }
}
