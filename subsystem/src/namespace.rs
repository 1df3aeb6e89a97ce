//! Namespaces: which device is behind which NSID.

use crate::{Nsid, SubsystemId};
use alloc::vec::Vec;
use nvmf_block::{DeviceId, Geometry};

/// A namespace, as configured. The identifiers must be the same after a restart and on every path: hosts find the disk
/// again by them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamespaceDefinition {
    /// 1 to [`crate::limits::NSID_MAX`].
    pub nsid: Nsid,
    /// Where its blocks are.
    pub device: DeviceId,
    /// What that device is now.
    pub geometry: Geometry,
    /// RFC 9562, in its textual order. Not nil.
    pub uuid: [u8; 16],
    /// Namespace Globally Unique Identifier, or zeroes.
    pub nguid: [u8; 16],
    /// IEEE Extended Unique Identifier, or zeroes.
    pub eui64: [u8; 8],
    /// Writes are refused, whatever the device can do.
    pub read_only: bool,
}

impl NamespaceDefinition {
    /// Whether writes are refused: by configuration, or because the device takes none.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only || self.geometry.read_only
    }
}

/// The namespaces of a subsystem: immutable, sorted by NSID, replaced as a whole.
#[derive(Debug)]
pub struct NamespaceTable {
    subsystem: SubsystemId,
    /// Incremented by each replacement: a queue that connected after a change may get the notice of that change later.
    generation: u64,
    namespaces: Vec<NamespaceDefinition>,
}

impl NamespaceTable {
    /// The first of a subsystem. `namespaces` are sorted here; the registry has checked them.
    pub(crate) fn new(subsystem: SubsystemId, mut namespaces: Vec<NamespaceDefinition>) -> Self {
        namespaces.sort_unstable_by_key(|namespace| namespace.nsid);
        Self { subsystem, generation: 0, namespaces }
    }

    /// The table that replaces this one; `None` if it would be the same.
    pub(crate) fn replaced_by(&self, namespaces: Vec<NamespaceDefinition>) -> Option<Self> {
        let generation = self.generation + 1;
        let new = Self { generation, ..Self::new(self.subsystem, namespaces) };
        (new.namespaces != self.namespaces).then_some(new)
    }

    /// Whether this is to replace `other`: of the same subsystem, and newer.
    pub(crate) fn replaces(&self, other: &Self) -> bool {
        self.subsystem == other.subsystem && self.generation > other.generation
    }

    /// The subsystem.
    #[must_use]
    pub fn subsystem(&self) -> SubsystemId {
        self.subsystem
    }

    /// The namespace of that NSID.
    #[must_use]
    pub fn get(&self, nsid: Nsid) -> Option<&NamespaceDefinition> {
        let index = self.namespaces.binary_search_by_key(&nsid, |namespace| namespace.nsid).ok()?;
        self.namespaces.get(index)
    }

    /// All, by rising NSID.
    pub fn iter(&self) -> impl Iterator<Item = &NamespaceDefinition> {
        self.namespaces.iter()
    }

    /// The NSIDs that are not the same in `other`: added, removed, resized, made read-only.
    pub(crate) fn changed_in<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = Nsid> + 'a {
        let gone_or_different = self.iter().filter(|old| other.get(old.nsid) != Some(old));
        let new = other.iter().filter(|new| self.get(new.nsid).is_none());
        gone_or_different.chain(new).map(|namespace| namespace.nsid)
    }
}
