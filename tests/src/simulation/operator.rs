//! An operator, who takes the namespace away from hosts and gives it back: by ANA state, by masking, by removal, by size, for writes.

use super::network::Network;
use super::plane::{Kept, Owners, Plane, TargetWorker, check_pending};
use super::reservation::Host;
use crate::rng::Rng;
use crate::worker_setup::{PORT, WorkerSetup};
use core::time::Duration;
use nvme_proto::{Nqn, Nsid};
use nvmf_block::DeviceId;
use nvmf_subsystem::{AnaState, HostAccess, HostId, NamespaceDefinition};
use nvmf_target::barrier::{Barrier, Scope};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How long the operator waits for a barrier, as the daemon does.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What is taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// The ANA group becomes inaccessible.
    Inaccessible,
    /// The namespace does not exist for one host any more.
    Hidden(Host),
    /// The namespace is removed.
    Removed,
    /// It has fewer blocks.
    Shorter(u64),
    /// Nobody may write.
    ReadOnly,
}

impl Change {
    /// What is counted.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Inaccessible => "ANA inaccessible",
            Self::Hidden(_) => "namespace hidden from a host",
            Self::Removed => "namespace removed",
            Self::Shorter(_) => "namespace shrunk",
            Self::ReadOnly => "namespace read-only",
        }
    }

    /// One of those that may be.
    pub(super) fn random(rng: &mut Rng, hosts: &[Host], blocks: u64) -> Self {
        match rng.below(6) {
            0 | 1 => Self::Inaccessible,
            2 => Self::Hidden(hosts[rng.below(hosts.len() as u64) as usize]),
            3 => Self::Removed,
            4 => Self::ReadOnly,
            _ => Self::Shorter(1 + rng.below(blocks - 1)),
        }
    }
}

/// A change that is there at present.
pub(super) struct Taken {
    change: Change,
    since: Duration,
    /// Its number.
    number: usize,
    barrier: Arc<Barrier>,
    /// When the operator waits no longer.
    timeout: Duration,
    is_done: bool,
    /// When it is undone.
    pub(super) until: Duration,
}

fn edit<N: Network>(plane: &Plane<N>, edit: impl FnOnce(&mut Vec<NamespaceDefinition>)) {
    let mut registry = plane.registry.lock().expect("no panic before");
    let nqn = WorkerSetup::subsystem();
    let mut all: Vec<_> =
        registry.namespaces(&nqn).into_iter().flat_map(|table| table.iter().cloned()).collect();
    edit(&mut all);
    registry.set_namespaces(&nqn, all).expect("valid namespaces");
}

fn set_ana<N: Network>(plane: &Plane<N>, state: AnaState) {
    let mut registry = plane.registry.lock().expect("no panic before");
    registry.set_ana_state(PORT, 1, state).expect("a valid state");
}

/// Takes something away.
pub(super) fn take<N: Network>(
    plane: &Plane<N>,
    kept: &mut Kept,
    now: Duration,
    change: Change,
    hosts: &[Host],
    until: Duration,
) -> Taken {
    let mut scope = Scope::devices([DeviceId(0)]);
    match change {
        Change::Inaccessible => set_ana(plane, AnaState::CHANGE),
        Change::Hidden(hidden) => {
            let nqn = |host: &Host| Nqn::from_uuid(*host);
            let others: BTreeSet<_> = hosts.iter().filter(|&&host| host != hidden).map(nqn).collect();
            edit(plane, |all| all[0].access.hosts = HostAccess::Only(others));
            scope.hosts = Some([HostId(hidden)].into());
        }
        Change::Removed => edit(plane, |all| drop(all.remove(0))),
        Change::ReadOnly => edit(plane, |all| all[0].read_only = true),
        Change::Shorter(blocks) => edit(plane, |all| all[0].geometry.blocks = blocks),
    }
    plane.publish();
    let number = kept.rights.change(|situation| match change {
        Change::Inaccessible => situation.reachable = false,
        Change::Hidden(host) => situation.hidden_from = Some(host),
        // One that comes back has its reservation.
        Change::Removed => situation.served = false,
        Change::Shorter(blocks) => situation.blocks = blocks,
        Change::ReadOnly => situation.read_only = true,
    });
    let barrier = plane.barrier(scope);
    Taken { change, since: now, number, barrier, timeout: now + TIMEOUT, is_done: false, until }
}

impl Taken {
    /// Looks at its barrier: what it waits for must be over then.
    pub(super) fn turn<N: Network>(
        &mut self,
        now: Duration,
        (plane, workers): (&Plane<N>, &mut [TargetWorker<N>]),
        kept: &mut Kept,
        owners: Owners<'_>,
    ) {
        if self.is_done || !(self.barrier.is_reached() || now >= self.timeout) {
            return;
        }
        self.is_done = true;
        if self.barrier.is_reached() {
            kept.rights.done(now, self.number);
            check_pending(
                workers,
                self.since,
                self.change.name(),
                owners,
                |host| !matches!(self.change, Change::Hidden(it) if it != host),
            );
        }
        if self.change == Change::Inaccessible {
            set_ana(plane, AnaState::INACCESSIBLE);
            plane.publish();
        }
    }

    /// Whether it can be undone.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        self.is_done && now >= self.until
    }

    /// Gives back what was taken away.
    pub(super) fn undo<N: Network>(
        self,
        plane: &Plane<N>,
        kept: &mut Kept,
        namespace: &NamespaceDefinition,
        ana: AnaState,
    ) {
        let (mut reservation, mut protection) = (None, None);
        match self.change {
            Change::Inaccessible => set_ana(plane, ana),
            Change::Hidden(_) => edit(plane, |all| all[0].access.hosts = HostAccess::Any),
            Change::Removed => {
                let mut namespace = namespace.clone();
                namespace.access.write_protection = kept.restored_protection(namespace.uuid);
                edit(plane, |all| all.push(namespace.clone()));
                protection = plane.protection();
                reservation = plane.restore(kept, namespace.uuid);
            }
            Change::Shorter(_) => edit(plane, |all| all[0].geometry = namespace.geometry),
            Change::ReadOnly => edit(plane, |all| all[0].read_only = false),
        }
        debug_assert_eq!(namespace.nsid, Nsid(1), "the namespace of the hosts");
        let blocks = namespace.geometry.blocks;
        kept.rights.change(|situation| {
            (situation.served, situation.reachable, situation.hidden_from) = (true, true, None);
            (situation.blocks, situation.read_only) = (blocks, false);
            if let Some(protection) = protection {
                situation.protection = protection;
            }
            assert_eq!(Some(situation.protection), plane.protection(), "its write protection");
            if let Some(reservation) = reservation {
                situation.reservation = reservation;
            }
            assert_eq!(situation.reservation, plane.model(), "the reservation of the namespace");
        });
        plane.publish();
    }
}
