//! What is followed and attached: decided from what discovery controllers and subsystems say. No I/O, no clock.
//!
//! What discovery controllers list is wanted, as far as the policy allows. What is wanted and not attached is attached; what was
//! attached here and has not been wanted for a while is detached, unless it is in use. A controller that is away changes nothing: what
//! it said last counts until it says something else, and no time passes for what it said to be gone.

mod followed;
mod shares;
mod wanted;

pub(super) use wanted::PATHS_MAX;

use super::policy::Policy;
use crate::command::{OwnOptions, PATH_OPTIONS};
use core::fmt;
use core::time::Duration;
use followed::Followed;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use wanted::Watched;

/// Before an attach that failed is tried again; doubled each time, up to [`RETRY_DELAY_MAX`].
const RETRY_DELAY: Duration = Duration::from_secs(2);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(120);
/// Before a disk that is in use is tried again to be detached, or one that could not be given a path to be given it.
const IN_USE_DELAY: Duration = Duration::from_secs(30);

/// Where a controller listens, and over what.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    /// `rdma` or `tcp`.
    pub(crate) transport: String,
    pub(crate) address: String,
    pub(crate) port: u16,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { transport, address, port } = self;
        write!(f, "{transport} {address} port {port}")
    }
}

impl Place {
    /// Whether both are the same, however the address is written.
    fn is(&self, other: &Self) -> bool {
        let address = |place: &Self| place.address.parse::<IpAddr>().ok();
        let is_same_address =
            self.address == other.address || address(self).is_some_and(|it| Some(it) == address(other));
        is_same_address && (&self.transport, self.port) == (&other.transport, other.port)
    }
}

/// A discovery controller: where it is, and with which further options one connects to it and to what it lists.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Controller {
    pub(crate) place: Place,
    /// Options of `nvmf`, by their long names.
    pub(crate) options: Vec<String>,
}

/// A line of a discovery log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Another discovery controller.
    Referral(Place),
    /// A subsystem with namespaces. `tls`: it is reached by TLS only.
    Subsystem { nqn: String, place: Place, tls: bool },
}

/// A path to a subsystem: where its controller is, and with which options of its own one connects there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SubsystemPath {
    pub(crate) place: Place,
    pub(crate) own: OwnOptions,
}

/// A subsystem that is wanted, with all paths to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subsystem {
    pub(crate) nqn: String,
    pub(crate) paths: Vec<SubsystemPath>,
    /// Options for all paths, by their long names.
    pub(crate) options: Vec<String>,
}

/// A subsystem as one host sees it: as whom, where that is said.
pub(super) type Seen = (String, Option<String>);

impl SubsystemPath {
    /// A path there, with those of these options that are a path's and are meant for its transport.
    pub(crate) fn new(place: Place, options: &[String]) -> Self {
        let mut own = OwnOptions::of(options.iter().map(String::as_str));
        if place.transport != "tcp" {
            own = OwnOptions { host_traddr: own.host_traddr, tls: own.tls, ..OwnOptions::default() };
        }
        Self { place, own }
    }

    /// The address and the interface that it begins at, where it says so.
    pub(super) fn beginning(&self) -> (Option<IpAddr>, Option<&str>) {
        (self.own.host_traddr, self.own.host_iface.as_deref())
    }

    /// Whether both lead from the same place to the same place.
    fn is_same(&self, other: &Self) -> bool {
        (&self.place, self.beginning()) == (&other.place, other.beginning())
    }
}

impl Subsystem {
    /// Whether a path of it has TLS.
    pub(super) fn has_tls(&self) -> bool {
        self.paths.iter().any(|path| path.own.tls)
    }

    /// Adds a path that it does not have yet, up to so many.
    fn add(&mut self, path: &SubsystemPath, most: usize) {
        if self.paths.len() < most && !self.paths.iter().any(|it| it.is_same(path)) {
            self.paths.push(path.clone());
        }
    }

    /// As one host sees it.
    pub(super) fn seen(&self) -> Seen {
        (self.nqn.clone(), host(&self.options))
    }
}

/// The options that are for all paths.
pub(super) fn of_all_paths(options: &[String]) -> Vec<String> {
    options.iter().filter(|option| !PATH_OPTIONS.contains(&name(option))).cloned().collect()
}

/// The host that options name.
pub(super) fn host(options: &[String]) -> Option<String> {
    options.iter().rev().find_map(|option| option.strip_prefix("--hostnqn=")).map(str::to_owned)
}

/// An option's long name.
fn name(option: &str) -> &str {
    option.trim_start_matches('-').split('=').next().unwrap_or_default()
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Disk {
    pub(crate) nqn: String,
    pub(crate) nsid: u32,
}

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
    /// Attach a namespace; then [`Engine::on_attached`].
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
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

#[derive(Debug)]
struct Managed {
    phase: Phase,
    /// Attached here, and so to be detached here.
    is_ours: bool,
    /// The discovery controllers that listed it when it was wanted last; `None`: it has not been wanted yet.
    listed_by: Option<BTreeSet<Controller>>,
    /// The place over which it was attached first.
    way: Option<Place>,
    /// The paths that it was attached with or given.
    paths: Vec<SubsystemPath>,
    /// It is being given some.
    is_adding: bool,
    /// One could not be given: when that is tried again.
    add_again: Option<Duration>,
    /// Its I/O fails or waits for ever: it was given up, or nobody serves it.
    is_dead: bool,
}

impl Managed {
    fn new(phase: Phase, is_ours: bool) -> Self {
        Self {
            phase,
            is_ours,
            listed_by: None,
            way: None,
            paths: Vec::new(),
            is_adding: false,
            add_again: None,
            is_dead: false,
        }
    }
}

/// How much that is listed is beyond the limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Beyond {
    /// Discovery controllers that are not followed.
    pub(crate) referrals: usize,
    /// Subsystems that are not watched.
    pub(crate) subsystems: usize,
    /// Namespaces of others that are not attached.
    pub(crate) disks: usize,
}

/// How much there is at most of what others list. One discovery controller that is named has half of it, with all that it refers to;
/// so have all that are announced.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Subsystems that are watched.
    pub(crate) subsystems: usize,
    pub(crate) disks: usize,
    pub(crate) disks_of_subsystem: usize,
    /// Disks that are attached at the same time.
    pub(crate) at_once: usize,
    pub(crate) at_once_of_subsystem: usize,
}

impl Limits {
    pub(crate) const NONE: Self = Self {
        subsystems: usize::MAX,
        disks: usize::MAX,
        disks_of_subsystem: usize::MAX,
        at_once: usize::MAX,
        at_once_of_subsystem: usize::MAX,
    };
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
    /// Where others refer to and nobody is followed, for lack of room.
    left_out: BTreeSet<Place>,
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
            left_out: BTreeSet::new(),
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
            followed.is_away = true;
            self.advance(now);
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

    /// How an attach ended. `false`: it failed, and is tried again.
    pub(crate) fn on_attached(&mut self, now: Duration, disk: &Disk, is_attached: bool) {
        let Some(Managed { phase, is_ours, .. }) = self.disks.get_mut(disk) else { return };
        let Phase::Attaching { failures } = *phase else { return };
        *phase = if is_attached {
            *is_ours = true;
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
            && self.watched.values().all(|it| it.nsids.is_some())
            && !self.disks.values().any(is_under_way)
            && self.actions.is_empty()
    }

    /// Whether it is known what is gone: only when everybody has spoken.
    fn is_known(&self) -> bool {
        self.is_configured && self.controllers.values().all(|followed| followed.log.is_some())
    }

    /// The subsystem that has a disk, as the first host that sees it does.
    fn subsystem(&self, disk: &Disk) -> Option<&Subsystem> {
        let of = |watched: &&Watched| watched.nsids.as_ref().is_none_or(|nsids| nsids.contains(&disk.nsid));
        let here = self.watched.iter().filter(|((nqn, _), _)| *nqn == disk.nqn).map(|(_, watched)| watched);
        here.filter(of).min_by_key(|watched| watched.nsids.is_none()).map(|watched| &watched.wanted.subsystem)
    }

    /// Whether a disk is to be attached; also one of which nothing new is known.
    fn is_wanted(&self, disk: &Disk) -> bool {
        self.subsystem(disk).is_some()
    }

    /// Whether those that had a disk, and do not name it any more, could say now that it is there after all. One that starts again
    /// may not have had everything yet when it spoke, and be lost again. And who lists a subsystem that another one has listed before
    /// does not say what is gone from it.
    fn is_answered_for(&self, disk: &Disk, listed_by: Option<&BTreeSet<Controller>>) -> bool {
        let had = |controller| listed_by.is_none_or(|listed_by| listed_by.contains(controller));
        // One that there is no room for may list it still.
        let is_left_out = match listed_by {
            Some(listed_by) => listed_by.iter().any(|it| self.left_out.contains(&it.place)),
            None => !self.left_out.is_empty(),
        };
        let mut silent = self.controllers.iter().filter(|(_, followed)| followed.is_away);
        let mut watched = self.watched.iter().filter(|((nqn, _), _)| *nqn == disk.nqn);
        // What it lists still is not wanted for another reason.
        !is_left_out
            && !silent.any(|(controller, followed)| had(controller) && !followed.lists(&disk.nqn))
            && watched.all(|(_, watched)| watched.has_answered_itself())
    }

    /// Whether the namespace was seen by a connection that is there.
    fn is_seen(&self, disk: &Disk) -> bool {
        let has = |watched: &Watched| watched.nsids.as_ref().is_some_and(|nsids| nsids.contains(&disk.nsid));
        self.watched.iter().any(|((nqn, _), watched)| *nqn == disk.nqn && !watched.is_away && has(watched))
    }

    fn advance(&mut self, now: Duration) {
        self.now = now;
        self.take_in(now);
        let is_known = self.is_known();
        let wanted = |disk: &Disk| Some((disk.clone(), self.subsystem(disk)?.clone()));
        let wanted: BTreeMap<_, _> = self.disks.keys().filter_map(wanted).collect();
        let listed_by = |disk: &Disk| -> BTreeSet<_> {
            let listing = self.controllers.iter().filter(|(_, followed)| followed.lists(&disk.nqn));
            listing.map(|(controller, _)| controller.clone()).collect()
        };
        let listed_by: BTreeMap<_, _> = wanted.keys().map(|disk| (disk.clone(), listed_by(disk))).collect();
        let answered_for = |(disk, managed): (&Disk, &Managed)| {
            self.is_answered_for(disk, managed.listed_by.as_ref()).then(|| disk.clone())
        };
        let answered_for: BTreeSet<_> = self.disks.iter().filter_map(answered_for).collect();
        let seen: BTreeSet<_> = wanted.keys().filter(|disk| self.is_seen(disk)).cloned().collect();
        let waits = |disk: &Disk| match self.disks.get(disk).map(|it| it.phase) {
            Some(Phase::Waits { until, .. }) if until <= now => Some((until, disk.clone())),
            _ => None,
        };
        // Who waits longest is first: those that fail again and again keep nobody waiting.
        let mut waiting: Vec<_> = wanted.keys().filter_map(waits).collect();
        waiting.sort();
        let waiting: Vec<_> = waiting.into_iter().map(|(_, disk)| disk).collect();
        let turn = self.turn(&waiting);
        let mut actions = Vec::new();
        self.disks.retain(|disk, managed| {
            let subsystem = wanted.get(disk);
            if let Some(listed_by) = listed_by.get(disk) {
                let before = managed.listed_by.take().into_iter().flatten();
                let left = before.filter(|controller| self.left_out.contains(&controller.place));
                managed.listed_by = Some(left.chain(listed_by.iter().cloned()).collect());
            }
            match &mut managed.phase {
                Phase::Waits { failures, .. } if turn.contains(disk) => {
                    managed.phase = Phase::Attaching { failures: *failures };
                    managed.paths = subsystem.map(|it| it.paths.clone()).unwrap_or_default();
                    managed.way = managed.paths.first().map(|path| path.place.clone());
                    actions.extend(subsystem.map(|it| Action::Attach(disk.clone(), it.clone())));
                }
                Phase::Attached { gone_since, .. } if let Some(subsystem) = subsystem => {
                    *gone_since = None;
                    let is_due = managed.add_again.is_some_and(|at| at <= now);
                    let has_others = managed.paths != subsystem.paths;
                    // One that is dead is asked only where its target is there, and not again and again.
                    let is_wanting = match managed.is_dead {
                        true => managed.add_again.is_none() && seen.contains(disk),
                        false => has_others,
                    };
                    if !managed.is_adding && (is_due || is_wanting) {
                        (managed.is_adding, managed.paths) = (true, subsystem.paths.clone());
                        managed.add_again = None;
                        actions.push(Action::AddPaths(disk.clone(), subsystem.clone()));
                    }
                }
                Phase::Attached { gone_since, not_before }
                    if is_known && managed.is_ours && self.policy.detach =>
                {
                    if !answered_for.contains(disk) {
                        *gone_since = None;
                        return true;
                    }
                    let since = *gone_since.get_or_insert(now);
                    if since.saturating_add(self.policy.detach_delay) <= now && *not_before <= now {
                        managed.phase = Phase::Detaching;
                        actions.push(Action::Detach(disk.clone()));
                    }
                }
                _ => {}
            }
            true
        });
        self.actions.extend(actions);
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
