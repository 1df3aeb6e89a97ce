//! The keys of hosts for TLS, from the files that the configuration names.

use super::{Daemon, StartError};
use crate::ports::port_id;
use crate::transport::tcp::TlsPorts;
use nvmf_config::{Config, Host, Tls};
use nvmf_tls::{FileError, Keys, TlsKeyring, read_key_file};
use std::sync::Arc;

/// A key that cannot be had.
struct KeyFault<'a> {
    host: &'a Host,
    error: FileError,
}

impl KeyFault<'_> {
    fn log(&self) {
        tracing::error!("host {} has no key for TLS: {}", self.host.nqn, self.error);
    }
}

/// The ports with TLS, and the keys. With `strict`, none may be missing.
pub(super) fn tls_ports(config: &Config) -> Result<Option<Arc<TlsPorts>>, StartError> {
    if config.listeners.iter().all(|listener| listener.tls == Tls::Off) {
        return Ok(None);
    }
    let (keys, faults) = read_keys(config, None);
    for fault in faults {
        fault.log();
        if config.target.strict {
            return Err(StartError::Key(fault.error));
        }
    }
    let modes = config.listeners.iter().enumerate().map(|(at, listener)| (port_id(at), listener.tls));
    // Opened on this thread, whose session keyring the workers' threads inherit.
    let keyring = config.target.tls_keyring.as_deref().map(TlsKeyring::open).transpose()?;
    let ports = TlsPorts::new(modes, keys, keyring).map_err(StartError::Tls)?;
    Ok(Some(Arc::new(ports)))
}

/// Reads the keys. One that cannot be read stays as it is in `before`.
fn read_keys<'a>(config: &'a Config, before: Option<&TlsPorts>) -> (Keys, Vec<KeyFault<'a>>) {
    let (mut keys, mut faults) = (Keys::default(), Vec::new());
    for host in &config.hosts {
        let Some(path) = &host.tls_key_file else { continue };
        match read_key_file(path) {
            Ok(key) => keys.insert(host.nqn, key),
            Err(error) => {
                if let Some(key) = before.and_then(|before| before.key(&host.nqn)) {
                    keys.insert(host.nqn, key);
                }
                faults.push(KeyFault { host, error });
            }
        }
    }
    (keys, faults)
}

impl Daemon {
    /// Reads the keys again, for connections that come from now on. Returns how many errors it logged.
    pub(super) fn reload_keys(&mut self, config: &Config) -> usize {
        let Some(ports) = &self.common.tls else { return 0 };
        let (keys, faults) = read_keys(config, Some(ports));
        faults.iter().for_each(KeyFault::log);
        ports.set_keys(keys);
        self.config.hosts.clone_from(&config.hosts);
        faults.len()
    }
}
