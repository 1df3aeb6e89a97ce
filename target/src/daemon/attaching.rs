//! Giving disks to the workers, which may not take one at once.

use super::Daemon;
use super::disks::error_text;
use crate::exports::Export;
use crate::limits::{ANSWER_TIMEOUT, RETRY_INTERVAL};
use crate::machine;
use crate::mailbox::{Mailboxes, ThreadMessage, Told};
use crate::message::WorkerId;
use crate::metrics::namespaces::Device;
use crate::transport::Detached;
use core::time::Duration;
use nvmf_backend::{DevicesError, Disk};
use nvmf_block::DeviceId;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

/// How long a worker's answer is waited for before the watchdog is looked after.
const PIECE: Duration = Duration::from_secs(1);

/// A disk on its way to workers.
struct Given {
    device: DeviceId,
    disk: Disk,
    workers: Vec<(WorkerId, Arc<Device>)>,
    tell: Told,
}

impl Given {
    /// Opens it for each worker and passes it on. May take as long as the disk does.
    fn pass_on(self, mailboxes: &Mailboxes<Detached>) {
        let Self { device, disk, workers, tell } = self;
        for (worker, counted) in workers {
            match disk.for_worker() {
                Ok(opened) => {
                    mailboxes.send(worker, ThreadMessage::Attach(device, opened, counted, tell.clone()));
                }
                // Nobody waits for the answer any more only when the daemon is ending.
                Err(error) => drop(tell.send((worker, Err(error)))),
            }
        }
    }
}

/// What workers say of a disk that they are given.
struct Answers {
    /// Those that have not said anything.
    left: Vec<WorkerId>,
    took: Vec<WorkerId>,
    /// Those that do not take it, and why.
    refused: Vec<(WorkerId, String)>,
    told: Receiver<(WorkerId, Result<(), DevicesError>)>,
}

impl Answers {
    /// Those of these workers, and whom they tell.
    fn of(workers: &[WorkerId]) -> (Told, Self) {
        let (tell, told) = channel();
        (tell, Self { left: workers.to_vec(), took: Vec::new(), refused: Vec::new(), told })
    }

    /// Waits so long for the next one. `false`: none came.
    fn take(&mut self, wait: Duration) -> bool {
        match self.told.recv_timeout(wait) {
            Ok((worker, answer)) => {
                self.left.retain(|other| *other != worker);
                match answer {
                    Ok(()) => self.took.push(worker),
                    Err(error) => self.refused.push((worker, error_text(&error))),
                }
                true
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => {
                let nobody = "the system has no thread left to open it, or the worker has ended";
                self.refused.extend(self.left.drain(..).map(|worker| (worker, nobody.to_owned())));
                true
            }
        }
    }

    /// Why not all have it.
    fn why(&self) -> Option<String> {
        match (self.refused.first(), self.left.first()) {
            (Some((_, why)), _) => Some(why.clone()),
            (None, Some(_)) => Some("a worker does not answer, or the disk does not".to_owned()),
            (None, None) => None,
        }
    }
}

/// A disk that some workers do not have yet.
pub(super) struct Attaching {
    device: DeviceId,
    answers: Answers,
    /// When those that refused it are given it again.
    retry_at: Duration,
    /// Before, nothing is said of those that have not answered yet.
    silent_until: Duration,
    /// Why, as it was logged.
    logged: Option<String>,
}

impl Daemon {
    /// Gives the disks to the workers of a group that is new. A disk that one of them does not take is given to it again,
    /// and stays with the others: hosts of that worker use another path, or wait.
    pub(super) fn attach_all(&mut self, group: usize) {
        self.publish_limits();
        let workers: Vec<WorkerId> = self.groups[group].ids().collect();
        let exports: Vec<Export> =
            self.exports().iter().filter(|export| export.is_for_workers()).cloned().collect();
        let devices: Arc<[DeviceId]> = exports.iter().map(|export| export.device).collect();
        for worker in &workers {
            self.common.mailboxes.send(*worker, ThreadMessage::Expect(Arc::clone(&devices)));
        }
        let before = machine::resident_memory();
        let mut given = self.give(exports, &workers);
        self.await_answers(given.iter_mut().map(|(_, answers)| answers));
        self.disk_memory += machine::resident_memory().saturating_sub(before);
        let now = self.common.clock.now();
        for (export, answers) in given.into_iter().filter(|(_, answers)| answers.why().is_some()) {
            let answers = Answers { took: Vec::new(), ..answers };
            let retry_at = now + RETRY_INTERVAL;
            let device = export.device;
            self.attaching.push(Attaching { device, answers, retry_at, silent_until: now, logged: None });
        }
        self.attach_late();
    }

    /// Gives disks to all workers. Returns those that each of them has, and the others, which none is to have then.
    pub(super) fn attach(&mut self, exports: Vec<Export>) -> (Vec<Export>, Vec<(Export, String)>) {
        let (exports, looked_at): (Vec<_>, Vec<_>) = exports.into_iter().partition(Export::is_for_workers);
        let mut given = self.give(exports, &self.all_workers());
        self.await_answers(given.iter_mut().map(|(_, answers)| answers));
        let (mut taken, mut refused) = (Vec::new(), Vec::new());
        for (export, answers) in given {
            let Some(why) = answers.why() else {
                taken.push(export);
                continue;
            };
            self.detach(export.device);
            if !answers.left.is_empty() {
                let (device, retry_at, silent_until) = (export.device, Duration::ZERO, Duration::ZERO);
                self.attaching.push(Attaching { device, answers, retry_at, silent_until, logged: None });
            }
            refused.push((export, why));
        }
        taken.extend(looked_at);
        (taken, refused)
    }

    /// Takes in what workers have said since of disks that they did not have, and gives them those again that they refused.
    pub(super) fn attach_late(&mut self) {
        let now = self.common.clock.now();
        for mut attaching in core::mem::take(&mut self.attaching) {
            while !attaching.answers.left.is_empty() && attaching.answers.take(Duration::ZERO) {}
            let device = attaching.device;
            let export = self.exports().iter().find(|export| export.device == device).cloned();
            for worker in attaching.answers.took.drain(..) {
                let message = match &export {
                    // Its length may be another one by now.
                    Some(export) => ThreadMessage::Resize(device, export.of_workers().clone(), channel().0),
                    // It was given up meanwhile.
                    None => ThreadMessage::Detach(device),
                };
                self.common.mailboxes.send(worker, message);
            }
            match export {
                Some(export) => self.attach_again(&export, attaching, now),
                None if attaching.answers.left.is_empty() => {}
                None => self.attaching.push(attaching),
            }
        }
    }

    fn attach_again(&mut self, export: &Export, mut attaching: Attaching, now: Duration) {
        let name = || format!("namespace {} of {}", export.namespace.nsid, export.nqn);
        let Some(why) = attaching.answers.why() else {
            tracing::info!("{}: the workers that did not have it have it now", name());
            return;
        };
        let is_early = attaching.answers.refused.is_empty() && now < attaching.silent_until;
        if attaching.logged.as_ref() != Some(&why) && !is_early {
            tracing::error!(
                "{}: not every worker has it: {why}; hosts whose connections are there use another path or wait, and it is \
                 tried again every few seconds",
                name()
            );
            attaching.logged = Some(why);
        }
        if now >= attaching.retry_at && !attaching.answers.refused.is_empty() {
            let refused = attaching.answers.refused.drain(..);
            let workers: Vec<WorkerId> = refused.map(|(worker, _)| worker).collect();
            let (retry_at, silent_until) = (now + RETRY_INTERVAL, now + ANSWER_TIMEOUT);
            let logged = &attaching.logged;
            let given = self.give(vec![export.clone()], &workers).into_iter();
            self.attaching.extend(given.map(|(export, answers)| Attaching {
                device: export.device,
                answers,
                retry_at,
                silent_until,
                logged: logged.clone(),
            }));
        }
        // Of the others, it waits for what they say.
        if attaching.answers.why().is_some() {
            self.attaching.push(attaching);
        }
    }

    /// Why not every worker has a disk, as it was logged.
    pub(super) fn attach_fault(&self, device: DeviceId) -> Option<String> {
        let mut of_device = self.attaching.iter().filter(|attaching| attaching.device == device);
        let why = of_device.find_map(|attaching| attaching.logged.as_ref())?;
        Some(format!("not every worker has it: {why}"))
    }

    /// Gives the workers a disk in its new length. Says why not all have it.
    pub(super) fn tell_length(&self, export: &Export) -> Option<String> {
        let workers = self.all_workers();
        let (tell, mut answers) = Answers::of(&workers);
        for worker in workers {
            let message = ThreadMessage::Resize(export.device, export.of_workers().clone(), tell.clone());
            self.common.mailboxes.send(worker, message);
        }
        self.await_answers(core::iter::once(&mut answers));
        answers.why()
    }

    pub(super) fn detach(&self, device: DeviceId) {
        for worker in self.all_workers() {
            self.common.mailboxes.send(worker, ThreadMessage::Detach(device));
        }
    }

    fn all_workers(&self) -> Vec<WorkerId> {
        (0..self.common.mailboxes.workers()).map(WorkerId).collect()
    }

    /// Has disks opened once more for each of these workers, and given to them. That may take as long as a disk does: each has a
    /// thread of its own for it.
    fn give(&self, exports: Vec<Export>, workers: &[WorkerId]) -> Vec<(Export, Answers)> {
        let give = |export: Export| {
            let (tell, answers) = Answers::of(workers);
            let counted = |worker: &WorkerId| (*worker, Arc::clone(export.counted.device(worker.0)));
            let workers = workers.iter().map(counted).collect();
            let given = Given { device: export.device, disk: export.of_workers().clone(), workers, tell };
            let mailboxes = Arc::clone(&self.common.mailboxes);
            if given.disk.is_opened_anew() && !given.workers.is_empty() {
                // Without a thread nobody is left who would answer, and whoever waits for that hears so.
                let _ = std::thread::Builder::new()
                    .name("open-disk".into())
                    .spawn(move || given.pass_on(&mailboxes));
            } else {
                given.pass_on(&mailboxes);
            }
            (export, answers)
        };
        exports.into_iter().map(give).collect()
    }

    /// Waits for them, all together no longer than a worker may take.
    fn await_answers<'a>(&self, all: impl Iterator<Item = &'a mut Answers>) {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        for answers in all {
            while !answers.left.is_empty() {
                let left = deadline.saturating_duration_since(Instant::now());
                if answers.take(left.min(PIECE)) {
                    continue;
                }
                if left <= PIECE {
                    break;
                }
                self.keep_alive();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::disks::tests::daemon;
    use super::super::worker_group::{Selection, WorkerGroup};
    use super::*;
    use crate::barrier::Scope;
    use nvmf_backend::{DEVICES_MAX, DiskSpec};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// One that is not served, with its own disk.
    fn another(daemon: &Daemon, device: DeviceId) -> Export {
        let disk = Disk::open(&DiskSpec::Memory { size: 1 << 20 }, None, false).unwrap();
        Export { device, disk, ..daemon.exports()[0].clone() }
    }

    /// Whether a worker has the disk at that place, once all have done what they were sent before.
    fn is_with_one(daemon: &Daemon, at: usize) -> bool {
        daemon.common.mailboxes.barrier(Scope::notices()).wait(PATIENCE).expect("the workers turn");
        daemon.exports()[at].disk.is_shared()
    }

    /// No worker has it, nor the thread that opened it for them.
    fn until_left(disk: &Disk) {
        let deadline = Instant::now() + PATIENCE;
        while disk.is_shared() {
            assert!(Instant::now() < deadline, "a worker has the disk");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn until_attached(daemon: &mut Daemon) {
        let deadline = Instant::now() + PATIENCE;
        while !daemon.attaching.is_empty() {
            assert!(Instant::now() < deadline, "a worker does not take its disk");
            daemon.attaching.iter_mut().for_each(|attaching| attaching.retry_at = Duration::ZERO);
            daemon.attach_late();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn disk_that_a_new_worker_does_not_take_stays_with_the_others_until_that_takes_it_too() {
        let mut daemon = daemon();
        let device = daemon.exports()[0].device;
        // The workers that come have it in the place of the one that is served.
        let in_its_place = another(&daemon, DeviceId(device.0 + DEVICES_MAX));
        let other = in_its_place.device;
        daemon.namespaces.open.insert(0, in_its_place);
        let first = WorkerId(daemon.workers.len());
        daemon.groups.push(WorkerGroup::new(Selection::Tcp, first, 1));
        daemon.start_group(daemon.groups.len() - 1).unwrap();
        daemon.namespaces.open.remove(0);
        assert!(is_with_one(&daemon, 0), "the other worker has lost it");
        assert!(daemon.attach_fault(device).is_some_and(|why| why.contains("slot")));
        assert_eq!((daemon.attaching.len(), daemon.attach_fault(other)), (1, None));

        // Now this one alone may have it.
        daemon.common.mailboxes.send(WorkerId(0), ThreadMessage::Detach(device));
        until_left(&daemon.exports()[0].disk);
        daemon.common.mailboxes.send(first, ThreadMessage::Detach(other));
        until_attached(&mut daemon);
        assert!(is_with_one(&daemon, 0));
        daemon.stop(Duration::ZERO);
    }

    #[test]
    fn disk_that_a_worker_takes_when_it_was_given_up_is_let_go_again() {
        let mut daemon = daemon();
        let device = daemon.namespaces.take_device();
        let late = another(&daemon, device);
        let workers = daemon.all_workers();
        let mut given = daemon.give(vec![late], &workers);
        let (late, answers) = given.pop().expect("one was given");
        let retry_at = Duration::ZERO;
        daemon.attaching.push(Attaching { device, answers, retry_at, silent_until: retry_at, logged: None });
        until_attached(&mut daemon);
        until_left(&late.disk);
        daemon.stop(Duration::ZERO);
    }

    #[test]
    fn nobody_is_waited_for_who_cannot_answer_any_more() {
        let daemon = daemon();
        let (tell, mut answers) = Answers::of(&[WorkerId(0)]);
        drop(tell);
        daemon.await_answers(core::iter::once(&mut answers));
        assert!(answers.why().is_some_and(|why| why.contains("thread")));
        daemon.stop(Duration::ZERO);
    }
}
