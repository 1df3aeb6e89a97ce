//! `nvmf list`.

use super::{Format, Output};
use crate::attach::{Attachment, Registry};
use crate::print::{human, print_json};
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
        let widest = |text: fn(&Attachment) -> String| disks.iter().map(|disk| text(disk).len()).max();
        let nqns = widest(|disk| disk.nqn.clone()).unwrap_or_default();
        let devices = widest(device).unwrap_or_default().max("device".len());
        println!(
            "{:<devices$}  {:<12}  {:<nqns$}  {:<22} {:>5} {:>12} {:>6} {:>8}  socket",
            "device", "state", "subsystem", "address", "nsid", "size", "block", "pid"
        );
        for disk in &disks {
            let socket = disk.socket.as_ref().map_or("-".to_owned(), |socket| socket.display().to_string());
            println!(
                "{:<devices$}  {:<12}  {:<nqns$}  {:<22} {:>5} {:>12} {:>6} {:>8}  {socket}",
                device(disk),
                disk.state.as_str(),
                disk.nqn,
                disk.address,
                disk.nsid,
                human(disk.size),
                disk.block_size,
                disk.pid
            );
        }
        Ok(())
    }
}

fn device(disk: &Attachment) -> String {
    disk.device.as_ref().map_or("-".to_owned(), |device| device.display().to_string())
}
