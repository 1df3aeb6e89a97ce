//! What the discovery log says of the listeners.

use nvmf_subsystem::{Port, PortConcatenation, PortSubsystems, RdmaProviderType};
use std::net::SocketAddr;

/// What a listener is to hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Where it listens.
    pub address: SocketAddr,
    /// Over NVMe/RDMA, and what kind of it, or over NVMe/TCP.
    pub rdma: Option<RdmaProviderType>,
    /// Bytes of data in the capsule of an I/O queue.
    pub in_capsule_data: u32,
    /// It serves discovery.
    pub discovery: bool,
    /// It serves discovery and nothing else.
    pub discovery_only: bool,
    /// Hosts must connect with TLS.
    pub requires_tls: bool,
    /// Whether an authentication may, or must, make the key for TLS.
    pub concatenation: PortConcatenation,
}

impl Served {
    fn port(&self, id: u16) -> Port {
        let port = match self.rdma {
            Some(provider) => Port::rdma(id, self.address, provider),
            None => Port::tcp(id, self.address),
        };
        let subsystems =
            if self.discovery_only { PortSubsystems::Only([].into()) } else { PortSubsystems::All };
        let Self { in_capsule_data: in_capsule_len, discovery, requires_tls, concatenation, .. } = *self;
        Port { in_capsule_len, discovery, subsystems, requires_tls, concatenation, ..port }
    }
}

/// The ports of the listeners that listen, each with its number.
#[must_use]
pub fn ports(listeners: &[(u16, Served)]) -> Vec<Port> {
    listeners.iter().map(|(id, served)| served.port(*id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmf_subsystem::TransportType;

    fn served(address: &str) -> Served {
        let address = address.parse().unwrap();
        let rdma = Some(RdmaProviderType::IWARP);
        Served {
            address,
            rdma,
            in_capsule_data: 4096,
            discovery: true,
            discovery_only: false,
            requires_tls: false,
            concatenation: PortConcatenation::No,
        }
    }

    #[test]
    fn port_is_what_its_listener_is() {
        let tcp = Served { rdma: None, in_capsule_data: 16384, ..served("127.0.0.1:4420") };
        let discovery = Served { discovery_only: true, ..served("127.0.0.1:8009") };
        let ports = ports(&[(1, tcp), (2, discovery)]);
        assert_eq!((ports[0].transport, ports[0].in_capsule_len), (TransportType::TCP, 16384));
        assert_eq!(ports[1].subsystems, PortSubsystems::Only([].into()));
    }
}
