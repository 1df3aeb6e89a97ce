//! What is counted of hosts: of each by subsystem.

use super::namespaces::{Kind, add_all};
use crate::telemetry::Counter;
use nvme_proto::Nqn;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// What one worker counts of a host.
#[derive(Debug, Default)]
#[repr(align(64))] // a cache line: no worker's counting slows another's
pub struct HostMeasures {
    /// Commands that were answered, by [`Kind`].
    pub operations: [Counter; Kind::ALL.len()],
    /// Bytes read and written.
    pub bytes: [Counter; 2],
    /// Commands that failed.
    pub errors: [Counter; 1],
}

/// What all workers counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostTotals {
    /// [`HostMeasures::operations`].
    pub operations: [u64; Kind::ALL.len()],
    /// [`HostMeasures::bytes`].
    pub bytes: [u64; 2],
    /// [`HostMeasures::errors`].
    pub errors: [u64; 1],
}

/// A host, at one subsystem.
#[derive(Debug)]
pub struct Host {
    /// Its name; none where it stands for several.
    pub name: Option<(Nqn, Nqn)>,
    /// By worker.
    measures: Box<[HostMeasures]>,
}

impl Host {
    fn new(name: Option<(Nqn, Nqn)>, workers: usize) -> Arc<Self> {
        Arc::new(Self { name, measures: (0..workers).map(|_| HostMeasures::default()).collect() })
    }

    /// What a worker counts of it.
    #[must_use]
    pub fn measures(&self, worker: usize) -> &HostMeasures {
        &self.measures[worker]
    }

    fn add_to(&self, totals: &mut HostTotals) {
        for measures in &self.measures {
            add_all(&mut totals.operations, &measures.operations);
            add_all(&mut totals.bytes, &measures.bytes);
            add_all(&mut totals.errors, &measures.errors);
        }
    }

    /// What was counted of it.
    #[must_use]
    pub fn totals(&self) -> HostTotals {
        let mut totals = HostTotals::default();
        self.add_to(&mut totals);
        totals
    }
}

/// The hosts that have connected.
#[derive(Debug)]
pub struct Hosts {
    workers: usize,
    /// So many are counted by themselves.
    apart_max: usize,
    /// Stands for those that are not.
    other: Arc<Host>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// By host NQN and subsystem NQN.
    hosts: BTreeMap<(Nqn, Nqn), Arc<Host>>,
    /// What was counted of those that made way.
    gone: HostTotals,
}

impl Hosts {
    /// None yet, for up to so many workers.
    #[must_use]
    pub fn new(workers: usize, apart_max: usize) -> Self {
        Self { workers, apart_max, other: Host::new(None, workers), table: Mutex::default() }
    }

    /// A queue of the host was connected: it is counted where this says, for as long as the queue holds it. One that is
    /// not connected makes way when there are as many as may be.
    #[must_use]
    pub fn connect(&self, host: Nqn, subsystem: Nqn) -> Arc<Host> {
        let mut table = self.table();
        let name = (host, subsystem);
        if let Some(host) = table.hosts.get(&name) {
            return Arc::clone(host);
        }
        if table.hosts.len() >= self.apart_max {
            // A queue would hold it, too.
            let idle =
                table.hosts.iter().find(|(_, host)| Arc::strong_count(host) == 1).map(|(&name, _)| name);
            let Some(idle) = idle else { return Arc::clone(&self.other) };
            if let Some(gone) = table.hosts.remove(&idle) {
                gone.add_to(&mut table.gone);
            }
        }
        let host = Host::new(Some(name), self.workers);
        table.hosts.insert(name, Arc::clone(&host));
        host
    }

    /// All that are counted by themselves.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Host>> {
        self.table().hosts.values().cloned().collect()
    }

    /// What was counted of hosts that are not, or no longer, counted by themselves.
    #[must_use]
    pub fn other(&self) -> HostTotals {
        let mut totals = self.table().gone.clone();
        self.other.add_to(&mut totals);
        totals
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no panic happened at the table of hosts")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nqn(name: &str) -> Nqn {
        format!("nqn.2026-11.com.example:{name}").parse().unwrap()
    }

    #[test]
    fn host_that_left_makes_way_and_its_counts_stay() {
        let hosts = Hosts::new(2, 1);
        let first = hosts.connect(nqn("a"), nqn("disk"));
        first.measures(0).operations[1].add(3);
        first.measures(1).bytes[1].add(4096);
        // It is connected: others are summed.
        let second = hosts.connect(nqn("b"), nqn("disk"));
        assert_eq!(second.name, None);
        second.measures(0).operations[1].add(1);
        assert_eq!((first.totals().operations[1], hosts.other().operations[1]), (3, 1));
        drop(first);
        assert_eq!(hosts.connect(nqn("c"), nqn("disk")).name, Some((nqn("c"), nqn("disk"))));
        assert_eq!((hosts.other().operations[1], hosts.other().bytes[1]), (4, 4096));
    }
}
