//! What an association is to be.

use super::{AssociationError, AuthenticationConfig};
use crate::{Cntlid, HostId, Nqn, limits};
use core::time::Duration;
use nvme_proto::fabrics::discovery::TransportType;

/// What the controller is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Namespaces and I/O queues.
    Io,
    /// Reads the discovery log once; the caller then shuts the association down.
    DiscoveryOnce,
    /// Reads the discovery log, stays, and reads it again whenever the controller says that it changed.
    DiscoveryPersistent,
}

/// What an [`super::Association`] is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssociationConfig {
    /// What carries the commands: [`TransportType::RDMA`], which has private data and keyed descriptors, or
    /// [`TransportType::TCP`], which has neither.
    pub transport: TransportType,
    /// Whom to connect to. For discovery: [`Nqn::DISCOVERY`], or a unique discovery subsystem's.
    pub subsystem_nqn: Nqn,
    /// Who we are.
    pub host_nqn: Nqn,
    /// Who we are, for the controller's reservations; not all zeroes.
    pub host_id: HostId,
    /// A controller by number (static model), or `None` for any.
    pub controller: Option<Cntlid>,
    /// What for.
    pub purpose: Purpose,
    /// I/O queues wanted; the controller may give fewer. Ignored for discovery.
    pub io_queues: u16,
    /// Entries wanted in each I/O queue; the controller may take fewer.
    pub io_queue_entries: u16,
    /// Keep Alive Timeout; zero turns it off, which only one-shot discovery may.
    pub keep_alive: Duration,
    /// Ask for submission queues without flow control (SQHD not reported).
    pub disable_flow_control: bool,
    /// Over RDMA, send the I/O queues' Connect data in the capsule when it fits, as kernel hosts do; otherwise keyed, as
    /// the transport's text has it. Over TCP they are in the capsule always.
    pub connect_in_capsule: bool,
    /// How to authenticate where the controller asks for it (DH-HMAC-CHAP).
    pub authentication: Option<AuthenticationConfig>,
    /// How long a queue's connection set-up may take.
    pub connect_timeout: Duration,
    /// How long a command of the set-up may take, once its queue's connection is there.
    pub setup_command_timeout: Duration,
    /// How long the set-up may take in all; `None`: as long as its steps do.
    pub setup_timeout: Option<Duration>,
    /// How long an admin or Fabrics command may take afterwards.
    pub admin_timeout: Duration,
    /// How long a shutdown may take before the connections are simply closed.
    pub shutdown_timeout: Duration,
}

impl AssociationConfig {
    /// An I/O association with the defaults of kernel hosts: one I/O queue of 128 entries, keep-alive 5 s.
    #[must_use]
    pub fn new(subsystem_nqn: Nqn, host_nqn: Nqn, host_id: HostId) -> Self {
        Self {
            transport: TransportType::RDMA,
            subsystem_nqn,
            host_nqn,
            host_id,
            controller: None,
            purpose: Purpose::Io,
            io_queues: 1,
            io_queue_entries: 128,
            keep_alive: Duration::from_secs(5),
            disable_flow_control: false,
            connect_in_capsule: true,
            authentication: None,
            connect_timeout: Duration::from_secs(3),
            setup_command_timeout: Duration::from_secs(60),
            setup_timeout: None,
            admin_timeout: Duration::from_secs(60),
            shutdown_timeout: Duration::from_secs(5),
        }
    }

    /// A discovery association: one-shot without keep-alive, persistent with 30 s.
    #[must_use]
    pub fn discovery(host_nqn: Nqn, host_id: HostId, persistent: bool) -> Self {
        Self {
            purpose: if persistent { Purpose::DiscoveryPersistent } else { Purpose::DiscoveryOnce },
            keep_alive: if persistent { Duration::from_secs(30) } else { Duration::ZERO },
            io_queues: 0,
            ..Self::new(Nqn::DISCOVERY, host_nqn, host_id)
        }
    }

    /// Fails for I/O queues that no association has. Whoever makes something for each command that they hold asks before.
    ///
    /// # Errors
    /// [`AssociationError::Config`].
    pub fn check_queues(&self) -> Result<(), AssociationError> {
        self.queue_fault().map_or(Ok(()), |fault| Err(AssociationError::Config(fault)))
    }

    /// What is wrong with its I/O queues, if anything.
    fn queue_fault(&self) -> Option<&'static str> {
        let entries = limits::QUEUE_ENTRIES_MIN..=limits::QUEUE_ENTRIES_MAX;
        match self.purpose {
            Purpose::Io if self.io_queues == 0 || self.io_queues > limits::IO_QUEUES_MAX => {
                Some("an I/O association needs 1 to 128 I/O queues")
            }
            Purpose::Io if !entries.contains(&self.io_queue_entries) => {
                Some("an I/O queue needs 2 to 1024 entries")
            }
            _ => None,
        }
    }

    /// What is wrong with it, if anything.
    pub(super) fn fault(&self) -> Option<&'static str> {
        if self.host_id.is_zero() {
            return Some("the host identifier must not be all zeroes");
        }
        if let Some(authentication) = self.authentication.filter(|it| it.concatenate) {
            if authentication.terms.for_concatenation() != Some(authentication.terms) {
                return Some(
                    "secure channel concatenation needs a hash other than SHA-512 and a Diffie-Hellman group",
                );
            }
            if self.transport != TransportType::TCP {
                return Some("secure channel concatenation is for NVMe/TCP: RDMA has no TLS");
            }
            if self.purpose != Purpose::Io {
                return Some("secure channel concatenation is for namespaces, not for discovery");
            }
        }
        if let Some(fault) = self.queue_fault() {
            return Some(fault);
        }
        match self.purpose {
            Purpose::Io | Purpose::DiscoveryPersistent if self.keep_alive.is_zero() => {
                Some("keep-alive is required: give a timeout above zero")
            }
            _ if self.keep_alive.as_millis() > u128::from(u32::MAX) => {
                Some("the keep-alive timeout does not fit 32 bits of milliseconds")
            }
            _ => None,
        }
    }
}
