//! Fuzz targets, and the replay of their corpus.
//!
//! | target | meaning of the input |
//! |---|---|
//! | [`capsule`] | capsules, results, delays and namespace changes for an enabled controller and its I/O queue |
//! | [`connect_data`] | Connect commands and their data, for the registry |
//! | [`private_data`] | the private data of an NVMe/RDMA connection, in both directions |
//! | [`mpa`] | an MPA request or reply, in arbitrary pieces |
//! | [`ddp_rdmap`] | the byte stream of an established iWARP queue pair, in arbitrary pieces |
//! | [`config`] | the text of a configuration file |
//! | [`control`] | a line of a client of the control socket |
//! | [`host_completion`] | responses to the host engine: completions, data pages, missing responses |
//! | [`tcp_receiver`] | the byte stream of an NVMe/TCP connection at either side, in arbitrary pieces |
//! | [`gateway`] | what a gateway of a group finds in the store, what the store replies and when |
//! | [`authentication`] | messages of DH-HMAC-CHAP to both sides, in any order; the text of a secret |
//! | [`conversation_tcp`] | a host's conversation with a worker over sockets: connections, PDUs, pieces, time |
//! | [`conversation_rdma`] | the same over the loopback fabric: queue pairs, capsules, keys, time |
//! | [`conversation_host`] | our host's conversation with a worker whose PDUs are changed, forged, held back and lost |
//! | [`tls_key`] | the identity that a ClientHello names; the text of a key |
//!
//! Each target is a plain function. Under `cargo fuzz`, libFuzzer calls it (`fuzz_targets/`); on the stable toolchain,
//! `tests/replay.rs` calls it with the corpus and with generated inputs. A target also asserts invariants that apply to
//! every input.
#![forbid(unsafe_code)]

mod authentication;
mod capsule;
mod config;
mod connect_data;
mod control;
mod conversation;
mod ddp_rdmap;
mod disk;
mod gateway;
mod host_completion;
mod input;
mod mpa;
mod private_data;
mod tcp_receiver;
mod tls_key;

pub use authentication::authentication;
pub use capsule::capsule;
pub use config::config;
pub use connect_data::connect_data;
pub use control::control;
pub use conversation::{conversation_host, conversation_rdma, conversation_tcp};
pub use ddp_rdmap::ddp_rdmap;
pub use gateway::gateway;
pub use host_completion::host_completion;
pub use mpa::mpa;
pub use private_data::private_data;
pub use tcp_receiver::tcp_receiver;
pub use tls_key::tls_key;

/// A target: takes any bytes, and panics if an invariant is violated.
pub type Target = fn(&[u8]);

/// All targets by name, which is also the name of the corpus folder.
pub const TARGETS: [(&str, Target); 15] = [
    ("capsule", capsule),
    ("connect_data", connect_data),
    ("private_data", private_data),
    ("mpa", mpa),
    ("ddp_rdmap", ddp_rdmap),
    ("config", config),
    ("control", control),
    ("host_completion", host_completion),
    ("tcp_receiver", tcp_receiver),
    ("authentication", authentication),
    ("tls_key", tls_key),
    ("gateway", gateway),
    ("conversation_tcp", conversation_tcp),
    ("conversation_rdma", conversation_rdma),
    ("conversation_host", conversation_host),
];
