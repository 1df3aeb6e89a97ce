//! Backends around backends.

mod delay;
mod fault;
mod read_only;

pub use delay::Delay;
pub use fault::{Fault, FaultOptions};
pub use read_only::ReadOnly;
