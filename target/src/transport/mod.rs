//! What carries commands.

pub mod rdma;
mod strangers;
pub mod tcp;

/// A connection on its way from one worker of the daemon to another, over whatever transport. Workers of one group, which
/// are those that hand connections to each other, have the same.
pub enum Detached {
    /// NVMe/RDMA.
    Rdma(Box<rdma::Detached<nvmf_rdma_any::Detached>>),
    /// NVMe/TCP.
    Tcp(tcp::Detached),
}

impl From<rdma::Detached<nvmf_rdma_any::Detached>> for Detached {
    fn from(detached: rdma::Detached<nvmf_rdma_any::Detached>) -> Self {
        Self::Rdma(Box::new(detached))
    }
}

impl From<tcp::Detached> for Detached {
    fn from(detached: tcp::Detached) -> Self {
        Self::Tcp(detached)
    }
}

impl TryFrom<Detached> for rdma::Detached<nvmf_rdma_any::Detached> {
    type Error = Detached;

    fn try_from(detached: Detached) -> Result<Self, Detached> {
        match detached {
            Detached::Rdma(detached) => Ok(*detached),
            other => Err(other),
        }
    }
}

impl TryFrom<Detached> for tcp::Detached {
    type Error = Detached;

    fn try_from(detached: Detached) -> Result<Self, Detached> {
        match detached {
            Detached::Tcp(detached) => Ok(detached),
            other => Err(other),
        }
    }
}
