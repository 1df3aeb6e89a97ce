//! `io_uring`: the ring, and the operations on files.

mod error;
pub(crate) mod file;
pub(crate) mod nvme;
mod queue;
mod regions;
mod ring;

pub use error::{RingError, Unpinned};
pub(crate) use regions::Regions;
pub(crate) use ring::{Event, FILES_MAX, NvmeRing, Ring};
