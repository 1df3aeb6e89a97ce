//! Disks: which there are, and what becomes of each: it is attached, brought back, given paths, detached.

use super::wanted::{Wanted, Watched};
use super::{Action, Controller, Detached, Disk, Engine, Entry, Place, Subsystem, SubsystemPath};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// Who lists each subsystem.
type Listing<'a> = BTreeMap<&'a str, Vec<&'a Controller>>;

/// Before an attach that failed is tried again; doubled each time, up to [`RETRY_DELAY_MAX`].
const RETRY_DELAY: Duration = Duration::from_secs(2);
pub(super) const RETRY_DELAY_MAX: Duration = Duration::from_secs(120);
/// Before a disk that is in use is tried again to be detached, or one that could not be given a path to be given it.
const IN_USE_DELAY: Duration = Duration::from_secs(30);

/// How far a disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not attached; an attach may begin then.
    Waits {
        until: Duration,
        failures: u32,
    },
    Attaching {
        failures: u32,
    },
    Attached {
        gone_since: Option<Duration>,
        not_before: Duration,
    },
    Detaching,
    /// Somebody else detached it: it stays away until it was gone.
    Dismissed,
}

/// A disk that is looked after.
#[derive(Debug)]
pub(super) struct Managed {
    pub(super) phase: Phase,
    /// Attached here, and so to be detached here.
    pub(super) is_ours: bool,
    /// The discovery controllers that listed it when it was wanted last; `None`: it has not been wanted yet.
    pub(super) listed_by: Option<BTreeSet<Controller>>,
    /// Since when it is attached; zero of one that was before this began.
    pub(super) since: Duration,
    /// The discovery controller whose disk it is: the one that had listed it longest when it was attached.
    pub(super) holder: Option<Place>,
    /// The place over which it was attached first: of one that was attached before this began it says whose disk it is.
    pub(super) way: Option<Place>,
    /// The paths that it was attached with or given.
    pub(super) paths: Vec<SubsystemPath>,
    /// It is being given some.
    pub(super) is_adding: bool,
    /// One could not be given: when that is tried again.
    pub(super) add_again: Option<Duration>,
    /// Its I/O fails or waits for ever: it was given up, or nobody serves it.
    pub(super) is_dead: bool,
}

impl Managed {
    pub(super) fn new(phase: Phase, is_ours: bool) -> Self {
        Self {
            phase,
            is_ours,
            listed_by: None,
            since: Duration::ZERO,
            holder: None,
            way: None,
            paths: Vec::new(),
            is_adding: false,
            add_again: None,
            is_dead: false,
        }
    }

    /// What is to be done with it. `detach_delay`: how long one is gone before it is detached, where that is done now.
    fn next(
        &mut self,
        disk: &Disk,
        known: Known,
        now: Duration,
        detach_delay: Option<Duration>,
    ) -> Option<Action> {
        match (&mut self.phase, known.subsystem) {
            (&mut Phase::Waits { failures, .. }, Some(subsystem)) if known.has_turn => {
                self.phase = Phase::Attaching { failures };
                // Which disk it is the first one that lists it says: the paths of others are added, each of which must be to this one.
                let paths = subsystem.paths.get(..known.own).unwrap_or_default().to_vec();
                self.paths.clone_from(&paths);
                self.way = self.paths.first().map(|path| path.place.clone());
                self.holder = known.first;
                Some(Action::Attach(disk.clone(), Subsystem { paths, ..subsystem }))
            }
            (Phase::Attached { gone_since, .. }, Some(subsystem)) => {
                *gone_since = None;
                if known.is_of_first {
                    self.holder = known.first;
                }
                let is_due = self.add_again.is_some_and(|at| at <= now);
                // One that is dead is asked only where its target is there, and not again and again.
                let is_wanting = match self.is_dead {
                    true => self.add_again.is_none() && known.is_seen,
                    false => self.paths != subsystem.paths,
                };
                if self.is_adding || !(is_due || is_wanting) {
                    return None;
                }
                (self.is_adding, self.add_again) = (true, None);
                self.paths.clone_from(&subsystem.paths);
                Some(Action::AddPaths(disk.clone(), subsystem))
            }
            (Phase::Attached { gone_since, not_before }, None) if self.is_ours => {
                let delay = detach_delay?;
                if !known.is_answered_for {
                    *gone_since = None;
                    return None;
                }
                let since = *gone_since.get_or_insert(now);
                if since.saturating_add(delay) > now || *not_before > now {
                    return None;
                }
                self.phase = Phase::Detaching;
                Some(Action::Detach(disk.clone()))
            }
            _ => None,
        }
    }
}

/// What is known of a disk now.
struct Known {
    /// The subsystem that has it, where it is wanted.
    subsystem: Option<Subsystem>,
    /// How many of its paths are of whoever named it or has listed it longest.
    own: usize,
    /// The discovery controller that has listed it longest; `None` of one that is named itself.
    first: Option<Place>,
    /// It was not known whose disk it is, and it is of that one.
    is_of_first: bool,
    /// The discovery controllers that list that.
    listed_by: BTreeSet<Controller>,
    /// Those that had it could say now that it is there.
    is_answered_for: bool,
    /// A connection that is there shows it.
    is_seen: bool,
    /// It may begin to be attached.
    has_turn: bool,
}

impl Engine {
    /// What is attached on this machine already, over which place, whether by this service, and whether it is to be brought back.
    pub(crate) fn on_disks(
        &mut self,
        now: Duration,
        disks: impl IntoIterator<Item = (Disk, Option<Place>, bool, bool)>,
    ) {
        for (disk, way, is_ours, is_dead) in disks {
            let phase = Phase::Attached { gone_since: None, not_before: now };
            let managed = self.disks.entry(disk).or_insert(Managed::new(phase, is_ours));
            // The same disk may be attached twice.
            (managed.is_ours, managed.is_dead) = (is_ours, managed.is_dead || is_dead);
            managed.way = managed.way.take().or(way);
        }
        self.advance(now);
    }

    /// How an attach ended. `false`: it failed, and is tried again.
    pub(crate) fn on_attached(&mut self, now: Duration, disk: &Disk, is_attached: bool) {
        let Some(Managed { phase, is_ours, since, .. }) = self.disks.get_mut(disk) else { return };
        let Phase::Attaching { failures } = *phase else { return };
        *phase = if is_attached {
            (*is_ours, *since) = (true, now);
            Phase::Attached { gone_since: None, not_before: now }
        } else {
            let delay = RETRY_DELAY.saturating_mul(1 << failures.min(10)).min(RETRY_DELAY_MAX);
            Phase::Waits { until: now + delay, failures: failures + 1 }
        };
        self.advance(now);
    }

    /// An attached disk was given its paths, or not all of them (`false`): that is tried again.
    pub(crate) fn on_paths_added(&mut self, now: Duration, disk: &Disk, are_added: bool) {
        if let Some(managed) = self.disks.get_mut(disk) {
            managed.is_adding = false;
            managed.add_again = (!are_added).then_some(now + IN_USE_DELAY);
            managed.is_dead &= !are_added;
        }
        self.advance(now);
    }

    /// How a detach ended.
    pub(crate) fn on_detached(&mut self, now: Duration, disk: &Disk, how: Detached) {
        let Some(managed) = self.disks.get_mut(disk) else { return };
        match how {
            Detached::Gone => drop(self.disks.remove(disk)),
            Detached::InUse | Detached::Failed => {
                let not_before = now + IN_USE_DELAY;
                managed.phase = Phase::Attached { gone_since: Some(now), not_before };
            }
        }
        self.advance(now);
    }

    /// The disks that there are on this machine, and which of them are to be brought back: of those that are attached and not among
    /// them, somebody else has disposed.
    pub(crate) fn on_listed(&mut self, now: Duration, disks: &BTreeMap<Disk, bool>) {
        for (disk, managed) in &mut self.disks {
            match disks.get(disk) {
                _ if !matches!(managed.phase, Phase::Attached { .. }) => {}
                Some(&is_dead) => managed.is_dead = is_dead,
                None => managed.phase = Phase::Dismissed,
            }
        }
        self.advance(now);
    }

    /// The subsystem that has a disk, as the first host that sees it does.
    fn watched_with(&self, disk: &Disk) -> Option<&Watched> {
        let of = |watched: &&Watched| watched.nsids.as_ref().is_none_or(|nsids| nsids.contains(&disk.nsid));
        let here = self.watched.iter().filter(|((nqn, _), _)| *nqn == disk.nqn).map(|(_, watched)| watched);
        here.filter(of).min_by_key(|watched| watched.nsids.is_none())
    }

    /// Whether a disk is to be attached; also one of which nothing new is known.
    pub(super) fn is_wanted(&self, disk: &Disk) -> bool {
        self.watched_with(disk).is_some()
    }

    /// Whether those that had a disk, and do not name it any more, could say now that it is there after all. One that starts again
    /// may not have had everything yet when it spoke, and be lost again. And who lists a subsystem that another one has listed before
    /// does not say what is gone from it.
    fn is_answered_for(&self, disk: &Disk, listed_by: Option<&BTreeSet<Controller>>) -> bool {
        let had = |controller| listed_by.is_none_or(|listed_by| listed_by.contains(controller));
        // One that there is no room for may list it still.
        let is_left_out = match listed_by {
            Some(listed_by) => listed_by.iter().any(|it| self.is_left_out(&it.place)),
            None => !self.left_out.is_empty(),
        };
        let mut silent = self.controllers.iter().filter(|(_, followed)| followed.is_away);
        // What it lists still is not wanted for another reason.
        !is_left_out
            && !silent.any(|(controller, followed)| had(controller) && !followed.lists(&disk.nqn))
            && self.has_answered_itself(&disk.nqn)
    }

    /// Whether those that say which namespaces a subsystem has say it now.
    pub(super) fn has_answered_itself(&self, wanted: &str) -> bool {
        let mut watched = self.watched.iter().filter(|((nqn, _), _)| nqn == wanted);
        watched.all(|(_, watched)| watched.has_answered_itself())
    }

    /// Whether the namespace was seen by a connection that is there.
    fn is_seen(&self, disk: &Disk) -> bool {
        let has = |watched: &Watched| watched.nsids.as_ref().is_some_and(|nsids| nsids.contains(&disk.nsid));
        self.watched.iter().any(|((nqn, _), watched)| *nqn == disk.nqn && !watched.is_away && has(watched))
    }

    /// Does what is due by now.
    pub(super) fn advance(&mut self, now: Duration) {
        self.now = now;
        self.take_in(now);
        let turn = self.turn(&self.waiting(now));
        let listing = self.listing();
        let known = |(disk, it)| self.known(disk, it, &listing, turn.contains(disk));
        let known: Vec<_> = self.disks.iter().map(known).collect();
        let detach_delay = (self.policy.detach && self.is_known()).then_some(self.policy.detach_delay);
        for ((disk, managed), mut known) in self.disks.iter_mut().zip(known) {
            if known.subsystem.is_some() {
                managed.listed_by = Some(core::mem::take(&mut known.listed_by));
            }
            self.actions.extend(managed.next(disk, known, now, detach_delay));
        }
    }

    /// The disks that are wanted and may begin to be attached by now. Who waits longest is first: those that fail again and again keep
    /// nobody waiting.
    fn waiting(&self, now: Duration) -> Vec<Disk> {
        let waits = |(disk, managed): (&Disk, &Managed)| match managed.phase {
            Phase::Waits { until, .. } if until <= now && self.is_wanted(disk) => Some((until, disk.clone())),
            _ => None,
        };
        let mut waiting: Vec<_> = self.disks.iter().filter_map(waits).collect();
        waiting.sort();
        waiting.into_iter().map(|(_, disk)| disk).collect()
    }

    /// Who lists the subsystems of the disks. Logs may be long: each is read once.
    fn listing(&self) -> Listing<'_> {
        let mut listing: Listing<'_> =
            self.disks.keys().map(|disk| (disk.nqn.as_str(), Vec::new())).collect();
        for (controller, followed) in &self.controllers {
            for entry in followed.log.iter().flatten() {
                if let Entry::Subsystem { nqn, .. } = entry
                    && let Some(by) = listing.get_mut(nqn.as_str())
                    && by.last() != Some(&controller)
                {
                    by.push(controller);
                }
            }
        }
        listing
    }

    fn known(&self, disk: &Disk, managed: &Managed, listing: &Listing<'_>, has_turn: bool) -> Known {
        let listing = listing.get(disk.nqn.as_str()).into_iter().flatten().copied();
        // Those that there is no room for may list it still.
        let before = managed.listed_by.iter().flatten().filter(|it| self.is_left_out(&it.place));
        let watched = self.watched_with(disk);
        let wanted = watched.map(|watched| &watched.wanted);
        // Whoever lists where it was attached, or may do so when it can be reached.
        let may_be_of_another = || {
            let lists = |way| self.controllers.values().any(|followed| followed.lists_at(&disk.nqn, way));
            !self.is_known() || managed.way.as_ref().is_some_and(lists)
        };
        let is_of_first = |watched: &Watched| {
            let is_there = managed.way.as_ref().is_some_and(|way| watched.wanted.is_own(way));
            is_there || !may_be_of_another() && watched.shows_itself(disk.nsid)
        };
        Known {
            subsystem: wanted.map(|wanted| wanted.subsystem.clone()),
            own: wanted.map_or(0, |wanted| wanted.own),
            first: wanted.and_then(Wanted::first).map(|first| first.place.clone()),
            is_of_first: managed.holder.is_none() && watched.is_some_and(is_of_first),
            listed_by: listing.chain(before).cloned().collect(),
            is_answered_for: self.is_answered_for(disk, managed.listed_by.as_ref()),
            is_seen: self.is_seen(disk),
            has_turn,
        }
    }
}
