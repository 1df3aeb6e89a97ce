//! Every request of the control socket, which is also every command of `nvmf-target ctl`.
//!
//! A new one takes three places: its variant, with its arguments (which are the fields of its line) and its answer, in
//! the file of its group here; the function that carries it out, in `daemon/requests`; its paragraph in
//! docs/CONTROL.md.

pub mod ana;
pub mod change;
pub mod cluster;
pub mod config;
pub mod disk;
pub mod key_text;
pub mod listener;
pub mod namespace;
pub mod service;
pub mod status;
pub mod subsystem;
pub mod trace;

use ana::AnaRequest;
use change::ChangesAnswer;
use clap::Subcommand;
use cluster::{ClusterRequest, ClusterStatus};
use config::{File, Save, SaveAnswer};
use disk::{DiskAnswer, DiskRequest};
use key_text::KeyText;
use listener::ListenerRequest;
use namespace::NamespaceRequest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use service::{ConnectionsAnswer, ConnectionsRequest, Drain, LogLevel, LogLevelAnswer};
use status::StatusAnswer;
use std::fmt::Display;
use subsystem::{HostRequest, HostsAnswer, SetKey, SubsystemRequest};
use trace::TraceAnswer;

/// A request. Its name on the socket are the words of the command line: `namespace add`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Subcommand)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// What is served, to whom, and what is not well.
    Status {
        /// Exit with 3 if something is not well, and say what (1: no target answers).
        #[arg(long)]
        #[serde(skip)]
        check: bool,
    },
    /// The slowest commands since this was asked last, and where their time went (`[metrics]` must be on).
    Trace {
        /// So many at the most.
        #[arg(long, short = 'n', default_value_t = 20)]
        #[serde(default = "trace_max")]
        max: usize,
    },
    /// Add and remove subsystems.
    #[command(subcommand)]
    Subsystem(SubsystemRequest),
    /// Add, change and remove namespaces.
    #[command(subcommand)]
    Namespace(NamespaceRequest),
    /// Make files for disks.
    #[command(subcommand)]
    Disk(DiskRequest),
    /// Say which hosts may connect.
    #[command(subcommand)]
    Host(HostRequest),
    /// Say where hosts connect.
    #[command(subcommand)]
    Listener(ListenerRequest),
    /// Say how hosts reach namespaces (asymmetric namespace access).
    #[command(subcommand)]
    Ana(AnaRequest),
    /// Show the group of gateways, and move ANA groups between them.
    #[command(subcommand)]
    Cluster(ClusterRequest),
    /// Show and close connections.
    #[command(subcommand)]
    Connections(ConnectionsRequest),
    /// What `apply` would change, and what it would cost. Changes nothing.
    Plan(File),
    /// Serve what a configuration file says, each change by itself. A file that is wrong changes nothing.
    Apply(File),
    /// Save what is served as a configuration file.
    Save(Save),
    /// How much is logged, until the next start.
    LogLevel(LogLevel),
    /// Close all connections and take no new ones, so that hosts use their other paths; `drain --end` ends it.
    Drain(Drain),
}

fn trace_max() -> usize {
    20
}

impl Request {
    /// What goes to the log with who asked for it, if it changes something. The text of a file does not: each of its
    /// changes has its own line. Nor may a secret.
    #[must_use]
    pub fn audit(&self) -> Option<String> {
        match self {
            Self::Status { .. }
            | Self::Trace { .. }
            | Self::Plan(_)
            | Self::Save(_)
            | Self::Cluster(ClusterRequest::Status {})
            | Self::Host(HostRequest::List {})
            | Self::Connections(ConnectionsRequest::List {}) => None,
            Self::Apply(_) => Some("apply".to_owned()),
            Self::Host(HostRequest::SetKey(set)) => {
                let set = SetKey { key: KeyText::hidden(), ..set.clone() };
                let shown = Self::Host(HostRequest::SetKey(set));
                Some(super::protocol::line(&shown).trim_end().to_owned())
            }
            other => Some(super::protocol::line(other).trim_end().to_owned()),
        }
    }

    /// Whether it is answered by what the target knows already.
    #[must_use]
    pub fn is_question(&self) -> bool {
        matches!(
            self,
            Self::Status { .. }
                | Self::Trace { .. }
                | Self::Cluster(ClusterRequest::Status {})
                | Self::Host(HostRequest::List {})
                | Self::Connections(ConnectionsRequest::List {})
        )
    }

    /// Whether its answer takes as long as there are data to be copied.
    #[must_use]
    pub fn may_take_long(&self) -> bool {
        matches!(self, Self::Disk(_))
    }

    /// The result of this request as a text for people.
    ///
    /// # Errors
    /// The target is of a version whose result means something else.
    pub fn text(&self, result: Value) -> serde_json::Result<String> {
        match self {
            Self::Status { .. } => text_of::<StatusAnswer>(result),
            Self::Trace { .. } => text_of::<TraceAnswer>(result),
            Self::Cluster(ClusterRequest::Status {}) => text_of::<ClusterStatus>(result),
            Self::Connections(ConnectionsRequest::List {}) => text_of::<ConnectionsAnswer>(result),
            Self::Host(HostRequest::List {}) => text_of::<HostsAnswer>(result),
            Self::Disk(_) => text_of::<DiskAnswer>(result),
            Self::Save(_) => text_of::<SaveAnswer>(result),
            Self::LogLevel(_) => text_of::<LogLevelAnswer>(result),
            Self::Subsystem(_)
            | Self::Namespace(_)
            | Self::Host(_)
            | Self::Listener(_)
            | Self::Ana(_)
            | Self::Cluster(_)
            | Self::Connections(ConnectionsRequest::Close(_))
            | Self::Plan(_)
            | Self::Apply(_)
            | Self::Drain(_) => text_of::<ChangesAnswer>(result),
        }
    }
}

fn text_of<T: DeserializeOwned + Display>(result: Value) -> serde_json::Result<String> {
    Ok(serde_json::from_value::<T>(result)?.to_string())
}

#[cfg(test)]
mod tests {

    #[test]
    fn key_is_neither_in_the_audit_nor_in_debug_text() {
        let line = r#"{"version":1,"request":"host set-key","host":"nqn.a","key":"DHHC-1:00:c2VjcmV0:"}"#;
        let request = crate::control::protocol::parse(line.as_bytes()).unwrap();
        let shown = format!("{request:?} {}", request.audit().unwrap());
        assert!(shown.contains("nqn.a") && !shown.contains("c2Vj"), "{shown}");
    }
}
