//! The images of an ANA group on its connection: opened, and given to the workers.
//!
//! A namespace of a group is there on every gateway, with an image that was opened read-only to know what it is. Where the
//! ANA group is served, the image is open a second time, on the group's own connection, and the workers have that. So
//! no I/O of a host ever goes another way than through the connection whose address the others would fence.

use super::super::Daemon;
use super::super::disks::error_text;
use super::super::slow_disks::WARNS;
use super::leaving::{Cut, Leaving, close};
use super::opening::{Fault, HANGS_AFTER, Opening, is_another};
use super::showing::Taken;
use crate::cluster::ToDriver;
use crate::exports::{Export, Through};
use crate::limits::RETRY_INTERVAL;
use core::time::Duration;
use nvmf_backend::{Disk, Health};
use nvmf_cluster::{AnaState, GroupId, Handle, Lack, OpId, Reply, Unopened};
use nvmf_config::Namespace;
use nvmf_rados::Cluster;
use nvmf_subsystem::reservation::Reservation;
use nvmf_subsystem::{Nqn, WriteProtection};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use uuid::Uuid;

/// Hosts wait for images that do not open for so long before they get the others of the ANA group.
const OPEN_TIMEOUT: Duration = Duration::from_secs(15);

/// A namespace by its subsystem and NSID.
pub(in crate::daemon) type Key = (Nqn, u32);

/// The images of an ANA group on a connection.
pub(super) struct Images {
    pub(super) group: GroupId,
    pub(super) connection: Arc<Cluster>,
    /// Who waits until they are open.
    pub(super) opens: Option<OpId>,
    /// Until when: then the others are served, if there are any.
    opens_until: Duration,
    /// When the last came, or the first was begun.
    last_opened: Duration,
    pub(super) opening: Vec<Opening>,
    /// Those that could not be opened when that was tried last.
    pub(super) failed: BTreeMap<Key, Failed>,
    pub(super) leaving: Option<Leaving>,
    /// Hosts were told that it is inaccessible while their commands were under way.
    pub(super) cut: Option<Cut>,
}

/// An image that could not be opened.
pub(super) struct Failed {
    pub(super) why: Fault,
    retry_at: Duration,
}

impl Images {
    pub(super) fn new(group: GroupId, connection: Arc<Cluster>, op: OpId, now: Duration) -> Self {
        Self {
            group,
            connection,
            opens: Some(op),
            opens_until: now + OPEN_TIMEOUT,
            last_opened: now,
            opening: Vec::new(),
            failed: BTreeMap::new(),
            leaving: None,
            cut: None,
        }
    }

    /// Whether something is under way that is to be over soon.
    pub(super) fn is_busy(&self, now: Duration) -> bool {
        let hangs = !self.opening.is_empty() && self.all_hang(now);
        let leaves = self
            .leaving
            .as_ref()
            .is_some_and(|leaving| leaving.ends_soon(now) && (!leaving.is_out() || !hangs));
        self.opens.is_some() || leaves || self.cut.is_some()
    }

    /// Whether an image is being opened, and has not answered for so long.
    pub(super) fn hangs(&self, export: &Export, now: Duration, after: Duration) -> bool {
        self.opening.iter().any(|opening| opening.is_of(export) && opening.hangs(now, after))
    }

    /// Whether all that are being opened do not answer.
    pub(super) fn all_hang(&self, now: Duration) -> bool {
        self.opening.iter().all(|opening| opening.hangs(now, HANGS_AFTER))
    }

    /// Whether the image is the one that hosts are to get through this connection.
    fn is_for(&self, export: &Export) -> bool {
        export.namespace.ana_group == self.group.0 && is_looked_at(export)
    }

    /// Whether hosts use what is open.
    pub(super) fn is_served(&self) -> bool {
        self.opens.is_none() && self.leaving.is_none()
    }
}

pub(super) fn is_through(export: &Export, handle: Handle) -> bool {
    export.through() == Some(handle)
}

pub(super) fn is_looked_at(export: &Export) -> bool {
    export.shared.as_ref().is_some_and(|shared| shared.through.is_none())
}

impl Daemon {
    /// The namespaces of an ANA group.
    pub(super) fn keys_in_group(&self, group: GroupId) -> impl Iterator<Item = Key> {
        self.config.subsystems.iter().flat_map(move |subsystem| {
            let namespaces = subsystem.namespaces.iter().filter(move |it| it.ana_group == group.0);
            namespaces.map(|namespace| (subsystem.nqn, namespace.nsid))
        })
    }

    /// Why not even a look at a namespace's image succeeded.
    pub(super) fn never_seen(&self, key: &Key) -> Option<Fault> {
        let text = self.namespaces.fault(key)?;
        let is_missing = self.namespaces.is_missing(key);
        Some(Fault { text, is_gone: is_missing || self.namespaces.is_another(key), is_missing })
    }

    /// Tells the group's thread what is not open here, when that has changed: also what nobody can open.
    pub(super) fn tell_unopened(&mut self) {
        let Some(cluster) = &self.cluster else { return };
        let served = cluster.handles.values().filter(|images| images.is_served());
        let now = self.common.clock.now();
        let unseen = self.namespaces.slow_images(now, WARNS);
        let of = |images: &Images| {
            let seen: BTreeMap<Key, &Export> =
                self.of_group(images.group).map(|export| (key_of(export), export)).collect();
            let trouble = |key: &Key| match (images.failed.get(key), seen.get(key)) {
                (Some(failed), _) => Some(failed.why.clone()),
                (None, Some(export)) if export.disk.is_removed() => Some(removed()),
                (None, Some(export)) if images.hangs(export, now, WARNS) => Some(unanswered()),
                (None, Some(_)) => None,
                (None, None) => self.never_seen(key).or_else(|| unseen.contains(key).then(unanswered)),
            };
            let unopened =
                self.keys_in_group(images.group).filter_map(|key| Some(lack(&key, trouble(&key)?)));
            (images.group, unopened.collect::<Unopened>())
        };
        let unopened: BTreeMap<_, _> = served.map(of).filter(|(_, unopened)| !unopened.is_empty()).collect();
        if let Some(cluster) = self.cluster.as_mut().filter(|cluster| cluster.unopened != unopened) {
            cluster.unopened.clone_from(&unopened);
            cluster.driver.tell(ToDriver::Unopened(unopened));
        }
    }

    /// Tells the group's thread of which ANA groups an image is slow, when that has changed: at a host's operation, or in being opened,
    /// looked at or closed. None of them would drain.
    pub(super) fn tell_slow(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        let now_us = self.common.observed.now_us();
        let is_slow = |it: &&Export| self.slow.has(it.nqn, it.namespace.nsid);
        // Of one that was taken away, operations may be under way yet.
        let leaves_slowly = |it: &&Export| it.counted.in_flight(now_us).oldest >= WARNS;
        let leaving = self.namespaces.leaving().filter(leaves_slowly);
        let slow = self.namespaces.open.iter().filter(is_slow).chain(leaving);
        let slow = slow.filter(|export| export.shared.is_some());
        let slow = slow.map(|export| GroupId(export.namespace.ana_group));
        let now = self.common.clock.now();
        let looks = self.looking.values().filter_map(|looking| looking.hangs_at(WARNS));
        let held: BTreeSet<Handle> = self.namespaces.closes_slowly(now, WARNS).chain(looks).collect();
        let served = cluster.handles.iter().filter(|(_, images)| images.is_served());
        let is_held = |(handle, images): &(&Handle, &Images)| {
            held.contains(handle) || images.opening.iter().any(|opening| opening.hangs(now, WARNS))
        };
        let slow: BTreeSet<_> = slow.chain(served.filter(is_held).map(|(_, images)| images.group)).collect();
        if cluster.slow != slow {
            cluster.slow.clone_from(&slow);
            cluster.driver.tell(ToDriver::Slow(slow));
        }
    }

    /// One step of everything that is under way with images.
    pub(super) fn advance_images(&mut self) {
        let Some(cluster) = &self.cluster else { return };
        for handle in cluster.handles.keys().copied().collect::<Vec<_>>() {
            let Some(mut images) = self.cluster.as_mut().and_then(|it| it.handles.remove(&handle)) else {
                continue;
            };
            let (opened, is_news) = self.collect(&mut images);
            let (mut is_over, mut taken) = (false, Vec::new());
            self.let_hosts_go(handle, &mut images);
            if let Some(leaving) = &mut images.leaving {
                leaving.disks.extend(opened.into_iter().map(|(_, disk)| disk));
                is_over = self.advance_leaving(handle, &mut images);
            } else {
                if !opened.is_empty() {
                    images.last_opened = self.common.clock.now();
                }
                taken = self.take_opened(handle, &mut images, opened);
                self.begin_to_open(&mut images);
            }
            let is_over_time = self.common.clock.now() >= images.opens_until;
            let are_open = images.leaving.is_none() && (is_over_time || self.all_are_open(handle, &images));
            let opens = images.opens.filter(|_| are_open);
            if opens.is_some() {
                images.opens = None;
            }
            let group = images.group;
            let since = images.opens_until.saturating_sub(OPEN_TIMEOUT);
            if let Some(cluster) = self.cluster.as_mut().filter(|_| !is_over) {
                cluster.handles.insert(handle, images);
            }
            self.show_taken(&taken);
            if opens.is_some() || is_news {
                // Those that are gone are not seen from now on.
                self.show_group(group);
            }
            if let Some(op) = opens {
                self.reply(op, self.opened(group, handle, self.common.clock.now().saturating_sub(since)));
            }
        }
    }

    /// Whether hosts get anything of a group here that has something: otherwise another gateway may do better.
    fn opened(&self, group: GroupId, handle: Handle, waited: Duration) -> Reply {
        if self.of_group(group).any(|export| is_through(export, handle)) {
            return Reply::Done;
        }
        let exports: BTreeMap<Key, &Export> =
            self.of_group(group).map(|export| (key_of(export), export)).collect();
        let trouble = |key: &Key| {
            let known = match exports.get(key) {
                Some(export) => self.image_trouble(export).cloned(),
                None => self.never_seen(key),
            };
            known.unwrap_or_else(|| format!("it did not open within {} s", waited.as_secs()).into())
        };
        let mut all = self.keys_in_group(group).map(|key| (key, trouble(&key)));
        match all.find(|(_, why)| !why.is_gone) {
            Some(((nqn, nsid), Fault { text, .. })) => {
                Reply::Failed(format!("none of its images can be opened: namespace {nsid} of {nqn}: {text}"))
            }
            None => Reply::Done,
        }
    }

    fn of_group(&self, group: GroupId) -> impl Iterator<Item = &Export> {
        self.exports().iter().filter(move |export| export.namespace.ana_group == group.0)
    }

    pub(super) fn reply(&self, op: OpId, reply: Reply) {
        if let Some(cluster) = &self.cluster {
            cluster.driver.reply(op, reply);
        }
    }

    /// Whether no image of the group is to come soon. Those that hang, and what is in line behind them, hold up no other:
    /// hosts wait for all only while there is none, or while they come one after the other.
    fn all_are_open(&self, handle: Handle, images: &Images) -> bool {
        let now = self.common.clock.now();
        let patience = Opening::patience(&images.opening, now);
        let (mut is_any_to_come, mut is_any_hanging) = (false, false);
        for export in self.closed_of(images).filter(|export| !images.failed.contains_key(&key_of(export))) {
            let opening = images.opening.iter().find(|opening| opening.is_of(export));
            let hangs = opening.is_some_and(|opening| opening.hangs(now, patience));
            is_any_hanging |= hangs;
            is_any_to_come |= !hangs;
        }
        let (comes, hangs) = self.unseen(images.group, now);
        is_any_to_come |= comes;
        is_any_hanging |= hangs;
        let is_any_open = || self.of_group(images.group).any(|export| is_through(export, handle));
        match (is_any_to_come, is_any_hanging) {
            (false, false) => true,
            (false, true) => is_any_open(),
            (true, _) => now >= images.last_opened + HANGS_AFTER && is_any_open(),
        }
    }

    /// Whether images of the group have not been looked at yet, as after a start, and may be soon; and whether a look at one
    /// hangs. They are opened for hosts then.
    pub(super) fn unseen(&self, group: GroupId, now: Duration) -> (bool, bool) {
        let seen: BTreeSet<Key> = self.exports().iter().map(key_of).collect();
        let all = self.config.subsystems.iter();
        let all =
            all.flat_map(|it| it.namespaces.iter().map(|namespace| ((it.nqn, namespace.nsid), namespace)));
        let unseen = all.filter(|(key, namespace)| {
            namespace.ana_group == group.0
                && !seen.contains(key)
                && self.never_seen(key).is_none()
                && !self.namespaces.is_resting(key, namespace)
        });
        let (mut comes, mut hangs) = (false, false);
        for (key, _) in unseen {
            let it_hangs = self.namespaces.hangs(&key, now);
            hangs |= it_hangs;
            comes |= !it_hangs;
        }
        (comes, hangs)
    }

    /// Namespaces of the group whose images are looked at only.
    fn closed_of(&self, images: &Images) -> impl Iterator<Item = &Export> {
        self.of_group(images.group).filter(|export| is_looked_at(export))
    }

    fn begin_to_open(&self, images: &mut Images) {
        let Some(cluster) = &self.cluster else { return };
        let now = self.common.clock.now();
        let is_opening = |export: &Export| images.opening.iter().any(|opening| opening.is_of(export));
        let rests = |key: &Key| images.failed.get(key).is_some_and(|failed| failed.retry_at > now);
        let due = self.closed_of(images).filter(|export| !is_opening(export) && !rests(&key_of(export)));
        let due: Vec<Export> = due.take(Opening::room(&images.opening, now)).cloned().collect();
        for export in due {
            let (spec, waker) = (cluster.images_at(), self.common.waker.clone());
            // No thread: it is tried again.
            images.opening.extend(Opening::begin(now, &images.connection, &export, spec, false, waker));
        }
    }

    /// Takes in what has been opened since; logs each reason once.
    fn collect(&self, images: &mut Images) -> (Vec<(Opening, Disk)>, bool) {
        let (mut opened, mut is_news) = (Vec::new(), false);
        for opening in core::mem::take(&mut images.opening) {
            let key = opening.key();
            match opening.result() {
                None => images.opening.push(opening),
                Some(Ok(disk)) => opened.push((opening, disk)),
                // It says nothing of what has its place now.
                Some(Err(_)) if !self.exports().iter().any(|export| opening.is_of(export)) => {}
                Some(Err(why)) => {
                    let before = images.failed.get(&key).map(|failed| &failed.why);
                    if before.is_none_or(|before| before.text != why.text) {
                        is_news = true;
                        tracing::error!("namespace {} of {}: {}", key.1, key.0, why.text);
                    }
                    self.note_failed(images, key, why);
                }
            }
        }
        (opened, is_news)
    }

    /// Gives images that have been opened to the workers, but for those that are not what is meant any more. Hosts are to
    /// be shown what is returned.
    fn take_opened(
        &mut self,
        handle: Handle,
        images: &mut Images,
        opened: Vec<(Opening, Disk)>,
    ) -> Vec<Taken> {
        let mut all_taken = Vec::new();
        for (opening, disk) in opened {
            let (nqn, nsid) = opening.key();
            let is_it = |export: &&Export| opening.is_of(export) && images.is_for(export);
            let Some(export) = self.exports().iter().find(is_it).cloned() else {
                close(vec![disk]);
                continue;
            };
            // Which one is open here only to be looked at says nothing, where this gateway has not looked for a while.
            if !self.is_as_known(&opening, &disk) {
                let why = is_another();
                tracing::error!("namespace {nsid} of {nqn}: {}", why.text);
                self.note_failed(images, (nqn, nsid), why);
                close(vec![disk]);
                continue;
            }
            let device = self.namespaces.take_device();
            let kept = match self.kept_of(&export, images.group) {
                Ok(kept) => kept,
                Err(text) => {
                    tracing::error!("namespace {nsid} of {nqn}: {text}");
                    self.note_failed(images, (nqn, nsid), text.into());
                    close(vec![disk]);
                    continue;
                }
            };
            let (seen, uuid) = (export.disk.clone(), export.uuid);
            let (disk, cut) = self.as_seen(&export, disk);
            // What was kept when it was looked at may be another ANA group's, or old.
            let mut of_workers =
                Export { disk, device, cut, kept: None, logged: Health::default(), ..export };
            of_workers.shared = Some(crate::exports::Shared { through: Some(Through { handle, seen }) });
            let (taken, refused) = self.attach(vec![of_workers]);
            for (export, text) in refused {
                self.note_failed(images, (nqn, nsid), text.into());
                close(vec![export.disk]);
            }
            for export in taken {
                export.disk.on_change({
                    let waker = self.common.waker.clone();
                    move || waker.wake()
                });
                if let Some(place) = self.namespaces.open.iter_mut().find(|it| it.is(&nqn, nsid)) {
                    *place = export;
                }
                images.failed.remove(&(nqn, nsid));
                let (reservation, protection) = kept.clone();
                all_taken.push(Taken { nqn, nsid, uuid, reservation, protection });
            }
        }
        all_taken
    }

    /// An image that has shrunk keeps the size that hosts see until an operator says otherwise, whoever serves it.
    fn as_seen(&self, export: &Export, disk: Disk) -> (Disk, Option<Disk>) {
        let blocks = export.disk.geometry().blocks;
        if disk.geometry().blocks >= blocks || self.is_accepted(export, &disk) {
            return (disk, None);
        }
        match disk.with_blocks(blocks) {
            Ok(Some(seen)) => (seen, Some(disk)),
            _ => (disk, None),
        }
    }

    fn note_failed(&self, images: &mut Images, key: Key, why: Fault) {
        let retry_at = self.common.clock.now() + RETRY_INTERVAL;
        images.failed.insert(key, Failed { why, retry_at });
    }

    /// What a namespace had in the ANA group that it was in before does not come back with it.
    pub(in crate::daemon) fn forget_regrouped(&self) {
        let Some(cluster) = self.cluster.as_ref().filter(|it| it.converging.is_none() && it.next.is_none())
        else {
            return;
        };
        let served = cluster.states.iter().filter(|(_, state)| **state == AnaState::OPTIMIZED);
        let served: BTreeSet<GroupId> = served.map(|(group, _)| *group).collect();
        let open: BTreeMap<Key, [u8; 16]> = self.exports().iter().map(|it| (key_of(it), it.uuid)).collect();
        let all = self.config.subsystems.iter();
        let all = all.flat_map(|it| it.namespaces.iter().map(|namespace| (it.nqn, namespace)));
        let all: Vec<_> = all
            .map(|(nqn, namespace)| {
                let key = (nqn, namespace.nsid);
                let known = cluster.known.get(&key).map(|known| known.uuid);
                let uuids = [namespace.uuid, known.map(Uuid::into_bytes), open.get(&key).copied()];
                (namespace, uuids.into_iter().flatten().map(Uuid::from_bytes).collect::<Vec<_>>())
            })
            .collect();
        let mut groups: BTreeMap<String, BTreeSet<GroupId>> = BTreeMap::new();
        for (namespace, uuids) in &all {
            // One that nobody has opened may be what another one of the same image is.
            let is_same = |other: &&Namespace| uuids.is_empty() && other.backing == namespace.backing;
            let same = all.iter().filter(|(other, _)| is_same(other)).flat_map(|(_, uuids)| uuids);
            for uuid in uuids.iter().chain(same) {
                groups.entry(uuid.to_string()).or_default().insert(GroupId(namespace.ana_group));
            }
        }
        cluster.kept.forget_regrouped(&served, &groups);
    }

    /// The reservation and the write protection of a namespace, as the group has them.
    fn kept_of(&self, export: &Export, group: GroupId) -> Result<(Reservation, WriteProtection), String> {
        let state = &self.common.state;
        if let Some(cluster) = &self.cluster {
            cluster.kept.note(&Uuid::from_bytes(export.uuid).to_string(), group);
        }
        let reservation = state.load(export.uuid).map_err(|error| error_text(&error))?;
        let is_protected = state.is_write_protected(export.uuid).map_err(|error| error_text(&error))?;
        let protection = if is_protected { WriteProtection::On } else { WriteProtection::Off };
        Ok((reservation.unwrap_or_default(), protection))
    }
}

pub(super) fn key_of(export: &Export) -> Key {
    (export.nqn, export.namespace.nsid)
}

pub(super) fn lack(key: &Key, why: Fault) -> Lack {
    Lack { namespace: item(key), reason: why.text, is_gone: why.is_gone }
}

/// What is open of an image is of no use any more.
fn removed() -> Fault {
    Fault { text: "the image was removed".to_owned(), is_gone: true, is_missing: true }
}

/// Its image is being opened for long.
fn unanswered() -> Fault {
    "it does not answer while it is being opened".to_owned().into()
}

/// The item of a namespace in the group's configuration.
pub(in crate::daemon) fn item((nqn, nsid): &Key) -> String {
    format!("namespace/{nqn}/{nsid}")
}
