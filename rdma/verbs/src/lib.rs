//! RDMA devices through libibverbs and librdmacm: InfiniBand, RoCE v1 and v2, iWARP cards, and the kernel's rxe and
//! siw.
//!
//! | module | what it holds |
//! |---|---|
//! | [`VerbsProvider`] (`provider`) | the contract on one side, the device on the other |
//! | `open` | the device opened |
//! | `loss` | the device gone from under its connections |
//! | `make` | queue pairs made and destroyed |
//! | `post` | work checked and collected until the doorbell rings |
//! | `sleep` | what ends a sleep, and how little is asked for it |
//! | `reap` | what the device completed, and what follows from it |
//! | `requests` | listeners, and what peers ask of them |
//! | `connection` | set-up, from what the connection manager tells |
//! | `teardown` | the end of connections: sent, flushed, reported |
//! | `queue_pair` | a queue pair: its device queues, how far its life is |
//! | `outstanding` | work requests that have not completed, in order |
//! | `shared` | shared receive queues |
//! | `completion` | completion queues, and what completions mean |
//! | `memory` | regions, and the windows through which peers see parts of them |
//! | `config` | what can be chosen |
//! | `ffi` | the C libraries: the only files with pointers and `unsafe` |
//!
//! **The libraries are loaded at run time.** Nothing of rdma-core is needed to build, and the same binary runs where
//! there is none: there [`VerbsProvider::new`] fails and names what to install.
//!
//! **What a peer can reach.** Where the device makes memory windows of type 2 (`per_command_keys`), a peer reaches
//! exactly the bytes of one command for as long as it runs. Where it makes none (Soft-iWARP, iWARP cards, Broadcom's
//! with rdma-core's library), a peer that was given a key keeps it, and reaches everything registered in the same
//! region, with the right it was registered with, until the region is deregistered: for an initiator that is its data
//! memory, so connect such devices only to targets that are trusted as much as the disk itself. Whether windows are
//! there is found out by making one when the device is opened.
//!
//! **RDMA READs over iWARP** name their sink to the peer: key and address go over the wire, and the key needs remote
//! write. So every READ has a registration of its own bytes, made when it is posted and ended before its completion is
//! seen: a system call and a command of the device for each. Windows are not used for it: a window's key as a local
//! element is nothing that the library promises, and of the iWARP drivers irdma alone announces them, where Intel has
//! withdrawn them. All this is why `auto` prefers userspace iWARP to an iWARP device.
//!
//! **A device that goes away** (removal, reset, a completion queue in error, a queue pair that it does not destroy)
//! ends its connections and then the provider; a new provider has to be opened. Memory that it did not release is never
//! freed, because it may still write to it.
//!
//! **Soft-RoCE does not enforce its windows** (Linux 6.12): it checks a peer's access through a window against the
//! whole region, lets any connection invalidate any window, and reports an invalidation with the kernel's own flag. The
//! provider handles the flag; for the rest it reports that keys are not strict (`strict_keys`). rxe is for trying
//! things out, not for peers that are not trusted.
//!
//! **What InfiniBand and iWARP do differently.** A SEND that finds no receive waits on InfiniBand and RoCE (the peer's
//! device tries again, `rnr_retry_count` times, without end by default); on iWARP devices it ends the connection.
//! Private data is limited to 56 bytes in a request, 196 in an answer and 148 in a rejection on InfiniBand and RoCE,
//! and padded with zeros to that size on its way. Selective signalling is InfiniBand's and RoCE's: Soft-iWARP sends the
//! pages of an unsignalled request by reference, and says by no completion when they may be reused. A Soft-iWARP device
//! connects its TCP stream in `connect` itself and waits for that: against an address that swallows packets it does not
//! keep the contract's promise not to block.
//!
//! What it does not do: it polls no device in a thread of its own, and it knows no NVMe.

mod completion;
mod config;
mod connection;
mod ffi;
mod loss;
mod make;
mod memory;
mod open;
mod outstanding;
mod post;
mod provider;
mod queue_pair;
mod reap;
mod requests;
mod shared;
mod sleep;
mod teardown;
#[cfg(test)]
mod tests;

pub use config::{OpenError, VerbsConfig};
pub use ffi::NoLibrary;
pub use provider::VerbsProvider;
pub use requests::DetachedRequest;

/// Whether RDMA devices can be used at all.
///
/// # Errors
/// The library that is missing.
pub fn usable() -> Result<(), NoLibrary> {
    ffi::device_names().map(drop)
}
