//! The images of an ANA group on its connection: opened, and given to the workers.
//!
//! A namespace of a group is there on every gateway, with an image that was opened read-only to know what it is. Where the
//! ANA group is served, the image is open a second time, on the group's own connection, and the workers have that. So
//! no I/O of a host ever goes another way than through the connection whose address the others would fence.

use super::super::Daemon;
use super::super::disks::error_text;
use super::leaving::{Cut, Leaving, close};
use crate::cluster::ToDriver;
use crate::control::Waker;
use crate::exports::{Export, ExportFault, Through, shared_image};
use crate::limits::RETRY_INTERVAL;
use crate::mailbox::ThreadMessage;
use core::time::Duration;
use nvmf_backend::{ClusterSpec, Disk, Health};
use nvmf_cluster::{GroupId, Handle, OpId, Reply, Unopened};
use nvmf_config::Backing;
use nvmf_rados::Cluster;
use nvmf_subsystem::reservation::Reservation;
use nvmf_subsystem::{Nqn, Nsid, WriteProtection};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// Images that are opened at a time for one ANA group, beside those that hang.
pub(super) const OPENING_MAX: usize = 16;

/// What takes longer to open hangs, as far as the others are concerned: a failover waits for it.
const HANGS_AFTER: Duration = Duration::from_millis(1500);

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
    why: Fault,
    retry_at: Duration,
}

/// Why an image cannot be opened.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    pub(super) text: String,
    /// There is none of this name, or it is another one: no gateway can open it.
    pub(super) is_gone: bool,
}

impl From<String> for Fault {
    fn from(text: String) -> Self {
        Self { text, is_gone: false }
    }
}

/// An image that a thread of its own opens.
pub(super) struct Opening {
    pub(super) key: Key,
    since: Duration,
    told: Receiver<Result<Disk, Fault>>,
}

impl Opening {
    /// Opens the image of a namespace on a connection, as configured or `only_read`. `None`: the system has no thread left.
    pub(super) fn begin(
        now: Duration,
        connection: &Arc<Cluster>,
        export: Export,
        spec: ClusterSpec,
        only_read: bool,
        waker: Waker,
    ) -> Option<Self> {
        let (connection, (tell, told)) = (Arc::clone(connection), channel());
        let key = key_of(&export);
        let body = move || {
            let opened = open(&connection, &export, &spec, only_read);
            // Neither the image nor the connection ends on the control loop's thread.
            drop((export, connection));
            let _ = tell.send(opened);
            waker.wake();
        };
        std::thread::Builder::new().name("open-image".into()).spawn(body).ok()?;
        Some(Self { key, since: now, told })
    }

    /// How many more may be begun beside these. One that hangs keeps no other from being opened.
    pub(super) fn room(openings: &[Self], now: Duration) -> usize {
        OPENING_MAX.saturating_sub(openings.iter().filter(|opening| !opening.hangs(now)).count())
    }

    fn hangs(&self, now: Duration) -> bool {
        now >= self.since + HANGS_AFTER
    }

    /// What came of it, once it is over.
    pub(super) fn result(&self) -> Option<Result<Disk, Fault>> {
        match self.told.try_recv() {
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err("the opening thread died".to_owned().into())),
            Ok(result) => Some(result),
        }
    }
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
    pub(super) fn is_busy(&self) -> bool {
        self.opens.is_some() || self.leaving.is_some() || self.cut.is_some()
    }

    /// Whether an image is being opened, and does not answer.
    fn hangs(&self, key: &Key, now: Duration) -> bool {
        self.opening.iter().any(|opening| opening.key == *key && opening.hangs(now))
    }

    /// Whether hosts use what is open.
    fn is_served(&self) -> bool {
        self.opens.is_none() && self.leaving.is_none()
    }
}

pub(super) fn is_through(export: &Export, handle: Handle) -> bool {
    let through = export.shared.as_ref().and_then(|shared| shared.through.as_ref());
    through.is_some_and(|through| through.handle == handle)
}

fn is_looked_at(export: &Export) -> bool {
    export.shared.as_ref().is_some_and(|shared| shared.through.is_none())
}

impl Daemon {
    /// Whether hosts must not see a namespace now: its ANA group is served here, and its image is gone, or was never open
    /// in the group. One that hosts know and that cannot be opened stays: they wait for it, or find it on another path.
    pub(in crate::daemon) fn is_held_back(&self, export: &Export, is_known: bool) -> bool {
        let is_known = is_known || self.is_known_elsewhere(export);
        self.is_closed_here(export) && (!is_known || self.image_trouble(export).is_some_and(|it| it.is_gone))
    }

    /// Whether its ANA group is served here without it.
    fn is_closed_here(&self, export: &Export) -> bool {
        let Some(cluster) = self.cluster.as_ref().filter(|_| is_looked_at(export)) else { return false };
        let of = |it: &Images| it.group.0 == export.namespace.ana_group && it.is_served();
        cluster.handles.values().any(of)
    }

    /// Whether hosts will see a namespace soon whose image is being opened.
    pub(in crate::daemon) fn is_opening_images(&self) -> bool {
        let mut exports = self.exports().iter();
        let is_to_come = |export| self.image_trouble(export).is_none() && !self.image_hangs(export);
        exports.any(|export| self.is_closed_here(export) && is_to_come(export))
    }

    /// Why the image of a namespace is not open where its ANA group is served.
    pub(in crate::daemon) fn image_fault(&self, export: &Export) -> Option<String> {
        let hangs = || self.image_hangs(export).then(|| ExportFault::Slow.to_string());
        self.image_trouble(export).map(|it| it.text.clone()).or_else(hangs)
    }

    /// Whether the image is being opened for hosts, and does not answer.
    pub(in crate::daemon) fn image_hangs(&self, export: &Export) -> bool {
        let (now, key) = (self.common.clock.now(), key_of(export));
        let mut handles = self.cluster.iter().flat_map(|cluster| cluster.handles.values());
        self.is_closed_here(export)
            && handles.any(|images| images.leaving.is_none() && images.hangs(&key, now))
    }

    fn image_trouble(&self, export: &Export) -> Option<&Fault> {
        let handles = self.cluster.as_ref()?.handles.values();
        let mut failed = handles.filter_map(|it| it.failed.get(&key_of(export)));
        failed.next().map(|failed| &failed.why)
    }

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
        Some(Fault { text, is_gone: self.namespaces.is_missing(key) })
    }

    /// Tells the group's thread what cannot be opened here, when that has changed.
    pub(super) fn tell_unopened(&mut self) {
        let Some(cluster) = &self.cluster else { return };
        let served = cluster.handles.values().filter(|images| images.is_served());
        let of = |images: &Images| {
            let seen: BTreeSet<Key> = self.of_group(images.group).map(key_of).collect();
            let trouble = |key: &Key| match images.failed.get(key) {
                Some(failed) => Some(failed.why.clone()),
                None if seen.contains(key) => None,
                None => self.never_seen(key),
            };
            let unopened = self.keys_in_group(images.group).filter_map(|key| Some((key, trouble(&key)?)));
            let unopened = unopened.filter(|(_, why)| !why.is_gone).map(|(key, why)| (item(&key), why.text));
            (images.group, unopened.collect::<Unopened>())
        };
        let unopened: BTreeMap<_, _> = served.map(of).filter(|(_, unopened)| !unopened.is_empty()).collect();
        if let Some(cluster) = self.cluster.as_mut().filter(|cluster| cluster.unopened != unopened) {
            cluster.unopened.clone_from(&unopened);
            cluster.driver.tell(ToDriver::Unopened(unopened));
        }
    }

    /// One step of everything that is under way with images.
    pub(super) fn advance_images(&mut self) {
        let Some(cluster) = &self.cluster else { return };
        for handle in cluster.handles.keys().copied().collect::<Vec<_>>() {
            let Some(mut images) = self.cluster.as_mut().and_then(|it| it.handles.remove(&handle)) else {
                continue;
            };
            let (opened, is_news) = collect(&mut images, self.common.clock.now());
            let mut is_over = false;
            self.let_hosts_go(handle, &mut images);
            if let Some(leaving) = &mut images.leaving {
                leaving.disks.extend(opened.into_iter().map(|(_, disk)| disk));
                is_over = self.advance_leaving(handle, &mut images);
            } else {
                if !opened.is_empty() {
                    images.last_opened = self.common.clock.now();
                }
                self.take_opened(handle, &mut images, opened);
                self.begin_to_open(&mut images);
            }
            let is_over_time = self.common.clock.now() >= images.opens_until;
            let are_open = images.leaving.is_none() && (is_over_time || self.all_are_open(handle, &images));
            let opens = images.opens.filter(|_| are_open);
            if opens.is_some() {
                images.opens = None;
            }
            let group = images.group;
            if let Some(cluster) = self.cluster.as_mut().filter(|_| !is_over) {
                cluster.handles.insert(handle, images);
            }
            if opens.is_some() || is_news {
                // Those that are gone are not seen from now on.
                self.show_group(group);
            }
            if let Some(op) = opens {
                self.reply(op, self.opened(group, handle));
            }
        }
    }

    /// Whether hosts get anything of a group here that has something: otherwise another gateway may do better.
    fn opened(&self, group: GroupId, handle: Handle) -> Reply {
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
            known.unwrap_or_else(|| format!("it did not open within {OPEN_TIMEOUT:?}").into())
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

    /// Whether no image of the group is to come soon. Those that hang hold up no other: hosts wait for all only while there
    /// is none, or while they come one after the other.
    fn all_are_open(&self, handle: Handle, images: &Images) -> bool {
        let has_failed = |export: &&Export| images.failed.contains_key(&key_of(export));
        let is_over = images.opening.is_empty() && self.closed_of(images).all(|export| has_failed(&export));
        let hang = self.common.clock.now() >= images.last_opened + HANGS_AFTER;
        is_over || hang && self.of_group(images.group).any(|export| is_through(export, handle))
    }

    /// Namespaces of the group whose images are looked at only.
    fn closed_of(&self, images: &Images) -> impl Iterator<Item = &Export> {
        self.of_group(images.group).filter(|export| is_looked_at(export))
    }

    fn begin_to_open(&self, images: &mut Images) {
        let Some(cluster) = &self.cluster else { return };
        let now = self.common.clock.now();
        let is_opening = |key: &Key| images.opening.iter().any(|opening| opening.key == *key);
        let rests = |key: &Key| images.failed.get(key).is_some_and(|failed| failed.retry_at > now);
        let due = self.closed_of(images).filter(|export| {
            let key = key_of(export);
            !is_opening(&key) && !rests(&key)
        });
        let due: Vec<Export> = due.take(Opening::room(&images.opening, now)).cloned().collect();
        for export in due {
            let (spec, waker) = (cluster.images_at().clone(), self.common.waker.clone());
            // No thread: it is tried again.
            images.opening.extend(Opening::begin(now, &images.connection, export, spec, false, waker));
        }
    }

    /// Gives images that have been opened to the workers.
    fn take_opened(&mut self, handle: Handle, images: &mut Images, opened: Vec<(Key, Disk)>) {
        let (mut nqns, mut restored) = (BTreeSet::new(), Vec::new());
        for ((nqn, nsid), disk) in opened {
            let device = self.namespaces.take_device();
            let is_it = |export: &&Export| export.is(&nqn, nsid) && is_looked_at(export);
            let Some(export) = self.exports().iter().find(is_it).cloned() else {
                close(vec![disk]);
                continue;
            };
            let kept = match self.kept_of(&export, images.group) {
                Ok(kept) => kept,
                Err(text) => {
                    tracing::error!("namespace {nsid} of {nqn}: {text}");
                    self.note_failed(images, (nqn, nsid), text.into());
                    close(vec![disk]);
                    continue;
                }
            };
            let seen = export.disk.clone();
            let (disk, cut) = self.as_seen(&export, disk);
            let mut of_workers = Export { disk, device, cut, logged: Health::default(), ..export };
            of_workers.shared = Some(crate::exports::Shared { through: Some(Through { handle, seen }) });
            let workers = 0..self.common.mailboxes.workers();
            let (taken, refused) = self.tell_workers(vec![of_workers], workers, |export, worker, tell| {
                let counted = Arc::clone(export.counted.device(worker));
                ThreadMessage::Attach(export.device, export.of_workers().clone(), counted, tell)
            });
            for (export, text) in refused {
                self.detach(export.device);
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
                nqns.insert(nqn);
                restored.push((nqn, nsid, kept.clone()));
            }
        }
        if nqns.is_empty() {
            return;
        }
        self.publish_limits();
        for nqn in nqns {
            self.show_again(&nqn);
        }
        restored.into_iter().for_each(|(nqn, nsid, kept)| self.restore(&nqn, nsid, kept));
        self.publish();
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

    /// The reservation and the write protection of a namespace, as the group has them.
    fn kept_of(&self, export: &Export, group: GroupId) -> Result<(Reservation, WriteProtection), String> {
        let state = &self.common.state;
        if let Some(cluster) = &self.cluster {
            cluster.kept.note(&uuid::Uuid::from_bytes(export.uuid).to_string(), group);
        }
        let reservation = state.load(export.uuid).map_err(|error| error_text(&error))?;
        let is_protected = state.is_write_protected(export.uuid).map_err(|error| error_text(&error))?;
        let protection = if is_protected { WriteProtection::On } else { WriteProtection::Off };
        Ok((reservation.unwrap_or_default(), protection))
    }

    /// Hosts see them before they can use the namespace here.
    fn restore(&self, nqn: &Nqn, nsid: u32, (reservation, protection): (Reservation, WriteProtection)) {
        let Some(export) = self.exports().iter().find(|export| export.is(nqn, nsid)) else { return };
        let (nsid, uuid) = (Nsid(nsid), export.uuid);
        let mut registry = self.registry();
        let restored = registry.restore_reservation(nqn, nsid, uuid, reservation);
        let protected = registry.restore_write_protection(nqn, nsid, uuid, protection);
        if let Some(error) = restored.err().or(protected.err()) {
            tracing::error!("the reservation of a namespace is not restored: {error}");
        }
    }

    pub(super) fn show_again(&self, nqn: &Nqn) {
        if let Err(error) = self.show(nqn) {
            tracing::error!("{nqn}: hosts cannot be shown its namespaces: {error}");
        }
    }

    /// Shows hosts again what they may see of the namespaces of a group.
    fn show_group(&self, group: GroupId) {
        let of_group = self.exports().iter().filter(|export| export.namespace.ana_group == group.0);
        let nqns: BTreeSet<Nqn> = of_group.map(|export| export.nqn).collect();
        nqns.iter().for_each(|nqn| self.show_again(nqn));
        self.publish();
    }
}

/// Takes in what has been opened since; logs each reason once.
fn collect(images: &mut Images, now: Duration) -> (Vec<(Key, Disk)>, bool) {
    let (mut opened, mut is_news) = (Vec::new(), false);
    let failed = &mut images.failed;
    images.opening.retain(|opening| {
        let Some(result) = opening.result() else { return true };
        match result {
            Ok(disk) => opened.push((opening.key, disk)),
            Err(why) => {
                let before = failed.get(&opening.key).map(|failed| &failed.why);
                if before.is_none_or(|before| before.text != why.text) {
                    is_news = true;
                    tracing::error!("namespace {} of {}: {}", opening.key.1, opening.key.0, why.text);
                }
                failed.insert(opening.key, Failed { why, retry_at: now + RETRY_INTERVAL });
            }
        }
        false
    });
    (opened, is_news)
}

/// Opens the image of a namespace on the connection of its ANA group.
fn open(
    connection: &Arc<Cluster>,
    export: &Export,
    spec: &ClusterSpec,
    only_read: bool,
) -> Result<Disk, Fault> {
    let Backing::Rbd(image) = &export.namespace.backing else {
        return Err("it is no image".to_owned().into());
    };
    let block_size = Some(export.disk.geometry().block_size);
    let read_only = export.namespace.read_only || only_read;
    let opened = Disk::open_image(connection, &shared_image(image, spec), block_size, read_only);
    let disk = opened.map_err(|error| {
        let text = error_text(&error);
        Fault { text, is_gone: ExportFault::Open(error).is_missing() }
    })?;
    if disk.geometry().volatile_write_cache {
        return Err(
            "the image, or its pool, has rbd_cache on: what is in this gateway's memory would be lost, or old, when another \
             takes over: turn it off (rbd config image remove IMAGE rbd_cache; rbd config pool remove POOL rbd_cache)"
                .to_owned()
                .into(),
        );
    }
    // Who opens it for writing was told.
    if only_read && !export.namespace.read_only {
        disk.check_writable().map_err(|error| error.to_string())?;
    }
    let identity = |disk: &Disk| disk.identity().map(|it| it.map(|it| it.uuid));
    match (identity(&disk), identity(&export.disk)) {
        (Ok(now), Ok(before)) if now == before => Ok(disk),
        (Ok(_), Ok(_)) => {
            let text = "the image was made anew, which is another disk: remove the namespace and add it";
            Err(Fault { text: text.to_owned(), is_gone: true })
        }
        (Err(error), _) | (_, Err(error)) => Err(format!("its identity cannot be read: {error}").into()),
    }
}

pub(super) fn key_of(export: &Export) -> Key {
    (export.nqn, export.namespace.nsid)
}

/// The item of a namespace in the group's configuration.
pub(in crate::daemon) fn item((nqn, nsid): &Key) -> String {
    format!("namespace/{nqn}/{nsid}")
}
