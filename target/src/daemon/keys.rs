//! The keys of hosts for TLS, from the files that the configuration names.

use super::{Daemon, StartError};
use crate::transport::tcp::TlsPorts;
use nvmf_config::{Config, Host};
use nvmf_subsystem::Nqn;
use nvmf_tls::{FileError, Keys, TlsKeyring, read_key_file};
use std::sync::Arc;

/// A key that cannot be had.
#[derive(Debug)]
pub(super) struct KeyFault {
    host: Nqn,
    error: FileError,
}

impl KeyFault {
    fn log(&self) {
        tracing::error!("host {} has no key for TLS and is refused: {}", self.host, self.error);
    }
}

/// What is said where a listener has TLS, and no host a key.
pub(crate) const NO_KEYS: &str = "a [[listener]] has tls, but no host has a key, so nobody can connect over TLS: add a \
     [[host]] with nqn and tls_key_file (nvmf gen-tls-key makes a key), or tls_keyring to [target]";

/// The ports with TLS, and the keys. What cannot be had is logged; with `strict`, nothing may be missing.
pub(super) fn tls_ports(config: &Config) -> Result<Option<Arc<TlsPorts>>, StartError> {
    if !config.has_tls() {
        return Ok(None);
    }
    let strict = config.target.strict;
    if config.lacks_keys() {
        if strict {
            return Err(StartError::NoKeys);
        }
        tracing::error!("{NO_KEYS}");
    }
    let (keys, faults) = read_keys(&config.hosts);
    for fault in faults {
        if strict {
            return Err(StartError::Key { host: fault.host.to_string(), source: fault.error });
        }
        fault.log();
    }
    let modes = (1..).zip(&config.listeners).map(|(port, listener)| (port, listener.tls));
    let ports = TlsPorts::new(modes, keys, keyring(config)?).map_err(StartError::Tls)?;
    Ok(Some(Arc::new(ports)))
}

/// Opened on this thread, whose session keyring the workers' threads inherit.
fn keyring(config: &Config) -> Result<Option<TlsKeyring>, StartError> {
    let Some(name) = &config.target.tls_keyring else { return Ok(None) };
    match TlsKeyring::open(name) {
        Ok(keyring) => Ok(Some(keyring)),
        Err(error) if config.target.strict => Err(StartError::Keyring(error)),
        Err(error) => {
            tracing::error!(
                "tls_keyring in [target]: hosts without a [[host]] are refused over TLS until the next restart: {error}"
            );
            Ok(None)
        }
    }
}

/// Reads the keys.
pub(super) fn read_keys(hosts: &[Host]) -> (Keys, Vec<KeyFault>) {
    let (mut keys, mut faults) = (Keys::default(), Vec::new());
    for host in hosts {
        let Some(path) = &host.tls_key_file else { continue };
        let key = read_key_file(path).map_err(|error| faults.push(KeyFault { host: host.nqn, error }));
        keys.insert(host.nqn, key.ok());
    }
    (keys, faults)
}

impl Daemon {
    /// Uses these keys for connections that come from now on. Returns what cannot be had, of which host.
    pub(super) fn set_tls_keys(&mut self, (keys, faults): (Keys, Vec<KeyFault>)) -> Vec<(Nqn, String)> {
        let Some(ports) = &self.common.tls else { return Vec::new() };
        faults.iter().for_each(KeyFault::log);
        ports.set_keys(keys);
        if self.config.lacks_keys() {
            tracing::warn!("{NO_KEYS}");
        }
        let text = |fault: &KeyFault| format!("it has no key for TLS and is refused: {}", fault.error);
        faults.iter().map(|fault| (fault.host, text(fault))).collect()
    }
}
