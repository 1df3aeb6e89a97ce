//! `nvmf info`: all that is known of an attached disk, and what it has done.

use super::attach::named;
use super::list::retry;
use super::top::{Interval, time};
use super::{Format, Output};
use crate::attach::{Listed, Statistics};
use crate::print::{chain, human, line, print_json};
use anyhow::Result;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Info {
    /// The block device, the NBD socket, or the NQN
    name: OsString,
    #[command(flatten)]
    output: Output,
}

impl Info {
    pub(crate) fn run(&self) -> Result<()> {
        let disks = named(&self.name)?;
        if self.output.format == Format::Json {
            let disks: Vec<_> = disks.iter().map(json_of).collect();
            return print_json(json!({ "disks": disks }));
        }
        disks.iter().try_for_each(print)
    }
}

fn json_of(listed: &Listed) -> Value {
    let mut value = listed.disk.json();
    if let Some(fields) = value.as_object_mut() {
        let record = listed.disk.disk.clone().unwrap_or_default();
        fields.extend([
            ("host_nqn".to_owned(), listed.disk.host_nqn.as_str().into()),
            ("host_id".to_owned(), listed.disk.host_id.as_str().into()),
            ("authentication".to_owned(), listed.disk.authentication.map(String::from).into()),
            ("iopolicy".to_owned(), listed.disk.iopolicy.as_str().into()),
            ("model".to_owned(), record.model.into()),
            ("serial".to_owned(), record.serial.into()),
            ("firmware".to_owned(), record.firmware.into()),
            ("statistics".to_owned(), listed.statistics().map_or(Value::Null, |it| statistics(&it))),
        ]);
    }
    value
}

/// Each kind with its times: what they were on the whole.
fn statistics(statistics: &Statistics) -> Value {
    let whole = Interval::between(&Statistics::default(), statistics, whole_time(statistics));
    let kind = |kind: &crate::attach::Kind, rates: &super::top::Rates| {
        json!({
            "operations": kind.operations, "bytes": kind.bytes, "failed": kind.failed,
            "mean_us": rates.mean_us, "p50_us": rates.p50_us, "p99_us": rates.p99_us,
        })
    };
    json!({
        "uptime_s": statistics.uptime_ms as f64 / 1e3, "in_flight": statistics.in_flight,
        "reads": kind(&statistics.reads, &whole.reads), "writes": kind(&statistics.writes, &whole.writes),
        "others": kind(&statistics.others, &whole.others),
    })
}

fn whole_time(statistics: &Statistics) -> Duration {
    Duration::from_millis(statistics.uptime_ms.max(1))
}

pub(super) fn print(listed: &Listed) -> Result<()> {
    let disk = &listed.disk;
    let record = disk.disk.clone().unwrap_or_default();
    let field = |name: &str, value: &str| match value {
        "" => Ok(()),
        value => line(format_args!("{:<12} {value}", format!("{name}:"))),
    };
    field("disk", &disk.place().display().to_string())?;
    field("subsystem", &disk.nqn)?;
    field("namespace", &disk.nsid.to_string())?;
    field("uuid", disk.uuid.as_deref().unwrap_or_default())?;
    field("size", &format!("{} ({} bytes, blocks of {})", human(disk.size), disk.size, disk.block_size))?;
    if disk.disk.is_some() {
        field("access", if record.read_only { "read-only" } else { "read and write" })?;
        field("write cache", if record.volatile_write_cache { "volatile" } else { "none" })?;
    }
    field("model", &record.model)?;
    field("serial", &record.serial)?;
    field("firmware", &record.firmware)?;
    field("host", &disk.host_nqn)?;
    field("host ID", &disk.host_id)?;
    field("over", &disk.via())?;
    field("authentication", &disk.authentication.map(String::from).unwrap_or_default())?;
    field("state", disk.state.as_str())?;
    field("reason", disk.reason.as_deref().unwrap_or_default())?;
    field("note", disk.note.as_deref().unwrap_or_default())?;
    let server = disk.served_by().map_or("nobody".to_owned(), |pid| format!("process {pid}"));
    field("served by", &server)?;
    field("iopolicy", &disk.iopolicy)?;
    for path in &disk.paths {
        let parts = [
            Some(format!("{} {} {}", path.transport, path.address, path.state.as_str())),
            path.ana_state.clone(),
            path.cntlid.map(|cntlid| format!("cntlid {cntlid}")),
            path.reason.clone(),
            retry(path),
        ];
        field("path", &parts.into_iter().flatten().collect::<Vec<_>>().join(", "))?;
    }
    let statistics = match listed.statistics() {
        Ok(statistics) => statistics,
        Err(error) => return field("done", &chain(&error)),
    };
    let whole = Interval::between(&Statistics::default(), &statistics, whole_time(&statistics));
    field("in flight", &statistics.in_flight.to_string())?;
    for (name, kind, rates) in [
        ("reads", &statistics.reads, &whole.reads),
        ("writes", &statistics.writes, &whole.writes),
        ("others", &statistics.others, &whole.others),
    ] {
        let times = match (rates.p50_us, rates.p99_us) {
            (Some(p50), Some(p99)) => format!(", half within {}, 99 % within {}", time(p50), time(p99)),
            _ => String::new(),
        };
        let failed = if kind.failed > 0 { format!(", {} failed", kind.failed) } else { String::new() };
        field(name, &format!("{}, {}{failed}{times}", kind.operations, human(kind.bytes)))?;
    }
    Ok(())
}
