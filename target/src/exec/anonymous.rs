//! Queues that anyone may have, in the order in which they make way for others: those that have brought no Connect yet,
//! and those of discovery controllers.
//!
//! Whoever wants a place may make it look here once for each connection that it opens: no step grows with the number of
//! queues.

use crate::limits::{UNCONNECTED_CROWD, UNCONNECTED_GRACE};
use core::cmp::Reverse;
use core::ops::RangeInclusive;
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

/// How many queues a machine has, since when the oldest is there, and which machine it is.
type Crowd = (u32, Reverse<Duration>, u32);

#[derive(Debug, Clone, Copy)]
struct Entry {
    machine: u32,
    since: Duration,
    io: bool,
}

/// Queues of a worker.
#[derive(Debug, Default)]
pub struct Anonymous {
    queues: HashMap<u32, Entry>,
    /// How many each machine has.
    counts: HashMap<u32, u32>,
    /// Machines by how many they have, among those with as many by the age of their oldest.
    crowds: BTreeSet<Crowd>,
    /// Queues by age, and those of each machine by age: connections for I/O queues apart from the others.
    by_age: [BTreeSet<(Duration, u32)>; 2],
    by_machine: [BTreeSet<(u32, Duration, u32)>; 2],
}

impl Anonymous {
    /// One more, of this machine.
    pub fn add(&mut self, queue: u32, machine: u32, since: Duration, io: bool) {
        self.change(machine, |this| {
            this.queues.insert(queue, Entry { machine, since, io });
            this.by_age[usize::from(io)].insert((since, queue));
            this.by_machine[usize::from(io)].insert((machine, since, queue));
            *this.counts.entry(machine).or_default() += 1;
        });
    }

    /// It is gone, or not one of them any more.
    pub fn remove(&mut self, queue: u32) {
        let Some(Entry { machine, since, io }) = self.queues.remove(&queue) else { return };
        self.change(machine, |this| {
            this.by_age[usize::from(io)].remove(&(since, queue));
            this.by_machine[usize::from(io)].remove(&(machine, since, queue));
            *this.counts.entry(machine).or_default() -= 1;
            if this.count(machine) == 0 {
                this.counts.remove(&machine);
            }
        });
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// How many this machine has.
    #[must_use]
    pub fn count(&self, machine: u32) -> u32 {
        self.counts.get(&machine).copied().unwrap_or(0)
    }

    /// Changes what there is of a machine.
    fn change(&mut self, machine: u32, change: impl FnOnce(&mut Self)) {
        if let Some(before) = self.crowd(machine) {
            self.crowds.remove(&before);
        }
        change(self);
        self.crowds.extend(self.crowd(machine));
    }

    fn crowd(&self, machine: u32) -> Option<Crowd> {
        let (since, _) = self.oldest_of(machine, 0..=1)?;
        Some((self.count(machine), Reverse(since), machine))
    }

    fn oldest_of(&self, machine: u32, kinds: RangeInclusive<usize>) -> Option<(Duration, u32)> {
        let of_kind = |kind: usize| {
            let from = (machine, Duration::ZERO, 0);
            self.by_machine[kind].range(from..=(machine, Duration::MAX, u32::MAX)).next()
        };
        kinds.filter_map(of_kind).map(|&(_, since, queue)| (since, queue)).min()
    }

    /// The oldest queue of the machine that has most: of the one that asks, which has its new one already, if no other
    /// has more; but never that new one, unless there is no other.
    #[must_use]
    pub fn oldest_of_most(&self, asking: u32) -> Option<u32> {
        let own = self.count(asking);
        let is_old = |&&(_, _, machine): &&Crowd| machine != asking || own > 1;
        let &(most, _, machine) = self.crowds.iter().rev().find(is_old).or(self.crowds.last())?;
        let machine = if own > 1 && own == most { asking } else { machine };
        self.oldest_of(machine, 0..=1).map(|(_, queue)| queue)
    }

    /// The queue that makes way for one more of the machine that asks (`None`: one without queues): the oldest of the
    /// largest crowd, or else the oldest of all, once it is old enough.
    #[must_use]
    pub fn first_to_yield(&self, now: Duration, asking: Option<u32>, among: Among) -> Option<u32> {
        let kinds = match among {
            Among::Kind { io } => usize::from(io)..=usize::from(io),
            Among::Own | Among::Any => 0..=1,
        };
        let oldest_of = |machine: u32| self.oldest_of(machine, kinds.clone());
        let oldest = if among == Among::Own {
            oldest_of(asking?)
        } else {
            let of_asking = asking.map_or(0, |machine| self.count(machine));
            let crowds = self.crowds.iter().rev().take_while(|&&(count, ..)| {
                count >= UNCONNECTED_CROWD && count >= of_asking.saturating_mul(2)
            });
            if let Some((_, queue)) = crowds.map(|&(.., machine)| machine).find_map(oldest_of) {
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
        let mut unconnected = Anonymous::default();
        unconnected.add(3, 0, SECOND, false);
        unconnected.add(1, 1, 2 * SECOND, true);
        let first = |unconnected: &Anonymous, at: u32, among| {
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
    fn oldest_of_the_machine_with_most_is_found_in_any_order() {
        let mut discovery = Anonymous::default();
        assert_eq!(discovery.oldest_of_most(1), None);
        discovery.add(4, 1, 2 * SECOND, false);
        discovery.add(2, 3, SECOND, true);
        assert_eq!(discovery.oldest_of_most(9), Some(2), "as many each: the oldest of all");
        assert_eq!(discovery.oldest_of_most(1), Some(2), "it has none but the new one");
        discovery.add(1, 3, SECOND, true);
        discovery.add(7, 1, 3 * SECOND, true);
        assert_eq!(discovery.oldest_of_most(1), Some(4), "as many each: its own");
        discovery.remove(1);
        assert_eq!((discovery.oldest_of_most(9), discovery.oldest_of_most(3)), (Some(4), Some(4)));
        discovery.remove(4);
        discovery.add(8, 1, 4 * SECOND, false);
        assert_eq!((discovery.oldest_of_most(9), discovery.len()), (Some(7), 3));
        [2, 7, 8].into_iter().for_each(|queue| discovery.remove(queue));
        assert!(discovery.is_empty() && discovery.crowds.is_empty() && discovery.counts.is_empty());
    }

    #[test]
    fn largest_crowd_yields_at_once_to_one_with_half_as_many() {
        let mut unconnected = Anonymous::default();
        (0..8).for_each(|at| unconnected.add(at, 7, SECOND, false));
        (8..20).for_each(|at| unconnected.add(at, 5, SECOND, false));
        (20..26).for_each(|at| unconnected.add(at, 6, SECOND, false));
        let first =
            |unconnected: &Anonymous, asking| unconnected.first_to_yield(SECOND, Some(asking), Among::Any);
        assert_eq!((first(&unconnected, 6), first(&unconnected, 7)), (Some(8), None));
        (8..13).for_each(|queue| unconnected.remove(queue));
        assert_eq!((first(&unconnected, 6), first(&unconnected, 9)), (None, Some(0)));
        unconnected.remove(0);
        assert_eq!((unconnected.count(7), unconnected.count(5)), (7, 7));
        assert_eq!(first(&unconnected, 9), None, "seven are no crowd");
    }
}
