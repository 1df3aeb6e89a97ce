//! `nvmf get-feature` and `nvmf set-feature`.

use super::{Queue, byte, dump, input, send, uuid_index, word};
use crate::command::human::features::explain;
use crate::command::of_disk::OF_A_NAMESPACE;
use crate::command::target::NamespaceArguments;
use crate::command::{Format, Output};
use crate::print::{line, print_json};
use crate::runtime::run;
use anyhow::{Result, ensure};
use nvme_proto::admin::features::{
    EXTENDED_HOST_ID, FeatureId, GetFeatures, HOST_BEHAVIOR_LEN, Select, SetFeatures, TIMESTAMP_LEN,
};
use nvme_proto::{Nsid, Sqe};
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
    /// Bytes of data, for features that have some; of the standard's, as many as it says
    #[arg(short = 'l', long, value_parser = word, default_value = "0")]
    data_len: u32,
    /// Command dword 11
    #[arg(short = 'c', long, value_parser = word, default_value = "0")]
    cdw11: u32,
    /// UUID index: whose vendor-specific feature is meant
    #[arg(short = 'U', long, value_parser = uuid_index, default_value = "0")]
    uuid_index: u8,
    /// Print the data as they are
    #[arg(short = 'b', long)]
    raw_binary: bool,
    /// Say what the value means
    #[arg(short = 'H', long)]
    human_readable: bool,
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
    /// UUID index: whose vendor-specific feature is meant
    #[arg(short = 'U', long, value_parser = uuid_index, default_value = "0")]
    uuid_index: u8,
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
        let command = RawCommand::from_sqe(with_uuid(features.emit(), self.uuid_index));
        let len = if self.data_len == 0 { self.known_len() } else { self.data_len };
        let command = if len > 0 { command.receiving(len) } else { command };
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
            let (id, shown) = (self.feature_id, shown(value));
            line(format_args!("get-feature:{id:#04x} ({name}), {select} value:{shown}"))?;
        }
        // Of what the feature can do there is another meaning.
        if self.human_readable && !self.raw_binary && self.sel < CAPABILITIES {
            return explain(self.feature_id, value, &reply.data).into_iter().try_for_each(line);
        }
        if reply.data.is_empty() { Ok(()) } else { dump(&reply.data, self.raw_binary) }
    }

    /// Bytes of data that the standard has for the feature.
    fn known_len(&self) -> u32 {
        let len = match FeatureId(self.feature_id) {
            _ if self.sel == CAPABILITIES => 0,
            FeatureId::TIMESTAMP => TIMESTAMP_LEN,
            FeatureId::HOST_BEHAVIOR_SUPPORT => HOST_BEHAVIOR_LEN,
            FeatureId::HOST_ID if self.cdw11 & EXTENDED_HOST_ID == 0 => 8,
            FeatureId::HOST_ID => 16,
            _ => 0,
        };
        len as u32
    }
}

impl SetFeature {
    pub(crate) fn run(&self) -> Result<()> {
        ensure!(
            self.target.nsid.is_some() || !OF_A_NAMESPACE.contains(&self.feature_id),
            "each namespace has feature {:#04x} for itself: say which is meant (--nsid)",
            self.feature_id
        );
        let features = SetFeatures {
            fid: FeatureId(self.feature_id),
            save: self.save,
            nsid: Nsid(self.target.nsid.unwrap_or(0)),
            cdw11: self.value,
            cdw12: self.cdw12,
        };
        let command = RawCommand::from_sqe(with_uuid(features.emit(), self.uuid_index));
        let command = match &self.data {
            Some(file) => command.sending(input(file, self.data_len as usize, None)?),
            None => command,
        };
        run(send(&self.target, Queue::Admin, "Set Features", |_| Ok(command)))?;
        let name = name(self.feature_id);
        line(format_args!("set-feature:{:#04x} ({name}), value:{}", self.feature_id, shown(self.value)))
    }
}

/// A command that names whose feature is meant (bits 6:0 of dword 14).
fn with_uuid(mut command: Sqe, index: u8) -> Sqe {
    command.cdw14 = (command.cdw14.get() | u32::from(index)).into();
    command
}

/// A value as nvme-cli prints it: 0 has no prefix.
fn shown(value: u32) -> String {
    if value == 0 { format!("{value:08x}") } else { format!("{value:#010x}") }
}

/// Of `--sel`: what can be done with the feature.
const CAPABILITIES: u8 = 3;
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
