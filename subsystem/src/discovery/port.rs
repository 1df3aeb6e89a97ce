//! Ports of the target, as hosts find them.

use crate::Nqn;
use alloc::collections::BTreeSet;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use core::net::{IpAddr, SocketAddr};
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
    /// TRADDR: the address in text, without a port. A wildcard is shown to each host as the address that the host
    /// came through.
    pub address: String,
    /// TRSVCID: the port number in decimal, without leading zeroes.
    pub service: String,
    /// PRTYPE, for RDMA.
    pub rdma_provider: RdmaProviderType,
    /// Hosts must connect with TLS 1.3 (SECTYPE, and the secure channel of TREQ), for TCP.
    pub requires_tls: bool,
    /// Whether an authentication in the clear may make a key for TLS here (secure channel concatenation).
    pub concatenation: PortConcatenation,
    /// Data in the capsule of an I/O queue, in bytes (a multiple of 16, 0 to [`crate::limits::IN_CAPSULE_LEN_MAX`]).
    pub in_capsule_len: u32,
    /// Discovery is served here.
    pub discovery: bool,
    /// What can be reached here, beside that.
    pub subsystems: PortSubsystems,
}

impl Port {
    /// A port for NVMe/RDMA that serves all subsystems.
    #[must_use]
    pub fn rdma(id: u16, address: SocketAddr, rdma_provider: RdmaProviderType) -> Self {
        Self {
            id,
            transport: TransportType::RDMA,
            family: if address.is_ipv4() { AddressFamily::IPV4 } else { AddressFamily::IPV6 },
            address: address.ip().to_string(),
            service: address.port().to_string(),
            rdma_provider,
            requires_tls: false,
            concatenation: PortConcatenation::No,
            in_capsule_len: 4096,
            discovery: true,
            subsystems: PortSubsystems::All,
        }
    }

    /// The same for NVMe/TCP.
    #[must_use]
    pub fn tcp(id: u16, address: SocketAddr) -> Self {
        Self {
            transport: TransportType::TCP,
            in_capsule_len: 16 * 1024,
            ..Self::rdma(id, address, RdmaProviderType::NO_PROVIDER_SPECIFIED)
        }
    }
}

impl Port {
    /// The port as a host finds it that came through this address of ours; `None` if it can't use it: loopback is
    /// another machine's own, and a wildcard covers addresses of its own family only.
    pub(crate) fn seen_from(self: &Arc<Self>, local: IpAddr) -> Option<Arc<Self>> {
        match self.address.parse::<IpAddr>() {
            Ok(ip) if ip.is_unspecified() => (ip.is_ipv4() == local.is_ipv4())
                .then(|| Arc::new(Self { address: local.to_string(), ..(**self).clone() })),
            Ok(ip) if ip.is_loopback() && !local.is_loopback() => None,
            _ => Some(Arc::clone(self)),
        }
    }
}

/// Whether an authentication in the clear may make a key for TLS, for the connections that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PortConcatenation {
    /// No: there is no TLS, or nothing is taken without it.
    #[default]
    No,
    /// A host may.
    Allowed,
    /// A host must, unless its connection has TLS already; discovery needs neither.
    Required,
}

/// Which subsystems a port serves.
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
