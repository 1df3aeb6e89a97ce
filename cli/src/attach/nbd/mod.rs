//! An NBD server: how a remote namespace becomes a disk for `nbdcopy`, `qemu-img` and the kernel's nbd client.
//!
//! The NBD protocol (github.com/NetworkBlockDevice/nbd, doc/proto.md), fixed newstyle negotiation, simple and structured
//! replies.
//!
//! | file | what it holds |
//! |---|---|
//! | `server`, `client` | the clients and their sockets, and a turn of the thread that serves them |
//! | `session`, `input`, `negotiation` | a client without its socket: bytes in, requests; ended requests, replies |
//! | `structured` | replies in chunks, with holes; which parts of the disk are zeroes |
//! | `requests`, `request` | requests under way: checked, turned into operations, ended |
//! | `order` | which requests begin when |
//! | `pool` | memory for their data, registered with the backend |
//! | `listener` | the Unix socket |
//! | `place` | what is at its path, and who may change that |
//! | `disk` | what clients are told of the disk |
//! | `kernel` | the kernel's client |

mod client;
mod disk;
mod input;
pub(super) mod kernel;
mod listener;
mod negotiation;
mod order;
mod place;
mod pool;
mod request;
mod requests;
mod server;
mod session;
mod structured;

pub(super) use disk::DiskInfo;
pub(super) use listener::{Access, Listener};
pub(super) use place::{clear_away as clear_socket_away, is_same as is_same_socket};
pub(super) use server::Server;

#[cfg(test)]
mod tests;
