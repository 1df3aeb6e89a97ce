//! The storage devices: what stands behind a namespace.
//!
//! | module | what it holds |
//! |---|---|
//! | [`disk`] | opening: a file, a block device, memory, null; everything that can be wrong is found here |
//! | [`devices`] | [`Devices`]: one worker's devices behind [`nvmf_block::Backend`], and the ring that the worker sleeps in |
//! | [`uring`] | the ring itself, and the operations on files |
//! | [`ram`] | memory and null disks |
//! | [`decorator`] | backends around backends: delays, faults, write protection |
//! | [`simulated`] | a disk with a volatile cache, a virtual clock and power cuts |
//!
//! | kind | volatile cache | deallocate | block size by default |
//! |---|---|---|---|
//! | file | yes: `fdatasync` makes durable | punches holes, reads zeroes | 4096, or 512 if its size is no multiple of 4096 |
//! | block device | what the kernel says | yes, where the device can | its logical block size |
//! | memory | no | zeroes | 4096, or 512 likewise |
//! | null | no | does nothing | likewise |
//!
//! What it does not do: it knows neither NVMe nor RDMA, and starts no thread.

pub mod decorator;
pub mod devices;
pub mod disk;
pub mod ram;
mod rng;
pub mod simulated;
pub mod uring;

pub use devices::{DEVICES_MAX, Devices, DevicesError, DevicesOptions, Hung, WatchId};
pub use disk::{Disk, DiskSpec, FailedOperation, Failure, Health, Identity, IdentitySource, OpenError};
pub use uring::{RingError, Unpinned};
