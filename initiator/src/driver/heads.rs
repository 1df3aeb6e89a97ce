//! The namespaces that operations go to. Each is pinned to the disk that it was: nothing is issued to another disk. And
//! each has the paths that lead to it now, as well as any does.

use super::operation::Wait;
use super::path::Path;
use super::policy::PathSet;
use super::{Driver, DriverEvent};
use crate::transport::Transport;
use core::time::Duration;
use nvme_proto::Nsid;
use nvme_proto::admin::log_page::AnaState;
use nvmf_block::{BlockError, Geometry};
use nvmf_host::{Association, Mismatch, Namespace, NamespaceIdentity};
use std::collections::{BTreeMap, VecDeque};

/// For so long at least operations wait for a controller that is asked which disks it has: it answers in time, mostly.
const LOOK_TIME: Duration = Duration::from_secs(5);

/// Why operations on a namespace wait, though there is a path to its subsystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// Another disk is there.
    Foreign(Mismatch),
    /// A controller has it, and cannot say now which disk it is.
    Unknown,
    /// No controller has it: it may come, of a target that opens its disks one by one, or over a path that is away.
    NotListed,
    /// No controller gives access to it now (ANA).
    NoAccess,
    /// Every controller that gives access to it is being asked which disks it has.
    LookedInto,
}

/// How a namespace is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NamespaceState {
    /// A path leads to it.
    Live,
    /// Another disk is in its place.
    Foreign(Mismatch),
    /// A controller has it, and cannot say now which disk it is.
    Unknown,
    /// No controller has shown it since it was connected: it may come yet, or is not for this host.
    NotListed,
    /// No controller gives access to it now (ANA).
    Inaccessible,
    /// It was taken away while its controllers are there, or did not come in the time that a lost connection may take: its
    /// operations fail.
    Removed,
}

#[derive(Debug)]
struct Blocked {
    reason: Reason,
    /// When operations fail instead of waiting; `None` is never.
    fails_at: Option<Duration>,
    failed: bool,
}

#[derive(Debug)]
struct Head {
    /// As it was when it was opened, or first seen; with the blocks that it has grown to since, and with a volatile write cache
    /// once it has had one, which may hold what was written then.
    opened: NamespaceIdentity,
    /// As it is now, as far as it is known.
    now: Geometry,
    /// Somebody opened it, or submitted an operation to it.
    in_use: bool,
    blocked: Option<Blocked>,
    /// Its user was told that no path gives access, and not yet that one does.
    is_told_no_access: bool,
    /// Where its operations go: the optimized paths, or else the others that give access. On one that is being looked
    /// into they wait: so it is none of these where there is another.
    paths: PathSet,
    /// The paths that show another disk.
    foreign_on: PathSet,
    /// The paths that have shown the disk that was opened since they were connected.
    shown_on: PathSet,
    /// No path has it any more, as far as was known last.
    removed: bool,
    /// That is known now: its operations fail at once.
    gone: bool,
}

impl Head {
    fn new(opened: NamespaceIdentity, in_use: bool) -> Self {
        let none = PathSet::default();
        let now = opened.geometry;
        Self {
            opened,
            now,
            in_use,
            blocked: None,
            is_told_no_access: false,
            paths: none,
            foreign_on: none,
            shown_on: none,
            removed: false,
            gone: false,
        }
    }

    fn state(&self) -> NamespaceState {
        match &self.blocked {
            Some(Blocked { reason: Reason::Foreign(mismatch), .. }) => NamespaceState::Foreign(*mismatch),
            Some(
                Blocked { reason: Reason::Unknown, .. }
                | Blocked { reason: Reason::LookedInto, failed: true, .. },
            ) => NamespaceState::Unknown,
            Some(Blocked { reason: Reason::NoAccess, .. }) => NamespaceState::Inaccessible,
            Some(Blocked { reason: Reason::NotListed, failed: false, .. }) => NamespaceState::NotListed,
            Some(Blocked { reason: Reason::NotListed, failed: true, .. }) => NamespaceState::Removed,
            None if self.removed => NamespaceState::Removed,
            Some(Blocked { reason: Reason::LookedInto, .. }) | None => NamespaceState::Live,
        }
    }

    fn has_no_access(&self) -> bool {
        matches!(self.blocked, Some(Blocked { reason: Reason::NoAccess, .. }))
    }

    fn admission(&self) -> Admission {
        match self.blocked {
            Some(Blocked { failed: true, .. }) => Admission::Fail(BlockError::Gone),
            None if self.gone => Admission::Fail(BlockError::Gone),
            _ => Admission::On(self.paths),
        }
    }
}

/// By NSID.
#[derive(Debug, Default)]
pub(super) struct Heads {
    heads: BTreeMap<Nsid, Head>,
    /// The paths that are ready: where operations on namespaces that nobody knows go, to fail.
    ready: PathSet,
    /// Those whose controller is being asked which disks it has: nobody knows which is where.
    looked_into: PathSet,
}

/// Where an operation on a namespace may be issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// On one of these paths; on none, it waits.
    On(PathSet),
    Fail(BlockError),
}

impl Heads {
    /// Nobody has opened anything yet: what a path has shown that is not the first after all says nothing of which disk is where.
    pub(super) fn forget_unopened(&mut self) {
        self.heads.retain(|_, head| head.in_use);
    }

    pub(super) fn admission(&self, nsid: Nsid) -> Admission {
        self.heads.get(&nsid).map_or(Admission::On(self.ready), Head::admission)
    }

    /// The bytes in a block as its opener counts them.
    pub(super) fn block_size(&self, nsid: Nsid) -> Option<u32> {
        self.heads.get(&nsid).map(|head| head.opened.geometry.block_size)
    }

    /// Its geometry, on whichever path.
    pub(super) fn geometry(&self, nsid: Nsid) -> Option<Geometry> {
        self.heads.get(&nsid).map(|head| head.now)
    }

    /// Whether a flush of it means something, as far as any path has ever said.
    pub(super) fn was_cached(&self, nsid: Nsid) -> bool {
        self.heads.get(&nsid).is_some_and(|head| head.opened.geometry.volatile_write_cache)
    }

    /// Whether that holds for a namespace in use.
    pub(super) fn is_any_cached(&self) -> bool {
        self.heads.values().any(|head| head.in_use && head.opened.geometry.volatile_write_cache)
    }

    /// The namespaces in use that are not the disks that they were.
    pub(super) fn foreign(&self) -> impl Iterator<Item = (Nsid, Mismatch)> + '_ {
        self.heads.iter().filter(|(_, head)| head.in_use).filter_map(|(&nsid, head)| match head.blocked {
            Some(Blocked { reason: Reason::Foreign(mismatch), .. }) => Some((nsid, mismatch)),
            _ => None,
        })
    }

    /// The first namespace in use to which no controller gives access.
    pub(super) fn without_access(&self) -> Option<Nsid> {
        self.heads.iter().find(|(_, head)| head.in_use && head.has_no_access()).map(|(&nsid, _)| nsid)
    }

    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        let blocked = self.heads.values().filter_map(|head| head.blocked.as_ref());
        blocked.filter(|blocked| !blocked.failed).filter_map(|blocked| blocked.fails_at).min()
    }

    /// Whether a path shows another disk as a namespace in use. The others are somebody else's.
    pub(super) fn is_any_foreign_on(&self, path: usize) -> bool {
        self.heads.values().any(|head| head.in_use && head.foreign_on.contains(path))
    }

    /// The namespaces that are known.
    #[cfg(test)]
    pub(super) fn nsids(&self) -> impl Iterator<Item = Nsid> + '_ {
        self.heads.keys().copied()
    }

    /// Whether a path shows another disk as this namespace.
    pub(super) fn is_foreign_on(&self, nsid: Nsid, path: usize) -> bool {
        self.heads.get(&nsid).is_some_and(|head| head.foreign_on.contains(path))
    }
}

/// What the paths that are ready show of a namespace.
#[derive(Debug, Default)]
struct Sight {
    optimized: PathSet,
    non_optimized: PathSet,
    no_access: PathSet,
    foreign: PathSet,
    mismatch: Option<Mismatch>,
    /// Its geometry, of all paths that show it: the fewest blocks, and what holds on any of them.
    geometry: Option<Geometry>,
    /// A controller cannot say now which disk is there, or shows the disk that was opened with a geometry that cannot be used.
    unknown: bool,
    /// The path that was connected again just now does not have it yet.
    late: bool,
}

impl Sight {
    /// `back`: this path was connected again just now. What is not there then may come later: a target that was started again
    /// opens its disks one by one.
    fn of<T: Transport>(paths: &[Path<T>], opened: &NamespaceIdentity, back: Option<usize>) -> Self {
        let mut sight = Self::default();
        for (number, path) in paths.iter().enumerate().filter(|(_, path)| path.is_ready()) {
            let Some(association) = &path.association else { continue };
            let Some(namespace) = association.namespace(opened.nsid) else {
                sight.unknown |= association.is_unknown(opened.nsid);
                sight.late |= back == Some(number);
                continue;
            };
            let identity = NamespaceIdentity::new(association.controller(), namespace);
            if let Err(mismatch) = opened.check(&identity) {
                sight.foreign.insert(number);
                sight.unknown |= !mismatch.is_another_disk();
                sight.mismatch.get_or_insert(mismatch);
                continue;
            }
            let shown = identity.geometry;
            sight.geometry = Some(sight.geometry.map_or(shown, |others| Geometry {
                blocks: others.blocks.min(shown.blocks),
                read_only: others.read_only || shown.read_only,
                volatile_write_cache: others.volatile_write_cache || shown.volatile_write_cache,
                ..others
            }));
            match association.access(opened.nsid) {
                AnaState::OPTIMIZED => sight.optimized.insert(number),
                AnaState::NON_OPTIMIZED => sight.non_optimized.insert(number),
                _ => sight.no_access.insert(number),
            }
        }
        sight
    }

    fn paths(&self, looked_into: PathSet) -> PathSet {
        let sure = [self.optimized.without(looked_into), self.non_optimized.without(looked_into)];
        let all = [sure[0], sure[1], self.optimized, self.non_optimized];
        all.into_iter().find(|paths| !paths.is_empty()).unwrap_or_default()
    }

    /// No path shows a disk there, or says that there is one.
    fn is_nowhere(&self) -> bool {
        self.shown().with(self.foreign).is_empty() && !self.unknown
    }

    /// The paths that show the disk that was opened.
    fn shown(&self) -> PathSet {
        self.optimized.with(self.non_optimized).with(self.no_access)
    }
}

/// The paths whose controllers are being asked which disks they have.
fn scanning<T: Transport>(paths: &[Path<T>]) -> PathSet {
    let mut scanning = PathSet::default();
    let is_scanning = |path: &Path<T>| path.association.as_ref().is_some_and(Association::is_scanning);
    for (number, _) in paths.iter().enumerate().filter(|(_, path)| path.is_ready() && is_scanning(path)) {
        scanning.insert(number);
    }
    scanning
}

impl<T: Transport> Driver<T> {
    /// Pins a namespace to the disk that somebody opened. A namespace that is in use already keeps the disk that it was opened as.
    ///
    /// What is not pinned by this is pinned to what the namespace was when the driver first saw it.
    pub fn open(&mut self, now: Duration, identity: NamespaceIdentity) {
        let nsid = identity.nsid;
        if self.heads.heads.get(&nsid).is_none_or(|head| !head.in_use) {
            self.heads.heads.insert(nsid, Head::new(identity, true));
            self.check_heads(now, None);
        }
    }

    /// The namespaces of [`Driver::association`], each as a path shows it that has the disk that was opened, where one has.
    #[must_use]
    pub fn namespaces(&self) -> Vec<Namespace> {
        let of = |association: &Association, nsid| {
            association.namespaces().iter().find(|namespace| namespace.nsid == nsid).cloned()
        };
        let opened = |nsid| {
            let path = self.heads.heads.get(&nsid)?.shown_on.first()?;
            of(self.paths[path].association.as_ref()?, nsid)
        };
        let shown = self.association().into_iter().flat_map(Association::namespaces);
        shown.map(|namespace| opened(namespace.nsid).unwrap_or_else(|| namespace.clone())).collect()
    }

    /// The geometry of a namespace that is in use or was seen, as the paths to it showed it last: while it grows, the smallest size;
    /// read-only and with a volatile write cache if it is so on one of them.
    #[must_use]
    pub fn geometry(&self, nsid: Nsid) -> Option<Geometry> {
        self.heads.geometry(nsid)
    }

    /// How a namespace is, as the paths that are connected say; `None`: it was never seen.
    #[must_use]
    pub fn namespace_state(&self, nsid: Nsid) -> Option<NamespaceState> {
        self.heads.heads.get(&nsid).map(Head::state)
    }

    /// An operation was submitted: where it may go. From now on events tell what happens to the namespace.
    pub(super) fn use_head(&mut self, nsid: Nsid) -> Admission {
        let Some(head) = self.heads.heads.get_mut(&nsid) else { return Admission::On(self.heads.ready) };
        let was_in_use = core::mem::replace(&mut head.in_use, true);
        if !was_in_use && let Some(Blocked { reason: Reason::Foreign(mismatch), .. }) = head.blocked {
            self.events.push_back(DriverEvent::Foreign(nsid, mismatch));
        } else if !was_in_use && head.has_no_access() {
            self.events.push_back(DriverEvent::NoAccess(nsid));
        }
        head.admission()
    }

    /// A namespace in use to which no controller that is connected gives access (ANA), if there is one.
    pub(crate) fn without_access(&self) -> Option<Nsid> {
        self.heads.without_access()
    }

    /// The namespaces in use in whose place there is another disk now, on every path that shows any, and how it differs.
    /// Operations on them wait for the disk that was opened, and fail when that takes longer than a lost connection may; or at
    /// once, where it was taken away.
    pub fn foreign(&self) -> impl Iterator<Item = (Nsid, Mismatch)> + '_ {
        self.heads.foreign()
    }

    /// Compares every namespace with the disk that it was, and finds the paths that lead to it: after a connection, a loss or a
    /// change, and before anything is issued. `back`: this path was connected again just now.
    pub(super) fn check_heads(&mut self, now: Duration, back: Option<usize>) {
        let Heads { heads, ready, looked_into } = &mut self.heads;
        (*ready, *looked_into) = (PathSet::default(), scanning(&self.paths));
        for (number, path) in self.paths.iter().enumerate().filter(|(_, path)| path.is_ready()) {
            ready.insert(number);
            let Some(association) = &path.association else { continue };
            for namespace in association.namespaces() {
                let identity = || NamespaceIdentity::new(association.controller(), namespace);
                heads.entry(namespace.nsid).or_insert_with(|| Head::new(identity(), false));
            }
        }
        // One that is away may be the one that has it.
        let others_away = self.paths.iter().any(|path| !path.is_ready() && !path.recovery.is_over());
        let first = &self.paths[0];
        let (wait_max, waits) = (first.recovery.io_wait_max(), first.config.wait_for_disk);
        let mut forgotten = Vec::new();
        for (&nsid, head) in heads {
            let sight = Sight::of(&self.paths, &head.opened, back);
            head.paths = sight.paths(*looked_into);
            if let Some(geometry) = sight.geometry {
                // It may have grown, which its users may have been told: it must not shrink again.
                head.opened.geometry.blocks = geometry.blocks;
                head.now = geometry;
                head.opened.geometry.volatile_write_cache |= geometry.volatile_write_cache;
            }
            head.shown_on = head.shown_on.only(*ready).with(sight.shown());
            // A controller that had it has it no more, and no other has it: also after it was connected again, as what was taken
            // away is no disk that a target which starts has still to open. Or nobody waits for it anyway.
            let is_gone = sight.shown().is_empty() && !sight.unknown;
            let was_taken_away = head.removed || !head.shown_on.is_empty();
            let taken_away = is_gone && (was_taken_away || !waits && sight.mismatch.is_some());
            let new_foreign = sight.foreign.without(head.foreign_on);
            head.foreign_on = sight.foreign;
            head.gone = false;
            if head.paths.is_empty() {
                // What is looked into no more, and does not lead there, is waited for from now on.
                head.blocked.take_if(|blocked| blocked.reason == Reason::LookedInto);
            }
            if ready.is_empty() {
                // Nothing new is known.
                continue;
            }
            if !head.in_use && sight.is_nowhere() {
                forgotten.push(nsid);
                continue;
            }
            let was_removed = core::mem::take(&mut head.removed);
            let reason = match sight.mismatch {
                _ if !head.paths.without(*looked_into).is_empty() => None,
                _ if !head.paths.is_empty() => Some(Reason::LookedInto),
                Some(mismatch) => Some(Reason::Foreign(mismatch)),
                None if !sight.no_access.is_empty() => Some(Reason::NoAccess),
                None if sight.unknown => Some(Reason::Unknown),
                None if !taken_away
                    && (sight.late || head.blocked.is_some() || head.in_use && others_away) =>
                {
                    Some(Reason::NotListed)
                }
                None => {
                    // It was taken away while its controllers are there: nobody waits for it, and its operations fail.
                    head.paths = *ready;
                    head.removed = true;
                    head.gone = looked_into.is_empty();
                    if head.in_use && !was_removed {
                        self.fences.on_operations_failed();
                    }
                    if head.gone {
                        // Also what waits for a fence, which stays for whoever reads or writes the blocks when the disk
                        // is back.
                        self.operations.fail_waiting_on(nsid, BlockError::Gone);
                    }
                    None
                }
            };
            if let (Some(mismatch), false, true) = (sight.mismatch, head.paths.is_empty(), head.in_use) {
                let event = |path| DriverEvent::PathForeign(path, nsid, mismatch);
                self.events.extend(new_foreign.iter().map(event));
            }
            set(head, reason, now, wait_max, &mut self.events);
            // It was taken away, and another disk has its place. Nobody waits for it either.
            if taken_away && let Some(blocked) = &mut head.blocked {
                blocked.fails_at = Some(now);
            }
        }
        // A controller may show others without end.
        forgotten.iter().for_each(|nsid| drop(self.heads.heads.remove(nsid)));
        if self.heads.is_any_cached() {
            self.fences.on_cache();
        }
        self.operations.resume(Wait::Path);
    }

    /// Has operations leave the paths whose controllers are being asked which disks they have, where others lead to the
    /// disk; and come back afterwards.
    pub(super) fn look_at_scans(&mut self, now: Duration) {
        if self.heads.looked_into != scanning(&self.paths) {
            self.check_heads(now, None);
        }
    }

    /// Operations that waited too long for their disk fail.
    pub(super) fn fail_blocked(&mut self, now: Duration) {
        for (&nsid, head) in &mut self.heads.heads {
            let due = |blocked: &&mut Blocked| blocked.fails_at.is_some_and(|at| at <= now);
            if let Some(blocked) = head.blocked.as_mut().filter(due)
                && !core::mem::replace(&mut blocked.failed, true)
            {
                self.fences.on_operations_failed();
                self.operations.fail_waiting_on(nsid, BlockError::Gone);
                if head.in_use && matches!(blocked.reason, Reason::NotListed | Reason::LookedInto) {
                    self.events.push_back(DriverEvent::NamespacesChanged);
                }
            }
        }
    }
}

/// Records whether a namespace is blocked, and queues the event. The time that its operations wait runs from the first reason.
fn set(
    head: &mut Head,
    reason: Option<Reason>,
    now: Duration,
    wait_max: Option<Duration>,
    events: &mut VecDeque<DriverEvent>,
) {
    let before = head.blocked.as_ref().map(|blocked| blocked.reason);
    if before == reason {
        return;
    }
    let nsid = head.opened.nsid;
    let had_failed = head.blocked.as_ref().is_some_and(|blocked| blocked.failed);
    match (reason, &mut head.blocked) {
        (None, blocked) => *blocked = None,
        (Some(reason), Some(blocked)) => blocked.reason = reason,
        (Some(reason), blocked @ None) => {
            let least = if reason == Reason::LookedInto { LOOK_TIME } else { Duration::ZERO };
            let fails_at = wait_max.map(|most| now.saturating_add(most.max(least)));
            *blocked = Some(Blocked { reason, fails_at, failed: false });
        }
    }
    if !head.in_use {
        return;
    }
    match (before, reason) {
        (_, Some(Reason::Foreign(mismatch))) => events.push_back(DriverEvent::Foreign(nsid, mismatch)),
        (Some(Reason::Foreign(_)), None | Some(Reason::LookedInto)) => {
            events.push_back(DriverEvent::Restored(nsid))
        }
        (_, Some(Reason::NoAccess)) if !head.is_told_no_access => {
            events.push_back(DriverEvent::NoAccess(nsid))
        }
        // Of one that is not there any more, what takes it away tells.
        (_, None) if head.is_told_no_access && !head.removed => {
            events.push_back(DriverEvent::AccessAgain(nsid))
        }
        (Some(Reason::LookedInto), None) if had_failed => events.push_back(DriverEvent::NamespacesChanged),
        _ => {}
    }
    match reason {
        Some(Reason::NoAccess) => head.is_told_no_access = true,
        None => head.is_told_no_access = false,
        _ => {}
    }
}
