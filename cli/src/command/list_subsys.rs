//! `nvmf list-subsys`: subsystems, the disks of each, and the paths to these.

use super::attach::is_named;
use super::list::{blocks, retry, seconds_until};
use super::{Format, Output};
use crate::attach::Registry;
use crate::print::{human, line};
use anyhow::{Result, ensure};
use nvmf_attached::{AttachedPath, Attachment, State};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::ffi::OsString;

#[derive(clap::Args)]
pub(crate) struct ListSubsys {
    /// Only the subsystem of this disk: its block device, its NBD socket, or the NQN
    device: Option<OsString>,
    /// As nvme-cli has it; always so here
    #[arg(short = 'v', long, hide = true)]
    verbose: bool,
    #[command(flatten)]
    output: Output,
}

/// The disks of one subsystem that one host has attached.
type Subsystem<'a> = Vec<&'a Attachment>;

/// The subsystems of each host, by its NQN and identifier.
type Hosts<'a> = BTreeMap<(&'a str, &'a str), BTreeMap<&'a str, Subsystem<'a>>>;

fn by_host<'a>(disks: impl IntoIterator<Item = &'a Attachment>) -> Hosts<'a> {
    let mut hosts = Hosts::new();
    for disk in disks {
        let host = hosts.entry((&disk.host_nqn, &disk.host_id)).or_default();
        host.entry(&disk.nqn).or_default().push(disk);
    }
    hosts
}

/// Each host with its subsystems, and of each of these what `of` says, as nvme-cli has it.
fn json_of_hosts(hosts: &Hosts<'_>, of: impl Fn(usize, &str, &Subsystem<'_>) -> Value) -> Vec<Value> {
    let host = |((nqn, id), subsystems): (&(&str, &str), &BTreeMap<&str, Subsystem<'_>>)| {
        let subsystems = (0..).zip(subsystems).map(|(number, (nqn, disks))| of(number, nqn, disks));
        json!({ "HostNQN": nqn, "HostID": id, "Subsystems": subsystems.collect::<Vec<_>>() })
    };
    hosts.iter().map(host).collect()
}

impl ListSubsys {
    pub(crate) fn run(&self) -> Result<()> {
        let mut disks: Vec<_> = Registry::of_this_user().list()?.into_iter().map(|it| it.disk).collect();
        if let Some(name) = &self.device {
            let mut nqns = Vec::new();
            for disk in &disks {
                if is_named(disk, name) {
                    nqns.push(disk.nqn.clone());
                }
            }
            ensure!(!nqns.is_empty(), "no such disk is attached: `nvmf list` shows those that are");
            disks.retain(|disk| nqns.contains(&disk.nqn));
        }
        let hosts = by_host(&disks);
        if self.output.format == Format::Json {
            // An array, as nvme-cli's: it has no place for a version.
            return line(serde_json::to_string_pretty(&json_of_hosts(&hosts, json_of))?);
        }
        for ((host, _), subsystems) in &hosts {
            for (number, (nqn, disks)) in (0..).zip(subsystems) {
                print(number, host, nqn, disks)?;
            }
        }
        Ok(())
    }
}

fn print(number: usize, host: &str, nqn: &str, disks: &Subsystem<'_>) -> Result<()> {
    line(format_args!("{} - NQN={nqn}\n               hostnqn={host}\n\\", subsystem_name(number)))?;
    for (at, disk) in disks.iter().enumerate() {
        let reason = disk.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        line(format_args!(
            " +- {} namespace {} {} iopolicy={} {}{reason}",
            disk.place().display(),
            disk.nsid,
            human(disk.size),
            disk.iopolicy,
            state(disk.state),
        ))?;
        let bar = if at + 1 < disks.len() { '|' } else { ' ' };
        for (number, path) in (0..).zip(&disk.paths) {
            let cntlid = path.cntlid.map(|cntlid| format!(" cntlid={cntlid}")).unwrap_or_default();
            let access = path.ana_state.as_ref().map(|state| format!(" {state}")).unwrap_or_default();
            let reason = path.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            let retry = retry(path).map(|retry| format!("; {retry}")).unwrap_or_default();
            line(format_args!(
                " {bar}  +- {} {} {} {}{access}{cntlid}{reason}{retry}",
                path_name(disk, number),
                path.transport,
                address(path),
                state(path.state),
            ))?;
        }
    }
    Ok(())
}

fn json_of(number: usize, nqn: &str, disks: &Subsystem<'_>) -> Value {
    let iopolicy = disks.first().map(|disk| disk.iopolicy.as_str());
    let paths =
        disks.iter().flat_map(|disk| (0..).zip(&disk.paths).map(|(at, path)| json_path(disk, at, path)));
    let namespaces = disks.iter().map(|disk| {
        json!({
            "NSID": disk.nsid, "Name": name(disk), "DevicePath": disk.device, "Socket": disk.socket,
            "State": state(disk.state), "Reason": disk.reason, "IOPolicy": disk.iopolicy,
            "PhysicalSize": disk.size, "SectorSize": disk.block_size,
        })
    });
    json!({
        "Name": subsystem_name(number), "NQN": nqn, "IOPolicy": iopolicy,
        "Paths": paths.collect::<Vec<_>>(), "Namespaces": namespaces.collect::<Vec<_>>(),
    })
}

/// Block devices as `nvme list -v -o json` has them: by host, subsystem and controller.
pub(super) fn detailed(disks: &[&Attachment]) -> Vec<Value> {
    json_of_hosts(&by_host(disks.iter().copied()), |number, nqn, disks| {
        let controllers = disks.iter().flat_map(|disk| {
            (0..).zip(&disk.paths).map(|(number, path)| {
                let record = disk.disk.clone().unwrap_or_default();
                let name = path_name(disk, number);
                json!({
                    "Controller": name, "Cntlid": path.cntlid.map(|cntlid| cntlid.to_string()),
                    "SerialNumber": record.serial, "ModelNumber": record.model, "Firmware": record.firmware,
                    "Transport": path.transport, "Address": address(path), "Slot": "", "Namespaces": [],
                    "Paths": [{ "Path": name, "ANAState": path.ana_state }],
                })
            })
        });
        let namespaces = disks.iter().map(|disk| {
            json!({
                "NameSpace": name(disk), "NSID": disk.nsid, "MaximumLBA": blocks(disk), "PhysicalSize": disk.size,
                "SectorSize": disk.block_size,
            })
        });
        json!({
            "Subsystem": subsystem_name(number), "SubsystemNQN": nqn,
            "Controllers": controllers.collect::<Vec<_>>(), "Namespaces": namespaces.collect::<Vec<_>>(),
        })
    })
}

fn json_path(disk: &Attachment, number: usize, path: &AttachedPath) -> Value {
    let mut value = Map::new();
    let mut put = |name: &str, it: Value| value.insert(name.to_owned(), it);
    put("Name", path_name(disk, number).into());
    put("Transport", path.transport.as_str().into());
    put("Address", address(path).into());
    put("State", state(path.state).into());
    if let Some(access) = &path.ana_state {
        put("ANAState", access.as_str().into());
    }
    put("NSID", disk.nsid.into());
    if let Some(cntlid) = path.cntlid {
        put("CNTLID", cntlid.into());
    }
    if let Some(reason) = &path.reason {
        put("Reason", reason.as_str().into());
    }
    for (name, at) in [("NextAttempt", path.next_attempt), ("GivesUp", path.gives_up)] {
        if let Some(at) = at.filter(|_| path.state == State::Reconnecting) {
            put(name, seconds_until(at).into());
        }
    }
    Value::Object(value)
}

/// Subsystems have no number on this machine but the one in this list.
fn subsystem_name(number: usize) -> String {
    format!("nvmf-subsys{number}")
}

/// The disk's name: `ublkb0`, or that of its socket.
fn name(disk: &Attachment) -> String {
    disk.place().file_name().map_or_else(|| "-".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Each disk has controllers of its own.
fn path_name(disk: &Attachment, number: usize) -> String {
    format!("{}p{number}", name(disk))
}

/// As the kernel has it in sysfs.
fn address(path: &AttachedPath) -> String {
    let interface = path.interface.as_ref().map(|name| format!(",host_iface={name}")).unwrap_or_default();
    let source = path.source.as_ref().map(|source| format!(",src_addr={source}")).unwrap_or_default();
    match path.host_and_port() {
        (host, Some(port)) => format!("traddr={host},trsvcid={port}{interface}{source}"),
        (host, None) => format!("traddr={host}{interface}{source}"),
    }
}

/// The kernel's word where it has one.
fn state(state: State) -> &'static str {
    match state {
        State::Reconnecting => "connecting",
        state => state.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_devices_are_listed_in_detail_as_nvme_cli_does() {
        let path = |address: &str, cntlid, interface: Option<&str>| AttachedPath {
            address: address.to_owned(),
            transport: "tcp".to_owned(),
            interface: interface.map(str::to_owned),
            cntlid,
            ana_state: cntlid.map(|_| "optimized".to_owned()),
            ..AttachedPath::default()
        };
        let disk = Attachment {
            nqn: "nqn.2026-11.com.example:disk".to_owned(),
            host_nqn: "nqn.2026-11.com.example:host".to_owned(),
            nsid: 3,
            size: 1 << 20,
            block_size: 512,
            device: Some("/dev/ublkb0".into()),
            paths: vec![path("192.0.2.1:4420", Some(7), None), path("192.0.2.1:4420", None, Some("eth1"))],
            ..Attachment::default()
        };
        let hosts = detailed(&[&disk]);
        assert_eq!(hosts[0]["HostNQN"], disk.host_nqn.as_str());
        let subsystem = &hosts[0]["Subsystems"][0];
        assert_eq!((&subsystem["SubsystemNQN"], hosts.len()), (&Value::from(disk.nqn.as_str()), 1));
        let [first, second] = [0, 1].map(|at| &subsystem["Controllers"][at]);
        assert_eq!((&first["Cntlid"], &first["Paths"][0]["ANAState"]), (&"7".into(), &"optimized".into()));
        assert_eq!(second["Address"], "traddr=192.0.2.1,trsvcid=4420,host_iface=eth1");
        assert_eq!(second["Cntlid"], Value::Null, "it is away");
        let namespace = &subsystem["Namespaces"][0];
        let (name, nsid) = (namespace["NameSpace"].as_str(), namespace["NSID"].as_u64());
        assert_eq!((name, nsid, namespace["MaximumLBA"].as_u64()), (Some("ublkb0"), Some(3), Some(2048)));
    }
}
