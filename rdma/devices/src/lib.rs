//! Which RDMA devices this machine has, read from sysfs, and which provider serves an address.
//!
//! | module | what it holds |
//! |---|---|
//! | [`device`] | [`Device`] and [`Port`]: one RDMA device as `/sys/class/infiniband` shows it |
//! | [`gid`] | [`Gid`]: an entry of a port's GID table |
//! | [`netdev`] | [`Netdev`]: a network interface, the one beneath a port among them |
//! | [`machine`] | [`Machine`]: all of them together; who owns an address |
//! | [`choice`] | [`Choice`]: verbs or iwarp for an address, and why |
//! | [`sysfs`] | one file of sysfs or procfs, read |
//!
//! Contract: nothing here opens a device, needs a library or a right: files are read, and everything is a pure function
//! of their contents. What a kernel does not show is `None`, never an error.
//!
//! What it does not do: counters and advice (`nvmf doctor` does), device limits (verbs asks the device).
#![forbid(unsafe_code)]

pub mod choice;
pub mod device;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixture;
pub mod gid;
pub mod machine;
pub mod netdev;
pub mod sysfs;

pub use choice::{Choice, Reason, choose, source_towards};
pub use device::{Device, Driver, LinkLayer, NodeType, Port, PortState};
pub use gid::{Gid, GidType};
pub use machine::{Machine, Owner};
pub use netdev::{InterfaceAddress, Netdev};
