//! `nvmf list`.

use super::{Format, Output, human, print_json};
use crate::attach::{Attachment, Registry};
use anyhow::Result;
use serde_json::json;

#[derive(clap::Args)]
pub(crate) struct List {
    #[command(flatten)]
    output: Output,
}

impl List {
    pub(crate) fn run(&self) -> Result<()> {
        let disks = Registry::of_this_user()?.list()?;
        if self.output.format == Format::Json {
            let disks: Vec<_> = disks.iter().map(Attachment::json).collect();
            return print_json(json!({ "disks": disks }));
        }
        if disks.is_empty() {
            println!("no disk is attached");
            return Ok(());
        }
        let width = disks.iter().map(|disk| disk.nqn.len()).max().unwrap_or_default();
        println!(
            "{:<width$}  {:<22} {:>5} {:>12} {:>6} {:>8}  socket",
            "subsystem", "address", "nsid", "size", "block", "pid"
        );
        for disk in disks {
            let (size, socket) = (human(disk.size), disk.socket.display());
            println!(
                "{:<width$}  {:<22} {:>5} {size:>12} {:>6} {:>8}  {socket}",
                disk.nqn, disk.address, disk.nsid, disk.block_size, disk.pid
            );
        }
        Ok(())
    }
}
