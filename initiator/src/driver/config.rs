//! What a driver is made with, and why it may not start.

use super::policy::{PATHS_MAX, PathPolicy};
use crate::address::{AddressSource, is_unknown};
use crate::options::SecretsSource;
use crate::transport::{Transport, TransportError};
use core::time::Duration;
use nvmf_auth::host::Secrets;
use nvmf_host::{AssociationConfig, AssociationError, RecoveryPolicy};
use std::net::SocketAddr;

/// What a driver is to do.
#[derive(Debug, Clone)]
pub struct DriverConfig {
    /// Where the controller listens.
    pub address: SocketAddr,
    /// Where the address is read again before each reconnect.
    pub address_source: Option<AddressSource>,
    /// From which of our addresses to connect.
    pub source: Option<SocketAddr>,
    /// Whom to connect to, as whom, with what queues.
    pub association: AssociationConfig,
    /// Of the I/O queues, those for everything but reads; 0: all are alike.
    pub write_queues: u16,
    /// What to prove and to ask for where the controller wants authentication.
    pub secrets: Option<Secrets>,
    /// Where they are read again before each reconnect.
    pub secrets_source: Option<SecretsSource>,
    /// When to reconnect and when to give up.
    pub recovery: RecoveryPolicy,
    /// I/O waits for its disk while another one is in its place after a reconnect, as for a lost connection.
    pub wait_for_disk: bool,
    /// How long an I/O command may take before its connection is given up.
    pub io_timeout: Duration,
    /// Which path an operation goes to, where there are several.
    pub policy: PathPolicy,
    /// Operations at once, waiting or in flight.
    pub operations: u32,
    /// For the jitter of reconnects: anything that differs between hosts.
    pub seed: u64,
}

/// What another path has of its own.
#[derive(Debug, Clone)]
pub struct Route {
    /// Where the controller listens.
    pub address: SocketAddr,
    /// Where the address is read again before each reconnect; `None`: it stays the same.
    pub address_source: Option<AddressSource>,
    /// From which of our addresses to connect.
    pub source: Option<SocketAddr>,
    /// How long the set-up of one queue's connection may take.
    pub connect_timeout: Duration,
}

impl DriverConfig {
    /// Whether nobody has said yet where the controller listens.
    pub(super) fn is_address_unknown(&self) -> bool {
        is_unknown(self.address, self.address_source.as_ref())
    }

    /// Makes what the queues share.
    pub(super) fn prepare(&self, transport: &mut impl Transport) -> Result<(), TransportError> {
        transport.prepare(self.association.io_queues, self.association.io_queue_entries)
    }
}

/// A driver could not start.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot be.
    #[error(transparent)]
    Association(#[from] AssociationError),
    /// The transport lacks a resource.
    #[error("the transport refused: {0}")]
    Transport(#[from] TransportError),
    /// There are as many paths as there may be.
    #[error("one connection has at most {PATHS_MAX} paths")]
    TooManyPaths,
    /// The system has no descriptor left to sleep on.
    #[error("no descriptor is left to watch the path with: allow this process more open files")]
    NoDescriptor,
}
