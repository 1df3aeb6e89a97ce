//! What is wrong, and the command that fixes it.

use super::counters::{Counter, Source, Verdict};
use super::limits::{Limits, Module};
use super::target::Target;
use super::towards::Towards;
use nvmf_rdma_devices::{Choice, Device, Driver, LinkLayer, Machine, Netdev, Port, PortState, Reason};
use serde_json::{Value, json};

/// Locked memory that a target needs at least: its default `buffer_memory`, and as much for receives.
const TARGET_PINS: u64 = 128 << 20;

/// A finding.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// [`Verdict::Bad`]: to be fixed. [`Verdict::Watch`]: may become a problem.
    pub(super) level: Verdict,
    /// The device, address or limit.
    pub(super) subject: String,
    /// What is wrong.
    pub(super) what: String,
    /// The command that fixes it.
    pub(super) mend: String,
}

/// Everything that was examined.
pub(super) struct Examined<'a> {
    pub(super) machine: &'a Machine,
    pub(super) limits: &'a Limits,
    pub(super) towards: Option<&'a Towards<'a>>,
    pub(super) target: Option<&'a Target>,
    pub(super) counters: &'a [Counter],
    /// `ethtool` is installed.
    pub(super) has_ethtool: bool,
}

impl Finding {
    pub(super) fn new(
        level: Verdict,
        subject: &str,
        what: impl Into<String>,
        mend: impl Into<String>,
    ) -> Self {
        Self { level, subject: subject.to_owned(), what: what.into(), mend: mend.into() }
    }

    pub(super) fn json(&self) -> Value {
        json!({ "level": self.level.name(), "subject": self.subject, "what": self.what, "mend": self.mend })
    }
}

/// All findings, the worst first.
pub(super) fn advise(examined: &Examined<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for device in &examined.machine.devices {
        for port in &device.ports {
            of_port(examined.machine, device, port, &mut findings);
        }
    }
    of_system(examined, &mut findings);
    of_limits(examined.limits, !examined.machine.devices.is_empty(), &mut findings);
    if let Some(towards) = examined.towards {
        of_choice(examined.machine, towards, &mut findings);
    }
    findings.extend(examined.target.and_then(Target::finding));
    of_counters(examined, &mut findings);
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    findings
}

fn of_port(machine: &Machine, device: &Device, port: &Port, findings: &mut Vec<Finding>) {
    let subject = format!("{} port {}", device.name, port.number);
    let netdevs: Vec<&Netdev> = port.netdevs.iter().filter_map(|name| machine.netdev(name)).collect();
    let netdev = netdevs.first().copied();
    // A port without an address may be down on purpose.
    let in_use = netdevs.iter().any(|netdev| netdev.addresses.iter().any(is_global));
    let name = netdev.map_or("NETDEV", |netdev| netdev.name.as_str());
    if port.state != PortState::Active {
        let level = if in_use { Verdict::Bad } else { Verdict::Watch };
        let mend = match (&port.state, &port.link_layer) {
            (PortState::Init, LinkLayer::Infiniband) => {
                "start a subnet manager: systemctl start opensm".to_owned()
            }
            (_, LinkLayer::Infiniband) => "check the cable and the switch: ibstat, iblinkinfo".to_owned(),
            _ => format!("ip link set {name} up (and if that is not it, the cable: ethtool {name})"),
        };
        findings.push(Finding::new(
            level,
            &subject,
            format!("the port is {} ({})", port.state, port.physical_state),
            mend,
        ));
        return;
    }
    if !device.is_roce(port) {
        return;
    }
    if netdev.is_some() && !in_use {
        let mend = format!("ip address add ADDRESS/PREFIX dev {name}");
        findings.push(Finding::new(Verdict::Watch, &subject, "it has no IP address", mend));
    } else if !port.has_roce_v2() {
        let what = "its GIDs are all of RoCE v1, which is not routed and which many peers refuse";
        let mend =
            format!("cma_roce_mode -d {} -p {} -m 2 (and a firmware with RoCE v2)", device.name, port.number);
        findings.push(Finding::new(Verdict::Watch, &subject, what, mend));
    }
    if let Some((netdev, mtu)) = netdev.and_then(|netdev| Some((netdev, netdev.roce_mtu()?)))
        && mtu < 4096
    {
        let what =
            format!("{name} has MTU {}, so that RoCE packets hold only {mtu} bytes", netdev.mtu.unwrap_or(0));
        let mend = format!("ip link set {name} mtu 4200 (9000 where the switches and all peers take it)");
        findings.push(Finding::new(Verdict::Watch, &subject, what, mend));
    }
}

/// Neither link-local nor loopback.
fn is_global(address: &std::net::IpAddr) -> bool {
    !matches!(address, std::net::IpAddr::V6(v6) if v6.is_unicast_link_local()) && !address.is_loopback()
}

/// What the verbs provider lacks, where there is a device for it.
fn of_system(examined: &Examined<'_>, findings: &mut Vec<Finding>) {
    let (machine, limits) = (examined.machine, examined.limits);
    let is_card = |driver: &Option<String>| driver.as_deref().is_some_and(|driver| driver != "virtio_net");
    if !examined.has_ethtool && machine.netdevs.iter().any(|netdev| is_card(&netdev.driver)) {
        let what = "ethtool is not installed: the cards' own counters (discards, pauses) were not read";
        findings.push(Finding::new(Verdict::Watch, "counters", what, "apt install ethtool"));
    }
    if machine.devices.is_empty() {
        return;
    }
    if let Some((name, _)) = limits.libraries.iter().find(|(_, path)| path.is_none()) {
        let what = format!("{name} is not installed: the RDMA devices cannot be used");
        let mend = "apt install libibverbs1 librdmacm1 ibverbs-providers rdma-core";
        findings.push(Finding::new(Verdict::Bad, "verbs", what, mend));
    }
    match (limits.nodes.iter().any(|node| node.path.ends_with("rdma_cm")), limits.module("rdma_ucm")) {
        (true, _) => {}
        (false, Module::Loaded) => {
            let what = "/dev/infiniband/rdma_cm is not there, although rdma_ucm is loaded";
            let mend = "udevadm trigger --subsystem-match=misc; in a container, pass /dev/infiniband on";
            findings.push(Finding::new(Verdict::Bad, "verbs", what, mend));
        }
        (false, Module::Available) => {
            let what = "the module rdma_ucm is not loaded: no RDMA connection can be made from user space";
            findings.push(Finding::new(Verdict::Bad, "verbs", what, "modprobe rdma_ucm"));
        }
        (false, Module::Absent) => {
            let what = "this kernel has no module rdma_ucm";
            let mend =
                format!("apt install linux-modules-extra-{} (Ubuntu), or another kernel", limits.kernel);
            findings.push(Finding::new(Verdict::Bad, "verbs", what, mend));
        }
    }
    if !limits.nodes.iter().any(|node| node.path.to_string_lossy().contains("uverbs")) {
        let what = "/dev/infiniband/uverbs* is not there";
        findings.push(Finding::new(
            Verdict::Bad,
            "verbs",
            what,
            "modprobe ib_uverbs; in a container, pass /dev/infiniband on",
        ));
    }
    if let Some(node) = limits.nodes.iter().find(|node| !node.usable) {
        let what = format!("this user may not open {}", node.path.display());
        let mend = "apt install rdma-core (its udev rules open them to all), or run as root";
        findings.push(Finding::new(Verdict::Bad, "verbs", what, mend));
    }
}

fn of_limits(limits: &Limits, has_devices: bool, findings: &mut Vec<Finding>) {
    let by_use = |used: bool| if used { Verdict::Bad } else { Verdict::Watch };
    if let Some(bytes) = limits.target_may_pin().filter(|bytes| *bytes < TARGET_PINS) {
        // Without an RDMA device it only costs speed.
        let level = by_use(has_devices && limits.is_target);
        let what = format!(
            "{} of locked memory are allowed, a target wants {}",
            crate::print::human(bytes),
            crate::print::human(TARGET_PINS)
        );
        let mend = "LimitMEMLOCK=infinity in the unit (systemctl edit nvmf-target); by hand: ulimit -l unlimited, as root";
        findings.push(Finding::new(level, "memlock", what, mend));
    }
    if limits.io_uring_disabled.is_some_and(|level| level > 0) {
        let what = "io_uring is not allowed to everyone here, and a target needs it";
        findings.push(Finding::new(
            by_use(limits.is_target),
            "io_uring",
            what,
            "sysctl kernel.io_uring_disabled=0",
        ));
    }
    if version(&limits.kernel).is_some_and(|version| version < (5, 19)) {
        let what = format!("Linux {} is older than 5.19, which a target needs", limits.kernel);
        findings.push(Finding::new(by_use(limits.is_target), "kernel", what, "a newer kernel"));
    }
}

/// The first two numbers of `6.12.107+deb13-amd64`.
fn version(kernel: &str) -> Option<(u32, u32)> {
    let mut numbers = kernel.split(|sign: char| !sign.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn of_choice(machine: &Machine, towards: &Towards<'_>, findings: &mut Vec<Finding>) {
    let subject = towards.address.to_string();
    if let Some([first, others @ ..]) = towards.source.map(|source| machine.owners_of(source)).as_deref() {
        for other in others {
            let (taken, left) = (first.device, other.device);
            let protocols = (taken.protocol(first.port), left.protocol(other.port));
            if protocols.0 != protocols.1 {
                let what = format!(
                    "{} ({}) and {} ({}) lie on one interface; the first is taken, and peers must speak the same",
                    taken.name, protocols.0, left.name, protocols.1
                );
                let mend =
                    format!("rdma link delete the one that is not wanted: {} or {}", taken.name, left.name);
                findings.push(Finding::new(Verdict::Watch, &subject, what, mend));
            }
        }
    }
    match &towards.choice {
        Err(error) => {
            let mend = format!("ip route get {subject}; then ip route add, or the right address");
            findings.push(Finding::new(Verdict::Bad, &subject, format!("there is no route: {error}"), mend));
        }
        // What verbs lacks is a finding of its own.
        Ok(Choice::Iwarp(Reason::VerbsUnusable(owner, _))) => {
            let protocol = owner.device.protocol(owner.port);
            let what = format!(
                "{} owns the way there and cannot be used: a peer that speaks {protocol} is not reached",
                owner.device.name
            );
            findings.push(Finding::new(
                Verdict::Watch,
                &subject,
                what,
                "mend verbs as said, or choose iwarp on both sides",
            ));
        }
        Ok(Choice::Verbs(owner)) if owner.gid.is_none() && owner.device.is_roce(owner.port) => {
            let (device, netdev) = (&owner.device.name, &owner.netdev.name);
            let what = format!("{device} made no GID from the address of {netdev}");
            let mend = format!("ip link set {netdev} down; ip link set {netdev} up");
            findings.push(Finding::new(Verdict::Bad, &subject, what, mend));
        }
        Ok(_) => {}
    }
}

fn of_counters(examined: &Examined<'_>, findings: &mut Vec<Finding>) {
    let counters = examined.counters;
    for counter in counters.iter().filter(|counter| counter.verdict == Verdict::Bad) {
        let netdev = match counter.source {
            Source::Ethtool | Source::Netdev => Some(counter.on.as_str()),
            _ => port_of(examined.machine, &counter.on)
                .and_then(|(_, port)| port.netdevs.first())
                .map(String::as_str),
        };
        let mend = counter.meaning.mend.replace("NETDEV", netdev.unwrap_or("NETDEV"));
        let what = format!("{}: {}", counter.name, counter.sentence());
        findings.push(Finding::new(Verdict::Bad, &counter.on, what, mend));
    }
    for (device, port) in
        examined.machine.devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port)))
    {
        if !matches!(device.driver, Driver::Hardware(_)) || !device.is_roce(port) {
            continue;
        }
        let on = format!("{}/{}", device.name, port.number);
        let of_this = |counter: &&Counter| counter.on == on || port.netdevs.contains(&counter.on);
        let named = |words: &[&str]| {
            let mut fitting = counters
                .iter()
                .filter(of_this)
                .filter(|counter| counter.total > 0 && words.iter().any(|word| counter.name.contains(word)));
            fitting.next().is_some()
        };
        let lossy = named(&["out_of_sequence", "packet_seq_err", "discard", "local_ack_timeout"]);
        if lossy && !named(&["pause", "pfc", "xoff", "cnp", "ecn"]) {
            let what =
                "packets were lost, and no sign of PFC or ECN was ever seen: RoCE runs without flow control";
            let name = port.netdevs.first().map_or("NETDEV", String::as_str);
            let mend = format!(
                "PFC for RoCE's priority here and at the switch: mlnx_qos -i {name} --pfc 0,0,0,1,0,0,0,0 --trust dscp (or dcb pfc set dev {name} prio-pfc 3:on)"
            );
            findings.push(Finding::new(Verdict::Watch, &on, what, mend));
        }
    }
}

fn port_of<'a>(machine: &'a Machine, on: &str) -> Option<(&'a Device, &'a Port)> {
    let (name, number) = on.split_once('/')?;
    let device = machine.devices.iter().find(|device| device.name == name)?;
    Some((device, device.ports.iter().find(|port| port.number.to_string() == number)?))
}

#[cfg(test)]
mod tests;
