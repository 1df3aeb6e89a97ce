//! The report, as text and as JSON.

use super::advice::Finding;
use super::counters::{Counter, Verdict};
use super::limits::{Limits, Module};
use super::target::Target;
use super::towards::Towards;
use crate::print::human;
use nvmf_rdma_devices::{Device, Machine, Netdev, Port};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// Everything that is reported.
pub(super) struct Report<'a> {
    pub(super) machine: &'a Machine,
    pub(super) limits: &'a Limits,
    pub(super) towards: Option<&'a Towards<'a>>,
    pub(super) target: Option<&'a Target>,
    pub(super) counters: &'a [Counter],
    /// Time between the two readings of the counters.
    pub(super) interval: Duration,
    pub(super) findings: &'a [Finding],
}

impl Report<'_> {
    /// Nothing needs mending.
    pub(super) fn is_healthy(&self) -> bool {
        self.findings.iter().all(|finding| finding.level != Verdict::Bad)
    }

    /// The shape that docs/TROUBLESHOOTING.md gives.
    pub(super) fn json(&self) -> Value {
        json!({
            "healthy": self.is_healthy(),
            "devices": self.machine.devices.iter().map(|device| self.device_json(device)).collect::<Vec<_>>(),
            "limits": self.limits.json(),
            "choice": self.towards.map(Towards::json),
            "target": self.target.map(Target::json),
            "counters": {
                "seconds": self.interval.as_secs_f64(),
                "readings": self.counters.iter().map(Counter::json).collect::<Vec<_>>(),
            },
            "findings": self.findings.iter().map(Finding::json).collect::<Vec<_>>(),
        })
    }

    fn device_json(&self, device: &Device) -> Value {
        let ports: Vec<_> = device.ports.iter().map(|port| self.port_json(device, port)).collect();
        json!({
            "name": device.name, "node_type": device.node_type.to_string(), "node_guid": device.node_guid,
            "firmware": device.firmware, "driver": device.driver.to_string(), "ports": ports,
        })
    }

    fn port_json(&self, device: &Device, port: &Port) -> Value {
        let is_rnic = device.protocol(port) == "iWARP";
        let gids = port.gids.iter().map(|gid| {
            // The kernel fills in RoCE types for iWARP devices, too; they mean nothing there.
            let kind = gid.kind.as_ref().filter(|_| !is_rnic).map(ToString::to_string);
            json!({ "index": gid.index, "gid": gid.address, "type": kind, "netdev": gid.netdev })
        });
        let netdevs = self.beneath(port).map(|netdev| {
            json!({
                "name": netdev.name, "operstate": netdev.operstate, "mtu": netdev.mtu,
                "driver": netdev.driver, "addresses": netdev.addresses,
            })
        });
        json!({
            "port": port.number, "state": port.state.to_string(), "physical_state": port.physical_state,
            "link_layer": port.link_layer.to_string(), "protocol": device.protocol(port), "rate": port.rate,
            "active_mtu": self.active_mtu(device, port), "lid": port.lid,
            "gids": gids.collect::<Vec<_>>(), "netdevs": netdevs.collect::<Vec<_>>(),
        })
    }

    fn beneath<'a>(&'a self, port: &'a Port) -> impl Iterator<Item = &'a Netdev> {
        port.netdevs.iter().filter_map(|name| self.machine.netdev(name))
    }

    /// On RoCE it follows from the interface's MTU. InfiniBand's is not in sysfs, and iWARP has none.
    fn active_mtu(&self, device: &Device, port: &Port) -> Option<u32> {
        self.beneath(port).next().filter(|_| device.is_roce(port))?.roce_mtu()
    }

    /// A screen of text.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        self.devices_text(&mut text);
        self.limits_text(&mut text);
        if let Some(towards) = self.towards {
            let source = towards.source.filter(|source| *source != towards.address);
            let from = source.map_or_else(String::new, |source| format!(" from {source}"));
            let said = match &towards.choice {
                Ok(choice) => format!("{}: {choice}", choice.provider()),
                Err(error) => format!("no route: {error}"),
            };
            let _ = writeln!(text, "provider   {}{from}: {said}", towards.address);
        }
        if let Some(target) = self.target {
            let _ = writeln!(text, "target     {}", target.text());
        }
        self.counters_text(&mut text);
        self.findings_text(&mut text);
        text
    }

    fn devices_text(&self, text: &mut String) {
        if self.machine.devices.is_empty() {
            let _ = writeln!(text, "device     none: iwarp over TCP is used, which needs none");
        }
        for device in &self.machine.devices {
            for port in &device.ports {
                let rate =
                    port.rate.as_deref().filter(|_| !device.driver.to_string().starts_with("software"));
                let mtu = self.active_mtu(device, port).map(|mtu| format!("MTU {mtu}"));
                let lid = (port.lid != 0).then(|| format!("LID {:#x}", port.lid));
                let firmware = device.firmware.as_ref().map(|version| format!("firmware {version}"));
                let words = [rate.map(str::to_owned), mtu, lid, Some(device.driver.to_string()), firmware];
                let words: Vec<_> = words.into_iter().flatten().collect();
                let name = format!("{}/{}", device.name, port.number);
                let (state, physical) = (&port.state, &port.physical_state);
                let (protocol, words) = (device.protocol(port), words.join(", "));
                let _ = writeln!(text, "device     {name:<12} {state} {physical}, {protocol}, {words}");
                for netdev in self.beneath(port) {
                    let addresses: Vec<_> = netdev.addresses.iter().map(ToString::to_string).collect();
                    let mtu = netdev.mtu.map_or_else(String::new, |mtu| format!(", MTU {mtu}"));
                    let driver =
                        netdev.driver.as_deref().map_or_else(String::new, |driver| format!(", {driver}"));
                    let (name, state) = (&netdev.name, &netdev.operstate);
                    let _ = writeln!(
                        text,
                        "             on {name} {state}{mtu}{driver}: {}",
                        addresses.join(" ")
                    );
                }
                if protocol != "iWARP" {
                    gids_text(port, text);
                }
            }
        }
    }

    fn limits_text(&self, text: &mut String) {
        let limits = self.limits;
        let bytes = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), human);
        let privileged = if limits.may_lock_all { " (privileged: all)" } else { "" };
        let (soft, hard) = limits.own.open_files;
        let own = bytes(limits.own.memlock);
        let target = bytes(limits.target_may_pin());
        let _ = writeln!(
            text,
            "limits     memlock {own}{privileged}, for the target's service {target}; open files {soft}, up to {hard}"
        );
        let io_uring = match limits.io_uring_disabled {
            None | Some(0) => "allowed",
            Some(1) => "for the privileged only",
            Some(_) => "switched off",
        };
        let (free, all) = (limits.hugepages_free, limits.hugepages);
        let _ = writeln!(
            text,
            "           Linux {}, io_uring {io_uring}; hugepages {free} of {all} free, none needed",
            limits.kernel
        );
        let named = |state| {
            let modules = limits.modules.iter().filter(|(_, it)| *it == state).map(|(name, _)| *name);
            modules.collect::<Vec<_>>().join(" ")
        };
        let mut parts = Vec::new();
        for (state, word) in
            [(Module::Loaded, "loaded"), (Module::Available, "to be had"), (Module::Absent, "absent")]
        {
            let names = named(state);
            if !names.is_empty() {
                parts.push(format!("{word}: {names}"));
            }
        }
        let _ = writeln!(text, "modules    {}", parts.join("; "));
        if self.machine.devices.is_empty() {
            return;
        }
        let verbs = limits.verbs().map_or_else(|why| format!("not usable: {why}"), |()| "usable".to_owned());
        let _ = writeln!(text, "verbs      {verbs}");
    }

    fn counters_text(&self, text: &mut String) {
        if self.counters.is_empty() {
            return;
        }
        let zero = self.counters.iter().filter(|counter| counter.total == 0).count();
        let (all, seconds) = (self.counters.len(), self.interval.as_secs_f64());
        let _ = writeln!(text, "counters   {all} read twice, {seconds} s apart; {zero} are zero");
        let mut shown: Vec<_> = self.counters.iter().filter(|counter| counter.total > 0).collect();
        shown.sort_by_key(|counter| std::cmp::Reverse(counter.verdict));
        for counter in shown {
            let (verdict, on, name, total) =
                (counter.verdict.name(), &counter.on, &counter.name, counter.total);
            let _ = writeln!(text, "  {verdict:<6} {on:<12} {name:<26} {total:>10}  {}", counter.sentence());
        }
    }

    fn findings_text(&self, text: &mut String) {
        for finding in self.findings {
            let _ = writeln!(
                text,
                "{:<6} {}: {}\n         mend: {}",
                finding.level.name(),
                finding.subject,
                finding.what,
                finding.mend
            );
        }
        let bad = self.findings.iter().filter(|finding| finding.level == Verdict::Bad).count();
        let _ = match (bad, self.findings.len()) {
            (0, 0) => writeln!(text, "nothing wrong"),
            (0, _) => writeln!(text, "nothing wrong; the lines marked `watch` may become a problem"),
            (1, _) => writeln!(text, "1 thing needs mending"),
            _ => writeln!(text, "{bad} things need mending"),
        };
    }
}

/// The first GIDs, one per line.
fn gids_text(port: &Port, text: &mut String) {
    const SHOWN: usize = 8;
    for gid in port.gids.iter().take(SHOWN) {
        let kind = gid.kind.as_ref().map_or_else(String::new, |kind| format!(" {kind}"));
        let netdev = gid.netdev.as_deref().map_or_else(String::new, |netdev| format!(" on {netdev}"));
        let _ = writeln!(text, "             GID {} {}{kind}{netdev}", gid.index, gid.address);
    }
    if port.gids.len() > SHOWN {
        let _ = writeln!(text, "             and {} GIDs more (-o json)", port.gids.len() - SHOWN);
    }
}

#[cfg(test)]
mod tests;
