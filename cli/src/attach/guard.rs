//! The process that outlives the server of a `/dev/nbdN`.
//!
//! When such a server is killed, the kernel does not fail the requests in flight: their callers would wait for ever. So
//! a second process waits for the end of the first, and disconnects the device. The ublk driver does that by itself.

use super::nbd::kernel;
use crate::runtime::run;
use anyhow::{Context, Result};
use std::io::Read;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use tokio::signal::unix::{SignalKind, signal};

/// Waits for the end of the process that started this one, and disconnects its device, if `owner` is still its owner.
pub(crate) fn guard(device: &Path, owner: &str) -> Result<()> {
    run(async {
        // Signals to the server's terminal or unit reach this process, too, and too early.
        let _deaf = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        // Nothing is ever written to this pipe: it ends with the server.
        std::io::stdin().read_to_end(&mut Vec::new())?;
        kernel::clear_away(device, owner);
        Ok(())
    })
}

/// Starts a process that disconnects the device when this process ends or drops what is returned.
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
