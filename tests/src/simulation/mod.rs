//! A simulation of the real worker and the real driver under a virtual clock, over NVMe/RDMA and NVMe/TCP, with a
//! network that breaks and a disk that loses power.
//!
//! | module | contents |
//! |---|---|
//! | `mod` | [`run`]: runs a seed from the first connection to the last check |
//! | `world` | the targets, the hosts, and their clock; how many routes lead where |
//! | `target` | the workers of a target, their disk, and another disk |
//! | `plane` | the target's control plane: reservation commands, write protection |
//! | `operator` | takes the namespace away from hosts, and gives it back |
//! | `files` | the state directory |
//! | `host` | a host with random operations on its own blocks |
//! | `area` | where these are |
//! | `contents` | what they hold |
//! | `copy` | a host's Copy commands |
//! | `contest` | blocks that hosts contend for by Compare and Write |
//! | `network` | what connects hosts and targets, over each transport, and its faults |
//! | `path` | a driver of a host, with an association or several |
//! | `resets` | Cross-Controller Resets, as the daemon carries them out, or as a target without them would |
//! | `troubles` | power cuts, troubles of the disk, half-open connections, killed initiators, what hosts send for their rights |
//! | `oracle` | the contents that each block may have |
//! | `register` | the same, of a contested block |
//! | `rights` | who may read and write which blocks |
//! | `reservation` | a model of a reservation |
//! | `command` | what hosts send for reservation and write protection |
//! | `shrink` | [`shrink`]: makes a seed that fails shorter |
//!
//! A run depends only on its seed, so that a failure can be reproduced. `network/tcp` says where the kernel's timers
//! may play a part.

mod area;
mod command;
mod contents;
mod contest;
mod copy;
mod files;
mod host;
mod network;
mod operator;
mod oracle;
mod path;
mod plane;
mod register;
mod reservation;
mod resets;
mod rights;
mod shrink;
mod target;
mod troubles;
mod world;

pub use shrink::{Limits, Part, shrink, shrinks};

use network::{Network, RdmaNetwork, TcpNetwork};
use std::collections::BTreeMap;
use world::World;

/// What carries commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// NVMe/RDMA.
    Rdma,
    /// NVMe/TCP.
    Tcp,
}

/// How often a fault met an operation that was under way, by both names.
pub type Coverage = BTreeMap<(&'static str, &'static str), u64>;

/// Results of a seed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Operations completed.
    pub operations: u64,
    /// Power cuts.
    pub power_cuts: u32,
    /// Connections whose loss one side noticed before the other.
    pub half_open: u32,
    /// Associations lost, for any cause.
    pub losses: u64,
    /// Losses of one route of a path, while there were others.
    pub route_losses: u64,
    /// Initiators that were killed, and whose disk another one took over.
    pub taken_over: u32,
    /// Blocks that were read over another path than the one over which they were written.
    pub read_across: u64,
    /// Operations that were refused, for a reservation or because the namespace was taken away.
    pub refused: u64,
    /// Copies that succeeded.
    pub copied: u64,
    /// Compare and Write: blocks that were replaced.
    pub replaced: u64,
    /// Compare and Write: those that found another content than they expected.
    pub differed: u64,
    /// Which faults met which operations.
    pub coverage: Coverage,
    /// Connections that the network cut, beside those.
    pub cut: u32,
    /// Bits that were flipped under way.
    pub flipped: u32,
    /// The windows of TCP close at times, so that timers of the kernel's may play a part in the other results.
    pub windows_close: bool,
    /// A hash over all events in order, which is the same for the same seed.
    pub trace: u64,
}

/// Runs one seed.
///
/// # Panics
/// When a block has wrong contents, a side hangs, or a resource is leaked.
#[must_use]
pub fn run(transport: Transport, seed: u64) -> Outcome {
    run_within(transport, seed, &Limits::NONE)
}

/// Runs as much of a seed as these limits leave. Before the limit of time, all that happens is what happens without it.
///
/// # Panics
/// As [`run`].
#[must_use]
pub fn run_within(transport: Transport, seed: u64, limits: &Limits) -> Outcome {
    match transport {
        Transport::Rdma => run_over::<RdmaNetwork>(seed, limits),
        Transport::Tcp => run_over::<TcpNetwork>(seed, limits),
    }
}

fn run_over<N: Network>(seed: u64, limits: &Limits) -> Outcome {
    let mut world = World::<N>::new(seed, limits);
    world.run();
    world.finish()
}

/// Whether to print events: only if a single seed runs, and not while it is made shorter.
fn prints_events() -> bool {
    !shrinks() && std::env::var_os("NVMF_SIMULATION_SEED").is_some()
}
