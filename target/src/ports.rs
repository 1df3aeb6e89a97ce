//! What the discovery log says of the listeners.

use crate::machine;
use nvmf_subsystem::{Port, RdmaProviderType};
use std::net::SocketAddr;

/// The ports of the listeners that listen, by their place in the configuration. A wildcard stands for the addresses
/// of this machine that it covers.
#[must_use]
pub fn ports(listeners: &[Option<(SocketAddr, RdmaProviderType)>]) -> Vec<Port> {
    let (mut ports, mut extra) = (Vec::new(), Vec::new());
    for (at, listener) in listeners.iter().enumerate() {
        let &Some((address, provider)) = listener else { continue };
        let mut concrete = if address.ip().is_unspecified() {
            machine::addresses_of(address.ip())
        } else {
            vec![address.ip()]
        };
        let first = if concrete.is_empty() { address.ip() } else { concrete.remove(0) };
        ports.push(Port::rdma(port_id(at), SocketAddr::new(first, address.port()), provider));
        extra.extend(concrete.into_iter().map(|ip| (SocketAddr::new(ip, address.port()), provider)));
    }
    let room = nvmf_subsystem::limits::PORTS_MAX.saturating_sub(ports.len());
    for ((address, provider), at) in extra.into_iter().take(room).zip(listeners.len()..) {
        ports.push(Port::rdma(port_id(at), address, provider));
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

    #[test]
    fn wildcard_is_not_advertised() {
        let listeners = ["0.0.0.0:4420", "127.0.0.1:4421"]
            .map(|address| Some((address.parse().unwrap(), RdmaProviderType::IWARP)));
        let ports = ports(&listeners);
        assert!(ports.iter().all(|port| port.address != "0.0.0.0"), "{ports:?}");
        assert_eq!(
            (ports[1].id, ports[1].address.as_str(), ports[1].service.as_str()),
            (2, "127.0.0.1", "4421")
        );
    }

    #[test]
    fn listener_that_is_down_is_not_advertised() {
        let up = Some(("127.0.0.1:4420".parse().unwrap(), RdmaProviderType::IWARP));
        let ports = ports(&[None, up]);
        assert_eq!(ports.iter().map(|port| port.id).collect::<Vec<_>>(), [2]);
    }
}
