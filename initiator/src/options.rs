//! Whom to connect to, as whom, and how.

use crate::driver::DriverConfig;
use crate::{Error, HostIdentity};
use core::time::Duration;
use nvme_proto::Nqn;
use nvmf_host::{AssociationConfig, RecoveryPolicy};
use nvmf_rdma_any::{AnyProvider, OpenOptions, Preference, ProviderSelection, VerbsOptions};
use std::net::SocketAddr;

/// Whom to connect to, as whom, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the controller listens.
    pub address: SocketAddr,
    /// Over which RDMA: by default the device's that leads to the address, else userspace iWARP.
    pub provider: Preference,
    /// How connections over a device are set up.
    pub verbs: VerbsOptions,
    /// From which of our addresses to connect.
    pub source: Option<SocketAddr>,
    /// The subsystem; for discovery [`Nqn::DISCOVERY`].
    pub nqn: Nqn,
    /// As whom.
    pub host: HostIdentity,
    /// I/O queues: 1 to 128.
    pub io_queues: u16,
    /// Commands in an I/O queue: 2 to 1024.
    pub queue_depth: u16,
    /// Keep Alive Timeout.
    pub keep_alive: Duration,
    /// How long the set-up of one queue's connection may take.
    pub connect_timeout: Duration,
    /// How long an I/O command may take before its connection counts as lost.
    pub io_timeout: Duration,
    /// Pause before the first reconnect.
    pub reconnect_delay: Duration,
    /// How long to try to reconnect before all I/O fails; `None` is for ever, zero not at all.
    pub ctrl_loss_timeout: Option<Duration>,
    /// How long I/O waits for a reconnect before it fails, while reconnecting goes on; `None` waits for its end.
    pub fast_io_fail_timeout: Option<Duration>,
    /// How long the connection's thread, or [`crate::block_on`], polls without result before it sleeps.
    pub spin: Duration,
}

impl Options {
    /// As this machine, whose identity must be there ([`HostIdentity::of_this_machine_or_new`] makes one).
    ///
    /// # Errors
    /// [`Error::Identity`].
    pub fn new(address: SocketAddr, nqn: Nqn) -> Result<Self, Error> {
        Ok(Self::with_host(address, nqn, HostIdentity::of_this_machine()?))
    }

    /// As this host.
    #[must_use]
    pub fn with_host(address: SocketAddr, nqn: Nqn, host: HostIdentity) -> Self {
        Self {
            address,
            provider: Preference::Auto,
            verbs: VerbsOptions::default(),
            source: None,
            nqn,
            host,
            io_queues: 1,
            queue_depth: 128,
            keep_alive: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(3),
            io_timeout: Duration::from_secs(30),
            reconnect_delay: Duration::from_secs(1),
            ctrl_loss_timeout: Some(Duration::from_secs(60)),
            fast_io_fail_timeout: None,
            spin: Duration::from_micros(50),
        }
    }

    /// Which provider leads to the controller.
    pub(crate) fn selection(&self) -> Result<ProviderSelection, Error> {
        let source = self.source.map(|source| source.ip());
        Ok(ProviderSelection::towards(self.address, source, self.provider, self.verbs)?)
    }

    /// Opens that provider.
    pub(crate) fn open_provider(&self) -> Result<AnyProvider, Error> {
        Ok(self.selection()?.open(OpenOptions { keys: Some(self.keys()), ..OpenOptions::default() })?)
    }

    /// Opens providers. Each is selected anew: a device that comes back may be another.
    pub(crate) fn provider_factory(&self) -> impl FnMut() -> Result<AnyProvider, String> + Send + 'static {
        let options = self.clone();
        move || {
            options.open_provider().map_err(|error| match error {
                Error::System { reason, .. } => reason,
                error => error.to_string(),
            })
        }
    }

    /// Keys of commands that may be alive at once.
    pub(crate) fn keys(&self) -> usize {
        usize::from(self.io_queues) * usize::from(self.queue_depth) + 4096
    }

    /// The configuration of the driver.
    #[must_use]
    pub fn driver_config(&self) -> DriverConfig {
        let HostIdentity { nqn, id } = self.host;
        let association = if self.nqn == Nqn::DISCOVERY {
            AssociationConfig::discovery(nqn, id, false)
        } else {
            AssociationConfig::new(self.nqn, nqn, id)
        };
        let keep_alive = if self.nqn == Nqn::DISCOVERY { Duration::ZERO } else { self.keep_alive };
        let loss = self.ctrl_loss_timeout;
        DriverConfig {
            address: self.address,
            source: self.source,
            association: AssociationConfig {
                io_queues: if self.nqn == Nqn::DISCOVERY { 0 } else { self.io_queues },
                io_queue_entries: self.queue_depth,
                keep_alive,
                connect_timeout: self.connect_timeout,
                ..association
            },
            recovery: RecoveryPolicy {
                reconnect_delay: self.reconnect_delay,
                ctrl_loss_timeout: loss,
                fast_io_fail_timeout: self.fast_io_fail_timeout,
                ..RecoveryPolicy::default()
            },
            io_timeout: self.io_timeout,
            operations: u32::from(self.io_queues.max(1)) * u32::from(self.queue_depth) + 1024,
            seed: id
                .0
                .iter()
                .fold(u64::from(std::process::id()), |seed, &byte| seed.rotate_left(7) ^ u64::from(byte)),
        }
    }
}
