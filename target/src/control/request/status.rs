//! What is served, to whom, and what is not well.

use crate::daemon::STUCK;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The answer to `status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusAnswer {
    /// Of the program.
    pub program_version: String,
    /// The process.
    pub pid: u32,
    /// Seconds since its start.
    pub uptime_s: u64,
    /// The configuration file, if it has one.
    pub config_file: Option<String>,
    /// Whether it takes no connection for now (`drain`).
    pub draining: bool,
    /// Errors of the last reload.
    pub reload_errors: usize,
    /// What is missing before any host can use a disk, if that is so.
    #[serde(default)]
    pub nothing_served: Option<String>,
    /// What is not well with its group of gateways.
    #[serde(default)]
    pub group_trouble: Vec<String>,
    /// Where it listens.
    pub listeners: Vec<ListenerStatus>,
    /// What it exports.
    pub subsystems: Vec<SubsystemStatus>,
    /// Disks of subsystems that were removed, while operations on them are not over.
    #[serde(default)]
    pub leaving: Vec<LeavingStatus>,
    /// Who is connected.
    pub hosts: Vec<HostStatus>,
    /// What went wrong since the start, on all workers: those that are not 0.
    pub trouble: BTreeMap<String, u64>,
}

/// A listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenerStatus {
    /// Where: as configured, but with the port that the system chose for port 0.
    pub address: String,
    /// `rdma` or `tcp`.
    pub transport: String,
    /// What serves it; empty when it does not listen.
    pub providers: Vec<String>,
    /// Whether hosts can connect.
    pub up: bool,
    /// Why not, or why not over a device that is there.
    pub fault: Option<String>,
    /// Discovery only.
    pub discovery_only: bool,
    /// `off`, `allowed`, `concat` or `required`.
    pub tls: String,
    /// The networks that hosts may connect from; empty: from anywhere.
    pub allow: Vec<String>,
    /// How namespaces are reached through it, by ANA group: the groups that it or a namespace names.
    pub ana_groups: Vec<AnaGroupStatus>,
}

/// An ANA group, through a listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnaGroupStatus {
    /// Its number.
    pub id: u32,
    /// The state that hosts see now, as `ana set` takes it; `change`: in transition.
    pub state: String,
}

/// A subsystem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubsystemStatus {
    /// Its name.
    pub nqn: String,
    /// Its serial number.
    pub serial: String,
    /// Its model.
    pub model: String,
    /// Whether any host may connect.
    pub allow_any_host: bool,
    /// Else these.
    pub allowed_hosts: Vec<String>,
    /// Its disks.
    pub namespaces: Vec<NamespaceStatus>,
}

/// A disk whose subsystem was removed, and that still has operations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeavingStatus {
    /// The subsystem that it was in.
    pub subsystem: String,
    /// What it was there.
    #[serde(flatten)]
    pub namespace: NamespaceStatus,
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceStatus {
    /// Its number.
    pub nsid: u32,
    /// What holds its data.
    pub backing: String,
    /// Whether hosts can use it.
    pub state: NamespaceState,
    /// Why it is not served.
    pub fault: Option<String>,
    /// Its ANA group.
    #[serde(default)]
    pub ana_group: u32,
    /// Where it is of a group of gateways: the one that serves its ANA group, if one does.
    #[serde(default)]
    pub served_by: Option<String>,
    /// Whether it is of a group of gateways.
    #[serde(default)]
    pub of_group: bool,
    /// The hosts that it exists for; `None`: all that may use its subsystem.
    #[serde(default)]
    pub hosts: Option<Vec<String>>,
    /// Commands a second that all hosts together may send.
    #[serde(default)]
    pub limit_iops: Option<u64>,
    /// Bytes a second that they may move.
    #[serde(default)]
    pub limit_bytes_per_second: Option<u64>,
    /// What the disk is, if it is open.
    pub disk: Option<DiskStatus>,
}

/// How far a namespace is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NamespaceState {
    /// Hosts can use it.
    Served,
    /// It is being opened, or tried again soon.
    Waiting,
    /// It was taken away, and operations on its disk are not over.
    Leaving,
    /// This gateway of a group has its ANA group, and shows hosts that it is inaccessible, since it is suspended.
    Suspended,
    /// Another gateway had its ANA group when this one was suspended, which knows nothing of it since.
    Unknown,
}

/// An open disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskStatus {
    /// What hosts find it by.
    pub uuid: String,
    /// Bytes.
    pub bytes: u64,
    /// Bytes in a block.
    pub block_size: u32,
    /// Hosts may not write.
    pub read_only: bool,
    /// A host has protected it against writes (Namespace Write Protection Config).
    #[serde(default)]
    pub write_protected: bool,
    /// Whether it has a volatile write cache.
    pub write_cache: bool,
    /// Whether I/O bypasses the page cache.
    pub direct: bool,
    /// Operations that failed.
    pub failures: u64,
    /// The last of them: what failed, and why.
    #[serde(default)]
    pub last_failure: Option<String>,
    /// How many seconds ago that was.
    #[serde(default)]
    pub last_failure_s: Option<u64>,
    /// Operations that it has now.
    #[serde(default)]
    pub in_flight: u64,
    /// How old the oldest of them is, in seconds.
    #[serde(default)]
    pub oldest_operation_s: u64,
    /// What it lost of what it had cached, if it did: every flush fails.
    pub cache_lost: Option<String>,
}

/// A host that is connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostStatus {
    /// Its name.
    pub nqn: String,
    /// Controllers that it has.
    pub controllers: usize,
    /// I/O queues on all of them.
    pub io_queues: u32,
}

impl StatusAnswer {
    /// What is not well now, each in a line. What went wrong before, and is counted, is not of these.
    #[must_use]
    pub fn not_well(&self) -> Vec<String> {
        let mut lines = Vec::new();
        lines.extend(
            (self.reload_errors > 0).then(|| format!("{} error(s) at the last reload", self.reload_errors)),
        );
        lines.extend(self.draining.then(|| "drained: no connection is taken".to_owned()));
        lines.extend(self.nothing_served.iter().map(|what| format!("nothing is served: {what}")));
        lines.extend(self.group_trouble.iter().map(|line| format!("group: {line}")));
        for ListenerStatus { address, up, fault, .. } in &self.listeners {
            let fault = fault.clone().or((!up).then(|| "it is down".to_owned()));
            lines.extend(fault.map(|fault| format!("listener {address}: {fault}")));
        }
        let namespaces =
            self.subsystems.iter().flat_map(|it| it.namespaces.iter().map(move |of| (&it.nqn, of)));
        let leaving = self.leaving.iter().map(|it| (&it.subsystem, &it.namespace));
        for (nqn, NamespaceStatus { nsid, state, fault, disk, .. }) in namespaces.chain(leaving) {
            let lost = disk.as_ref().and_then(|disk| disk.cache_lost.clone());
            let state = match state {
                // Of a gateway that is suspended, that is told of all of them.
                NamespaceState::Served | NamespaceState::Suspended | NamespaceState::Unknown => None,
                NamespaceState::Waiting => Some("it is not served yet".to_owned()),
                NamespaceState::Leaving => Some("operations on its disk do not end".to_owned()),
            };
            let stuck = disk.as_ref().filter(|disk| disk.oldest_operation_s >= STUCK.as_secs());
            let stuck = stuck.map(|disk| {
                let seconds = disk.oldest_operation_s;
                format!("its disk is stuck: the oldest of {} operation(s) is {seconds} s old", disk.in_flight)
            });
            let text = fault.clone().or(state).or(stuck);
            let text = text.or(lost.map(|lost| format!("its write cache was lost: {lost}")));
            lines.extend(text.map(|text| format!("namespace {nsid} of {nqn}: {text}")));
        }
        lines
    }
}

impl fmt::Display for StatusAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "nvmf-target {}, process {}, up {} s", self.program_version, self.pid, self.uptime_s)?;
        if self.reload_errors > 0 {
            writeln!(f, "{} error(s) at the last reload: see the log", self.reload_errors)?;
        }
        if self.draining {
            writeln!(f, "drained: no connection is taken (`drain --end` ends it)")?;
        }
        if let Some(what) = &self.nothing_served {
            writeln!(f, "nothing is served: {what}")?;
        }
        self.group_trouble.iter().try_for_each(|line| writeln!(f, "group: {line}"))?;
        self.listeners.iter().try_for_each(|listener| listener.fmt(f))?;
        self.subsystems.iter().try_for_each(|subsystem| subsystem.fmt(f))?;
        for LeavingStatus { subsystem, namespace } in &self.leaving {
            write!(f, "subsystem {subsystem}: removed\n{namespace}")?;
        }
        for HostStatus { nqn, controllers, io_queues } in &self.hosts {
            writeln!(f, "host {nqn}: {controllers} controller(s), {io_queues} I/O queue(s)")?;
        }
        for (name, count) in &self.trouble {
            writeln!(f, "{name}: {count}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ListenerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "listener {} over {}: ", self.address, self.transport)?;
        match self.up {
            true => write!(f, "up ({})", self.providers.join(", "))?,
            false => write!(f, "down")?,
        }
        if self.tls != "off" {
            write!(f, ", TLS {}", self.tls)?;
        }
        if self.discovery_only {
            write!(f, ", discovery only")?;
        }
        if !self.allow.is_empty() {
            write!(f, ", only from {}", self.allow.join(", "))?;
        }
        for AnaGroupStatus { id, state } in self.ana_groups.iter().filter(|group| group.state != "optimized")
        {
            write!(f, ", ANA group {id} {state}")?;
        }
        match &self.fault {
            Some(fault) => writeln!(f, "\n  {fault}"),
            None => writeln!(f),
        }
    }
}

impl fmt::Display for SubsystemStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = match self.allow_any_host {
            true => "any host".to_owned(),
            false => format!("{} host(s) allowed", self.allowed_hosts.len()),
        };
        writeln!(f, "subsystem {} (serial {}): {hosts}", self.nqn, self.serial)?;
        self.namespaces.iter().try_for_each(|namespace| namespace.fmt(f))
    }
}

impl fmt::Display for NamespaceStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            NamespaceState::Served => "served",
            NamespaceState::Waiting => "not served",
            NamespaceState::Leaving => "leaving",
            NamespaceState::Suspended => "not served while this gateway is suspended",
            NamespaceState::Unknown => "not known while this gateway is suspended",
        };
        write!(f, "  namespace {}: {state}", self.nsid)?;
        if self.of_group && self.state != NamespaceState::Leaving {
            let by = self.served_by.as_deref().unwrap_or("nobody now");
            write!(f, ", ANA group {} by {by}", self.ana_group)?;
        }
        write!(f, ", {}", self.backing)?;
        if let Some(disk) = &self.disk {
            write!(f, ", {} bytes in blocks of {}", disk.bytes, disk.block_size)?;
            let remarks = [
                (disk.read_only, ", read-only"),
                (disk.write_protected, ", write-protected by a host"),
                (disk.write_cache, ", write cache"),
                (!disk.direct, ", through the page cache"),
            ];
            remarks.iter().filter(|(is_so, _)| *is_so).try_for_each(|(_, remark)| f.write_str(remark))?;
            if disk.failures > 0 {
                write!(f, ", {} failure(s)", disk.failures)?;
            }
            if let (Some(failure), Some(age)) = (&disk.last_failure, disk.last_failure_s) {
                write!(f, ", the last one {age} s ago: {failure}")?;
            }
            if disk.oldest_operation_s > 0 {
                write!(
                    f,
                    ", its oldest of {} operation(s) is {} s old",
                    disk.in_flight, disk.oldest_operation_s
                )?;
            }
            if let Some(lost) = &disk.cache_lost {
                write!(f, "\n    its write cache was lost: {lost}")?;
            }
        }
        if !self.of_group && self.ana_group > 1 {
            write!(f, ", ANA group {}", self.ana_group)?;
        }
        if let Some(hosts) = &self.hosts {
            write!(f, ", for {} host(s) only", hosts.len())?;
        }
        if let Some(iops) = self.limit_iops {
            write!(f, ", at most {iops} commands/s")?;
        }
        if let Some(bytes) = self.limit_bytes_per_second {
            write!(f, ", at most {bytes} bytes/s")?;
        }
        match &self.fault {
            Some(fault) => writeln!(f, "\n    {fault}"),
            None => writeln!(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn disk_that_is_stuck_is_not_well() {
        let not_well = |oldest: u64| {
            let disk = json!({
                "uuid": "", "bytes": 4096, "block_size": 4096, "read_only": false, "write_cache": false, "direct": true,
                "failures": 0, "in_flight": 4, "oldest_operation_s": oldest, "cache_lost": null,
            });
            let namespace = json!({
                "nsid": 1, "backing": "rbd:nvmf/a", "state": "served", "fault": null, "disk": disk,
            });
            let subsystem = json!({
                "nqn": "nqn.2026-11.com.example:a", "serial": "1", "model": "m", "allow_any_host": true,
                "allowed_hosts": [], "namespaces": [namespace],
            });
            let answer = json!({
                "program_version": "1", "pid": 1, "uptime_s": 100, "config_file": null, "draining": false,
                "reload_errors": 0, "listeners": [], "subsystems": [subsystem], "hosts": [], "trouble": {},
            });
            serde_json::from_value::<StatusAnswer>(answer).unwrap().not_well()
        };
        assert_eq!(not_well(STUCK.as_secs() - 1), [""; 0], "it is slow");
        let line = "namespace 1 of nqn.2026-11.com.example:a: its disk is stuck: the oldest of 4 operation(s) is 39 s old";
        assert_eq!(not_well(39), [line]);
    }
}
