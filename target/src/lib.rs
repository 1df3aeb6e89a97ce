//! nvmf-target: exports disks and files over NVMe/RDMA.
//!
//! | module | what it holds |
//! |---|---|
//! | [`worker`] | [`worker::Worker`]: one `turn` from road to floor and back |
//! | [`transport`] | NVMe/RDMA between a provider, the engine and a backend |
//! | [`mail`] | what workers tell each other |
//! | [`telemetry`] | what is counted, and how often may be logged |
//! | [`limits`] | every bound |
//!
//! Contract: a worker is one thread's. It allocates when a host connects and not for a command; whatever a host does
//! ends at most its own association; nothing that a host can cause is waited for without a bound.
//!
//! What it does not do: protocol (the engine's), bytes on the wire (the provider's), files (the backend's).
#![forbid(unsafe_code)]

pub mod limits;
pub mod mail;
pub mod telemetry;
pub mod transport;
pub mod worker;
