//! This gateway as one of a group: what the thread of the group ([`crate::cluster`]) asks of the control loop, done.
//!
//! | module | what it holds |
//! |---|---|
//! | `joining` | who this gateway is, from its configuration |
//! | `converging` | the group's items as a configuration, and making it so |
//! | `images` | the images of an ANA group on its connection: opened, given to the workers |
//! | `opening` | one of them being opened, which may hang |
//! | `showing` | what hosts see of namespaces whose images are being opened, or cannot be |
//! | `looking` | those of an ANA group that is to move here, looked at before |
//! | `known` | what the group knows of its images, whoever can open them: which disks they are, and their sizes |
//! | `leaving` | images on their way out: drained, or given up with their connection |
//! | `elsewhere` | where the other gateways listen, for discovery |
//! | `handing_over` | ANA groups that go to the others, as this one is drained or stops |
//! | `keys` | the keys of hosts |
//! | `duplicates` | one image is in the configuration once |
//! | `editing` | changes of the group's configuration |
//! | `trying` | the images that a change adds or replaces, opened before the group is asked for it |
//! | `beside` | clients that have such an image open, and are none of the group's |
//! | `taking_away` | which of these changes take something away from hosts |
//! | `unfinished` | what changes of the group took away, and is still under way here |
//! | `asking` | what operators ask of the group |
//! | `answering` | what who asked is told when that is over, or its time is |
//! | `telling` | what operators are told of it |
//!
//! Nothing here waits for Ceph.

mod answering;
mod asking;
mod beside;
mod converging;
mod duplicates;
mod editing;
mod elsewhere;
mod handing_over;
mod images;
mod joining;
mod keys;
mod known;
mod leaving;
mod looking;
mod opening;
mod showing;
mod taking_away;
mod telling;
#[cfg(test)]
mod tests;
mod trying;
mod unfinished;

use super::Daemon;
use crate::cluster::{Driver, Kept, Shared, ToDaemon};
use asking::Answers;
use core::time::Duration;
use images::Images;
use looking::Look;
use nvmf_backend::ClusterSpec;
use nvmf_cluster::{AnaState, ConnectedHosts, GroupId, Handle, Listens, OpId, Unopened};
use nvmf_config::Items;
use nvmf_rados::boottime;
use nvmf_subsystem::Nqn;
use opening::Opening;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

pub(super) use asking::{Asking, REFUSED_IN_A_GROUP};
pub(super) use handing_over::HandingOver;
pub(super) use images::item;
pub(super) use joining::JoinError;
pub(crate) use joining::gateway_name;
pub(super) use keys::has_usual_form;
pub(super) use leaving::close;
pub(super) use showing::Taken;
pub(super) use telling::Owner;

/// What is known of the group here.
pub(super) struct Membership {
    driver: Driver,
    /// Reservations and write protections, in the pool.
    kept: Kept,
    /// How its images are reached.
    images_at: ClusterSpec,
    /// The configuration that was read last, as items that can be served, and those that cannot, with the reason.
    shared: Shared,
    items: Items,
    left_out: Vec<(String, String)>,
    /// Why what is stored of the configuration is not used.
    refused: Option<String>,
    /// Changes that failed when it was last converged to, as they were logged.
    failed: BTreeSet<String>,
    /// The keys of hosts that it has.
    keys: keys::SharedKeys,
    /// The convergence under way, and one that came meanwhile.
    converging: Option<OpId>,
    next: Option<(OpId, Box<Shared>)>,
    /// It was served once.
    is_configured: bool,
    /// Until when it waits for images that are being opened, before it listens for the first time.
    images_until: Option<Duration>,
    controller_ids: Option<RangeInclusive<u16>>,
    states: BTreeMap<GroupId, AnaState>,
    /// Changes of these that have not been logged.
    news: BTreeMap<String, Vec<String>>,
    handles: BTreeMap<Handle, Images>,
    /// ANA groups that are to move here.
    looks: Vec<Look>,
    /// Images that looks which are over began to open, and that do not answer: each keeps a thread and a connection, so none is begun
    /// once more beside them.
    hanging: Vec<Opening>,
    /// What cannot be opened of those that are served here, as the group's thread was told.
    unopened: BTreeMap<GroupId, Unopened>,
    /// Those of which an image is slow, as it was told.
    slow: BTreeSet<GroupId>,
    answers: Answers,
    /// What the group knows of images.
    known: BTreeMap<images::Key, known::Known>,
    /// ANA groups of namespaces that this gateway asks the group to serve, and that are not there yet.
    placing: Vec<std::sync::Weak<u32>>,
    /// Which namespaces have which UUIDs, by what is known: nobody else gets them.
    pub(in crate::daemon) claims: Vec<(images::Key, uuid::Uuid)>,
    /// What it is told of them, and the namespaces that hosts see by what it knows.
    noting: known::Noting,
    elsewhere: BTreeSet<(Nqn, u32, [u8; 16])>,
    /// Where the others were told that this gateway listens.
    told: Vec<String>,
    /// Whether hosts can connect to it, as the group's thread was told; and since when none of its listeners is up.
    listens: Listens,
    /// Which hosts are connected, as it was told last, and when that is looked at again.
    hosts: Option<ConnectedHosts>,
    look_at_hosts: Duration,
    unfinished: unfinished::UnfinishedVersions,
    silent_since: Option<Duration>,
    has_listened: bool,
    stopped: bool,
}

impl Membership {
    /// Whether hosts may be let in: they would be told that their subsystem does not exist.
    fn may_listen(&self) -> bool {
        self.is_configured && self.controller_ids.is_some()
    }

    /// What hosts are waiting for, for people.
    fn waits_for(&self) -> Option<String> {
        if self.may_listen() {
            let waits = "images of the group's namespaces are being opened: see the namespaces";
            return self.images_until.map(|_| waits.to_owned());
        }
        let of_engine = || self.driver.status().and_then(|status| status.why);
        let why = self.driver.trouble().or_else(of_engine);
        let why = why.unwrap_or_else(|| "its configuration is being read".to_owned());
        Some(format!("no word of its group of gateways yet: {why}"))
    }
}

impl Daemon {
    /// Whether it may listen now. A host that comes back and finds its namespace gone gives it up, with all that it
    /// would write, so images that are slow to open are waited for; but one that hangs is shown as the group knows it.
    pub(super) fn may_listen(&self) -> bool {
        if self.awaits_disk() {
            return false;
        }
        let Some(cluster) = &self.cluster else { return true };
        let waits = cluster.images_until.is_some_and(|until| self.common.clock.now() < until);
        let is_known = |key: &images::Key| cluster.known.contains_key(key);
        cluster.may_listen() && !(waits && self.namespaces.is_opening_any(self.common.clock.now(), is_known))
    }

    /// What keeps it from listening, if it is its disks or the group.
    pub(super) fn waits_for(&self) -> Option<String> {
        let slow = match self.exports().is_empty() {
            true => "none of its disks has been opened yet: it listens when one is, see the namespaces",
            false => "more of its disks may come within seconds, after the first: it listens then",
        };
        let of_disks = || self.awaits_disk().then(|| slow.to_owned());
        of_disks().or_else(|| self.cluster.as_ref()?.waits_for())
    }

    /// Whether something of the group is under way that is worth a glance.
    pub(super) fn is_group_busy(&self) -> bool {
        let now = self.common.clock.now();
        let is_busy = |it: &Membership| {
            let are_busy = it.handles.values().any(|images| images.is_busy(now));
            are_busy || it.converging.is_some() || !it.looks.is_empty()
        };
        self.cluster.as_deref().is_some_and(is_busy)
    }

    /// Whether the group's thread has died: nobody renews the lease, and others take over.
    pub(super) fn group_ended(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| cluster.driver.ended())
    }

    /// Does what the group's thread asks for, and what follows of what it asked for before. Waits for nothing.
    pub(super) fn advance_cluster(&mut self) {
        if self.cluster.is_none() {
            return;
        }
        while let Some(message) = self.cluster.as_ref().and_then(|cluster| cluster.driver.take()) {
            self.on_group_message(message);
        }
        let news = self.cluster.as_mut().map(|cluster| core::mem::take(&mut cluster.news));
        for (word, groups) in news.unwrap_or_default() {
            tracing::info!("{word} here: ANA group {}", groups.join(", "));
        }
        self.advance_images();
        self.advance_looks();
        self.tell_unopened();
        self.tell_slow();
        self.tell_unfinished();
        self.note_known();
        self.show_known_elsewhere();
        if self.cluster.as_ref().is_some_and(|cluster| cluster.images_until.is_some()) {
            self.listen_if_ready();
        }
        self.tell_addresses();
        self.tell_hosts();
    }

    fn on_group_message(&mut self, message: ToDaemon) {
        let Some(cluster) = &mut self.cluster else { return };
        match message {
            ToDaemon::Converge(op, shared) => {
                cluster.next = Some((op, shared));
                self.begin_to_converge();
            }
            ToDaemon::OpenImages { op, handle, group, cluster: connection, kept } => {
                cluster.kept.load(group, kept);
                let images = Images::new(group, Arc::clone(&connection), op, self.common.clock.now());
                cluster.handles.insert(handle, images);
                self.forget_look(Some(&connection));
                self.take_from_others(group, handle);
            }
            ToDaemon::LookAtImages(op, group, connection) => self.begin_to_look_at(op, group, connection),
            ToDaemon::SetAna(group, state) => self.set_group_state(group, state),
            ToDaemon::Drain(op, handle) => self.begin_to_drain(op, handle),
            ToDaemon::Shutdown(op, handle, connection) => self.begin_to_close(op, handle, connection),
            ToDaemon::Refused(refused) => self.on_refused(refused),
            ToDaemon::UseControllerIds(range) => self.use_controller_ids(range),
            ToDaemon::Admit(until) => {
                let until = self.common.clock.now() + until.saturating_sub(boottime());
                self.registry().admit_until(until);
            }
            ToDaemon::Answer(ticket, result) => self.on_group_answer(ticket, result),
            ToDaemon::Others(others) => self.on_others(&others),
            ToDaemon::Stopped => cluster.stopped = true,
        }
    }

    /// Shows hosts another state of an ANA group, through every listener.
    fn set_group_state(&mut self, group: GroupId, state: AnaState) {
        let Some(cluster) = &mut self.cluster else { return };
        cluster.states.insert(group, state);
        let ports: Vec<u16> = self.listeners.iter().map(super::Listening::port).collect();
        {
            let mut registry = self.registry();
            for port in ports {
                if let Err(error) = registry.set_ana_state(port, group.0, state) {
                    tracing::error!("ANA group {group} cannot be shown: {error}");
                }
            }
        }
        self.publish();
        self.note_cut(group, state == AnaState::INACCESSIBLE);
        let word = nvmf_config::AnaGroup { id: group.0, state }.state_word().to_owned();
        if let Some(cluster) = &mut self.cluster {
            cluster.news.entry(word).or_default().push(group.to_string());
        }
    }

    /// The states of all ANA groups behind a port that is new.
    pub(super) fn set_group_states_of(&mut self, port: u16) {
        let Some(cluster) = &self.cluster else { return };
        let mut registry = self.registry();
        for (group, state) in &cluster.states {
            let _ = registry.set_ana_state(port, group.0, *state);
        }
        drop(registry);
        self.publish();
    }

    fn use_controller_ids(&mut self, range: Option<RangeInclusive<u16>>) {
        let Some(cluster) = &mut self.cluster else { return };
        cluster.controller_ids.clone_from(&range);
        match &range {
            Some(range) => tracing::info!("a member of its group, with the Controller IDs {range:?}"),
            None => tracing::error!("no member of its group any more: all connections close"),
        }
        self.registry().set_controller_ids(range);
        self.publish();
        self.listen_if_ready();
    }

    /// Listens, once there is something to serve.
    fn listen_if_ready(&mut self) {
        if self.may_listen() {
            if let Some(cluster) = &mut self.cluster {
                cluster.images_until = None;
            }
            self.retry_listeners();
        }
    }
}
