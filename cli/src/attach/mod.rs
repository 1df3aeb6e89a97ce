//! Giving the machine a disk, and taking it away.
//!
//! | file | what it does |
//! |---|---|
//! | `mod` | `nvmf attach` and `nvmf detach` |
//! | `form` | as what a disk appears: a block device, or a socket |
//! | `serve` | the background process: what every server of a disk has to do with |
//! | `ublk` | `/dev/ublkbN` |
//! | `socket` | a socket for NBD clients, or for the kernel's own: `/dev/nbdN` |
//! | `guard` | the process that outlives the server of a `/dev/nbdN` |
//! | `remote` | a remote namespace as what the NBD server serves |
//! | `nbd` | the NBD server, and the kernel's client |
//! | `errno` | what a file system is told of an operation that failed |
//! | `in_use` | who uses a block device |
//! | `registry` | what is attached |

mod errno;
mod form;
mod guard;
mod in_use;
mod nbd;
mod registry;
mod remote;
mod serve;
mod socket;
mod ublk;

pub(crate) use form::Form;
pub(crate) use guard::guard;
pub(crate) use registry::{Attachment, Registry};
pub(crate) use serve::{serve, serve_in_background};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvme_proto::Nsid;
use nvmf_initiator::Options;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a disk may take to be detached: its last requests, and a flush.
const DETACH_TIME_MAX: Duration = Duration::from_secs(80);

/// Which disk is attached, and as what.
#[derive(Clone)]
pub(crate) struct AttachOptions {
    /// How to connect.
    pub(crate) connection: Options,
    /// The namespace; the first, where none is named.
    pub(crate) nsid: Option<Nsid>,
    /// As what it appears.
    pub(crate) form: Form,
    /// The NBD socket; one in the registry's folder, where none is named.
    pub(crate) socket: Option<PathBuf>,
}

/// Starts this program again as the disk's server, with these arguments, and waits until it serves or says why not.
pub(crate) fn in_background(arguments: impl Iterator<Item = OsString>) -> Result<Attachment> {
    let registry = Registry::of_this_user()?;
    let log = registry.log(std::process::id());
    let log_file = std::fs::File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
    let program = std::env::current_exe().context("cannot tell where this program lies")?;
    let mut command = Command::new(program);
    command.arg("serve").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log_file);
    let mut child = command.spawn().context("cannot start the disk's server")?;
    std::fs::rename(&log, registry.log(child.id())).context("cannot name the server's log")?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line).context("cannot hear from the disk's server")?;
    }
    if let Ok(attachment) = serde_json::from_str(&line) {
        return Ok(attachment);
    }
    let status = child.wait()?;
    let failure = registry.failure(child.id());
    registry.remove(child.id());
    match failure {
        Some(failure) => bail!("{failure}"),
        None => bail!("the disk's server ended with {status}"),
    }
}

/// Ends a disk, unless it is in use.
pub(crate) fn detach(registry: &Registry, disk: &Attachment, force: bool) -> Result<()> {
    if let (Some(device), false) = (&disk.device, force) {
        let users = in_use::users(device, disk.pid);
        ensure!(
            users.is_empty(),
            "{} is in use: {}; end that first, or detach it with --force",
            device.display(),
            users.join(", ")
        );
    }
    end(registry, disk)
}

/// Has a disk's server end, waits until it has, and hears whether all was flushed.
fn end(registry: &Registry, disk: &Attachment) -> Result<()> {
    let pid = i32::try_from(disk.pid).context("no process has such a number")?;
    kill(Pid::from_raw(pid), Signal::SIGTERM).with_context(|| format!("cannot stop process {pid}"))?;
    let deadline = Instant::now() + DETACH_TIME_MAX;
    while registry::start_time(disk.pid) == Some(disk.started) {
        ensure!(
            Instant::now() < deadline,
            "{} is still being detached after {DETACH_TIME_MAX:?}: is its target there? (kill -9 {pid} ends it; what was not flushed may be lost)",
            disk.place().display()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let failure = registry.failure(disk.pid);
    registry.remove(disk.pid);
    match failure {
        Some(failure) => bail!("it is detached, but not in order: {failure}"),
        None => Ok(()),
    }
}
