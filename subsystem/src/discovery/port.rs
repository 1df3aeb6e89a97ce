//! Ports of the target, as hosts find them.

use alloc::collections::BTreeSet;
use alloc::string::String;

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

/// Which subsystems a port serves. Discovery is served on all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PortSubsystems {
    /// All of them.
    #[default]
    All,
    /// These NQNs.
    Only(BTreeSet<String>),
}

impl PortSubsystems {
    /// Whether the port serves this one.
    #[must_use]
    pub fn contains(&self, nqn: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(nqns) => nqns.contains(nqn),
        }
    }
}

/// TRTYPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum TransportType {
    /// RDMA.
    Rdma = 1,
    /// TCP.
    Tcp = 3,
    /// Within one machine.
    Loop = 254,
}

/// ADRFAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum AddressFamily {
    /// IPv4.
    Ipv4 = 1,
    /// IPv6.
    Ipv6 = 2,
    /// InfiniBand.
    Infiniband = 3,
}

/// PRTYPE of the RDMA transport specific address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum RdmaProviderType {
    /// Not said.
    #[default]
    None = 1,
    /// InfiniBand.
    Infiniband = 2,
    /// RoCE, version 1.
    Roce = 3,
    /// RoCE, version 2.
    RoceV2 = 4,
    /// iWARP.
    Iwarp = 5,
}
