//! Pre-shared keys of TLS for NVMe/TCP (NVMe/TCP Transport, "Transport Layer Security").
//!
//! | module | what it holds |
//! |---|---|
//! | `key` | [`Key`]: a configured key, in the interchange format `NVMeTLSkey-1:hh:base64:` |
//! | `identity` | [`Identity`]: what a host calls its key by, `NVMe1R01 HOSTNQN SUBNQN DIGEST` |
//! | `derive` | from the configured key to the retained one, and to that of TLS |
//! | `psk` | [`Psk`]: an identity and its key, as TLS takes them |
//! | `keys` | [`Keys`]: the configured keys of many hosts, found by identity |
//! | `generated` | [`GeneratedKeys`]: keys that authentications have made |
//! | `keyring` | keys in the kernel's keyring `.nvme` |
//! | `file` | keys in files, which nobody else may read; secrets of other kinds as well |
//!
//! Contract: what a peer sends is compared and copied, never trusted for a length; no message shows a key, and memory
//! that held one is cleared.

mod derive;
mod file;
mod generated;
mod identity;
mod key;
mod keyring;
mod keys;
mod psk;

pub use file::{FileError, read_key_file, read_line};
pub use generated::{FIRST_USE, GeneratedKeys, LIFETIME};
pub use identity::{Identity, IdentityError, Version};
pub use key::{Key, KeyError};
pub use keyring::{KeyringError, NVME_KEYRING, TlsKeyring};
pub use keys::{Keys, Unknown};
pub use psk::{Hash, Psk};

#[cfg(test)]
mod vectors;
