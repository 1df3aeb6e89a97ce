//! The discovery service is announced by multicast DNS (NVMe TP 8009), so that hosts find it without an address.
//!
//! The library's thread sends and answers; nothing here waits for the network but the goodbye at the end.

use mdns_sd::{IfKind, ServiceDaemon, ServiceInfo};
use nvmf_subsystem::{Nqn, RdmaProviderType};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use uuid::Uuid;

/// How long a stop waits for the goodbye to be sent.
const GOODBYE_TIMEOUT: Duration = Duration::from_millis(500);

/// A listener that answers discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announced {
    /// Where it listens; not on loopback.
    pub address: SocketAddr,
    /// Over NVMe/RDMA, and what kind of it, or over NVMe/TCP.
    pub rdma: Option<RdmaProviderType>,
}

impl Announced {
    /// The service's type, and `p` of its TXT record. iWARP is reached over TCP.
    fn kind(&self) -> (&'static str, &'static str) {
        match self.rdma {
            None => ("_nvme-disc._tcp.local.", "tcp"),
            Some(RdmaProviderType::IWARP) => ("_nvme-disc._tcp.local.", "iwarp"),
            Some(_) => ("_nvme-disc._udp.local.", "rdma"),
        }
    }

    /// Of which interfaces the addresses are; of a wildcard, all of its family.
    fn interfaces(&self) -> IfKind {
        match self.address {
            address if !address.ip().is_unspecified() => IfKind::Addr(address.ip()),
            SocketAddr::V4(_) => IfKind::IPv4,
            SocketAddr::V6(_) => IfKind::IPv6,
        }
    }
}

/// Announces listeners, by their port numbers, until it is dropped; then it says goodbye for all.
pub struct Announcer {
    daemon: ServiceDaemon,
    nqn: Nqn,
    /// What is announced, and under which name.
    announced: BTreeMap<u16, (Announced, String)>,
}

impl Announcer {
    /// Announces nothing yet. `nqn` is the discovery service's.
    ///
    /// # Errors
    /// The system has no thread or descriptor for it.
    pub fn new(nqn: Nqn) -> Result<Self, mdns_sd::Error> {
        let daemon = ServiceDaemon::new()?;
        daemon.disable_interface(vec![IfKind::LoopbackV4, IfKind::LoopbackV6])?;
        Ok(Self { daemon, nqn, announced: BTreeMap::new() })
    }

    /// The discovery service's NQN, as announced.
    #[must_use]
    pub fn nqn(&self) -> &Nqn {
        &self.nqn
    }

    /// How many listeners are announced.
    #[must_use]
    pub fn len(&self) -> usize {
        self.announced.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.announced.is_empty()
    }

    /// Announces exactly these from now on, by their port numbers: says goodbye for those that are gone.
    ///
    /// # Errors
    /// One of them could not be announced; the others are. Call it again later.
    pub fn set(&mut self, wanted: &BTreeMap<u16, Announced>) -> Result<(), mdns_sd::Error> {
        let mut outcome = Ok(());
        for (_, (_, name)) in self.announced.extract_if(.., |port, (is, _)| wanted.get(port) != Some(is)) {
            outcome = outcome.and(self.daemon.unregister(&name).map(drop));
        }
        for (&port, &announced) in wanted {
            if !self.announced.contains_key(&port) {
                match self.announce(port, announced) {
                    Ok(name) => drop(self.announced.insert(port, (announced, name))),
                    Err(error) => outcome = outcome.and(Err(error)),
                }
            }
        }
        outcome
    }

    /// The names are this target's own: neither another responder on this machine nor another target has them.
    fn announce(&self, port: u16, announced: Announced) -> Result<String, mdns_sd::Error> {
        let id = Uuid::new_v5(&Uuid::NAMESPACE_URL, self.nqn.as_bytes()).simple().to_string();
        let host = format!("nvmf-{}", &id[..12]);
        let (service, transport) = announced.kind();
        let properties = [("p", transport), ("nqn", self.nqn.as_str())];
        let (instance, host_name) = (format!("{host}-{port}"), format!("{host}-{port}.local."));
        let ip = announced.address.ip();
        let addresses = if ip.is_unspecified() { Vec::new() } else { vec![ip] };
        let (at, properties) = (announced.address.port(), &properties[..]);
        let mut info = ServiceInfo::new(service, &instance, &host_name, &addresses[..], at, properties)?;
        info.set_interfaces(vec![announced.interfaces()]);
        if ip.is_unspecified() {
            info = info.enable_addr_auto();
        }
        let name = info.get_fullname().to_owned();
        self.daemon.register(info)?;
        Ok(name)
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        if let Ok(ended) = self.daemon.shutdown() {
            // Hosts find out without it, only later.
            let _ = ended.recv_timeout(GOODBYE_TIMEOUT);
        }
    }
}
