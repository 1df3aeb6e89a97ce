//! The engine of a gateway group: which gateway serves which ANA group, and with which configuration, without I/O.
//!
//! | module | what it holds |
//! |---|---|
//! | [`Gateway`] | one gateway of the group: replies, hints and the time in, [`Action`]s out |
//! | [`action`] | what the caller is asked to do, in the words of RADOS, and what it replies |
//! | [`map`] | the entry of an ANA group: who may do its I/O, and the rules by which that changes |
//! | `lease` | this gateway's lease, and what is known of the others' |
//! | `group` | the steps of a takeover and of a move, of one ANA group |
//! | `placement` | which gateway takes a group, and when one is moved for balance |
//! | [`configuration`] | the group's configuration, as versioned state; edits |
//! | [`registry`] | records of gateways; ranges of Controller IDs |
//! | [`reservations`] | reservations that persist, as versioned state |
//! | `encoding` | how all of these are stored |
//! | [`timing`] | every time, and what must hold between them |
//! | [`status`] | what an operator is shown |
//!
//! The contract:
//!
//! 1. Host I/O of an ANA group goes only through the handle whose client address stands in the group's entry. So: connect
//!    a handle, store its address by compare-and-set, open the images, answer I/O.
//! 2. Nobody replaces an entry with an address in it without fencing that address, except its owner after draining.
//!
//! Every [`Action`] with an [`OpId`] is answered by one [`Reply`], however late; no reply means that it still waits.
//! Safety depends on no clock: leases and timers decide only when somebody tries.
//!
//! What it does not do: it opens no handle or image, knows nothing of what a configuration item says, and has no clock.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod action;
pub mod configuration;
mod encoding;
mod gateway;
mod group;
mod lease;
pub mod map;
mod name;
mod placement;
pub mod registry;
pub mod reservations;
pub mod status;
pub mod timing;

pub use action::{Action, Handle, Lack, Locker, Object, OpId, Reply, Snapshot, Unopened, Via};
pub use encoding::Unreadable;
pub use gateway::{Gateway, Identity, RequestError, RequestId};
pub use name::{Address, BootId, GatewayName, GroupId, InvalidName, Process};
pub use nvme_proto::admin::log_page::AnaState;
pub use registry::{ConnectedHosts, Listens};
pub use status::Status;
pub use timing::Timing;
