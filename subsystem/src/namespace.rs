//! Namespaces: which device is behind which NSID.

use crate::ana::{self, AnaTable};
use crate::{HostAccess, Nqn, Nsid, Reservation, SubsystemId, WriteProtection};
use alloc::sync::Arc;
use alloc::vec::Vec;
use nvme_proto::Status;
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
    /// There is a place where its reservation can be kept over a loss of power.
    pub reservation_persists: bool,
    /// The write protection that it begins with. What hosts set afterwards stays with the disk.
    pub write_protection: WriteProtection,
    /// Its disk can be reached from here. If not, hosts are sent to another path, whatever the state of its ANA group is.
    pub is_accessible: bool,
}

impl Default for NamespaceAccess {
    /// All hosts of the subsystem, in group 1, no reservation that persists, no write protection, accessible.
    fn default() -> Self {
        Self {
            hosts: HostAccess::Any,
            ana_group: 1,
            reservation_persists: false,
            write_protection: WriteProtection::Off,
            is_accessible: true,
        }
    }
}

impl NamespaceDefinition {
    /// The status of commands for it behind a port, if it is inaccessible there.
    pub(crate) fn refusal(&self, ana: &AnaTable, port: u16) -> Option<Status> {
        let of_group = ana::refusal(ana.state(port, self.access.ana_group));
        of_group.or((!self.access.is_accessible).then_some(Status::ANA_INACCESSIBLE))
    }

    /// Whether writes are refused: by configuration, because the device takes none, or because a host said so.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.is_always_read_only() || self.access.write_protection != WriteProtection::Off
    }

    /// Whether writes are refused, whatever hosts say.
    pub(crate) fn is_always_read_only(&self) -> bool {
        self.read_only || self.geometry.read_only
    }

    /// Whether a host that sees both finds no difference. Which other hosts see them is none.
    fn is_same_to_its_host(&self, other: &Self) -> bool {
        if self == other {
            return true;
        }
        let (hosts, is_accessible) = (other.access.hosts.clone(), other.access.is_accessible);
        let access = NamespaceAccess { hosts, is_accessible, ..self.access.clone() };
        let ours = Self { access, ..self.clone() };
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
    /// Those that were removed, where their disk has more than the configuration says: it has it again when it is back.
    removed: Vec<Removed>,
    ana: Arc<AnaTable>,
}

/// What hosts made of a disk that is not there now.
#[derive(Debug, Clone)]
struct Removed {
    uuid: [u8; 16],
    reservation: Arc<Reservation>,
    write_protection: WriteProtection,
}

/// A namespace of a table.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub(crate) definition: NamespaceDefinition,
    pub(crate) reservation: Arc<Reservation>,
    /// Not everybody may do everything with it: [`crate::access`] knows more.
    pub(crate) is_guarded: bool,
}

impl Namespace {
    fn new(definition: NamespaceDefinition, reservation: Arc<Reservation>, ana: &AnaTable) -> Self {
        let access = &definition.access;
        let is_guarded = access.hosts != HostAccess::Any
            || ana.refuses_somewhere(access.ana_group)
            || !access.is_accessible
            || reservation.held().is_some();
        Self { definition, reservation, is_guarded }
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
        let of = |definition| Namespace::new(definition, Arc::default(), &ana);
        let namespaces = namespaces.into_iter().map(of).collect();
        Self { subsystem, generation: 0, namespaces, removed: Vec::new(), ana }
    }

    /// The table with these namespaces that replaces this one; `None` if it would be the same.
    pub(crate) fn replaced_by(&self, namespaces: Vec<NamespaceDefinition>) -> Option<Self> {
        let new = self.successor(namespaces, Arc::clone(&self.ana));
        (!new.iter().eq(self.iter())).then_some(new)
    }

    /// The table with these states of ANA groups that replaces this one.
    pub(crate) fn with_ana(&self, ana: &Arc<AnaTable>) -> Self {
        self.successor(self.iter().cloned().collect(), Arc::clone(ana))
    }

    /// The table in which a namespace has another reservation; `None` if there is no such namespace.
    pub(crate) fn with_reservation(&self, nsid: Nsid, uuid: [u8; 16], new: Reservation) -> Option<Self> {
        let mut table = self.successor(self.iter().cloned().collect(), Arc::clone(&self.ana));
        let of = |namespace: &&mut Namespace| {
            namespace.definition.nsid == nsid && namespace.definition.uuid == uuid
        };
        let namespace = table.namespaces.iter_mut().find(of)?;
        *namespace = Namespace::new(namespace.definition.clone(), Arc::new(new), &self.ana);
        Some(table)
    }

    /// The table in which a namespace has another write protection; `None` if there is no such namespace.
    pub(crate) fn with_write_protection(
        &self,
        nsid: Nsid,
        uuid: [u8; 16],
        to: WriteProtection,
    ) -> Option<Self> {
        let mut table = self.successor(self.iter().cloned().collect(), Arc::clone(&self.ana));
        let of = |it: &&mut Namespace| it.definition.nsid == nsid && it.definition.uuid == uuid;
        table.namespaces.iter_mut().find(of)?.definition.access.write_protection = to;
        Some(table)
    }

    /// A reservation and a write protection belong to the disk, and stay with it.
    fn successor(&self, namespaces: Vec<NamespaceDefinition>, ana: Arc<AnaTable>) -> Self {
        let mut new = Self::new(self.subsystem, namespaces, ana);
        new.generation = self.generation + 1;
        new.removed.clone_from(&self.removed);
        for old in &self.namespaces {
            let Namespace { definition: NamespaceDefinition { nsid, uuid, access, .. }, reservation, .. } =
                old;
            let write_protection = access.write_protection;
            let is_kept = new.entry(*nsid).is_some_and(|it| it.definition.uuid == *uuid);
            if !is_kept
                && (**reservation != Reservation::default() || write_protection != WriteProtection::Off)
            {
                let reservation = Arc::clone(reservation);
                new.removed.push(Removed { uuid: *uuid, reservation, write_protection });
            }
        }
        for namespace in &mut new.namespaces {
            let mut definition = namespace.definition.clone();
            let uuid = definition.uuid;
            let reservation =
                if let Some(old) = self.entry(definition.nsid).filter(|old| old.definition.uuid == uuid) {
                    definition.access.write_protection = old.definition.access.write_protection;
                    Arc::clone(&old.reservation)
                } else if let Some(index) = new.removed.iter().position(|it| it.uuid == uuid) {
                    let old = new.removed.swap_remove(index);
                    // One that was stored comes with the definition.
                    if definition.access.write_protection == WriteProtection::Off {
                        definition.access.write_protection = old.write_protection;
                    }
                    old.reservation
                } else {
                    continue;
                };
            *namespace = Namespace::new(definition, reservation, &new.ana);
        }
        new
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

    /// The reservation of the namespace of that NSID.
    #[must_use]
    pub fn reservation(&self, nsid: Nsid) -> Option<&Arc<Reservation>> {
        self.entry(nsid).map(|namespace| &namespace.reservation)
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
