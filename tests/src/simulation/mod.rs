//! A simulation of the real worker and the real driver under a virtual clock, over NVMe/RDMA and NVMe/TCP, with a
//! network that breaks and a disk that loses power.
//!
//! | module | contents |
//! |---|---|
//! | `mod` | [`run`]: runs a seed from the first connection to the last check |
//! | `world` | the target, the hosts, and their clock |
//! | `target` | the workers, their disk, and another disk |
//! | `host` | a host with random operations on its own blocks |
//! | `network` | what connects hosts and target, over each transport, and its faults |
//! | `path` | an association of a host, with its driver |
//! | `troubles` | power cuts, troubles of the disk, half-open connections |
//! | `oracle` | the contents that each block may have |
//!
//! A run depends only on its seed, so that a failure can be reproduced. `network/tcp` says where the kernel's timers
//! may play a part.

mod host;
mod network;
mod oracle;
mod path;
mod rng;
mod target;
mod troubles;
mod world;

use network::{Network, RdmaNetwork, TcpNetwork};
use world::World;

/// What carries commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// NVMe/RDMA.
    Rdma,
    /// NVMe/TCP.
    Tcp,
}

/// Results of a seed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Operations completed.
    pub operations: u64,
    /// Power cuts.
    pub power_cuts: u32,
    /// Connections whose loss one side noticed before the other.
    pub half_open: u32,
    /// Associations lost, for any cause.
    pub losses: u64,
    /// Blocks that were read over another path than the one over which they were written.
    pub read_across: u64,
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
    match transport {
        Transport::Rdma => run_over::<RdmaNetwork>(seed),
        Transport::Tcp => run_over::<TcpNetwork>(seed),
    }
}

fn run_over<N: Network>(seed: u64) -> Outcome {
    let mut world = World::<N>::new(seed);
    world.run();
    world.finish()
}

/// Whether to print events: only if a single seed runs.
fn prints_events() -> bool {
    std::env::var_os("NVMF_SIMULATION_SEED").is_some()
}
