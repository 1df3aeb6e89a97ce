//! `nvmf doctor`: what an administrator needs before blaming the network.
//!
//! | file | what it examines |
//! |---|---|
//! | `counters`, `meaning` | error and congestion counters, read twice; what each means |
//! | `limits` | memory, kernel, modules, device nodes, libraries |
//! | `towards` | the provider for an address, and why |
//! | `advice` | what is wrong, and the command that mends it |
//! | `report` | all of it for people, and as JSON |
//! | `ping` | round trips and bandwidth against another `nvmf doctor` |
//!
//! Devices, ports and GIDs are read by `nvmf-rdma-devices`. Everything takes a root folder, so that tests examine machines that
//! were written down. Nothing on the machine is changed.

mod advice;
mod counters;
mod limits;
mod meaning;
mod ping;
mod report;
mod towards;

use crate::command::{ERROR_PREFIX, Format, Output, chain, print_json};
use anyhow::{Context, Result};
use clap::ValueEnum;
use counters::Reading;
use limits::{Limits, Own};
use nvmf_rdma_devices::{Machine, netdev};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Exit status when something needs mending.
const SICK: u8 = 1;
/// Exit status when it could not be found out.
const BLIND: u8 = 2;

#[derive(clap::Args)]
pub(crate) struct Doctor {
    /// Address or name of a target, or an address of this machine: which provider serves it, and why
    address: Option<String>,
    /// Seconds between the two readings of the counters
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3600))]
    watch: u32,
    /// Measure round trips and bandwidth towards a machine where `nvmf doctor --listen` runs
    #[arg(long, value_name = "ADDRESS[:PORT]", conflicts_with_all = ["address", "listen"])]
    ping: Option<String>,
    /// Be the other end of --ping, until stopped
    #[arg(long, value_name = "ADDRESS[:PORT]", conflicts_with = "address")]
    listen: Option<String>,
    /// Over which provider
    #[arg(long, value_enum, default_value_t = ProviderChoice::All)]
    provider: ProviderChoice,
    #[command(flatten)]
    plan: ping::PlanArguments,
    #[command(flatten)]
    output: Output,
}

/// Over which provider `--ping` and `--listen` go.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProviderChoice {
    /// Userspace iWARP over TCP
    Iwarp,
    /// RDMA devices, by libibverbs
    Verbs,
    /// Each that can be used
    All,
}

impl Doctor {
    /// 0: nothing wrong. 1: something needs mending. 2: it could not be found out.
    pub(crate) fn run(&self) -> ExitCode {
        let format = self.output.format;
        let outcome = if let Some(address) = &self.listen {
            resolve(address, ping::PORT)
                .and_then(|address| ping::listen(address, self.provider))
                .map(|()| true)
        } else if let Some(address) = &self.ping {
            resolve(address, ping::PORT)
                .and_then(|address| ping::ping(address, self.provider, &self.plan, format))
        } else {
            self.examine()
        };
        match outcome {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => SICK.into(),
            Err(error) => {
                eprintln!("{ERROR_PREFIX}{}", chain(&error));
                BLIND.into()
            }
        }
    }

    /// Whether this machine is healthy.
    fn examine(&self) -> Result<bool> {
        let root = Path::new("/");
        let addresses = netdev::addresses().context("cannot read this machine's addresses")?;
        let machine = Machine::read_at(root, &addresses).context("cannot read /sys/class")?;
        let limits = Limits::read(root, Own::read());
        let address = self.address.as_deref().map(|text| resolve(text, ping::PORT)).transpose()?;
        let verbs = limits.verbs();
        let verbs = verbs.as_ref().map_err(String::as_str).copied();
        let towards = address.map(|address| towards::Towards::new(&machine, address.ip(), verbs));

        let netdevs = netdevs_to_read(&machine, towards.as_ref().and_then(|towards| towards.source));
        let ethtool = |netdev: &str| counters::ethtool(netdev);
        let first = Reading::take(root, &machine, &netdevs, &ethtool);
        let interval = Duration::from_secs(self.watch.into());
        std::thread::sleep(interval);
        let counters = first.judge(&Reading::take(root, &machine, &netdevs, &ethtool));

        let has_ethtool = counters::ethtool("lo").is_some();
        let findings = advice::advise(&advice::Examined {
            machine: &machine,
            limits: &limits,
            towards: towards.as_ref(),
            counters: &counters,
            has_ethtool,
        });
        let report = report::Report {
            machine: &machine,
            limits: &limits,
            towards: towards.as_ref(),
            counters: &counters,
            interval,
            findings: &findings,
        };
        if self.output.format == Format::Json {
            print_json(report.json())?;
        } else {
            print!("{}", report.text());
        }
        Ok(report.is_healthy())
    }
}

/// The interfaces whose counters matter: those beneath RDMA ports and the one that has `source`; on a machine without RDMA, those with hardware.
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
fn resolve(text: &str, port: u16) -> Result<SocketAddr> {
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
    fn addresses_with_and_without_a_port() {
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
