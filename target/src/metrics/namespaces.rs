//! What is counted of namespaces.

use super::histogram::{Histogram, Times};
use super::pending::{InFlight, Pending};
use crate::telemetry::Counter;
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{Nqn, Status};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// What a command does, as far as commands are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush.
    Flush,
    /// Any other I/O command.
    Other,
}

impl Kind {
    /// All.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Flush, Self::Other];

    /// The kind of a command of the NVM command set.
    #[must_use]
    pub fn of(opcode: u8) -> Self {
        match NvmOpcode(opcode) {
            NvmOpcode::READ => Self::Read,
            NvmOpcode::WRITE => Self::Write,
            NvmOpcode::FLUSH => Self::Flush,
            _ => Self::Other,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Other => "other",
        }
    }
}

/// Status Code Types, by their number: those of vendors are one.
pub const STATUS_TYPES: [&str; 5] = ["generic", "command", "media", "path", "vendor"];

/// The place of a status in [`STATUS_TYPES`].
#[must_use]
pub fn status_type(status: Status) -> usize {
    usize::from(status.sct()).min(STATUS_TYPES.len() - 1)
}

/// What one worker counts of a namespace.
#[derive(Debug, Default)]
#[repr(align(128))] // two cache lines: no worker's counting slows another's
pub struct Measures {
    /// Commands that were answered, by [`Kind`].
    pub operations: [Counter; Kind::ALL.len()],
    /// Bytes read and written.
    pub bytes: [Counter; 2],
    /// Commands that failed, by [`STATUS_TYPES`].
    pub errors: [Counter; STATUS_TYPES.len()],
    /// From a command's arrival to its response: reads and writes.
    pub latency: [Histogram; 2],
}

/// What all workers counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// [`Measures::operations`].
    pub operations: [u64; Kind::ALL.len()],
    /// [`Measures::bytes`].
    pub bytes: [u64; 2],
    /// [`Measures::errors`].
    pub errors: [u64; STATUS_TYPES.len()],
    /// [`Measures::latency`].
    pub latency: [Times; 2],
}

/// Adds what counters have.
pub(super) fn add_all(sums: &mut [u64], counters: &[Counter]) {
    for (sum, counter) in sums.iter_mut().zip(counters) {
        *sum = sum.wrapping_add(counter.get());
    }
}

impl Totals {
    /// Adds what a worker counted.
    pub fn add(&mut self, measures: &Measures) {
        add_all(&mut self.operations, &measures.operations);
        add_all(&mut self.bytes, &measures.bytes);
        add_all(&mut self.errors, &measures.errors);
        for (times, histogram) in self.latency.iter_mut().zip(&measures.latency) {
            times.add(histogram);
        }
    }
}

/// A namespace on one worker.
#[derive(Debug)]
pub struct Device {
    /// What its disk has.
    pub pending: Pending,
    /// Where its commands are counted, if they are: several namespaces may have one place.
    pub measures: Option<Arc<Measures>>,
}

/// A namespace; by default on no worker.
#[derive(Debug, Default)]
pub struct Namespace {
    /// By worker.
    devices: Box<[Arc<Device>]>,
    /// Whether it is counted by itself.
    apart: bool,
}

impl Namespace {
    /// On a worker.
    #[must_use]
    pub fn device(&self, worker: usize) -> &Arc<Device> {
        &self.devices[worker]
    }

    /// What its disk has, at that time in microseconds.
    #[must_use]
    pub fn in_flight(&self, now_us: u64) -> InFlight {
        self.devices.iter().map(|device| device.pending.read(now_us)).fold(InFlight::default(), InFlight::and)
    }

    /// What was counted of it, if it is counted by itself.
    #[must_use]
    pub fn totals(&self) -> Option<Totals> {
        self.apart.then(|| sum(self.devices.iter().filter_map(|device| device.measures.as_ref())))
    }
}

fn sum<'a>(measures: impl Iterator<Item = &'a Arc<Measures>>) -> Totals {
    measures.fold(Totals::default(), |mut totals, measures| {
        totals.add(measures);
        totals
    })
}

/// The namespaces that there are.
#[derive(Debug)]
pub struct Namespaces {
    workers: usize,
    /// So many are counted by themselves; none is counted without.
    apart_max: Option<usize>,
    /// Where the others are counted, by worker.
    other: Box<[Arc<Measures>]>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    namespaces: BTreeMap<(Nqn, u32), Arc<Namespace>>,
    /// What was counted of those that are gone.
    gone: Totals,
}

impl Namespaces {
    /// None yet, for up to so many workers.
    #[must_use]
    pub fn new(workers: usize, apart_max: Option<usize>) -> Self {
        let other = if apart_max.is_some() { workers } else { 0 };
        Self {
            workers,
            apart_max,
            other: (0..other).map(|_| Arc::default()).collect(),
            table: Mutex::default(),
        }
    }

    /// The namespace, which is counted from now on.
    #[must_use]
    pub fn add(&self, nqn: Nqn, nsid: u32) -> Arc<Namespace> {
        let mut table = self.table();
        let apart = table.namespaces.values().filter(|namespace| namespace.apart).count();
        let apart = self.apart_max.is_some_and(|max| apart < max);
        let measures =
            |worker: usize| if apart { Some(Arc::default()) } else { self.other.get(worker).cloned() };
        let device = |worker| Arc::new(Device { pending: Pending::default(), measures: measures(worker) });
        let make = || Arc::new(Namespace { devices: (0..self.workers).map(device).collect(), apart });
        Arc::clone(table.namespaces.entry((nqn, nsid)).or_insert_with(make))
    }

    /// The namespace is gone. What was counted of it stays in [`Namespaces::other`].
    pub fn remove(&self, nqn: Nqn, nsid: u32) {
        let mut table = self.table();
        let Some(gone) = table.namespaces.remove(&(nqn, nsid)).filter(|namespace| namespace.apart) else {
            return;
        };
        for measures in gone.devices.iter().filter_map(|device| device.measures.as_ref()) {
            table.gone.add(measures);
        }
    }

    /// All.
    #[must_use]
    pub fn all(&self) -> Vec<((Nqn, u32), Arc<Namespace>)> {
        self.table().namespaces.iter().map(|(key, namespace)| (*key, Arc::clone(namespace))).collect()
    }

    /// What was counted of namespaces that are not, or no longer, counted by themselves.
    #[must_use]
    pub fn other(&self) -> Totals {
        let mut totals = self.table().gone.clone();
        self.other.iter().for_each(|measures| totals.add(measures));
        totals
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no panic happened at the table of namespaces")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nqn() -> Nqn {
        "nqn.2026-11.com.example:disk1".parse().unwrap()
    }

    fn count(namespace: &Namespace, worker: usize) {
        namespace.device(worker).measures.as_ref().unwrap().operations[0].add(1);
    }

    #[test]
    fn namespaces_beyond_the_bound_are_summed() {
        let namespaces = Namespaces::new(2, Some(1));
        let (first, second) = (namespaces.add(nqn(), 1), namespaces.add(nqn(), 2));
        [0, 1].iter().for_each(|&worker| count(&first, worker));
        count(&second, 1);
        assert_eq!(first.totals().unwrap().operations[0], 2);
        assert_eq!((second.totals(), namespaces.other().operations[0]), (None, 1));
        // What was counted of one that goes is not lost, and its place is free.
        namespaces.remove(nqn(), 1);
        assert_eq!(namespaces.other().operations[0], 3);
        assert_eq!(namespaces.add(nqn(), 1).totals(), Some(Totals::default()));
    }

    #[test]
    fn nothing_is_counted_where_nobody_asks_for_it() {
        let namespaces = Namespaces::new(1, None);
        assert!(namespaces.add(nqn(), 1).device(0).measures.is_none());
        assert_eq!(namespaces.other(), Totals::default());
    }
}
