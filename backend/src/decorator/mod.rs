//! Backends around backends.

mod delay;
mod fault;
mod read_only;

pub use delay::Delay;
pub use fault::{Fault, FaultOptions};
pub use read_only::ReadOnly;

/// Completions of a decorator's own making that wait to be polled: past them it is full.
const OWN_MAX: usize = 1024;
