//! What the operator is told: the status line, and the report at SIGUSR1.

use super::{Daemon, Listening, NOTHING_SERVED};
use crate::log;
use crate::metrics::observed::{SeenNamespace, View};

impl Daemon {
    /// Queues on all workers.
    pub(super) fn queues(&self) -> u32 {
        self.groups.iter().map(|group| group.load.total()).sum()
    }

    /// One line: what is served, to how many, and what is wrong.
    pub(super) fn status(&self) -> String {
        let associations = self.common.registry.lock().map_or(0, |registry| registry.associations().count());
        if let Some(text) = self.waits_for() {
            return format!("{text}{}", self.reload_text());
        }
        if let Some(what) = self.config.serves_nothing() {
            let (missing, _) = what.split_once(':').unwrap_or((what, ""));
            return format!("{NOTHING_SERVED}: there is {missing}{}", self.reload_text());
        }
        let listeners: Vec<_> = self.listeners.iter().map(Listening::describe).collect();
        let wanted: usize = self.config.subsystems.iter().map(|subsystem| subsystem.namespaces.len()).sum();
        let open = self.exports().len();
        let missing = if open < wanted { format!(" of {wanted}") } else { String::new() };
        let failing = self.exports().iter().filter(|export| export.disk.health().failures > 0).count();
        let failing = if failing > 0 { format!(", {failing} disk(s) with errors") } else { String::new() };
        let reload = self.reload_text();
        format!(
            "{}: {open}{missing} namespace(s), {associations} controller(s), {} queue(s){failing}{reload}",
            listeners.join(", "),
            self.queues()
        )
    }

    fn reload_text(&self) -> String {
        match self.reload_errors {
            0 => String::new(),
            errors => format!(", {errors} error(s) at the last reload: see the log"),
        }
    }

    /// Shows those who read metrics what only this thread knows.
    pub(super) fn show_observed(&self) {
        if !self.common.observed.is_measured() {
            return;
        }
        let wanted = self.config.subsystems.iter();
        let namespaces = wanted.flat_map(|subsystem| {
            subsystem.namespaces.iter().map(|namespace| {
                let export = self.exports().iter().find(|export| export.is(&subsystem.nqn, namespace.nsid));
                let health = export.map(|export| export.disk.health());
                SeenNamespace {
                    nqn: subsystem.nqn,
                    nsid: namespace.nsid,
                    // Hosts are told that one that was removed is gone.
                    size: export.filter(|it| !it.disk.is_removed()).map(|it| it.disk.geometry().bytes()),
                    disk_failures: health.map_or(0, |health| health.failures),
                    flush_failed: health.is_some_and(|health| health.cache_lost.is_some()),
                }
            })
        });
        self.common.observed.show(View {
            namespaces: namespaces.collect(),
            listeners: self.listeners.iter().map(Listening::seen).collect(),
            reload_errors: self.reload_errors,
            group: self.seen_group(),
        });
    }

    /// Logs which disks have failed since it was last asked: a line for each at the most.
    pub(super) fn log_failures(&mut self) {
        for export in self.namespaces.open.iter_mut() {
            let health = export.disk.health();
            let new = health.failures - export.logged.failures;
            let (nqn, nsid, backing) = (export.nqn, export.namespace.nsid, export.backing());
            if let Some(failure) = health.last.filter(|_| new > 0) {
                tracing::warn!(
                    "{nqn} namespace {nsid}: {failure} on {backing} ({new} failure(s) since the last such \
                     line, {} since the start)",
                    health.failures
                );
            }
            if let Some(failure) = health.cache_lost.filter(|_| export.logged.cache_lost.is_none()) {
                tracing::error!(
                    "{nqn} namespace {nsid}: {failure} on {backing}: writes that hosts were told are done \
                     may be lost, and every flush \
                     fails from now on. Look at the disk (dmesg), restore what is needed, then `systemctl \
                     restart nvmf-target`"
                );
            }
            export.logged = health;
        }
    }

    fn report_disks(&self) {
        for export in self.exports() {
            let health = export.disk.health();
            let now_cached = export.disk.volatile_write_cache();
            tracing::info!(
                nsid = export.namespace.nsid, subsystem = %export.nqn, direct = export.disk.direct(),
                write_cache = now_cached, failures = health.failures, cache_lost = health.cache_lost.is_some(),
                "{}", export.backing(),
            );
        }
    }

    /// Logs the counters and who is connected. Nothing is logged while a lock is held.
    pub(super) fn report(&self) {
        for (worker, thread) in self.workers.iter().enumerate() {
            tracing::info!(worker, "{}", thread.counters);
        }
        tracing::info!("{}", self.status());
        self.report_disks();
        if log::dropped() > 0 {
            tracing::warn!(
                "{} line(s) of this log were dropped: standard error did not take them",
                log::dropped()
            );
        }
        let associations: Vec<_> = match self.common.registry.lock() {
            Ok(registry) => registry.associations().cloned().collect(),
            Err(_) => return,
        };
        for association in associations {
            let idle = self.common.clock.now().saturating_sub(association.last_activity());
            tracing::info!(
                cntlid = association.key().cntlid.0, hostnqn = %association.host_nqn(),
                subsystem = %association.subsystem_nqn(), io_queues = association.io_queues(),
                tls = association.is_secure(),
                "controller, last heard of {} s ago", idle.as_secs(),
            );
        }
    }
}
