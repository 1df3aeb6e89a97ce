//! `io_uring`: the ring, and the operations on files.

mod error;
pub(crate) mod file;
mod operation;
mod ring;

pub use error::{RingError, Unpinned};
pub(crate) use operation::direct_alignment;
pub(crate) use ring::{Event, FILES_MAX, Ring};
