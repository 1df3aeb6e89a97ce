//! Queues that have brought no Connect yet, in the order in which they make way for others.
//!
//! Whoever wants a place may make it look here once for each connection that it opens: no step grows with the number of
//! queues.

use crate::limits::{UNCONNECTED_CROWD, UNCONNECTED_GRACE};
use core::time::Duration;
use std::collections::{BTreeSet, HashMap};

/// Whose places may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Among {
    /// Those of the machine that wants one more.
    Own,
    /// Those whose connection was made for an I/O queue, or all others.
    Kind {
        /// For an I/O queue.
        io: bool,
    },
    /// All.
    Any,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    machine: u32,
    since: Duration,
    io: bool,
}

/// The unconnected queues of a worker.
#[derive(Debug, Default)]
pub struct Unconnected {
    queues: HashMap<u32, Entry>,
    /// How many each machine has.
    counts: HashMap<u32, u32>,
    /// Machines by how many they have.
    crowds: BTreeSet<(u32, u32)>,
    /// Queues by age, and those of each machine by age: connections for I/O queues apart from the others.
    by_age: [BTreeSet<(Duration, u32)>; 2],
    by_machine: [BTreeSet<(u32, Duration, u32)>; 2],
}

impl Unconnected {
    /// This queue of this machine waits for its Connect from now on.
    pub fn add(&mut self, queue: u32, machine: u32, since: Duration, io: bool) {
        self.queues.insert(queue, Entry { machine, since, io });
        self.by_age[usize::from(io)].insert((since, queue));
        self.by_machine[usize::from(io)].insert((machine, since, queue));
        self.set_count(machine, self.count(machine) + 1);
    }

    /// It waits no more.
    pub fn remove(&mut self, queue: u32) {
        let Some(Entry { machine, since, io }) = self.queues.remove(&queue) else { return };
        self.by_age[usize::from(io)].remove(&(since, queue));
        self.by_machine[usize::from(io)].remove(&(machine, since, queue));
        self.set_count(machine, self.count(machine) - 1);
    }

    /// How many this machine has.
    #[must_use]
    pub fn count(&self, machine: u32) -> u32 {
        self.counts.get(&machine).copied().unwrap_or(0)
    }

    fn set_count(&mut self, machine: u32, count: u32) {
        let before =
            if count == 0 { self.counts.remove(&machine) } else { self.counts.insert(machine, count) };
        if let Some(before) = before {
            self.crowds.remove(&(before, machine));
        }
        if count > 0 {
            self.crowds.insert((count, machine));
        }
    }

    /// The queue that makes way for one more of the machine that asks (`None`: one without queues): the oldest of the
    /// largest crowd, or else the oldest of all, once it is old enough.
    #[must_use]
    pub fn first_to_yield(&self, now: Duration, asking: Option<u32>, among: Among) -> Option<u32> {
        let kinds = match among {
            Among::Kind { io } => usize::from(io)..=usize::from(io),
            Among::Own | Among::Any => 0..=1,
        };
        let oldest_of = |machine: u32| {
            let of_kind = |kind: usize| {
                let from = (machine, Duration::ZERO, 0);
                self.by_machine[kind].range(from..=(machine, Duration::MAX, u32::MAX)).next()
            };
            kinds.clone().filter_map(of_kind).map(|&(_, since, queue)| (since, queue)).min()
        };
        let oldest = if among == Among::Own {
            oldest_of(asking?)
        } else {
            let of_asking = asking.map_or(0, |machine| self.count(machine));
            let crowds = self.crowds.iter().rev().take_while(|&&(count, _)| {
                count >= UNCONNECTED_CROWD && count >= of_asking.saturating_mul(2)
            });
            if let Some((_, queue)) = crowds.map(|&(_, machine)| machine).find_map(oldest_of) {
                return Some(queue);
            }
            kinds.clone().filter_map(|kind| self.by_age[kind].first().copied()).min()
        };
        let (since, queue) = oldest?;
        (now.saturating_sub(since) >= UNCONNECTED_GRACE).then_some(queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn oldest_yields_once_it_is_old_enough() {
        let mut unconnected = Unconnected::default();
        unconnected.add(3, 0, SECOND, false);
        unconnected.add(1, 1, 2 * SECOND, true);
        let first = |unconnected: &Unconnected, at: u32, among| {
            unconnected.first_to_yield(at * SECOND + SECOND / 2, Some(1), among)
        };
        assert_eq!(first(&unconnected, 1, Among::Any), None);
        assert_eq!(first(&unconnected, 2, Among::Any), Some(3));
        assert_eq!(first(&unconnected, 2, Among::Kind { io: true }), None);
        assert_eq!(first(&unconnected, 3, Among::Kind { io: true }), Some(1));
        assert_eq!(first(&unconnected, 2, Among::Own), None);
        assert_eq!(first(&unconnected, 3, Among::Own), Some(1));
        assert_eq!(unconnected.first_to_yield(9 * SECOND, None, Among::Own), None);
        unconnected.remove(3);
        unconnected.remove(3);
        assert_eq!(first(&unconnected, 9, Among::Any), Some(1));
        unconnected.remove(1);
        assert_eq!(first(&unconnected, 9, Among::Any), None);
    }

    #[test]
    fn largest_crowd_yields_at_once_to_one_with_half_as_many() {
        let mut unconnected = Unconnected::default();
        (0..8).for_each(|at| unconnected.add(at, 7, SECOND, false));
        (8..20).for_each(|at| unconnected.add(at, 5, SECOND, false));
        (20..26).for_each(|at| unconnected.add(at, 6, SECOND, false));
        let first =
            |unconnected: &Unconnected, asking| unconnected.first_to_yield(SECOND, Some(asking), Among::Any);
        assert_eq!((first(&unconnected, 6), first(&unconnected, 7)), (Some(8), None));
        (8..13).for_each(|queue| unconnected.remove(queue));
        assert_eq!((first(&unconnected, 6), first(&unconnected, 9)), (None, Some(0)));
        unconnected.remove(0);
        assert_eq!((unconnected.count(7), unconnected.count(5)), (7, 7));
        assert_eq!(first(&unconnected, 9), None, "seven are no crowd");
    }
}
