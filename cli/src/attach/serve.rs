//! The process behind an attached disk: what the servers of all forms have in common.

use super::form::Server;
use super::registry::{Claim, Registry};
use super::remote::state_of;
use super::{AttachOptions, in_use, process, socket, ublk};
use crate::connect::Via;
use crate::print::chain;
use crate::runtime::run;
use anyhow::{Context, Result, bail};
use nvmf_attached::{AttachedPath, Attachment, DiskLock, State, VERSION};
use nvmf_host::{AssociationError, Mismatch, Namespace};
use nvmf_initiator::ConnectionState;
use sd_notify::NotifyState;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// How long a device's node may take to appear.
const NODE_TIME_MAX: Duration = Duration::from_secs(10);
/// How long the kernel may take to say whether a device is in use.
const IN_USE_TIME_MAX: Duration = Duration::from_secs(2);
/// How often a disk that is to end is looked at, whether it is still in use.
const ENDING_POLL: Duration = Duration::from_millis(500);
/// How often the log's length is looked at, and how long it may be.
const LOG_POLL: Duration = Duration::from_secs(60);
const LOG_BYTES_MAX: u64 = 1 << 20;

/// What a server in the background says to the process that started it, as one line of JSON.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Report {
    /// The disk is there. Waits for a byte: without one, nobody heard, and the disk goes again.
    Attached(Box<Attachment>),
    /// Why it is not.
    Failed(String),
}

/// Serves a disk from this process until it is stopped, and tells systemd when it is ready.
pub(crate) fn serve(
    options: &AttachOptions,
    announce: &mut dyn FnMut(&Attachment) -> Result<()>,
) -> Result<()> {
    process::private_files();
    let claim = Registry::of_this_user().claim()?;
    let outcome = serve_claimed(options, &claim, None, announce);
    claim.end(&outcome, false);
    outcome
}

/// What `attach` starts in the background. Why there are no options is reported, too: nobody reads the standard error.
pub(crate) fn serve_in_background(options: Result<AttachOptions>) -> Result<()> {
    process::leave_caller();
    let mut is_announced = false;
    let outcome = options.and_then(|options| in_background(&options, &mut is_announced));
    if let (Err(error), false) = (&outcome, is_announced) {
        say(&Report::Failed(chain(error)))?;
    }
    outcome
}

fn in_background(options: &AttachOptions, is_announced: &mut bool) -> Result<()> {
    let claim = Registry::of_this_user().claim()?;
    let log = File::options().append(true).create(true).open(claim.log());
    let log = log.with_context(|| format!("cannot make {}", claim.log().display()))?;
    nix::unistd::dup2_stderr(&log).context("cannot write to the log")?;
    let starter = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let outcome = serve_claimed(options, &claim, Some(starter), &mut |disk| {
        *is_announced = true;
        say(&Report::Attached(Box::new(disk.clone())))
    });
    claim.end(&outcome, *is_announced);
    outcome
}

fn say(report: &Report) -> Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{}", serde_json::to_string(report)?)?;
    Ok(output.flush()?)
}

/// Connects, serves until it is stopped, and ends cleanly: what was written is flushed.
fn serve_claimed(
    options: &AttachOptions,
    claim: &Claim,
    starter: Option<File>,
    announce: &mut dyn FnMut(&Attachment) -> Result<()>,
) -> Result<()> {
    let server = options.form.choose()?;
    if matches!(server, Server::Socket(_)) {
        // It needs no more rights than it has.
        let _ = nix::sys::prctl::set_no_new_privs();
    } else {
        process::serve_write_back();
    }
    Registry::of_this_user().clear_away()?;
    run(async {
        let stop = Stop::new(starter)?;
        let entry = Attachment {
            version: VERSION,
            nqn: options.connection.nqn.to_string(),
            address: options.connection.address.to_string(),
            pid: std::process::id(),
            pid_namespace: process::pid_namespace(),
            state: State::Attaching,
            ..Attachment::default()
        };
        let service = Service { options, claim, stop, announce, entry };
        match server {
            Server::Ublk => ublk::serve(service).await,
            Server::Nbd => socket::serve_device(service).await,
            Server::Socket(note) => socket::serve(service, note).await,
        }
    })
}

/// Takes the lock of a disk, so that it is attached once on this machine.
pub(super) fn lock_disk(options: &AttachOptions, namespace: &Namespace) -> Result<Option<DiskLock>> {
    let (nqn, nsid) = (&options.connection.nqn, namespace.nsid);
    if options.duplicate {
        return Ok(None);
    }
    if let Some(lock) = DiskLock::take(nqn, nsid, namespace.uuid).context("cannot lock the disk")? {
        return Ok(Some(lock));
    }
    bail!(
        "{nqn} namespace {nsid} is attached already, {}: use that, or detach it first (--duplicate-connect attaches it twice, which destroys a file system that both write to)",
        nvmf_attached::holder(nqn, nsid)
    )
}

/// A disk that is served: what is wanted, what is written down of it, and when it ends.
pub(super) struct Service<'a> {
    pub(super) options: &'a AttachOptions,
    claim: &'a Claim,
    pub(super) stop: Stop,
    announce: &'a mut dyn FnMut(&Attachment) -> Result<()>,
    entry: Attachment,
}

/// What has become of a disk's connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) state: ConnectionState,
    /// Why, where the disk cannot be used.
    pub(super) reason: Option<String>,
    /// The paths, where there are several.
    pub(super) paths: Vec<AttachedPath>,
}

impl Change {
    /// `loss`: why the controller is away. `mismatch`: how the disk behind the namespace differs, if it is another.
    pub(super) fn new(
        state: ConnectionState,
        loss: Option<&AssociationError>,
        mismatch: Option<Mismatch>,
    ) -> Self {
        let reason = match state {
            ConnectionState::Live => None,
            ConnectionState::Foreign => mismatch.map(|mismatch| mismatch.to_string()),
            ConnectionState::Connecting | ConnectionState::Lost => loss.map(ToString::to_string),
        };
        Self { state, reason, paths: Vec::new() }
    }
}

/// Where a disk is.
pub(super) struct Place {
    pub(super) device: Option<PathBuf>,
    pub(super) socket: Option<PathBuf>,
    /// Why it is not a block device, where that was wanted; of which namespaces it was chosen.
    pub(super) notes: Vec<String>,
}

impl Service<'_> {
    /// Writes down what is about to be made, so that it can be cleared away if this process is killed meanwhile.
    pub(super) fn place(&mut self, namespace: &Namespace, via: &Via, place: Place) -> Result<()> {
        self.entry = Attachment {
            transport: via.transport().name().to_owned(),
            tls: via.tls(),
            provider: via.provider(),
            nsid: namespace.nsid.0,
            uuid: crate::namespace::uuid(namespace),
            size: namespace.geometry.bytes(),
            block_size: namespace.geometry.block_size,
            device: place.device,
            socket: place.socket,
            note: (!place.notes.is_empty()).then(|| place.notes.join("; ")),
            ..self.entry.clone()
        };
        self.claim.write(&self.entry)
    }

    /// The disk is there: says so, and goes on if somebody hears it.
    pub(super) async fn report(&mut self) -> Result<()> {
        self.entry.state = State::Live;
        self.claim.write(&self.entry)?;
        (self.announce)(&self.entry)?;
        self.stop.starter_heard().await?;
        notify(&[NotifyState::Ready]);
        Ok(())
    }

    /// Keeps the entry true until the disk is to go. One that is in use stays until it is not, or until it is asked for
    /// twice.
    pub(super) async fn until_ended(&mut self, mut changed: impl AsyncFnMut() -> Change) {
        let mut log = tokio::time::interval(LOG_POLL);
        loop {
            let is_ending = self.entry.state == State::Ending;
            tokio::select! {
                () = self.stop.asked() => if is_ending || !self.put_off().await { break },
                () = sleep(ENDING_POLL), if is_ending => if self.users().await.is_empty() { break },
                change = changed() => self.connection_is(change),
                _ = log.tick() => self.bound_log(),
            }
        }
        notify(&[NotifyState::Stopping]);
    }

    /// Whether the end has to wait for the disk's users.
    async fn put_off(&mut self) -> bool {
        let users = self.users().await;
        if users.is_empty() {
            return false;
        }
        let users = users.join(", ");
        tracing::warn!(
            "asked to end, but the disk is in use ({users}): it ends as soon as it is not, or at a second signal"
        );
        self.entry.reason = Some(users);
        self.set(State::Ending);
        true
    }

    /// What the kernel uses the device for. Processes that have it open are no reason to stay: they get errors.
    async fn users(&self) -> Vec<String> {
        let Some(device) = self.entry.device.clone() else { return Vec::new() };
        let asked = spawn_blocking(move || in_use::in_kernel(&device));
        tokio::time::timeout(IN_USE_TIME_MAX, asked).await.ok().and_then(Result::ok).unwrap_or_default()
    }

    fn connection_is(&mut self, Change { state, reason, paths }: Change) {
        self.entry.paths = paths;
        // An end that is put off is what counts, and its reason.
        if self.entry.state == State::Ending {
            return self.set(State::Ending);
        }
        self.entry.reason = reason;
        self.set(state_of(state));
    }

    fn set(&mut self, state: State) {
        self.entry.state = state;
        if let Err(error) = self.claim.write(&self.entry) {
            tracing::warn!(%error, "the list does not show the disk's state");
        }
    }

    /// Starts the log anew when it has become long: it lies in memory.
    fn bound_log(&self) {
        let log = File::options().write(true).open(self.claim.log());
        let Ok(log) = log else { return };
        if log.metadata().is_ok_and(|log| log.len() > LOG_BYTES_MAX) && log.set_len(0).is_ok() {
            tracing::warn!("the log was too long: what stood here before is gone");
        }
    }
}

/// Tells systemd, if that waits for it.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "systemd does not listen");
    }
}

/// What asks a server to end: signals, and while it starts, the end of the process that started it.
pub(super) struct Stop {
    signals: [Signal; 3],
    starter: Option<pipe::Receiver>,
}

impl Stop {
    pub(super) fn new(starter: Option<File>) -> Result<Self> {
        let signals = [
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
            // The terminal of a server in the foreground is closed.
            signal(SignalKind::hangup())?,
        ];
        let starter = starter.map(pipe::Receiver::from_file).transpose().context("no pipe to the starter")?;
        Ok(Self { signals, starter })
    }

    /// Ends when somebody wants the server to.
    pub(super) async fn asked(&mut self) {
        let [terminate, interrupt, hangup] = &mut self.signals;
        let starter_ended = async {
            match &mut self.starter {
                Some(pipe) => drop(pipe.read(&mut [0]).await),
                None => core::future::pending().await,
            }
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
            () = starter_ended => {}
        }
    }

    /// Waits until the process that started this one has heard that the disk is there. From then on it may end.
    async fn starter_heard(&mut self) -> Result<()> {
        let Some(mut pipe) = self.starter.take() else { return Ok(()) };
        let heard = pipe.read(&mut [0]).await.unwrap_or(0);
        if heard == 0 { bail!("nobody waits for the disk any more") } else { Ok(()) }
    }
}

/// Waits until a device can be opened at its node.
pub(super) async fn node_opens(node: &Path) -> Result<()> {
    let path = node.to_owned();
    // Opening it may make the kernel read it, which is for this thread to serve.
    let opens = spawn_blocking(move || {
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
