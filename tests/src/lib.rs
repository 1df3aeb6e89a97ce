//! What the tests and the demo share: the real programs as child processes, disk images, and a client for the NBD socket.
//!
//! | module | what it holds |
//! |---|---|
//! | [`process`] | [`process::Target`], a running `nvmf-target`; [`process::nvmf`], a call of `nvmf` |
//! | [`nbd`] | a client of the NBD protocol, as small as can be |
//! | `simulation` | the real worker and the real driver under a virtual clock, from a seed |
//! | `site` | a target of a test's own, with its folder, port and name; calls of `nvmf` against it |
//!
//! Contract: whatever is started here ends with its guard, and every wait has an end.
#![forbid(unsafe_code)]

pub mod nbd;
pub mod process;
#[cfg(feature = "simulation")]
pub mod simulation;
#[cfg(feature = "simulation")]
pub mod site;
