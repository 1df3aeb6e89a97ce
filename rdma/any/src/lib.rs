//! Whichever RDMA an address has: a device's, by verbs, or userspace iWARP over TCP.
//!
//! | module | what it holds |
//! |---|---|
//! | [`selection`] | [`ProviderSelection`]: which provider, on which device, and how it was chosen |
//! | [`provider`] | [`AnyProvider`]: one of them, by the contract |
//!
//! Contract: a thread has one provider, of one kind; a request goes from one thread to another of the same
//! [`ProviderSelection`].
//!
//! What it does not do: it moves no bytes. Each call costs one `match`.
#![forbid(unsafe_code)]

pub mod provider;
pub mod selection;

pub use provider::{AnyProvider, Detached};
pub use selection::{OpenError, OpenOptions, Preference, ProviderSelection, VerbsOptions};
