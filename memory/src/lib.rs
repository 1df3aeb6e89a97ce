//! Page-aligned memory that both the provider (RDMA) and the backend (`io_uring`) register.
//!
//! | item | what it is |
//! |---|---|
//! | [`Memory`] | one allocation, or mapping of a file, at a fixed address, shared by handles and freed with the last |
//! | [`Pool`] | fixed-size buffers in a [`Memory`], identified by index |
//! | [`Crc32c`] | the checksum of bytes, and of bytes in a [`Memory`] |
//!
//! Contract: a device, the kernel, a peer or another thread may read and write this memory at any time, so there is
//! never a `&[u8]` or `&mut [u8]` into it. Bytes are copied in and out ([`Memory::read`], [`Memory::write`]), or a
//! work request names them by offset and length.
//!
//! Large allocations ask for huge pages, and work without them. Pinning and registration are left to the owner of the
//! device.
#![no_std]

extern crate alloc;
#[cfg(any(test, feature = "std"))]
extern crate std;

mod allocation;
mod copy;
mod crc32c;
mod pool;

pub use allocation::{Memory, OutOfMemory, PAGE};
pub use crc32c::Crc32c;
pub use pool::{BufferIndex, Pool};
