//! Taking namespaces up, and taking them away.

use super::Daemon;
use crate::exports::{Export, ExportError, ExportFault};
use crate::limits::{ANSWER_TIMEOUT, OPEN_TIMEOUT};
use crate::mailbox::ThreadMessage;
use crate::message::WorkerId;
use core::time::Duration;
use nvmf_backend::DevicesError;
use nvmf_block::DeviceId;
use nvmf_subsystem::{DefinitionError, Nqn};
use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

/// How long a worker's answer is waited for before the watchdog is looked after.
const PIECE: Duration = Duration::from_secs(1);

/// A disk on its way to the workers: how many answers there will be, and where.
struct Attaching {
    export: Export,
    answers: usize,
    told: Receiver<Result<(), DevicesError>>,
}

impl Daemon {
    /// Opens what is wanted and not open, for as long as that takes, but no longer than this. What is slower comes
    /// later.
    pub(super) fn open_disks(&mut self, wait: Duration) -> Vec<ExportError> {
        let deadline = self.common.clock.now() + wait;
        let mut faults = Vec::new();
        loop {
            faults.append(&mut self.advance_disks());
            let now = self.common.clock.now();
            let mut pending = self.namespaces.pending(&self.config.subsystems, now);
            if pending.is_empty() || now >= deadline {
                faults.append(&mut pending);
                return faults;
            }
            self.keep_alive();
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// One step of that, which waits for no disk. Returns what could not be served.
    pub(super) fn advance_disks(&mut self) -> Vec<ExportError> {
        let now = self.common.clock.now();
        let wanted = &self.config.subsystems;
        self.namespaces.begin(wanted, now, &self.common.waker);
        let (opened, mut faults) = self.namespaces.collect(wanted, now);
        if !opened.is_empty() {
            faults.append(&mut self.take_up(opened));
        }
        faults
    }

    pub(super) fn log_export_fault(&mut self, fault: &ExportError) {
        let text = error_text(fault);
        if self.namespaces.is_news(fault, &text) {
            tracing::error!("not served: {text}; it is tried again every few seconds");
        }
    }

    /// Gives opened disks to the workers, then shows them to the hosts.
    fn take_up(&mut self, opened: Vec<Export>) -> Vec<ExportError> {
        let workers = self.common.mailboxes.workers();
        let (taken, mut faults) = self.attach(opened, 0..workers);
        let nqns: BTreeSet<Nqn> = taken.iter().map(|export| export.nqn).collect();
        for export in taken {
            export.announce();
            self.namespaces.add(export);
        }
        for nqn in nqns {
            if let Err(error) = self.show(&nqn) {
                // Checked before, so that it cannot be: but then these are not served.
                faults.extend(
                    self.namespaces
                        .open
                        .iter()
                        .filter(|export| export.nqn == nqn)
                        .map(|export| fault(export, ExportFault::Attach(error.to_string()))),
                );
            } else {
                self.warn_of_mixed_blocks(&nqn);
            }
        }
        self.publish();
        let now = self.common.clock.now();
        faults.iter().for_each(|fault| self.namespaces.retry_later(fault, now));
        faults
    }

    /// Gives the disks to the workers of a group that is new.
    pub(super) fn attach_all(&mut self, group: usize) {
        let first = self.groups[group].first.0;
        let workers = first..first + self.groups[group].workers;
        let (_, faults) = self.attach(self.namespaces.open.clone(), workers);
        for fault in faults {
            self.log_export_fault(&fault);
        }
    }

    /// All at once: a worker that does not answer is waited for once.
    fn attach(
        &self,
        exports: Vec<Export>,
        workers: core::ops::Range<usize>,
    ) -> (Vec<Export>, Vec<ExportError>) {
        let attaching: Vec<Attaching> = exports
            .into_iter()
            .map(|export| {
                let (tell, told) = channel();
                for worker in workers.clone() {
                    let message = ThreadMessage::Attach(export.device, export.disk.clone(), tell.clone());
                    self.common.mailboxes.send(WorkerId(worker), message);
                }
                Attaching { export, answers: workers.len(), told }
            })
            .collect();
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let (mut taken, mut faults) = (Vec::new(), Vec::new());
        for Attaching { export, answers, told } in attaching {
            match (0..answers).try_for_each(|_| self.answer(&told, deadline)) {
                Ok(()) => taken.push(export),
                Err(text) => {
                    self.detach(export.device);
                    faults.push(fault(&export, ExportFault::Attach(text)));
                }
            }
        }
        (taken, faults)
    }

    fn answer(&self, told: &Receiver<Result<(), DevicesError>>, deadline: Instant) -> Result<(), String> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match told.recv_timeout(left.min(PIECE)) {
                Ok(answer) => return answer.map_err(|error| error.to_string()),
                Err(RecvTimeoutError::Timeout) if left > PIECE => self.keep_alive(),
                Err(_) => return Err("a worker does not answer".into()),
            }
        }
    }

    /// Looks at the sizes of the disks again, and shows the hosts those that have grown. Returns how many could not be.
    pub(super) fn take_up_growth(&mut self) -> usize {
        let disks: Vec<_> =
            self.exports().iter().map(|export| (export.device, export.disk.clone())).collect();
        let (tell, told) = channel();
        // A thread of its own: a file system that hangs would keep the control loop waiting.
        let look = move || {
            for (device, disk) in disks {
                let _ = tell.send((device, disk.grown()));
            }
        };
        if std::thread::Builder::new().name("look-at-sizes".into()).spawn(look).is_err() {
            return 1;
        }
        let deadline = Instant::now() + OPEN_TIMEOUT;
        let (mut grown, mut errors) = (Vec::new(), 0);
        loop {
            match told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((device, Ok(Some(disk)))) => {
                    let old = self.namespaces.open.iter().find(|export| export.device == device).cloned();
                    let new = self.namespaces.take_device();
                    grown.extend(old.map(|old| Export { device: new, disk, ..old }));
                }
                Ok((_, Ok(None))) => {}
                Ok((device, Err(error))) => {
                    tracing::error!("the size of device {} cannot be read: {error}", device.0);
                    errors += 1;
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    tracing::error!("a disk does not tell its size: those behind it were not looked at");
                    errors += 1;
                    break;
                }
            }
        }
        if grown.is_empty() {
            return errors;
        }
        let (taken, faults) = self.attach(grown, 0..self.common.mailboxes.workers());
        faults.iter().for_each(|fault| self.log_export_fault(fault));
        let old: Vec<DeviceId> = taken.into_iter().filter_map(|export| self.replace(export)).collect();
        self.publish();
        // After the hosts' tables: what was submitted before ends on the device that it was submitted to.
        old.into_iter().for_each(|device| self.detach(device));
        errors + faults.len()
    }

    /// Puts a larger disk in the place of what it was. Returns the device that goes.
    fn replace(&mut self, export: Export) -> Option<DeviceId> {
        let (nqn, nsid, bytes) = (export.nqn, export.namespace.nsid, export.disk.geometry().bytes());
        let old = self.namespaces.open.iter_mut().find(|old| old.is(&nqn, nsid))?;
        let old = std::mem::replace(old, export);
        tracing::info!(
            "{nqn} namespace {nsid}: {} has grown from {} to {bytes} bytes",
            old.backing(),
            old.disk.geometry().bytes()
        );
        if let Err(error) = self.show(&nqn) {
            tracing::error!("{nqn} namespace {nsid}: hosts cannot be shown its size: {error}");
        }
        Some(old.device)
    }

    /// Takes namespaces from the hosts, then from the workers: a command that comes in later finds the namespace gone.
    pub(super) fn take_away(&mut self, goes: impl Fn(&Export) -> bool) {
        let nqns: BTreeSet<Nqn> =
            self.exports().iter().filter(|e| goes(e)).map(|export| export.nqn).collect();
        let gone = self.namespaces.take_away(goes);
        for nqn in nqns {
            // Unknown when the whole subsystem went: so did its namespaces.
            let _ = self.show(&nqn);
        }
        self.publish();
        gone.into_iter().for_each(|device| self.detach(device));
    }

    /// Shows the hosts of a subsystem the namespaces that are open.
    pub(super) fn show(&self, nqn: &Nqn) -> Result<(), Box<DefinitionError>> {
        let own = self.exports().iter().filter(|export| export.nqn == *nqn);
        Ok(self.registry().set_namespaces(nqn, own.map(Export::definition).collect())?)
    }

    fn detach(&self, device: DeviceId) {
        for worker in 0..self.common.mailboxes.workers() {
            self.common.mailboxes.send(WorkerId(worker), ThreadMessage::Detach(device));
        }
    }

    /// Linux 6.15 to 6.17 refuse the namespace with the larger blocks when it is found second.
    fn warn_of_mixed_blocks(&self, nqn: &Nqn) {
        let own = self.exports().iter().filter(|export| export.nqn == *nqn);
        let sizes: BTreeSet<u32> = own.map(|export| export.disk.geometry().block_size).collect();
        if sizes.len() > 1 {
            tracing::warn!(
                "{nqn} has namespaces with blocks of {sizes:?} bytes: some hosts (Linux 6.15 to 6.17) \
                 take only one size in a \
                 subsystem; set `block_size`, or give each size a subsystem of its own"
            );
        }
    }
}

fn fault(export: &Export, source: ExportFault) -> ExportError {
    ExportError { nqn: Box::new(export.nqn), nsid: export.namespace.nsid, source }
}

/// An error with its causes, in one line.
pub(super) fn error_text(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
