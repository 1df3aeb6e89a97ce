//! What is told of what happens: who goes on tells it at once, in its log; a call gives account when it ends.

use super::super::engine::{Beyond, Disk, Limits};
use super::super::further_paths::Added;
use super::limits::{FAILURES_MAX, LEFT_OUT_MAX, LIMITS};
use crate::attach::Listed;
use crate::print::chain;
use nvmf_attached::{Attachment, State};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::time::Duration;

/// What became of an attempt to attach everything.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// What is attached now and was not.
    pub(crate) attached: Vec<Attachment>,
    /// What was attached already.
    pub(crate) already: Vec<Attachment>,
    /// What of it was brought back, or given further paths.
    pub(crate) extended: Vec<String>,
    /// What could not be reached or attached, and why.
    pub(crate) failures: Vec<String>,
    /// What is left out while others are there, and why.
    pub(crate) left_out: BTreeSet<String>,
    /// Subsystems that are listed.
    pub(crate) subsystems: usize,
}

impl Outcome {
    /// What was attached already, as it is now. No disk whose I/O fails or waits for ever is passed over in silence.
    pub(crate) fn see_again(&mut self, listed: &[Listed]) {
        for disk in &mut self.already {
            let Some(now) = listed.iter().find(|listed| listed.disk.mark == disk.mark) else { continue };
            disk.clone_from(&now.disk);
            let name = format!("{} namespace {}: ", disk.nqn, disk.nsid);
            let is_useless = now.is_dead() || matches!(now.disk.state, State::Foreign | State::Removed);
            if is_useless && !self.failures.iter().any(|failure| failure.starts_with(&name)) {
                let (place, state) = (disk.place().display(), disk.state.as_str());
                self.failures.push(format!("{name}{place} is {state}: {}", now.remedy()));
            }
        }
    }
}

/// What is said of a disk that cannot be attached: its name once, also where the reason begins with it.
pub(crate) fn failure(nqn: impl Display, nsid: u32, error: &anyhow::Error) -> String {
    let (disk, reason) = (format!("{nqn} namespace {nsid}"), chain(error));
    if reason.starts_with(&format!("{disk} ")) { reason } else { format!("{disk}: {reason}") }
}

/// What was told, and is kept to be told.
pub(super) struct Report {
    /// It goes on: what is told is not kept.
    follows: bool,
    pub(super) outcome: Outcome,
    /// Disks that could not be given all their paths, and why.
    without_paths: BTreeMap<Disk, String>,
    /// Of what cannot be reached.
    failures: Failures,
    /// How much is beyond the limits, as was said last.
    beyond: Beyond,
}

impl Report {
    pub(super) fn new(follows: bool) -> Self {
        Self {
            follows,
            outcome: Outcome::default(),
            without_paths: BTreeMap::new(),
            failures: Failures::default(),
            beyond: Beyond::default(),
        }
    }

    pub(super) fn attached(&mut self, disk: Attachment) {
        match self.follows {
            true => tracing::info!("attached {disk}"),
            false => self.outcome.attached.push(disk),
        }
    }

    pub(super) fn failed(&mut self, reason: String) {
        match self.follows {
            true => tracing::warn!("{reason}"),
            false => self.outcome.failures.push(reason),
        }
    }

    /// A controller or a subsystem cannot be reached.
    pub(super) fn unreachable(&mut self, now: Duration, reason: String) {
        if self.follows && !self.failures.admits(now) {
            tracing::debug!("{reason}");
        } else {
            self.failed(reason);
        }
    }

    pub(super) fn paths_added(&mut self, disk: Disk, Added { count, failed, unable, brought_back }: Added) {
        let Disk { nqn, nsid } = &disk;
        for said in brought_back {
            match self.follows {
                true => tracing::warn!("{said}"),
                false => self.outcome.extended.push(said),
            }
        }
        if count > 0 {
            let more = format!("{nqn} namespace {nsid} has {count} more path(s), which discovery lists");
            match self.follows {
                true => tracing::info!("{more}"),
                false => self.outcome.extended.push(more),
            }
        }
        if let Some(error) = unable {
            tracing::debug!("{nqn} namespace {nsid} is left without a path: {}", chain(&error));
        }
        let Some(error) = failed else {
            self.without_paths.remove(&disk);
            return;
        };
        let failure = failure(nqn, *nsid, &error);
        // It is tried again and again.
        if self.without_paths.get(&disk) != Some(&failure) {
            self.failed(failure.clone());
            self.without_paths.insert(disk, failure);
        }
    }

    pub(super) fn detached(&mut self, disk: &Disk) {
        self.without_paths.remove(disk);
    }

    /// What is left out while others are there. It is told once, however often the others are connected.
    pub(super) fn left_out(&mut self, what: &str) {
        let has_room = self.outcome.left_out.len() < LEFT_OUT_MAX;
        if has_room && self.outcome.left_out.insert(what.to_owned()) && self.follows {
            tracing::warn!("{what}");
        }
    }

    /// How much is beyond the limits: told when it is more than it was.
    pub(super) fn beyond(&mut self, beyond: Beyond) {
        let Beyond { referrals, subsystems, disks } = beyond;
        let Limits { subsystems: most_subsystems, disks: most_disks, disks_of_subsystem, .. } = LIMITS;
        let before = std::mem::replace(&mut self.beyond, beyond);
        let all = [
            (
                referrals > before.referrals,
                format!(
                    "{referrals} referrals and announcements lead to more discovery controllers than are followed"
                ),
            ),
            (
                subsystems > before.subsystems,
                format!(
                    "{subsystems} subsystems are listed beyond those that are looked after ({most_subsystems} at most, half of them by \
                     one discovery controller): none of their namespaces is attached"
                ),
            ),
            (
                disks > before.disks,
                format!(
                    "{disks} namespaces are not attached: there are more than are looked after ({most_disks} at most, \
                     {disks_of_subsystem} of one subsystem, half of them by one discovery controller)"
                ),
            ),
        ];
        for (_, what) in all.into_iter().filter(|(is_more, _)| *is_more) {
            match self.follows {
                true => tracing::warn!("{what}"),
                false => drop(self.outcome.left_out.insert(what)),
            }
        }
    }
}

/// Lines of what cannot be reached: what there is to be reached others say, and may say anew all the time.
#[derive(Debug, Default)]
struct Failures {
    /// The minute that is counted.
    minute: u64,
    count: usize,
}

impl Failures {
    /// Whether one more is told.
    fn admits(&mut self, now: Duration) -> bool {
        let minute = now.as_secs() / 60;
        if minute != self.minute {
            let more = self.count.saturating_sub(FAILURES_MAX);
            if more > 0 {
                tracing::warn!("{more} more of what is listed could not be reached, and is not named");
            }
            (self.minute, self.count) = (minute, 0);
        }
        self.count += 1;
        self.count <= FAILURES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn failure_names_its_disk_once() {
        let (nqn, disk) = ("nqn.2026-11.com.example:a", "nqn.2026-11.com.example:a namespace 2");
        let of = |reason: String| failure(nqn, 2, &anyhow!(reason));
        assert_eq!(of(format!("{disk} is attached already")), format!("{disk} is attached already"));
        assert_eq!(of("no answer".to_owned()), format!("{disk}: no answer"));
        assert_eq!(of(format!("{disk}2 is away")), format!("{disk}: {disk}2 is away"));
    }

    #[test]
    fn what_cannot_be_reached_fills_no_log() {
        let (mut failures, minute) = (Failures::default(), Duration::from_secs(60));
        let told = (0..1000).filter(|_| failures.admits(minute)).count();
        assert_eq!(told, FAILURES_MAX);
        assert!(failures.admits(minute * 2), "each minute some");
    }

    /// Who follows for years keeps nothing of what was.
    #[test]
    fn report_of_who_goes_on_keeps_no_list_of_what_was() {
        let mut report = Report::new(true);
        let disk = Disk { nqn: "a".to_owned(), nsid: 1 };
        report.attached(Attachment::default());
        report.paths_added(disk.clone(), Added::from(anyhow!("no path")));
        assert!(report.outcome.attached.is_empty() && report.outcome.failures.is_empty());
        assert_eq!(report.without_paths.len(), 1);
        report.detached(&disk);
        assert!(report.without_paths.is_empty());
    }
}
