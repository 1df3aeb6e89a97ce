//! Connections of a listener whose MPA request has not come yet: how many there are, and which yields to one more.
//!
//! An idle connection costs its sender nothing, so new connections do not wait for idle ones to time out: when places
//! are short, the oldest is closed. Connections are counted by address, so that an address with many of them displaces
//! its own.

use crate::config::IwarpConfig;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

#[derive(Debug, Default)]
pub(crate) struct HalfOpen {
    /// By the name of the pending connection, oldest first.
    connections: VecDeque<(u32, IpAddr)>,
    counts: HashMap<IpAddr, usize>,
}

impl HalfOpen {
    pub(crate) fn add(&mut self, key: u32, address: IpAddr) {
        self.connections.push_back((key, address));
        *self.counts.entry(address).or_default() += 1;
    }

    pub(crate) fn remove(&mut self, key: u32) {
        let Some(at) = self.connections.iter().position(|&(other, _)| other == key) else { return };
        let Some((_, address)) = self.connections.remove(at) else { return };
        if let Some(count) = self.counts.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&address);
            }
        }
    }

    /// Which connection must end before one more from `address` has a place.
    pub(crate) fn yields_to(&self, address: IpAddr, config: &IwarpConfig) -> Option<u32> {
        let has_too_many =
            |of: IpAddr| self.counts.get(&of).is_some_and(|&count| count >= config.half_open_per_address);
        let oldest = |wanted: &dyn Fn(IpAddr) -> bool| self.connections.iter().find(|(_, of)| wanted(*of));
        let len = self.connections.len();
        let victim = if len > config.half_open_max / 2 && has_too_many(address) {
            oldest(&|of| of == address)
        } else if len >= config.half_open_max {
            oldest(&has_too_many).or_else(|| self.connections.front())
        } else {
            None
        };
        victim.map(|&(key, _)| key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn address_with_too_many_connections_displaces_its_own() {
        let config = IwarpConfig { half_open_max: 8, half_open_per_address: 2, ..IwarpConfig::default() };
        let mut half_open = HalfOpen::default();
        half_open.add(0, address(1));
        (1..5).for_each(|key| half_open.add(key, address(2)));
        assert_eq!(half_open.yields_to(address(1), &config), None);
        assert_eq!(half_open.yields_to(address(2), &config), Some(1), "more than half is taken");
        half_open.remove(1);
        assert_eq!(half_open.yields_to(address(2), &config), None, "there is room again");
        (5..9).for_each(|key| half_open.add(key, address(key as u8)));
        assert_eq!(half_open.yields_to(address(9), &config), Some(2), "full: of the one that has most");
        half_open.remove(2);
        half_open.remove(3);
        (9..11).for_each(|key| half_open.add(key, address(key as u8)));
        assert_eq!(
            half_open.yields_to(address(11), &config),
            Some(0),
            "full, and nobody has many: the oldest"
        );
    }

    #[test]
    fn nothing_stays_of_what_was_removed() {
        let mut half_open = HalfOpen::default();
        (0..3).for_each(|key| half_open.add(key, address(1)));
        (0..3).for_each(|key| half_open.remove(key));
        half_open.remove(7);
        assert!(half_open.connections.is_empty() && half_open.counts.is_empty());
    }
}
