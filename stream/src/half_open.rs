//! Connections of a listener that have not said yet what they want: how many there are, and which yields to one more.
//!
//! An idle connection costs its sender nothing, so new connections do not wait for idle ones to time out: when places
//! are short, the oldest is closed. Connections are counted by [machine](machine_of), so that one with many of them
//! displaces its own.

use crate::machine::machine_of;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// How many half-open connections a listener has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HalfOpenLimits {
    /// At once. Beyond, the oldest of the machine that has too many ends.
    pub max: usize,
    /// How many of them one machine keeps while more than half of the places are taken: its oldest yield to its newer
    /// ones.
    pub per_machine: usize,
}

impl Default for HalfOpenLimits {
    fn default() -> Self {
        Self { max: 1024, per_machine: 8 }
    }
}

/// The connections of a listener whose first message has not come: an MPA request, or an ICReq and a Connect.
#[derive(Debug)]
pub struct HalfOpen {
    limits: HalfOpenLimits,
    /// By the user's key, with their machines; oldest first.
    connections: VecDeque<(u32, IpAddr)>,
    counts: HashMap<IpAddr, usize>,
}

impl HalfOpen {
    /// None yet.
    #[must_use]
    pub fn new(limits: HalfOpenLimits) -> Self {
        Self { limits, connections: VecDeque::new(), counts: HashMap::new() }
    }

    /// One more, under a key of the user's.
    pub fn add(&mut self, key: u32, address: IpAddr) {
        let address = machine_of(address);
        self.connections.push_back((key, address));
        *self.counts.entry(address).or_default() += 1;
    }

    /// It has said what it wants, or is gone. A key that is not known changes nothing.
    pub fn remove(&mut self, key: u32) {
        let Some(at) = self.connections.iter().position(|&(other, _)| other == key) else { return };
        let Some((_, address)) = self.connections.remove(at) else { return };
        if let Some(count) = self.counts.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&address);
            }
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Which connection must end before one more from `address` has a place.
    #[must_use]
    pub fn yields_to(&self, address: IpAddr) -> Option<u32> {
        let HalfOpenLimits { max, per_machine } = self.limits;
        let address = machine_of(address);
        let len = self.connections.len();
        if len > max / 2 && self.counts.get(&address).is_some_and(|&count| count >= per_machine) {
            self.connections.iter().find(|&&(_, of)| of == address).map(|&(key, _)| key)
        } else if len >= max {
            self.first_to_yield()
        } else {
            None
        }
    }

    /// Which connection ends first, whoever wants its place or its descriptor: the oldest of the machines that have too
    /// many, or else of all.
    #[must_use]
    pub fn first_to_yield(&self) -> Option<u32> {
        let has_too_many =
            |of: &IpAddr| self.counts.get(of).is_some_and(|&count| count >= self.limits.per_machine);
        let of_many = self.connections.iter().find(|(_, of)| has_too_many(of));
        of_many.or_else(|| self.connections.front()).map(|&(key, _)| key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn machine_with_too_many_connections_displaces_its_own() {
        let mut half_open = HalfOpen::new(HalfOpenLimits { max: 8, per_machine: 2 });
        half_open.add(0, address(1));
        (1..5).for_each(|key| half_open.add(key, address(2)));
        assert_eq!(half_open.yields_to(address(1)), None);
        assert_eq!(half_open.yields_to(address(2)), Some(1), "more than half is taken");
        half_open.remove(1);
        assert_eq!(half_open.yields_to(address(2)), None, "there is room again");
        (5..9).for_each(|key| half_open.add(key, address(key as u8)));
        assert_eq!(half_open.yields_to(address(9)), Some(2), "full: of the one that has most");
        half_open.remove(2);
        half_open.remove(3);
        (9..11).for_each(|key| half_open.add(key, address(key as u8)));
        assert_eq!(half_open.yields_to(address(11)), Some(0), "full, and nobody has many: the oldest");
    }

    #[test]
    fn machine_keeps_as_many_as_it_may_while_places_are_short() {
        let mut half_open = HalfOpen::new(HalfOpenLimits { max: 8, per_machine: 2 });
        (0..4).for_each(|key| half_open.add(key, address(key as u8)));
        half_open.add(4, address(9));
        assert_eq!(half_open.yields_to(address(9)), None, "this is its second");
        half_open.add(5, address(9));
        assert_eq!(half_open.yields_to(address(9)), Some(4), "it has two");
        assert_eq!(half_open.yields_to(address(8)), None);
    }

    #[test]
    fn addresses_of_one_ipv6_network_displace_each_other() {
        let mut half_open = HalfOpen::new(HalfOpenLimits { max: 4, per_machine: 2 });
        half_open.add(0, address(1));
        for key in 1..4 {
            half_open.add(key, IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, key as u16]));
        }
        assert_eq!(half_open.yields_to(address(2)), Some(1));
        assert_eq!(half_open.yields_to("2001:db8::9".parse().unwrap()), Some(1));
    }

    #[test]
    fn nothing_stays_of_what_was_removed() {
        let mut half_open = HalfOpen::new(HalfOpenLimits::default());
        (0..3).for_each(|key| half_open.add(key, address(1)));
        (0..3).for_each(|key| half_open.remove(key));
        half_open.remove(7);
        assert!(half_open.connections.is_empty() && half_open.counts.is_empty());
    }
}
