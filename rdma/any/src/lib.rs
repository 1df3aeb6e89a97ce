//! Whichever RDMA an address has: a device's, by verbs, or userspace iWARP over TCP.
//!
//! | module | what it holds |
//! |---|---|
//! | [`road`] | [`Road`]: which provider, on which device, and how it was chosen |
//! | [`provider`] | [`AnyProvider`]: one of them, by the contract |
//!
//! Contract: a thread has one provider, of one kind; a request goes from one thread to another of the same [`Road`].
//!
//! What it does not do: it moves no bytes. A match a call is all that it costs.
#![forbid(unsafe_code)]

pub mod provider;
pub mod road;

pub use nvmf_verbs::PathMtu;
pub use provider::{AnyProvider, Detached};
pub use road::{OpenError, Preference, Road, VerbsOptions};
