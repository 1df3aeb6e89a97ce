//! `nvmf list`.

use super::{Format, Output};
use crate::attach::Registry;
use crate::print::{human, line, print_json};
use anyhow::Result;
use nvmf_attached::{AttachedPath, Attachment};
use serde_json::json;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct List {
    #[command(flatten)]
    output: Output,
}

impl List {
    pub(crate) fn run(&self) -> Result<()> {
        let disks: Vec<_> = Registry::of_this_user().list()?.into_iter().map(|listed| listed.disk).collect();
        if self.output.format == Format::Json {
            let disks: Vec<_> = disks.iter().map(Attachment::json).collect();
            return print_json(json!({ "disks": disks }));
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
        let widths: [usize; 11] =
            core::array::from_fn(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or_default());
        for row in &rows {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
            line(cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        for disk in &disks {
            if let Some(reason) = &disk.reason {
                line(format_args!("{}: {}: {reason}", disk.place().display(), disk.state.as_str()))?;
            }
            for path in &disk.paths {
                line(format_args!("{}: path {}", disk.place().display(), path_line(path)))?;
            }
        }
        Ok(())
    }
}

/// A path, as `nvme list-subsys` shows it, and why it is away.
fn path_line(path: &AttachedPath) -> String {
    let AttachedPath { address, transport, state, ana_state, reason } = path;
    let access = ana_state.as_ref().map(|state| format!(" {state}")).unwrap_or_default();
    let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("{transport} {address} {}{access}{reason}", state.as_str())
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
        disk.pid.to_string(),
        path(&disk.socket),
    ]
}
