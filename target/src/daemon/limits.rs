//! What namespaces and hosts may do a second, as configured, and as the workers know it.

use super::Daemon;
use crate::message::WorkerMessage;
use crate::qos::{Limit, LimitTable, Rates};
use nvmf_config::Limits;
use nvmf_subsystem::Nqn;
use std::collections::HashMap;
use std::sync::Arc;

/// What a limit is of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Limited {
    Namespace(Nqn, u32),
    Host(Nqn, Box<Nqn>),
}

impl Daemon {
    /// Gives the workers the limits of what is served. What was used of a limit that stays, stays used.
    pub(super) fn publish_limits(&mut self) {
        let old = core::mem::take(&mut self.limits);
        let mut table = LimitTable::new();
        let mut limits = HashMap::new();
        let mut take = |of: Limited, limits_of: &Limits| {
            let rates = rates(limits_of);
            let kept = old.get(&of).filter(|limit| limit.rates() == rates).cloned();
            let limit = kept.unwrap_or_else(|| Arc::new(Limit::new(rates)));
            limits.insert(of, Arc::clone(&limit));
            limit
        };
        for subsystem in &self.config.subsystems {
            for host in &subsystem.host_limits {
                let limit = take(Limited::Host(subsystem.nqn, Box::new(host.nqn)), &host.limits);
                table.limit_host(subsystem.nqn, host.nqn, limit);
            }
        }
        for export in &self.namespaces.open {
            if let Some(of) = &export.namespace.limits {
                let limit = take(Limited::Namespace(export.nqn, export.namespace.nsid), of);
                table.limit_device(export.device, limit);
            }
        }
        self.limits = limits;
        if !old.is_empty() || !table.is_empty() {
            self.common.mailboxes.post_all(&WorkerMessage::Limits(Arc::new(table)));
        }
    }
}

fn rates(limits: &Limits) -> Rates {
    let Limits { iops, bytes_per_second, burst } = *limits;
    Rates { iops, bytes_per_second, burst }
}
