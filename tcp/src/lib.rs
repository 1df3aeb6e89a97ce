//! The PDU machine of NVMe/TCP, for the controller and for the host: bytes in, events out. No I/O, no clock.
//!
//! | module | what it holds |
//! |---|---|
//! | [`receiver`] | [`PduReceiver`]: a stream of bytes becomes events; where data go is the caller's |
//! | [`head`] | [`Head`]: all bytes of a PDU before its data, for every type; termination requests |
//! | [`controller`] | [`controller::Transfers`]: the R2Ts that are outstanding, and the data that arrive for them |
//! | [`host`] | [`host::Commands`]: what each command may still send and receive; the answer to R2Ts |
//!
//! # Receiving
//!
//! The caller owns socket and memory. As long as [`PduReceiver::data_left`] is 0 it hands over the bytes that it has
//! ([`PduReceiver::on_bytes`]). An event with data announces them; their header and digest are verified by then, and
//! a ledger ([`controller::Transfers`], [`host::Commands`]) says whether they may come and where they belong. The next
//! `data_left` bytes of the stream are these data. The caller receives them straight into their place and reports it
//! ([`PduReceiver::on_memory`] and its siblings). [`Event::DataEnd`] says whether they arrived intact.
//!
//! # Ending a connection
//!
//! An error of the receiver ([`End`]) or of a ledger (`FatalError`) ends the connection. [`PduReceiver::terminate`]
//! makes the request that says why, and from then on the receiver ignores what arrives.
//! The controller sends the request and waits up to 30 s for the host to close; the host sends it and closes.
//!
//! # Contract
//!
//! No bytes of a peer lead to a panic. Nothing is allocated after a ledger was made, and its size depends on our queue
//! depth alone. A header is believed only after its digest was verified, except for type, HDGSTF and HLEN. Of several
//! invalid fields the first is reported.
//!
//! What it does not do: it holds no data, knows no command (its caller says how much each one reads or writes), has no
//! timeouts, and does not decide which digests are used.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod controller;
pub mod head;
pub mod host;
pub mod receiver;

pub use head::{Head, Termination, ToController, ToHost};
pub use nvmf_memory::Crc32c;
pub use receiver::{End, Event, PduReceiver};
