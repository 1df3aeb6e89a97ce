//! Disks that grow or shrink, or are no longer at their path.
//!
//! What has grown is shown to the hosts, whoever notices it. What has shrunk is reported: hosts lose what lies behind
//! the new end only when the operator says so (`ctl namespace resize --shrink`).

use super::Daemon;
use super::apply::{Pending, held};
use super::disks::fault;
use crate::barrier::Scope;
use crate::control::protocol::{Answer, Fault};
use crate::control::request::change::{Effect, Item, Outcome};
use crate::daemon::requests::changed;
use crate::exports::{Export, ExportFault};
use crate::limits::OPEN_TIMEOUT;
use crate::mailbox::ThreadMessage;
use nvmf_backend::{DevicesError, Disk};
use nvmf_block::DeviceId;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::Instant;

/// What a look at a disk found.
struct Found {
    device: DeviceId,
    is_at_its_path: bool,
    /// The disk with its new size, if it has another.
    resized: io::Result<Option<Disk>>,
}

/// A look at the disks that is under way: a thread of its own, because a file system that hangs would keep the control
/// loop waiting.
pub(super) struct Looking(Receiver<Found>);

impl Looking {
    /// `None`: there is no thread for it.
    fn begin(disks: Vec<Export>) -> Option<Self> {
        let (tell, told) = channel();
        let look = move || {
            for export in disks {
                let is_at_its_path = export.is_at_its_path().unwrap_or(false);
                let found = Found { device: export.device, is_at_its_path, resized: export.disk.resized() };
                let _ = tell.send(found);
            }
        };
        std::thread::Builder::new().name("look-at-disks".into()).spawn(look).ok()?;
        Some(Self(told))
    }
}

impl Daemon {
    /// Begins to look at the disks, unless that is under way. [`Daemon::collect_sizes`] takes what was found.
    pub(super) fn begin_to_look(&mut self) {
        if self.looking.is_none() {
            self.looking = Looking::begin(self.exports().to_vec());
        }
    }

    /// Takes what was found since, without waiting.
    pub(super) fn collect_sizes(&mut self) {
        let Some(looking) = self.looking.take() else { return };
        loop {
            match looking.0.try_recv() {
                Ok(found) => self.on_found(found, false),
                Err(TryRecvError::Empty) => break self.looking = Some(looking),
                Err(TryRecvError::Disconnected) => break,
            }
        }
    }

    /// Looks at the disks and waits for what is found. Returns how many errors there were.
    pub(super) fn look_at_disks(&mut self) -> usize {
        let Some(looking) = Looking::begin(self.exports().to_vec()) else { return 1 };
        let deadline = Instant::now() + OPEN_TIMEOUT;
        loop {
            match looking.0.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                // Said again at each reload.
                Ok(found) => self.on_found(found, true),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    tracing::error!("a disk does not answer: those behind it were not looked at");
                    return 1 + self.look_faults();
                }
            }
        }
        self.look_faults()
    }

    fn look_faults(&self) -> usize {
        self.exports().iter().filter(|export| export.look_fault.is_some()).count()
    }

    /// Shows the hosts a disk that has grown, and complains of one that has shrunk or is no longer at its path: once, or
    /// `again`.
    fn on_found(&mut self, found: Found, again: bool) {
        let Found { device, is_at_its_path, resized } = found;
        let Some(export) = self.exports().iter().find(|export| export.device == device).cloned() else {
            return;
        };
        let before = export.disk.geometry();
        let mut text = (!is_at_its_path).then(|| {
            format!(
                "{} is not the disk that is served: it was replaced or removed, and hosts go on with the one that was \
                 opened. Put it back, or take the namespace out, reload, and add it again",
                export.backing()
            )
        });
        match resized {
            Ok(None) => {}
            Ok(Some(disk)) if disk.geometry().blocks > before.blocks => self.grow(&export, disk),
            Ok(Some(disk)) => {
                text = text.or(Some(format!(
                    "{} has shrunk from {} to {} bytes: reads and writes behind its end fail. Make it as long as it was, or \
                     show hosts its new size: nvmf-target ctl namespace resize {} {} --shrink",
                    export.backing(),
                    before.bytes(),
                    disk.geometry().bytes(),
                    export.nqn,
                    export.namespace.nsid
                )));
            }
            Err(error) => {
                text = text.or(Some(format!("the size of {} cannot be read: {error}", export.backing())))
            }
        }
        if let Some(text) = text.as_ref().filter(|text| again || export.look_fault.as_ref() != Some(text)) {
            tracing::error!("{} namespace {}: {text}", export.nqn, export.namespace.nsid);
        }
        if let Some(export) = self.namespaces.open.iter_mut().find(|export| export.device == device) {
            export.look_fault = text;
        }
    }

    /// The workers first: hosts use the new blocks as soon as they see them.
    fn grow(&mut self, export: &Export, disk: Disk) {
        let workers = 0..self.common.mailboxes.workers();
        let grown = Export { disk, ..export.clone() };
        let (taken, faults) = self.tell_workers(vec![grown], workers, resize);
        for (export, text) in faults {
            self.log_export_fault(&fault(&export, ExportFault::Attach(text)));
        }
        for export in taken {
            self.show_size(&export);
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
        if let Err(error) = self.show(&nqn) {
            tracing::error!("{nqn} namespace {nsid}: hosts cannot be shown its size: {error}");
        }
        self.publish();
    }

    /// Reads the size of one disk again.
    pub(super) fn resize(&mut self, nqn: &str, nsid: u32, shrink: bool) -> Result<Answer, Fault> {
        let is_it = |export: &&Export| export.nqn.to_string() == nqn && export.namespace.nsid == nsid;
        let Some(export) = self.exports().iter().find(is_it).cloned() else {
            return Err(Fault::refused(format!("namespace {nsid} of {nqn} is not served: see `status`")));
        };
        let looking = Looking::begin(vec![export.clone()]);
        let looking = looking.ok_or_else(|| Fault::refused("the system has no thread left"))?;
        let found = looking.0.recv_timeout(OPEN_TIMEOUT);
        let found = found.map_err(|_| Fault::refused(format!("{} does not answer", export.backing())))?;
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
            Some(disk) if now.blocks < before.blocks => {
                if !shrink {
                    return Err(Fault::refused(format!(
                        "{} has shrunk from {} to {} bytes: hosts lose what lies behind the new end. Add --shrink to show \
                         them its new size",
                        export.backing(),
                        before.bytes(),
                        now.bytes()
                    )));
                }
                pending = self.shrink(&Export { disk, look_fault: None, ..export.clone() });
            }
            _ => self.on_found(found, true),
        }
        let message = match now.blocks == before.blocks {
            true => format!("it has {} bytes, as before", now.bytes()),
            false => format!("it has {} bytes, it had {}", now.bytes(), before.bytes()),
        };
        let mut items = vec![Item {
            change: "resize-namespace".to_owned(),
            name: format!("{nqn} namespace {nsid} ({})", export.backing()),
            effect: Effect::None,
            connections: Vec::new(),
            note: None,
            outcome: Some(Outcome::Done),
            message: Some(message),
        }];
        let pending: Vec<_> = pending.into_iter().map(|pending| (0, pending)).collect();
        self.await_pending(&pending, &mut items);
        changed(items)
    }

    /// Hosts first: what they ask for from then on is in the new size. What was under way before is over at the barrier.
    fn shrink(&mut self, export: &Export) -> Vec<Pending> {
        self.show_size(export);
        if let Some(open) = self.namespaces.open.iter_mut().find(|open| open.device == export.device) {
            open.look_fault = None;
        }
        let barrier = self.common.mailboxes.barrier(Scope::devices([export.device]));
        let workers = 0..self.common.mailboxes.workers();
        let _ = self.tell_workers(vec![export.clone()], workers, resize);
        vec![Pending { barrier, holds: held(export) }]
    }
}

fn resize(
    export: &Export,
    _worker: usize,
    told: Sender<Result<(), DevicesError>>,
) -> ThreadMessage<crate::transport::Detached> {
    ThreadMessage::Resize(export.device, export.disk.clone(), told)
}
