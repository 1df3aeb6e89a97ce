//! Attaching what discovery controllers list: once (`nvmf connect-all`), or for as long as they are there (`nvmf discoverd`).
//!
//! | file | what it does |
//! |---|---|
//! | `sources` | where to begin: options, `discovery.conf`, `config.json` |
//! | `config_json` | what that file says |
//! | `arguments` | controllers and subsystems as options of `nvmf`, and how to connect to them |
//! | `further_paths` | paths that attached disks do not have yet |
//! | `dump` | a `config.json` of what was connected to |
//! | `mdns` | where to begin: what is announced on the network |
//! | `policy` | what is attached, and what becomes of what is gone: `discoverd.toml` |
//! | `entries` | discovery logs, as the engine wants them |
//! | `engine` | what is followed, attached and detached: decisions, without I/O |
//! | `service` | doing that: connections, attached disks, signals, systemd |

mod arguments;
mod config_json;
mod dump;
mod engine;
mod entries;
mod further_paths;
mod mdns;
mod policy;
mod service;
mod sources;

pub(crate) use arguments::{given, given_of};
pub(crate) use dump::config;
pub(crate) use engine::{Controller, Place, Subsystem, SubsystemPath};
pub(crate) use further_paths::{Added, add_missing_paths, has_tls, kept_paths, paths_to_come};
pub(crate) use mdns::{Announced, Browser};
pub(crate) use policy::Policy;
pub(crate) use service::{Begin, Outcome, attach_all, failure, follow};
pub(crate) use sources::{Sources, options_of};
