//! `nvmf discover`.

use super::connect_all::{DiscoveryArguments, SourceArguments};
use super::{Format, Output, TargetArguments, Verbosity, given_options};
use crate::connect::reach;
use crate::discovery::{Announced, Browser, Controller, Place, Subsystem, SubsystemPath};
use crate::print::{OutputClosed, chain, line, print_json};
use crate::runtime::run;
use anyhow::{Context, Result, ensure};
use nvme_proto::Nqn;
use nvme_proto::fabrics::discovery::{
    AddressFamily, DiscoveryEntry, DiscoveryHeader, EFLAGS_DUPRETINFO, EFLAGS_EPCSD, RdmaProviderType,
    SubsystemType, TREQ_SQFCD, TransportType,
};
use nvmf_host::DiscoveryLog;
use nvmf_initiator::Options;
use serde_json::json;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::sleep;
use zerocopy::IntoBytes;

/// How long announcements on the network are waited for.
const LISTEN: Duration = Duration::from_secs(4);

#[derive(clap::Args)]
pub(crate) struct Discover {
    #[command(flatten)]
    target: TargetArguments,
    #[command(flatten)]
    sources: SourceArguments,
    /// Ask the discovery controllers that are announced on the network (multicast DNS)
    #[arg(long, conflicts_with_all = ["traddr", "config"])]
    mdns: bool,
    /// Write the discovery log into this file, as it is on the wire, instead of printing it
    #[arg(short = 'r', long, value_name = "FILE")]
    raw: Option<PathBuf>,
    #[command(flatten)]
    discovery: DiscoveryArguments,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    verbosity: Verbosity,
}

impl Discover {
    pub(super) fn verbosity(&self) -> u8 {
        self.verbosity.level()
    }

    pub(super) fn dumps(&self) -> bool {
        self.discovery.dumps()
    }

    pub(crate) fn run(&self) -> Result<()> {
        if let Some(file) = &self.raw {
            File::create(file).with_context(|| format!("cannot write {}", file.display()))?;
        }
        if self.target.names_a_target() {
            let place = self.target.place(true)?;
            self.ask(self.target.options(Nqn::DISCOVERY)?, &place)?;
            return self.dump(vec![SubsystemPath::new(place, &[])]);
        }
        let (controllers, mut failures) = if self.mdns {
            (announced()?, Vec::new())
        } else {
            let sources = self.sources.read(&self.target)?;
            self.sources.check(&sources)?;
            (sources.controllers, sources.problems)
        };
        let mut asked = Vec::new();
        for controller in controllers {
            match controller.connection().and_then(|options| self.ask(options, &controller.place)) {
                Ok(()) => asked.push(SubsystemPath::new(controller.place, &controller.options)),
                Err(error) if error.is::<OutputClosed>() => return Err(error),
                Err(error) => failures.push(format!("{}: {}", controller.place, chain(&error))),
            }
        }
        self.dump(asked)?;
        ensure!(failures.is_empty(), "{}", failures.join("; "));
        Ok(())
    }

    /// The configuration of these discovery controllers, if that is asked for.
    fn dump(&self, paths: Vec<SubsystemPath>) -> Result<()> {
        let (nqn, options) = (Nqn::DISCOVERY.to_string(), given_options());
        self.discovery.dump(&self.target, &[Subsystem { nqn, paths, options }])
    }

    /// Asks the controller there, and prints what it lists.
    fn ask(&self, options: Options, place: &Place) -> Result<()> {
        let (log, _) =
            run(reach(options, nvmf_initiator::discover)).map_err(|error| place.explained(error))?;
        if let Some(file) = &self.raw {
            return write_raw(file, &log).with_context(|| format!("cannot write {}", file.display()));
        }
        if self.output.format == Format::Json {
            let records: Vec<_> = log.entries.iter().map(record).collect();
            return print_json(json!({ "genctr": log.generation, "records": records }));
        }
        line(format_args!(
            "\nDiscovery Log Number of Records {}, Generation counter {}",
            log.entries.len(),
            log.generation
        ))?;
        for (number, entry) in log.entries.iter().enumerate() {
            line(format_args!("=====Discovery Log Entry {number}======"))?;
            if let Some(fields) = record(entry).as_object() {
                for (name, value) in fields {
                    line(format_args!(
                        "{:<12} {}",
                        format!("{name}:"),
                        value.as_str().map_or_else(|| value.to_string(), str::to_owned)
                    ))?;
                }
            }
        }
        Ok(())
    }
}

/// Adds a log to a file, as it is on the wire.
fn write_raw(file: &Path, log: &DiscoveryLog) -> std::io::Result<()> {
    let header = DiscoveryHeader::new(log.generation, log.entries.len() as u64);
    let mut file = File::options().append(true).open(file)?;
    file.write_all(header.as_bytes())?;
    file.write_all(log.entries.as_bytes())
}

/// Those that are announced on the network within a few seconds.
fn announced() -> Result<Vec<Controller>> {
    let places = run(async {
        let (tell, heard) = watch::channel(Announced::default());
        let _browser = Browser::start(&tell)?;
        sleep(LISTEN).await;
        Ok(heard.borrow().places())
    })?;
    ensure!(!places.is_empty(), "no discovery controller is announced on this network (multicast DNS)");
    let options = given_options();
    Ok(places.into_iter().map(|place| Controller { place, options: options.clone() }).collect())
}

/// An entry under nvme-cli's names.
fn record(entry: &DiscoveryEntry) -> serde_json::Value {
    let mut record = json!({
        "trtype": match entry.trtype {
            TransportType::RDMA => "rdma",
            TransportType::TCP => "tcp",
            TransportType::FC => "fibre-channel",
            TransportType::INTRA_HOST => "loop",
            _ => "unrecognized",
        },
        "adrfam": match entry.adrfam {
            AddressFamily::IPV4 => "ipv4",
            AddressFamily::IPV6 => "ipv6",
            AddressFamily::INFINIBAND => "infiniband",
            AddressFamily::FC => "fibre-channel",
            _ => "unrecognized",
        },
        "subtype": match entry.subtype {
            SubsystemType::NVM_SUBSYSTEM => "nvme subsystem",
            SubsystemType::REFERRAL => "discovery subsystem referral",
            SubsystemType::CURRENT_DISCOVERY => "current discovery subsystem",
            _ => "unrecognized",
        },
        "treq": treq(entry.treq),
        "portid": entry.portid.get(),
        "trsvcid": entry.trsvcid(),
        "subnqn": entry.subnqn().map_or_else(|_| String::from("unreadable"), |nqn| nqn.to_string()),
        "traddr": entry.traddr(),
        "eflags": eflags(entry.eflags.get()),
    });
    let details = if entry.trtype == TransportType::TCP { tcp(entry) } else { rdma(entry) };
    if let (Some(record), serde_json::Value::Object(details)) = (record.as_object_mut(), details) {
        record.extend(details);
    }
    record
}

fn eflags(eflags: u16) -> String {
    let names = [
        (EFLAGS_EPCSD, "explicit discovery connections"),
        (EFLAGS_DUPRETINFO, "duplicate discovery information"),
    ];
    let set: Vec<_> = names.iter().filter(|(bit, _)| eflags & bit != 0).map(|(_, name)| *name).collect();
    if set.is_empty() { "none".to_owned() } else { set.join(", ") }
}

/// Whether a secure channel is required, and whether flow control of submission queues can be off.
fn treq(treq: u8) -> String {
    let channel = match treq & 0b11 {
        1 => "required",
        2 => "not required",
        _ => "not specified",
    };
    let flow_control = if treq & TREQ_SQFCD != 0 { ", sq flow control disable supported" } else { "" };
    format!("{channel}{flow_control}")
}

fn tcp(entry: &DiscoveryEntry) -> serde_json::Value {
    json!({
        "sectype": match entry.tsas[0] {
            0 => "none",
            1 => "tls",
            2 => "tls13",
            _ => "unrecognized",
        },
    })
}

fn rdma(entry: &DiscoveryEntry) -> serde_json::Value {
    let rdma = entry.rdma_subtype();
    json!({
        "rdma_prtype": match rdma.prtype {
            RdmaProviderType::INFINIBAND => "infiniband",
            RdmaProviderType::ROCE => "roce",
            RdmaProviderType::ROCE_V2 => "roce-v2",
            RdmaProviderType::IWARP => "iwarp",
            _ => "not specified",
        },
        "rdma_qptype": if rdma.qptype.0 == 1 { "connected" } else { "unrecognized" },
        "rdma_cms": if rdma.cms.0 == 1 { "rdma-cm" } else { "unrecognized" },
        "rdma_pkey": format!("{:#06x}", rdma.pkey.get()),
    })
}
