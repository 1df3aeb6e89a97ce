//! nvmf-target: exports disks and files over NVMe/RDMA.
//!
//! | module | what it holds |
//! |---|---|
//! | [`worker`] | [`worker::Worker`]: one `turn` from road to floor and back |
//! | [`transport`] | NVMe/RDMA between a provider, the engine and a backend |
//! | [`mail`] | what workers tell each other |
//! | [`settings`] | how large a worker is, how queues spread over workers |
//! | [`telemetry`] | what is counted, and how often may be logged |
//! | [`daemon`], [`thread`](mod@thread), [`office`] | the threads around the workers: start, reload, drain, stop |
//! | [`exports`] | what the configuration exports, opened |
//! | [`cli`], [`control`], [`notify`] | the command line, signals, systemd |
//! | [`patience`] | how long a worker spins |
//! | [`limits`] | every bound |
//!
//! Contract: a worker is one thread's. It allocates when a host connects and not for a command; whatever a host does
//! ends at most its own association; nothing that a host can cause is waited for without a bound.
//!
//! What it does not do: protocol (the engine's), bytes on the wire (the provider's), files (the backend's).
#![forbid(unsafe_code)]

pub mod cli;
pub mod control;
pub mod daemon;
pub mod exports;
pub mod limits;
pub mod mail;
pub mod notify;
pub mod office;
pub mod patience;
pub mod settings;
pub mod telemetry;
pub mod thread;
pub mod transport;
pub mod worker;
