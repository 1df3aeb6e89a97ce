//! `nvmf doctor`: examines this machine's RDMA devices, limits and counters, and the way to a target.
//!
//! | file | what it examines |
//! |---|---|
//! | `counters`, `meaning` | error and congestion counters, read twice; what each means |
//! | `limits` | memory, kernel, modules, device nodes, libraries |
//! | `towards` | the provider for an address, and why |
//! | `target` | whether a target answers there |
//! | `disks` | attached disks that cannot be used |
//! | `advice` | what is wrong, and the command that fixes it |
//! | `report` | the report, as text and as JSON |
//! | `ping` | round trips and bandwidth against another `nvmf doctor` |
//!
//! Devices, ports and GIDs are read by `nvmf-rdma-devices`. Everything is read below a root folder, so that tests can
//! examine recorded machines. Nothing on the machine is changed.

mod advice;
mod counters;
mod disks;
mod limits;
mod meaning;
mod ping;
mod report;
mod target;
mod towards;

pub(crate) use ping::{PORT as PING_PORT, Plan, SIZES, listen, ping};

use crate::attach::Registry;
use crate::connect::Transport;
use crate::print::{self, print_json};
use anyhow::{Context, Result};
use counters::Reading;
use limits::{Limits, Own};
use nvmf_rdma_devices::{Machine, netdev};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

/// Over which provider a target is asked, and `ping` and `listen` go.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProviderChoice {
    /// Userspace iWARP over TCP
    Iwarp,
    /// RDMA devices, by libibverbs
    Verbs,
    /// Each that can be used
    All,
}

/// A target that is asked whether it answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    /// Where its discovery service is.
    pub(crate) address: SocketAddr,
    /// Over which transport it is asked; over both where none is named.
    pub(crate) transport: Option<Transport>,
    /// Over which provider, if over RDMA.
    pub(crate) provider: ProviderChoice,
}

/// Examines this machine, and the way to a target: the report, as JSON or for people, and whether nothing needs
/// mending.
pub(crate) fn examine(question: Option<&Question>, interval: Duration, json: bool) -> Result<bool> {
    let root = Path::new("/");
    let addresses = netdev::addresses().context("cannot read this machine's addresses")?;
    let machine = Machine::read_at(root, &addresses).context("cannot read /sys/class")?;
    let limits = Limits::read(root, Own::read());
    let verbs = limits.verbs();
    let verbs = verbs.as_ref().map_err(String::as_str).copied();
    let towards = question.map(|question| towards::Towards::new(&machine, question.address.ip(), verbs));

    let target = question.map(target::Target::ask);

    let netdevs = netdevs_to_read(&machine, towards.as_ref().and_then(|towards| towards.source));
    // What `auto` would take says nothing where it is not asked.
    let is_auto = question.is_some_and(|question| {
        question.transport != Some(Transport::Tcp) && question.provider == ProviderChoice::All
    });
    let towards = towards.filter(|_| is_auto);
    let ethtool = |netdev: &str| counters::ethtool(netdev);
    let first = Reading::take(root, &machine, &netdevs, &ethtool);
    std::thread::sleep(interval);
    let counters = first.judge(&Reading::take(root, &machine, &netdevs, &ethtool));

    let has_ethtool = counters::ethtool("lo").is_some();
    let disks = Registry::of_this_user().list();
    let unlisted = disks.as_ref().err().map(disks::unlisted);
    let disks = disks.unwrap_or_default();
    let silent: Vec<_> =
        disks.iter().filter_map(|it| Some(disks::silent(&it.disk, &it.answers_now().err()?))).collect();
    let disks: Vec<_> = disks.into_iter().map(|listed| listed.disk).collect();
    let mut findings = advice::advise(&advice::Examined {
        machine: &machine,
        limits: &limits,
        towards: towards.as_ref(),
        target: target.as_ref(),
        counters: &counters,
        has_ethtool,
    });
    findings.extend(unlisted);
    findings.extend(silent);
    findings.extend(disks::findings(&disks));
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    let report = report::Report {
        machine: &machine,
        limits: &limits,
        towards: towards.as_ref(),
        target: target.as_ref(),
        counters: &counters,
        interval,
        findings: &findings,
    };
    if json {
        print_json(report.json())?;
    } else {
        print::text(report.text())?;
    }
    Ok(report.is_healthy())
}

/// The interfaces whose counters are read: those of RDMA ports and the one that has `source`; on a machine without
/// either, those with hardware.
fn netdevs_to_read(machine: &Machine, source: Option<IpAddr>) -> Vec<String> {
    let ports = machine.devices.iter().flat_map(|device| &device.ports);
    let mut names: Vec<String> = ports.flat_map(|port| port.netdevs.iter().cloned()).collect();
    names.extend(source.and_then(|source| machine.netdev_of(source)).map(|netdev| netdev.name.clone()));
    if names.is_empty() {
        let with_hardware = machine.netdevs.iter().filter(|netdev| netdev.driver.is_some());
        names.extend(with_hardware.map(|netdev| netdev.name.clone()));
    }
    names.sort();
    names.dedup();
    names
}

/// `ADDRESS`, `ADDRESS:PORT`, `[IPV6]:PORT`, `NAME` or `NAME:PORT`.
pub(crate) fn resolve(text: &str, port: u16) -> Result<SocketAddr> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return Ok((address, port).into());
    }
    let (name, port) = match text.rsplit_once(':') {
        Some((name, number)) => (name, number.parse().with_context(|| format!("`{number}` is not a port"))?),
        None => (text, port),
    };
    let context = || format!("`{text}` is neither an IP address nor a name that resolves");
    (name, port).to_socket_addrs().with_context(context)?.next().with_context(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_resolve_with_and_without_port() {
        for (text, expected) in [
            ("192.0.2.1", "192.0.2.1:9"),
            ("192.0.2.1:5", "192.0.2.1:5"),
            ("2001:db8::1", "[2001:db8::1]:9"),
            ("[2001:db8::1]", "[2001:db8::1]:9"),
            ("[2001:db8::1]:5", "[2001:db8::1]:5"),
        ] {
            assert_eq!(resolve(text, 9).expect(text).to_string(), expected);
        }
        assert!(resolve("localhost:http", 9).is_err());
    }
}
