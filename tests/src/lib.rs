//! Shared by the integration tests and xtask: the programs as child processes, disk images, and an NBD client.
//!
//! | module | contents |
//! |---|---|
//! | `attached` | attached disks, their processes, and the end of these |
//! | [`process`] | [`process::Target`], a running `nvmf-target`; [`process::nvmf`], a call of `nvmf` |
//! | [`cleanup`] | ends what a test started, also when the test is killed |
//! | [`nbd`] | a minimal NBD client |
//! | `network` | a network namespace of a test's own |
//! | [`rng`] | numbers that follow from a seed |
//! | `simulation` | the real worker and the real driver under a virtual clock, controlled by a seed |
//! | `site` | a test's own target, with folder, port and NQN, and calls of `nvmf` with that target |
//! | `worker_setup` | workers of a target in the test's own process |
//!
//! Processes that are started here end when their guard is dropped, and every wait has a timeout.
#![forbid(unsafe_code)]

#[cfg(feature = "simulation")]
pub mod attached;
pub mod cleanup;
pub mod nbd;
#[cfg(feature = "simulation")]
pub mod network;
pub mod process;
pub mod rng;
#[cfg(feature = "simulation")]
pub mod simulation;
#[cfg(feature = "simulation")]
pub mod site;
#[cfg(feature = "simulation")]
pub mod worker_setup;
