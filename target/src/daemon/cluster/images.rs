//! The images of an ANA group on its connection: opened, and given to the workers.
//!
//! A namespace of a group is there on every gateway, with an image that was opened read-only to know what it is. Where the
//! ANA group is served, the image is open a second time, on the group's own connection, and the workers have that. So
//! no I/O of a host ever goes another way than through the connection whose address the others would fence.

use super::super::Daemon;
use super::super::disks::error_text;
use super::leaving::{Cut, Leaving, close};
use crate::exports::{Export, Through, shared_image};
use crate::limits::RETRY_INTERVAL;
use crate::mailbox::ThreadMessage;
use core::time::Duration;
use nvmf_backend::{Disk, Health};
use nvmf_cluster::{GroupId, Handle, OpId, Reply};
use nvmf_config::Backing;
use nvmf_rados::Cluster;
use nvmf_subsystem::reservation::Reservation;
use nvmf_subsystem::{Nqn, Nsid, WriteProtection};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// Images that are opened at a time for one ANA group.
const OPENING_MAX: usize = 16;

/// Hosts wait for images that do not open for so long before they get the others of the ANA group.
const OPEN_TIMEOUT: Duration = Duration::from_secs(15);

/// A namespace by its subsystem and NSID.
type Key = (Nqn, u32);

/// The images of an ANA group on a connection.
pub(super) struct Images {
    pub(super) group: GroupId,
    pub(super) connection: Arc<Cluster>,
    /// Who waits until they are open.
    pub(super) opens: Option<OpId>,
    /// Until when: then the others are served, if there are any.
    opens_until: Duration,
    pub(super) opening: Vec<Opening>,
    /// Why one could not be opened, and when it is tried again.
    pub(super) failed: BTreeMap<Key, (String, Duration)>,
    pub(super) leaving: Option<Leaving>,
    /// Hosts were told that it is inaccessible while their commands were under way.
    pub(super) cut: Option<Cut>,
}

/// An image that a thread of its own opens.
pub(super) struct Opening {
    key: Key,
    told: Receiver<Result<Disk, String>>,
}

impl Images {
    pub(super) fn new(group: GroupId, connection: Arc<Cluster>, op: OpId, now: Duration) -> Self {
        Self {
            group,
            connection,
            opens: Some(op),
            opens_until: now + OPEN_TIMEOUT,
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
    /// Whether hosts must not see a namespace now: its ANA group is served here, and its image cannot be.
    pub(in crate::daemon) fn is_held_back(&self, export: &Export) -> bool {
        let Some(cluster) = self.cluster.as_ref().filter(|_| is_looked_at(export)) else { return false };
        let of = |it: &Images| it.group.0 == export.namespace.ana_group && it.is_served();
        cluster.handles.values().any(of)
    }

    /// Whether hosts will see a namespace soon whose image is being opened.
    pub(in crate::daemon) fn is_opening_images(&self) -> bool {
        let mut exports = self.exports().iter();
        exports.any(|export| self.is_held_back(export) && self.image_fault(export).is_none())
    }

    /// Why the image of a namespace is not open where its ANA group is served.
    pub(in crate::daemon) fn image_fault(&self, export: &Export) -> Option<String> {
        let handles = self.cluster.as_ref()?.handles.values();
        let mut failed = handles.filter_map(|it| it.failed.get(&(export.nqn, export.namespace.nsid)));
        failed.next().map(|(text, _)| text.clone())
    }

    /// One step of everything that is under way with images.
    pub(super) fn advance_images(&mut self) {
        let Some(cluster) = &self.cluster else { return };
        for handle in cluster.handles.keys().copied().collect::<Vec<_>>() {
            let Some(mut images) = self.cluster.as_mut().and_then(|it| it.handles.remove(&handle)) else {
                continue;
            };
            let opened = collect(&mut images, self.common.clock.now());
            let mut is_over = false;
            self.let_hosts_go(handle, &mut images);
            if let Some(leaving) = &mut images.leaving {
                leaving.disks.extend(opened.into_iter().map(|(_, disk)| disk));
                is_over = self.advance_leaving(handle, &mut images);
            } else {
                self.take_opened(handle, &mut images, opened);
                self.begin_to_open(&mut images);
            }
            let is_over_time = self.common.clock.now() >= images.opens_until;
            let are_open = images.leaving.is_none() && (is_over_time || self.all_are_open(&images));
            let opens = images.opens.filter(|_| are_open);
            if opens.is_some() {
                images.opens = None;
            }
            let group = images.group;
            if let Some(cluster) = self.cluster.as_mut().filter(|_| !is_over) {
                cluster.handles.insert(handle, images);
            }
            if let Some(op) = opens {
                // Those that could not be opened are not seen from now on.
                self.show_group(group);
                self.reply(op, self.opened(group, handle));
            }
        }
    }

    /// Whether hosts get anything of a group here that has something: otherwise another gateway may do better.
    fn opened(&self, group: GroupId, handle: Handle) -> Reply {
        let of_group = self.config.subsystems.iter().flat_map(|subsystem| {
            let namespaces = subsystem.namespaces.iter().filter(|it| it.ana_group == group.0);
            namespaces.map(|namespace| (subsystem.nqn, namespace.nsid))
        });
        let mut of_group = of_group.peekable();
        let Some(&(nqn, nsid)) = of_group.peek() else { return Reply::Done };
        let is_open = |key: &Key| {
            self.exports().iter().any(|export| export.is(&key.0, key.1) && is_through(export, handle))
        };
        if of_group.any(|key| is_open(&key)) {
            return Reply::Done;
        }
        let export = self.exports().iter().find(|export| export.is(&nqn, nsid));
        let fault = export.map_or_else(|| self.namespaces.fault(&(nqn, nsid)), |it| self.image_fault(it));
        let fault = fault.unwrap_or_else(|| format!("it did not open within {OPEN_TIMEOUT:?}"));
        Reply::Failed(format!("none of its images can be opened: namespace {nsid} of {nqn}: {fault}"))
    }

    pub(super) fn reply(&self, op: OpId, reply: Reply) {
        if let Some(cluster) = &self.cluster {
            cluster.driver.reply(op, reply);
        }
    }

    /// Whether no image of the group is to come soon.
    fn all_are_open(&self, images: &Images) -> bool {
        let has_failed = |export: &&Export| images.failed.contains_key(&(export.nqn, export.namespace.nsid));
        images.opening.is_empty() && self.closed_of(images).all(|export| has_failed(&export))
    }

    /// Namespaces of the group whose images are looked at only.
    fn closed_of(&self, images: &Images) -> impl Iterator<Item = &Export> {
        let group = images.group.0;
        self.exports().iter().filter(move |it| it.namespace.ana_group == group && is_looked_at(it))
    }

    fn begin_to_open(&self, images: &mut Images) {
        let Some(cluster) = &self.cluster else { return };
        let now = self.common.clock.now();
        images.failed.retain(|_, (_, until)| *until > now);
        let is_opening = |key: &Key| images.opening.iter().any(|opening| opening.key == *key);
        let due = self.closed_of(images).filter(|export| {
            let key = (export.nqn, export.namespace.nsid);
            !is_opening(&key) && !images.failed.contains_key(&key)
        });
        let room = OPENING_MAX.saturating_sub(images.opening.len());
        let due: Vec<Export> = due.take(room).cloned().collect();
        for export in due {
            let (connection, spec) = (Arc::clone(&images.connection), cluster.images_at().clone());
            let (tell, told) = channel();
            let (key, waker) = ((export.nqn, export.namespace.nsid), self.common.waker.clone());
            let body = move || {
                let opened = open(&connection, &export, &spec);
                // Neither the image nor the connection ends on the control loop's thread.
                drop((export, connection));
                let _ = tell.send(opened);
                waker.wake();
            };
            // No thread: it is tried again.
            if std::thread::Builder::new().name("open-image".into()).spawn(body).is_ok() {
                images.opening.push(Opening { key, told });
            }
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
                    let retry_at = self.common.clock.now() + RETRY_INTERVAL;
                    images.failed.insert((nqn, nsid), (text, retry_at));
                    close(vec![disk]);
                    continue;
                }
            };
            let seen = export.disk.clone();
            let mut of_workers = Export { disk, device, cut: None, logged: Health::default(), ..export };
            of_workers.shared = Some(crate::exports::Shared { through: Some(Through { handle, seen }) });
            let workers = 0..self.common.mailboxes.workers();
            let (taken, refused) = self.tell_workers(vec![of_workers], workers, |export, worker, tell| {
                let counted = Arc::clone(export.counted.device(worker));
                ThreadMessage::Attach(export.device, export.of_workers().clone(), counted, tell)
            });
            for (export, text) in refused {
                self.detach(export.device);
                let retry_at = self.common.clock.now() + RETRY_INTERVAL;
                images.failed.insert((nqn, nsid), (text, retry_at));
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

/// Takes in what has been opened since.
fn collect(images: &mut Images, now: Duration) -> Vec<(Key, Disk)> {
    let mut opened = Vec::new();
    let failed = &mut images.failed;
    images.opening.retain(|opening| {
        let result = match opening.told.try_recv() {
            Err(TryRecvError::Empty) => return true,
            Err(TryRecvError::Disconnected) => Err("the opening thread died".to_owned()),
            Ok(result) => result,
        };
        match result {
            Ok(disk) => opened.push((opening.key, disk)),
            Err(text) => {
                tracing::error!("namespace {} of {}: {text}", opening.key.1, opening.key.0);
                failed.insert(opening.key, (text, now + RETRY_INTERVAL));
            }
        }
        false
    });
    opened
}

/// Opens the image of a namespace on the connection of its ANA group.
fn open(
    connection: &Arc<Cluster>,
    export: &Export,
    spec: &nvmf_backend::ClusterSpec,
) -> Result<Disk, String> {
    let Backing::Rbd(image) = &export.namespace.backing else { return Err("it is no image".to_owned()) };
    let (block_size, read_only) = (Some(export.disk.geometry().block_size), export.namespace.read_only);
    let opened = Disk::open_image(connection, &shared_image(image, spec), block_size, read_only);
    let disk = opened.map_err(|error| error_text(&error))?;
    if disk.geometry().volatile_write_cache {
        return Err(
            "the image, or its pool, has rbd_cache on: what is in this gateway's memory would be lost, or old, when another \
             takes over: turn it off (rbd config image remove IMAGE rbd_cache; rbd config pool remove POOL rbd_cache)"
                .to_owned(),
        );
    }
    let identity = |disk: &Disk| disk.identity().map(|it| it.map(|it| it.uuid));
    match (identity(&disk), identity(&export.disk)) {
        (Ok(now), Ok(before)) if now == before => Ok(disk),
        (Ok(_), Ok(_)) => {
            Err("the image was made anew, which is another disk: remove the namespace and add it".to_owned())
        }
        (Err(error), _) | (_, Err(error)) => Err(format!("its identity cannot be read: {error}")),
    }
}
