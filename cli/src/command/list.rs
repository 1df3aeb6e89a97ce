//! `nvmf list`.

use super::{Format, Output, info, list_subsys};
use crate::attach::Registry;
use crate::print::{chain, complain, human, line, print_json};
use anyhow::Result;
use nvmf_attached::{AttachedPath, Attachment, State};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[derive(clap::Args)]
pub(crate) struct List {
    /// Show all that is known of each, as `nvmf info` does
    #[arg(short = 'v', long)]
    verbose: bool,
    #[command(flatten)]
    output: Output,
}

impl List {
    pub(crate) fn run(&self) -> Result<()> {
        let registry = Registry::of_this_user();
        if let Some(doubt) = registry.doubt() {
            complain(format_args!("what follows may not be so: {}", chain(&doubt)));
        }
        let listed = registry.list()?;
        let disks: Vec<_> = listed.iter().map(|listed| listed.disk.clone()).collect();
        if self.output.format == Format::Json {
            let devices: Vec<_> = disks.iter().filter(|disk| disk.device.is_some()).collect();
            let devices = match self.verbose {
                true => list_subsys::detailed(&devices),
                false => devices.into_iter().map(device).collect(),
            };
            let disks: Vec<_> = disks.iter().map(Attachment::json).collect();
            return print_json(json!({ "disks": disks, "Devices": devices }));
        }
        if disks.is_empty() {
            return line("no disk is attached");
        }
        let title = [
            "device",
            "state",
            "subsystem",
            "address",
            "transport",
            "provider",
            "nsid",
            "size",
            "block",
            "pid",
            "socket",
        ];
        let mut rows = vec![title.map(str::to_owned)];
        rows.extend(disks.iter().map(row));
        print_table(&rows)?;
        for disk in &disks {
            let retry = match &disk.paths[..] {
                [path] => retry(path).map(|retry| format!("; {retry}")),
                _ => None,
            };
            if let Some(reason) = &disk.reason {
                let (place, state) = (disk.place().display(), disk.state.as_str());
                line(format_args!("{place}: {state}: {reason}{}", retry.unwrap_or_default()))?;
            }
            if disk.disk.as_ref().is_some_and(|record| record.read_only) {
                line(format_args!("{}: read-only", disk.place().display()))?;
            }
            for path in disk.paths.iter().filter(|_| disk.paths.len() > 1) {
                line(format_args!("{}: path {}", disk.place().display(), path_line(path)))?;
            }
        }
        for listed in listed.iter().filter(|_| self.verbose) {
            line("")?;
            info::print(listed)?;
        }
        Ok(())
    }
}

/// Prints rows of cells, each column as wide as its widest cell.
pub(super) fn print_table<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> Result<()> {
    let width = |column: usize| rows.iter().map(|row: &[String; COLUMNS]| row[column].len()).max();
    let widths: [usize; COLUMNS] = core::array::from_fn(|column| width(column).unwrap_or_default());
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        line(cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

/// A block device under the names of `nvme list`. There is no generic device to name, and nobody was asked how much of the
/// namespace is used now.
fn device(disk: &Attachment) -> Value {
    let record = disk.disk.clone().unwrap_or_default();
    json!({
        "NameSpace": disk.nsid,
        "DevicePath": disk.device,
        "Firmware": record.firmware,
        "ModelNumber": record.model,
        "SerialNumber": record.serial,
        "MaximumLBA": blocks(disk),
        "PhysicalSize": disk.size,
        "SectorSize": disk.block_size,
    })
}

pub(super) fn blocks(disk: &Attachment) -> Option<u64> {
    disk.size.checked_div(disk.block_size.into())
}

/// A path in words, and why it is away.
fn path_line(path: &AttachedPath) -> String {
    let AttachedPath { address, transport, state, ana_state, reason, .. } = path;
    let access = ana_state.as_ref().map(|state| format!(" {state}")).unwrap_or_default();
    let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let retry = retry(path).map(|retry| format!("; {retry}")).unwrap_or_default();
    format!("{transport} {address} {}{access}{reason}{retry}", state.as_str())
}

/// When a path that is away is connected again, and until when that is tried.
pub(super) fn retry(path: &AttachedPath) -> Option<String> {
    if path.state != State::Reconnecting {
        return None;
    }
    let next = match path.next_attempt.map(seconds_until) {
        Some(seconds) if seconds > 0.0 => format!("next attempt in {seconds:.1} s"),
        _ => "an attempt is under way".to_owned(),
    };
    Some(match path.gives_up.map(seconds_until) {
        Some(seconds) => format!("{next}, given up in {seconds:.0} s"),
        None => next,
    })
}

/// Seconds from now to a time in milliseconds since 1970; none where it is past.
pub(super) fn seconds_until(at: u64) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Duration::from_millis(at).saturating_sub(now).as_secs_f64()
}

fn row(disk: &Attachment) -> [String; 11] {
    let path =
        |path: &Option<PathBuf>| path.as_ref().map_or("-".to_owned(), |path| path.display().to_string());
    [
        path(&disk.device),
        disk.state.as_str().to_owned(),
        disk.nqn.clone(),
        disk.address.clone(),
        if disk.tls { format!("{}+tls", disk.transport) } else { disk.transport.clone() },
        disk.provider.clone().unwrap_or_else(|| "-".to_owned()),
        disk.nsid.to_string(),
        human(disk.size),
        disk.block_size.to_string(),
        disk.served_by().map_or("-".to_owned(), |pid| pid.to_string()),
        path(&disk.socket),
    ]
}
