//! What changes between what is wanted now and what is asked for, and what each change would cost.
//!
//! A file at a reload, `ctl apply`, `ctl plan` and every single command come here with the configuration that they ask
//! for: one way to change anything ([`super::apply`]).

use super::Daemon;
use super::ana::state_of;
use super::cluster::has_usual_form;
use super::differences::differences;
use super::disks::error_text;
use super::keys::NO_KEYS;
use crate::control::protocol::{Answer, Fault};
use crate::control::request::change::{AnaGroupChange, ChangesAnswer, ConnectionName, Effect, Item};
use crate::exports::{self, Export, describe};
use core::time::Duration;
use nvmf_backend::{Disk, DiskSpec};
use nvmf_config::{
    AnaGroup, Backing, Cluster, Config, Discovery, Host, HostLimits, Hosts, Listener, Metrics, Namespace,
    Subsystem, Target, Tls,
};
use nvmf_subsystem::{Association, Nqn};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc::channel;
use uuid::Uuid;

/// How long a disk that is to replace another may take to open: the control thread waits for it.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);

/// One difference. Each is made or not, whatever becomes of the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// Who may connect to a subsystem.
    Hosts(Nqn, Hosts),
    /// From which addresses a listener takes connections.
    Allow(Listener),
    /// In which state ANA groups are behind a listener.
    Ana(Listener),
    /// The discovery service.
    Discovery(Discovery),
    RemoveSubsystem(Nqn),
    RemoveListener(Listener),
    RemoveNamespace(Nqn, u32),
    /// Another disk, or the same one opened anew.
    ReplaceNamespace(Nqn, Namespace),
    /// What may change of a disk that is open.
    SetNamespace(Nqn, Namespace),
    /// Its namespaces are changes of their own.
    AddSubsystem(Subsystem),
    AddNamespace(Nqn, Namespace),
    AddListener(Listener),
    /// What hosts know a subsystem by.
    Identity(Subsystem),
    /// What a host proves who it is with: its keys.
    Host(Host),
    RemoveHost(Nqn),
    /// What takes effect at the next start of `[target]`.
    Target(Box<Target>),
    /// Whether a start is to fail where something is missing.
    Strict(bool),
    /// Where metrics are served.
    Metrics(Option<Metrics>),
    /// Of which group of gateways this is one.
    Cluster(Option<Cluster>),
    /// What each host may do a second at a subsystem.
    HostLimits(Nqn, Vec<HostLimits>),
}

/// All differences, in the order in which they are made: who may no longer connect goes first, then what is no longer
/// wanted, then comes what is new.
pub(super) fn changes(now: &Config, asked: &Config) -> Vec<Change> {
    let mut changes = Vec::new();
    let is_named = |host: &&Host| asked.hosts.iter().any(|new| new.nqn == host.nqn);
    let gone = now.hosts.iter().filter(|host| !is_named(host));
    changes.extend(gone.map(|host| Change::RemoveHost(host.nqn)));
    changes.extend(asked.hosts.iter().filter(|host| !now.hosts.contains(host)).cloned().map(Change::Host));
    let before = |subsystem: &Subsystem| now.subsystems.iter().find(|old| old.nqn == subsystem.nqn);
    let kept = || asked.subsystems.iter().filter_map(|new| Some((before(new)?, new)));
    changes.extend(
        kept()
            .filter(|(old, new)| !are_same_hosts(&old.hosts, &new.hosts))
            .map(|(_, new)| Change::Hosts(new.nqn, new.hosts.clone())),
    );
    changes.extend(
        kept()
            .filter(|(old, new)| old.host_limits != new.host_limits)
            .map(|(_, new)| Change::HostLimits(new.nqn, new.host_limits.clone())),
    );
    let same =
        |listener: &Listener, in_: &Config| in_.listeners.iter().any(|other| fixed(other) == fixed(listener));
    for new in &asked.listeners {
        let Some(old) = now.listeners.iter().find(|old| fixed(old) == fixed(new)) else { continue };
        if old.allow != new.allow {
            changes.push(Change::Allow(new.clone()));
        }
        if !are_same_groups(&old.ana_groups, &new.ana_groups) {
            changes.push(Change::Ana(new.clone()));
        }
    }
    let is_gone = |old: &&Subsystem| asked.subsystems.iter().all(|new| new.nqn != old.nqn);
    changes.extend(now.subsystems.iter().filter(is_gone).map(|old| Change::RemoveSubsystem(old.nqn)));
    let gone = now.listeners.iter().filter(|old| !same(old, asked));
    changes.extend(gone.cloned().map(Change::RemoveListener));
    for (old, new) in kept() {
        let of = |nsid| new.namespaces.iter().find(|namespace| namespace.nsid == nsid);
        changes.extend(old.namespaces.iter().filter_map(|before| match of(before.nsid) {
            None => Some(Change::RemoveNamespace(new.nqn, before.nsid)),
            Some(after) if after == before => None,
            Some(after) if is_same_backing(before, after) => {
                Some(Change::SetNamespace(new.nqn, after.clone()))
            }
            Some(after) => Some(Change::ReplaceNamespace(new.nqn, after.clone())),
        }));
        if (&old.serial, &old.model) != (&new.serial, &new.model) {
            changes.push(Change::Identity(new.clone()));
        }
    }
    for new in &asked.subsystems {
        let old = before(new);
        if old.is_none() {
            changes.push(Change::AddSubsystem(Subsystem { namespaces: Vec::new(), ..new.clone() }));
        }
        let is_there = |nsid| old.is_some_and(|old| old.namespaces.iter().any(|n| n.nsid == nsid));
        let added = new.namespaces.iter().filter(|namespace| !is_there(namespace.nsid));
        changes.extend(added.cloned().map(|namespace| Change::AddNamespace(new.nqn, namespace)));
    }
    let new = asked.listeners.iter().filter(|new| !same(new, now));
    changes.extend(new.cloned().map(Change::AddListener));
    if now.discovery != asked.discovery {
        changes.push(Change::Discovery(asked.discovery.clone()));
    }
    if now.target.strict != asked.target.strict {
        changes.push(Change::Strict(asked.target.strict));
    }
    if now.target != (Target { strict: now.target.strict, ..asked.target.clone() }) {
        changes.push(Change::Target(Box::new(asked.target.clone())));
    }
    if now.metrics != asked.metrics {
        changes.push(Change::Metrics(asked.metrics.clone()));
    }
    if now.cluster != asked.cluster {
        changes.push(Change::Cluster(asked.cluster.clone()));
    }
    changes
}

impl Change {
    /// In a line of text.
    pub(super) fn line(&self) -> String {
        let (word, name) = self.name();
        format!("{} {name}", word.replace('-', " "))
    }

    fn name(&self) -> (&'static str, String) {
        let namespace =
            |nqn: &Nqn, n: &Namespace| format!("{nqn} namespace {} ({})", n.nsid, describe(&n.backing));
        match self {
            Self::Hosts(nqn, _) => ("change-hosts", nqn.to_string()),
            Self::Allow(listener) => ("change-listener", listener_name(listener)),
            Self::Ana(listener) => ("change-ana", listener_name(listener)),
            Self::Discovery(_) => ("change-discovery", "[discovery]".to_owned()),
            Self::RemoveSubsystem(nqn) => ("remove-subsystem", nqn.to_string()),
            Self::RemoveListener(listener) => ("remove-listener", listener_name(listener)),
            Self::RemoveNamespace(nqn, nsid) => ("remove-namespace", format!("{nqn} namespace {nsid}")),
            Self::ReplaceNamespace(nqn, n) => ("replace-namespace", namespace(nqn, n)),
            Self::SetNamespace(nqn, n) => ("change-namespace", namespace(nqn, n)),
            Self::AddSubsystem(subsystem) => ("add-subsystem", subsystem.nqn.to_string()),
            Self::AddNamespace(nqn, n) => ("add-namespace", namespace(nqn, n)),
            Self::AddListener(listener) => ("add-listener", listener_name(listener)),
            Self::Identity(subsystem) => ("change-identity", subsystem.nqn.to_string()),
            Self::Host(host) => ("set-host", host.nqn.to_string()),
            Self::RemoveHost(nqn) => ("remove-host", nqn.to_string()),
            Self::Target(_) => ("change-target", "[target]".to_owned()),
            Self::Strict(strict) => ("change-strict", format!("to {strict}")),
            Self::Metrics(_) => ("change-metrics", "[metrics]".to_owned()),
            Self::Cluster(_) => ("change-cluster", "[cluster]".to_owned()),
            Self::HostLimits(nqn, _) => ("change-host-limits", nqn.to_string()),
        }
    }
}

/// What is said of new names of hosts that look mistyped. A host may call itself so, and is let in then.
fn unusual(new: &Hosts, old: &Hosts) -> Option<String> {
    let named = |hosts: &Hosts| match hosts {
        Hosts::Any => Vec::new(),
        Hosts::Only(names) => names.clone(),
    };
    let old = named(old);
    let is_unusual = |host: &Nqn| !old.contains(host) && !has_usual_form(&host.to_string());
    let host = named(new).into_iter().find(is_unusual)?;
    Some(format!(
        "{host} has not the form of a host's name (nqn.yyyy-mm.DOMAIN:…, nqn.2014-08.org.nvmexpress:uuid:UUID): `nvmf show-hostnqn` on \
         the host says what it is called"
    ))
}

fn listener_name(listener: &Listener) -> String {
    format!("{} over {}", listener.address, listener.transport)
}

impl Daemon {
    /// Each change with what it would cost.
    pub(super) fn plan(&self, asked: &Config) -> Vec<(Change, Item)> {
        let changes = changes(&self.config, asked).into_iter();
        let with_item = |change: Change| {
            let mut item = self.item(&change);
            if let Change::AddListener(listener) = &change
                && listener.tls != Tls::Off
                && asked.lacks_keys()
            {
                item.note = Some(NO_KEYS.to_owned());
            }
            (change, item)
        };
        changes.map(with_item).collect()
    }

    /// The answer to `plan`, with what cannot be had of the keys that it names.
    pub(super) fn planned(&self, asked: &Config, faults: Vec<(Nqn, String)>) -> Answer {
        let mut problems = Vec::new();
        let mut changes: Vec<Item> = self.plan(asked).into_iter().map(|(_, item)| item).collect();
        for (host, text) in faults {
            let name = host.to_string();
            match changes.iter_mut().find(|item| item.change == "set-host" && item.name == name) {
                Some(item) => {
                    item.effect = Effect::Fails;
                    item.note = Some(item.note.take().map_or(text.clone(), |note| format!("{note}; {text}")));
                }
                None => problems.push(format!("host {host}: {text}")),
            }
        }
        plan_answer(changes, problems)
    }

    /// The answer to a `plan` of what a gateway's group would not be asked for.
    pub(super) fn refused_plan(&self, asked: &Config) -> Option<Answer> {
        let mut planned = self.plan(asked);
        let text = self.refused_by_group(asked, &mut planned)?;
        let changes = planned.into_iter().map(|(_, item)| item).collect();
        Some(plan_answer(changes, vec![format!("nothing would be changed: {text}")]))
    }

    fn item(&self, change: &Change) -> Item {
        let (word, name) = change.name();
        let connections = self.closes(change);
        let (effect, note) = match self.obstacle(change) {
            Some((effect, note)) => (effect, Some(note)),
            None if connections.is_empty() => (Effect::None, self.note(change)),
            None => (Effect::ClosesConnections, self.note(change)),
        };
        let connections =
            if matches!(effect, Effect::Restart | Effect::Refused) { Vec::new() } else { connections };
        let (ana_groups, keys) = (self.ana_changes(change), differences(&self.config, change));
        let change = word.to_owned();
        Item { change, name, effect, connections, ana_groups, keys, note, outcome: None, message: None }
    }

    /// What becomes of the ANA groups of a listener.
    fn ana_changes(&self, change: &Change) -> Vec<AnaGroupChange> {
        let Change::Ana(new) = change else { return Vec::new() };
        let is_it = |old: &&Listener| fixed(old) == fixed(new);
        let Some(old) = self.config.listeners.iter().find(is_it) else { return Vec::new() };
        let ids: BTreeSet<u32> = old.ana_groups.iter().chain(&new.ana_groups).map(|group| group.id).collect();
        let states =
            ids.into_iter().map(|id| (id, state_of(&old.ana_groups, id), state_of(&new.ana_groups, id)));
        let word = |id, state| AnaGroup { id, state }.state_word().to_owned();
        let changed = states.filter(|(_, from, to)| from != to);
        changed
            .map(|(group, from, to)| AnaGroupChange { group, from: word(group, from), to: word(group, to) })
            .collect()
    }

    /// Why a change is not made while hosts are there.
    fn obstacle(&self, change: &Change) -> Option<(Effect, String)> {
        match change {
            Change::Target(_) => Some((Effect::Restart, at_restart("[target]"))),
            Change::Metrics(_) => Some((Effect::Restart, at_restart("[metrics]"))),
            Change::Cluster(_) => Some((Effect::Restart, at_restart("[cluster]"))),
            Change::Identity(_) => {
                let text = "serial and model are what hosts know the subsystem by: they change at the next restart only";
                Some((Effect::Refused, text.to_owned()))
            }
            Change::SetNamespace(nqn, new) | Change::ReplaceNamespace(nqn, new) => {
                let export = self.exports().iter().find(|export| export.is(nqn, new.nsid))?;
                // The group has decided that: a gateway that kept the old image would show hosts another disk than the others,
                // or serve it where nobody fences it.
                let is_other = matches!(change, Change::ReplaceNamespace(..));
                if export.shared.is_some() && is_other || self.is_regrouped(nqn, new) {
                    return None;
                }
                let is_opened_anew = self.must_open_anew(nqn, new);
                // In a group, what hosts know a disk by is decided by what is stored, whoever has it open.
                let is_allowed = if export.shared.is_some() { Ok(()) } else { may_replace(export, new) };
                let checked = is_allowed
                    .and_then(|()| if is_opened_anew { is_whole(export) } else { Ok(()) })
                    .and_then(|()| self.look_at_new_disk(export, new));
                Some((Effect::Refused, checked.err()?))
            }
            _ => None,
        }
    }

    /// Opens the disk that is to take the place of another, and closes it again: the old one is not given up for one
    /// that is not there. In a thread of its own, and waited for a bounded time only: the file system may hang.
    fn look_at_new_disk(&self, old: &Export, new: &Namespace) -> Result<(), String> {
        let is_open = |it: &Export| is_same_backing(&it.namespace, new);
        // Open here, so it is there: another namespace may give it up in the same file.
        if is_same_backing(&old.namespace, new) || self.exports().iter().any(is_open) {
            return Ok(());
        }
        let spec = match exports::disk_spec(&new.backing) {
            DiskSpec::Memory { .. } | DiskSpec::Null { .. } => return Ok(()),
            spec @ (DiskSpec::Path { .. } | DiskSpec::Rbd(_)) => spec,
        };
        let (tell, told) = channel();
        let namespace = new.clone();
        let look = move || {
            let (is_to_come, spec) = match spec {
                DiskSpec::Path { path, create } => {
                    let may_come =
                        create.is_some() && !path.exists() && path.parent().is_some_and(Path::is_dir);
                    (may_come, DiskSpec::Path { path, create: None })
                }
                spec => (false, spec),
            };
            let found = match is_to_come {
                true => Ok(()),
                false => Disk::open_at_once(&spec, namespace.block_size, namespace.read_only).map(drop),
            };
            // Nobody waits any more.
            let _ = tell.send(found.map_err(|error| error_text(&error)));
        };
        let started = std::thread::Builder::new().name("look".to_owned()).spawn(look);
        let found = match started {
            Ok(_) => told.recv_timeout(LOOK_TIMEOUT).unwrap_or_else(|_| Err("it does not answer".to_owned())),
            Err(error) => Err(error.to_string()),
        };
        self.keep_alive();
        let (nsid, backing) = (new.nsid, old.backing());
        found.map_err(|text| {
            format!("namespace {nsid} stays {backing}: the new disk cannot be served: {text}")
        })
    }

    /// What hosts or the operator see of a change that is made.
    fn note(&self, change: &Change) -> Option<String> {
        match change {
            Change::ReplaceNamespace(..) => Some(
                "hosts lose the old disk; the new one comes a few seconds later, when they know that the old one is gone"
                    .to_owned(),
            ),
            Change::Strict(_) => Some("it counts at the next start".to_owned()),
            Change::AddSubsystem(new) => unusual(&new.hosts, &Hosts::Only(Vec::new())),
            Change::Hosts(nqn, new) => {
                let old = self.config.subsystems.iter().find(|subsystem| subsystem.nqn == *nqn)?;
                unusual(new, &old.hosts)
            }
            Change::SetNamespace(nqn, new) if self.must_open_anew(nqn, new) => {
                Some("its disk was opened for reading only: hosts lose it for the moment until it is open again".to_owned())
            }
            _ => None,
        }
    }

    /// Whether a disk that is open for reading is to be written from now on.
    pub(super) fn must_open_anew(&self, nqn: &Nqn, new: &Namespace) -> bool {
        let export = self.exports().iter().find(|export| export.is(nqn, new.nsid));
        export.is_some_and(|it| it.is_for_workers() && it.disk.geometry().read_only && !new.read_only)
    }

    /// Whether an image is served on the connection of an ANA group that is not its own any more: whoever takes its new group
    /// does not fence that one.
    pub(super) fn is_regrouped(&self, nqn: &Nqn, new: &Namespace) -> bool {
        let export = self.exports().iter().find(|export| export.is(nqn, new.nsid));
        let is_shared = |it: &Export| it.shared.is_some() && it.is_for_workers();
        export.is_some_and(|it| is_shared(it) && it.namespace.ana_group != new.ana_group)
    }

    /// Whether a host loses this association when the configuration says this of it; `None`: nothing any more.
    pub(super) fn loses(&self, it: &Association, nqn: &Nqn, host: Option<&Host>) -> bool {
        let has_secret = host.is_some_and(|host| host.dhchap_key_file.is_some());
        let concatenates = host.is_some_and(|host| host.require_concat);
        it.host_nqn() == nqn && it.ends_with(has_secret, self.config.target.dhchap_discovery, concatenates)
    }

    /// The connections that a change closes.
    fn closes(&self, change: &Change) -> Vec<ConnectionName> {
        let registry = self.registry();
        let closes = |association: &Association| match change {
            Change::Hosts(nqn, hosts) => {
                association.subsystem_nqn() == nqn
                    && !exports::host_access(hosts).allows(association.host_nqn())
            }
            Change::RemoveSubsystem(nqn) => association.subsystem_nqn() == nqn,
            Change::RemoveListener(listener) => self.port_of(listener) == Some(association.port()),
            Change::Host(host) => self.loses(association, &host.nqn, Some(host)),
            Change::RemoveHost(nqn) => self.loses(association, nqn, None),
            _ => false,
        };
        registry
            .associations()
            .filter(|association| closes(association))
            .map(|it| connection_name(it))
            .collect()
    }
}

/// The answer to a plan, with what is wrong beside its changes.
pub(super) fn plan_answer(changes: Vec<Item>, mut problems: Vec<String>) -> Answer {
    let count = |effect| changes.iter().filter(|item| item.effect == effect).count();
    for (count, word) in [(count(Effect::Refused), "be refused"), (count(Effect::Fails), "fail")] {
        if count > 0 {
            problems.push(format!("{count} change(s) would {word}: see above"));
        }
    }
    match serde_json::to_value(&ChangesAnswer { changes }) {
        Err(error) => Answer::refused(Fault::refused(error.to_string())),
        Ok(result) if problems.is_empty() => Answer::done(result),
        Ok(result) => Answer::failed(result, problems.join("; ")),
    }
}

fn at_restart(section: &str) -> String {
    format!("{section} changed: this takes effect at the next restart")
}

pub(super) fn connection_name(association: &Association) -> ConnectionName {
    ConnectionName {
        subsystem: association.subsystem_nqn().to_string(),
        cntlid: association.key().cntlid.0,
        host: association.host_nqn().to_string(),
        address: association.peer().to_string(),
    }
}

/// Whether a namespace may become this while hosts have it, and if not, why and what to do.
fn may_replace(export: &Export, new: &Namespace) -> Result<(), String> {
    let (old, nsid) = (&export.namespace, new.nsid);
    let given = new.uuid.is_some_and(|uuid| uuid == export.uuid);
    if !is_same_backing(old, new) {
        // Hosts would take the new disk for the old one, and write over it what they have cached.
        return if given {
            Err(format!(
                "namespace {nsid} stays {}: hosts would take the new disk for it, as `uuid` stays the same. If the disk \
                 was moved, remove the namespace, reload, add it with the new path, reload; if it is another disk, \
                 leave `uuid` out or give it its own",
                export.backing()
            ))
        } else {
            Ok(())
        };
    }
    let mut changed = Vec::new();
    if old.block_size != new.block_size {
        changed.push("block_size");
    }
    if old.uuid != new.uuid && !given {
        changed.push("uuid");
    }
    if changed.is_empty() {
        return Ok(());
    }
    Err(format!(
        "namespace {nsid} stays as it is (UUID {}): {} of a disk that is open {} at the next restart only",
        Uuid::from_bytes(export.uuid),
        changed.join(" and "),
        if changed.len() == 1 { "changes" } else { "change" },
    ))
}

/// Whether hosts see a disk as it is, and if not, what to do: when it is opened anew, they lose what was cut off.
fn is_whole(export: &Export) -> Result<(), String> {
    if export.cut.is_none() {
        return Ok(());
    }
    let (nsid, backing, nqn) = (export.namespace.nsid, export.backing(), export.nqn);
    Err(format!(
        "namespace {nsid} stays read-only: {backing} is shorter than hosts see it. Make it as long as it was, or show hosts \
         its new size first: nvmf-target ctl namespace resize {nqn} {nsid} --shrink"
    ))
}

/// Whether the data are the same; `size` and `create` say what a file should be, not what it is.
pub(super) fn is_same_backing(old: &Namespace, new: &Namespace) -> bool {
    match (&old.backing, &new.backing) {
        (Backing::Path { path: old, .. }, Backing::Path { path: new, .. }) => old == new,
        (before, after) => before == after,
    }
}

fn are_same_hosts(old: &Hosts, new: &Hosts) -> bool {
    match (old, new) {
        (Hosts::Only(old), Hosts::Only(new)) => {
            old.iter().collect::<BTreeSet<_>>() == new.iter().collect::<BTreeSet<_>>()
        }
        (old, new) => old == new,
    }
}

/// Whether the states of groups are the same; those that are not named are optimized.
fn are_same_groups(old: &[AnaGroup], new: &[AnaGroup]) -> bool {
    old.iter().chain(new).all(|group| state_of(old, group.id) == state_of(new, group.id))
}

/// What cannot be changed of a listener that listens.
pub(super) fn fixed(listener: &Listener) -> Listener {
    Listener { allow: None, ana_groups: Vec::new(), ..listener.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = r#"
        [[listener]]
        address = "192.0.2.1:4420"
        [[subsystem]]
        nqn = "nqn.2026-11.a:one"
        allowed_hosts = ["nqn.2026-11.a:h1", "nqn.2026-11.a:h2"]
        [[subsystem.namespace]]
        nsid = 1
        path = "/srv/one.img"
        [[subsystem.namespace]]
        nsid = 2
        path = "/srv/two.img"
    "#;

    fn between(edits: &[(&str, &str)]) -> Vec<(&'static str, String)> {
        let after = edits.iter().fold(BEFORE.to_owned(), |text, (from, to)| {
            assert!(text.contains(from), "{from}");
            text.replacen(from, to, 1)
        });
        let changes = changes(&Config::parse(BEFORE).unwrap(), &Config::parse(&after).unwrap());
        changes.iter().map(Change::name).collect()
    }

    fn words(edits: &[(&str, &str)]) -> Vec<&'static str> {
        between(edits).into_iter().map(|(word, _)| word).collect()
    }

    #[test]
    fn same_file_changes_nothing() {
        assert!(between(&[]).is_empty());
        let hosts = r#""nqn.2026-11.a:h1", "nqn.2026-11.a:h2""#;
        assert!(between(&[(hosts, r#""nqn.2026-11.a:h2", "nqn.2026-11.a:h1""#)]).is_empty());
    }

    #[test]
    fn what_is_revoked_goes_first_and_what_is_new_comes_last() {
        let edits = [
            (", \"nqn.2026-11.a:h2\"", ""),
            ("192.0.2.1:4420", "192.0.2.2:4420"),
            ("nsid = 2\n", "nsid = 3\n"),
            ("/srv/one.img\"", "/srv/one.img\"\nread_only = true"),
        ];
        let expected = [
            "change-hosts",
            "remove-listener",
            "change-namespace",
            "remove-namespace",
            "add-namespace",
            "add-listener",
        ];
        assert_eq!(words(&edits), expected);
    }

    #[test]
    fn change_of_what_a_listener_allows_is_not_another_listener() {
        assert_eq!(words(&[("4420\"", "4420\"\nallow = [\"10.0.0.0/8\"]")]), ["change-listener"]);
        assert_eq!(words(&[("4420\"", "4420\"\ncrc = \"on\"")]), ["remove-listener", "add-listener"]);
    }

    #[test]
    fn host_whose_name_looks_mistyped_is_named_once() {
        let only = |names: &[&str]| Hosts::Only(names.iter().map(|name| name.parse().unwrap()).collect());
        let (usual, wrong) = ("nqn.2026-11.com.example:h", "nqn.typoo");
        assert_eq!(unusual(&only(&[usual]), &only(&[])), None);
        assert_eq!(unusual(&Hosts::Any, &only(&[wrong])), None);
        assert_eq!(unusual(&only(&[wrong, usual]), &only(&[wrong])), None, "it was there before");
        let text = unusual(&only(&[usual, wrong]), &only(&[usual])).unwrap();
        assert!(
            text.starts_with("nqn.typoo has not the form") && text.contains("nvmf show-hostnqn"),
            "{text}"
        );
    }

    #[test]
    fn hosts_are_changed_one_by_one() {
        let host = |n: u32, file: &str| {
            format!("[[host]]\nnqn = \"nqn.2026-11.a:h{n}\"\ndhchap_key_file = \"/etc/nvmf/{file}\"\n")
        };
        let parse = |hosts: &str| Config::parse(&format!("{BEFORE}\n{hosts}")).unwrap();
        let before = parse(&(host(1, "one") + &host(2, "two") + &host(3, "three")));
        let after = parse(&(host(2, "other") + &host(3, "three") + &host(4, "four")));
        let names: Vec<_> = changes(&before, &after).iter().map(Change::name).collect();
        let expected = [("remove-host", 1), ("set-host", 2), ("set-host", 4)];
        assert_eq!(names, expected.map(|(word, n)| (word, format!("nqn.2026-11.a:h{n}"))));
    }

    #[test]
    fn another_disk_under_an_nsid_replaces_it() {
        assert_eq!(words(&[("/srv/two.img", "/srv/three.img")]), ["replace-namespace"]);
        assert_eq!(words(&[("[[listener]]", "[target]\nworkers = 63\n[[listener]]")]), ["change-target"]);
        assert_eq!(words(&[("[[listener]]", "[target]\nstrict = true\n[[listener]]")]), ["change-strict"]);
    }
}
