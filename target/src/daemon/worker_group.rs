//! Which workers serve which transport.

use crate::exec::queue::Queue;
use crate::limits::LINGERING_MAX;
use crate::message::WorkerId;
use crate::settings::{Load, Settings};
use crate::transport::rdma::Rdma;
use crate::transport::tcp::Tcp;
use core::fmt;
use nvmf_config::{Listener, ProviderChoice, Transport};
use nvmf_rdma_any::{AnyProvider, OpenError, Preference, ProviderSelection, VerbsOptions};
use std::net::SocketAddr;
use std::sync::Arc;

/// What the workers of a group serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Selection {
    /// NVMe/RDMA over this provider.
    Rdma(ProviderSelection),
    /// NVMe/TCP.
    Tcp,
}

impl Selection {
    pub(super) fn transport(&self) -> Transport {
        match self {
            Self::Rdma(_) => Transport::Rdma,
            Self::Tcp => Transport::Tcp,
        }
    }

    /// Bytes of memory that an idle queue of so many entries takes at a worker.
    pub(super) fn queue_bytes(&self, entries: u16, is_admin: bool) -> usize {
        match self {
            Self::Rdma(_) => Queue::<Rdma<AnyProvider>>::bytes(entries, is_admin),
            Self::Tcp => Queue::<Tcp>::bytes(entries, is_admin),
        }
    }

    /// How large its workers are.
    pub(super) fn settings(&self, target: &nvmf_config::Target) -> Settings {
        let on_demand = matches!(self, Self::Rdma(ProviderSelection::Iwarp { .. }));
        Settings::new(target, self.transport(), on_demand)
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rdma(provider) => provider.fmt(f),
            Self::Tcp => f.write_str("NVMe/TCP"),
        }
    }
}

/// The workers of one transport: the first listens, and hands what comes in to all of them.
pub(super) struct WorkerGroup {
    pub(super) selection: Selection,
    pub(super) first: WorkerId,
    pub(super) workers: usize,
    pub(super) load: Arc<Load>,
}

impl WorkerGroup {
    /// A group of so many workers from `first` on.
    pub(super) fn new(selection: Selection, first: WorkerId, workers: usize) -> Self {
        Self { selection, first, workers, load: Load::new(first, workers) }
    }

    /// One group for each. They share the configured workers; each has one at least.
    pub(super) fn all(selections: Vec<Selection>, workers: usize) -> Vec<Self> {
        let shares = shares(workers, selections.len());
        let mut next = 0;
        let group = |(selection, workers)| {
            let first = WorkerId(next);
            next += workers;
            Self::new(selection, first, workers)
        };
        selections.into_iter().zip(shares).map(group).collect()
    }

    /// Descriptors that its workers may need, each with so many connections and those that have ended and still have
    /// bytes to send. (Over userspace iWARP these have as many places as connections.)
    pub(super) fn descriptors(&self, connections: u64) -> u64 {
        let lingering = match self.selection {
            Selection::Tcp => u64::from(LINGERING_MAX),
            Selection::Rdma(_) => connections,
        };
        self.workers as u64 * (connections + lingering)
    }

    /// Its workers.
    pub(super) fn ids(&self) -> impl Iterator<Item = WorkerId> + use<> {
        (self.first.0..self.first.0 + self.workers).map(WorkerId)
    }
}

/// What a listener takes now.
pub(crate) fn select(listener: &Listener) -> Result<Selection, OpenError> {
    if listener.transport == Transport::Tcp {
        return Ok(Selection::Tcp);
    }
    let provider = preference(listener.provider);
    let selection = ProviderSelection::of(listener.address.ip(), provider, listener.crc, verbs(listener));
    selection.map(Selection::Rdma)
}

/// Whether two listeners want one TCP port: over userspace iWARP, NVMe/RDMA takes one as NVMe/TCP does, and a wildcard
/// takes it on every address of its family.
pub(crate) fn want_one_tcp_port(one: &Listener, other: &Listener) -> bool {
    takes_tcp_port(one) && wants_tcp_port(other, one.address)
}

/// Whether a listener wants the port of this address, as TCP has it.
pub(crate) fn wants_tcp_port(listener: &Listener, address: SocketAddr) -> bool {
    let (a, b) = (listener.address, address);
    let overlap = a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified();
    let same_port = a.port() == b.port() && a.port() != 0 && a.is_ipv4() == b.is_ipv4();
    same_port && overlap && takes_tcp_port(listener)
}

/// Whether it listens over TCP: all do but those on an RDMA device.
pub(super) fn takes_tcp_port(listener: &Listener) -> bool {
    match select(listener) {
        Ok(Selection::Rdma(ProviderSelection::Verbs { .. })) => false,
        Ok(_) => true,
        Err(_) => listener.provider != ProviderChoice::Verbs,
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
    fn connections_that_end_have_descriptors_too() {
        let group = WorkerGroup::new(Selection::Tcp, WorkerId(0), 2);
        assert_eq!(group.descriptors(1024), 2 * (1024 + 256));
    }

    #[test]
    fn every_group_has_a_worker() {
        for (workers, groups, expected) in
            [(8, 1, &[8][..]), (8, 3, &[3, 3, 2]), (4, 2, &[2, 2]), (1, 3, &[1, 1, 1]), (0, 1, &[1])]
        {
            assert_eq!(shares(workers, groups).collect::<Vec<_>>(), expected, "{workers} for {groups}");
        }
        assert_eq!(shares(4, 0).count(), 0);
    }
}
