//! Which subsystems are watched: those that are named, and those that discovery controllers list.
//!
//! Each is a connection and a thread, and how many are listed others say. Where there are too many, those that are watched or attached
//! already stay: whoever fills a log takes nothing from anybody.

use super::{Action, Controller, Engine, Entry, Place, Seen, Subsystem, SubsystemPath, Watched};
use super::{host, of_all_paths};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

impl Engine {
    /// Finds which subsystems are wanted, and the ways to each.
    pub(super) fn watch(&mut self, now: Duration) {
        let (wanted, left_out) = self.wanted();
        self.beyond.subsystems = left_out;
        let gone: Vec<_> = self.watched.keys().filter(|seen| !wanted.contains_key(*seen)).cloned().collect();
        for seen in gone {
            self.watched.remove(&seen);
            self.actions.push_back(Action::Unwatch(seen));
        }
        for (seen, subsystem) in wanted {
            match self.watched.get_mut(&seen) {
                Some(watched) if watched.subsystem == subsystem => {}
                // It has another way: whoever attaches from now on takes it. It is connected anew.
                Some(watched) => {
                    (watched.subsystem, watched.is_away) = (subsystem.clone(), true);
                    self.actions.push_back(Action::Watch(subsystem));
                }
                None => {
                    self.watched
                        .insert(seen, Watched { subsystem: subsystem.clone(), nsids: None, is_away: false });
                    self.actions.push_back(Action::Watch(subsystem));
                }
            }
        }
        self.advance(now);
    }

    /// The subsystems, and how many more are listed.
    fn wanted(&self) -> (BTreeMap<Seen, Subsystem>, usize) {
        let fixed = self.fixed.iter().filter(|it| self.policy.allows(&it.nqn));
        let mut wanted: BTreeMap<Seen, Subsystem> = BTreeMap::new();
        for subsystem in fixed {
            match wanted.get_mut(&subsystem.seen()) {
                Some(before) => subsystem.paths.iter().for_each(|path| before.add(path.clone())),
                None => drop(wanted.insert(subsystem.seen(), subsystem.clone())),
            }
        }
        // What is configured with TLS is reached in no other way, whatever a log says that nobody has authenticated.
        let insists = self.fixed.iter().filter(|it| it.has_tls()).map(|it| it.nqn.as_str());
        let insists: BTreeSet<_> = insists.collect();
        let watched = self.watched.keys().map(|(nqn, _)| nqn);
        let known: BTreeSet<_> = watched.chain(self.disks.keys().map(|disk| &disk.nqn)).collect();
        let mut left_out: BTreeSet<&str> = BTreeSet::new();
        let mut controllers: Vec<_> = self.controllers.iter().collect();
        // The nearest says with which options.
        controllers.sort_by_key(|(_, followed)| followed.origin.depth);
        let of_each = controllers.into_iter().map(|(controller, followed)| {
            let mut listed: Vec<_> = self.listed(followed.log.as_deref().unwrap_or_default()).collect();
            listed.sort_by_key(|(nqn, ..)| !known.contains(nqn));
            (controller, listed)
        });
        let of_each: Vec<_> = of_each.collect();
        let names: BTreeSet<_> =
            of_each.iter().flat_map(|(_, listed)| listed).map(|(nqn, ..)| *nqn).collect();
        let stays = |seen: &&Seen| wanted.contains_key(*seen) || names.contains(&seen.0);
        let mut room = self.subsystems_max.saturating_sub(self.watched.keys().filter(stays).count());
        for (controller, listed) in of_each {
            let (options, mut own) = (&controller.options, 0);
            for (nqn, place, tls) in listed {
                let seen = (nqn.clone(), host(options));
                if !wanted.contains_key(&seen) {
                    if !known.contains(nqn) {
                        if room == 0 || own >= self.subsystems_max / 2 {
                            left_out.insert(nqn);
                            continue;
                        }
                        room -= 1;
                    }
                    own += 1;
                }
                let subsystem = wanted.entry(seen).or_insert_with(|| Subsystem {
                    nqn: nqn.clone(),
                    paths: Vec::new(),
                    options: of_all_paths(options),
                });
                subsystem.add(path(controller, place, tls || insists.contains(&**nqn)));
            }
        }
        (wanted, left_out.len())
    }

    /// What the policy allows of the subsystems in a log: where each is, and whether with TLS only.
    fn listed<'a>(&'a self, log: &'a [Entry]) -> impl Iterator<Item = (&'a String, &'a Place, bool)> {
        log.iter().filter_map(|entry| match entry {
            Entry::Subsystem { nqn, place, tls }
                if self.policy.allows(nqn) && self.policy.allows_transport(&place.transport) =>
            {
                Some((nqn, place, *tls))
            }
            _ => None,
        })
    }
}

/// The path to a place that a controller lists.
fn path(controller: &Controller, place: &Place, needs_tls: bool) -> SubsystemPath {
    let options = &controller.options;
    let mut path = SubsystemPath::new(place.clone(), options);
    if needs_tls && !options.iter().any(|option| option == "--tls" || option == "--concat") {
        path.options.push("--tls".to_owned());
    }
    path
}
