//! A simulation of the real worker and the real driver under a virtual clock, with a fault-injecting provider and a
//! disk that loses power.
//!
//! | module | contents |
//! |---|---|
//! | `mod` | [`run`]: runs a seed from the first connection to the last check |
//! | `world` | the target, the hosts, and their clock |
//! | `target` | the workers, their disk, and another disk |
//! | `host` | a host with random operations on its own blocks |
//! | `path` | an association of a host, with its driver |
//! | `troubles` | power cuts, troubles of the disk, half-open connections |
//! | `oracle` | the contents that each block may have |
//!
//! A run depends only on its seed, so that a failure can be reproduced.

mod host;
mod oracle;
mod path;
mod rng;
mod target;
mod troubles;
mod world;

use world::World;

/// Results of a seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// A hash over all events in order, which is the same for the same seed.
    pub trace: u64,
}

/// Runs one seed.
///
/// # Panics
/// When a block has wrong contents, a side hangs, or a resource is leaked.
#[must_use]
pub fn run(seed: u64) -> Outcome {
    let mut world = World::new(seed);
    world.run();
    world.finish()
}

/// Whether to print events: only if a single seed runs.
fn prints_events() -> bool {
    std::env::var_os("NVMF_SIMULATION_SEED").is_some()
}
