//! Taking namespaces up, and taking them away.

use super::Daemon;
use super::apply::held;
use super::changing::Pending;
use super::cluster::Taken;
use super::sizes::Looked;
use crate::barrier::Scope;
use crate::exports::{Export, ExportError, ExportFault};
use crate::limits::OPEN_TIMEOUT;
use core::time::Duration;
use nvmf_subsystem::{DefinitionError, Nqn, Nsid};
use std::collections::BTreeSet;

impl Daemon {
    /// Opens what is wanted and not open, until no disk has been opened for this long. What is slower comes later,
    /// except for memory, which is waited for.
    pub(super) fn open_disks(&mut self, wait: Duration) -> Vec<ExportError> {
        let mut deadline = OpenDeadline::new(self.common.clock.now(), wait);
        let mut faults = Vec::new();
        loop {
            faults.append(&mut self.advance_disks());
            let now = self.common.clock.now();
            let to_come = self.namespaces.to_come(&self.config.subsystems, now);
            let is_any_open = !self.exports().is_empty() || self.namespaces.held() > 0;
            let is_over = deadline.is_over(now, to_come, self.namespaces.is_allocating());
            let pending = self.namespaces.pending(&self.config.subsystems, now);
            if pending.is_empty() || is_over || to_come == 0 && is_any_open {
                faults.append(&mut self.settle());
                faults.append(&mut self.namespaces.pending(&self.config.subsystems, now));
                return faults;
            }
            self.keep_alive();
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Whether it does not listen yet, as all disks that it may have are slow, or were and come one by one.
    pub(super) fn awaits_disk(&self) -> bool {
        self.awaits_disk.is_some()
            && self.config.subsystems.iter().any(|subsystem| !subsystem.namespaces.is_empty())
    }

    /// One step of that, which waits for no disk. Returns what could not be served.
    pub(super) fn advance_disks(&mut self) -> Vec<ExportError> {
        let now = self.common.clock.now();
        let wanted = &self.config.subsystems;
        let mut faults = self.namespaces.collect(wanted, now);
        self.namespaces.begin(wanted, now, &self.common.waker, &self.common.state);
        if !self.namespaces.is_settling(now) {
            faults.append(&mut self.settle());
        }
        self.listen_with_disks(now);
        faults
    }

    /// Listens, where it had no disk to listen with, once there are those that come at about the same time: what kept one from
    /// opening often kept others, and hosts give up what is not there when they connect.
    fn listen_with_disks(&mut self, now: Duration) {
        let Some(mut deadline) = self.awaits_disk.take() else { return };
        let pending = self.namespaces.pending(&self.config.subsystems, now).len();
        if self.exports().is_empty() {
            deadline = OpenDeadline::new(now, OPEN_TIMEOUT);
        } else if pending == 0 || deadline.is_over(now, pending, false) {
            return self.retry_listeners();
        }
        self.awaits_disk = Some(deadline);
    }

    /// Serves what is open, except for disks that have the UUID of another.
    pub(super) fn settle(&mut self) -> Vec<ExportError> {
        let now = self.common.clock.now();
        let of_group = self.cluster.as_ref().map_or(&[][..], |cluster| &cluster.claims);
        let (opened, mut faults) = self.namespaces.settle(&self.config.subsystems, of_group, now);
        if !opened.is_empty() {
            faults.append(&mut self.take_up(opened));
        }
        faults
    }

    pub(super) fn log_export_fault(&mut self, fault: &ExportError) {
        // Whoever shows the reason names the namespace.
        if self.namespaces.is_news(fault, &error_text(&fault.source)) {
            let text = error_text(fault);
            match fault.source.is_costly() {
                true => tracing::error!("not served: {text}"),
                false => tracing::error!("not served: {text}; it is tried again every few seconds"),
            }
        }
    }

    /// Gives opened disks to the workers, then shows them to the hosts.
    fn take_up(&mut self, opened: Vec<Export>) -> Vec<ExportError> {
        let count = |export: Export| {
            let counted = self.common.observed.namespaces.add(export.nqn, export.namespace.nsid);
            self.as_known(Export { counted, ..export })
        };
        let (others, opened): (Vec<_>, Vec<_>) =
            opened.into_iter().map(|it| (self.is_wrong_image(&it), it)).partition(|(why, _)| why.is_some());
        let opened = opened.into_iter().map(|(_, export)| count(export)).collect();
        let (taken, refused) = self.attach(opened);
        let mut faults = Vec::new();
        for (export, text) in refused {
            faults.push(fault(&export, ExportFault::Attach(text)));
            self.namespaces.let_go(export);
        }
        faults.extend(others.into_iter().filter_map(|(why, export)| Some(fault(&export, why?))));
        let nqns: BTreeSet<Nqn> = taken.iter().map(|export| export.nqn).collect();
        for export in taken {
            export.announce();
            let waker = self.common.waker.clone();
            export.disk.on_change(move || waker.wake());
            // It has shrunk: that is said as soon as it is served.
            if export.cut.is_some() {
                self.begin_one_look(Looked::One(export.device), std::slice::from_ref(&export));
            }
            self.namespaces.add(export);
        }
        // In force before a host sees what they are of.
        self.publish_limits();
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

    /// Takes namespaces from the hosts, then from the workers: a command that comes in later finds the namespace gone.
    /// Returns what it waits for: operations that were under way.
    pub(super) fn take_away(&mut self, goes: impl Fn(&Export) -> bool) -> Vec<Pending> {
        let going = || self.exports().iter().filter(|export| goes(export));
        let nqns: BTreeSet<Nqn> = going().map(|export| export.nqn).collect();
        let holds: Vec<String> = going().map(held).collect();
        let gone = self.namespaces.take_away(self.common.clock.now(), goes);
        for nqn in nqns {
            // Unknown when the whole subsystem went: so did its namespaces.
            let _ = self.show(&nqn);
        }
        self.publish();
        let pending = gone.into_iter().zip(holds).map(|((device, (nqn, nsid)), holds)| {
            let barrier = self.common.mailboxes.barrier(Scope::devices([device]));
            self.detach(device);
            self.common.observed.namespaces.remove(nqn, nsid);
            Pending::new(barrier, holds)
        });
        pending.collect()
    }

    /// Shows the hosts of a subsystem the namespaces that are open.
    pub(super) fn show(&self, nqn: &Nqn) -> Result<(), Box<DefinitionError>> {
        self.show_with(nqn, core::iter::empty())
    }

    /// Shows them, with what a gateway group has of those that were taken over just now.
    pub(super) fn show_with<'a>(
        &self,
        nqn: &Nqn,
        taken: impl Iterator<Item = &'a Taken>,
    ) -> Result<(), Box<DefinitionError>> {
        // One lock for all: nobody may see a namespace without the reservation that was kept of it.
        let mut registry = self.registry();
        let before = registry.namespaces(nqn).cloned();
        let was_there = |export: &Export| {
            let known = before.as_ref().and_then(|table| table.get(Nsid(export.namespace.nsid)));
            known.is_some_and(|it| it.uuid == export.uuid)
        };
        let is_own = |it: &&Export| it.nqn == *nqn && !self.is_held_back(it, was_there(it));
        let own = || self.exports().iter().filter(is_own);
        let elsewhere = self.known_elsewhere(nqn);
        let shown = registry.set_namespaces(nqn, own().map(Export::definition).chain(elsewhere).collect());
        let taken: Vec<&Taken> = taken.collect();
        // Also where hosts see the namespaces of before.
        for Taken { nsid, uuid, reservation, protection, .. } in &taken {
            let nsid = Nsid(*nsid);
            let restored = registry.restore_reservation(nqn, nsid, *uuid, reservation.clone());
            let protected = registry.restore_write_protection(nqn, nsid, *uuid, *protection);
            if let Err(error) = restored.and(protected) {
                tracing::error!("the reservation of a namespace is not restored: {error}");
            }
        }
        shown?;
        // What was kept when it was looked at may be another ANA group's, or old.
        let is_taken = |nsid: Nsid| taken.iter().any(|it| it.nsid == nsid.0);
        for export in own() {
            let nsid = Nsid(export.namespace.nsid);
            if let Some(kept) = export.kept.as_ref().filter(|_| !was_there(export) && !is_taken(nsid)) {
                registry.restore_reservation(nqn, nsid, export.uuid, kept.clone())?;
            }
        }
        Ok(())
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

/// When waiting for disks ends. Many disks may take long in all, so the time counts from the last one that came.
pub(super) struct OpenDeadline {
    wait: Duration,
    at: Duration,
    /// The fewest that were pending. One that failed and is tried again is pending again, and does not count twice.
    fewest: usize,
}

impl OpenDeadline {
    pub(super) fn new(now: Duration, wait: Duration) -> Self {
        Self { wait, at: now + wait, fewest: usize::MAX }
    }

    pub(super) fn is_over(&mut self, now: Duration, pending: usize, is_allocating: bool) -> bool {
        if pending < self.fewest || is_allocating {
            self.at = now + self.wait;
        }
        self.fewest = self.fewest.min(pending);
        now >= self.at
    }
}

pub(super) fn fault(export: &Export, source: ExportFault) -> ExportError {
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::control::Waker;
    use crate::sockets::Sockets;
    use nvmf_config::Config;
    use nvmf_subsystem::reservation::Reservation;
    use nvmf_subsystem::{HostId, WriteProtection};
    use std::time::Instant;

    /// With one worker and one namespace, in memory.
    pub(in crate::daemon) fn daemon() -> Daemon {
        let text = "[target]\nworkers = 1\nbuffer_memory = \"8MiB\"\n\
            [[listener]]\naddress = \"127.0.0.1:0\"\ntransport = \"tcp\"\n\
            [[subsystem]]\nnqn = \"nqn.2026-11.com.example:disks\"\nallow_any_host = true\n\
            [[subsystem.namespace]]\nnsid = 1\nmemory = \"1MiB\"\n";
        Daemon::start(Config::parse(text).unwrap(), None, Waker::default(), Sockets::default()).unwrap()
    }

    #[test]
    fn target_whose_disks_were_all_slow_listens_with_those_that_come_together() {
        let mut daemon = daemon();
        daemon.stop_all_listeners().unwrap();
        // Another disk hangs.
        let (nqn, mut other) =
            (daemon.config.subsystems[0].nqn, daemon.config.subsystems[0].namespaces[0].clone());
        other.nsid = 2;
        daemon.config.subsystems[0].namespaces.push(other.clone());
        let came = second(100);
        let hangs = daemon.namespaces.hang((nqn, 2), other, came);
        daemon.awaits_disk = Some(OpenDeadline::new(came, OPEN_TIMEOUT));
        let listens_at = |daemon: &mut Daemon, at| {
            daemon.listen_with_disks(at);
            daemon.may_listen()
        };
        let before = Duration::from_millis(1);
        assert!(!listens_at(&mut daemon, came) && !listens_at(&mut daemon, came + OPEN_TIMEOUT - before));
        assert!(daemon.waits_for().is_some_and(|text| text.contains("more of its disks")));
        assert!(listens_at(&mut daemon, came + OPEN_TIMEOUT), "the other one may never come");
        assert_eq!(daemon.waits_for(), None);
        // The port is free once the worker has left it.
        let deadline = Instant::now() + Duration::from_secs(30);
        while daemon.addresses().is_empty() {
            assert!(Instant::now() < deadline, "it does not listen");
            daemon.retry_listeners();
            std::thread::sleep(Duration::from_millis(1));
        }
        // At once, where there is no other one.
        daemon.config.subsystems[0].namespaces.pop();
        daemon.awaits_disk = Some(OpenDeadline::new(came, OPEN_TIMEOUT));
        assert!(listens_at(&mut daemon, came));
        drop(hangs);
        daemon.stop(Duration::ZERO);
    }

    #[test]
    fn namespace_that_a_group_takes_over_has_the_reservation_of_the_group() {
        let mut daemon = daemon();
        let of = |generation| Reservation::restored(generation, None, [(HostId([1; 16]), 9)]).unwrap();
        let (nqn, uuid) = (daemon.exports()[0].nqn, daemon.exports()[0].uuid);
        // Read when the image was looked at: in another ANA group.
        daemon.namespaces.open[0].kept = Some(of(7));
        daemon.registry().set_namespaces(&nqn, Vec::new()).unwrap();
        let taken = Taken { nqn, nsid: 1, uuid, reservation: of(4), protection: WriteProtection::Off };
        daemon.show_with(&nqn, [&taken].into_iter()).unwrap();
        let shown = daemon.registry().namespaces(&nqn).unwrap().reservation(Nsid(1)).cloned();
        assert_eq!(shown.as_deref(), Some(&of(4)));
        daemon.stop(Duration::ZERO);
    }

    const WAIT: Duration = Duration::from_secs(5);

    fn second(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn disks_that_come_one_by_one_are_waited_for() {
        let mut deadline = OpenDeadline::new(second(0), WAIT);
        for (opened, pending) in (1..100).zip((1..100).rev()) {
            assert!(!deadline.is_over(second(opened * 4), pending, false), "{opened} are open");
        }
        assert!(!deadline.is_over(second(400), 1, false), "4 s after the last");
        assert!(deadline.is_over(second(401), 1, false), "5 s after the last");
    }

    #[test]
    fn disk_that_fails_again_and_again_prolongs_nothing() {
        let mut deadline = OpenDeadline::new(second(0), WAIT);
        assert!(!deadline.is_over(second(1), 1, false));
        assert!(!deadline.is_over(second(3), 2, false));
        assert!(!deadline.is_over(second(5), 1, false));
        assert!(deadline.is_over(second(6), 2, false));
    }

    #[test]
    fn large_memory_disk_is_waited_for() {
        let mut deadline = OpenDeadline::new(second(0), WAIT);
        assert!((1..100).all(|now| !deadline.is_over(second(now), 1, true)));
        assert!(deadline.is_over(second(104), 1, false), "for another disk, 5 s from then on");
    }
}
