//! A driver and its target under one clock.

use super::super::{Driver, DriverConfig, DriverEvent, Ended, Op, PathPolicy, Route};
use super::target::{Disk, Target};
use crate::Effect;
use crate::transport::Rdma;
use core::time::Duration;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvme_proto::{HostId, Nqn, Nsid};
use nvmf_block::{BlockError, BlockOp, BlockRange, Buffer, RegionId, Tag};
use nvmf_host::{AssociationConfig, NamespaceIdentity, RecoveryPolicy};
use nvmf_memory::Memory;
use nvmf_rdma::fault::{FaultOptions, Faulty};
use nvmf_rdma::loopback::{Fabric, Loopback};

pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const BLOCK: usize = 512;
pub(super) const BLOCKS: usize = 1024;
/// The memory that operations use.
pub(super) const REGION: RegionId = RegionId(0);
/// More than anything here takes.
const STEPS_MAX: u32 = 200_000;

pub(super) struct Rig {
    pub(super) driver: Driver<Rdma<Faulty<Loopback>>>,
    pub(super) target: Target,
    /// That of another path, if there is one, to the same disks: those of `target`.
    pub(super) other: Option<Target>,
    /// The path that nothing comes through any more, without anybody being told.
    pub(super) silent: Option<usize>,
    pub(super) fabric: Fabric,
    pub(super) memory: Memory,
    pub(super) now: Duration,
    pub(super) ended: Vec<(u64, Result<(), BlockError>)>,
    /// What those that failed may have done.
    effects: Vec<(u64, Effect)>,
    pub(super) events: Vec<DriverEvent>,
}

pub(super) fn config() -> DriverConfig {
    let nqn = |text: &str| text.parse::<Nqn>().unwrap();
    let association = AssociationConfig::new(
        nqn("nqn.2026-11.com.example:disk"),
        nqn("nqn.2026-11.com.example:host"),
        HostId([1; 16]),
    );
    DriverConfig {
        secrets: None,
        secrets_source: None,
        address: "192.0.2.1:4420".parse().unwrap(),
        address_source: None,
        source: None,
        write_queues: 0,
        association: AssociationConfig { io_queue_entries: 16, ..association },
        recovery: RecoveryPolicy { ctrl_loss_timeout: Some(60 * SECOND), ..RecoveryPolicy::default() },
        wait_for_disk: true,
        io_timeout: 30 * SECOND,
        policy: PathPolicy::default(),
        operations: 64,
        seed: 7,
    }
}

pub(super) fn provider(fabric: &Fabric) -> Faulty<Loopback> {
    Faulty::new(fabric.provider(), FaultOptions::default())
}

impl Rig {
    /// A driver that is in use, and a target with disk 1 as namespace 1.
    pub(super) fn ready() -> Self {
        Self::ready_with(config(), |_| {})
    }

    pub(super) fn ready_with(config: DriverConfig, prepare: impl FnOnce(&mut Target)) -> Self {
        let mut rig = Self::start(config, prepare);
        rig.run();
        assert!(matches!(rig.events[..], [DriverEvent::Ready { .. }]), "{:?}", rig.events);
        rig.events.clear();
        rig
    }

    pub(super) fn start(config: DriverConfig, prepare: impl FnOnce(&mut Target)) -> Self {
        let fabric = Fabric::new();
        let mut target = Target::new(&fabric, config.address);
        target.disks.insert(1, Disk::new(1, BLOCK, BLOCKS));
        prepare(&mut target);
        let provider = provider(&fabric);
        let memory = Memory::alloc(64 << 10).unwrap();
        let mut driver = Driver::new(Rdma::new(provider), config, Duration::ZERO).unwrap();
        driver.register(REGION, &memory).unwrap();
        let (now, ended, events, other) = (Duration::ZERO, Vec::new(), Vec::new(), None);
        let effects = Vec::new();
        Self { silent: None, driver, target, other, fabric, memory, now, ended, effects, events }
    }

    /// Lets both do what there is to do now.
    pub(super) fn run(&mut self) {
        for _ in 0..STEPS_MAX {
            if !(self.turn_driver() | self.turn_targets()) {
                return;
            }
        }
        panic!("something is to be done without end");
    }

    /// Lets both do one turn.
    pub(super) fn step(&mut self) {
        self.turn_driver();
        self.turn_targets();
    }

    /// The same, but the driver sleeps whenever it can, and does something only when it is woken.
    pub(super) fn run_asleep(&mut self) {
        self.turn_driver();
        for _ in 0..STEPS_MAX {
            let slept = self.driver.arm();
            let worked = self.target.turn(self.now);
            let fd = self.driver.fd().expect("a descriptor");
            let mut woken = [PollFd::new(fd, PollFlags::POLLIN)];
            if !slept || poll(&mut woken, PollTimeout::ZERO).expect("poll works") > 0 {
                self.turn_driver();
            } else if !worked {
                return;
            }
        }
        panic!("something is to be done without end");
    }

    /// A driver with two paths, whose targets are prepared, before either connects. Number 1 is the other one.
    pub(super) fn start_pair(config: DriverConfig, prepare: impl Fn(usize, &mut Target)) -> Self {
        Self::start_pair_over(config, other_route(), prepare)
    }

    /// The same over this way to the other target.
    pub(super) fn start_pair_over(
        config: DriverConfig,
        route: Route,
        prepare: impl Fn(usize, &mut Target),
    ) -> Self {
        let mut rig = Self::start(config, |target| prepare(0, target));
        rig.target.cntlid = 0x100;
        let mut other = Target::new(&rig.fabric, other_route().address);
        other.cntlid = 0x200;
        prepare(1, &mut other);
        rig.other = Some(other);
        rig.add_path(route);
        rig
    }

    /// Adds the path to the other target.
    fn add_path(&mut self, route: Route) {
        let transport = Rdma::new(provider(&self.fabric));
        self.driver.add_path(transport, route, None, self.now).unwrap();
    }

    /// Another process takes the disk over, with the paths that there were; the driver that was there is killed.
    pub(super) fn take_over(&mut self, config: DriverConfig) {
        let association = self.driver.association().expect("it is connected");
        let namespace = association.namespace(Nsid(1)).expect("it is there");
        let identity = NamespaceIdentity::new(association.controller(), namespace);
        let impacted = self.driver.impacted(self.now, Duration::MAX);
        let transport = Rdma::new(provider(&self.fabric));
        self.driver = Driver::resume(transport, config, &impacted, self.now).expect("resumed");
        self.driver.register(REGION, &self.memory).expect("registered");
        if self.other.is_some() {
            self.add_path(other_route());
        }
        self.driver.open(self.now, identity);
    }

    /// The same, and both are in use.
    pub(super) fn pair(config: DriverConfig, prepare: impl Fn(usize, &mut Target)) -> Self {
        let mut rig = Self::start_pair(config, prepare);
        rig.run();
        assert!(
            matches!(rig.events[..], [DriverEvent::Ready { .. }, DriverEvent::PathReady(..)]),
            "{:?}",
            rig.events
        );
        rig.events.clear();
        rig
    }

    /// The target of a path.
    pub(super) fn target_of(&mut self, path: usize) -> &mut Target {
        if path == 0 { &mut self.target } else { self.other.as_mut().expect("there are two") }
    }

    /// Does something with the target of a path that has the disks meanwhile.
    pub(super) fn with_target<R>(&mut self, path: usize, act: impl FnOnce(&mut Target) -> R) -> R {
        let other = if path == 0 { None } else { self.other.as_mut() };
        let Some(other) = other else { return act(&mut self.target) };
        // A foreign disk is its own.
        let shares = other.disks.is_empty();
        if shares {
            core::mem::swap(&mut self.target.disks, &mut other.disks);
        }
        let result = act(other);
        if shares {
            core::mem::swap(&mut self.target.disks, &mut other.disks);
        }
        result
    }

    fn turn_targets(&mut self) -> bool {
        let now = self.now;
        let mut worked = self.silent != Some(0) && self.target.turn(now);
        if self.other.is_some() {
            worked |= self.silent != Some(1) && self.with_target(1, |other| other.turn(now));
            for path in [0, 1] {
                // What is reset carries out nothing late.
                if !core::mem::take(&mut self.target_of(path).reset).is_empty() {
                    self.target_of(1 - path).held.clear();
                }
            }
        }
        worked
    }

    fn turn_driver(&mut self) -> bool {
        let worked = self.driver.turn(self.now);
        let before_ended = self.ended.len();
        while let Some(Ended { tag, result }) = self.driver.poll_ended() {
            self.ended.push((tag.0, result.map_err(|failure| failure.error)));
            self.effects.extend(result.err().map(|failure| (tag.0, failure.effect)));
        }
        let before = self.events.len();
        while let Some(event) = self.driver.poll_event() {
            self.events.push(event);
        }
        worked || self.ended.len() > before_ended || self.events.len() > before
    }

    /// Lets so much time pass.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.run();
        for _ in 0..STEPS_MAX {
            let Some(next) = self.driver.poll_timeout().filter(|&next| next <= end) else {
                self.now = end;
                return self.run();
            };
            // A provider that holds something back wants to be polled at once: then time goes on in small steps.
            self.now = next.max(self.now + Duration::from_millis(10)).min(end);
            self.run();
            if self.now == end {
                return;
            }
        }
        panic!("deadlines come without end");
    }

    pub(super) fn submit(&mut self, tag: u64, op: impl Into<Op>) {
        self.driver.submit(Tag(tag), Nsid(1), op).unwrap();
    }

    /// The result of an operation that has ended.
    pub(super) fn result(&self, tag: u64) -> Option<Result<(), BlockError>> {
        self.ended.iter().find(|(ended, _)| *ended == tag).map(|(_, result)| *result)
    }

    /// How an operation has failed, and what it may have done.
    pub(super) fn failure(&self, tag: u64) -> Option<(BlockError, Effect)> {
        let (_, effect) = self.effects.iter().find(|(ended, _)| *ended == tag)?;
        Some((self.result(tag)?.err()?, *effect))
    }

    /// Writes `new` to a block if it holds `expected` everywhere.
    pub(super) fn compare_and_write(&self, start: u64, expected: u8, new: u8) -> BlockOp {
        self.memory.fill(0, BLOCK, expected);
        self.memory.fill(BLOCK, BLOCK, new);
        BlockOp::CompareAndWrite { range: BlockRange::new(start, 1), data: buffer(2), fua: false }
    }

    /// A write of so many blocks of one byte.
    pub(super) fn write(&self, start: u64, blocks: u64, byte: u8) -> BlockOp {
        let buffer = buffer(blocks);
        self.memory.fill(0, buffer.len, byte);
        BlockOp::Write { range: BlockRange::new(start, blocks), from: buffer, fua: false }
    }
}

pub(super) fn other_route() -> Route {
    Route {
        address: "192.0.2.2:4420".parse().unwrap(),
        address_source: None,
        source: None,
        connect_timeout: Duration::from_secs(3),
    }
}

pub(super) fn buffer(blocks: u64) -> Buffer {
    Buffer { region: REGION, offset: 0, len: blocks as usize * BLOCK }
}

pub(super) fn read(start: u64, blocks: u64) -> BlockOp {
    BlockOp::Read { range: BlockRange::new(start, blocks), into: buffer(blocks) }
}
