//! `nvmf get-log`, `nvmf ana-log` and `nvmf error-log`.

use super::{Queue, byte, dump, half, number, send, send_over, uuid_index, word};
use crate::command::target::NamespaceArguments;
use crate::command::{Format, Output, PageOutput};
use crate::connect::connect;
use crate::namespace::ana_name;
use crate::print::{line, print_json, wrong_arguments};
use crate::runtime::run;
use anyhow::{Context, Result};
use nvme_proto::admin::ana::AnaPage;
use nvme_proto::admin::log_page::{ErrorEntry, GetLogPage, LogPageId};
use nvme_proto::{Nsid, Status};
use nvmf_initiator::Connection;
use nvmf_initiator::raw::{ADMIN_DATA_MAX, RawCommand};
use serde_json::{Value, json};
use zerocopy::FromBytes;

/// The longest ANA log that is read, in bytes.
const ANA_LOG_MAX: usize = 1 << 20;

#[derive(clap::Args)]
pub(crate) struct GetLog {
    #[command(flatten)]
    target: NamespaceArguments,
    /// Log page identifier
    #[arg(short = 'i', long, value_parser = byte, required_unless_present = "aen")]
    log_id: Option<u8>,
    /// Bytes to read, a multiple of 4
    #[arg(short = 'l', long, value_parser = word, required_unless_present = "aen")]
    log_len: Option<u32>,
    /// Dword 0 of an asynchronous event: the log page that it names is read, 4096 bytes of it, whatever --log-id and --log-len say
    #[arg(long, value_parser = word)]
    aen: Option<u32>,
    /// Log specific field
    #[arg(long, value_parser = byte, default_value = "0")]
    lsp: u8,
    /// Log specific identifier
    #[arg(long, value_parser = half, default_value = "0")]
    lsi: u16,
    /// Log page offset: the first byte to read
    #[arg(short = 'L', short_alias = 'o', long, value_parser = number, default_value = "0")]
    lpo: u64,
    /// --lpo is an index, not an offset in bytes
    #[arg(short = 'O', long)]
    ot: bool,
    /// Retain the asynchronous event
    #[arg(short = 'r', long)]
    rae: bool,
    /// Command set identifier
    #[arg(short = 'y', long, value_parser = byte, default_value = "0")]
    csi: u8,
    /// UUID index: whose vendor-specific log is meant
    #[arg(short = 'U', long, value_parser = uuid_index, default_value = "0")]
    uuid_index: u8,
    /// Print the page as it is
    #[arg(short = 'b', long)]
    raw_binary: bool,
}

#[derive(clap::Args)]
pub(crate) struct AnaLog {
    #[command(flatten)]
    target: NamespaceArguments,
    /// Groups without their namespaces
    #[arg(short = 'g', long)]
    groups: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(clap::Args)]
pub(crate) struct ErrorLog {
    #[command(flatten)]
    target: NamespaceArguments,
    /// Entries to read
    #[arg(short = 'e', long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    log_entries: u32,
    #[command(flatten)]
    output: PageOutput,
}

pub(super) fn command(page: &GetLogPage) -> RawCommand {
    RawCommand::from_sqe(page.emit()).receiving(page.len as u32)
}

impl GetLog {
    pub(crate) fn run(&self) -> Result<()> {
        let (log_id, log_len) = match self.aen {
            // Bits 23:16 name the page.
            Some(event) => (event.to_le_bytes()[2], ADMIN_DATA_MAX as u32),
            None => (self.log_id.unwrap_or_default(), self.log_len.unwrap_or_default()),
        };
        if log_len == 0 || !log_len.is_multiple_of(4) || log_len as usize > ADMIN_DATA_MAX {
            return wrong_arguments(format!(
                "--log-len is a multiple of 4 up to {ADMIN_DATA_MAX}; --lpo reads a longer page in parts"
            ));
        }
        let page = GetLogPage {
            lsp: self.lsp,
            retain_event: self.rae,
            offset_is_index: self.ot,
            lsi: self.lsi,
            csi: self.csi,
            uuid_index: self.uuid_index,
            ..GetLogPage::new(
                LogPageId(log_id),
                Nsid(self.target.nsid.unwrap_or(Nsid::ALL.0)),
                self.lpo,
                log_len.into(),
            )
        };
        let reply = run(send(&self.target, Queue::Admin, "Get Log Page", |_| Ok(command(&page))))?;
        dump(&reply.data, self.raw_binary)
    }
}

impl AnaLog {
    pub(crate) fn run(&self) -> Result<()> {
        let page = run(async {
            let (connection, _) = connect(self.target.answered_soon().options()?).await?;
            let page = self.read(&connection).await;
            connection.close().await;
            page
        })?;
        let log = AnaPage::parse(&page).context("the controller's ANA log is cut off")?;
        let change_count = log.change_count();
        let groups: Vec<Value> = log
            .map(|group| {
                let nsids: Vec<Value> = group.nsids().map(|nsid| json!({ "nsid": nsid.0 })).collect();
                json!({
                    "grpid": group.group_id, "nnsids": nsids.len(), "chgcnt": group.change_count,
                    "state": ana_name(group.state), "NSIDS": nsids,
                })
            })
            .collect();
        if self.output.format == Format::Json {
            // The blank is nvme-cli's.
            return print_json(json!({
                "Asymmetric Namespace Access Log for NVMe device": self.target.nqn.to_string(),
                "chgcnt": change_count, "ngrps": groups.len(), "ANA DESC LIST ": groups,
            }));
        }
        line(format_args!("Asymmetric Namespace Access Log for NVMe device: {}", self.target.nqn))?;
        line(format_args!("chgcnt\t:\t{change_count}\nngrps\t:\t{}", groups.len()))?;
        for group in groups {
            let nsids: Vec<String> = group["NSIDS"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|nsid| nsid["nsid"].to_string())
                .collect();
            line(format_args!(
                "grpid\t:\t{}\nnnsids\t:\t{}\nchgcnt\t:\t{}\nstate\t:\t{}\nnsid\t:\t{}",
                group["grpid"],
                group["nnsids"],
                group["chgcnt"],
                group["state"].as_str().unwrap_or_default(),
                nsids.join(" ")
            ))?;
        }
        Ok(())
    }

    /// The whole page, in parts.
    async fn read(&self, connection: &Connection) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        while bytes.len() < ANA_LOG_MAX {
            let page = GetLogPage {
                lsp: u8::from(self.groups),
                retain_event: true,
                ..GetLogPage::new(LogPageId::ANA, Nsid::ALL, bytes.len() as u64, ADMIN_DATA_MAX as u64)
            };
            let part =
                send_over(connection, Queue::Admin, "Get Log Page (ANA)", |_| Ok(command(&page))).await?;
            // Zeroes follow the end: no group has the number 0.
            let ended = part.data.iter().all(|&byte| byte == 0);
            bytes.extend(part.data);
            if ended || !is_cut_off(&bytes) {
                break;
            }
        }
        Ok(bytes)
    }
}

/// Whether groups are missing that the header names.
fn is_cut_off(page: &[u8]) -> bool {
    let named = page.get(8..10).map_or(0, |count| u16::from_le_bytes([count[0], count[1]]));
    AnaPage::parse(page).is_none_or(|log| log.count() < usize::from(named))
}

impl ErrorLog {
    pub(crate) fn run(&self) -> Result<()> {
        let len = u64::from(self.log_entries) * size_of::<ErrorEntry>() as u64;
        let page = GetLogPage::new(LogPageId::ERROR, Nsid::ALL, 0, len);
        let what = "Get Log Page (Error Information)";
        let reply = run(send(&self.target, Queue::Admin, what, |_| Ok(command(&page))))?;
        let entries = reply.data.chunks_exact(size_of::<ErrorEntry>());
        let entries: Vec<ErrorEntry> =
            entries.filter_map(|entry| ErrorEntry::read_from_bytes(entry).ok()).collect();
        let json = || json!({ "errors": entries.iter().map(error).collect::<Vec<_>>() });
        self.output.print(&reply.data, json, || self.text(&entries))
    }

    fn text(&self, entries: &[ErrorEntry]) -> Result<()> {
        line(format_args!("Error Log Entries for device:{} entries:{}", self.target.nqn, entries.len()))?;
        for (number, entry) in entries.iter().enumerate() {
            line(format_args!(".................\n Entry[{number:>2}]\n................."))?;
            for (name, value) in error(entry).as_object().into_iter().flatten() {
                line(format_args!("{name:<20}: {value}"))?;
            }
            let status = Status::from_field(entry.status.get());
            line(format_args!("{:<20}: {status}", "status"))?;
        }
        Ok(())
    }
}

/// An entry under nvme-cli's names.
fn error(entry: &ErrorEntry) -> Value {
    let status = entry.status.get();
    json!({
        "error_count": entry.error_count.get(), "sqid": entry.sqid.get(), "cmdid": entry.cid.get(),
        "status_field": status >> 1, "phase_tag": status & 1,
        "parm_error_location": entry.parameter_error_location.get(), "lba": entry.lba.get(),
        "nsid": entry.nsid.get(), "vs": entry.vendor_specific_information_available, "trtype": entry.trtype,
        "csi": entry.csi, "opcode": entry.opcode, "cs": entry.command_specific_information.get(),
        "trtype_spec_info": entry.transport_specific.get(), "log_page_version": entry.lpver,
    })
}
