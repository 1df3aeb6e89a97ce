//! What a driver is made with, and why it may not start.

use crate::transport::QueuePair;
use core::time::Duration;
use nvmf_host::{AssociationConfig, AssociationError, RecoveryPolicy};
use nvmf_rdma::ResourceError;
use std::net::SocketAddr;

/// What a driver is to do.
#[derive(Debug, Clone)]
pub struct DriverConfig {
    /// Where the controller listens.
    pub address: SocketAddr,
    /// From which of our addresses to connect.
    pub source: Option<SocketAddr>,
    /// Whom to connect to, as whom, with what queues.
    pub association: AssociationConfig,
    /// When to reconnect and when to give up.
    pub recovery: RecoveryPolicy,
    /// How long an I/O command may take before its connection is given up.
    pub io_timeout: Duration,
    /// Operations at once, waiting or in flight.
    pub operations: u32,
    /// For the jitter of reconnects: anything that differs between hosts.
    pub seed: u64,
}

impl DriverConfig {
    /// Completions that can be outstanding.
    pub(super) fn completions_max(&self) -> u32 {
        let admin = QueuePair::completions_max(nvmf_host::limits::ADMIN_QUEUE_ENTRIES);
        let io = QueuePair::completions_max(self.association.io_queue_entries.saturating_add(1));
        admin + io * u32::from(self.association.io_queues)
    }
}

/// A driver could not start.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot be.
    #[error(transparent)]
    Association(#[from] AssociationError),
    /// The provider refused.
    #[error("the RDMA provider refused: {0}")]
    Provider(String),
}

impl From<ResourceError> for StartError {
    fn from(error: ResourceError) -> Self {
        Self::Provider(error.to_string())
    }
}
