//! What the configuration exports, as the engine and the backend know it: disks opened, definitions made.

use crate::limits::IN_USE_TIMEOUT;
use nvme_proto::Nsid;
use nvmf_backend::{Disk, DiskSpec, OpenError};
use nvmf_block::DeviceId;
use nvmf_config::{Backing, Config, Hosts, Namespace, Subsystem};
use nvmf_rdma_any::ProviderSelection;
use nvmf_subsystem::{HostAccess, NamespaceDefinition, Nqn, Port, RdmaProviderType, SubsystemDefinition};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use thiserror::Error;

/// A namespace could not be opened.
#[derive(Debug, Error)]
#[error("namespace {nsid} of {nqn}")]
pub struct ExportError {
    /// Of which subsystem.
    pub nqn: Box<Nqn>,
    /// Which one.
    pub nsid: u32,
    /// Why.
    #[source]
    pub source: OpenError,
}

/// An open namespace.
#[derive(Debug, Clone)]
pub struct Export {
    /// Whose.
    pub nqn: Nqn,
    /// As configured.
    pub namespace: Namespace,
    /// Its number on the backend.
    pub device: DeviceId,
    /// What is behind it.
    pub disk: Disk,
}

impl Export {
    /// Opens a namespace of a subsystem.
    ///
    /// # Errors
    /// [`ExportError`].
    pub fn open(nqn: Nqn, namespace: &Namespace, device: DeviceId) -> Result<Self, ExportError> {
        let spec = match &namespace.backing {
            Backing::Path { path, create } => DiskSpec::Path { path: path.clone(), create: *create },
            Backing::Memory { size } => DiskSpec::Memory { size: *size },
            Backing::Null { size } => DiskSpec::Null { size: *size },
        };
        let disk = open_patiently(&spec, namespace).map_err(|source| ExportError {
            nqn: Box::new(nqn),
            nsid: namespace.nsid,
            source,
        })?;
        Ok(Self { nqn, namespace: namespace.clone(), device, disk })
    }

    /// As the engine knows it.
    #[must_use]
    pub fn definition(&self) -> NamespaceDefinition {
        NamespaceDefinition {
            nsid: Nsid(self.namespace.nsid),
            device: self.device,
            geometry: self.disk.geometry(),
            uuid: self.namespace.uuid,
            nguid: self.namespace.uuid,
            eui64: [0; 8],
            read_only: self.namespace.read_only,
        }
    }

    /// What stands behind it, in words.
    #[must_use]
    pub fn backing(&self) -> String {
        match &self.namespace.backing {
            Backing::Path { path, .. } => path.display().to_string(),
            Backing::Memory { .. } => "memory (gone with the daemon)".into(),
            Backing::Null { .. } => "nothing (writes vanish)".into(),
        }
    }
}

/// The kernel takes the ring of a process apart after the process has ended, and only then lets go of its files: a
/// target that is started again at once would find them in use.
fn open_patiently(spec: &DiskSpec, namespace: &Namespace) -> Result<Disk, OpenError> {
    let spin_policy = Instant::now() + IN_USE_TIMEOUT;
    loop {
        match Disk::open(spec, namespace.block_size, namespace.read_only) {
            Err(OpenError::InUse { .. }) if Instant::now() < spin_policy => {
                std::thread::sleep(Duration::from_millis(20));
            }
            opened => return opened,
        }
    }
}

/// Who may connect.
#[must_use]
pub fn host_access(hosts: &Hosts) -> HostAccess {
    match hosts {
        Hosts::Any => HostAccess::Any,
        Hosts::Only(hosts) => HostAccess::Only(hosts.iter().copied().collect()),
    }
}

/// A subsystem with those of the exports that are its own.
#[must_use]
pub fn definition(subsystem: &Subsystem, exports: &[Export]) -> SubsystemDefinition {
    SubsystemDefinition {
        nqn: subsystem.nqn,
        serial: subsystem.serial.clone(),
        model: subsystem.model.clone(),
        hosts: host_access(&subsystem.hosts),
        namespaces: exports.iter().filter(|e| e.nqn == subsystem.nqn).map(Export::definition).collect(),
    }
}

/// What the discovery log says of the listeners. A wildcard stands for the addresses of this machine that it covers.
#[must_use]
pub fn ports(addresses: &[SocketAddr], selections: &[&ProviderSelection]) -> Vec<Port> {
    let (mut ports, mut extra) = (Vec::new(), Vec::new());
    for (at, (address, selection)) in addresses.iter().zip(selections).enumerate() {
        let provider = provider_type(selection);
        let mut concrete =
            if address.ip().is_unspecified() { local(address.ip()) } else { vec![address.ip()] };
        let first = if concrete.is_empty() { address.ip() } else { concrete.remove(0) };
        ports.push(Port::rdma(port_id(at), SocketAddr::new(first, address.port()), provider));
        extra.extend(concrete.into_iter().map(|ip| (SocketAddr::new(ip, address.port()), provider)));
    }
    let room = nvmf_subsystem::limits::PORTS_MAX.saturating_sub(ports.len());
    for (address, provider) in extra.into_iter().take(room) {
        ports.push(Port::rdma(port_id(ports.len()), address, provider));
    }
    ports
}

/// The number of the port of a listener.
#[must_use]
pub fn port_id(listener: usize) -> u16 {
    u16::try_from(listener + 1).expect("few listeners")
}

/// Of a device that is not said: the host finds out by itself whether it is InfiniBand or RoCE.
fn provider_type(selection: &ProviderSelection) -> RdmaProviderType {
    match selection {
        ProviderSelection::Iwarp => RdmaProviderType::IWARP,
        ProviderSelection::Verbs { .. } => RdmaProviderType::NOT_SPECIFIED,
    }
}

/// Addresses of this machine that a wildcard covers: others before loopback.
fn local(wildcard: IpAddr) -> Vec<IpAddr> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let mut addresses: Vec<IpAddr> = interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            match wildcard {
                IpAddr::V4(_) => address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip())),
                // Link-local addresses mean nothing without their interface.
                IpAddr::V6(_) => address
                    .as_sockaddr_in6()
                    .map(|a| a.ip())
                    .filter(|ip| !ip.is_unicast_link_local())
                    .map(IpAddr::V6),
            }
        })
        .collect();
    addresses.sort_by_key(IpAddr::is_loopback);
    addresses.dedup();
    addresses
}

/// What `check` says would be served, and `serve --export` says how to use.
#[must_use]
pub fn summary(config: &Config) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for listener in &config.listeners {
        let _ = writeln!(text, "listen on {}", listener.address);
    }
    for subsystem in &config.subsystems {
        let hosts = match &subsystem.hosts {
            Hosts::Any => "any host".to_owned(),
            Hosts::Only(hosts) => format!("{} host(s)", hosts.len()),
        };
        let _ = writeln!(text, "subsystem {} (serial {}): {hosts}", subsystem.nqn, subsystem.serial);
        for namespace in &subsystem.namespaces {
            let what = match &namespace.backing {
                Backing::Path { path, create: None } => path.display().to_string(),
                Backing::Path { path, create: Some(size) } => {
                    format!("{} (made with {size} bytes if it is not there)", path.display())
                }
                Backing::Memory { size } => format!("{size} bytes of memory"),
                Backing::Null { size } => format!("{size} bytes of nothing"),
            };
            let mode = if namespace.read_only { ", read-only" } else { "" };
            let _ = writeln!(text, "  namespace {}: {what}{mode}", namespace.nsid);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_is_never_advertised() {
        let addresses = ["0.0.0.0:4420".parse().unwrap(), "127.0.0.1:4421".parse().unwrap()];
        let ports = ports(&addresses, &[&ProviderSelection::Iwarp; 2]);
        assert!(ports.iter().all(|port| port.address != "0.0.0.0"), "{ports:?}");
        assert_eq!(
            (ports[1].id, ports[1].address.as_str(), ports[1].service.as_str()),
            (2, "127.0.0.1", "4421")
        );
    }
}
