//! What befalls the targets, their disk, the connections and the initiators.

use super::area::Area;
use super::command::Command;
use super::host::Host;
use super::network::{Network, Side};
use super::reservation::Host as HostIdentifier;
use super::target::{Mask, Served, Target};
use super::world::{Shape, World};
use super::{Limits, Part};
use crate::rng::Rng;
use nvme_proto::nvm::reservation::PersistChange;
use nvmf_subsystem::{ReservationCommand, WriteProtection};
use std::time::Duration;

/// How many troubles are left, and which one there is.
#[derive(Debug)]
pub(super) struct Troubles {
    power_cuts_left: u32,
    left: u32,
    half_open_left: u32,
    kills_left: u32,
    /// Changes of the operator's.
    changes_left: u32,
    /// Commands for reservations.
    commands_left: u32,
    /// Write protections by hosts.
    protections_left: u32,
    /// Losses of every route of a path.
    outages_left: u32,
    /// Initiators that are killed.
    takeovers_left: u32,
    /// No other disk comes in place of the hosts'.
    own_disk_only: bool,
    /// When the last half-open connection ends.
    half_open_until: Duration,
    /// What befalls the disk at present, and until when.
    present: Option<(Trouble, Duration)>,
    /// The target that serves another disk, of several.
    foreign: usize,
    /// How long a disk hangs at most: where two targets have one, nobody knows of what hangs at the other.
    longest_hang: u64,
}

/// What a seed has chosen.
pub(super) struct Seed<'a> {
    pub(super) calm: bool,
    pub(super) contested: bool,
    pub(super) own_disk_only: bool,
    /// If there are several routes.
    pub(super) shape: Option<&'a Shape>,
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
    pub(super) fn new(rng: &mut Rng, seed: &Seed<'_>) -> Self {
        let &Seed { calm, contested, own_disk_only, shape } = seed;
        let commands_left = if contested { 5 + rng.below(40) as u32 } else { 0 };
        let mut some = |most| if calm { 0 } else { rng.below(most) as u32 };
        let [power_cuts_left, left, half_open_left, kills_left, changes_left] =
            [4, 3, 8, 2, 3].map(&mut some);
        let targets = shape.map_or(1, |shape| shape.targets);
        let [outages_left, takeovers_left] = [6, 5].map(|most| if shape.is_some() { some(most) } else { 0 });
        Self {
            power_cuts_left,
            left,
            half_open_left,
            kills_left,
            changes_left,
            // Two targets know nothing of each other's.
            protections_left: rng.below(3) as u32 * u32::from(rng.percent(30) && targets == 1),
            outages_left,
            takeovers_left,
            own_disk_only,
            commands_left,
            half_open_until: Duration::ZERO,
            present: None,
            foreign: 0,
            longest_hang: if targets > 1 { 400 } else { 9000 },
        }
    }

    /// Leaves out what a seed is to be without.
    pub(super) fn leave_out(&mut self, limits: &Limits) {
        for (part, left) in self.all_left() {
            if !limits.has(part) {
                *left = 0;
            }
        }
    }

    /// Nothing new begins.
    pub(super) fn begin_no_more(&mut self) {
        self.all_left().into_iter().for_each(|(_, left)| *left = 0);
    }

    fn all_left(&mut self) -> [(Part, &mut u32); 9] {
        [
            (Part::PowerCuts, &mut self.power_cuts_left),
            (Part::Disk, &mut self.left),
            (Part::HalfOpen, &mut self.half_open_left),
            (Part::Kills, &mut self.kills_left),
            (Part::Operator, &mut self.changes_left),
            (Part::Reservations, &mut self.commands_left),
            (Part::Protections, &mut self.protections_left),
            (Part::Outages, &mut self.outages_left),
            (Part::Takeovers, &mut self.takeovers_left),
        ]
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
        self.trouble_state();
        self.trouble_rights();
        let troubles = &mut self.troubles;
        if troubles.present.is_none() && troubles.power_cuts_left > 0 && self.rng.below(3000) == 0 {
            troubles.power_cuts_left -= 1;
            self.cut_power(Served::Disk);
        }
        let troubles = &mut self.troubles;
        if troubles.present.is_none() && troubles.kills_left > 0 && self.rng.below(3000) == 0 {
            troubles.kills_left -= 1;
            self.note("target killed");
            let target = self.any_target();
            self.targets[target].kill(&mut self.network);
        }
        self.trouble_routes();
        if self.troubles.half_open_left > 0 && self.rng.below(50) == 0 && self.break_half_open() {
            self.troubles.half_open_left -= 1;
        }
    }

    /// A target; of one alone there is nothing to be chosen.
    fn any_target(&mut self) -> usize {
        if self.targets.len() == 1 { 0 } else { self.rng.below(self.targets.len() as u64) as usize }
    }

    /// What befalls a path with several routes.
    fn trouble_routes(&mut self) {
        if self.troubles.outages_left == 0 && self.troubles.takeovers_left == 0 {
            return;
        }
        // Mostly while the disk takes its time for something that will then be carried out late.
        let now = self.now;
        let straggles = self.targets.iter_mut().any(|target| target.straggles(now));
        let often = if straggles { 30 } else { 1000 };
        if self.troubles.outages_left > 0 && self.rng.below(often) == 0 {
            self.troubles.outages_left -= 1;
            self.note("every route lost");
            let host = self.rng.below(self.hosts.len() as u64) as usize;
            let longest = if self.rng.percent(20) { 9_000_000 } else { 500_000 };
            for route in 0..self.hosts[host].paths[0].route_count() {
                let until = self.now + Duration::from_micros(self.rng.below(longest));
                self.hosts[host].paths[0].cut(&mut self.network, route, until);
                let connections = self.hosts[host].paths[0].connections(&self.network, route);
                self.break_connections(connections);
            }
        }
        if self.troubles.takeovers_left > 0 && self.rng.below(often) == 0 {
            self.troubles.takeovers_left -= 1;
            self.note("initiator killed");
            self.taken_over += 1;
            let host = self.rng.below(self.hosts.len() as u64) as usize;
            let names_controllers = self.rng.percent(80);
            if self.rng.percent(50) {
                // Its machine goes with it, as far as its targets can tell.
                for route in 0..self.hosts[host].paths[0].route_count() {
                    let connections = self.hosts[host].paths[0].connections(&self.network, route);
                    self.break_connections(connections);
                }
            }
            self.hosts[host].paths[0].take_over(self.now, &mut self.network, names_controllers);
        }
    }

    /// Breaks connections so that their host notices at once.
    fn break_connections(&mut self, connections: Vec<N::Connection>) {
        let late = Duration::from_micros(self.rng.below(1 << 20));
        let notice = late + Duration::from_millis(self.rng.below(2000));
        self.troubles.half_open_until = self.troubles.half_open_until.max(self.now + notice);
        for connection in connections {
            self.half_open += u32::from(self.network.break_half_open(connection, Side::Host, late, notice));
        }
    }

    fn trouble_disk(&mut self) {
        match self.troubles.present {
            Some((trouble, until)) if self.now >= until => {
                self.troubles.present = None;
                match trouble {
                    Trouble::Hang => self.disks.main.borrow_mut().set_hanging(false),
                    Trouble::Other(_) if self.targets.len() > 1 => {
                        let foreign = self.troubles.foreign;
                        self.targets[foreign].kill_and_serve(&mut self.network, Served::Disk);
                    }
                    // The operator opens the disk anew.
                    Trouble::FailedFlush | Trouble::Other(_) => self.cut_power(Served::Disk),
                }
            }
            None if self.troubles.left > 0 && self.rng.below(500) == 0 => {
                self.troubles.left -= 1;
                // Mostly short: while a disk is away, hosts do little but connect again.
                let longest = if self.rng.percent(10) { self.troubles.longest_hang } else { 400 };
                let until = self.now + Duration::from_millis(1 + self.rng.below(longest));
                let name = |trouble| match trouble {
                    Trouble::Hang => "disk hangs",
                    Trouble::FailedFlush => "flush fails",
                    Trouble::Other(_) => "another disk in its place",
                };
                let mask = [Mask::Uuid, Mask::BlockSize, Mask::Shorter][self.rng.below(3) as usize];
                let kinds = if self.troubles.own_disk_only { 2 } else { 3 };
                let trouble = [Trouble::Hang, Trouble::FailedFlush, Trouble::Other(mask)]
                    [self.rng.below(kinds) as usize];
                if super::prints_events() {
                    println!("{:?}: {trouble:?} until {until:?}", self.now);
                }
                self.note(name(trouble));
                match trouble {
                    Trouble::Hang => self.disks.main.borrow_mut().set_hanging(true),
                    Trouble::FailedFlush => {
                        self.disks.main.borrow_mut().fail_next_flush();
                        for host in &mut self.hosts {
                            host.flushes_may_fail = Some(host.oracle.crashes());
                        }
                    }
                    // One of them is started with another disk.
                    Trouble::Other(mask) if self.targets.len() > 1 => {
                        let foreign = self.any_target();
                        self.troubles.foreign = foreign;
                        self.targets[foreign].kill_and_serve(&mut self.network, Served::Other(mask));
                    }
                    // The machine with the disk loses its power; another takes its address.
                    Trouble::Other(mask) => self.cut_power(Served::Other(mask)),
                }
                self.troubles.present = Some((trouble, until));
            }
            _ => {}
        }
    }

    /// Counts a fault, by what is under way.
    fn note(&mut self, fault: &'static str) {
        if super::prints_events() {
            println!("{:?}: {fault}", self.now);
        }
        let mut any = false;
        for host in &self.hosts {
            let commands = host.paths.iter().filter_map(|path| path.command.as_ref());
            let commands = commands.map(|(command, _)| command.name());
            for operation in host.under_way().chain(commands) {
                any = true;
                *self.coverage.entry((fault, operation)).or_default() += 1;
            }
        }
        for operation in self.contest.under_way() {
            any = true;
            *self.coverage.entry((fault, operation)).or_default() += 1;
        }
        if !any {
            *self.coverage.entry((fault, "nothing")).or_default() += 1;
        }
    }

    /// The state directory fails, and loses its power.
    fn trouble_state(&mut self) {
        if self.targets[0].kept.files.has_lost_power() {
            self.cut_power(Served::Disk);
            self.troubles.present = None;
        } else if self.troubles.commands_left > 0
            && self.troubles.present.is_none()
            && self.rng.below(2000) == 0
        {
            let failing = [0, 50, 300, 1000][self.rng.below(4) as usize];
            if failing > 0 {
                self.note("state directory fails");
            }
            self.targets[0].kept.files.set_failing(failing);
            if self.troubles.power_cuts_left > 0 && self.rng.percent(30) {
                self.troubles.power_cuts_left -= 1;
                let calls = 1 + self.rng.below(12);
                self.targets[0].kept.files.lose_power_after(calls);
            }
        }
    }

    /// Hosts contend for the reservation, and the operator takes the namespace away.
    fn trouble_rights(&mut self) {
        let hosts: Vec<HostIdentifier> =
            self.hosts.iter().flat_map(|host| &host.paths).map(|path| path.id).collect();
        if self.troubles.changes_left > 0 && self.rng.below(1000) == 0 {
            let until = self.now + Duration::from_micros(1 << (8 + self.rng.below(11)));
            let target = self.any_target();
            if let Some(change) = self.targets[target].take_away(self.now, &mut self.rng, &hosts, until) {
                self.troubles.changes_left -= 1;
                self.note(change.name());
            }
        }
        self.trouble_protection();
        let is_calm = self.troubles.commands_left == 0;
        let often = if self.hosts.iter().any(|host| host.left > 0) { 40 } else { 10 };
        if is_calm && self.targets[0].kept.rights.now().reservation.held.is_none()
            || self.rng.below(often) != 0
        {
            return;
        }
        let host = self.rng.below(self.hosts.len() as u64) as usize;
        let path = self.rng.below(self.hosts[host].paths.len() as u64) as usize;
        let path = &mut self.hosts[host].paths[path];
        let reservation = &self.targets[0].kept.rights.now().reservation;
        if !path.ready || path.command.is_some() {
            return;
        }
        if is_calm {
            self.targets[0].kept.files.set_failing(0);
            // Whoever is registered ends it.
            let key = reservation.keys.get(&path.id).copied();
            path.send(
                self.now,
                Command::Reservation(match key {
                    Some(key) => ReservationCommand::Clear { key },
                    None => ReservationCommand::Register {
                        new: 5,
                        ignore_key: true,
                        persist: PersistChange::NONE,
                    },
                }),
            );
            return;
        }
        self.troubles.commands_left -= 1;
        let command = Command::Reservation(reservation.random_command(path.id, &mut self.rng));
        path.send(self.now, command);
        self.note(command.name());
    }

    /// Hosts protect the namespace against writes, and end that again. One until a power cycle ends with the process.
    fn trouble_protection(&mut self) {
        let is_on = self.targets[0].kept.rights.now().protection;
        let left = self.troubles.protections_left > 0;
        let often = if is_on == WriteProtection::Off { 1500 } else { 100 };
        if is_on == WriteProtection::Off && !left || self.rng.below(often) != 0 {
            return;
        }
        let to = match is_on {
            WriteProtection::Off if self.rng.percent(60) => WriteProtection::On,
            WriteProtection::Off => WriteProtection::UntilPowerCycle,
            WriteProtection::On => WriteProtection::Off,
            // What a failed flush has lost, a disk that is opened anew does not know.
            WriteProtection::UntilPowerCycle if self.troubles.present.is_some() => return,
            WriteProtection::UntilPowerCycle => {
                self.note("target killed");
                return self.targets[0].kill(&mut self.network);
            }
        };
        // A state directory that fails fails for as long as there are commands for the reservation.
        if !left || self.troubles.commands_left == 0 {
            self.targets[0].kept.files.set_failing(0);
        }
        // Of two that are under way nobody knows here which one succeeds first.
        let others = self.hosts.iter().flat_map(|host| &host.paths).filter_map(|path| path.command);
        let is_only = others.filter(|(command, _)| matches!(command, Command::Protection(_))).count() == 0;
        let flush = |host: &Host<N>| host.oracle.flush_begins(Area::Main.blocks());
        let points = self.hosts.iter().filter(|_| is_only).map(flush).collect();
        let host = self.rng.below(self.hosts.len() as u64) as usize;
        let path = self.rng.below(self.hosts[host].paths.len() as u64) as usize;
        let path = &mut self.hosts[host].paths[path];
        if path.ready && path.command.is_none() {
            path.send(self.now, Command::Protection(to));
            self.flushed_by_protection = points;
            self.troubles.protections_left -= u32::from(to != WriteProtection::Off);
            self.note(Command::Protection(to).name());
        }
    }

    /// Whether the namespace is not everybody's, or will not be.
    pub(super) fn is_contested(&self) -> bool {
        self.troubles.commands_left > 0
            || self.targets.iter().any(Target::has_taken)
            || self.targets[0].kept.rights.now().reservation.held.is_some()
            || self.targets[0].kept.rights.now().protection != WriteProtection::Off
            || self.troubles.protections_left > 0
            || self.hosts.iter().flat_map(|host| &host.paths).any(|path| path.command.is_some())
    }

    /// Cuts the power of the target's machine and of its disk.
    fn cut_power(&mut self, then: Served) {
        self.power_cuts += 1;
        self.note("power cut");
        if super::prints_events() {
            println!("{:?}: power cut", self.now);
        }
        self.hosts.iter_mut().for_each(Host::crash);
        self.contest.crash();
        self.targets.iter_mut().for_each(Target::cut_power);
        self.targets.iter_mut().for_each(|target| target.power_up(&mut self.network, then));
    }

    /// Breaks the connections of one path, or one of them, so that one side notices at once and the other later. Does
    /// nothing, and returns `false`, if nothing is under way to the other.
    fn break_half_open(&mut self) -> bool {
        let host = self.rng.below(self.hosts.len() as u64) as usize;
        let path = self.rng.below(self.hosts[host].paths.len() as u64) as usize;
        let routes = self.hosts[host].paths[path].route_count();
        let route = if routes == 1 { 0 } else { self.rng.below(routes as u64) as usize };
        let mut connections = self.hosts[host].paths[path].connections(&self.network, route);
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
            self.hosts[host].paths[path].cut(&mut self.network, route, self.now + back);
        }
        let notice = late + Duration::from_millis(self.rng.below(2000));
        if super::prints_events() {
            println!("{:?}: {connections:?} of host {host}, path {path}: the {first:?} notices", self.now);
            println!(
                "  a loss; {late:?} later the rest arrives, and {notice:?} later the other side notices"
            );
        }
        self.note("half-open connection");
        self.troubles.half_open_until = self.troubles.half_open_until.max(self.now + notice);
        for connection in connections {
            self.half_open += u32::from(self.network.break_half_open(connection, first, late, notice));
        }
        true
    }
}
