//! Making the changes of a [plan](super::plan) without dropping a connection that may stay.
//!
//! Each change is made or not, and holds no other back. What takes something away is done when no worker has anything
//! older in flight on it ([`crate::barrier`]); past a bound, the answer and `status` say which disk holds it.

use super::Daemon;
use super::changing::{Asker, Changing, Pending};
use super::plan::Change;
use super::reading::{ReadKeys, Wanted};
use crate::barrier::Scope;
use crate::control::protocol::Fault;
use crate::control::request::change::{Effect, Item, Outcome};
use crate::exports::{self, Export};
use nvmf_config::{Config, Host, Hosts, Namespace};
use nvmf_subsystem::{AssociationKey, Nqn};
use std::collections::BTreeMap;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// A file: what cannot be had yet stays wanted, and is tried again.
    File,
    /// The configuration of the group of gateways: as a file.
    Group,
    /// A command: what cannot be had is not wanted any more.
    Command,
}

impl Daemon {
    /// Reads the file again and applies what can be applied.
    pub(super) fn reload(&mut self) {
        let Some(path) = self.path.clone() else {
            tracing::warn!("there is nothing to reload: the target was started without a configuration file");
            return self.reload_failed();
        };
        match self.read(Wanted::File(path)) {
            Ok(changing) => self.await_changes(changing, Asker::Reload),
            Err(fault) => self.not_reloaded(&fault),
        }
    }

    pub(super) fn not_reloaded(&mut self, fault: &Fault) {
        tracing::error!("not reloaded, everything stays as it is: {}", fault.message);
        self.reload_failed();
    }

    fn reload_failed(&mut self) {
        self.reload_errors = 1;
        self.tell_reloaded();
    }

    /// Serves what a file says: its changes, and what it names: keys that were read again, disks looked at again.
    pub(super) fn apply_file(&mut self, asked: &Config, keys: ReadKeys) -> Changing {
        let of_group = self.with_shared(asked);
        let asked = of_group.as_ref().unwrap_or(asked);
        // Everything that failed is tried at once, and said again.
        self.namespaces.forget_faults();
        self.not_in_force.clear();
        // The keys of a group are not those of a file.
        let keys = Some(keys).filter(|_| of_group.is_none());
        let mut changing = self.apply(asked, Origin::File, keys);
        // In the order of the file.
        let place = |nqn: &Nqn| asked.subsystems.iter().position(|subsystem| subsystem.nqn == *nqn);
        self.config.subsystems.sort_by_key(|subsystem| place(&subsystem.nqn));
        self.wait_again(&mut changing, |_| true);
        changing.wait_for_file(self.look(self.exports()), self.common.clock.now());
        changing
    }

    /// Makes the changes that lead to what is asked for; those of hosts with their keys.
    pub(super) fn apply(&mut self, asked: &Config, origin: Origin, keys: Option<ReadKeys>) -> Changing {
        let now = self.common.clock.now();
        let mut changing = Changing::new(Vec::new(), origin, now);
        let plan = self.plan(asked);
        let is_of_host = |change: &Change| matches!(change, Change::Host(_) | Change::RemoveHost(_));
        // Who may no longer connect goes first. A file's keys were read again, whatever it says of them.
        let mut key_faults = Vec::new();
        let mut closed = Vec::new();
        if let Some(keys) = keys {
            closed = self.keys_closed_by(&plan);
            key_faults = self.set_hosts_with_keys(&asked.hosts, keys);
        }
        for (change, mut item) in plan {
            let at = changing.items.len();
            let outcome = match item.effect {
                Effect::Refused => Outcome::Refused,
                Effect::Restart => Outcome::AtRestart,
                Effect::None | Effect::ClosesConnections | Effect::Fails if is_of_host(&change) => {
                    let of_host = closed.extract_if(.., |(name, _)| *name == item.name).map(|(_, key)| key);
                    changing.wait_for(at, self.closing(of_host.collect()));
                    let own = key_faults.extract_if(.., |(nqn, _)| nqn.to_string() == item.name);
                    let texts: Vec<String> = own.map(|(_, text)| text).collect();
                    item.message = (!texts.is_empty()).then(|| texts.join("; "));
                    if texts.is_empty() { Outcome::Done } else { Outcome::Failed }
                }
                Effect::None | Effect::ClosesConnections | Effect::Fails => {
                    match self.make(&change, origin) {
                        Ok(waits) => {
                            changing.wait_for(at, waits);
                            if let Change::AddNamespace(nqn, namespace)
                            | Change::ReplaceNamespace(nqn, namespace)
                            | Change::SetNamespace(nqn, namespace) = &change
                                && !self.is_served(nqn, namespace.nsid)
                            {
                                changing.wait_for_disk(at, *nqn, namespace.clone(), now);
                            }
                            Outcome::Done
                        }
                        Err(Unmade { outcome, message }) => {
                            item.message = Some(message);
                            outcome
                        }
                    }
                }
            };
            self.note_force(change, outcome, origin);
            item.outcome = Some(outcome);
            changing.items.push(item);
        }
        changing.errors = key_faults.len();
        self.publish_limits();
        changing
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
            Change::Strict(strict) => {
                self.config.target.strict = *strict;
                Ok(Vec::new())
            }
            // Those of hosts are made together, the others at the next start.
            Change::Host(_) | Change::RemoveHost(_) => Ok(Vec::new()),
            Change::Identity(_) | Change::Target(_) | Change::Metrics(_) | Change::Cluster(_) => {
                Ok(Vec::new())
            }
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
        let reopens = self.must_open_anew(nqn, new) || self.is_regrouped(nqn, new);
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
        Ok(vec![Pending::new(barrier, holds)])
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
    pub(super) fn forget_namespace(&mut self, nqn: &Nqn, nsid: u32) {
        if let Some(subsystem) = self.config.subsystems.iter_mut().find(|subsystem| subsystem.nqn == *nqn) {
            subsystem.namespaces.retain(|namespace| namespace.nsid != nsid);
        }
        self.namespaces.forget_fault(&(*nqn, nsid));
    }

    pub(super) fn is_served(&self, nqn: &Nqn, nsid: u32) -> bool {
        self.exports().iter().any(|export| export.is(nqn, nsid))
    }

    /// The associations that changes of hosts' keys close, by the host.
    fn keys_closed_by(&self, plan: &[(Change, Item)]) -> Vec<(String, AssociationKey)> {
        let registry = self.registry();
        let hosts = plan.iter().filter_map(|(change, _)| match change {
            Change::Host(host) => Some((host.nqn, Some(host))),
            Change::RemoveHost(nqn) => Some((*nqn, None)),
            _ => None,
        });
        let hosts: BTreeMap<Nqn, Option<&Host>> = hosts.collect();
        let closed = registry.associations().filter(|it| {
            let nqn = it.host_nqn();
            hosts.get(nqn).is_some_and(|host| self.loses(it, nqn, *host))
        });
        closed.map(|it| (it.host_nqn().to_string(), it.key())).collect()
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
        vec![Pending::new(self.common.mailboxes.barrier(scope), holds)]
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
