//! What happens in a run, drawn from its seed before it begins. So a failing run can be made shorter by leaving things out.

use super::rng::Rng;
use std::fmt;

/// Virtual time, in microseconds.
pub(crate) type Time = u64;
pub(crate) const MS: Time = 1000;
pub(crate) const SECOND: Time = 1000 * MS;

/// Something that goes wrong, or that somebody does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGSTOP, and SIGCONT later.
    Stop { node: usize },
    /// The process dies; another one starts later, if at all.
    Crash { node: usize, again: bool },
    /// Its connections to the store's control objects, to its data, and to hosts.
    Cut { node: usize, control: bool, data: bool, hosts: bool },
    /// Its connection for control is slow.
    Slow { node: usize },
    /// It has what it has, and cannot take groups.
    Unable { node: usize, how: Unable },
    /// The whole store hangs.
    Stall,
    /// The placement group of one object hangs: the map, the configuration, the records, or the lease of a node.
    StallObject { object: usize },
    /// An OSD hangs.
    StallOsd { osd: usize },
    /// No quorum of monitors.
    Monitor,
    /// The store writes no keys: its pool is full.
    Full,
    /// Writes of keys fail, of which some were done.
    Unclear,
    /// A clean stop, and a start later.
    Leave { node: usize },
    /// A second process with the name of this one.
    Twin { node: usize },
    /// An operator fences what a node does I/O with.
    Fence { node: usize },
    /// An operator fences a node's client of the control plane.
    FenceControl { node: usize },
    /// An operator changes an item, at this node.
    Edit { node: usize, key: u8 },
    /// An operator moves a group, at this node.
    Move { node: usize, group: u32, to: usize },
}

impl Fault {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop { .. } => "stopped and woken",
            Self::Crash { .. } => "crash",
            Self::Cut { hosts: true, .. } => "cut from all",
            Self::Cut { .. } => "cut from the store",
            Self::Slow { .. } => "slow store",
            Self::Unable { .. } => "cannot take groups",
            Self::Stall => "stall for all",
            Self::StallObject { .. } => "stall of an object",
            Self::StallOsd { .. } => "stall of an OSD",
            Self::Monitor => "monitors down",
            Self::Full => "store writes nothing",
            Self::Unclear => "writes that fail",
            Self::Leave { .. } => "clean stop",
            Self::Twin { .. } => "second of a name",
            Self::Fence { .. } => "fenced by an operator",
            Self::FenceControl { .. } => "control client fenced",
            Self::Edit { .. } => "change",
            Self::Move { .. } => "move",
        }
    }

    /// The node that this befalls alone: the others may take its groups.
    pub(crate) fn victim(self, nodes: usize) -> Option<usize> {
        match self {
            Self::Stop { node }
            | Self::Crash { node, .. }
            | Self::Cut { node, .. }
            | Self::Slow { node }
            | Self::Leave { node }
            | Self::Twin { node }
            | Self::Fence { node }
            | Self::FenceControl { node } => Some(node),
            Self::StallObject { object } => object.checked_sub(3).filter(|node| *node < nodes),
            _ => None,
        }
    }
}

/// Why a gateway cannot take groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unable {
    /// New connections to the store are refused: its key was changed.
    Connect,
    /// They hang.
    Hang,
    /// The monitors let it fence nobody.
    Fence,
    /// No image can be opened.
    Open,
    /// One of two images of each group does not open.
    OpenAll,
    /// One of two does not answer: hosts get the other one, and a look at them ends late.
    OneHangs,
    /// One of two has another disk behind its name, or none.
    OneGone,
}

/// A fault, from when on, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Planned {
    pub(crate) at: Time,
    pub(crate) lasts: Time,
    pub(crate) fault: Fault,
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:8.3} s, for {:.1} s: {:?}", secs(self.at), secs(self.lasts), self.fault)
    }
}

pub(crate) fn secs(time: Time) -> f64 {
    time as f64 / SECOND as f64
}

/// A run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) nodes: usize,
    pub(crate) groups: u32,
    pub(crate) osds: usize,
    pub(crate) hosts: usize,
    pub(crate) faults: Vec<Planned>,
    /// Whether the balance between gateways is awaited at the end.
    pub(crate) balance: bool,
    /// Whether an operator moves each group on to a third gateway the moment it was taken over. Hosts use their blocks
    /// rarely then, and more I/O hangs: OSDs hear of a fence late, and late writes find them.
    pub(crate) moves_on: bool,
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let nodes = 2 + rng.below(3) as usize;
        let mut plan = Self {
            seed,
            nodes,
            groups: 1 + rng.below(5) as u32,
            osds: 1 + rng.below(3) as usize,
            hosts: 1 + rng.below(2) as usize,
            faults: Vec::new(),
            balance: rng.percent(25),
            moves_on: false,
        };
        // In some runs much happens at once, in others one thing after the other.
        let (count, span) = (rng.below(9), (20 + rng.below(40)) * SECOND);
        // In some, gateways sleep through takeovers and wake soon after them, which is when they know least.
        let sleepy = rng.percent(8);
        for _ in 0..count {
            let drawn = plan.draw(&mut rng);
            let at = 12 * SECOND + rng.below(span);
            let longest = if rng.percent(60) { 12 } else { 35 } * SECOND;
            let fault =
                if sleepy { Fault::Stop { node: rng.below(plan.nodes as u64) as usize } } else { drawn };
            let lasts = match fault {
                Fault::Stop { .. } if sleepy => 6 * SECOND + rng.below(6 * SECOND),
                Fault::Stall if rng.percent(50) => 30 * SECOND,
                Fault::Crash { .. } if rng.percent(40) => rng.below(SECOND),
                _ => 500 * MS + rng.below(longest),
            };
            plan.faults.push(Planned { at, lasts, fault });
        }
        plan.draw_failing_writes(seed, span);
        plan.faults.sort_by_key(|planned| planned.at);
        plan.moves_on = nodes > 2 && rng.percent(20);
        plan
    }

    /// In a quarter of the runs. By numbers of their own: the other faults stay what they are.
    fn draw_failing_writes(&mut self, seed: u64, span: Time) {
        let mut rng = Rng::new(seed ^ 0x00fa_11ed);
        if !rng.percent(25) {
            return;
        }
        for _ in 0..1 + rng.below(3) {
            let fault = if rng.percent(50) { Fault::Full } else { Fault::Unclear };
            let (at, lasts) = (10 * SECOND + rng.below(span), 500 * MS + rng.below(25 * SECOND));
            self.faults.push(Planned { at, lasts, fault });
        }
    }

    fn draw(&self, rng: &mut Rng) -> Fault {
        let node = rng.below(self.nodes as u64) as usize;
        match rng.below(22) {
            0..=3 => Fault::Stop { node },
            // The last node always comes back.
            4..=6 => Fault::Crash { node, again: node + 1 == self.nodes || rng.percent(80) },
            7 | 8 => Fault::Cut { node, control: true, data: rng.percent(60), hosts: rng.percent(40) },
            9 => Fault::Slow { node },
            10 => Fault::Stall,
            11 => Fault::StallObject { object: rng.below(3 + self.nodes as u64) as usize },
            12 => Fault::StallOsd { osd: rng.below(self.osds as u64) as usize },
            13 => Fault::Monitor,
            14 => Fault::Leave { node },
            15 => match rng.below(3) {
                0 => Fault::Twin { node },
                1 => Fault::Fence { node },
                _ => Fault::FenceControl { node },
            },
            20 | 21 => {
                let hows = [Unable::Connect, Unable::Hang, Unable::Open, Unable::OpenAll, Unable::OneHangs];
                Fault::Unable { node, how: hows[rng.below(hows.len() as u64) as usize] }
            }
            16 | 17 => Fault::Edit { node, key: rng.below(3) as u8 },
            _ => {
                let to = rng.below(self.nodes as u64) as usize;
                Fault::Move { node, group: 1 + rng.below(self.groups.into()) as u32, to }
            }
        }
    }

    /// Whether all that it names is there.
    pub(crate) fn is_sound(&self) -> bool {
        self.faults.iter().all(|planned| match planned.fault {
            Fault::Move { group, .. } => group <= self.groups,
            Fault::StallOsd { osd } => osd < self.osds,
            _ => true,
        })
    }

    /// When nothing goes wrong any more.
    pub(crate) fn end(&self) -> Time {
        self.faults.iter().map(|planned| planned.at + planned.lasts).max().unwrap_or(0).max(15 * SECOND)
    }
}
