//! What hosts see of the namespaces of a group whose images are opened, or cannot be.

use super::super::Daemon;
use super::images::{Images, is_looked_at, key_of};
use super::opening::{Fault, HANGS_AFTER};
use crate::exports::{Export, ExportFault};
use nvmf_cluster::GroupId;
use nvmf_subsystem::reservation::Reservation;
use nvmf_subsystem::{Nqn, WriteProtection};
use std::collections::BTreeSet;

/// An image that the workers have, with what the group has of its namespace.
pub(in crate::daemon) struct Taken {
    pub(in crate::daemon) nqn: Nqn,
    pub(in crate::daemon) nsid: u32,
    pub(in crate::daemon) uuid: [u8; 16],
    pub(in crate::daemon) reservation: Reservation,
    pub(in crate::daemon) protection: WriteProtection,
}

impl Daemon {
    /// Whether hosts must not see a namespace now: its ANA group is served here, and its image is gone, or was never open
    /// in the group. One that hosts know and that cannot be opened stays: they wait for it, or find it on another path.
    pub(in crate::daemon) fn is_held_back(&self, export: &Export, is_known: bool) -> bool {
        let is_known = is_known || self.is_known_elsewhere(export);
        self.is_closed_here(export)
            && (!is_known || self.image_trouble(export).is_some_and(|it| it.is_missing))
    }

    /// Whether its ANA group is served here without it.
    fn is_closed_here(&self, export: &Export) -> bool {
        let Some(cluster) = self.cluster.as_ref().filter(|_| is_looked_at(export)) else { return false };
        let of = |it: &Images| it.group.0 == export.namespace.ana_group && it.is_served();
        cluster.handles.values().any(of)
    }

    /// Whether hosts will see a namespace soon whose image is being opened.
    pub(in crate::daemon) fn is_opening_images(&self) -> bool {
        let mut exports = self.exports().iter();
        let is_to_come = |export| self.image_trouble(export).is_none() && !self.image_hangs(export);
        exports.any(|export| self.is_closed_here(export) && is_to_come(export))
    }

    /// Why the image of a namespace is not open where its ANA group is served.
    pub(in crate::daemon) fn image_fault(&self, export: &Export) -> Option<String> {
        let hangs = || self.image_hangs(export).then(|| ExportFault::Slow.to_string());
        self.image_trouble(export).map(|it| it.text.clone()).or_else(hangs)
    }

    /// Whether the image is being opened for hosts, and does not answer.
    fn image_hangs(&self, export: &Export) -> bool {
        let now = self.common.clock.now();
        let mut handles = self.cluster.iter().flat_map(|cluster| cluster.handles.values());
        self.is_closed_here(export)
            && handles.any(|images| images.leaving.is_none() && images.hangs(export, now, HANGS_AFTER))
    }

    pub(super) fn image_trouble(&self, export: &Export) -> Option<&Fault> {
        let handles = self.cluster.as_ref()?.handles.values();
        let mut failed = handles.filter_map(|it| it.failed.get(&key_of(export)));
        failed.next().map(|failed| &failed.why)
    }

    /// Shows hosts what the workers have got. Nobody uses any of it here before its reservation and its write protection
    /// are those of the group.
    pub(super) fn show_taken(&mut self, taken: &[Taken]) {
        if taken.is_empty() {
            return;
        }
        self.publish_limits();
        let nqns: BTreeSet<Nqn> = taken.iter().map(|it| it.nqn).collect();
        for nqn in nqns {
            let taken = taken.iter().filter(|it| it.nqn == nqn);
            if let Err(error) = self.show_with(&nqn, taken) {
                tracing::error!("{nqn}: hosts cannot be shown its namespaces: {error}");
            }
        }
        self.publish();
    }

    pub(super) fn show_again(&self, nqn: &Nqn) {
        if let Err(error) = self.show(nqn) {
            tracing::error!("{nqn}: hosts cannot be shown its namespaces: {error}");
        }
    }

    /// Shows hosts again what they may see of the namespaces of a group.
    pub(super) fn show_group(&self, group: GroupId) {
        let of_group = self.exports().iter().filter(|export| export.namespace.ana_group == group.0);
        let nqns: BTreeSet<Nqn> = of_group.map(|export| export.nqn).collect();
        nqns.iter().for_each(|nqn| self.show_again(nqn));
        self.publish();
    }
}
