//! The configuration of the target: the TOML text, read, checked, and with its defaults filled in.
//!
//! | module | what it holds |
//! |---|---|
//! | [`file`](self) | the TOML text as it may be written, with the place of every value |
//! | [`Config`] | what it means: defaults filled in, identities derived, everything checked against everything else |
//! | [`Draft`] | a configuration as text again, to be changed and checked, or saved |
//! | [`Cluster`], [`Items`] | a gateway of a group; what the gateways share, item by item |
//! | [`AddressList`] | which addresses a listener takes connections from |
//! | [`size`] | `10GiB` and its like |
//! | [`log_filter`] | how much is logged, as `NVMF_LOG` says it |
//! | [`ConfigError`] | what is wrong, in which line, and what would be right |
//!
//! Contract: a [`Config`] that parsed can be served, as far as the text alone can tell. Nothing is opened
//! here: whether its files, devices and addresses are there is for the caller to find out.
#![forbid(unsafe_code)]

mod address_list;
mod check;
mod cluster;
mod draft;
mod error;
mod file;
mod identity;
mod items;
mod log;
mod model;
mod rbd;
pub mod size;

pub use address_list::AddressList;
pub use check::PORT;
pub use cluster::Cluster;
pub use draft::{Draft, DraftError};
pub use error::ConfigError;
pub use ipnet::IpNet;
pub use items::Items;
pub use log::log_filter;
pub use model::{
    AnaGroup, Backing, Config, ControlSocket, Discovery, DuplicateHostId, GroupKey, Host, HostLimits, Hosts,
    Limits, Listener, Metrics, MetricsAddress, Namespace, Poll, ProviderChoice, Referral, Subsystem, Target,
    Tls, Transport, VerbsOptions,
};
pub use nvme_proto::admin::log_page::AnaState;
pub use rbd::{Rbd, RbdEncryption, RbdNameError};
