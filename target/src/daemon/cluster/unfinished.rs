//! What a change of the group took away from hosts, and is still under way here when the change is in force: operations on a disk
//! that does not answer. The group is told, so that nobody at any gateway takes it for done.

use super::super::Daemon;
use super::super::changing::Changing;
use crate::barrier::Barrier;
use crate::cluster::ToDriver;
use crate::control::request::change::Outcome;
use std::sync::Arc;

/// By the version of the configuration that they came with.
#[derive(Debug, Default)]
pub(super) struct UnfinishedVersions {
    left: Vec<(u64, Vec<Arc<Barrier>>)>,
    /// The last of them, as the group's thread was told.
    told: Option<u64>,
}

impl UnfinishedVersions {
    /// Whether what this version took away is still under way here.
    pub(super) fn holds_up(&self, version: u64) -> bool {
        self.told.is_some_and(|told| told >= version)
    }
}

impl Daemon {
    /// Notes what a change of the group waits for no longer.
    pub(super) fn note_unfinished(&mut self, changing: &Changing) {
        let given_up = changing.items.iter().filter(|item| item.outcome == Some(Outcome::Unfinished));
        let of = given_up.flat_map(|item| {
            let is_it = |change: &str, name: &str| change == item.change && name == item.name;
            self.unfinished.iter().filter(move |it| is_it(&it.change, &it.name))
        });
        let left: Vec<Arc<Barrier>> = of.map(|it| Arc::clone(&it.barrier)).collect();
        if let Some(cluster) = self.cluster.as_mut().filter(|_| !left.is_empty()) {
            cluster.unfinished.left.push((cluster.shared.version, left));
        }
        self.tell_unfinished();
    }

    /// Tells the group's thread of the last that is not over, when that has changed.
    pub(super) fn tell_unfinished(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        let UnfinishedVersions { left, told } = &mut cluster.unfinished;
        left.retain(|(_, barriers)| barriers.iter().any(|barrier| !barrier.is_reached()));
        let last = left.iter().map(|(version, _)| *version).max();
        if core::mem::replace(told, last) != last {
            cluster.driver.tell(ToDriver::Unfinished(last));
        }
    }
}
