//! The namespaces that operations go to, each pinned to the disk that it was: nothing is issued to another disk.

use super::{Driver, DriverEvent};
use crate::transport::Transport;
use core::time::Duration;
use nvme_proto::Nsid;
use nvmf_block::BlockError;
use nvmf_host::{Mismatch, NamespaceIdentity};
use std::collections::BTreeMap;

/// Why operations on a namespace wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// Another disk is there.
    Foreign(Mismatch),
    /// The controller cannot say now which disk is there.
    Unknown,
}

#[derive(Debug)]
struct Blocked {
    reason: Reason,
    /// When operations fail instead of waiting; `None` is never.
    fails_at: Option<Duration>,
    failed: bool,
}

#[derive(Debug)]
struct Disk {
    /// As it was when it was opened, or first seen.
    opened: NamespaceIdentity,
    /// Somebody opened it, or submitted an operation to it.
    in_use: bool,
    blocked: Option<Blocked>,
}

/// By NSID.
#[derive(Debug, Default)]
pub(super) struct Disks(BTreeMap<Nsid, Disk>);

/// Whether an operation on a namespace may be issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    Issue,
    Wait,
    Fail(BlockError),
}

impl Disks {
    pub(super) fn admission(&self, nsid: Nsid) -> Admission {
        match self.0.get(&nsid).and_then(|disk| disk.blocked.as_ref()) {
            None => Admission::Issue,
            Some(blocked) if blocked.failed => Admission::Fail(BlockError::Gone),
            Some(_) => Admission::Wait,
        }
    }

    /// The bytes in a block as its opener counts them.
    pub(super) fn block_size(&self, nsid: Nsid) -> Option<u32> {
        self.0.get(&nsid).map(|disk| disk.opened.geometry.block_size)
    }

    /// The namespaces in use that are not the disks that they were.
    pub(super) fn foreign(&self) -> impl Iterator<Item = (Nsid, Mismatch)> + '_ {
        self.0.iter().filter(|(_, disk)| disk.in_use).filter_map(|(&nsid, disk)| match disk.blocked {
            Some(Blocked { reason: Reason::Foreign(mismatch), .. }) => Some((nsid, mismatch)),
            _ => None,
        })
    }

    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        let blocked = self.0.values().filter_map(|disk| disk.blocked.as_ref());
        blocked.filter(|blocked| !blocked.failed).filter_map(|blocked| blocked.fails_at).min()
    }
}

impl<T: Transport> Driver<T> {
    /// Pins a namespace to the disk that somebody opened. A namespace that is in use already keeps the disk that it was opened as.
    ///
    /// What is not pinned by this is pinned to what the namespace was when the driver first saw it.
    pub fn open(&mut self, now: Duration, identity: NamespaceIdentity) {
        let nsid = identity.nsid;
        if self.disks.0.get(&nsid).is_none_or(|disk| !disk.in_use) {
            self.disks.0.insert(nsid, Disk { opened: identity, in_use: true, blocked: None });
            self.check_disks(now, false);
        }
    }

    /// An operation was submitted: from now on events tell what happens to the namespace.
    pub(super) fn use_disk(&mut self, nsid: Nsid) {
        let Some(disk) = self.disks.0.get_mut(&nsid) else { return };
        if !core::mem::replace(&mut disk.in_use, true)
            && let Some(Blocked { reason: Reason::Foreign(mismatch), .. }) = disk.blocked
        {
            self.events.push_back(DriverEvent::Foreign(nsid, mismatch));
        }
    }

    /// The namespaces in use in whose place there is another disk now, and how it differs. Operations on them wait for the
    /// disk that was opened, and fail when that takes longer than a lost connection may.
    pub fn foreign(&self) -> impl Iterator<Item = (Nsid, Mismatch)> + '_ {
        self.disks.foreign()
    }

    /// Compares every namespace with the disk that it was, after a connection or a change and before anything is issued.
    /// `reconnected`: this is the first look at a new association in place of a lost one.
    pub(super) fn check_disks(&mut self, now: Duration, reconnected: bool) {
        let Some(association) = &self.association else { return };
        let controller = association.controller();
        for namespace in association.namespaces() {
            let identity = NamespaceIdentity::new(controller, namespace);
            let new = Disk { opened: identity.clone(), in_use: false, blocked: None };
            let disk = self.disks.0.entry(namespace.nsid).or_insert(new);
            let reason = disk.opened.check(&identity).err().map(Reason::Foreign);
            if reason.is_none() {
                // It may have grown, which its users may have been told: it must not shrink again.
                disk.opened.geometry.blocks = identity.geometry.blocks;
            }
            set(disk, reason, now, self.recovery.io_wait_max(), &mut self.events);
        }
        for (nsid, disk) in &mut self.disks.0 {
            if association.namespace(*nsid).is_none() {
                // A namespace that goes while the controller is there was taken away: nobody waits for it, and its
                // operations fail. One that is not there after a reconnect may come later: a target that was started
                // again opens its disks one by one.
                let waits = association.is_unknown(*nsid) || reconnected || disk.blocked.is_some();
                let reason = waits.then_some(Reason::Unknown);
                set(disk, reason, now, self.recovery.io_wait_max(), &mut self.events);
            }
        }
        self.operations.resume();
    }

    /// Operations that waited too long for their disk fail.
    pub(super) fn fail_blocked(&mut self, now: Duration) {
        for (&nsid, disk) in &mut self.disks.0 {
            let due = |blocked: &&mut Blocked| blocked.fails_at.is_some_and(|at| at <= now);
            if let Some(blocked) = disk.blocked.as_mut().filter(due)
                && !core::mem::replace(&mut blocked.failed, true)
            {
                self.operations.fail_waiting_on(nsid, BlockError::Gone);
            }
        }
    }
}

/// Records whether a namespace is blocked, and queues the event. The time that its operations wait runs from the first mismatch.
fn set(
    disk: &mut Disk,
    reason: Option<Reason>,
    now: Duration,
    wait_max: Option<Duration>,
    events: &mut std::collections::VecDeque<DriverEvent>,
) {
    let before = disk.blocked.as_ref().map(|blocked| blocked.reason);
    if before == reason {
        return;
    }
    let nsid = disk.opened.nsid;
    match (reason, &mut disk.blocked) {
        (None, blocked) => *blocked = None,
        (Some(reason), Some(blocked)) => blocked.reason = reason,
        (Some(reason), blocked @ None) => {
            let fails_at = wait_max.map(|most| now.saturating_add(most));
            *blocked = Some(Blocked { reason, fails_at, failed: false });
        }
    }
    if !disk.in_use {
        return;
    }
    match (before, reason) {
        (_, Some(Reason::Foreign(mismatch))) => events.push_back(DriverEvent::Foreign(nsid, mismatch)),
        (Some(Reason::Foreign(_)), None) => events.push_back(DriverEvent::Restored(nsid)),
        _ => {}
    }
}
