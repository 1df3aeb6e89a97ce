//! `listener add`, `listener set`, `listener remove`.

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};

/// Where hosts connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Subcommand)]
#[serde(rename_all = "kebab-case")]
pub enum ListenerRequest {
    /// Listen on one more address.
    Add(ListenerAdd),
    /// Change which addresses a listener takes connections from.
    Set(ListenerSet),
    /// Listen on an address no more: the connections that came in through it close.
    Remove(ListenerName),
}

/// The arguments of `listener add`: keys of `[[listener]]` (docs/CONFIGURATION.md).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct ListenerAdd {
    /// ADDRESS or ADDRESS:PORT.
    pub address: String,
    /// `rdma` (the default) or `tcp`.
    #[arg(long, short)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Serve discovery and no disk.
    #[arg(long)]
    #[serde(default)]
    pub discovery_only: bool,
    /// For `rdma`: `auto`, `iwarp` or `verbs`.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// For `tcp`: `off`, `allowed`, `concat` or `required`.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<String>,
    /// A network that hosts may connect from, such as 10.0.0.0/8. May be given several times.
    #[arg(long, value_name = "NETWORK")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
}

/// The arguments of `listener set`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct ListenerSet {
    /// ADDRESS or ADDRESS:PORT, as `status` shows it.
    pub address: String,
    /// `rdma` or `tcp`, where both have the address.
    #[arg(long, short)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// A network that hosts may connect from. May be given several times; without any, they may connect from anywhere.
    #[arg(long, value_name = "NETWORK")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
}

/// The arguments of `listener remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct ListenerName {
    /// ADDRESS or ADDRESS:PORT, as `status` shows it.
    pub address: String,
    /// `rdma` or `tcp`, where both have the address.
    #[arg(long, short)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
}
