//! A machine with a gateway: its process, what that has open, its clock and its connections.

use super::mistakes::{Decorator, Mistake};
use super::plan::{SECOND, Time, Unable};
use super::store::{Access, Block};
use nvmf_cluster::configuration::Item;
use nvmf_cluster::{
    Action, Address, AnaState, BootId, Gateway, GatewayName, GroupId, Handle, Identity, Locker, Object, OpId,
    Process, Reply, RequestId, Timing, Unopened,
};
use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::time::Duration;

/// A host's command at a gateway.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Command {
    pub(crate) slot: usize,
    pub(crate) attempt: u64,
    pub(crate) block: Block,
    pub(crate) access: Access,
    /// It changes or reads the group's reservation instead of a block.
    pub(crate) reservation: bool,
}

/// What reaches a process.
#[derive(Debug, Clone)]
pub(crate) enum Input {
    /// It gets to carry out an action of its engine.
    Act(Action),
    Reply(OpId, Reply, Option<(i64, Locker)>),
    Notified(Object),
    /// What cannot be opened of its groups has changed.
    Unopened,
    Timer(u64),
    Command(Command),
    /// The result of an I/O; `None`: the client is blocklisted.
    Io {
        handle: Handle,
        io: u64,
        command: Command,
        result: Option<u64>,
    },
}

/// A client of the store that carries I/O.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) address: Address,
    /// The map that it has.
    pub(crate) epoch: u64,
    /// I/O that it has under way, each with its slot.
    pub(crate) in_flight: BTreeMap<u64, usize>,
    /// What it has of blocks by itself, as librbd has the map of objects that exist.
    pub(crate) has: BTreeMap<Block, u64>,
    /// Until when that may be relied upon.
    pub(crate) trusted: Duration,
    /// It closes; what is in flight goes on without it.
    pub(crate) drain: Option<(OpId, GroupId)>,
}

/// What a process has.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) engine: Gateway,
    pub(crate) decorator: Decorator,
    pub(crate) boot: BootId,
    /// Its client of the control plane, and whether that is fenced.
    pub(crate) control: Address,
    pub(crate) control_fenced: bool,
    pub(crate) stopped: bool,
    /// What waits while it is stopped.
    pub(crate) inbox: VecDeque<Input>,
    pub(crate) clients: BTreeMap<Handle, Client>,
    pub(crate) shown: BTreeMap<GroupId, AnaState>,
    /// Until when hosts are admitted, by its clock.
    pub(crate) admits_until: Duration,
    pub(crate) open: BTreeMap<GroupId, Handle>,
    /// Groups whose images could not be opened.
    pub(crate) unopened: BTreeMap<GroupId, Handle>,
    /// Which of their images.
    pub(crate) lacks: BTreeMap<GroupId, Unopened>,
    pub(crate) applied: BTreeMap<String, Item>,
    pub(crate) range: Option<RangeInclusive<u16>>,
    /// Requests of operators: which item each changes.
    pub(crate) requests: BTreeMap<RequestId, (String, u64)>,
    /// Reservations being stored for a host.
    pub(crate) storing: BTreeMap<RequestId, Command>,
    /// The timer that is set, and for when.
    pub(crate) timer: u64,
    pub(crate) timeout: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: String,
    /// Where hosts reach its processes.
    pub(crate) address: String,
    pub(crate) running: Option<Running>,
    /// Counts its processes.
    pub(crate) life: u32,
    /// Its monotonic clock runs this much per million too fast; its wall clock is wrong by so much.
    rate: i64,
    wall: i64,
    pub(crate) control_cut_until: Time,
    pub(crate) data_cut_until: Time,
    pub(crate) hosts_cut_until: Time,
    pub(crate) slow_until: Time,
    /// It cannot take groups, and until when.
    pub(crate) unable: Option<(Unable, Time)>,
    /// It stays away.
    pub(crate) gone: bool,
}

impl Node {
    pub(crate) fn new(name: String, rate: i64, wall: i64) -> Self {
        Self {
            address: format!("{name}:4420"),
            name,
            running: None,
            life: 0,
            rate,
            wall,
            control_cut_until: 0,
            data_cut_until: 0,
            hosts_cut_until: 0,
            slow_until: 0,
            unable: None,
            gone: false,
        }
    }

    /// Its monotonic clock.
    pub(crate) fn clock(&self, now: Time) -> Duration {
        Duration::from_micros((now as i64 + now as i64 / 1_000_000 * self.rate) as u64)
    }

    /// When its monotonic clock will show this.
    pub(crate) fn when(&self, clock: Duration) -> Time {
        let clock = clock.as_micros().min(1 << 50) as i64;
        // Whole seconds run at another rate; a microsecond more, so that it is not too early.
        let mut at = clock - clock / 1_000_000 * self.rate;
        while (self.clock(at.max(0) as u64).as_micros() as i64) < clock {
            at += 1 + (clock - self.clock(at.max(0) as u64).as_micros() as i64) / 2;
        }
        at.max(0) as u64
    }

    pub(crate) fn wall(&self, now: Time) -> i64 {
        now as i64 + self.wall
    }

    /// Starts a process.
    pub(crate) fn start(&mut self, now: Time, nonce: u64, ana_groups: u32, mistake: Option<Mistake>) {
        self.life += 1;
        let boot = BootId(format!("{}.{}", self.name, nonce));
        let gateway = GatewayName::new(&self.name).expect("a name");
        let identity = Identity {
            process: Process { gateway, boot: boot.clone() },
            addresses: vec![self.address.clone()],
            software: "1".into(),
            ana_groups,
        };
        let engine = Gateway::new(identity, Self::timing(), self.clock(now));
        self.running = Some(Running {
            engine,
            decorator: Decorator::new(mistake, &self.name),
            boot,
            control: Address(format!("10.0.0.1:0/{nonce}")),
            control_fenced: false,
            stopped: false,
            inbox: VecDeque::new(),
            clients: BTreeMap::new(),
            shown: BTreeMap::new(),
            admits_until: Duration::ZERO,
            open: BTreeMap::new(),
            unopened: BTreeMap::new(),
            lacks: BTreeMap::new(),
            applied: BTreeMap::new(),
            range: None,
            requests: BTreeMap::new(),
            storing: BTreeMap::new(),
            timer: 0,
            timeout: None,
        });
    }

    /// Times for the simulation: shorter where nothing but patience is at stake.
    pub(crate) fn timing() -> Timing {
        let secs = Duration::from_secs;
        Timing { quiet: secs(10), rebalance: secs(3), retry_max: secs(8), unable: secs(8), ..Timing::DEFAULT }
    }

    pub(crate) fn is_live(&self) -> bool {
        self.running.as_ref().is_some_and(|running| !running.stopped)
    }

    /// The longest that an operation of the control plane is late without being slow.
    pub(crate) const LATE: Time = 2 * SECOND;
}
