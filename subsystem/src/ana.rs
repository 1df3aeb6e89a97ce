//! Asymmetric namespace access: in which state the namespaces of a group are behind a port.

use crate::limits::ANA_GROUPS_MAX;
use crate::{NamespaceDefinition, NamespaceTable, Nqn, Nsid, Page};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use nvme_proto::Status;
use nvme_proto::admin::ana::AnaWriter;
use nvme_proto::admin::log_page::{AnaGroup, AnaHeader};

pub use nvme_proto::admin::log_page::AnaState;

/// The states of all groups behind all ports: immutable, replaced as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnaTable {
    /// That of groups that were never set.
    unset: AnaState,
    /// By port and group.
    groups: BTreeMap<(u16, u32), AnaState>,
}

/// How often what a controller's host reads in the log page has changed, since the controller was reset.
#[derive(Debug, Default)]
pub(crate) struct AnaChanges {
    /// CHGCNT of the log page.
    all: u64,
    /// CHGCNT of the groups that have changed.
    groups: BTreeMap<u32, u64>,
}

impl Default for AnaTable {
    fn default() -> Self {
        Self::new(AnaState::OPTIMIZED)
    }
}

impl AnaTable {
    /// A table in which no group was set.
    pub(crate) fn new(unset: AnaState) -> Self {
        Self { unset, groups: BTreeMap::new() }
    }

    /// The state of a group behind a port.
    #[must_use]
    pub fn state(&self, port: u16, group: u32) -> AnaState {
        self.groups.get(&(port, group)).copied().unwrap_or(self.unset)
    }

    /// Every group that was set, with its port and its state.
    pub fn iter(&self) -> impl Iterator<Item = (u16, u32, AnaState)> {
        self.groups.iter().map(|(&(port, group), &state)| (port, group, state))
    }

    /// The table with another state of a group; `None` if that is its state already.
    pub(crate) fn with(&self, port: u16, group: u32, state: AnaState) -> Option<Self> {
        if self.state(port, group) == state {
            return None;
        }
        let mut new = self.clone();
        new.groups.insert((port, group), state);
        Some(new)
    }

    /// Whether a group is neither optimized nor non-optimized behind some port.
    pub(crate) fn refuses_somewhere(&self, group: u32) -> bool {
        refusal(self.unset).is_some()
            || self.groups.iter().any(|(&(_, id), &state)| id == group && refusal(state).is_some())
    }
}

impl AnaChanges {
    /// Counts a change of the namespaces or of their states, as far as the host sees it behind that port.
    pub(crate) fn count(&mut self, old: &NamespaceTable, new: &NamespaceTable, host: &Nqn, port: u16) {
        let seen = |table| {
            groups(table, host).into_iter().map(move |(id, nsids)| (id, (table.ana().state(port, id), nsids)))
        };
        let (old, new): (BTreeMap<_, _>, BTreeMap<_, _>) = (seen(old).collect(), seen(new).collect());
        let ids: BTreeSet<u32> = old.keys().chain(new.keys()).copied().collect();
        let mut any = false;
        for id in ids.into_iter().filter(|id| old.get(id) != new.get(id)) {
            let count = self.groups.entry(id).or_default();
            *count = count.wrapping_add(1);
            any = true;
        }
        self.all = self.all.wrapping_add(any.into());
    }
}

/// Whether this is a state that a group can be given.
#[must_use]
pub fn is_state(state: AnaState) -> bool {
    matches!(
        state,
        AnaState::OPTIMIZED
            | AnaState::NON_OPTIMIZED
            | AnaState::INACCESSIBLE
            | AnaState::PERSISTENT_LOSS
            | AnaState::CHANGE
    )
}

/// The status of commands for namespaces in this state, if they are refused. Never with "do not retry": a host tries
/// another path only without it.
pub(crate) fn refusal(state: AnaState) -> Option<Status> {
    match state {
        AnaState::OPTIMIZED | AnaState::NON_OPTIMIZED => None,
        AnaState::INACCESSIBLE => Some(Status::ANA_INACCESSIBLE),
        AnaState::PERSISTENT_LOSS => Some(Status::ANA_PERSISTENT_LOSS),
        _ => Some(Status::ANA_TRANSITION),
    }
}

/// Whether a namespace that a host sees in both tables is in another group, or in another state, behind the port. (For
/// those that came or went there is another event.)
pub(crate) fn has_changed(old: &NamespaceTable, new: &NamespaceTable, host: &Nqn, port: u16) -> bool {
    let place = |table: &NamespaceTable, namespace: &NamespaceDefinition| {
        let group = namespace.access.ana_group;
        (group, table.ana().state(port, group))
    };
    new.seen_by(host)
        .any(|now| old.get_for(now.nsid, host).is_some_and(|before| place(old, before) != place(new, now)))
}

/// The groups that have a namespace which the host sees. By rising number, and their namespaces by rising NSID: hosts go
/// through them in that order.
fn groups(table: &NamespaceTable, host: &Nqn) -> BTreeMap<u32, Vec<Nsid>> {
    let mut groups: BTreeMap<u32, Vec<Nsid>> = BTreeMap::new();
    for namespace in table.seen_by(host) {
        groups.entry(namespace.access.ana_group).or_default().push(namespace.nsid);
    }
    groups
}

/// The log page of a controller, and its length.
pub(crate) fn log_page(
    table: &NamespaceTable,
    changes: &AnaChanges,
    host: &Nqn,
    port: u16,
    groups_only: bool,
) -> (Page, u64) {
    let mut groups = groups(table, host);
    if groups_only {
        groups.values_mut().for_each(Vec::clear);
    }
    let of = |nsids: &Vec<Nsid>| size_of::<AnaGroup>() + size_of::<Nsid>() * nsids.len();
    let len = size_of::<AnaHeader>() + groups.values().map(of).sum::<usize>();
    let page = Page::sized(len, |out| {
        let written = AnaWriter::new(out, changes.all).and_then(|mut writer| {
            groups.iter().try_for_each(|(&id, nsids)| {
                let count = changes.groups.get(&id).copied().unwrap_or(0);
                writer.push(id, count, table.ana().state(port, id), nsids.iter().copied())
            })
        });
        written.expect("the page has room for the groups that it was measured for");
    });
    (page, len as u64)
}

/// Whether a group may have this number.
pub(crate) fn is_group(id: u32) -> bool {
    (1..=ANA_GROUPS_MAX).contains(&id)
}
