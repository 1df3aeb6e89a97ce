//! The process behind an attached disk.

use super::DiskArguments;
use super::nbd::Server;
use super::registry::{self, Attachment, Registry};
use crate::cli::run;
use anyhow::{Context, Result, bail};
use nvmf_initiator::{Connection, Device};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// How long requests under way may take when the disk is detached, and then a flush.
const FINISH_TIME_MAX: Duration = Duration::from_secs(15);

/// What `attach` starts in the background. Says on its output, once, that it serves; whatever goes wrong goes to its log.
#[derive(clap::Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    disk: DiskArguments,
    #[command(flatten)]
    _output: crate::cli::Output,
}

impl Serve {
    pub(crate) fn run(&self) -> Result<()> {
        // A session of its own: the terminal that it was started from may go.
        let _ = nix::unistd::setsid();
        serve(&self.disk, |attachment| {
            let mut output = std::io::stdout().lock();
            writeln!(output, "{}", serde_json::to_string(attachment)?)?;
            Ok(output.flush()?)
        })
    }
}

/// Connects, serves until SIGTERM or SIGINT, and ends in good order: what was written is flushed.
pub(super) fn serve(disk: &DiskArguments, ready: impl FnOnce(&Attachment) -> Result<()>) -> Result<()> {
    run(async {
        let registry = Registry::of_this_user()?;
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let connection = tokio::select! {
            connected = Connection::connect(disk.namespace.options()?) => connected?,
            _ = terminate.recv() => bail!("stopped before it was connected"),
            _ = interrupt.recv() => bail!("stopped before it was connected"),
        };
        let nsid = disk.namespace.choose(&connection)?;
        let device = connection.open(nsid)?;
        let nqn = disk.namespace.nqn.to_string();
        let socket = socket(disk.socket.as_deref(), || registry.default_socket(&nqn, nsid.0))?;
        if let Some(other) = registry.list()?.iter().find(|other| other.nqn == nqn && other.nsid == nsid.0) {
            bail!(
                "{nqn} namespace {nsid} is attached already, on {} (process {}): use that, or detach it first",
                other.socket.display(),
                other.pid
            );
        }
        let server = Server::bind(&socket).await?;
        let attachment = describe(&device, nqn, &connection, socket);
        if let Err(error) = registry.add(&attachment) {
            let _ = std::fs::remove_file(&attachment.socket);
            return Err(error);
        }
        let stop = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        if let Err(error) = ready(&attachment) {
            tracing::warn!(%error, "nobody heard that the disk is served");
        }
        server.serve(device.clone(), stop, FINISH_TIME_MAX).await;
        let flushed = tokio::time::timeout(FINISH_TIME_MAX, device.flush()).await;
        registry.remove_entry(attachment.pid);
        flushed
            .context("it took too long")
            .and_then(|flushed| Ok(flushed?))
            .context("the last flush failed: what was not flushed before may be lost")?;
        let _ = tokio::time::timeout(FINISH_TIME_MAX, connection.close()).await;
        registry.remove(attachment.pid);
        Ok(())
    })
}

fn socket(asked: Option<&Path>, default: impl FnOnce() -> PathBuf) -> Result<PathBuf> {
    asked.map_or_else(|| Ok(default()), |path| Ok(std::path::absolute(path)?))
}

fn describe(device: &Device, nqn: String, connection: &Connection, socket: PathBuf) -> Attachment {
    let pid = std::process::id();
    Attachment {
        version: registry::VERSION,
        nqn,
        address: connection.address().to_string(),
        nsid: device.nsid().0,
        size: device.geometry().bytes(),
        block_size: device.geometry().block_size,
        socket,
        pid,
        started: registry::start_time(pid).unwrap_or_default(),
    }
}
