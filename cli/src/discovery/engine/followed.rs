//! Which discovery controllers are followed: those that are named, those that are announced, and those that these refer to.
//!
//! Each is a connection and a thread, and how many there are to be others say. What is followed and referred to still stays, and each
//! that is named has its share of the places for what it refers to: whoever fills a log takes nothing from anybody. Whom there is no
//! room for may list disks still.

use super::{Action, Controller, Engine, Entry, Place};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Discovery controllers that are followed at once: referrals may lead in circles, and to many.
const CONTROLLERS_MAX: usize = 256;
/// Of them, those that anybody on the network announces, with what they refer to.
const ANNOUNCED_MAX: usize = 64;
/// Entries of logs: with so many of one root, nobody further that it leads to is followed, nor who says much more than before.
const ENTRIES_MAX: usize = 16 * 1024;
/// Entries that each has room for that is followed.
const ENTRIES_OF_EACH: usize = ENTRIES_MAX / CONTROLLERS_MAX;
/// Referrals behind one another.
const DEPTH_MAX: u32 = 8;
/// Of those that were followed behind one that there is no room for, how many are known.
const BEHIND_MAX: usize = 16 * CONTROLLERS_MAX;

/// Where the referrals to a controller begin: one that is named, or (`None`) all that are announced.
pub(in crate::discovery) type Root = Option<Controller>;

/// A discovery controller that is followed.
#[derive(Debug)]
pub(super) struct Followed {
    pub(super) origin: Origin,
    /// What it said last; `None`: nothing yet.
    pub(super) log: Option<Vec<Entry>>,
    /// How many entries of it there was room for.
    heard: Option<usize>,
    /// It cannot say now that it was mistaken.
    pub(super) is_away: bool,
}

/// Why a controller is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) root: Root,
    /// How many referrals lead there.
    pub(super) depth: u32,
}

impl Followed {
    pub(super) fn lists(&self, wanted: &str) -> bool {
        let is_it = |entry: &Entry| matches!(entry, Entry::Subsystem { nqn, .. } if nqn == wanted);
        self.log.iter().flatten().any(is_it)
    }

    /// Whether it lists the subsystem there.
    pub(super) fn lists_at(&self, wanted: &str, at: &Place) -> bool {
        let is_it = |entry: &Entry| matches!(entry, Entry::Subsystem { nqn, place, .. } if nqn == wanted && place.is(at));
        self.log.iter().flatten().any(is_it)
    }
}

/// How well a controller has its place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// It is not followed.
    New,
    /// It is, and has said nothing yet, or says much more than before.
    Followed,
    /// There was room for what it says.
    Heard,
}

/// Those with the best standing have a place first.
const STANDINGS: [Standing; 3] = [Standing::Heard, Standing::Followed, Standing::New];

/// Those that are to be followed.
#[derive(Default)]
struct Chosen {
    origins: BTreeMap<Controller, Origin>,
    places: BTreeSet<Place>,
    /// How many there are, and how many entries their logs have.
    of_root: BTreeMap<Root, (usize, usize)>,
}

impl Chosen {
    /// Whether there is a place for one more with this root, of which there may be `most`.
    fn has_place(&self, root: &Root, most: usize) -> bool {
        let is_within = |&(count, _): &(usize, usize)| count < most;
        self.origins.len() < CONTROLLERS_MAX && self.of_root.get(root).is_none_or(is_within)
    }

    /// Whether there is room for more entries.
    fn has_room(&self, root: &Root) -> bool {
        self.of_root.get(root).is_none_or(|&(_, entries)| entries < ENTRIES_MAX)
    }

    /// `entries`: how many its log has.
    fn add(&mut self, controller: Controller, origin: Origin, entries: usize) {
        self.places.insert(controller.place.clone());
        let of_root = self.of_root.entry(origin.root.clone()).or_default();
        *of_root = (of_root.0 + 1, of_root.1 + entries);
        self.origins.insert(controller, origin);
    }
}

impl Engine {
    /// Finds which discovery controllers are to be followed.
    pub(super) fn follow(&mut self, now: Duration) {
        let chosen = self.chosen();
        self.left_out =
            self.referrals(&chosen).filter(|place| !chosen.places.contains(*place)).cloned().collect();
        self.beyond.referrals = self.left_out.len();
        self.behind = self.behind(&chosen);
        let gone = self.controllers.keys().filter(|it| !chosen.origins.contains_key(it));
        for controller in gone.cloned().collect::<Vec<_>>() {
            self.controllers.remove(&controller);
            self.actions.push_back(Action::Leave(controller));
        }
        for (controller, origin) in chosen.origins {
            match self.controllers.get_mut(&controller) {
                Some(followed) => followed.origin = origin,
                None => {
                    self.controllers.insert(
                        controller.clone(),
                        Followed { origin, log: None, heard: None, is_away: false },
                    );
                    self.actions.push_back(Action::Follow(controller));
                }
            }
        }
        for followed in self.controllers.values_mut() {
            followed.heard = followed.log.as_ref().map(Vec::len);
        }
        self.watch(now);
    }

    /// Whether somebody may be there who is not followed for lack of room alone.
    pub(super) fn is_left_out(&self, place: &Place) -> bool {
        self.left_out.contains(place) || self.behind.contains_key(place)
    }

    /// Those that have listed a disk, and were followed because of one that there is no room for now.
    fn behind(&self, chosen: &Chosen) -> BTreeMap<Place, Place> {
        let left_out = self.controllers.keys().filter(|it| !chosen.origins.contains_key(*it));
        let left_out = left_out.filter(|it| self.left_out.contains(&it.place));
        let mut waiting: Vec<_> = left_out.map(|it| (it, &it.place)).collect();
        if waiting.is_empty() && self.behind.is_empty() {
            return BTreeMap::new();
        }
        let is_lost = |place: &&Place| !chosen.places.contains(*place) && !self.left_out.contains(*place);
        let listing: BTreeSet<_> =
            self.disks.values().flat_map(|it| &it.listed_by).flatten().map(|it| &it.place).collect();
        let before = self
            .behind
            .iter()
            .filter(|(place, by)| is_lost(place) && self.left_out.contains(*by) && listing.contains(place));
        let mut behind: BTreeMap<_, _> = before.map(|(place, by)| (place.clone(), by.clone())).collect();
        let mut seen = BTreeSet::new();
        while let Some((controller, by)) = waiting.pop() {
            for place in self.referrals_of(controller).filter(is_lost) {
                let followed = self.controllers.keys().find(|it| it.place == *place);
                let Some(followed) = followed.filter(|_| seen.insert(place)) else { continue };
                waiting.push((followed, by));
                if listing.contains(place) && behind.len() < BEHIND_MAX {
                    behind.insert(place.clone(), by.clone());
                }
            }
        }
        behind
    }

    fn chosen(&self) -> Chosen {
        let mut chosen = Chosen::default();
        for controller in &self.configured {
            let origin = Origin { root: Some(controller.clone()), depth: 0 };
            chosen.add(controller.clone(), origin, self.entries_of(controller));
        }
        // A root is one of its own places.
        let share = 1 + CONTROLLERS_MAX.saturating_sub(self.configured.len()) / self.configured.len().max(1);
        for most in [share, usize::MAX] {
            for least in STANDINGS {
                self.refer(&mut chosen, most, least);
            }
        }
        // Nobody has named these, and they take nothing from those that somebody has.
        for least in STANDINGS {
            for controller in &self.announced {
                let origin = Origin { root: None, depth: 0 };
                self.choose(&mut chosen, controller.clone(), origin, ANNOUNCED_MAX, least);
            }
            self.refer(&mut chosen, ANNOUNCED_MAX, least);
        }
        chosen
    }

    /// Chooses what the chosen ones refer to, the nearest first, with `most` of a root: those with this standing at least.
    fn refer(&self, chosen: &mut Chosen, most: usize, least: Standing) {
        let mut waiting: Vec<_> =
            chosen.origins.iter().map(|(it, origin)| (it.clone(), origin.clone())).collect();
        waiting.sort_by_key(|(_, origin)| origin.depth);
        let mut waiting = VecDeque::from(waiting);
        while let Some((controller, origin)) = waiting.pop_front() {
            let has_room = least != Standing::New || chosen.has_room(&origin.root);
            if origin.depth == DEPTH_MAX || !chosen.has_place(&origin.root, most) || !has_room {
                continue;
            }
            for place in self.referrals_of(&controller) {
                if chosen.places.contains(place) {
                    continue;
                }
                let referred = Controller { place: place.clone(), options: controller.options.clone() };
                let origin = Origin { depth: origin.depth + 1, ..origin.clone() };
                if self.choose(chosen, referred.clone(), origin.clone(), most, least) {
                    waiting.push_back((referred, origin));
                }
            }
        }
    }

    /// Chooses a controller if there is room for it.
    fn choose(
        &self,
        chosen: &mut Chosen,
        it: Controller,
        origin: Origin,
        most: usize,
        least: Standing,
    ) -> bool {
        let standing = self.standing(&it, &origin.root);
        let is_chosen = standing >= least
            && chosen.has_place(&origin.root, most)
            && (standing == Standing::Heard || chosen.has_room(&origin.root))
            && !chosen.places.contains(&it.place);
        if is_chosen {
            let entries = self.entries_of(&it);
            chosen.add(it, origin, entries);
        }
        is_chosen
    }

    fn standing(&self, controller: &Controller, root: &Root) -> Standing {
        let followed = self.controllers.get(controller).filter(|it| it.origin.root == *root);
        let Some(followed) = followed else { return Standing::New };
        let said = followed.log.as_ref().map(Vec::len);
        let is_heard = said.is_some() && said <= followed.heard.max(Some(ENTRIES_OF_EACH));
        if is_heard { Standing::Heard } else { Standing::Followed }
    }

    /// How many entries the log of a controller has.
    fn entries_of(&self, controller: &Controller) -> usize {
        self.controllers.get(controller).and_then(|followed| followed.log.as_ref()).map_or(0, Vec::len)
    }

    /// Where the referrals to a controller begin; `None` of one that is named itself.
    pub(crate) fn root_of_controller(&self, controller: &Controller) -> Option<&Root> {
        let origin = &self.controllers.get(controller)?.origin;
        (origin.depth > 0 || origin.root.is_none()).then_some(&origin.root)
    }

    /// Where the chosen ones refer to, and what is announced.
    fn referrals<'a>(&'a self, chosen: &'a Chosen) -> impl Iterator<Item = &'a Place> {
        let announced = self.announced.iter().map(|controller| &controller.place);
        announced.chain(chosen.origins.keys().flat_map(|controller| self.referrals_of(controller)))
    }

    /// Where a controller refers to, as far as the policy allows.
    fn referrals_of(&self, controller: &Controller) -> impl Iterator<Item = &Place> {
        let log = self.controllers.get(controller).and_then(|followed| followed.log.as_ref());
        let entries = log.into_iter().flatten().filter(|_| self.policy.referrals);
        entries.filter_map(|entry| match entry {
            Entry::Referral(place) if self.policy.allows_transport(&place.transport) => Some(place),
            _ => None,
        })
    }
}
