//! Storage backend: files, block devices, Ceph's RBD images, memory and null disks.
//!
//! | module | what it holds |
//! |---|---|
//! | [`disk`] | opening a disk, with all checks; its identity and its failures |
//! | [`devices`] | [`Devices`]: one worker's devices as a [`nvmf_block::Backend`], and the ring it sleeps in |
//! | [`uring`] | the ring, and operations on files |
//! | [`ram`] | memory and null disks |
//! | [`decorator`] | backends that wrap another: delays, faults, write protection |
//! | [`simulated`] | a disk with a volatile cache, a virtual clock, power cuts, failed flushes and hangs |
//!
//! | kind | volatile cache | deallocate | block size by default |
//! |---|---|---|---|
//! | file | yes; a flush is `fdatasync` | punches holes, reads zeroes | 4096; 512 if the size requires it |
//! | block device | as the kernel says; yes through the page cache | where the device can | its logical block size |
//! | RBD image | no, unless it is configured with `rbd_cache` | by object | 4096; 512 if the size requires it |
//! | NVMe drive | as the drive says | where the drive can | its logical block size |
//! | memory | no | zeroes | likewise |
//! | null | no | does nothing | likewise |
//!
//! It does not depend on RDMA, and on NVMe only for the commands to a local drive; it starts no thread but those
//! that have the kernel share blocks of files, and logs nothing.

pub mod decorator;
pub mod devices;
pub mod disk;
pub mod ram;
mod rng;
pub mod simulated;
pub mod uring;

pub use devices::{DEVICES_MAX, Devices, DevicesError, DevicesOptions, Hung, OpenedDisk, WatchId};
pub use disk::{
    Disk, DiskSpec, DiskToLookAt, FailedOperation, Failure, Health, Identity, IdentitySource, ImageSource,
    OpenError, Opener, Presence, Thermometer,
};
pub use nvmf_rados::{ClusterSpec, Encryption, Error as CephError};
pub use uring::{RingError, Unpinned};
