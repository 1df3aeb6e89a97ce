//! Which workers stand on which selection.

use super::StartError;
use crate::message::WorkerId;
use crate::settings::Load;
use nvmf_config::{Config, Listener, ProviderChoice};
use nvmf_rdma_any::{Preference, ProviderSelection, VerbsOptions};
use std::net::SocketAddr;
use std::sync::Arc;

/// The workers of one selection: its first listens, and hands what comes in to all of them.
pub(super) struct WorkerGroup {
    pub(super) selection: ProviderSelection,
    pub(super) first: WorkerId,
    pub(super) workers: usize,
    /// Their places in the configuration, and their addresses.
    pub(super) listeners: Vec<(usize, SocketAddr)>,
    pub(super) load: Arc<Load>,
}

impl WorkerGroup {
    /// One group for each selection that a listener takes. They share the configured workers; each has one at least.
    pub(super) fn all(config: &Config) -> Result<Vec<Self>, StartError> {
        let mut selections: Vec<(ProviderSelection, Vec<(usize, SocketAddr)>)> = Vec::new();
        for (at, listener) in config.listeners.iter().enumerate() {
            let address = listener.address;
            let selection =
                ProviderSelection::of(address.ip(), preference(listener.provider), verbs(listener))
                    .map_err(|source| StartError::Provider { address, source })?;
            match selections.iter_mut().find(|(other, _)| *other == selection) {
                Some((_, listeners)) => listeners.push((at, address)),
                None => selections.push((selection, vec![(at, address)])),
            }
        }
        let mut next = 0;
        let shares = shares(config.target.workers, selections.len());
        let group = |((selection, listeners), workers)| {
            let first = WorkerId(next);
            next += workers;
            Self { selection, first, workers, listeners, load: Load::new(first, workers) }
        };
        Ok(selections.into_iter().zip(shares).map(group).collect())
    }

    /// What one of them listens on.
    pub(super) fn listens(&self, worker: WorkerId) -> &[(usize, SocketAddr)] {
        if worker == self.first { &self.listeners } else { &[] }
    }
}

/// Workers of each of so many groups: the first ones get what does not come out even.
fn shares(workers: usize, groups: usize) -> impl Iterator<Item = usize> {
    (0..groups).map(move |at| (workers / groups + usize::from(at < workers % groups)).max(1))
}

fn preference(choice: ProviderChoice) -> Preference {
    match choice {
        ProviderChoice::Auto => Preference::Auto,
        ProviderChoice::Iwarp => Preference::Iwarp,
        ProviderChoice::Verbs => Preference::Verbs,
    }
}

fn verbs(listener: &Listener) -> VerbsOptions {
    let chosen = &listener.verbs;
    VerbsOptions {
        pkey_index: chosen.pkey_index,
        gid_index: chosen.gid_index,
        // ECT(0): switches mark what they would otherwise drop, which is what RoCE's congestion control lives on.
        traffic_class: chosen.dscp.map(|dscp| dscp << 2 | 2),
        retry_count: chosen.retry_count,
        rnr_retry_count: chosen.rnr_retry_count,
        min_rnr_timer: None,
        ack_timeout: chosen.ack_timeout,
        memory_windows: chosen.memory_windows,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_has_a_worker_and_none_is_left_over() {
        for (workers, groups, expected) in
            [(8, 1, &[8][..]), (8, 3, &[3, 3, 2]), (4, 2, &[2, 2]), (1, 3, &[1, 1, 1]), (0, 1, &[1])]
        {
            assert_eq!(shares(workers, groups).collect::<Vec<_>>(), expected, "{workers} for {groups}");
        }
        assert_eq!(shares(4, 0).count(), 0);
    }
}
