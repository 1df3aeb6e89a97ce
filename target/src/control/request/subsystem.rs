//! `subsystem add`, `subsystem remove`, `host add`, `host remove`, `host list`, `host set-key`, `host remove-key`.

use super::key_text::KeyText;
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Subsystems.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Subcommand)]
#[serde(rename_all = "kebab-case")]
pub enum SubsystemRequest {
    /// Add a subsystem. Its namespaces come by `namespace add`.
    Add(SubsystemAdd),
    /// Remove a subsystem with its namespaces: the connections of its hosts close.
    Remove(SubsystemName),
}

/// The arguments of `subsystem add`: the keys of `[[subsystem]]` (docs/CONFIGURATION.md).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct SubsystemAdd {
    /// Its NQN.
    pub nqn: String,
    /// Its serial number; otherwise one that is derived from the NQN.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Its model.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Any host may connect.
    #[arg(long)]
    #[serde(default)]
    pub allow_any_host: bool,
    /// A host that may connect, by its NQN. May be given several times; without any, nobody may until `host add`.
    #[arg(long = "host", value_name = "NQN", conflicts_with = "allow_any_host")]
    #[serde(default)]
    pub allowed_hosts: Vec<String>,
}

/// The arguments of `subsystem remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct SubsystemName {
    /// Its NQN.
    pub nqn: String,
}

/// Which hosts may connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Subcommand)]
#[serde(rename_all = "kebab-case")]
pub enum HostRequest {
    /// Let one more host connect to a subsystem.
    Add(HostName),
    /// Let a host connect to a subsystem no more: its connections close.
    Remove(HostName),
    /// Which hosts are known by name: what they may connect to, and which keys they have. Shows no key.
    List {},
    /// Set or replace the key with which a host authenticates (DH-HMAC-CHAP), from its next authentication on.
    SetKey(SetKey),
    /// Remove a key that a group of gateways has: a host without a key connects without authentication.
    RemoveKey(RemoveKey),
}

/// Which key of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOf {
    /// With which it authenticates.
    Host,
    /// With which the controller authenticates towards it.
    Controller,
    /// For TLS.
    Tls,
}

impl KeyOf {
    fn of(controller: bool, tls: bool) -> Self {
        match (controller, tls) {
            (_, true) => Self::Tls,
            (true, false) => Self::Controller,
            (false, false) => Self::Host,
        }
    }
}

/// The arguments of `host set-key`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct SetKey {
    /// The host's NQN.
    pub host: String,
    /// It is the key of the controller towards this host, which a host may ask for.
    #[arg(long)]
    #[serde(default)]
    pub controller: bool,
    /// It is the host's key for TLS, which only a group of gateways keeps by itself.
    #[arg(long, conflicts_with = "controller")]
    #[serde(default)]
    pub tls: bool,
    /// The file with the key (`nvmf gen-dhchap-key --keyfile FILE`, `nvmf gen-tls-key --keyfile FILE`), which nobody
    /// else may read; `-`: standard input.
    #[arg(long = "keyfile", value_name = "FILE", default_value = "-", value_parser = KeyText::read)]
    pub key: KeyText,
}

impl SetKey {
    /// Which key it is.
    #[must_use]
    pub fn kind(&self) -> KeyOf {
        KeyOf::of(self.controller, self.tls)
    }
}

/// The arguments of `host remove-key`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct RemoveKey {
    /// The host's NQN.
    pub host: String,
    /// Only the key of the controller towards this host.
    #[arg(long)]
    #[serde(default)]
    pub controller: bool,
    /// The host's key for TLS.
    #[arg(long, conflicts_with = "controller")]
    #[serde(default)]
    pub tls: bool,
}

impl RemoveKey {
    /// Which key it is.
    #[must_use]
    pub fn kind(&self) -> KeyOf {
        KeyOf::of(self.controller, self.tls)
    }
}

/// The arguments of `host add` and `host remove`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct HostName {
    /// The subsystem's NQN.
    pub subsystem: String,
    /// The host's NQN (on the host: `nvmf show-hostnqn`, /etc/nvme/hostnqn).
    pub host: String,
}

/// The answer to `host list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostsAnswer {
    /// Subsystems that any host may connect to.
    pub for_any_host: Vec<String>,
    /// Hosts that a subsystem or a key names.
    pub hosts: Vec<KnownHost>,
}

/// A host that is known by its name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownHost {
    /// Its NQN.
    pub nqn: String,
    /// The subsystems that let it in by name.
    pub subsystems: Vec<String>,
    /// Whether it has a key for DH-HMAC-CHAP.
    pub key: bool,
    /// Whether there is one of the controller towards it.
    pub controller_key: bool,
    /// Whether it has a key for TLS.
    pub tls_key: bool,
}

impl fmt::Display for HostsAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.for_any_host.iter().try_for_each(|nqn| writeln!(f, "any host may connect to {nqn}"))?;
        if self.for_any_host.is_empty() && self.hosts.is_empty() {
            return writeln!(f, "no host is known by name, and none may connect");
        }
        for KnownHost { nqn, subsystems, key, controller_key, tls_key } in &self.hosts {
            let to = match subsystems.len() {
                0 if self.for_any_host.is_empty() => "no subsystem lets it in".to_owned(),
                0 => "no subsystem names it".to_owned(),
                _ => format!("may connect to {}", subsystems.join(", ")),
            };
            let words =
                [(key, "DH-HMAC-CHAP"), (controller_key, "DH-HMAC-CHAP of the controller"), (tls_key, "TLS")];
            let keys: Vec<&str> = words.into_iter().filter(|(has, _)| **has).map(|(_, word)| word).collect();
            let keys =
                if keys.is_empty() { "no key".to_owned() } else { format!("keys: {}", keys.join(", ")) };
            writeln!(f, "host {nqn}: {to}; {keys}")?;
        }
        Ok(())
    }
}
