//! The kernel's keyring of NVMe keys, `.nvme`, which `nvme gen-tls-key --insert` fills and the kernel's own host and
//! target use. It holds keys of TLS by their identity, not configured keys.
#![expect(unsafe_code, reason = "a keyring is named by a number; see the SAFETY comment")]

use crate::{Identity, Psk, Version};
use core::num::NonZeroI32;
use keyutils::{Key, KeyType, Keyring, SpecialKeyring};
use nvme_proto::nqn::Nqn;
use std::io;
use thiserror::Error;
use zeroize::Zeroizing;

/// The keyring's usual name.
pub const NVME_KEYRING: &str = ".nvme";

/// A keyring that cannot be used.
#[derive(Debug, Error)]
pub enum KeyringError {
    /// There is none of that name.
    #[error("there is no keyring {0}{hint}", hint = missing_hint(.0))]
    Missing(String),
    /// The kernel refuses something.
    #[error("the keyring {name} cannot be used: {what}: {cause}")]
    Refused {
        /// Which.
        name: String,
        /// What was tried.
        what: &'static str,
        /// Why not.
        cause: io::Error,
    },
    /// It has no key for a host and a subsystem.
    #[error(
        "the keyring {name} has no key of host {host} for {subsystem} (nvmf gen-tls-key --insert makes one)"
    )]
    NoKey {
        /// Which keyring.
        name: String,
        /// The host.
        host: String,
        /// The subsystem.
        subsystem: String,
    },
}

fn missing_hint(name: &str) -> &'static str {
    if name == NVME_KEYRING {
        " that this user sees: load the kernel module that makes it (modprobe nvme-keyring), and be root"
    } else {
        ": the one with the keys of NVMe is .nvme; /proc/keys lists them all"
    }
}

/// Keys of the kernel's type `psk`.
struct PskType;

impl KeyType for PskType {
    type Description = str;
    type Payload = [u8];

    fn name() -> &'static str {
        "psk"
    }
}

/// A keyring of keys of TLS.
pub struct TlsKeyring {
    name: String,
    keyring: Keyring,
}

impl TlsKeyring {
    /// Whether there is a keyring of this name that this user sees; it is not touched.
    ///
    /// # Errors
    /// [`KeyringError`].
    pub fn check(name: &str) -> Result<(), KeyringError> {
        Self::serial(name).map(drop)
    }

    fn serial(name: &str) -> Result<NonZeroI32, KeyringError> {
        let list = std::fs::read_to_string("/proc/keys").map_err(|cause| KeyringError::Refused {
            name: name.to_owned(),
            what: "reading /proc/keys",
            cause,
        })?;
        serial(&list, "keyring", name).ok_or_else(|| KeyringError::Missing(name.to_owned()))
    }

    /// Opens the keyring of this name.
    ///
    /// # Errors
    /// [`KeyringError`].
    pub fn open(name: &str) -> Result<Self, KeyringError> {
        let serial = Self::serial(name)?;
        // SAFETY: the number is that of a keyring, as the kernel says. No memory depends on it: of a key of another kind the kernel
        // refuses to search.
        let keyring = unsafe { Keyring::new(serial) };
        let opened = Self { name: name.to_owned(), keyring };
        // Who possesses it may read what is in it: whatever the session's keyring leads to is possessed.
        let mut session = Keyring::attach_or_create(SpecialKeyring::Session)
            .map_err(|error| opened.refused("the session's keyring", error))?;
        session.link_keyring(&opened.keyring).map_err(|error| opened.refused("linking it", error))?;
        Ok(opened)
    }

    /// The key of an identity.
    ///
    /// # Errors
    /// [`KeyringError::Refused`].
    pub fn find(&self, identity: &Identity) -> Result<Option<Psk>, KeyringError> {
        let name = identity.to_string();
        let found: Result<Key, _> = self.keyring.search_for_key::<PskType, _, _>(&*name, None);
        let Ok(key) = found else { return Ok(None) };
        let secret = key.read().map(Zeroizing::new).map_err(|error| self.refused("reading a key", error))?;
        let fits = secret.len() == identity.hash.len();
        Ok(fits.then(|| Psk { identity: name, hash: identity.hash, secret }))
    }

    /// The keys of a host for a subsystem, in the order in which the kernel's host chooses: SHA-384 and identities of
    /// version 1 first. All are for one cipher suite, and with `version` of that alone.
    ///
    /// # Errors
    /// [`KeyringError`].
    pub fn keys_of(
        &self,
        host: &Nqn,
        subsystem: &Nqn,
        version: Option<Version>,
    ) -> Result<Vec<Psk>, KeyringError> {
        let list = std::fs::read_to_string("/proc/keys").unwrap_or_default();
        let mut identities: Vec<Identity> = descriptions(&list, "psk")
            .filter_map(|text| Identity::parse(text.as_bytes()).ok())
            .filter(|identity| {
                !identity.generated && identity.host == *host && identity.subsystem == *subsystem
            })
            .collect();
        identities.retain(|identity| version.is_none_or(|version| identity.version == version));
        identities.sort_by_key(|identity| (identity.hash.number(), identity.version));
        identities.reverse();
        let found: Result<Vec<_>, _> = identities.iter().map(|identity| self.find(identity)).collect();
        let mut keys: Vec<Psk> = found?.into_iter().flatten().collect();
        let Some(first) = keys.first().map(|key| key.hash) else {
            let (host, subsystem) = (host.to_string(), subsystem.to_string());
            return Err(KeyringError::NoKey { name: self.name.clone(), host, subsystem });
        };
        keys.retain(|key| key.hash == first);
        Ok(keys)
    }

    /// Adds a key, or replaces that of its identity. Returns its serial number.
    ///
    /// # Errors
    /// [`KeyringError::Refused`].
    pub fn insert(&mut self, psk: &Psk) -> Result<i32, KeyringError> {
        let added = self.keyring.add_key::<PskType, _, _>(&*psk.identity, &psk.secret[..]);
        added.map_err(|error| self.refused("adding a key", error))?;
        let list = std::fs::read_to_string("/proc/keys").unwrap_or_default();
        Ok(serial(&list, "psk", &psk.identity).map_or(0, NonZeroI32::get))
    }

    fn refused(&self, what: &'static str, error: keyutils::Error) -> KeyringError {
        let cause = io::Error::from_raw_os_error(error.0);
        KeyringError::Refused { name: self.name.clone(), what, cause }
    }
}

/// The serial number of a key by its type and description, from the text of `/proc/keys`.
fn serial(list: &str, kind: &str, name: &str) -> Option<NonZeroI32> {
    let line = list.lines().find(|line| described(line, kind) == Some(name))?;
    NonZeroI32::new(i32::from_str_radix(line.split_whitespace().next()?, 16).ok()?)
}

/// The descriptions of all keys of a type.
fn descriptions<'a>(list: &'a str, kind: &'a str) -> impl Iterator<Item = &'a str> {
    list.lines().filter_map(move |line| described(line, kind))
}

/// The description of a key in a line of `/proc/keys`, if it is of that type: the ninth word, up to a colon and a
/// size.
fn described<'a>(line: &'a str, kind: &str) -> Option<&'a str> {
    let mut rest = line.trim_start();
    for at in 0..8 {
        let (word, after) = rest.split_once(char::is_whitespace)?;
        if at == 7 && word != kind {
            return None;
        }
        rest = after.trim_start();
    }
    // NQNs have colons as well.
    Some(rest.rsplit_once(": ").map_or(rest, |(name, _)| name).trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
05bf2d92 I------     1 perm 1f010000     0     0 keyring   .id_resolver: empty
0a2d4c11 I------     2 perm 1f3f0000     0     0 keyring   .nvme: 2
1c7a33e0 I--Q---     1 perm 3f010000     0     0 psk       NVMe0R01 nqn.2014-08.org.nvmexpress:uuid:7 nqn.a:b: 32
1d7a33e0 I--Q---     1 perm 3f010000     0     0 psk       NVMe1R01 nqn.h nqn.a iSbjiStwJ=: 32
2b7a33e0 I--Q---     1 perm 3f010000     0     0 user      .nvme: 8
";

    #[test]
    fn keys_are_found_in_the_kernels_list() {
        assert_eq!(serial(LIST, "keyring", ".nvme").map(NonZeroI32::get), Some(0x0a2d_4c11));
        assert_eq!(serial(LIST, "keyring", ".nvm"), None);
        assert_eq!(
            descriptions(LIST, "psk").collect::<Vec<_>>(),
            ["NVMe0R01 nqn.2014-08.org.nvmexpress:uuid:7 nqn.a:b", "NVMe1R01 nqn.h nqn.a iSbjiStwJ="]
        );
        assert_eq!(descriptions("nonsense\n\n", "psk").count(), 0);
    }

    #[test]
    fn keyring_that_is_not_there_says_what_to_load() {
        let missing = |name: &str| KeyringError::Missing(name.to_owned()).to_string();
        assert!(missing(NVME_KEYRING).contains("modprobe nvme-keyring"), "{}", missing(NVME_KEYRING));
        let error = TlsKeyring::open(".no-such-keyring").err().map(|error| error.to_string());
        assert!(
            error.is_some_and(|text| text.contains("/proc/keys") && !text.contains("modprobe")),
            "no module makes it"
        );
    }
}
