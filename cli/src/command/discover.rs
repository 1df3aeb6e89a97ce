//! `nvmf discover`.

use super::{Format, Output, TargetArguments};
use crate::connect::{is_unreachable, reach};
use crate::print::{chain, line, print_json};
use crate::runtime::run;
use anyhow::{Result, anyhow};
use nvme_proto::Nqn;
use nvme_proto::fabrics::discovery::{
    AddressFamily, DiscoveryEntry, EFLAGS_DUPRETINFO, EFLAGS_EPCSD, RdmaProviderType, SubsystemType,
    TREQ_SQFCD, TransportType,
};
use serde_json::json;

#[derive(clap::Args)]
pub(crate) struct Discover {
    #[command(flatten)]
    target: TargetArguments,
    #[command(flatten)]
    output: Output,
}

impl Discover {
    pub(crate) fn run(&self) -> Result<()> {
        let options = self.target.options(Nqn::DISCOVERY)?;
        let (log, _) =
            run(reach(options, nvmf_initiator::discover)).map_err(|error| self.explained(error))?;
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

impl Discover {
    /// The default port is not one where disks are served.
    fn explained(&self, error: anyhow::Error) -> anyhow::Error {
        let unreached = error.downcast_ref().is_some_and(is_unreachable);
        if unreached && self.target.asks_discovery_port() {
            return anyhow!(
                "{}; discovery over tcp asks port 8009, with -s 4420 one where disks are served",
                chain(&error)
            );
        }
        error
    }
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
