//! What befalls the target, its disk and the connections.

use super::network::{Network, Side};
use super::rng::Rng;
use super::target::{Mask, Served};
use super::world::World;
use std::time::Duration;

/// How many troubles are left, and which one there is.
#[derive(Debug)]
pub(super) struct Troubles {
    power_cuts_left: u32,
    left: u32,
    half_open_left: u32,
    /// When the last half-open connection ends.
    half_open_until: Duration,
    /// What befalls the disk at present, and until when.
    present: Option<(Trouble, Duration)>,
}

/// What befalls the target's disk, beside power cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// It answers nothing.
    Hang,
    /// A flush fails, and all flushes after it until the disk is opened anew.
    FailedFlush,
    /// The target comes back with another disk under the NSID.
    Other(Mask),
}

impl Troubles {
    /// Those of a seed: none in calm ones.
    pub(super) fn new(rng: &mut Rng, calm: bool) -> Self {
        let mut some = |most| if calm { 0 } else { rng.below(most) as u32 };
        Self {
            power_cuts_left: some(4),
            left: some(3),
            half_open_left: some(8),
            half_open_until: Duration::ZERO,
            present: None,
        }
    }

    /// Whether the disk is not itself, or something may yet arrive late.
    pub(super) fn last(&self, now: Duration) -> bool {
        self.present.is_some() || now <= self.half_open_until
    }
}

impl<N: Network> World<N> {
    /// Begins and ends troubles.
    pub(super) fn trouble(&mut self) {
        self.trouble_disk();
        let troubles = &mut self.troubles;
        if troubles.present.is_none() && troubles.power_cuts_left > 0 && self.rng.below(3000) == 0 {
            troubles.power_cuts_left -= 1;
            self.cut_power(Served::Disk);
        }
        if self.troubles.half_open_left > 0 && self.rng.below(50) == 0 && self.break_half_open() {
            self.troubles.half_open_left -= 1;
        }
    }

    fn trouble_disk(&mut self) {
        match self.troubles.present {
            Some((trouble, until)) if self.now >= until => {
                self.troubles.present = None;
                match trouble {
                    Trouble::Hang => self.target.disk.borrow_mut().set_hanging(false),
                    // The operator opens the disk anew.
                    Trouble::FailedFlush | Trouble::Other(_) => self.cut_power(Served::Disk),
                }
            }
            None if self.troubles.left > 0 && self.rng.below(500) == 0 => {
                self.troubles.left -= 1;
                let until = self.now + Duration::from_millis(1 + self.rng.below(9000));
                let mask = [Mask::Uuid, Mask::BlockSize, Mask::Shorter][self.rng.below(3) as usize];
                let trouble =
                    [Trouble::Hang, Trouble::FailedFlush, Trouble::Other(mask)][self.rng.below(3) as usize];
                if super::prints_events() {
                    println!("{:?}: {trouble:?} until {until:?}", self.now);
                }
                match trouble {
                    Trouble::Hang => self.target.disk.borrow_mut().set_hanging(true),
                    Trouble::FailedFlush => {
                        self.target.disk.borrow_mut().fail_next_flush();
                        for host in &mut self.hosts {
                            host.flushes_may_fail = Some(host.oracle.crashes());
                        }
                    }
                    // The machine with the disk loses its power; another takes its address.
                    Trouble::Other(mask) => self.cut_power(Served::Other(mask)),
                }
                self.troubles.present = Some((trouble, until));
            }
            _ => {}
        }
    }

    /// Cuts the power of the target's machine and of its disk.
    fn cut_power(&mut self, then: Served) {
        self.power_cuts += 1;
        if super::prints_events() {
            println!("{:?}: power cut", self.now);
        }
        self.hosts.iter_mut().for_each(|host| host.oracle.crash());
        self.target.cut_power(&mut self.network, then);
    }

    /// Breaks the connections of one path, or one of them, so that one side notices at once and the other later. Does
    /// nothing, and returns `false`, if nothing is under way to the other.
    fn break_half_open(&mut self) -> bool {
        let host = self.rng.below(self.hosts.len() as u64) as usize;
        let path = self.rng.below(self.hosts[host].paths.len() as u64) as usize;
        let mut connections = self.hosts[host].paths[path].connections(&self.network);
        if self.rng.percent(30) && !connections.is_empty() {
            connections = vec![connections[self.rng.below(connections.len() as u64) as usize]];
        }
        let host_notices = self.rng.percent(70);
        let (first, other) =
            if host_notices { (Side::Host, Side::Target) } else { (Side::Target, Side::Host) };
        if !connections.iter().any(|&connection| self.network.has_under_way(connection, other)) {
            return false;
        }
        // Short and long times are equally likely: less than a reconnect takes, or many operations.
        let magnitude = 12 + self.rng.below(9);
        let late = Duration::from_micros(self.rng.below(1 << magnitude));
        if host_notices {
            // What is under way arrives before the host can connect again, or after that.
            let back = if self.rng.percent(50) { late } else { Duration::ZERO };
            self.hosts[host].paths[path].cut(&mut self.network, self.now + back);
        }
        let notice = late + Duration::from_millis(self.rng.below(2000));
        if super::prints_events() {
            println!("{:?}: {connections:?} of host {host}, path {path}: the {first:?} notices", self.now);
            println!(
                "  a loss; {late:?} later the rest arrives, and {notice:?} later the other side notices"
            );
        }
        self.troubles.half_open_until = self.troubles.half_open_until.max(self.now + notice);
        for connection in connections {
            self.half_open += u32::from(self.network.break_half_open(connection, first, late, notice));
        }
        true
    }
}
