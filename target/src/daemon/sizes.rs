//! Disks that grow or shrink, or are no longer at their path.
//!
//! Files and devices have to be looked at. Images tell when their size may have changed; whether they are still there is
//! looked at now and then, in parts: one that does not answer keeps few others waiting.
//!
//! What has grown is shown to the hosts, whoever notices it. What has shrunk is reported, and what lies behind its end
//! is neither read nor written; hosts are shown the new size only when the operator says so (`ctl namespace resize
//! --shrink`).

use super::Daemon;
use super::apply::{Origin, held};
use super::changing::{Changing, Pending};
use super::disks::fault;
use super::fences::fenced;
use crate::barrier::Scope;
use crate::control::Waker;
use crate::control::protocol::Fault;
use crate::control::request::change::Item;
use crate::exports::{Export, ExportFault, presence};
use crate::limits::OPEN_TIMEOUT;
use core::time::Duration;
use nvmf_backend::{Disk, DiskToLookAt, Presence};
use nvmf_block::DeviceId;
use nvmf_cluster::Handle;
use nvmf_config::Backing;
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Into so many parts the images of a cluster are divided: each is looked at by a thread of its own.
const PARTS: u32 = 16;

/// What a look at a disk found.
struct Found {
    device: DeviceId,
    place: io::Result<Presence>,
    /// The disk with its new size, if it has another.
    resized: io::Result<Option<Disk>>,
}

/// Which disks are looked at together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Looked {
    /// Those of this machine.
    Here,
    /// The files of a file system that asks a server.
    Served(u64),
    /// Some of the images of a cluster: one that hangs keeps the others of its part waiting only.
    Images(String, u32),
    /// One that said that it has changed.
    One(DeviceId),
}

/// A look at the disks that is under way: a thread of its own, because a file system that hangs would keep the control
/// loop waiting.
pub(super) struct Looking {
    told: Receiver<Found>,
    at: Arc<Mutex<LookingAt>>,
}

/// The disk that is looked at just now.
struct LookingAt {
    since: Instant,
    /// The connection of a gateway group that it is open on for I/O.
    through: Option<Handle>,
}

/// A disk that waits to be looked at, and is nobody's to use or to close meanwhile.
struct ToLookAt {
    device: DeviceId,
    backing: Backing,
    disk: DiskToLookAt,
    through: Option<Handle>,
}

impl Looking {
    /// `None`: there is no thread for it.
    fn begin<'a>(exports: impl IntoIterator<Item = &'a Export>, waker: Waker) -> Option<Self> {
        let (tell, told) = channel();
        let to_look_at = |export: &Export| ToLookAt {
            device: export.device,
            backing: export.namespace.backing.clone(),
            disk: export.disk.to_look_at(),
            through: export.through(),
        };
        let disks: Vec<ToLookAt> = exports.into_iter().map(to_look_at).collect();
        let at = Arc::new(Mutex::new(LookingAt { since: Instant::now(), through: None }));
        let looked_at = Arc::clone(&at);
        let look = move || {
            for ToLookAt { device, backing, disk, through } in disks {
                *locked(&looked_at) = LookingAt { since: Instant::now(), through };
                if let Some(disk) = disk.get() {
                    let place = presence(&backing, &disk);
                    let _ = tell.send(Found { device, place, resized: disk.resized() });
                }
            }
            drop(tell);
            waker.wake();
        };
        std::thread::Builder::new().name("look-at-disks".into()).spawn(look).ok()?;
        Some(Self { told, at })
    }

    /// The connection of a gateway group through which one disk has been looked at for so long.
    pub(super) fn hangs_at(&self, after: Duration) -> Option<Handle> {
        let at = locked(&self.at);
        at.through.filter(|_| at.since.elapsed() >= after)
    }
}

/// What stands there is whole.
fn locked(at: &Mutex<LookingAt>) -> MutexGuard<'_, LookingAt> {
    at.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A disk whose size is being read because somebody asked for it.
pub(super) struct Sizing {
    looking: Looking,
    export: Export,
    shrink: bool,
    until: Duration,
}

impl Daemon {
    /// Looks at disks. `None`: there is no thread for it.
    pub(super) fn look<'a>(&self, exports: impl IntoIterator<Item = &'a Export>) -> Option<Looking> {
        Looking::begin(exports, self.common.waker.clone())
    }

    /// Begins to look at the disks of this machine, and with `images` at those of clusters, unless that is under way.
    /// [`Daemon::collect_sizes`] takes what was found.
    pub(super) fn begin_to_look(&mut self, images: bool) {
        let mut due: HashMap<Looked, Vec<Export>> = HashMap::new();
        for export in self.exports() {
            let of = match export.disk.cluster() {
                None => export.disk.served_by().map_or(Looked::Here, Looked::Served),
                Some(_) if !images => continue,
                Some(cluster) => Looked::Images(cluster.to_owned(), export.device.0 % PARTS),
            };
            due.entry(of).or_default().push(export.clone());
        }
        due.into_iter().for_each(|(of, disks)| self.begin_one_look(of, &disks));
    }

    /// Begins to look at the images that have changed since they were looked at.
    pub(super) fn look_at_changed(&mut self) {
        let is_due = |export: &&Export| {
            !self.looking.contains_key(&Looked::One(export.device)) && export.disk.take_changed()
        };
        let changed: Vec<Export> = self.exports().iter().filter(is_due).cloned().collect();
        changed.into_iter().for_each(|export| self.begin_one_look(Looked::One(export.device), &[export]));
    }

    pub(super) fn begin_one_look(&mut self, of: Looked, disks: &[Export]) {
        if !self.looking.contains_key(&of)
            && let Some(looking) = self.look(disks)
        {
            self.looking.insert(of, looking);
        }
    }

    /// Takes what was found since, without waiting.
    pub(super) fn collect_sizes(&mut self) {
        for (of, looking) in std::mem::take(&mut self.looking) {
            if let Some(looking) = self.take_found(looking, false) {
                self.looking.insert(of, looking);
            }
        }
    }

    /// Takes what was found since, without waiting; `None` when that was all.
    pub(super) fn take_found(&mut self, looking: Looking, again: bool) -> Option<Looking> {
        loop {
            match looking.told.try_recv() {
                Ok(found) => self.on_found(found, again),
                Err(TryRecvError::Empty) => return Some(looking),
                Err(TryRecvError::Disconnected) => return None,
            }
        }
    }

    /// What hosts have of a disk whose name leads elsewhere, and what to do.
    fn how_it_goes_on(&self) -> String {
        let anew = self.how_to_take_anew();
        match self.cluster {
            // Which gateway that is may change before anybody reads this.
            Some(_) => format!(
                "Hosts go on with it at the gateway that has it open, and no other one can open it: a planned move is refused, and \
                 when that gateway stops or dies, hosts lose it. Put it back, or {anew}"
            ),
            None => format!("Hosts go on with the one that was opened. Put it back, or {anew}"),
        }
    }

    /// How another disk is served in the place of the one that is open.
    fn how_to_take_anew(&self) -> &'static str {
        match self.cluster {
            Some(_) => "remove the namespace (`ctl namespace remove`), and add it again",
            None => "take the namespace out, reload, and add it again",
        }
    }

    pub(super) fn look_faults(&self) -> usize {
        self.exports().iter().filter(|export| export.look_fault.is_some()).count()
    }

    /// Shows the hosts a disk that has grown, and complains of one that has shrunk or is no longer at its path: once, or
    /// `again`.
    fn on_found(&mut self, found: Found, again: bool) {
        let Found { device, place, resized } = found;
        let Some(export) = self.exports().iter().find(|export| export.device == device).cloned() else {
            // It may be the last that has the image open, which is not closed on this thread.
            super::cluster::close(resized.ok().flatten().into_iter().collect());
            return;
        };
        let before = export.disk.geometry();
        let backing = export.backing();
        let mut text = match place {
            Ok(Presence::There) => None,
            Ok(Presence::Locked(_) | Presence::NotPrimary) if export.geometry().read_only => None,
            Ok(Presence::Renamed) => Some(format!(
                "{backing} is not the disk that is served: it was renamed, replaced or removed. {}",
                self.how_it_goes_on()
            )),
            Ok(Presence::Locked(by)) => Some(format!(
                "{backing} was locked by {} ({:?}): writes wait until that is released. See rbd lock ls, rbd lock rm",
                by.client, by.cookie
            )),
            Ok(Presence::NotPrimary) => Some(format!(
                "{backing} is not the primary image of its mirror: every write fails until it is promoted (rbd mirror image \
                 status, rbd mirror image promote). If it was, librbd has not heard of it, as happens where writes failed before: {}",
                self.how_to_take_anew()
            )),
            Ok(Presence::Removed) => Some(format!(
                "{backing} was removed: hosts are told that the namespace is gone. Take it out, and add it again if the image \
                 is made anew, which is another disk"
            )),
            Err(error) => Some(format!("{backing} cannot be looked at: {error}")),
        };
        match resized {
            Ok(None) if export.cut.is_some() => self.cut(&export, None),
            Ok(None) => {}
            Ok(Some(disk)) if disk.geometry().blocks > before.blocks => self.grow(&export, disk),
            // Hosts were shown it while it was looked at.
            Ok(Some(disk)) if disk.geometry().blocks == before.blocks => {}
            Ok(Some(disk)) if disk.geometry().blocks > 0 && self.is_accepted(&export, &disk) => {
                drop(self.shrink(&Export { disk, cut: None, look_fault: None, ..export.clone() }));
            }
            Ok(Some(disk)) => {
                text = text.or(Some(format!(
                    "{} has shrunk from {} to {} bytes: hosts see its old size, and what they read and write behind \
                     its end fails. Make it as long as it was, or \
                     show hosts its new size: nvmf-target ctl namespace resize {} {} --shrink",
                    export.backing(),
                    before.bytes(),
                    disk.geometry().bytes(),
                    export.nqn,
                    export.namespace.nsid
                )));
                self.cut(&export, Some(disk));
            }
            Err(error) => {
                text = text.or(Some(format!("the size of {} cannot be read: {error}", export.backing())))
            }
        }
        // Whatever else was found: that is why.
        text = fenced(&export).or(text);
        if let Some(text) = text.as_ref().filter(|text| again || export.look_fault.as_ref() != Some(text)) {
            tracing::error!("{} namespace {}: {text}", export.nqn, export.namespace.nsid);
        }
        if let Some(export) = self.namespaces.open.iter_mut().find(|export| export.device == device) {
            export.look_fault = text;
        }
    }

    /// Has the workers refuse what lies behind the end that the disk has now, or no longer. Hosts are not shown it: they
    /// would give up what lies behind it, and the operator may yet make the disk as long as it was. Each look tells the
    /// workers again, of which some may be new.
    fn cut(&mut self, export: &Export, cut: Option<Disk>) {
        let told = Export { cut: cut.clone(), ..export.clone() };
        if let Some(text) = self.tell_length(&told) {
            self.log_export_fault(&fault(export, ExportFault::Attach(text)));
        }
        if cut.is_none() {
            tracing::warn!(
                "{} namespace {}: {} is as long again as hosts see it: what lay behind its end reads as zeroes, unless it \
                 was put back",
                export.nqn,
                export.namespace.nsid,
                export.backing()
            );
        }
        if let Some(open) = self.namespaces.open.iter_mut().find(|open| open.device == export.device) {
            open.cut = cut;
        }
    }

    /// The workers first: hosts use the new blocks as soon as they see them.
    fn grow(&mut self, export: &Export, disk: Disk) {
        let grown = Export { disk, cut: None, ..export.clone() };
        match self.tell_length(&grown) {
            None => self.show_size(&grown),
            Some(text) => self.log_export_fault(&fault(export, ExportFault::Attach(text))),
        }
    }

    fn show_size(&mut self, resized: &Export) {
        let (nqn, nsid, bytes) = (resized.nqn, resized.namespace.nsid, resized.disk.geometry().bytes());
        let Some(open) = self.namespaces.open.iter_mut().find(|open| open.device == resized.device) else {
            return;
        };
        let before = open.disk.geometry().bytes();
        let verb = if bytes > before { "grown" } else { "shrunk" };
        tracing::info!(
            "{nqn} namespace {nsid}: {} has {verb} from {before} to {bytes} bytes",
            open.backing()
        );
        open.disk = resized.disk.clone();
        open.cut = None;
        if let Some(through) = open.shared.as_mut().and_then(|shared| shared.through.as_mut())
            && let Ok(Some(seen)) = through.seen.with_blocks(resized.disk.geometry().blocks)
        {
            through.seen = seen;
        }
        if let Err(error) = self.show(&nqn) {
            tracing::error!("{nqn} namespace {nsid}: hosts cannot be shown its size: {error}");
        }
        self.publish();
    }

    /// Reads the size of one disk again.
    pub(super) fn resize(&mut self, nqn: &str, nsid: u32, shrink: bool) -> Result<Changing, Fault> {
        let Some(subsystem) = self.config.subsystems.iter().find(|it| it.nqn.to_string() == nqn) else {
            let known: Vec<String> = self.config.subsystems.iter().map(|it| it.nqn.to_string()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Fault::refused(format!("there is no subsystem {nqn}; there is {known}")));
        };
        let is_it = |export: &&Export| export.is(&subsystem.nqn, nsid);
        let Some(export) = self.exports().iter().find(is_it).cloned() else {
            return Err(Fault::refused(format!("namespace {nsid} of {nqn} is not served: see `status`")));
        };
        let looking = self.look([&export]);
        let looking = looking.ok_or_else(|| Fault::refused("the system has no thread left"))?;
        let now = self.common.clock.now();
        let mut changing = Changing::new(Vec::new(), Origin::Command, now);
        changing.sizing = Some(Sizing { looking, export, shrink, until: now + OPEN_TIMEOUT });
        Ok(changing)
    }

    /// Makes the change when the size is known.
    pub(super) fn advance_sizing(&mut self, changing: &mut Changing, now: Duration) {
        let Some(sizing) = changing.sizing.take() else { return };
        let found = match sizing.looking.told.try_recv() {
            Ok(found) => found,
            Err(TryRecvError::Empty) if now < sizing.until => {
                changing.sizing = Some(sizing);
                return;
            }
            Err(_) => {
                let text = format!("{} does not answer", sizing.export.backing());
                changing.refused = Some(Fault::refused(text));
                return;
            }
        };
        if let Ok(Some(disk)) = &found.resized
            && sizing.shrink
            && (1..sizing.export.disk.geometry().blocks).contains(&disk.geometry().blocks)
            && self.is_still_there(&sizing.export)
        {
            let (before, now) = (sizing.export.disk.geometry(), disk.geometry());
            let told = told_of(&sizing.export, before.bytes(), now.bytes());
            if self.ask_to_accept(&sizing.export, &disk.clone(), told, changing) {
                // Until all of the group has it, what lies behind the end fails.
                return self.on_found(found, false);
            }
        }
        match self.resized(&sizing.export, sizing.shrink, found) {
            Ok((item, pending)) => {
                changing.items.push(item);
                changing.wait_for(0, pending);
                let devices = [sizing.export.device].into();
                self.wait_again(changing, |it| it.is_of(&devices));
            }
            Err(fault) => changing.refused = Some(fault),
        }
    }

    /// Whether its namespace has this very disk: another one may have its number.
    fn is_still_there(&self, export: &Export) -> bool {
        self.is_served(&export.nqn, export.namespace.nsid)
            && self.exports().iter().any(|it| it.device == export.device)
    }

    fn resized(
        &mut self,
        export: &Export,
        shrink: bool,
        found: Found,
    ) -> Result<(Item, Vec<Pending>), Fault> {
        if !self.is_still_there(export) {
            let text = match self.is_served(&export.nqn, export.namespace.nsid) {
                false => "the namespace was removed meanwhile",
                true => "the namespace has another disk by now, or its ANA group has moved: ask again",
            };
            return Err(Fault::refused(text));
        }
        let before = export.disk.geometry();
        let resized = match &found.resized {
            Err(error) => {
                return Err(Fault::refused(format!(
                    "the size of {} cannot be read: {error}",
                    export.backing()
                )));
            }
            Ok(None) => None,
            Ok(Some(disk)) => Some(disk.clone()),
        };
        let now = resized.as_ref().map_or(before, Disk::geometry);
        let mut pending = Vec::new();
        match resized {
            Some(_) if now.blocks == 0 => {
                return Err(Fault::refused(format!(
                    "nothing is left of {}: remove the namespace",
                    export.backing()
                )));
            }
            Some(disk) if now.blocks < before.blocks => {
                if !shrink {
                    self.on_found(found, false);
                    return Err(Fault::refused(format!(
                        "{} has shrunk from {} to {} bytes: hosts lose what lies behind the new end. Add --shrink to show \
                         them its new size",
                        export.backing(),
                        before.bytes(),
                        now.bytes()
                    )));
                }
                pending = self.shrink(&Export { disk, cut: None, look_fault: None, ..export.clone() });
            }
            _ => self.on_found(found, true),
        }
        Ok((told_of(export, before.bytes(), now.bytes()), pending))
    }

    /// Hosts first: what they ask for from then on is in the new size. What was under way before is over at the barrier.
    pub(super) fn shrink(&mut self, export: &Export) -> Vec<Pending> {
        self.show_size(export);
        if let Some(open) = self.namespaces.open.iter_mut().find(|open| open.device == export.device) {
            open.look_fault = None;
        }
        let export = &Export { cut: None, ..export.clone() };
        let barrier = self.common.mailboxes.barrier(Scope::devices([export.device]));
        let _ = self.tell_length(export);
        vec![Pending::new(barrier, held(export))]
    }
}

/// What an operator is told of a disk whose size was read again.
fn told_of(export: &Export, before: u64, now: u64) -> Item {
    let message = match now == before {
        true => format!("it has {now} bytes, as before"),
        false => format!("it has {now} bytes, it had {before}"),
    };
    let name = format!("{} namespace {} ({})", export.nqn, export.namespace.nsid, export.backing());
    Item { message: Some(message), ..Item::done("resize-namespace", name) }
}
