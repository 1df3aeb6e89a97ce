//! The real worker and the real driver under one virtual clock, over a faulty provider and a disk that loses power, from one seed.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod` | [`run`]: one seed, from its first connection to its last check |
//! | `world` | the target, the hosts, the clock; power cuts |
//! | `host` | a host: random operations on blocks of its own |
//! | `oracle` | what each block may hold |
//!
//! Nothing in it depends on anything but the seed: a seed that fails, fails again in the same way.

mod host;
mod oracle;
mod rng;
mod world;

use world::World;

/// What a seed came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Operations that ended.
    pub operations: u64,
    /// Power cuts.
    pub crashes: u32,
    /// Associations that were lost, whatever the cause.
    pub losses: u64,
    /// A hash over everything that happened, in its order: the same for the same seed.
    pub trace: u64,
}

/// Runs one seed.
///
/// # Panics
/// When a block does not hold what it may, something hangs, or something is left behind at the end.
#[must_use]
pub fn run(seed: u64) -> Outcome {
    let mut world = World::new(seed);
    world.play();
    world.finish()
}

/// A seed that runs alone tells what happens.
fn tells_its_story() -> bool {
    std::env::var_os("NVMF_SIMULATION_SEED").is_some()
}
