//! The NVMe host engine: the initiator side, without I/O.
//!
//! | module | what it holds |
//! |---|---|
//! | [`association`] | one controller: connect → enable → identify → ready → shut down or lost |
//! | [`queue`] | a submission queue's commands in flight; CID = slab key and rolling sequence |
//! | [`command`] | a submission queue entry that still lacks its CID and its data pointer |
//! | [`identity`] | which disk a namespace is, and whether it still is the one that was opened |
//! | [`io`] | block operations on a namespace, split at the controller's limits |
//! | [`admin`] | the admin and Fabrics commands, one builder each |
//! | [`discovery`] | the discovery log page, read under the GENCTR rule |
//! | [`recovery`] | when to reconnect, what becomes of the I/O: pure policy |
//! | [`status`] | NVMe status → `BlockError`, the only place |
//! | [`limits`] | every bound |
//!
//! Contract: the caller moves the bytes and tells the time. It performs what `poll_action` gives until that is
//! `None`, reports what happened through `on_*`, and calls `on_timeout` when `poll_timeout` is due. `now` is any
//! monotonic time since any epoch, the same for all calls. Nothing here panics on what a controller sends.
//!
//! What it does not do: open a socket, post a work request, read a clock, hold a data buffer of an I/O command.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod admin;
pub mod association;
pub mod command;
pub mod discovery;
pub mod identity;
pub mod io;
pub mod limits;
pub mod queue;
pub mod recovery;
pub mod status;

pub use association::{
    Action, AdminData, Association, AssociationConfig, AssociationError, AuthenticationConfig, CommandId,
    ControllerInfo, QueueFailure, Reply,
};
pub use command::{Command, DataPointer};
pub use discovery::DiscoveryLog;
pub use identity::{Mismatch, NamespaceIdentity};
pub use io::{CommandLimits, Namespace, Operation, Part, Parts};
pub use nvme_proto::{Cid, Cntlid, HostId, Nqn, Nsid, Qid, Status};
pub use queue::{FlowControl, Outcome, Queue, Violation};
pub use recovery::{Decision, Fate, Recovery, RecoveryPolicy, Tries};
