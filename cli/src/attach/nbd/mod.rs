//! An NBD server: how a remote namespace becomes a disk for `nbdcopy`, `qemu-img` and the kernel's nbd client.
//!
//! The NBD protocol (github.com/NetworkBlockDevice/nbd, doc/proto.md), fixed newstyle negotiation, simple replies.

mod connection;
mod disk;
pub(super) mod kernel;
mod negotiation;
mod request;
mod server;

pub(super) use connection::transmit;
pub(super) use disk::{Disk, DiskInfo};
pub(super) use request::Order;
pub(super) use server::Server;

#[cfg(test)]
mod tests;
