//! The process behind an attached disk.

use super::form::Way;
use super::registry::{self, Attachment, Registry, State};
use super::{AttachOptions, socket, ublk};
use crate::runtime::run;
use anyhow::{Context, Result};
use nvmf_host::Namespace;
use nvmf_initiator::ConnectionState;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long a device's node may take to appear.
const NODE_TIME_MAX: Duration = Duration::from_secs(10);

/// What `attach` starts in the background. Says on its output, once, that it serves; whatever goes wrong goes to its log.
pub(crate) fn serve_in_background(options: &AttachOptions) -> Result<()> {
    // A session of its own: the terminal that it was started from may go.
    let _ = nix::unistd::setsid();
    serve(options, &mut |attachment| {
        let mut output = std::io::stdout().lock();
        writeln!(output, "{}", serde_json::to_string(attachment)?)?;
        Ok(output.flush()?)
    })
}

/// Connects, serves until SIGTERM or SIGINT, and ends in order: what was written is flushed.
pub(crate) fn serve(options: &AttachOptions, ready: &mut dyn FnMut(&Attachment) -> Result<()>) -> Result<()> {
    run(async {
        let post =
            Post { options, registry: Registry::of_this_user()?, stop: Stop::new()?, ready, served: None };
        match options.form.choose()? {
            Way::Ublk => ublk::serve(post).await,
            Way::Nbd => socket::serve_device(post).await,
            Way::Socket(note) => socket::serve(post, note).await,
        }
    })
}

/// What every server of a disk has to do with: what is wanted, who is told, and when it ends.
pub(super) struct Post<'a> {
    pub(super) options: &'a AttachOptions,
    pub(super) registry: Registry,
    pub(super) stop: Stop,
    ready: &'a mut dyn FnMut(&Attachment) -> Result<()>,
    served: Option<Attachment>,
}

/// Where a disk is.
pub(super) struct Place {
    pub(super) device: Option<PathBuf>,
    pub(super) socket: Option<PathBuf>,
    /// Why it is not a block device, where that was wanted.
    pub(super) note: Option<String>,
}

impl Post<'_> {
    /// The disk is there: writes it down, and says so.
    pub(super) fn report(&mut self, namespace: &Namespace, place: Place) -> Result<()> {
        let pid = std::process::id();
        let attachment = Attachment {
            version: registry::VERSION,
            nqn: self.options.connection.nqn.to_string(),
            address: self.options.connection.address.to_string(),
            nsid: namespace.nsid.0,
            size: namespace.geometry.bytes(),
            block_size: namespace.geometry.block_size,
            device: place.device,
            socket: place.socket,
            note: place.note,
            state: State::Live,
            pid,
            started: registry::start_time(pid).unwrap_or_default(),
        };
        self.registry.add(&attachment)?;
        if let Err(error) = (self.ready)(&attachment) {
            tracing::warn!(%error, "nobody heard that the disk is served");
        }
        self.served = Some(attachment);
        Ok(())
    }

    /// How its connection fares now: writes it down.
    pub(super) fn is(&mut self, state: ConnectionState) {
        let Some(served) = &mut self.served else { return };
        served.state = match state {
            ConnectionState::Live => State::Live,
            // Its I/O waits, too.
            ConnectionState::Connecting | ConnectionState::Foreign => State::Reconnecting,
            ConnectionState::Lost => State::Lost,
        };
        if let Err(error) = self.registry.add(served) {
            tracing::warn!(%error, "the list does not show how the disk fares");
        }
    }
}

/// The signals that end a server.
pub(super) struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn new() -> Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Ends when somebody wants the server to.
    pub(super) async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Waits until a device can be opened at its node.
pub(super) async fn node_opens(node: &Path) -> Result<()> {
    let path = node.to_owned();
    // Opening it may make the kernel read it, which is for this thread to serve.
    let opens = tokio::task::spawn_blocking(move || {
        let deadline = Instant::now() + NODE_TIME_MAX;
        while File::open(&path).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        File::open(&path).map(drop)
    });
    opens.await?.with_context(|| {
        format!("{} does not appear: is a devtmpfs mounted on /dev, and does udev run?", node.display())
    })
}
