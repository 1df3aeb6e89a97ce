//! Block devices: geometry, operations, errors, and the contract of a storage backend.
//!
//! | module | what it holds |
//! |---|---|
//! | [`geometry`] | block size, capacity, what the device can do; [`BlockRange`] with checked arithmetic |
//! | [`op`] | [`BlockOp`], the buffers that it uses, [`BlockError`] |
//! | [`backend`] | [`Backend`]: submit, flush, poll |
//! | [`conformance`] | the test suite that every backend passes, decorators and the remote disk included |
//!
//! It opens nothing, and does not depend on NVMe or RDMA.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod backend;
pub mod conformance;
pub mod geometry;
pub mod op;

pub use backend::{Backend, BorrowedRead, Completion, DeviceId, Full, Tag};
pub use geometry::{BlockRange, Geometry, Preferred};
pub use op::{BlockError, BlockOp, Buffer, COMPARE_AND_WRITE_MAX, MEMORY_ALIGNMENT, RegionId};
