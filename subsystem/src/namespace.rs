//! Namespaces: which device is behind which NSID.

use crate::ana::AnaTable;
use crate::{HostAccess, Nqn, Nsid, SubsystemId};
use alloc::sync::Arc;
use alloc::vec::Vec;
use nvmf_block::{DeviceId, Geometry};

/// A namespace, as configured. The identifiers must be the same after a restart and on every path: hosts find the disk
/// again by them.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Who reaches it, and how.
    pub access: NamespaceAccess,
}

/// Who reaches a namespace, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceAccess {
    /// The hosts of the subsystem that it exists for.
    pub hosts: HostAccess,
    /// Its ANA group: 1 to [`crate::limits::ANA_GROUPS_MAX`].
    pub ana_group: u32,
}

impl Default for NamespaceAccess {
    /// All hosts of the subsystem, in group 1.
    fn default() -> Self {
        Self { hosts: HostAccess::Any, ana_group: 1 }
    }
}

impl NamespaceDefinition {
    /// Whether writes are refused: by configuration, or because the device takes none.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only || self.geometry.read_only
    }

    /// Whether a host that sees both finds no difference. Which other hosts see them is none.
    fn is_same_to_its_host(&self, other: &Self) -> bool {
        if self == other {
            return true;
        }
        let hosts = other.access.hosts.clone();
        let ours = Self { access: NamespaceAccess { hosts, ..self.access.clone() }, ..self.clone() };
        ours == *other
    }
}

/// The namespaces of a subsystem: immutable, sorted by NSID, replaced as a whole.
#[derive(Debug)]
pub struct NamespaceTable {
    subsystem: SubsystemId,
    /// Incremented by each replacement: a queue that connected after a change may get the notice of that change later.
    generation: u64,
    namespaces: Vec<Namespace>,
    ana: Arc<AnaTable>,
}

/// A namespace of a table.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub(crate) definition: NamespaceDefinition,
    /// Not everybody may do everything with it: [`crate::access`] knows more.
    pub(crate) is_guarded: bool,
}

impl Namespace {
    fn new(definition: NamespaceDefinition, ana: &AnaTable) -> Self {
        let access = &definition.access;
        let is_guarded = access.hosts != HostAccess::Any || ana.refuses_somewhere(access.ana_group);
        Self { definition, is_guarded }
    }

    /// Whether it exists for this host.
    pub(crate) fn is_seen_by(&self, host: &Nqn) -> bool {
        self.definition.access.hosts.allows(host)
    }
}

impl NamespaceTable {
    /// The first of a subsystem. `namespaces` are sorted here; the registry has checked them.
    pub(crate) fn new(
        subsystem: SubsystemId,
        mut namespaces: Vec<NamespaceDefinition>,
        ana: Arc<AnaTable>,
    ) -> Self {
        namespaces.sort_unstable_by_key(|namespace| namespace.nsid);
        let namespaces = namespaces.into_iter().map(|definition| Namespace::new(definition, &ana)).collect();
        Self { subsystem, generation: 0, namespaces, ana }
    }

    /// The table with these namespaces that replaces this one; `None` if it would be the same.
    pub(crate) fn replaced_by(&self, namespaces: Vec<NamespaceDefinition>) -> Option<Self> {
        let new = self.successor(namespaces, Arc::clone(&self.ana));
        (!new.iter().eq(self.iter())).then_some(new)
    }

    /// Whether the ANA groups have the same members in both.
    pub(crate) fn has_groups_of(&self, other: &Self) -> bool {
        let members =
            |table: &Self| table.iter().map(|it| (it.nsid, it.access.ana_group)).collect::<Vec<_>>();
        members(self) == members(other)
    }

    /// The table with these states of ANA groups that replaces this one.
    pub(crate) fn with_ana(&self, ana: &Arc<AnaTable>) -> Self {
        self.successor(self.iter().cloned().collect(), Arc::clone(ana))
    }

    fn successor(&self, namespaces: Vec<NamespaceDefinition>, ana: Arc<AnaTable>) -> Self {
        Self { generation: self.generation + 1, ..Self::new(self.subsystem, namespaces, ana) }
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

    /// The states of its ANA groups.
    #[must_use]
    pub fn ana(&self) -> &AnaTable {
        &self.ana
    }

    /// The namespace of that NSID, whoever may see it.
    #[must_use]
    pub fn get(&self, nsid: Nsid) -> Option<&NamespaceDefinition> {
        self.entry(nsid).map(|namespace| &namespace.definition)
    }

    /// The namespace of that NSID, if it exists for this host.
    pub(crate) fn get_for(&self, nsid: Nsid, host: &Nqn) -> Option<&NamespaceDefinition> {
        self.entry(nsid).filter(|namespace| namespace.is_seen_by(host)).map(|namespace| &namespace.definition)
    }

    pub(crate) fn entry(&self, nsid: Nsid) -> Option<&Namespace> {
        let of = |namespace: &Namespace| namespace.definition.nsid;
        let index = self.namespaces.binary_search_by_key(&nsid, of).ok()?;
        self.namespaces.get(index)
    }

    /// All, by rising NSID.
    pub fn iter(&self) -> impl Iterator<Item = &NamespaceDefinition> {
        self.namespaces.iter().map(|namespace| &namespace.definition)
    }

    /// Those that exist for a host, by rising NSID.
    pub fn seen_by<'a>(&'a self, host: &'a Nqn) -> impl Iterator<Item = &'a NamespaceDefinition> + 'a {
        self.iter().filter(move |namespace| namespace.access.hosts.allows(host))
    }

    /// The NSIDs that are not the same to a host in `other`: added, removed, resized, made read-only, hidden.
    pub(crate) fn changed_in<'a>(
        &'a self,
        other: &'a Self,
        host: &'a Nqn,
    ) -> impl Iterator<Item = Nsid> + 'a {
        let gone_or_different = self
            .seen_by(host)
            .filter(|old| !other.get_for(old.nsid, host).is_some_and(|new| new.is_same_to_its_host(old)));
        let new = other.seen_by(host).filter(|new| self.get_for(new.nsid, host).is_none());
        gone_or_different.chain(new).map(|namespace| namespace.nsid)
    }
}
