//! The discovery subsystem, as configured.

use super::{Port, TransportType};
use crate::Nqn;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

/// The discovery subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryDefinition {
    /// Its own NQN, unlike that of any other target (NVMe Base, "Discovery Service": unique discovery NQN). Hosts may
    /// connect by it and by the well-known one. The well-known one itself: it has none of its own.
    pub nqn: Nqn,
    /// Discovery services of other targets: at most [`crate::limits::REFERRALS_MAX`].
    pub referrals: Vec<Referral>,
}

impl Default for DiscoveryDefinition {
    /// Without an NQN of its own.
    fn default() -> Self {
        Self { nqn: Nqn::DISCOVERY, referrals: Vec::new() }
    }
}

/// The discovery service of another target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Referral {
    /// What to connect with: RDMA or TCP.
    pub transport: TransportType,
    /// Where.
    pub address: SocketAddr,
    /// Its NQN; the well-known one will do.
    pub nqn: Nqn,
}

/// Everything that can be found, for every host: immutable, replaced as a whole.
#[derive(Debug, PartialEq, Eq)]
pub struct DiscoveryView {
    /// Counts views.
    pub(crate) version: u64,
    /// The discovery subsystem's own NQN, or the well-known one.
    pub(crate) nqn: Nqn,
    pub(crate) ports: Vec<PortView>,
    pub(crate) referrals: Vec<Referral>,
}

/// What can be found on a port.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PortView {
    pub(crate) port: Arc<Port>,
    pub(crate) subsystems: Vec<(Nqn, Arc<crate::HostAccess>)>,
}
