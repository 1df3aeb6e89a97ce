//! The connections that a group of workers has places for, and which machines have them.
//!
//! While more than half are taken, a machine that has its share of them gets no more: the rest is for others. Machines
//! count by address, not hosts by name: whoever may connect at all may do so under any name, also under another host's.
//! Of IPv6 by the whole address: the hosts of a network are mostly in one /64, and none of them may be refused a place
//! because the others have theirs.

use core::ops::{AddAssign, SubAssign};
use std::collections::HashMap;
use std::net::IpAddr;

/// The share of a machine: this part (1/n) of all places, or [`SHARE_MIN`].
const SHARE: u32 = 8;
/// What a host with 64 processors asks for. A target with few places may be for the hosts of one machine.
const SHARE_MIN: Queues = Queues { all: 65, io: 64 };

/// A number of queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Queues {
    /// Admin and I/O queues.
    pub all: u32,
    /// I/O queues.
    pub io: u32,
}

impl Queues {
    fn one(io: bool) -> Self {
        Self { all: 1, io: io.into() }
    }
}

impl AddAssign for Queues {
    fn add_assign(&mut self, other: Self) {
        self.all += other.all;
        self.io += other.io;
    }
}

impl SubAssign for Queues {
    fn sub_assign(&mut self, other: Self) {
        self.all -= other.all;
        self.io -= other.io;
    }
}

/// The places of a group of workers. Connected queues count, except those of discovery controllers: what is not
/// connected makes way, and so do they.
#[derive(Debug, Default)]
pub struct Places {
    total: Queues,
    taken: Queues,
    machines: HashMap<IpAddr, Queues>,
}

impl Places {
    /// A worker with so many places.
    pub fn add(&mut self, places: Queues) {
        self.total += places;
    }

    /// A queue of this machine is connected.
    pub fn take(&mut self, machine: IpAddr, io: bool) {
        self.taken += Queues::one(io);
        *self.machines.entry(machine).or_default() += Queues::one(io);
    }

    /// One of its queues is gone.
    pub fn give_back(&mut self, machine: IpAddr, io: bool) {
        self.taken -= Queues::one(io);
        if let Some(queues) = self.machines.get_mut(&machine) {
            *queues -= Queues::one(io);
            if queues.all == 0 {
                self.machines.remove(&machine);
            }
        }
    }

    /// How many more I/O queues this machine may connect; with those, how many queues of both kinds.
    #[must_use]
    pub fn left_for(&self, machine: IpAddr) -> Queues {
        let of_machine = self.machines.get(&machine).copied().unwrap_or_default();
        let left = |total: u32, taken: u32, of_machine: u32, share_min: u32| {
            let share = (total / SHARE).max(share_min);
            (total / 2).saturating_sub(taken).max(share.saturating_sub(of_machine))
        };
        let all = left(self.total.all, self.taken.all, of_machine.all, SHARE_MIN.all);
        let io = left(self.total.io, self.taken.io, of_machine.io, SHARE_MIN.io);
        Queues { all, io: io.min(all) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn one_machine_takes_half_and_others_their_share_of_the_rest() {
        let mut places = Places::default();
        (0..2).for_each(|_| places.add(Queues { all: 512, io: 512 }));
        let fill = |places: &mut Places, of: u8| {
            let mut taken = 0;
            while places.left_for(machine(of)).io > 0 {
                places.take(machine(of), true);
                taken += 1;
            }
            taken
        };
        let taken: Vec<u32> = (0..4).map(|of| fill(&mut places, of)).collect();
        assert_eq!(taken, [512, 128, 128, 128]);
        places.give_back(machine(0), true);
        assert_eq!(places.left_for(machine(0)).all, 0, "it has more than its share");
    }

    #[test]
    fn few_places_are_for_one_host() {
        let mut places = Places::default();
        places.add(Queues { all: 16, io: 3 });
        assert_eq!(places.left_for(machine(1)), Queues { all: 65, io: 64 });
        (0..10).for_each(|_| places.take(machine(1), true));
        (0..10).for_each(|_| places.give_back(machine(1), true));
        assert!(places.machines.is_empty());
    }
}
