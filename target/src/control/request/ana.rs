//! `ana set`.

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};

/// How namespaces are reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Subcommand)]
#[serde(rename_all = "kebab-case")]
pub enum AnaRequest {
    /// Set the state of an ANA group behind a listener. Where hosts can no longer use the group afterwards, it is done
    /// when nothing that they sent before is at its disks.
    Set(AnaSet),
}

/// The arguments of `ana set`: keys of `[[listener.ana_group]]` (docs/CONFIGURATION.md).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct AnaSet {
    /// ADDRESS or ADDRESS:PORT of the listener, as `status` shows it.
    pub address: String,
    /// The group, 1 to 127.
    pub group: u32,
    /// `optimized`, `non-optimized`, `inaccessible`, `persistent-loss` or `change`.
    pub state: String,
    /// `rdma` or `tcp`, where both have the address.
    #[arg(long, short)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
}
