//! What the discovery log says of the listeners.

use crate::machine;
use nvmf_subsystem::{Port, PortSubsystems, RdmaProviderType};
use std::net::{IpAddr, SocketAddr};

/// What a listener is to hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Where it listens.
    pub address: SocketAddr,
    /// Over NVMe/RDMA, and what kind of it, or over NVMe/TCP.
    pub rdma: Option<RdmaProviderType>,
    /// Bytes of data in the capsule of an I/O queue.
    pub in_capsule_data: u32,
    /// It serves discovery and nothing else.
    pub discovery_only: bool,
    /// Hosts must connect with TLS.
    pub requires_tls: bool,
}

impl Served {
    fn port(&self, id: u16, ip: IpAddr) -> Port {
        let address = SocketAddr::new(ip, self.address.port());
        let port = match self.rdma {
            Some(provider) => Port::rdma(id, address, provider),
            None => Port::tcp(id, address),
        };
        let subsystems =
            if self.discovery_only { PortSubsystems::Only([].into()) } else { PortSubsystems::All };
        let Self { in_capsule_data: in_capsule_len, requires_tls, .. } = *self;
        Port { in_capsule_len, subsystems, requires_tls, ..port }
    }
}

/// The ports of the listeners that listen, by their place in the configuration. A wildcard stands for the addresses
/// of this machine that it covers.
#[must_use]
pub fn ports(listeners: &[Option<Served>]) -> Vec<Port> {
    let (mut ports, mut extra) = (Vec::new(), Vec::new());
    for (at, listener) in listeners.iter().enumerate() {
        let Some(served) = listener else { continue };
        let address = served.address;
        let mut concrete = if address.ip().is_unspecified() {
            machine::addresses_of(address.ip())
        } else {
            vec![address.ip()]
        };
        let first = if concrete.is_empty() { address.ip() } else { concrete.remove(0) };
        ports.push(served.port(port_id(at), first));
        extra.extend(concrete.into_iter().map(|ip| (served, ip)));
    }
    let room = nvmf_subsystem::limits::PORTS_MAX.saturating_sub(ports.len());
    for ((served, ip), at) in extra.into_iter().take(room).zip(listeners.len()..) {
        ports.push(served.port(port_id(at), ip));
    }
    ports
}

/// The number of the port of a listener.
#[must_use]
pub fn port_id(listener: usize) -> u16 {
    u16::try_from(listener + 1).expect("few listeners")
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvmf_subsystem::TransportType;

    fn served(address: &str) -> Served {
        let address = address.parse().unwrap();
        let rdma = Some(RdmaProviderType::IWARP);
        Served { address, rdma, in_capsule_data: 4096, discovery_only: false, requires_tls: false }
    }

    #[test]
    fn port_is_what_its_listener_is() {
        let tcp = Served { rdma: None, in_capsule_data: 16384, ..served("127.0.0.1:4420") };
        let discovery = Served { discovery_only: true, ..served("127.0.0.1:8009") };
        let ports = ports(&[Some(tcp), Some(discovery)]);
        assert_eq!((ports[0].transport, ports[0].in_capsule_len), (TransportType::TCP, 16384));
        assert_eq!(ports[1].subsystems, PortSubsystems::Only([].into()));
    }

    #[test]
    fn wildcard_is_not_advertised() {
        let listeners = ["0.0.0.0:4420", "127.0.0.1:4421"].map(|address| Some(served(address)));
        let ports = ports(&listeners);
        assert!(ports.iter().all(|port| port.address != "0.0.0.0"), "{ports:?}");
        assert_eq!(
            (ports[1].id, ports[1].address.as_str(), ports[1].service.as_str()),
            (2, "127.0.0.1", "4421")
        );
    }

    #[test]
    fn listener_that_is_down_is_not_advertised() {
        let up = Some(served("127.0.0.1:4420"));
        let ports = ports(&[None, up]);
        assert_eq!(ports.iter().map(|port| port.id).collect::<Vec<_>>(), [2]);
    }
}
