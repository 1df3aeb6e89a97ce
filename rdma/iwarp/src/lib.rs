//! Userspace iWARP (MPA, DDP, RDMAP) over TCP: an [`nvmf_rdma::Provider`] that needs no device and interoperates with
//! stock Linux siw.
//!
//! | module | what it holds |
//! |---|---|
//! | [`config`] | [`IwarpConfig`]: CRC, FPDU size, times, limits |
//! | [`wire`] | the formats: MPA frames, DDP and RDMAP headers, CRC32C. Parse and emit, no I/O |
//! | `handshake` | the contents of MPA request and reply, no I/O |
//! | `memory` | the STag table: what a peer may reach |
//! | `qp` | one queue pair: bytes in become placements and completions, work in becomes FPDUs, no I/O |
//! | `provider` | [`IwarpProvider`]: ties them to sockets, which are those of `nvmf_stream` |
//!
//! Contract: one provider belongs to one thread at a time, has no thread of its own and makes progress only when it is
//! called. Nothing blocks, nothing grows beyond its bound whatever a peer sends, and once running no message allocates.
//!
//! What it does not do: markers (refused, as siw does), RFC 7306 atomics and immediate data, the port mapper.
#![forbid(unsafe_code)]

pub mod config;
mod handshake;
#[cfg(feature = "harness")]
#[doc(hidden)]
pub mod harness;
mod memory;
mod provider;
mod qp;
pub mod wire;

pub use config::{Crc, Fpdu, IwarpConfig, Revision};
pub use nvmf_stream::{HalfOpenLimits, StreamConfig};
pub use provider::{DetachedRequest, IwarpProvider};
