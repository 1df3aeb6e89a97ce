//! nvmf-target: exports disks and files over NVMe/RDMA.
//!
//! | module | what it holds |
//! |---|---|
//! | [`worker`] | [`worker::Worker`]: one `turn` from transport to backend and back |
//! | [`exec`] | what happens to a command, whatever carries it |
//! | [`transport`] | NVMe/RDMA and NVMe/TCP |
//! | [`message`] | what workers tell each other |
//! | [`barrier`] | when a change has come into force on all of them |
//! | [`settings`] | how large a worker is, how queues spread over workers |
//! | [`places`] | how many queues there may be, and how many of them are one machine's |
//! | [`telemetry`] | what is counted, and how often may be logged |
//! | [`metrics`] | what is measured of commands, and how it is read |
//! | [`daemon`], [`thread`](mod@thread), [`mailbox`] | the threads around the workers: start, reload, drain, stop |
//! | [`cluster`] | the group of gateways that this one is of: the thread that drives its engine |
//! | [`exports`], [`ports`] | what the engine is told: of namespaces and their disks, of listeners |
//! | [`sockets`] | listening sockets that outlive the process, in the hands of systemd |
//! | [`machine`] | the machine's addresses and mounts |
//! | [`cli`], [`control`], [`notify`], [`log`] | the command line, signals, systemd, the log |
//! | [`visible`] | text of others in a log or on a terminal |
//! | [`limits`] | every bound |
//!
//! Contract: a worker is one thread's. It allocates when a host connects and not for a command; whatever a host does
//! ends at most its own association; nothing that a host can cause is waited for without a bound.
//!
//! What it does not do: protocol (the engine's), bytes on the wire (the provider's), files (the backend's).
#![forbid(unsafe_code)]
// These macros panic where the output is full or closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod barrier;
pub mod cli;
pub mod cluster;
pub mod control;
pub mod daemon;
pub mod exec;
pub mod exports;
pub mod limits;
pub mod log;
pub mod machine;
pub mod mailbox;
pub mod mdns;
pub mod message;
pub mod metrics;
pub mod notify;
pub mod places;
pub mod ports;
pub mod qos;
pub mod settings;
pub mod sockets;
pub mod state;
pub mod telemetry;
pub mod thread;
pub mod transport;
pub mod visible;
pub mod worker;
