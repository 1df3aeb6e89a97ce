//! The simulated target and hosts, and their clock.

use super::area::Area;
use super::contest::{CONTESTED, Contest};
use super::host::Host;
use super::network::Network;
use super::oracle::FlushPoint;
use super::path::Path;
use super::plane::Kept;
use super::rng::Rng;
use super::target::Target;
use super::troubles::Troubles;
use super::{Coverage, Outcome};
use std::time::Duration;

/// Turns after which the simulation counts as hung.
const TURNS_MAX: u64 = 2_000_000;
/// Virtual time after which the simulation counts as hung.
const TIME_MAX: Duration = Duration::from_secs(3600);

/// The state of a simulation.
pub(super) struct World<N: Network> {
    seed: u64,
    pub(super) rng: Rng,
    pub(super) network: N,
    pub(super) target: Target<N>,
    pub(super) hosts: Vec<Host<N>>,
    pub(super) contest: Contest,
    /// What is durable once the write protection that was sent last has succeeded.
    pub(super) flushed_by_protection: Vec<FlushPoint>,
    paths: usize,
    pub(super) now: Duration,
    pub(super) troubles: Troubles,
    pub(super) power_cuts: u32,
    /// Connections that became half-open.
    pub(super) half_open: u32,
    turns: u64,
    trace: u64,
    pub(super) coverage: Coverage,
}

impl<N: Network> World<N> {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut network = N::new(&mut rng);
        let host_count = 1 + rng.below(3);
        // A third of the seeds run without faults and troubles.
        let calm = rng.percent(33);
        // In half of the seeds hosts contend for the namespace: mostly over a calm network, so that much comes of it.
        let contested = rng.percent(50);
        let calm_network = calm || contested && rng.percent(75);
        network.prepare_target(&mut rng, calm_network);
        let target_rng = Rng::new(rng.next());
        let target = Target::new(&mut network, host_count, target_rng);
        // Raw commands reach whichever disk there is, so their seeds have only one.
        let raw = rng.percent(50);
        let now = Duration::from_secs(1);
        let mut world = Self {
            seed,
            network,
            target,
            hosts: Vec::new(),
            contest: Contest::new::<N>(0, &[], false, Rng::new(0)),
            flushed_by_protection: Vec::new(),
            paths: 0,
            now,
            troubles: Troubles::new(&mut rng, calm, contested, raw),
            power_cuts: 0,
            half_open: 0,
            turns: 0,
            trace: seed,
            coverage: Coverage::new(),
            rng,
        };
        world.hosts = (0..host_count).map(|number| world.host(number, calm_network, raw)).collect();
        let contested_from = host_count * Area::Main.stride();
        let contest_rng = Rng::new(world.rng.next());
        world.contest = Contest::new(contested_from, &world.hosts, raw, contest_rng);
        world
    }

    /// A host with one path, or with two. The second one belongs to the same host or to another.
    fn host(&mut self, number: u64, calm: bool, raw: bool) -> Host<N> {
        let mut ids = vec![[number as u8 + 1; 16]];
        match self.rng.below(4) {
            0 => ids.push(ids[0]),
            1 => ids.push([number as u8 + 101; 16]),
            _ => {}
        }
        let path = |(at, id): (usize, [u8; 16])| {
            let transport = self.network.add_path(id[0], &mut self.rng, calm);
            let over = (&mut self.network, self.paths, transport);
            self.paths += 1;
            let mut path = Path::new(format!("host {number}, path {at}"), id, over, self.now, &mut self.rng);
            path.sends_raw = raw;
            path
        };
        let paths = ids.into_iter().enumerate().map(path).collect();
        Host::new(number, paths, Rng::new(self.rng.next()))
    }

    /// Injects faults from now on, or no more, on both sides.
    fn set_faulty(&mut self, faulty: bool) {
        let Self { network, target, hosts, .. } = self;
        target.set_faulty(network, faulty);
        hosts.iter_mut().flat_map(|host| &mut host.paths).for_each(|path| path.set_faulty(network, faulty));
    }

    /// Runs one turn of each part and advances the clock to the next deadline.
    fn turn(&mut self) {
        self.turns += 1;
        assert!(
            self.turns < TURNS_MAX && self.now < TIME_MAX,
            "seed {}: no progress at {:?}: {:?}",
            self.seed,
            self.now,
            self.hosts.iter().flat_map(|host| &host.paths).map(Path::describe).collect::<Vec<_>>()
        );
        let (hosts, contest) = (&self.hosts, &self.contest);
        let owners = |lba: u64| {
            let (host, block) = Area::Main.block(lba);
            match hosts.get(host as usize) {
                Some(host) if Area::Main.blocks().contains(&block) => vec![host.owner(block)],
                Some(_) => Vec::new(),
                None => contest.owners(lba, hosts),
            }
        };
        let (mut worked, mut due) = self.target.turn(self.now, &owners);
        let Kept { rights, done, .. } = &self.target.kept;
        for host in &mut self.hosts {
            let ended = host.ended;
            worked |= host.turn(self.now, &mut self.network, rights, done);
            due = [due, host.poll_timeout()].into_iter().flatten().min();
            self.trace = (self.trace ^ (host.ended - ended) ^ self.now.as_nanos() as u64)
                .wrapping_mul(0x100_0000_01b3)
                .rotate_left(5);
        }
        let protected = self.hosts.iter_mut().flat_map(|host| &mut host.paths);
        if protected.fold(false, |any, path| any | core::mem::take(&mut path.protected)) {
            for (host, point) in self.hosts.iter_mut().zip(self.flushed_by_protection.drain(..)) {
                host.oracle.flushed(&point);
            }
        }
        worked |= self.contest.turn(self.now, &mut self.hosts, rights);
        due = [due, self.contest.poll_timeout()].into_iter().flatten().min();
        worked |= self.network.turn(self.now);
        due = [due, self.network.next_due()].into_iter().flatten().min();
        // Delayed polls are counted in turns, not in time, so a turn without work also advances the clock a little.
        let step = Duration::from_micros(if worked { 1 } else { 20 });
        let least = self.now + step;
        self.now = if worked {
            least
        } else {
            due.map_or(least, |due| due.clamp(least, self.now + Duration::from_millis(5)))
        };
    }

    /// Runs until every host has done its operations.
    pub(super) fn run(&mut self) {
        // The driver reports a failed first connect instead of repeating it, so faults start after it.
        while !self.hosts.iter().all(Host::is_ready) {
            self.turn();
        }
        self.set_faulty(true);
        let busy = |host: &Host<N>| host.left > 0 || !host.idle();
        while self.hosts.iter().any(busy)
            || self.contest.is_busy()
            || self.troubles.last(self.now)
            || self.is_contested()
        {
            self.turn();
            self.trouble();
        }
    }

    /// Ends the simulation without faults: reads every block, disconnects all hosts, and checks for leaks.
    pub(super) fn finish(mut self) -> Outcome {
        self.set_faulty(false);
        self.target.kept.files.set_failing(0);
        let sees = |host: &Host<N>| host.paths.iter().all(Path::sees_namespace);
        while !self.hosts.iter().all(sees) {
            self.turn();
        }
        self.hosts.iter_mut().for_each(Host::read_all);
        while self.hosts.iter().any(|host| !host.idle()) {
            self.turn();
        }
        for block in 0..CONTESTED {
            self.contest.read_all(self.now, block, &mut self.hosts);
            while self.contest.is_busy() {
                self.turn();
            }
        }
        let now = self.now;
        self.hosts.iter_mut().flat_map(|host| &mut host.paths).for_each(|path| path.shutdown(now));
        while self.hosts.iter().flat_map(|host| &host.paths).any(|path| !path.closed) {
            self.turn();
        }
        while self.target.has_queues() || !self.network.is_idle() {
            self.turn();
        }
        self.target.check();
        let mut outcome = Outcome {
            operations: self.hosts.iter().map(|host| host.ended).sum(),
            power_cuts: self.power_cuts,
            half_open: self.half_open,
            losses: self.hosts.iter().flat_map(|host| &host.paths).map(|path| path.losses).sum(),
            read_across: self.hosts.iter().map(|host| host.read_across).sum(),
            refused: self.hosts.iter().map(|host| host.refused).sum(),
            copied: self.hosts.iter().map(|host| host.copied).sum(),
            replaced: self.contest.won,
            differed: self.contest.differed,
            coverage: self.coverage,
            trace: self.trace,
            ..Outcome::default()
        };
        self.network.report(&mut outcome);
        outcome
    }
}
