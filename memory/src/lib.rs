//! Page-aligned memory that both the provider (RDMA) and the backend (`io_uring`) register.
//!
//! | item | what it is |
//! |---|---|
//! | [`Memory`] | one pinned-down allocation, shared by handle; it lives as long as its last holder |
//! | [`Pool`] | fixed-size buffers cut from a [`Memory`], handed out by index |
//!
//! Contract: a device, the kernel or a peer may read and write this memory at any moment, so nobody ever
//! holds a `&[u8]` or `&mut [u8]` into it. Bytes go in and out by copy ([`Memory::read`], [`Memory::write`]), or
//! stay where they are and are named by (offset, length) in a work request.
//!
//! Large allocations wish for huge pages, and are as right without them. What it does not do: locking and registration belong
//! to whoever holds the device.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod allocation;
mod copy;
mod pool;

pub use allocation::{Memory, OutOfMemory, PAGE};
pub use pool::{BufferIndex, Pool};
