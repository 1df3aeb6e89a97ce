//! Ports of the target, as hosts find them.

use crate::Nqn;
use alloc::collections::BTreeSet;
use alloc::string::{String, ToString};
use core::net::SocketAddr;
pub use nvme_proto::fabrics::discovery::{AddressFamily, RdmaProviderType, TransportType};

/// An address that the target listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// PORTID: the target's own number.
    pub id: u16,
    /// TRTYPE.
    pub transport: TransportType,
    /// ADRFAM.
    pub family: AddressFamily,
    /// TRADDR: the address in text, without a port. What hosts connect to, so not a wildcard.
    pub address: String,
    /// TRSVCID: the port number in decimal, without leading zeroes.
    pub service: String,
    /// PRTYPE, for RDMA.
    pub rdma_provider: RdmaProviderType,
    /// What can be reached here.
    pub subsystems: PortSubsystems,
}

impl Port {
    /// A port for NVMe/RDMA that serves all subsystems, at an address that is not a wildcard.
    #[must_use]
    pub fn rdma(id: u16, address: SocketAddr, rdma_provider: RdmaProviderType) -> Self {
        Self {
            id,
            transport: TransportType::RDMA,
            family: if address.is_ipv4() { AddressFamily::IPV4 } else { AddressFamily::IPV6 },
            address: address.ip().to_string(),
            service: address.port().to_string(),
            rdma_provider,
            subsystems: PortSubsystems::All,
        }
    }
}

/// Which subsystems a port serves. Discovery is served on all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PortSubsystems {
    /// All of them.
    #[default]
    All,
    /// These NQNs.
    Only(BTreeSet<Nqn>),
}

impl PortSubsystems {
    /// Whether the port serves this one.
    #[must_use]
    pub fn contains(&self, nqn: &Nqn) -> bool {
        match self {
            Self::All => true,
            Self::Only(nqns) => nqns.contains(nqn),
        }
    }
}
