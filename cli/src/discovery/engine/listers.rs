//! Several discovery controllers that list one subsystem: which of them is first, and so says which disks it has.

use super::disks::Phase;
use super::followed::Root;
use super::{Controller, Engine, Place, SubsystemPath, Tls};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// A discovery controller that lists a subsystem.
pub(super) struct Lister<'a> {
    pub(super) controller: &'a Controller,
    root: &'a Root,
    /// Where.
    pub(super) paths: Vec<SubsystemPath>,
    /// This host has no key for those of them that are for TLS as the log says.
    lacks_key: bool,
}

/// Whose the attached disks of a subsystem are, and since when.
#[derive(Default)]
pub(super) struct Held<'a> {
    /// By where the discovery controllers are.
    by: BTreeMap<&'a Place, Duration>,
    /// Where that is not known, or nobody is followed there any more: by where they were attached.
    at: BTreeMap<&'a Place, Duration>,
}

impl<'a> Lister<'a> {
    pub(super) fn new(controller: &'a Controller, root: &'a Root) -> Self {
        Self { controller, root, paths: Vec::new(), lacks_key: false }
    }

    /// It lists a path. `insists`: that has TLS, whatever the log says.
    pub(super) fn add(&mut self, place: &Place, tls: Tls, insists: bool) {
        let options = &self.controller.options;
        let mut path = SubsystemPath::new(place.clone(), options);
        if !options.iter().any(|option| option == "--tls" || option == "--concat") {
            path.own.tls |= insists || tls != Tls::No;
            // Who names the option insists, with a key or without.
            self.lacks_key |= tls == Tls::WithoutKey;
        }
        self.paths.push(path);
    }

    fn has_tls_only(&self) -> bool {
        self.paths.iter().all(|path| path.own.tls)
    }

    /// Whether the subsystem is reached by TLS only. What this host cannot have anyway insists on nothing.
    pub(super) fn insists(&self) -> bool {
        self.has_tls_only() && !self.lacks_key
    }

    fn is_usable(&self) -> bool {
        !self.has_tls_only() || !self.lacks_key
    }
}

impl Held<'_> {
    /// Since when a disk is attached that is the one of whoever lists it so.
    fn since(&self, lister: &Lister<'_>) -> Option<Duration> {
        let listed = self.at.iter().filter(|(way, _)| lister.paths.iter().any(|path| path.place.is(way)));
        let at = listed.map(|(_, since)| since);
        self.by.get(&lister.controller.place).into_iter().chain(at).min().copied()
    }
}

/// Puts those that list a subsystem into their order. First are those that somebody has named, or has referred to; of them those whose
/// disk is attached, the longest first; then those that this host can connect to; then who has listed it longest (`before`). Where it is
/// listed anew, as all is when this begins, who insists on TLS comes before who does not.
pub(super) fn sort(listed: &mut [Lister<'_>], held: Option<&Held<'_>>, before: &[Controller], is_anew: bool) {
    listed.sort_by_cached_key(|lister| {
        let since = held.and_then(|held| held.since(lister)).unwrap_or(Duration::MAX);
        let place = before.iter().position(|it| it == lister.controller).unwrap_or(usize::MAX);
        (lister.root.is_none(), since, !lister.is_usable(), is_anew && !lister.insists(), place)
    });
}

impl Engine {
    /// Whose the attached disks of each subsystem are.
    pub(super) fn held(&self) -> BTreeMap<&str, Held<'_>> {
        let followed: BTreeSet<_> = self.controllers.keys().map(|controller| &controller.place).collect();
        let mut held: BTreeMap<&str, Held<'_>> = BTreeMap::new();
        for (disk, managed) in &self.disks {
            if !matches!(managed.phase, Phase::Attached { .. }) {
                continue;
            }
            let held = held.entry(&disk.nqn).or_default();
            let holder = managed.holder.as_ref().filter(|holder| followed.contains(holder));
            let (held, place) = match holder {
                Some(holder) => (&mut held.by, Some(holder)),
                None => (&mut held.at, managed.way.as_ref()),
            };
            if let Some(place) = place {
                let since = held.entry(place).or_insert(managed.since);
                *since = managed.since.min(*since);
            }
        }
        held
    }

    /// Whether every discovery controller that is named has said something, or could not be reached.
    pub(super) fn have_all_named_spoken(&self) -> bool {
        let mut named = self.controllers.iter().filter(|(it, _)| self.configured.contains(it));
        named.all(|(_, followed)| followed.log.is_some() || followed.is_away)
    }
}
