//! Which subsystems are watched: those that are named, and those that discovery controllers list.
//!
//! Each is a connection and a thread, and how many are listed others say. Where there are too many, those that are watched or attached
//! already stay: whoever fills a log takes nothing from anybody. Nor does who lists what somebody else has listed before: it adds
//! paths behind those that are there, to disks that are attached by then, and has TLS on them where all paths of the first have it.
//! Who is first `listers` decides.

use super::followed::Root;
use super::listers::{Lister, sort};
use super::{Action, Controller, Engine, Entry, Place, Seen, Subsystem, SubsystemPath, Tls};
use super::{host, of_all_paths};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// Paths of one disk.
pub(in crate::discovery) const PATHS_MAX: usize = 64;

/// A subsystem that is to be watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) subsystem: Subsystem,
    /// It is named itself, whoever lists it besides.
    is_named: bool,
    /// How many of its paths, at the front, are of whoever named it or has listed it longest.
    pub(super) own: usize,
    /// The discovery controllers that list it: who has listed it longest is first.
    pub(super) listed_by: Vec<Controller>,
}

/// A subsystem that is watched.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) wanted: Wanted,
    /// What it said last.
    pub(super) nsids: Option<BTreeSet<u32>>,
    /// Where it was when it said that.
    pub(super) answered_at: Option<Place>,
    /// It cannot say now that it has others.
    pub(super) is_away: bool,
    /// It is asked, and has not said anything since.
    pub(super) is_asked: bool,
}

impl Wanted {
    fn own(&self) -> &[SubsystemPath] {
        self.subsystem.paths.get(..self.own).unwrap_or_default()
    }

    /// Whether whoever named it or has listed it longest has it there.
    pub(super) fn is_own(&self, place: &Place) -> bool {
        self.own().iter().any(|path| path.place.is(place))
    }

    /// Who has listed it longest; `None` of one that is named itself.
    pub(super) fn first(&self) -> Option<&Controller> {
        self.listed_by.first().filter(|_| !self.is_named)
    }

    /// Adds the paths that controllers list. Behind the paths of the first, each of the others has a share of the places.
    fn add(&mut self, listed: Vec<Lister<'_>>) {
        let others = listed.len().saturating_sub(usize::from(self.own == 0));
        let (mut most, share) = match others {
            0 => (PATHS_MAX, PATHS_MAX),
            others => (PATHS_MAX / 2, (PATHS_MAX / 2 / others).max(1)),
        };
        for Lister { paths, .. } in &listed {
            if self.own > 0 {
                most = (self.subsystem.paths.len() + share).min(PATHS_MAX);
            }
            paths.iter().for_each(|path| self.subsystem.add(path, most));
            if self.own == 0 {
                self.own = self.subsystem.paths.len();
            }
        }
        listed.iter().flat_map(|it| &it.paths).for_each(|path| self.subsystem.add(path, PATHS_MAX));
        self.listed_by = listed.into_iter().map(|it| it.controller.clone()).collect();
    }
}

impl Watched {
    /// Whether it was asked where whoever listed it first has it: another place under its name may have other namespaces.
    pub(super) fn has_answered_itself(&self) -> bool {
        !self.is_away && self.has_said_itself()
    }

    /// The same of what it said last, also where it is away by now.
    pub(super) fn has_said_itself(&self) -> bool {
        self.said_at_one_of(&self.wanted)
    }

    /// Whether it has shown a namespace there.
    pub(super) fn shows_itself(&self, nsid: u32) -> bool {
        self.has_answered_itself() && self.nsids.as_ref().is_some_and(|nsids| nsids.contains(&nsid))
    }

    fn said_at_one_of(&self, wanted: &Wanted) -> bool {
        self.answered_at.as_ref().is_some_and(|at| wanted.is_own(at))
    }

    /// Whether its connection goes on when this is wanted.
    fn goes_on(&self, wanted: &Wanted) -> bool {
        self.wanted.subsystem.options == wanted.subsystem.options
            && (self.wanted.own() == wanted.own() || !self.is_away && self.said_at_one_of(wanted))
    }
}

impl Engine {
    /// Finds which subsystems are wanted, and the ways to each.
    pub(super) fn watch(&mut self, now: Duration) {
        let (wanted, left_out) = self.wanted();
        self.beyond.subsystems = left_out;
        self.has_begun |= self.is_configured && self.have_all_named_spoken();
        let gone: Vec<_> = self.watched.keys().filter(|seen| !wanted.contains_key(*seen)).cloned().collect();
        for seen in gone {
            self.watched.remove(&seen);
            self.actions.push_back(Action::Unwatch(seen));
        }
        for (seen, wanted) in wanted {
            let subsystem = wanted.subsystem.clone();
            let Some(watched) = self.watched.get_mut(&seen) else {
                let watched =
                    Watched { wanted, nsids: None, answered_at: None, is_away: false, is_asked: true };
                self.watched.insert(seen, watched);
                self.actions.push_back(Action::Watch(subsystem));
                continue;
            };
            let (goes_on, is_other) = (watched.goes_on(&wanted), watched.wanted.subsystem != subsystem);
            watched.wanted = wanted;
            if !goes_on {
                // It has another way: whoever attaches from now on takes it. It is connected anew.
                (watched.is_away, watched.answered_at, watched.is_asked) = (true, None, true);
                self.actions.push_back(Action::Watch(subsystem));
            } else if is_other {
                self.actions.push_back(Action::Widen(subsystem));
            }
        }
        self.advance(now);
    }

    /// The subsystems, and how many more are listed.
    fn wanted(&self) -> (BTreeMap<Seen, Wanted>, usize) {
        let mut wanted: BTreeMap<Seen, Wanted> = BTreeMap::new();
        for subsystem in self.fixed.iter().filter(|it| self.policy.allows(&it.nqn)) {
            let none = || Wanted {
                subsystem: Subsystem { paths: Vec::new(), ..subsystem.clone() },
                is_named: true,
                own: 0,
                listed_by: Vec::new(),
            };
            let wanted = wanted.entry(subsystem.seen()).or_insert_with(none);
            subsystem.paths.iter().for_each(|path| wanted.subsystem.add(path, PATHS_MAX));
            wanted.own = wanted.subsystem.paths.len();
        }
        let (listed, left_out) = self.listed(&wanted);
        let held = self.held();
        for (seen, mut listed) in listed {
            let watched = self.watched.get(&seen);
            let before = watched.map_or(&[][..], |watched| &watched.wanted.listed_by[..]);
            let is_anew = !self.has_begun && watched.is_none_or(|watched| watched.nsids.is_none());
            sort(&mut listed, held.get(seen.0.as_str()), before, is_anew);
            if let Some((first, others)) = listed.split_first_mut()
                && first.insists()
            {
                others.iter_mut().flat_map(|it| &mut it.paths).for_each(|path| path.own.tls = true);
            }
            let options = listed.first().map(|it| of_all_paths(&it.controller.options));
            let none = || Wanted {
                subsystem: Subsystem {
                    nqn: seen.0.clone(),
                    paths: Vec::new(),
                    options: options.unwrap_or_default(),
                },
                is_named: false,
                own: 0,
                listed_by: Vec::new(),
            };
            wanted.entry(seen.clone()).or_insert_with(none).add(listed);
        }
        (wanted, left_out)
    }

    /// What discovery controllers list beside what is wanted already, as far as there is room; and how many subsystems that leaves out.
    fn listed(&self, wanted: &BTreeMap<Seen, Wanted>) -> (BTreeMap<Seen, Vec<Lister<'_>>>, usize) {
        // What is configured with TLS is reached in no other way, whatever a log says that nobody has authenticated.
        let insists = self.fixed.iter().filter(|it| it.has_tls()).map(|it| it.nqn.as_str());
        let insists: BTreeSet<_> = insists.collect();
        let watched = self.watched.keys().map(|(nqn, _)| nqn);
        let known: BTreeSet<_> = watched.chain(self.disks.keys().map(|disk| &disk.nqn)).collect();
        let mut controllers: Vec<_> = self.controllers.iter().collect();
        // The nearest comes first.
        controllers.sort_by_key(|(_, followed)| followed.origin.depth);
        let of_each = controllers.into_iter().map(|(controller, followed)| {
            let mut entries: Vec<_> = self.allowed(followed.log.as_deref().unwrap_or_default()).collect();
            entries.sort_by_key(|(nqn, ..)| !known.contains(nqn));
            (controller, &followed.origin.root, entries)
        });
        let of_each: Vec<_> = of_each.collect();
        let seen = |controller: &Controller, nqn: &String| (nqn.clone(), host(&controller.options));
        // Those that are known count before any that is new: also of a controller that has its turn later.
        let mut of_root: BTreeMap<&Root, usize> = BTreeMap::new();
        let mut kept = BTreeSet::new();
        for (controller, root, entries) in &of_each {
            for (nqn, ..) in entries.iter().filter(|(nqn, ..)| known.contains(nqn)) {
                let seen = seen(controller, nqn);
                if !wanted.contains_key(&seen) && kept.insert(seen) {
                    *of_root.entry(*root).or_default() += 1;
                }
            }
        }
        let mut room = self.limits.subsystems.saturating_sub(kept.len());
        let (mut listed, mut left_out): (BTreeMap<Seen, Vec<Lister<'_>>>, BTreeSet<&str>) =
            Default::default();
        for (controller, root, entries) in of_each {
            let own = of_root.entry(root).or_default();
            for (nqn, place, tls) in entries {
                let seen = seen(controller, nqn);
                if !wanted.contains_key(&seen) && !listed.contains_key(&seen) && !known.contains(nqn) {
                    if room == 0 || *own >= self.limits.subsystems / 2 {
                        left_out.insert(nqn);
                        continue;
                    }
                    room -= 1;
                    *own += 1;
                }
                let by = listed.entry(seen).or_default();
                if by.last().is_none_or(|it| it.controller != controller) {
                    by.push(Lister::new(controller, root));
                }
                if let Some(lister) = by.last_mut() {
                    lister.add(place, tls, insists.contains(&**nqn));
                }
            }
        }
        (listed, left_out.len())
    }

    /// What the policy allows of the subsystems in a log: where each is, and whether with TLS only.
    fn allowed<'a>(&'a self, log: &'a [Entry]) -> impl Iterator<Item = (&'a String, &'a Place, Tls)> {
        log.iter().filter_map(|entry| match entry {
            Entry::Subsystem { nqn, place, tls }
                if self.policy.allows(nqn) && self.policy.allows_transport(&place.transport) =>
            {
                Some((nqn, place, *tls))
            }
            _ => None,
        })
    }

    /// Where the referrals begin to a subsystem that is watched; `None` of one that is named itself.
    pub(crate) fn root_of_subsystem(&self, seen: &Seen) -> Option<&Root> {
        self.watched.get(seen).and_then(|watched| self.root(watched))
    }

    /// How many of the paths of a subsystem that is watched, at the front, are of whoever named it or has listed it longest.
    pub(crate) fn own_paths(&self, seen: &Seen) -> usize {
        self.watched.get(seen).map_or(0, |watched| watched.wanted.own)
    }

    /// Where the referrals begin to whoever has listed a subsystem longest; `None` of one that is named itself.
    pub(super) fn root(&self, watched: &Watched) -> Option<&Root> {
        self.controllers.get(watched.wanted.first()?).map(|followed| &followed.origin.root)
    }
}
