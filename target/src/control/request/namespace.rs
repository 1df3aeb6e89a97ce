//! `namespace add`, `set`, `resize`, `remove`.

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};

/// Namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Subcommand)]
#[serde(rename_all = "kebab-case")]
pub enum NamespaceRequest {
    /// Add a namespace to a subsystem: hosts that are connected see it at once.
    Add(Box<NamespaceAdd>),
    /// Change a namespace.
    Set(NamespaceSet),
    /// Read the size of a namespace's disk again. A disk that has grown is also noticed by itself, within seconds.
    Resize(NamespaceResize),
    /// Remove a namespace from its hosts. Done when no operation on its disk is under way.
    Remove(NamespaceName),
}

/// The arguments of `namespace add`: the keys of `[[subsystem.namespace]]` (docs/CONFIGURATION.md).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
#[command(group = clap::ArgGroup::new("disk").required(true).args(["path", "memory", "null", "rbd"]))]
#[command(
    override_usage = "nvmf-target ctl namespace add [OPTIONS] <SUBSYSTEM> <PATH|--memory <SIZE>|--null <SIZE>|--rbd <POOL/IMAGE[@SNAPSHOT]>>"
)]
pub struct NamespaceAdd {
    /// The subsystem's NQN.
    pub subsystem: String,
    /// Its number; otherwise the lowest that is free.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nsid: Option<u32>,
    /// The file or block device: an absolute path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Memory of this size instead; it is gone when the target stops.
    #[arg(long, value_name = "SIZE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// A disk of this size that discards what is written, for measurements.
    #[arg(long, value_name = "SIZE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub null: Option<String>,
    /// An image of a Ceph cluster instead.
    #[arg(long, value_name = "POOL/IMAGE[@SNAPSHOT]")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rbd: Option<String>,
    /// Ceph's configuration file, if it is not at the usual place.
    #[arg(long, value_name = "FILE", requires = "rbd")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceph_conf: Option<String>,
    /// Ceph's user, without `client.`: otherwise admin.
    #[arg(long, value_name = "NAME", requires = "rbd")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceph_user: Option<String>,
    /// The file with the user's key, if Ceph's configuration does not name it.
    #[arg(long, value_name = "FILE", requires = "rbd")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceph_keyring: Option<String>,
    /// How the image is decrypted: luks1 or luks2.
    #[arg(long, value_name = "FORMAT", requires_all = ["rbd", "passphrase_file"])]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encryption: Option<String>,
    /// The file with the passphrase.
    #[arg(long, value_name = "FILE", requires = "encryption")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passphrase_file: Option<String>,
    /// Bytes in a logical block.
    #[arg(long, value_name = "BYTES")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// Hosts may not write.
    #[arg(long)]
    #[serde(default)]
    pub read_only: bool,
    /// Its ANA group, 1 to 127; otherwise 1, or in a group of gateways one of the gateway that serves the fewest namespaces.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ana_group: Option<u32>,
    /// What hosts find the disk by; otherwise its own.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
}

/// The arguments of `namespace set`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct NamespaceSet {
    /// The subsystem's NQN.
    pub subsystem: String,
    /// The namespace.
    pub nsid: u32,
    /// Whether hosts may not write.
    #[arg(long, value_name = "true|false", action = clap::ArgAction::Set)]
    pub read_only: bool,
}

/// The arguments of `namespace resize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct NamespaceResize {
    /// The subsystem's NQN.
    pub subsystem: String,
    /// The namespace.
    pub nsid: u32,
    /// Also if the disk has become smaller: what lies behind its new end is lost to the hosts.
    #[arg(long)]
    #[serde(default)]
    pub shrink: bool,
}

/// The arguments of `namespace remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct NamespaceName {
    /// The subsystem's NQN.
    pub subsystem: String,
    /// The namespace.
    pub nsid: u32,
}
