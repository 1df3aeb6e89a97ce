//! The process that outlives the server of a `/dev/nbdN`.
//!
//! When such a server is killed, the kernel fails nothing that it has sent and not heard of: whoever waits for that would wait for ever. So a
//! second process, which does nothing else, waits for the end of the first, and takes the device away. ublk's driver does that by itself.

use super::nbd::kernel;
use crate::runtime::run;
use anyhow::{Context, Result};
use std::io::Read;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use tokio::signal::unix::{SignalKind, signal};

/// Waits for the end of the process that started this one, and takes its device away, if the kernel still says that it is `owner`'s.
pub(crate) fn guard(device: &Path, owner: &str) -> Result<()> {
    run(async {
        // What ends the server, by way of its terminal or its unit, comes here too, and too early.
        let _deaf = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        // Nothing is ever sent: this ends when the server does, however it does.
        std::io::stdin().read_to_end(&mut Vec::new())?;
        kernel::clear_away(device, owner);
        Ok(())
    })
}

/// Has the device taken away as soon as this process ends, or drops what is returned, if it is there still.
pub(super) fn over(device: &Path, owner: &str) -> Result<(Child, ChildStdin)> {
    let program = std::env::current_exe().context("cannot tell where this program lies")?;
    let mut command = Command::new(program);
    command
        .arg("guard")
        .arg(device)
        .arg(owner)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().context("cannot start the device's guard")?;
    let line = child.stdin.take().context("the device's guard does not listen")?;
    Ok((child, line))
}
