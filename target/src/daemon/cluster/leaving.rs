//! Images of an ANA group on their way out: drained for a planned move, or given up with their connection.

use super::super::Daemon;
use super::super::questions::ToStore;
use super::images::{Images, is_through};
use crate::barrier::{Barrier, Scope};
use crate::cluster::ToDriver;
use crate::exports::Through;
use crate::limits::CUT_TIMEOUT;
use crate::message::WorkerMessage;
use core::time::Duration;
use nvmf_backend::{Disk, Health};
use nvmf_cluster::{GroupId, Handle, OpId, Reply};
use nvmf_rados::Cluster;
use nvmf_subsystem::AssociationKey;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

/// What has not ended after so long is looked at in each round only: its cluster may not answer for hours.
const ENDS_SOON: Duration = Duration::from_secs(15);

/// Images on their way out.
pub(super) struct Leaving {
    since: Duration,
    /// What hosts sent before.
    barrier: Option<Arc<Barrier>>,
    /// What they asked of reservations before, once that is over.
    stored: Option<Receiver<()>>,
    /// Workers may still have operations on them.
    pub(super) disks: Vec<Disk>,
    /// Threads that close some.
    closing: Vec<Receiver<()>>,
    drains: Option<OpId>,
    /// The last handle of the connection, and who waits for its end.
    shuts_down: Option<(OpId, Option<Arc<Cluster>>)>,
    /// The group's thread knows that hosts have no command at an image.
    is_told: bool,
}

impl Leaving {
    /// Whether it is likely to end soon.
    pub(super) fn ends_soon(&self, now: Duration) -> bool {
        now < self.since + ENDS_SOON
    }

    /// Whether hosts have nothing at what was open for them.
    fn hosts_are_out(&self) -> bool {
        self.barrier.is_none() && self.stored.is_none() && self.disks.is_empty()
    }

    /// Whether nothing is open for hosts any more.
    pub(super) fn is_out(&self) -> bool {
        self.hosts_are_out() && self.closing.is_empty()
    }
}

/// Hosts were told that an ANA group is inaccessible while their commands were under way.
pub(super) struct Cut {
    /// Reached when the disks have none of them any more.
    barrier: Arc<Barrier>,
    since: Duration,
    /// Who has some at a disk, as the workers say it.
    holders: Option<Receiver<AssociationKey>>,
    keys: BTreeSet<AssociationKey>,
}

impl Cut {
    /// Takes in what the workers have said; gives whether all have.
    fn hear(&mut self) -> bool {
        let Some(holders) = &self.holders else { return false };
        loop {
            match holders.try_recv() {
                Ok(key) => drop(self.keys.insert(key)),
                Err(error) => return error == TryRecvError::Disconnected,
            }
        }
    }
}

impl Daemon {
    /// Hosts are told that an ANA group is inaccessible here, or no longer. While this gateway is cut off from the storage
    /// cluster, what they have under way does not end.
    pub(super) fn note_cut(&mut self, group: GroupId, is_inaccessible: bool) {
        let now = self.common.clock.now();
        let handles = self.cluster.iter().flat_map(|cluster| &cluster.handles);
        let of_group = handles.filter(|(_, it)| it.group == group && it.opens.is_none()).map(|it| *it.0);
        for handle in of_group.collect::<Vec<_>>() {
            let devices = self.devices_in_use(|export| is_through(export, handle));
            let barrier = is_inaccessible.then(|| self.common.mailboxes.barrier(Scope::devices(devices)));
            let images = self.cluster.as_mut().and_then(|cluster| cluster.handles.get_mut(&handle));
            if let Some(images) = images {
                images.cut =
                    barrier.map(|barrier| Cut { barrier, since: now, holders: None, keys: BTreeSet::new() });
            }
        }
    }

    /// What hosts have at a disk for too long while nothing is accessible here: librbd has the memory of these
    /// commands, and may carry them out yet, so they cannot be answered. Their hosts are let go, so that they issue
    /// them again through another gateway. That one fences this connection first, so it is of no use any more. What no
    /// disk had yet was answered with a path error already.
    pub(super) fn let_hosts_go(&mut self, handle: Handle, images: &mut Images) {
        let Some(cut) = &mut images.cut else { return };
        if cut.barrier.is_reached() {
            images.cut = None;
            return;
        }
        if cut.holders.is_none() && self.common.clock.now() >= cut.since + CUT_TIMEOUT {
            let (tell, told) = channel();
            self.common.mailboxes.post_all(&WorkerMessage::TellHolders(Arc::clone(&cut.barrier), tell));
            cut.holders = Some(told);
        }
        if !cut.hear() {
            return;
        }
        let keys = core::mem::take(&mut cut.keys);
        images.cut = None;
        tracing::error!(
            "ANA group {}: the storage cluster does not answer, and {} host connection(s) have commands at it: they \
             close, so that their hosts use another gateway",
            images.group.0,
            keys.len()
        );
        self.registry().close(|association| keys.contains(&association.key()));
        self.publish();
        if let Some(cluster) = &self.cluster {
            cluster.driver.tell(ToDriver::Fenced(handle));
        }
    }

    /// Lets what hosts sent before end, then closes the images. Hosts are told to wait already.
    pub(super) fn begin_to_drain(&mut self, op: OpId, handle: Handle) {
        let leaving = self.begin_to_leave(handle);
        match leaving {
            Some(leaving) => leaving.drains = Some(op),
            None => self.reply(op, Reply::Failed("there is no such connection".to_owned())),
        }
    }

    /// Gives up a connection. Hosts are told that nothing is accessible here already.
    pub(super) fn begin_to_close(&mut self, op: OpId, handle: Handle, connection: Option<Arc<Cluster>>) {
        let Some(cluster) = &self.cluster else { return };
        let mailbox = cluster.driver.mailbox();
        if let Some(leaving) = self.begin_to_leave(handle) {
            leaving.drains = None;
            leaving.shuts_down = Some((op, connection));
            return;
        }
        // Nothing is open on it for hosts.
        self.forget_look(connection.as_ref());
        end(connection, op, mailbox);
    }

    fn begin_to_leave(&mut self, handle: Handle) -> Option<&mut Leaving> {
        let devices = self.devices_in_use(|export| is_through(export, handle));
        let barrier = || self.common.mailboxes.barrier(Scope::devices(devices));
        let barrier = self
            .cluster
            .as_ref()
            .and_then(|cluster| cluster.handles.get(&handle))
            .is_some_and(|images| images.leaving.is_none())
            .then(barrier);
        let since = self.common.clock.now();
        let images = self.cluster.as_mut()?.handles.get_mut(&handle)?;
        images.opens = None;
        images.failed.clear();
        let new = || Leaving {
            since,
            barrier,
            stored: None,
            disks: Vec::new(),
            closing: Vec::new(),
            drains: None,
            shuts_down: None,
            is_told: false,
        };
        Some(images.leaving.get_or_insert_with(new))
    }

    /// Other connections of the group are fenced: their images are not waited for any longer.
    pub(super) fn take_from_others(&mut self, group: GroupId, handle: Handle) {
        let Some(cluster) = &self.cluster else { return };
        let others = cluster.handles.iter().filter(|(other, it)| **other != handle && it.group == group);
        for other in others.map(|(other, _)| *other).collect::<Vec<_>>() {
            let disks = self.take_back(other);
            let images = self.cluster.as_mut().and_then(|cluster| cluster.handles.get_mut(&other));
            if let Some(leaving) = images.and_then(|images| images.leaving.as_mut()) {
                leaving.barrier = None;
                leaving.disks.extend(disks);
            }
        }
    }

    /// Gives whether the connection has ended, or ends without more to do here.
    pub(super) fn advance_leaving(&mut self, handle: Handle, images: &mut Images) -> bool {
        let all_hang = images.all_hang(self.common.clock.now());
        let Some(leaving) = &mut images.leaving else { return false };
        let is_reached = leaving.barrier.as_ref().is_none_or(|barrier| barrier.is_reached());
        if leaving.barrier.is_some() && is_reached {
            leaving.barrier = None;
            let (tell, told) = channel();
            // Where that has ended, nothing of it is under way.
            let _ = self.to_store.send(ToStore::Sync(tell));
            leaving.stored = Some(told);
            let disks = self.take_back(handle);
            leaving.disks.extend(disks);
        }
        let is_stored = |told: &Receiver<()>| told.try_recv() != Err(TryRecvError::Empty);
        if leaving.stored.as_ref().is_some_and(is_stored) {
            leaving.stored = None;
        }
        let free: Vec<Disk> = leaving.disks.extract_if(.., |disk| !disk.is_shared()).collect();
        leaving.closing.extend(close(free));
        leaving.closing.retain(|closing| closing.try_recv() != Err(TryRecvError::Disconnected));
        // What a namespace had that was taken away before counts, too. To open and to close an image changes nothing of it.
        let hosts_are_out =
            leaving.hosts_are_out() && !self.namespaces.leaving().any(|export| is_through(export, handle));
        if let (Some((op, _)), Some(cluster), false) = (&leaving.shuts_down, &self.cluster, leaving.is_told)
            && hosts_are_out
        {
            cluster.driver.tell(ToDriver::Out(*op));
            leaving.is_told = true;
        }
        if !leaving.is_out() {
            return false;
        }
        if !images.opening.is_empty() {
            // The connection cannot be closed, so whoever is to have the ANA group fences it, and need not wait.
            if let Some(op) = leaving.drains.take_if(|_| all_hang) {
                self.reply(op, Reply::Failed("an image that is being opened does not answer".to_owned()));
            }
            return false;
        }
        // Namespaces that were taken away before may still be closing; the group's thread has one handle as well.
        if Arc::strong_count(&images.connection) > 2 {
            return false;
        }
        if let Some(op) = leaving.drains.take() {
            self.reply(op, Reply::Done);
        }
        let Some((op, connection)) = leaving.shuts_down.take() else { return false };
        let Some(cluster) = &self.cluster else { return true };
        let last = Arc::clone(&images.connection);
        drop(connection);
        end(Some(last), op, cluster.driver.mailbox());
        true
    }

    /// Takes the images of a connection from the workers; the namespaces are looked at only, from now on.
    fn take_back(&mut self, handle: Handle) -> Vec<Disk> {
        let (mut disks, mut nqns, mut devices) = (Vec::new(), BTreeSet::new(), Vec::new());
        let of_handle = (0..self.namespaces.open.len())
            .filter(|&at| is_through(&self.namespaces.open[at], handle))
            .collect::<Vec<_>>();
        for at in of_handle {
            let device = self.namespaces.take_device();
            let export = &mut self.namespaces.open[at];
            let Some(Through { seen, .. }) = export.shared.as_mut().and_then(|it| it.through.take()) else {
                continue;
            };
            devices.push(core::mem::replace(&mut export.device, device));
            disks.push(core::mem::replace(&mut export.disk, seen));
            disks.extend(export.cut.take());
            export.logged = Health::default();
            nqns.insert(export.nqn);
        }
        nqns.iter().for_each(|nqn| self.show_again(nqn));
        self.publish();
        devices.into_iter().for_each(|device| self.detach(device));
        disks
    }
}

/// Closes disks, each in a thread of its own; whoever hears nothing any more knows that they are closed.
pub(in crate::daemon) fn close(disks: Vec<Disk>) -> Vec<Receiver<()>> {
    let begin = |disk: Disk| {
        let (tell, over) = channel::<()>();
        let body = move || {
            drop(disk);
            drop(tell);
        };
        // Without a thread it is closed here.
        let _ = std::thread::Builder::new().name("close-image".into()).spawn(body);
        over
    };
    disks.into_iter().map(begin).collect()
}

/// Ends a connection.
fn end(connection: Option<Arc<Cluster>>, op: OpId, mailbox: Sender<ToDriver>) {
    let body = move || {
        drop(connection);
        let _ = mailbox.send(ToDriver::Reply(op, Reply::Done));
    };
    let _ = std::thread::Builder::new().name("end-cluster".into()).spawn(body);
}
