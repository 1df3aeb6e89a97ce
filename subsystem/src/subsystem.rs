//! NVM subsystems, as configured.

use crate::limits::NSID_MAX;
use crate::{NamespaceDefinition, Nqn, Nsid};
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;

/// An NVM subsystem. Name, serial number and model are what hosts group paths by: the same after a restart and on
/// every port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubsystemDefinition {
    /// Its NQN.
    pub nqn: Nqn,
    /// Serial number: 1 to 20 characters of printable ASCII.
    pub serial: String,
    /// Model number: 1 to 40 characters of printable ASCII.
    pub model: String,
    /// Who may connect.
    pub hosts: HostAccess,
    /// What it holds.
    pub namespaces: Vec<NamespaceDefinition>,
}

/// A change of a subsystem that is served. What is `None` stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubsystemChange {
    /// Who may connect from now on.
    pub hosts: Option<HostAccess>,
    /// What it holds from now on.
    pub namespaces: Option<Vec<NamespaceDefinition>>,
}

/// What Identify says of a subsystem, on every controller the same.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) nqn: Nqn,
    pub(crate) serial: String,
    pub(crate) model: String,
}

/// Who may connect to a subsystem, and sees it in the discovery log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostAccess {
    /// Everyone.
    Any,
    /// These host NQNs.
    Only(BTreeSet<Nqn>),
}

impl HostAccess {
    /// Whether this host may.
    #[must_use]
    pub fn allows(&self, host_nqn: &Nqn) -> bool {
        match self {
            Self::Any => true,
            Self::Only(hosts) => hosts.contains(host_nqn),
        }
    }
}

impl Default for HostAccess {
    /// Nobody.
    fn default() -> Self {
        Self::Only(BTreeSet::new())
    }
}

/// A definition that the registry does not take. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionError {
    /// The name is there already, or is that of discovery.
    #[error("subsystem {0} exists already")]
    Duplicate(Nqn),
    /// There is no such subsystem.
    #[error("there is no subsystem {0}")]
    Unknown(Nqn),
    /// Serial or model number.
    #[error("the {what} of {nqn} must have 1 to {max} characters of printable ASCII")]
    Text {
        /// Serial number or model number.
        what: &'static str,
        /// Of which subsystem.
        nqn: Nqn,
        /// The longest that fits.
        max: usize,
    },
    /// An NSID outside 1 to [`crate::limits::NSID_MAX`], or one that is there twice.
    #[error("NSID {nsid} of {nqn} is not from 1 to {NSID_MAX}, or there twice")]
    Nsid {
        /// The NSID.
        nsid: Nsid,
        /// Of which subsystem.
        nqn: Nqn,
    },
    /// No UUID, or an identifier that two namespaces share.
    #[error("namespace {nsid} of {nqn} needs a UUID of its own: hosts identify disks by it")]
    Identifier {
        /// The NSID.
        nsid: Nsid,
        /// Of which subsystem.
        nqn: Nqn,
    },
    /// An ANA group outside 1 to [`crate::limits::ANA_GROUPS_MAX`].
    #[error("there is no ANA group {0}: they are numbered from 1 to 127")]
    AnaGroup(u32),
    /// A state that the standard does not have.
    #[error("{0:#x} is no ANA state")]
    AnaState(u8),
    /// A port with an ID that is there twice, or an address that does not fit the discovery log.
    #[error("port {id}: {reason}")]
    Port {
        /// The port.
        id: u16,
        /// What is wrong.
        reason: &'static str,
    },
    /// More than a bound of [`crate::limits`].
    #[error("there are {count} {what}: at most {max} are taken")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// The bound.
        max: usize,
    },
}
