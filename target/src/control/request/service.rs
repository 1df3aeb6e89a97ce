//! `connections list`, `connections close`, `log-level`, `drain`.

use super::change::ConnectionName;
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Controllers of hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Subcommand)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ConnectionsRequest {
    /// Who is connected.
    List {},
    /// Close the connections of controllers. Hosts that may, connect again.
    Close(ConnectionsClose),
}

/// The arguments of `connections close`: all that are given must fit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(true).args(["subsystem", "host", "cntlid", "all"]))]
pub struct ConnectionsClose {
    /// Of this subsystem.
    #[arg(long, value_name = "NQN")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subsystem: Option<String>,
    /// Of this host.
    #[arg(long, value_name = "NQN")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// With this controller ID: each subsystem has its own.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cntlid: Option<u16>,
    /// Of everyone.
    #[arg(long)]
    #[serde(default)]
    pub all: bool,
}

/// The answer to `connections list`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionsAnswer {
    /// Each controller.
    pub connections: Vec<Connection>,
}

/// A controller of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Which.
    #[serde(flatten)]
    pub name: ConnectionName,
    /// The Host Identifier, a UUID.
    pub host_id: String,
    /// The address of the listener that it came in through, if that is there yet.
    pub listener: Option<String>,
    /// `rdma` or `tcp`.
    pub transport: String,
    /// Whether a key protects it.
    pub tls: bool,
    /// I/O queues.
    pub io_queues: u16,
    /// Seconds since the host sent something.
    pub idle_s: u64,
    /// Whether it is being closed.
    pub closing: bool,
}

/// The arguments of `log-level`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct LogLevel {
    /// `error`, `warn`, `info`, `debug`, `trace`, `off`, or directives such as `warn,nvmf_target=debug`.
    pub level: String,
}

/// The answer to `log-level`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLevelAnswer {
    /// What is logged from now on, until the next start.
    pub level: String,
}

/// The arguments of `drain`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, Args)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// Listen again.
    #[arg(long)]
    #[serde(default)]
    pub end: bool,
}

impl fmt::Display for ConnectionsAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.connections.is_empty() {
            return writeln!(f, "no host is connected");
        }
        self.connections.iter().try_for_each(|connection| connection.fmt(f))
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConnectionName { subsystem, cntlid, host, address } = &self.name;
        let tls = if self.tls { " with TLS" } else { "" };
        let closing = if self.closing { ", closing" } else { "" };
        writeln!(
            f,
            "{subsystem} controller {cntlid}: {host} at {address} over {}{tls}, {} I/O queue(s), last heard of {} s \
             ago{closing}",
            self.transport, self.io_queues, self.idle_s
        )
    }
}

impl fmt::Display for LogLevelAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.level)
    }
}
