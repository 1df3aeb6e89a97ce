//! What is followed and attached: decided from what discovery controllers and subsystems say. No I/O, no clock.
//!
//! What discovery controllers list is wanted, as far as the policy allows. What is wanted and not attached is attached; what was
//! attached here and has not been wanted for a while is detached, unless it is in use. A controller that is away changes nothing: what
//! it said last counts until it says something else, and no time passes for what it said to be gone.
//!
//! | file | what it decides |
//! |---|---|
//! | `fabric` | nothing: what there is to be decided about |
//! | `followed` | which discovery controllers are followed |
//! | `wanted` | which subsystems are watched |
//! | `listers` | which of several that list one is the first |
//! | `disks` | which disks are attached, given paths and detached, and when |
//! | `shares` | which of them may have a place, and their turn, among others |
//! | `limits` | how many of each there are at most |

mod disks;
mod fabric;
mod followed;
mod limits;
mod listers;
mod shares;
#[cfg(test)]
mod tests;
mod wanted;

pub(crate) use fabric::{Controller, Disk, Entry, Place, Subsystem, SubsystemPath, Tls};
pub(super) use fabric::{Seen, host, is_same_host, of_all_paths};
pub(super) use followed::Root;
pub(crate) use limits::{Beyond, Limits};
pub(super) use wanted::PATHS_MAX;

use super::policy::Policy;
use core::time::Duration;
use disks::{Managed, Phase};
use followed::Followed;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use wanted::Watched;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Connect to a discovery controller, stay connected, and tell each log that it has ([`Engine::on_log`]).
    Follow(Controller),
    /// Leave it.
    Leave(Controller),
    /// Connect to a subsystem, stay connected, and tell each list of namespaces ([`Engine::on_namespaces`]).
    Watch(Subsystem),
    /// It has other paths: to be used when it is connected to anew, as where it was lost.
    Widen(Subsystem),
    /// Leave it.
    Unwatch(Seen),
    /// Attach a namespace, over paths of one that names or lists it; then [`Engine::on_attached`].
    Attach(Disk, Subsystem),
    /// Bring an attached disk back if it is dead, and give it the paths that it does not have; then [`Engine::on_paths_added`].
    AddPaths(Disk, Subsystem),
    /// Detach it unless it is in use; then [`Engine::on_detached`].
    Detach(Disk),
}

/// How a detach ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detached {
    Gone,
    InUse,
    Failed,
}

/// Follows discovery.
#[derive(Debug)]
pub(crate) struct Engine {
    policy: Policy,
    /// Discovery controllers that are named.
    configured: BTreeSet<Controller>,
    /// Those that are announced on the network.
    announced: BTreeSet<Controller>,
    /// Subsystems that are wanted whatever discovery controllers say.
    fixed: Vec<Subsystem>,
    /// Where to begin is known.
    is_configured: bool,
    controllers: BTreeMap<Controller, Followed>,
    /// Every controller that is named has said something, since this began.
    has_begun: bool,
    /// Where others refer to and nobody is followed, for lack of room.
    left_out: BTreeSet<Place>,
    /// Who was followed behind one of those, by which of them.
    behind: BTreeMap<Place, Place>,
    watched: BTreeMap<Seen, Watched>,
    disks: BTreeMap<Disk, Managed>,
    limits: Limits,
    beyond: Beyond,
    /// When it was last told something.
    now: Duration,
    actions: VecDeque<Action>,
}

impl Engine {
    pub(crate) fn new(policy: Policy) -> Self {
        Self {
            policy,
            configured: BTreeSet::new(),
            announced: BTreeSet::new(),
            fixed: Vec::new(),
            is_configured: false,
            controllers: BTreeMap::new(),
            has_begun: false,
            left_out: BTreeSet::new(),
            behind: BTreeMap::new(),
            watched: BTreeMap::new(),
            disks: BTreeMap::new(),
            limits: Limits::NONE,
            beyond: Beyond::default(),
            now: Duration::ZERO,
            actions: VecDeque::new(),
        }
    }

    /// The same, with no more than this.
    pub(crate) fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// What to do; ask after every call of another method, until `None`.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Engine::on_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        let is_known = self.is_known();
        let due = |(disk, managed): (&Disk, &Managed)| match managed.phase {
            // One that is overdue has its turn when another one is done.
            Phase::Waits { until, .. } => (until > self.now && self.is_wanted(disk)).then_some(until),
            Phase::Attached { gone_since: None, .. } => managed.add_again.filter(|_| self.is_wanted(disk)),
            Phase::Attached { gone_since: Some(since), not_before }
                if managed.is_ours && self.policy.detach && is_known =>
            {
                Some(since.saturating_add(self.policy.detach_delay).max(not_before))
            }
            _ => None,
        };
        self.disks.iter().filter_map(due).min()
    }

    /// Time has passed.
    pub(crate) fn on_timeout(&mut self, now: Duration) {
        self.advance(now);
    }

    /// The policy is another from now on.
    pub(crate) fn on_policy(&mut self, now: Duration, policy: Policy) {
        self.policy = policy;
        self.follow(now);
    }

    /// The discovery controllers to begin with, all of them, from files; and the subsystems that are named themselves.
    pub(crate) fn on_configured(
        &mut self,
        now: Duration,
        controllers: impl IntoIterator<Item = Controller>,
        subsystems: Vec<Subsystem>,
    ) {
        self.configured = controllers.into_iter().collect();
        self.fixed = subsystems;
        self.is_configured = true;
        self.follow(now);
    }

    /// The discovery controllers that are announced on the network, all of them.
    pub(crate) fn on_announced(&mut self, now: Duration, controllers: impl IntoIterator<Item = Controller>) {
        self.announced = controllers.into_iter().collect();
        self.follow(now);
    }

    /// The log of a controller that is followed.
    pub(crate) fn on_log(&mut self, now: Duration, controller: &Controller, log: Vec<Entry>) {
        if let Some(followed) = self.controllers.get_mut(controller) {
            (followed.log, followed.is_away) = (Some(log), false);
            self.follow(now);
        }
    }

    /// A controller that is followed was lost; [`Engine::on_log`] follows when it is there again.
    pub(crate) fn on_controller_away(&mut self, now: Duration, controller: &Controller) {
        if let Some(followed) = self.controllers.get_mut(controller) {
            let was_silent = !std::mem::replace(&mut followed.is_away, true) && followed.log.is_none();
            match was_silent {
                true => self.watch(now),
                false => self.advance(now),
            }
        }
    }

    /// The namespaces of a subsystem that is watched, and where it was asked.
    pub(crate) fn on_namespaces(
        &mut self,
        now: Duration,
        seen: &Seen,
        at: Option<Place>,
        nsids: impl IntoIterator<Item = u32>,
    ) {
        if let Some(watched) = self.watched.get_mut(seen) {
            (watched.nsids, watched.is_away) = (Some(nsids.into_iter().collect()), false);
            watched.is_asked = false;
            watched.answered_at = at;
            self.advance(now);
        }
    }

    /// A subsystem that is watched was lost; [`Engine::on_namespaces`] follows when it is there again.
    pub(crate) fn on_subsystem_away(&mut self, now: Duration, seen: &Seen) {
        if let Some(watched) = self.watched.get_mut(seen) {
            watched.is_away = true;
            self.advance(now);
        }
    }

    /// How much of what is listed is not looked after.
    pub(crate) fn beyond(&self) -> Beyond {
        self.beyond
    }

    /// How many discovery controllers are followed, and how many disks are attached.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let attached = self.disks.values().filter(|it| matches!(it.phase, Phase::Attached { .. }));
        (self.controllers.len(), attached.count())
    }

    /// Whether nothing is under way, and every controller and subsystem has said something or failed to.
    pub(crate) fn is_settled(&self) -> bool {
        let is_under_way =
            |it: &Managed| it.is_adding || matches!(it.phase, Phase::Attaching { .. } | Phase::Detaching);
        self.controllers.values().all(|it| it.log.is_some())
            && self.watched.values().all(|it| !it.is_asked)
            && !self.disks.values().any(is_under_way)
            && self.actions.is_empty()
    }

    /// Whether it is known what is gone: only when everybody has spoken.
    fn is_known(&self) -> bool {
        self.is_configured && self.controllers.values().all(|followed| followed.log.is_some())
    }
}
