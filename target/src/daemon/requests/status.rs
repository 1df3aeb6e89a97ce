//! `status`.

use super::super::changing::RESTS;
use super::super::cluster::{Owner, item};
use super::Daemon;
use crate::control::request::status::{
    AnaGroupStatus, DiskStatus, HostStatus, LeavingStatus, ListenerStatus, NamespaceState, NamespaceStatus,
    StatusAnswer, SubsystemStatus,
};
use crate::exports::{Export, ExportFault, describe};
use nvmf_config::{AnaGroup, Hosts, Namespace, Subsystem};
use nvmf_subsystem::Nqn;
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// The counters of what should not happen.
const TROUBLE: &[&str] = &[
    "rejected_resources",
    "rejected_parameters",
    "rejected_address",
    "tls_refused",
    "accepts_failed",
    "half_open_closed",
    "unconnected_closed",
    "lost_closed",
    "connects_refused",
    "authentications_failed",
    "duplicate_host_ids",
    "block_errors",
    "transport_errors",
    "transfer_timeouts",
    "violations",
    "keep_alive_expired",
    "log_lines_dropped",
];

impl Daemon {
    pub(in crate::daemon) fn status_answer(&self) -> StatusAnswer {
        let owners = self.owners();
        StatusAnswer {
            program_version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.common.clock.now().as_secs().saturating_sub(1),
            config_file: self.path.as_ref().map(|path| path.display().to_string()),
            draining: self.draining,
            reload_errors: self.reload_errors,
            nothing_served: self.waits_for().or_else(|| Some(format!("there is {}", self.serves_nothing()?))),
            group_trouble: self.group_trouble(),
            listeners: self.listener_statuses(),
            subsystems: self
                .config
                .subsystems
                .iter()
                .map(|subsystem| self.subsystem_status(subsystem, &owners))
                .collect(),
            leaving: self.leaving_of_no_subsystem(),
            hosts: self.connected_hosts(),
            trouble: self.trouble(),
        }
    }

    fn listener_statuses(&self) -> Vec<ListenerStatus> {
        let namespaces = self.config.subsystems.iter().flat_map(|subsystem| &subsystem.namespaces);
        let of_namespaces: BTreeSet<u32> = namespaces.map(|namespace| namespace.ana_group).collect();
        let registry = self.registry();
        let statuses = self.listeners.iter().zip(&self.config.listeners).map(|(listening, config)| {
            let ids = config.ana_groups.iter().map(|group| group.id).chain(of_namespaces.iter().copied());
            let groups = ids.collect::<BTreeSet<_>>().into_iter().map(|id| {
                let group = AnaGroup { id, state: registry.ana().state(listening.port(), id) };
                AnaGroupStatus { id, state: group.state_word().to_owned() }
            });
            listening.status(groups.collect())
        });
        statuses.collect()
    }

    fn subsystem_status(&self, subsystem: &Subsystem, owners: &BTreeMap<u32, Owner>) -> SubsystemStatus {
        let allowed_hosts = match &subsystem.hosts {
            Hosts::Any => Vec::new(),
            Hosts::Only(hosts) => hosts.iter().map(ToString::to_string).collect(),
        };
        let now_us = self.common.observed.now_us();
        let namespaces = subsystem.namespaces.iter().map(|namespace| {
            let open = self.exports().iter().find(|export| export.is(&subsystem.nqn, namespace.nsid));
            let key = (subsystem.nqn, namespace.nsid);
            let owner = owners.get(&namespace.ana_group);
            let lacks = owner.filter(|(_, lacks, _)| lacks.contains(&item(&key))).map(|(owner, ..)| owner);
            let is_served = open.is_some_and(|export| self.image_fault(export).is_none()) && lacks.is_none();
            let state = match owner.and_then(|(.., suspended)| *suspended) {
                Some(state) if is_served => state,
                _ if is_served && (owner.is_some() || self.cluster.is_none()) => NamespaceState::Served,
                _ => NamespaceState::Waiting,
            };
            let fault = match open {
                // It says what the owner has, who has not.
                Some(export) if lacks.is_some() && !export.is_for_workers() && !export.disk.is_removed() => {
                    self.image_fault(export)
                }
                Some(export) => {
                    let of_image = || self.image_fault(export);
                    let of_workers = || self.attach_fault(export.device);
                    export.look_fault.clone().or_else(of_image).or_else(of_workers)
                }
                None => self.why_not_open(&key, namespace),
            };
            let of_owner = || Some(format!("{} cannot open its image: `ctl status` there says why", lacks?));
            let fault = fault.or_else(of_owner);
            let disk = open.map(|export| DiskStatus {
                write_protected: self.is_protected(&subsystem.nqn, namespace.nsid),
                ..disk_status(export, now_us)
            });
            NamespaceStatus {
                served_by: owner.map(|(owner, ..)| owner.clone()),
                of_group: self.cluster.is_some(),
                ..namespace_status(namespace, state, fault, disk)
            }
        });
        let leaving = self.namespaces.leaving().filter(|export| export.nqn == subsystem.nqn);
        let leaving = leaving.map(|export| leaving_status(export, now_us));
        SubsystemStatus {
            nqn: subsystem.nqn.to_string(),
            serial: subsystem.serial.clone(),
            model: subsystem.model.clone(),
            allow_any_host: subsystem.hosts == Hosts::Any,
            allowed_hosts,
            namespaces: namespaces.chain(leaving).collect(),
        }
    }

    /// Why a namespace has no disk that is open.
    pub(in crate::daemon) fn why_not_open(&self, key: &(Nqn, u32), namespace: &Namespace) -> Option<String> {
        let rests = || self.namespaces.is_resting(key, namespace).then(|| RESTS.to_owned());
        let hangs =
            || self.namespaces.hangs(key, self.common.clock.now()).then(|| ExportFault::Slow.to_string());
        self.namespaces.fault(key).or_else(rests).or_else(hangs)
    }

    /// What is still at disks of subsystems that were removed.
    fn leaving_of_no_subsystem(&self) -> Vec<LeavingStatus> {
        let now_us = self.common.observed.now_us();
        let is_there = |nqn: &Nqn| self.config.subsystems.iter().any(|subsystem| subsystem.nqn == *nqn);
        let gone = self.namespaces.leaving().filter(|export| !is_there(&export.nqn));
        let status = |export: &Export| LeavingStatus {
            subsystem: export.nqn.to_string(),
            namespace: leaving_status(export, now_us),
        };
        gone.map(status).collect()
    }

    fn connected_hosts(&self) -> Vec<HostStatus> {
        let mut hosts: BTreeMap<String, (usize, u32)> = BTreeMap::new();
        for association in self.registry().associations() {
            let (controllers, io_queues) = hosts.entry(association.host_nqn().to_string()).or_default();
            *controllers += 1;
            *io_queues += u32::from(association.io_queues());
        }
        let status = |(nqn, (controllers, io_queues))| HostStatus { nqn, controllers, io_queues };
        hosts.into_iter().map(status).collect()
    }

    fn trouble(&self) -> BTreeMap<String, u64> {
        let mut trouble = BTreeMap::new();
        for (name, value) in self.workers.iter().flat_map(|worker| worker.counters.iter()) {
            if value > 0 && TROUBLE.contains(&name) {
                *trouble.entry(name.to_owned()).or_default() += value;
            }
        }
        trouble
    }
}

fn leaving_status(export: &Export, now_us: u64) -> NamespaceStatus {
    let fault = Some("operations on the disk are not over".to_owned());
    namespace_status(&export.namespace, NamespaceState::Leaving, fault, Some(disk_status(export, now_us)))
}

fn namespace_status(
    namespace: &Namespace,
    state: NamespaceState,
    fault: Option<String>,
    disk: Option<DiskStatus>,
) -> NamespaceStatus {
    NamespaceStatus {
        nsid: namespace.nsid,
        backing: describe(&namespace.backing),
        state,
        fault,
        ana_group: namespace.ana_group,
        served_by: None,
        of_group: false,
        hosts: match &namespace.hosts {
            Hosts::Any => None,
            Hosts::Only(hosts) => Some(hosts.iter().map(ToString::to_string).collect()),
        },
        limit_iops: namespace.limits.and_then(|limits| limits.iops),
        limit_bytes_per_second: namespace.limits.and_then(|limits| limits.bytes_per_second),
        disk,
    }
}

fn disk_status(export: &Export, now_us: u64) -> DiskStatus {
    let (geometry, health) = (export.geometry(), export.disk.health());
    let in_flight = export.counted.in_flight(now_us);
    let last = export.disk.last_failure();
    DiskStatus {
        uuid: Uuid::from_bytes(export.uuid).to_string(),
        bytes: geometry.bytes(),
        block_size: geometry.block_size,
        read_only: export.namespace.read_only || geometry.read_only,
        write_protected: false,
        write_cache: export.disk.volatile_write_cache(),
        direct: export.disk.direct(),
        failures: health.failures,
        last_failure: last.map(|(failure, _)| failure.to_string()),
        last_failure_s: last.map(|(_, age)| age.as_secs()),
        in_flight: in_flight.operations,
        oldest_operation_s: in_flight.oldest.as_secs(),
        cache_lost: health.cache_lost.map(|failure| failure.to_string()),
    }
}
