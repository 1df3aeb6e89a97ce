//! Wire types of NVMe, NVMe over Fabrics, NVMe/RDMA and NVMe/TCP.
//!
//! Every module has two kinds of types. The raw struct is the bytes as they are on the wire: little-endian integers of
//! alignment 1, its size asserted at compile time, readable from any bytes of that length. The parsed value is what the
//! bytes mean, and is smaller: `parse` is where the wire's "0's based" counts (fields that end in `_z`) become counts,
//! and nowhere else.
//!
//! | module | what it holds |
//! |---|---|
//! | [`ident`], [`nqn`] | identifiers and names |
//! | [`status`] | every status code, and its text |
//! | [`sqe`], [`cqe`], [`sgl`], [`opcode`] | the 64-byte submission, the 16-byte completion, and where data are |
//! | [`admin`] | Identify, log pages, features, asynchronous events |
//! | [`nvm`] | reads, writes and the rest of the NVM command set |
//! | [`fabrics`] | Connect, properties, Disconnect, discovery, authentication |
//! | [`rdma`] | the private data of NVMe/RDMA connections |
//! | [`tcp`] | the PDUs of NVMe/TCP |
//!
//! Contract: parsing never panics, whatever the bytes; a value that the standard does not name is a value, not an
//! error.
//!
//! What it does not do: it decides nothing, allocates nothing, and knows of RDMA only private data and keyed SGLs.
#![no_std]
#![forbid(unsafe_code)]

#[macro_use]
mod open_enum;

pub mod admin;
pub mod cqe;
pub mod fabrics;
pub mod ident;
pub mod nqn;
pub mod nvm;
pub mod opcode;
pub mod rdma;
pub mod sgl;
pub mod sqe;
pub mod status;
pub mod tcp;

pub use cqe::Cqe;
pub use ident::{Cid, Cntlid, HostId, Nsid, Qid};
pub use nqn::Nqn;
pub use sgl::{Sgl, SglDescriptor};
pub use sqe::Sqe;
pub use status::Status;
