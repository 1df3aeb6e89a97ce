//! `io_uring`: the ring, and the operations on files.

pub(crate) mod file;
mod operation;
mod ring;

pub use ring::RingError;
pub(crate) use ring::{Event, FILES_MAX, Ring};
