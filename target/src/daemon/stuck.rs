//! Disks whose operations do not end.
//!
//! A barrier for all disks says, every few seconds, whether anything is older than it. Only while something is, each disk
//! has one of its own. So the path of a command knows nothing of it, and an age is a lower bound.

use super::Daemon;
use crate::barrier::{Barrier, Scope};
use core::time::Duration;
use nvmf_block::DeviceId;
use std::collections::BTreeSet;
use std::sync::Arc;

/// An operation that is older holds its disk.
const STUCK: Duration = Duration::from_secs(4);

/// What is known of the age of operations.
pub(super) struct Watch {
    /// For all disks.
    all: Arc<Barrier>,
    /// For each, since then.
    each: Vec<(DeviceId, Arc<Barrier>)>,
    since: Duration,
    /// Those that the log knows of.
    logged: BTreeSet<DeviceId>,
}

impl Daemon {
    /// Looks whether operations end; every few seconds.
    pub(super) fn watch_disks(&mut self) {
        let now = self.common.clock.now();
        let before = self.watch.take();
        let exports = || self.exports().iter().chain(self.namespaces.leaving());
        self.watch = Some(match before {
            Some(mut watch) if !watch.all.is_reached() => {
                if watch.each.is_empty() {
                    watch.since = now;
                    let barrier = |device| self.common.mailboxes.barrier(Scope::devices([device]));
                    watch.each = exports().map(|export| (export.device, barrier(export.device))).collect();
                }
                for export in exports() {
                    let Some(age) = watch.age(export.device, now) else { continue };
                    if watch.logged.insert(export.device) {
                        tracing::error!(
                            "{} namespace {}: an operation on {} has been under way for more than {} s: look at the disk \
                             (dmesg)",
                            export.nqn,
                            export.namespace.nsid,
                            export.backing(),
                            age.as_secs()
                        );
                    }
                }
                watch
            }
            _ => {
                let all =
                    self.common.mailboxes.barrier(Scope::devices(exports().map(|export| export.device)));
                Watch { all, each: Vec::new(), since: now, logged: BTreeSet::new() }
            }
        });
    }

    /// How old the oldest operation on a disk is at least, if it is older than operations should be.
    pub(super) fn oldest_operation(&self, device: DeviceId) -> Option<Duration> {
        self.watch.as_ref()?.age(device, self.common.clock.now())
    }
}

impl Watch {
    fn age(&self, device: DeviceId, now: Duration) -> Option<Duration> {
        let is_held = self.each.iter().any(|(of, barrier)| *of == device && !barrier.is_reached());
        let age = now.saturating_sub(self.since);
        (is_held && age >= STUCK).then_some(age)
    }
}
