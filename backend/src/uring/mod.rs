//! `io_uring`: the ring, and the operations on files.

pub(crate) mod file;
mod operation;
mod ring;

pub(crate) use operation::direct_alignment;
pub(crate) use ring::{Event, FILES_MAX, Ring};
pub use ring::{RingError, Unpinned};
