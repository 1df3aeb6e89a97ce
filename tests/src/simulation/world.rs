//! The simulated targets and hosts, and their clock.

use super::area::Area;
use super::contest::{CONTESTED, Contest};
use super::host::Host;
use super::network::Network;
use super::oracle::FlushPoint;
use super::path::{Path, Routes};
use super::plane::Kept;
use super::resets::ResetMode;
use super::target::{Disks, Site, Target};
use super::troubles::{Seed, Troubles};
use super::{Coverage, Limits, Outcome, Part};
use crate::rng::Rng;
use nvmf_initiator::PathPolicy;
use nvmf_subsystem::AnaState;
use std::time::Duration;

/// Turns after which the simulation counts as hung.
const TURNS_MAX: u64 = 2_000_000;
/// Virtual time after which the simulation counts as hung.
const TIME_MAX: Duration = Duration::from_secs(3600);

/// How the paths of a seed are, where they have several routes.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    /// To which target each route of a path leads.
    routes: Vec<usize>,
    pub(super) targets: usize,
    resets: ResetMode,
    ana: [AnaState; 2],
    /// How many operations in a hundred take up to [`LONGEST`].
    stragglers: u64,
    fast_io_fail: Option<Duration>,
    policy: PathPolicy,
}

impl Shape {
    /// In a quarter of the seeds there are several routes. It has a generator of its own: the other seeds know nothing of them.
    fn of(seed: u64) -> Option<Self> {
        let mut rng = Rng::new(seed ^ 0x726f_7574_6573);
        if !rng.percent(25) {
            return None;
        }
        let targets = 1 + rng.below(2) as usize;
        let count = if rng.percent(30) { 3 } else { 2 };
        let first = rng.below(targets as u64) as usize;
        let late = Duration::from_millis(rng.below(3000));
        // Where they work, they hide what the time of a fence is for.
        let resets = match rng.below(10) {
            0..4 => ResetMode::Works,
            4..8 => ResetMode::Refused,
            _ => ResetMode::Late(late),
        };
        let states = [AnaState::OPTIMIZED, AnaState::OPTIMIZED, AnaState::NON_OPTIMIZED];
        let ana =
            [(); 2].map(|()| if targets == 2 { states[rng.below(3) as usize] } else { AnaState::OPTIMIZED });
        let stragglers = if rng.percent(70) { 2 + rng.below(10) } else { 0 };
        let fast_io_fail = rng.percent(25).then(|| Duration::from_millis(200 + rng.below(2000)));
        let policy =
            [PathPolicy::RoundRobin, PathPolicy::QueueDepth, PathPolicy::Latency][rng.below(3) as usize];
        let routes = (first..first + count).map(|number| number % targets).collect();
        Some(Self { routes, targets, resets, ana, stragglers, fast_io_fail, policy })
    }
}

/// How long an operation takes at the disk at most: after the bytes of a half-open connection, whose arrival the target takes for a
/// sign of life, it ends by the time that a host waits for it (two Keep Alive Timeouts and CQT).
const LONGEST: Duration = Duration::from_secs(4);

/// The state of a simulation.
pub(super) struct World<N: Network> {
    seed: u64,
    limits: Limits,
    pub(super) rng: Rng,
    pub(super) network: N,
    shape: Option<Shape>,
    pub(super) disks: Disks,
    /// Several have the same disks.
    pub(super) targets: Vec<Target<N>>,
    pub(super) hosts: Vec<Host<N>>,
    pub(super) contest: Contest,
    /// What is durable once the write protection that was sent last has succeeded.
    pub(super) flushed_by_protection: Vec<FlushPoint>,
    routes: usize,
    pub(super) now: Duration,
    pub(super) troubles: Troubles,
    pub(super) power_cuts: u32,
    /// Connections that became half-open.
    pub(super) half_open: u32,
    /// Drivers that were killed.
    pub(super) taken_over: u32,
    turns: u64,
    trace: u64,
    pub(super) coverage: Coverage,
}

impl<N: Network> World<N> {
    pub(super) fn new(seed: u64, limits: &Limits) -> Self {
        let mut rng = Rng::new(seed);
        let mut network = N::new(&mut rng);
        let shape = Shape::of(seed);
        let several = shape.is_some();
        let target_count = shape.as_ref().map_or(1, |shape| shape.targets);
        // More would need more connections.
        let host_count = (1 + rng.below(3)).min(if several { 2 } else { 3 });
        // A third of the seeds run without faults and troubles.
        let calm = rng.percent(33) && !(several && rng.percent(80));
        // In half of the seeds hosts contend for the namespace: mostly over a calm network, so that much comes of it. Two targets
        // know nothing of each other's reservations.
        let contested = rng.percent(50) && target_count == 1;
        // So are routes that are lost again and again before the time of a fence is over.
        let calm_network = calm || (contested || several) && rng.percent(75);
        network.prepare_target(&mut rng, calm_network);
        let mut target_rng = Rng::new(rng.next());
        let disks = Disks::new(host_count, &mut target_rng);
        let targets = (0..target_count).map(|number| {
            let site = Site {
                number,
                shared: target_count > 1,
                ana: shape.as_ref().map_or(AnaState::OPTIMIZED, |shape| shape.ana[number]),
                resets: shape.as_ref().map_or(ResetMode::Works, |shape| shape.resets),
            };
            let rng = if number == 0 { target_rng.clone() } else { Rng::new(seed ^ number as u64) };
            Target::new(&mut network, site, disks.clone(), rng)
        });
        let targets = targets.collect();
        // Raw commands reach whichever disk there is, so their seeds have only one.
        let raw = rng.percent(50) && target_count == 1;
        let now = Duration::from_secs(1);
        let mut world = Self {
            seed,
            limits: limits.clone(),
            network,
            disks,
            targets,
            hosts: Vec::new(),
            contest: Contest::new::<N>(0, &[], false, Rng::new(0)),
            flushed_by_protection: Vec::new(),
            routes: 0,
            now,
            troubles: Troubles::new(
                &mut rng,
                &Seed { calm, contested, own_disk_only: raw, shape: shape.as_ref() },
            ),
            shape,
            power_cuts: 0,
            half_open: 0,
            taken_over: 0,
            turns: 0,
            trace: seed,
            coverage: Coverage::new(),
            rng,
        };
        world.hosts = (0..host_count).map(|number| world.host(number, calm_network, raw)).collect();
        let contested_from = host_count * Area::Main.stride();
        let contest_rng = Rng::new(world.rng.next());
        world.contest = Contest::new(contested_from, &world.hosts, raw, contest_rng);
        world.troubles.leave_out(limits);
        if !limits.has(Part::Contest) {
            world.contest.begin_no_more();
        }
        world
    }

    /// A host with one path, or with two. The second one belongs to the same host or to another. Or with one path of several routes.
    fn host(&mut self, number: u64, calm: bool, raw: bool) -> Host<N> {
        let mut ids = vec![[number as u8 + 1; 16]];
        match self.rng.below(4) {
            _ if self.shape.is_some() => {}
            0 => ids.push(ids[0]),
            1 => ids.push([number as u8 + 101; 16]),
            _ => {}
        }
        let path = |(at, id): (usize, [u8; 16])| {
            let first = self.routes;
            for &target in self.shape.as_ref().map_or(&[0][..], |shape| &shape.routes) {
                self.network.add_route(id[0], target, &mut self.rng, calm);
                self.routes += 1;
            }
            let routes = Routes {
                numbers: (first..self.routes).collect(),
                policy: self.shape.as_ref().map_or(PathPolicy::default(), |shape| shape.policy),
                fast_io_fail: self.shape.as_ref().and_then(|shape| shape.fast_io_fail),
            };
            let name = format!("host {number}, path {at}");
            let mut path = Path::new(name, id, &mut self.network, routes, self.now, &mut self.rng);
            path.sends_raw = raw;
            path
        };
        let paths = ids.into_iter().enumerate().map(path).collect();
        Host::new(number, paths, Rng::new(self.rng.next()))
    }

    /// Injects faults from now on, or no more, on both sides.
    fn set_faulty(&mut self, faulty: bool) {
        let Self { network, targets, hosts, disks, shape, .. } = self;
        targets.iter_mut().for_each(|target| target.set_faulty(network, faulty));
        let stragglers = shape.as_ref().filter(|_| faulty).map_or(0, |shape| shape.stragglers);
        disks.set_straggling(stragglers, LONGEST);
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
        let (mut worked, mut due) = (false, None);
        for target in &mut self.targets {
            let (any, next) = target.turn(self.now, &owners);
            worked |= any;
            due = [due, next].into_iter().flatten().min();
        }
        let Kept { rights, done, .. } = &self.targets[0].kept;
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
        self.set_faulty(self.limits.has(Part::Network));
        let mut is_limited = self.limits.until < Duration::MAX;
        let busy = |host: &Host<N>| host.left > 0 || !host.idle();
        while self.hosts.iter().any(busy)
            || self.contest.is_busy()
            || self.troubles.last(self.now)
            || self.is_contested()
            || self.shape.is_some() && self.targets.iter_mut().any(Target::is_at_disk)
        {
            self.turn();
            self.trouble();
            if is_limited && self.now >= self.limits.until {
                is_limited = false;
                self.begin_no_more();
            }
        }
    }

    /// From now on nothing befalls anybody, and nobody begins anything.
    fn begin_no_more(&mut self) {
        self.troubles.begin_no_more();
        self.contest.begin_no_more();
        self.hosts.iter_mut().for_each(|host| host.left = 0);
        self.set_faulty(false);
    }

    /// Ends the simulation without faults: reads every block, disconnects all hosts, and checks for leaks.
    pub(super) fn finish(mut self) -> Outcome {
        self.set_faulty(false);
        self.targets.iter().for_each(|target| target.kept.files.set_failing(0));
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
        while self.targets.iter().any(Target::has_queues) || !self.network.is_idle() {
            self.turn();
        }
        self.targets.iter_mut().for_each(Target::check);
        self.disks.check();
        let mut outcome = Outcome {
            operations: self.hosts.iter().map(|host| host.ended).sum(),
            power_cuts: self.power_cuts,
            half_open: self.half_open,
            losses: self.hosts.iter().flat_map(|host| &host.paths).map(|path| path.losses).sum(),
            route_losses: self.hosts.iter().flat_map(|host| &host.paths).map(|path| path.route_losses).sum(),
            taken_over: self.taken_over,
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
