//! Making the changes of a [plan](super::plan) without dropping a connection that may stay.
//!
//! Each change is made or not, and holds no other back. What takes something away is done when no worker has anything
//! older in flight on it ([`crate::barrier`]); past a bound, the answer and `status` say which disk holds it.

use super::plan::Change;
use super::{Daemon, read_config};
use crate::barrier::{Barrier, Scope};
use crate::control::request::change::{Effect, Item, Outcome};
use crate::exports::{self, Export};
use crate::limits::{BARRIER_TIMEOUT, OPEN_TIMEOUT};
use nvmf_config::{Config, Hosts, Namespace};
use nvmf_subsystem::{AssociationKey, Nqn};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a barrier is waited for before the watchdog is looked after.
const PIECE: Duration = Duration::from_millis(500);

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A file: what cannot be had yet stays wanted, and is tried again.
    File,
    /// A command: what cannot be had is not wanted any more.
    Command,
}

/// What a change waits for.
pub(super) struct Pending {
    pub(super) barrier: Arc<Barrier>,
    /// What is not over if it is not reached.
    pub(super) holds: String,
}

impl Daemon {
    /// Reads the file again and applies what can be applied. Returns how many errors it logged.
    pub(super) fn reload(&mut self) -> usize {
        let Some(path) = self.path.clone() else {
            tracing::warn!("there is nothing to reload: the target was started without a configuration file");
            return 1;
        };
        let config = match read_config(&path) {
            Ok(config) => config,
            Err(error) => {
                tracing::error!("not reloaded, everything stays as it is: {error:#}");
                return 1;
            }
        };
        let (_, errors) = self.apply_file(&config);
        match errors {
            0 => tracing::info!("reloaded {}", path.display()),
            1 => tracing::error!("reloaded {}, with 1 error: see above", path.display()),
            _ => tracing::error!("reloaded {}, with {errors} errors: see above", path.display()),
        }
        errors
    }

    /// Serves what a file says: its changes, and what it names: keys are read again, disks looked at again. Returns what
    /// came of each change, and how many errors there were.
    pub(super) fn apply_file(&mut self, asked: &Config) -> (Vec<Item>, usize) {
        let mut errors = self.reload_keys(asked) + self.reload_authentication(asked);
        // Everything that failed is tried at once, and said again.
        self.namespaces.forget_faults();
        let items = self.apply(asked, Origin::File);
        self.config.target.strict = asked.target.strict;
        // In the order of the file.
        let place = |nqn: &Nqn| asked.subsystems.iter().position(|subsystem| subsystem.nqn == *nqn);
        self.config.subsystems.sort_by_key(|subsystem| place(&subsystem.nqn));
        errors += self.look_at_disks();
        errors += items.iter().filter_map(|item| item.outcome).filter(|outcome| outcome.is_error()).count();
        let faults = self.open_disks(OPEN_TIMEOUT);
        faults.iter().for_each(|fault| self.log_export_fault(fault));
        (items, errors + self.namespaces.failing(&self.config.subsystems))
    }

    /// Makes the changes that lead to what is asked for.
    pub(super) fn apply(&mut self, asked: &Config, origin: Origin) -> Vec<Item> {
        let mut items = Vec::new();
        let (mut pending, mut to_open) = (Vec::new(), Vec::new());
        for (change, mut item) in self.plan(asked) {
            let outcome = match item.effect {
                Effect::Refused => Outcome::Refused,
                Effect::Restart => Outcome::AtRestart,
                Effect::None | Effect::ClosesConnections => match self.make(&change, origin) {
                    Ok(waits) => {
                        pending.extend(waits.into_iter().map(|waits| (items.len(), waits)));
                        if let Change::AddNamespace(nqn, namespace)
                        | Change::ReplaceNamespace(nqn, namespace)
                        | Change::SetNamespace(nqn, namespace) = &change
                            && !self.is_served(nqn, namespace.nsid)
                        {
                            to_open.push((items.len(), *nqn, namespace.clone()));
                        }
                        Outcome::Done
                    }
                    Err(Unmade { outcome, message }) => {
                        item.message = Some(message);
                        outcome
                    }
                },
            };
            item.outcome = Some(outcome);
            items.push(item);
        }
        if !to_open.is_empty() {
            self.open_new(&to_open, origin, &mut items);
        }
        self.publish_limits();
        self.await_pending(&pending, &mut items);
        items.iter().for_each(log);
        items
    }

    /// Makes one change. Returns what it waits for.
    fn make(&mut self, change: &Change, origin: Origin) -> Result<Vec<Pending>, Unmade> {
        match change {
            Change::Hosts(nqn, hosts) => self.set_hosts(nqn, hosts),
            Change::Allow(listener) => self.set_allowed(listener),
            Change::Ana(listener) => self.set_ana_groups(listener),
            Change::Discovery(discovery) => {
                let config = Config { discovery: discovery.clone(), ..self.config.clone() };
                match self.apply_discovery(&config) {
                    0 => Ok(Vec::new()),
                    _ => Err(failed("the log says why")),
                }
            }
            Change::RemoveSubsystem(nqn) => self.remove_subsystem(nqn),
            Change::RemoveListener(listener) => self.remove_listener(listener),
            Change::RemoveNamespace(nqn, nsid) => {
                self.forget_namespace(nqn, *nsid);
                Ok(self.take_away(|export| export.is(nqn, *nsid)))
            }
            Change::ReplaceNamespace(nqn, namespace) => {
                self.forget_namespace(nqn, namespace.nsid);
                let pending = self.take_away(|export| export.is(nqn, namespace.nsid));
                self.want_namespace(nqn, namespace);
                Ok(pending)
            }
            Change::SetNamespace(nqn, namespace) => self.set_namespace(nqn, namespace),
            Change::AddSubsystem(subsystem) => {
                self.registry().add_subsystem(exports::definition(subsystem)).map_err(failed)?;
                self.publish();
                self.config.subsystems.push(subsystem.clone());
                Ok(Vec::new())
            }
            Change::AddNamespace(nqn, namespace) => {
                if !self.want_namespace(nqn, namespace) {
                    return Err(failed("its subsystem could not be added"));
                }
                Ok(Vec::new())
            }
            Change::AddListener(listener) => self.add_listener(listener, origin),
            // Read again with every file.
            Change::Keys => Ok(Vec::new()),
            Change::Identity(_) | Change::Target | Change::Metrics => Ok(Vec::new()),
            Change::HostLimits(nqn, limits) => {
                let mut subsystems = self.config.subsystems.iter_mut();
                if let Some(subsystem) = subsystems.find(|subsystem| subsystem.nqn == *nqn) {
                    subsystem.host_limits.clone_from(limits);
                }
                Ok(Vec::new())
            }
        }
    }

    fn set_hosts(&mut self, nqn: &Nqn, hosts: &Hosts) -> Result<Vec<Pending>, Unmade> {
        let access = exports::host_access(hosts);
        let closed = self.keys_of(|it| it.subsystem_nqn() == nqn && !access.allows(it.host_nqn()));
        self.registry().set_hosts(nqn, access).map_err(failed)?;
        self.publish();
        if let Some(subsystem) = self.config.subsystems.iter_mut().find(|subsystem| subsystem.nqn == *nqn) {
            subsystem.hosts = hosts.clone();
        }
        Ok(self.closing(closed))
    }

    fn remove_subsystem(&mut self, nqn: &Nqn) -> Result<Vec<Pending>, Unmade> {
        let closed = self.keys_of(|it| it.subsystem_nqn() == nqn);
        self.registry().remove_subsystem(nqn).map_err(failed)?;
        self.publish();
        self.config.subsystems.retain(|subsystem| subsystem.nqn != *nqn);
        let mut pending = self.take_away(|export| export.nqn == *nqn);
        pending.extend(self.closing(closed));
        Ok(pending)
    }

    fn set_namespace(&mut self, nqn: &Nqn, new: &Namespace) -> Result<Vec<Pending>, Unmade> {
        let reopens = self.must_open_anew(nqn, new);
        self.forget_namespace(nqn, new.nsid);
        self.want_namespace(nqn, new);
        if reopens {
            return Ok(self.take_away(|export| export.is(nqn, new.nsid)));
        }
        let Some(export) = self.namespaces.open.iter_mut().find(|export| export.is(nqn, new.nsid)) else {
            return Ok(Vec::new());
        };
        export.namespace = new.clone();
        let (device, holds) = (export.device, held(export));
        self.show(nqn).map_err(|error| failed(*error))?;
        self.publish();
        let barrier = self.common.mailboxes.barrier(Scope::devices([device]));
        Ok(vec![Pending { barrier, holds }])
    }

    /// Notes that a namespace is wanted; `false` if its subsystem is not.
    fn want_namespace(&mut self, nqn: &Nqn, namespace: &Namespace) -> bool {
        let subsystem = self.config.subsystems.iter_mut().find(|subsystem| subsystem.nqn == *nqn);
        let Some(subsystem) = subsystem else { return false };
        subsystem.namespaces.push(namespace.clone());
        subsystem.namespaces.sort_by_key(|namespace| namespace.nsid);
        true
    }

    /// Notes that a namespace is not wanted any more.
    fn forget_namespace(&mut self, nqn: &Nqn, nsid: u32) {
        if let Some(subsystem) = self.config.subsystems.iter_mut().find(|subsystem| subsystem.nqn == *nqn) {
            subsystem.namespaces.retain(|namespace| namespace.nsid != nsid);
        }
        self.namespaces.forget_fault(&(*nqn, nsid));
    }

    /// Opens what is new, and says what came of each.
    fn open_new(&mut self, new: &[(usize, Nqn, Namespace)], origin: Origin, items: &mut [Item]) {
        let faults = self.open_disks(OPEN_TIMEOUT);
        for fault in &faults {
            self.log_export_fault(fault);
        }
        for (item, nqn, namespace) in new {
            let key = (*nqn, namespace.nsid);
            if self.is_served(nqn, namespace.nsid) {
                continue;
            }
            let waits = self.namespaces.is_resting(&key, namespace);
            let fault = faults.iter().find(|fault| (*fault.nqn, fault.nsid) == key);
            let text = match fault {
                Some(fault) => super::disks::error_text(&fault.source),
                None if waits => {
                    "its disk is served in a few seconds, when hosts know that the old one is gone".to_owned()
                }
                None => self
                    .namespaces
                    .fault(&key)
                    .unwrap_or_else(|| "its disk has not been opened yet".to_owned()),
            };
            let is_new = items[*item].change == "add-namespace";
            items[*item].message = Some(text);
            items[*item].outcome = Some(if waits || origin == Origin::File || !is_new {
                Outcome::Waiting
            } else {
                self.forget_namespace(nqn, namespace.nsid);
                Outcome::Failed
            });
        }
    }

    fn is_served(&self, nqn: &Nqn, nsid: u32) -> bool {
        self.exports().iter().any(|export| export.is(nqn, nsid))
    }

    /// The associations of which that is true.
    pub(super) fn keys_of(
        &self,
        is_one: impl Fn(&nvmf_subsystem::Association) -> bool,
    ) -> Vec<AssociationKey> {
        self.registry().associations().filter(|it| is_one(it)).map(|it| it.key()).collect()
    }

    /// What the end of associations waits for.
    pub(super) fn closing(&self, closed: Vec<AssociationKey>) -> Vec<Pending> {
        if closed.is_empty() {
            return Vec::new();
        }
        let scope = Scope { associations: closed.into_iter().collect(), ..Scope::default() };
        let holds = "commands of the connections that were closed are still at a disk".to_owned();
        vec![Pending { barrier: self.common.mailboxes.barrier(scope), holds }]
    }

    /// Waits for barriers, all of them together for a bounded time.
    pub(super) fn await_pending(&self, pending: &[(usize, Pending)], items: &mut [Item]) {
        let deadline = Instant::now() + BARRIER_TIMEOUT;
        let mut unfinished: BTreeSet<usize> = BTreeSet::new();
        for (item, Pending { barrier, holds }) in pending {
            if self.is_reached_by(barrier, deadline) {
                continue;
            }
            let text = format!("{holds} after {} s", BARRIER_TIMEOUT.as_secs());
            tracing::error!("{}: {text}", items[*item].name);
            let message = items[*item].message.get_or_insert_default();
            if unfinished.insert(*item) {
                *message = text;
            } else {
                *message += &format!("; {text}");
            }
            items[*item].outcome = Some(Outcome::Unfinished);
        }
    }

    /// Waits for a barrier, and looks after the watchdog meanwhile.
    pub(super) fn is_reached_by(&self, barrier: &Barrier, deadline: Instant) -> bool {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if barrier.wait(left.min(PIECE)).is_ok() {
                return true;
            }
            if left.is_zero() {
                return false;
            }
            self.keep_alive();
        }
    }
}

/// A change that was not made.
pub(super) struct Unmade {
    pub(super) outcome: Outcome,
    pub(super) message: String,
}

/// It was tried.
#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(super) fn failed(error: impl ToString) -> Unmade {
    Unmade { outcome: Outcome::Failed, message: error.to_string() }
}

/// What is said of a disk whose operations do not end.
pub(super) fn held(export: &Export) -> String {
    format!(
        "operations on {} (namespace {} of {}) have not ended",
        export.backing(),
        export.namespace.nsid,
        export.nqn
    )
}

fn log(item: &Item) {
    let line = item.to_string().replace("\n  ", ": ");
    match item.outcome {
        Some(Outcome::Done) => tracing::info!("{line}"),
        Some(Outcome::AtRestart) => tracing::warn!("{line}"),
        _ => tracing::error!("{line}"),
    }
}
