//! Backends that wrap another backend.

mod delay;
mod fault;
mod read_only;

pub use delay::Delay;
pub use fault::{Fault, FaultOptions};
pub use read_only::ReadOnly;

/// Completions made by a decorator that wait to be polled. With more than these it is full.
const OWN_MAX: usize = 1024;
