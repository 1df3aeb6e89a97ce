//! Fuzz targets, and the replay of their corpus.
//!
//! | target | what arbitrary bytes become |
//! |---|---|
//! | [`capsule`] | capsules, results, time and changes for an enabled controller and its I/O queue |
//! | [`connect_data`] | Connect commands and their data, against the registry |
//! | [`private_data`] | the private data of an NVMe/RDMA connection, in both directions |
//! | [`mpa`] | an MPA request or reply, in arbitrary pieces |
//! | [`ddp_rdmap`] | the byte stream of an established iWARP queue pair, in arbitrary pieces |
//! | [`config`] | a configuration file |
//! | [`host_completion`] | what a controller answers to the host engine: completions, pages, silence |
//!
//! Each target is a plain function. Under `cargo fuzz` libFuzzer calls it (`fuzz_targets/`); on the stable toolchain
//! `tests/replay.rs` calls it with the corpus and with generated inputs. A target asserts what must hold for every
//! input, not only that nothing panics.
#![forbid(unsafe_code)]

mod capsule;
mod config;
mod connect_data;
mod ddp_rdmap;
mod disk;
mod host_completion;
mod input;
mod mpa;
mod private_data;

pub use capsule::capsule;
pub use config::config;
pub use connect_data::connect_data;
pub use ddp_rdmap::ddp_rdmap;
pub use host_completion::host_completion;
pub use mpa::mpa;
pub use private_data::private_data;

/// A target: takes any bytes, and panics when something that must hold does not.
pub type Target = fn(&[u8]);

/// Every target by its name, which is also its corpus folder's.
pub const TARGETS: [(&str, Target); 7] = [
    ("capsule", capsule),
    ("connect_data", connect_data),
    ("private_data", private_data),
    ("mpa", mpa),
    ("ddp_rdmap", ddp_rdmap),
    ("config", config),
    ("host_completion", host_completion),
];
