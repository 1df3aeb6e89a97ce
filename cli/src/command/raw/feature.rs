//! `nvmf get-feature` and `nvmf set-feature`.

use super::{Queue, byte, dump, input, send, word};
use crate::command::target::NamespaceArguments;
use crate::command::{Format, Output};
use crate::print::{line, print_json};
use crate::runtime::run;
use anyhow::Result;
use nvme_proto::Nsid;
use nvme_proto::admin::features::{FeatureId, GetFeatures, Select, SetFeatures};
use nvmf_initiator::raw::RawCommand;
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct GetFeature {
    #[command(flatten)]
    target: NamespaceArguments,
    /// Feature identifier (0x84: write protection of a namespace)
    #[arg(short = 'f', long, value_parser = byte)]
    feature_id: u8,
    /// Which value: 0 current, 1 default, 2 saved, 3 what can be done with it
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=3), default_value_t = 0)]
    sel: u8,
    /// Bytes of data, for features that have some
    #[arg(short = 'l', long, value_parser = word, default_value = "0")]
    data_len: u32,
    /// Command dword 11
    #[arg(short = 'c', long, value_parser = word, default_value = "0")]
    cdw11: u32,
    /// Print the data as they are
    #[arg(short = 'b', long)]
    raw_binary: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(clap::Args)]
pub(crate) struct SetFeature {
    #[command(flatten)]
    target: NamespaceArguments,
    /// Feature identifier (0x84: write protection of a namespace)
    #[arg(short = 'f', long, value_parser = byte)]
    feature_id: u8,
    /// The new value (command dword 11)
    #[arg(short = 'V', short_alias = 'v', long, value_parser = word)]
    value: u32,
    /// Command dword 12
    #[arg(short = 'c', long, value_parser = word, default_value = "0")]
    cdw12: u32,
    /// Keep it over resets and power cycles
    #[arg(long)]
    save: bool,
    /// Bytes of data, for features that have some
    #[arg(short = 'l', long, value_parser = word, default_value = "0")]
    data_len: u32,
    /// File with the data
    #[arg(short = 'd', long, value_name = "FILE", requires = "data_len")]
    data: Option<PathBuf>,
}

impl GetFeature {
    pub(crate) fn run(&self) -> Result<()> {
        let features = GetFeatures {
            fid: FeatureId(self.feature_id),
            select: Select(self.sel),
            nsid: Nsid(self.target.nsid.unwrap_or(0)),
            cdw11: self.cdw11,
        };
        let command = RawCommand::from_sqe(features.emit());
        let command = if self.data_len > 0 { command.receiving(self.data_len) } else { command };
        let reply = run(send(&self.target, Queue::Admin, "Get Features", |_| Ok(command)))?;
        let (value, select) = (reply.outcome.dw0, SELECTED);
        let select = select.get(usize::from(self.sel)).copied().unwrap_or_default();
        if self.output.format == Format::Json {
            let data: Vec<Value> = reply.data.iter().map(|&byte| byte.into()).collect();
            return print_json(json!({
                "feature": self.feature_id, "select": select, "value": value, "data": data,
                format!("feature: {:#04x}", self.feature_id):
                    [{ "name": name(self.feature_id), select: format!("{value:#010x}") }],
            }));
        }
        if !self.raw_binary {
            let name = name(self.feature_id);
            line(format_args!(
                "get-feature:{:#04x} ({name}), {select} value:{value:#010x}",
                self.feature_id
            ))?;
        }
        if reply.data.is_empty() { Ok(()) } else { dump(&reply.data, self.raw_binary) }
    }
}

impl SetFeature {
    pub(crate) fn run(&self) -> Result<()> {
        let features = SetFeatures {
            fid: FeatureId(self.feature_id),
            save: self.save,
            nsid: Nsid(self.target.nsid.unwrap_or(0)),
            cdw11: self.value,
            cdw12: self.cdw12,
        };
        let command = RawCommand::from_sqe(features.emit());
        let command = match &self.data {
            Some(file) => command.sending(input(file, self.data_len as usize)?),
            None => command,
        };
        run(send(&self.target, Queue::Admin, "Set Features", |_| Ok(command)))?;
        let name = name(self.feature_id);
        line(format_args!("set-feature:{:#04x} ({name}), value:{:#010x}", self.feature_id, self.value))
    }
}

/// What `--sel` selects, in nvme-cli's words.
const SELECTED: [&str; 4] = ["Current", "Default", "Saved", "Supported capabilities"];

/// The standard's name of a feature, as nvme-cli writes it.
fn name(id: u8) -> &'static str {
    match FeatureId(id) {
        FeatureId::ARBITRATION => "Arbitration",
        FeatureId::POWER_MANAGEMENT => "Power Management",
        FeatureId::TEMPERATURE_THRESHOLD => "Temperature Threshold",
        FeatureId::ERROR_RECOVERY => "Error Recovery",
        FeatureId::VOLATILE_WRITE_CACHE => "Volatile Write Cache",
        FeatureId::NUMBER_OF_QUEUES => "Number of Queues",
        FeatureId::WRITE_ATOMICITY => "Write Atomicity Normal",
        FeatureId::ASYNC_EVENT_CONFIG => "Async Event Configuration",
        FeatureId::TIMESTAMP => "Timestamp",
        FeatureId::KEEP_ALIVE_TIMER => "Keep Alive Timer",
        FeatureId::HOST_BEHAVIOR_SUPPORT => "Host Behavior",
        FeatureId::IO_COMMAND_SET_PROFILE => "I/O Command Set Profile",
        FeatureId::HOST_ID => "Host Identifier",
        FeatureId::RESERVATION_NOTIFICATION_MASK => "Reservation Notification Mask",
        FeatureId::RESERVATION_PERSISTENCE => "Reservation Persistence",
        FeatureId::NAMESPACE_WRITE_PROTECTION_CONFIG => "Namespace Write Protect",
        _ => "Unknown",
    }
}
