//! What the operator is told: the status line, and the report at SIGUSR1.

use super::{Daemon, Listening};
use crate::log;

impl Daemon {
    /// Queues on all workers.
    pub(super) fn queues(&self) -> u32 {
        self.groups.iter().map(|group| group.load.total()).sum()
    }

    /// One line: what is served, to how many, and what is wrong.
    pub(super) fn status(&self) -> String {
        let associations = self.common.registry.lock().map_or(0, |registry| registry.associations().count());
        let listeners: Vec<_> = self.listeners.iter().map(Listening::describe).collect();
        let wanted: usize = self.config.subsystems.iter().map(|subsystem| subsystem.namespaces.len()).sum();
        let open = self.exports().len();
        let missing = if open < wanted { format!(" of {wanted}") } else { String::new() };
        format!(
            "{}: {open}{missing} namespace(s), {associations} controller(s), {} queue(s)",
            listeners.join(", "),
            self.queues()
        )
    }

    /// Logs the counters and who is connected. Nothing is logged while a lock is held.
    pub(super) fn report(&self) {
        for (worker, thread) in self.workers.iter().enumerate() {
            tracing::info!(worker, "{}", thread.counters);
        }
        tracing::info!("{}", self.status());
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
                "controller, last heard of {} s ago", idle.as_secs(),
            );
        }
    }
}
