//! NVMe/TCP of a worker as hosts see it, over real sockets: what they agree on, what they break, and how they end.
//! The rows are those of docs/COMPLIANCE.md, "NVMe/TCP: faults of others".

mod beside;
mod capsules;
mod commands;
mod connects;
mod crowds;
mod digests;
mod ends;
mod faults;
mod host;
mod initialize;
mod order;
mod pdu;
mod strangers;
mod tls;
mod world;
