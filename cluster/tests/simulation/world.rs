//! A run: events in the order of their times, and what is under way.

use super::host::Slot;
use super::mistakes::Mistake;
use super::node::{Command, Input, Node};
use super::oracle::{Oracle, Reserved};
use super::plan::{Fault, MS, Plan, Planned, SECOND, Time, secs};
use super::rng::Rng;
use super::store::{Io, Monitors, Objects, Osd};
use nvmf_cluster::{Action, Address, BootId, GroupId, Handle, OpId};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// How often a fault met a step that was under way, by both names.
pub(crate) type Coverage = BTreeMap<(&'static str, String), u64>;

/// What came of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) commands: u64,
    pub(crate) retried: u64,
    pub(crate) takeovers: u64,
    pub(crate) moves: u64,
    pub(crate) changes: u64,
    pub(crate) refused: u64,
    /// Reservations that were stored too late, and undone.
    pub(crate) undone: u64,
    /// The longest that a command took, and its end after the last fault.
    pub(crate) longest: Time,
    pub(crate) coverage: Coverage,
    /// A hash over all events in order, which is the same for the same seed.
    pub(crate) trace: u64,
}

/// A run that went wrong.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) what: String,
    /// What happened before, if it was asked for.
    pub(crate) trace: Vec<String>,
}

/// Something under way.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// To a process of a node.
    Process {
        node: usize,
        life: u32,
        input: Input,
    },
    /// To the objects or the monitors.
    Request {
        node: usize,
        life: u32,
        action: Action,
        from: From,
    },
    /// To an OSD.
    Io {
        node: usize,
        life: u32,
        handle: Handle,
        id: u64,
        io: Io,
        command: Command,
    },
    /// An OSD hears of a map by itself.
    Map {
        osd: usize,
        epoch: u64,
    },
    /// A slot sends, or sends again.
    Slot(usize),
    /// An answer of a gateway; `None`: it cannot, try another path.
    Answer {
        slot: usize,
        attempt: u64,
        node: usize,
        number: Option<u64>,
    },
    /// A slot waits no longer.
    Timeout {
        slot: usize,
        attempt: u64,
    },
    Fault(usize),
    FaultEnds(usize),
}

/// Who sends a request.
#[derive(Debug, Clone)]
pub(crate) struct From {
    pub(crate) boot: BootId,
    pub(crate) address: Address,
    /// Its client of the control plane was fenced.
    pub(crate) fenced: bool,
    /// Its map, if it is not the client of the control plane; and what does the I/O of the group.
    pub(crate) epoch: Option<u64>,
    pub(crate) carrier: Option<Address>,
    pub(crate) wall: i64,
    pub(crate) sent: Time,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) mistake: Option<Mistake>,
    pub(crate) rng: Rng,
    pub(crate) now: Time,
    queue: BTreeMap<(Time, u64), Event>,
    scheduled: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) objects: Objects,
    pub(crate) monitors: Monitors,
    pub(crate) osds: Vec<Osd>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) oracle: Oracle,
    pub(crate) outcome: Outcome,
    pub(crate) numbers: u64,
    /// Changes that were acknowledged, by version, and those that were not (yet): item and value.
    pub(crate) changed: BTreeMap<u64, (String, u64)>,
    pub(crate) unknown: Vec<(String, u64)>,
    /// Which range of Controller IDs a gateway has.
    pub(crate) ranges: BTreeMap<String, (u16, u16)>,
    pub(crate) reserved: BTreeMap<GroupId, Reserved>,
    /// A reservation was read by the owner with this generation.
    pub(crate) loaded: BTreeMap<GroupId, Address>,
    pub(crate) last_end: Time,
    /// Nothing goes wrong any more.
    pub(crate) calm: bool,
    /// Fences that the monitors refused.
    pub(crate) refused_fences: u32,
    trace: Option<Vec<String>>,
}

impl World {
    pub(crate) fn new(plan: Plan, mistake: Option<Mistake>, traced: bool) -> Self {
        let mut rng = Rng::new(plan.seed ^ 0x5eed);
        let node = |n: usize, rng: &mut Rng| {
            let (rate, wall) =
                (rng.below(40_001) as i64 - 20_000, rng.below(60 * SECOND) as i64 - 30 * SECOND as i64);
            Node::new(format!("gw{n}"), rate, if rng.percent(70) { wall / 100 } else { wall })
        };
        let nodes: Vec<Node> = (0..plan.nodes).map(|n| node(n, &mut rng)).collect();
        let slot = |group: u32, block: u64, reservation: bool| Slot {
            block: (GroupId(group), block),
            reservation,
            known: super::oracle::Known::default(),
            pending: None,
            gateway: 0,
        };
        let mut slots = Vec::new();
        for group in 1..=plan.groups {
            slots.extend((0..plan.hosts as u64 + 1).map(|block| slot(group, block, false)));
            slots.push(slot(group, 1000, true));
        }
        let mut world = Self {
            rng,
            now: 0,
            queue: BTreeMap::new(),
            scheduled: 0,
            nodes,
            objects: Objects::default(),
            monitors: Monitors::default(),
            osds: (0..plan.osds).map(|_| Osd::default()).collect(),
            slots,
            oracle: Oracle::default(),
            outcome: Outcome { trace: plan.seed, ..Outcome::default() },
            numbers: 0,
            changed: BTreeMap::new(),
            unknown: Vec::new(),
            ranges: BTreeMap::new(),
            reserved: BTreeMap::new(),
            loaded: BTreeMap::new(),
            last_end: plan.end(),
            calm: false,
            refused_fences: 0,
            trace: traced.then(Vec::new),
            plan,
            mistake,
        };
        for node in 0..world.nodes.len() {
            let at = world.rng.below(3 * SECOND);
            world.now = at;
            world.start(node);
        }
        world.now = 0;
        for slot in 0..world.slots.len() {
            let at = 6 * SECOND + world.rng.below(SECOND);
            world.at(at, Event::Slot(slot));
        }
        for (index, planned) in world.plan.faults.clone().into_iter().enumerate() {
            world.at(planned.at, Event::Fault(index));
            world.at(planned.at + planned.lasts, Event::FaultEnds(index));
        }
        world
    }

    /// A number that was not used.
    pub(crate) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(crate) fn at(&mut self, at: Time, event: Event) {
        self.scheduled += 1;
        self.queue.insert((at.max(self.now), self.scheduled), event);
    }

    /// Says what happens, if somebody wants to read it.
    pub(crate) fn say(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:9.4} {}", secs(self.now), what()));
        }
    }

    /// A delay in a network, with a tail.
    pub(crate) fn delay(&mut self, tail: Time) -> Time {
        match self.rng.below(200) {
            0 => self.rng.below(tail.max(1)),
            1..=6 => self.rng.below(50 * MS),
            _ => 100 + self.rng.below(900),
        }
    }

    /// Runs to the end.
    pub(crate) fn run(mut self) -> Result<Outcome, Failure> {
        match self.run_to_end() {
            Ok(()) => {
                self.outcome.takeovers = self.oracle.takeovers;
                self.outcome.moves = self.oracle.moves;
                Ok(self.outcome)
            }
            Err(what) => {
                let what = format!("at {:.4} s: {what}", secs(self.now));
                Err(Failure { what, trace: self.trace.unwrap_or_default() })
            }
        }
    }

    fn run_to_end(&mut self) -> Result<(), String> {
        let faults_end = self.last_end;
        self.run_until(faults_end)?;
        self.heal();
        // What waits longest: a lease that has to expire after a stall of the store, then attempts that failed before.
        let bound = faults_end + 60 * SECOND;
        while let Err(why) = self.is_settled() {
            if self.now >= bound {
                let mut what = format!("{:.0} s after the last fault {why}", secs(self.now - faults_end));
                for node in self.nodes.iter().filter(|node| node.running.is_some()) {
                    let status =
                        node.running.as_ref().map(|running| running.engine.status(node.clock(self.now)));
                    let _ = write!(
                        what,
                        "\n  {}: {}",
                        node.name,
                        serde_json::to_string(&status).unwrap_or_default()
                    );
                }
                return Err(what);
            }
            self.run_until(self.now + SECOND / 2)?;
        }
        if self.plan.balance {
            self.run_until(self.now + 45 * SECOND)?;
            self.is_settled()?;
            // What an operator has placed is not moved for it.
            let is_placed = |it: &Planned| matches!(it.fault, Fault::Move { .. });
            if !self.plan.moves_on && !self.plan.faults.iter().any(is_placed) {
                self.is_balanced()?;
            }
        }
        Ok(())
    }

    pub(crate) fn run_until(&mut self, until: Time) -> Result<(), String> {
        while let Some((&(at, number), _)) = self.queue.first_key_value() {
            if at > until {
                break;
            }
            let Some(event) = self.queue.remove(&(at, number)) else { break };
            self.now = at;
            let kind = match &event {
                Event::Process { node, life, input } => {
                    let input = match input {
                        Input::Act(_) => 1,
                        Input::Reply(op, ..) => 2 ^ op.0 << 8,
                        Input::Notified(_) => 3,
                        Input::Timer(_) => 4,
                        Input::Command(command) => 5 ^ command.attempt << 8,
                        Input::Unopened => 7,
                        Input::Io { io, result, .. } => 6 ^ io << 8 ^ result.unwrap_or(7) << 40,
                    };
                    *node as u64 ^ u64::from(*life) << 4 ^ input << 8
                }
                Event::Request { node, .. } => 100 + *node as u64,
                Event::Io { id, .. } => 200 ^ id << 8,
                Event::Map { osd, .. } => 300 + *osd as u64,
                Event::Slot(slot) => 400 + *slot as u64,
                Event::Answer { attempt, .. } | Event::Timeout { attempt, .. } => 500 ^ attempt << 10,
                Event::Fault(index) | Event::FaultEnds(index) => 600 + *index as u64,
            };
            self.outcome.trace =
                (self.outcome.trace ^ kind ^ at << 20).wrapping_mul(0x100_0000_01b3).rotate_left(5);
            self.on_event(event)?;
        }
        self.now = until;
        Ok(())
    }

    fn on_event(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Process { node, life, input } => return self.on_input(node, life, input),
            Event::Request { node, life, action, from } => return self.on_request(node, life, action, from),
            Event::Io { node, life, handle, id, io, command } => {
                return self.on_io(node, life, handle, id, io, command);
            }
            Event::Map { osd, epoch } => self.osds[osd].epoch = self.osds[osd].epoch.max(epoch),
            Event::Slot(slot) => self.on_slot(slot),
            Event::Answer { slot, attempt, node, number } => {
                return self.on_answer(slot, attempt, node, number);
            }
            Event::Timeout { slot, attempt } => self.on_slot_timeout(slot, attempt),
            Event::Fault(index) => self.on_fault(index),
            Event::FaultEnds(index) => self.on_fault_end(index),
        }
        Ok(())
    }

    /// Sends something to a process, over a connection that is cut until then.
    pub(crate) fn send_to(&mut self, node: usize, life: u32, after: Time, cut_until: Time, input: Input) {
        let at = self.past(self.now + after, cut_until);
        self.at(at, Event::Process { node, life, input });
    }

    /// When something arrives over a connection that is cut until then: it is sent again.
    pub(crate) fn past(&mut self, at: Time, cut_until: Time) -> Time {
        if at < cut_until { cut_until + self.rng.below(SECOND) } else { at }
    }

    /// The reply of an action that a process asked for.
    pub(crate) fn reply_to(&mut self, node: usize, life: u32, op: OpId, reply: nvmf_cluster::Reply) {
        let tail = Node::LATE / 2;
        let after = self.delay(tail) + self.slowness(node);
        let cut = self.nodes[node].control_cut_until;
        self.send_to(node, life, after, cut, Input::Reply(op, reply, None));
    }

    pub(crate) fn slowness(&mut self, node: usize) -> Time {
        if self.nodes[node].slow_until > self.now { self.rng.below(3 * SECOND) } else { 0 }
    }
}
