//! How many disks there are, and how many are attached at once: each is a process, and how many there are to be others say.

use super::disks::{Managed, Phase};
use super::followed::Root;
use super::{Disk, Engine};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// Disks of what others list, counted by subsystem and by where the referrals to it begin.
#[derive(Default)]
struct Shares<'a> {
    all: usize,
    of_subsystem: BTreeMap<&'a str, usize>,
    of_root: BTreeMap<&'a Root, usize>,
}

/// Of all, of one subsystem and of one root.
#[derive(Debug, Clone, Copy)]
struct Most(usize, usize, usize);

impl<'a> Shares<'a> {
    fn of(&self, nqn: &str, root: Option<&Root>) -> Most {
        let root = root.and_then(|root| self.of_root.get(root));
        let of_subsystem = self.of_subsystem.get(nqn).copied().unwrap_or_default();
        Most(self.all, of_subsystem, root.copied().unwrap_or_default())
    }

    fn add(&mut self, nqn: &'a str, root: Option<&'a Root>) {
        self.all += 1;
        *self.of_subsystem.entry(nqn).or_default() += 1;
        root.into_iter().for_each(|root| *self.of_root.entry(root).or_default() += 1);
    }

    /// Whether there is room for one more.
    fn has_room(&self, nqn: &str, root: Option<&Root>, most: Most) -> bool {
        let Most(all, of_subsystem, of_root) = self.of(nqn, root);
        all < most.0 && of_subsystem < most.1 && of_root < most.2
    }
}

impl Engine {
    /// The roots of the subsystems that are watched. What is named itself has none.
    fn roots(&self) -> BTreeMap<&str, Option<&Root>> {
        self.watched.iter().map(|((nqn, _), watched)| (nqn.as_str(), self.root(watched))).collect()
    }

    /// Takes in the namespaces that are shown where whoever has listed their subsystem longest has it, and were not, as far as there is
    /// room.
    pub(super) fn take_in(&mut self, now: Duration) {
        let is_idle = |it: &Managed| matches!(it.phase, Phase::Waits { .. } | Phase::Dismissed);
        let is_gone = |disk: &Disk| !self.is_wanted(disk) && self.has_answered_itself(&disk.nqn);
        let gone = self.disks.iter().filter(|(disk, it)| is_idle(it) && is_gone(disk));
        for disk in gone.map(|(disk, _)| disk.clone()).collect::<Vec<_>>() {
            self.disks.remove(&disk);
        }
        let (roots, mut shares) = (self.roots(), Shares::default());
        for disk in self.disks.keys() {
            shares.add(&disk.nqn, roots.get(disk.nqn.as_str()).copied().flatten());
        }
        let limits = self.limits;
        let most = Most(limits.disks, limits.disks_of_subsystem, limits.disks / 2);
        let (mut taken, mut left_out) = (BTreeSet::new(), BTreeSet::new());
        for ((nqn, _), watched) in self.watched.iter().filter(|(_, watched)| watched.has_said_itself()) {
            let root = roots.get(nqn.as_str()).copied().flatten();
            for &nsid in watched.nsids.iter().flatten() {
                let disk = Disk { nqn: nqn.clone(), nsid };
                if self.disks.contains_key(&disk) || taken.contains(&disk) {
                    continue;
                }
                if shares.has_room(nqn, root, most) {
                    shares.add(nqn, root);
                    taken.insert(disk);
                } else {
                    left_out.insert(disk);
                }
            }
        }
        self.beyond.disks = left_out.len();
        for disk in taken {
            let phase = Phase::Waits { until: now, failures: 0 };
            self.disks.insert(disk, Managed::new(phase, false));
        }
    }

    /// Those of these disks, which wait for it, that may begin to be attached now.
    pub(super) fn turn(&self, waiting: &[Disk]) -> BTreeSet<Disk> {
        let (roots, mut shares) = (self.roots(), Shares::default());
        let root = |disk: &Disk| roots.get(disk.nqn.as_str()).copied().flatten();
        for (disk, _) in self.disks.iter().filter(|(_, it)| matches!(it.phase, Phase::Attaching { .. })) {
            shares.add(&disk.nqn, root(disk));
        }
        let most =
            Most(self.limits.at_once, self.limits.at_once_of_subsystem, (self.limits.at_once / 2).max(1));
        let mut turn = BTreeSet::new();
        for disk in waiting {
            if shares.has_room(&disk.nqn, root(disk), most) {
                shares.add(&disk.nqn, root(disk));
                turn.insert(disk.clone());
            }
        }
        turn
    }
}
