//! What is written down of an attached disk.

use crate::Authentication;
use crate::authentication;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Version of [`Attachment`]'s format.
pub const VERSION: u32 = 3;

/// An attached disk.
///
/// Every field may be absent, so that an entry of another version is shown as far as it is understood.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Attachment {
    /// Version of this format.
    pub version: u32,
    /// Subsystem.
    pub nqn: String,
    /// Address and port of the target.
    pub address: String,
    /// The transport: `rdma`, `tcp`.
    pub transport: String,
    /// Of TCP: with TLS, each of its paths.
    pub tls: bool,
    /// Its authentication makes the key of its TLS (`--concat`).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub concat: bool,
    /// Of RDMA: the provider, and its device: `iwarp`, `verbs on mlx5_0`.
    pub provider: Option<String>,
    /// Namespace.
    pub nsid: u32,
    /// Its UUID, if it has one.
    pub uuid: Option<String>,
    /// Bytes in it.
    pub size: u64,
    /// Bytes in a block of it.
    pub block_size: u32,
    /// The block device, if it is one.
    pub device: Option<PathBuf>,
    /// The socket, if it has one: for NBD clients, or for virtual machines.
    pub socket: Option<PathBuf>,
    /// The socket is for virtual machines (vhost-user-blk).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub vhost_user: bool,
    /// Permissions of the socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_mode: Option<u32>,
    /// The number of the socket's group, where one was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_group: Option<u32>,
    /// Clients of the socket may ask which parts of the disk are zeroes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub block_status: bool,
    /// Queues of a ublk device, where a number was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<u16>,
    /// Why it is not a block device, where that was wanted; which namespace it is, where it was taken of several.
    pub note: Option<String>,
    /// The state of its connection and of its server.
    pub state: State,
    /// Why it is in this state, where there is more to say.
    pub reason: Option<String>,
    /// As whom it is connected: NQN and identifier of the host.
    pub host_nqn: String,
    /// The identifier.
    pub host_id: String,
    /// Which path a command goes to, where several lead there: `queue-depth`, `round-robin`, `latency`.
    pub iopolicy: String,
    /// Options of the call for its connections, as `nvmf attach` takes them: whoever takes it over has those, too, that its own call does
    /// not give. None of them is a key or a path.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// How the two sides prove who they are, where the host has a secret.
    #[serde(flatten, with = "authentication::proof")]
    pub authentication: Option<Authentication>,
    /// The paths to it: that of `address` first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<AttachedPath>,
    /// Paths that it was given after it was attached, as `nvmf add-path` names them: whoever takes it over has them, too.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub added_paths: Vec<String>,
    /// What the kernel has on record for its device, so that it is not taken for another's of the same number.
    pub mark: u64,
    /// The namespace that was asked for by number.
    pub asked_nsid: Option<u32>,
    /// It was attached though it was attached already.
    pub is_duplicate: bool,
    /// The discovery service attached it, and detaches it when it is gone.
    pub by_discovery: bool,
    /// What it was when it was attached: whoever takes it over serves nothing else.
    pub disk: Option<Disk>,
    /// Who starts its server again when that was killed.
    pub supervisor: Supervisor,
    /// The process that serves it, as its own PID namespace numbers it.
    pub pid: u32,
    /// That PID namespace, as `/proc/self/ns/pid` names it.
    pub pid_namespace: String,
}

/// A path to an attached disk.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AttachedPath {
    /// Address and port of its controller.
    pub address: String,
    /// The transport: `rdma`, `tcp`.
    pub transport: String,
    /// The name that its address is looked up by, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address that it is connected from, where one was chosen.
    pub source: Option<String>,
    /// The network interface that it is connected through, where one was chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// What protects the data on it, as `nvmf attach` takes it: `--tls`, `--hdr-digest`, `--data-digest`, `--crc`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub protection: Vec<String>,
    /// Its controller (CNTLID); `None` while it is away.
    pub cntlid: Option<u16>,
    /// Its state: live, reconnecting, foreign, lost.
    pub state: State,
    /// How the disk can be reached on it (ANA), as nvme-cli says it: `optimized`, `non-optimized`, `inaccessible`, `persistent-loss`,
    /// `change`; `None` while it is away.
    pub ana_state: Option<String>,
    /// Why it was lost last; `None` while it is live.
    pub reason: Option<String>,
    /// When the next attempt to connect it begins, in milliseconds since 1970; `None` while none is waited for.
    pub next_attempt: Option<u64>,
    /// When it is given up unless it is connected before, in the same way; `None` while it is live, or never.
    pub gives_up: Option<u64>,
}

impl AttachedPath {
    /// Its controller's address without the brackets of IPv6, or the name that has none now; and the port.
    #[must_use]
    pub fn host_and_port(&self) -> (&str, Option<u16>) {
        let Some((host, port)) = self.address.rsplit_once(':') else { return (&self.address, None) };
        let is_bracket = |bracket| ['[', ']'].contains(&bracket);
        (host.trim_matches(is_bracket), port.parse().ok())
    }

    /// The same while nobody is connected: where it leads, and this state.
    #[must_use]
    pub fn unconnected(&self, state: State) -> Self {
        let Self { address, transport, name, source, interface, protection, .. } = self.clone();
        Self { address, transport, name, source, interface, protection, state, ..Self::default() }
    }
}

/// What a disk was when it was attached.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Disk {
    /// The subsystem, as its controller names itself.
    pub subsystem_nqn: String,
    /// The model, serial number and firmware that it names.
    pub model: String,
    /// The serial number.
    pub serial: String,
    /// The firmware's revision.
    pub firmware: String,
    /// UUID; all zeroes when it has none.
    pub uuid: [u8; 16],
    /// NGUID; all zeroes when it has none.
    pub nguid: [u8; 16],
    /// EUI-64; all zeroes when it has none.
    pub eui64: [u8; 8],
    /// It takes no writes.
    pub read_only: bool,
    /// It has a volatile write cache.
    pub volatile_write_cache: bool,
    /// Bytes that are best moved at once.
    pub preferred: u32,
    /// It can be told which ranges are not needed.
    pub trim: bool,
    /// It can write zeroes that it is not sent.
    pub write_zeroes: bool,
}

/// Who starts a disk's server again when that was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Supervisor {
    /// Nobody.
    #[default]
    Nobody,
    /// A process that waits for its end.
    Guard,
    /// systemd.
    Systemd,
}

/// The state of an attached disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It is being attached.
    Attaching,
    /// It works.
    Live,
    /// Its target is away: requests wait.
    Reconnecting,
    /// Its target is there, and gives no access to the namespace now (ANA), or cannot say which disk it is: requests wait.
    Inaccessible,
    /// Its target is there, and does not have the namespace any more: requests fail.
    Removed,
    /// The namespace is another disk than the one that was attached: requests wait.
    Foreign,
    /// Its target was given up: requests fail.
    Lost,
    /// Its server was asked to end, and does so when the disk is no longer in use.
    Ending,
    /// Its server was killed: nobody serves it, and what it is asked for waits.
    Killed,
    /// Another version of this program wrote the entry.
    #[default]
    #[serde(other)]
    Unknown,
}

impl State {
    /// Its name, as it is written down.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Attaching => "attaching",
            Self::Live => "live",
            Self::Reconnecting => "reconnecting",
            Self::Inaccessible => "inaccessible",
            Self::Removed => "removed",
            Self::Foreign => "foreign",
            Self::Lost => "lost",
            Self::Ending => "ending",
            Self::Killed => "killed",
            Self::Unknown => "unknown",
        }
    }
}

impl std::fmt::Display for Attachment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.nqn.as_str() {
            // Its entry cannot be read.
            "" => f.write_str("a disk of which nothing is known"),
            nqn => write!(f, "{nqn} namespace {} ({})", self.nsid, self.place().display()),
        }
    }
}

impl Attachment {
    /// Where it is: its device, else its socket.
    #[must_use]
    pub fn place(&self) -> &Path {
        self.device.as_ref().or(self.socket.as_ref()).map_or(Path::new("-"), PathBuf::as_path)
    }

    /// What its commands go over, for people: `iwarp`, `tcp`, `tcp with TLS`.
    #[must_use]
    pub fn via(&self) -> String {
        let via = self.provider.as_ref().unwrap_or(&self.transport);
        if self.tls { format!("{via} with TLS") } else { via.clone() }
    }

    /// The process that serves it; `None` when nobody does, as the number may be another's by now, and when it is not known.
    #[must_use]
    pub fn served_by(&self) -> Option<u32> {
        (self.state != State::Killed && self.pid != 0).then_some(self.pid)
    }

    /// The disk's address for NBD clients.
    #[must_use]
    pub fn uri(&self) -> Option<String> {
        let socket = self.socket.as_ref().filter(|_| !self.vhost_user);
        socket.map(|socket| format!("nbd+unix:///?socket={}", socket.display()))
    }

    /// As `-o json` prints it.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "device": self.device, "state": self.state, "reason": self.reason,
            "nqn": self.nqn, "address": self.address, "transport": self.transport, "provider": self.provider, "nsid": self.nsid,
            "tls": self.tls, "uuid": self.uuid,
            "size": self.size, "block_size": self.block_size,
            "read_only": self.disk.as_ref().map(|disk| disk.read_only),
            "write_cache": self.disk.as_ref().map(|disk| disk.volatile_write_cache),
            "socket": self.socket, "vhost_user": self.vhost_user, "uri": self.uri(),
            "paths": self.paths, "note": self.note, "pid": self.served_by(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_leads_to_an_address_or_a_name_with_a_port() {
        let of = |address: &str| AttachedPath { address: address.to_owned(), ..AttachedPath::default() };
        assert_eq!(of("192.0.2.1:4420").host_and_port(), ("192.0.2.1", Some(4420)));
        assert_eq!(of("[2001:db8::1]:4421").host_and_port(), ("2001:db8::1", Some(4421)));
        assert_eq!(of("storage.example:4420").host_and_port(), ("storage.example", Some(4420)));
        assert_eq!(of("storage.example").host_and_port(), ("storage.example", None));
    }

    #[test]
    fn disk_is_named_by_its_namespace_where_that_is_known() {
        let known =
            Attachment { nqn: "nqn.2026-11.com.example:a".to_owned(), nsid: 2, ..Attachment::default() };
        assert_eq!(known.to_string(), "nqn.2026-11.com.example:a namespace 2 (-)");
        assert_eq!(Attachment::default().to_string(), "a disk of which nothing is known");
    }
}
