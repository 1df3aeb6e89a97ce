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

pub(crate) use guard::Guard;
pub(crate) use registry::{Attachment, Registry};
pub(crate) use serve::Serve;

use crate::command::{ERROR_PREFIX, Format, NamespaceArguments, Output, human, print_json};
use anyhow::{Context, Result, bail, ensure};
use form::Form;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvme_proto::Nqn;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a disk may take to be detached: its last requests, and a flush.
const DETACH_TIME_MAX: Duration = Duration::from_secs(80);

#[derive(clap::Args)]
pub(crate) struct Attach {
    #[command(flatten)]
    disk: DiskArguments,
    /// Serve from this process, until it is stopped
    #[arg(long)]
    foreground: bool,
    #[command(flatten)]
    output: Output,
}

/// Which disk, and where it is served.
#[derive(clap::Args, Clone)]
pub(crate) struct DiskArguments {
    #[command(flatten)]
    namespace: NamespaceArguments,
    /// As what it appears; a socket where --socket names one
    #[arg(long = "as", value_enum, default_value_t = Form::Auto)]
    form: Form,
    /// The NBD socket; one in the folder for running programs by default
    #[arg(long)]
    socket: Option<PathBuf>,
}

impl DiskArguments {
    /// As what it appears.
    fn form(&self) -> Result<Form> {
        match (self.form, &self.socket) {
            (form, None) => Ok(form),
            (Form::Auto | Form::Socket, Some(_)) => Ok(Form::Socket),
            (Form::Ublk | Form::Nbd, Some(_)) => {
                bail!("a block device has no --socket: leave out that, or --as")
            }
        }
    }
}

#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["device", "nqn", "socket", "all"]))]
pub(crate) struct Detach {
    /// The block device
    device: Option<PathBuf>,
    /// NQN of the subsystem: every disk of it
    #[arg(short = 'n', long)]
    nqn: Option<Nqn>,
    /// The NBD socket
    #[arg(long)]
    socket: Option<PathBuf>,
    /// Every disk
    #[arg(long)]
    all: bool,
    /// Also what is mounted, or open: its users get errors
    #[arg(short, long)]
    force: bool,
}

impl Attach {
    pub(crate) fn run(self) -> Result<()> {
        let format = self.output.format;
        if self.foreground {
            return serve::serve(&self.disk, &mut |attachment| report(format, attachment));
        }
        let attachment = self.in_background()?;
        report(format, &attachment)
    }

    /// Starts this program again as the disk's server, and waits until it serves or says why not.
    fn in_background(&self) -> Result<Attachment> {
        let registry = Registry::of_this_user()?;
        let log = registry.log(std::process::id());
        let log_file =
            std::fs::File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        let program = std::env::current_exe().context("cannot tell where this program lies")?;
        let mut command = Command::new(program);
        command
            .arg("serve")
            .args(std::env::args_os().skip(2))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log_file);
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
}

fn report(format: Format, disk: &Attachment) -> Result<()> {
    if let Some(note) = &disk.note {
        eprintln!("{ERROR_PREFIX}{note}");
    }
    if format == Format::Json {
        return print_json(disk.json());
    }
    let (place, whence) = (disk.place().display(), if disk.device.is_some() { "as" } else { "served on" });
    println!(
        "{} namespace {}, {} in blocks of {} bytes, {whence}",
        disk.nqn,
        disk.nsid,
        human(disk.size),
        disk.block_size
    );
    if let Some(uri) = disk.uri() {
        println!("  {uri}");
        println!(
            "Use it:  nbdinfo '{uri}'   qemu-img info '{uri}'   nbd-client -unix {place} /dev/nbd0 (as root)"
        );
        println!("End it:  nvmf detach --socket {place}");
    } else {
        println!("  {place}");
        println!("Use it:  lsblk {place}   mkfs.ext4 {place}   mount {place} /mnt");
        println!("End it:  nvmf detach {place}");
    }
    Ok(())
}

impl Detach {
    pub(crate) fn run(&self) -> Result<()> {
        let registry = Registry::of_this_user()?;
        let (mut disks, mut killed) = registry.sort_out()?;
        let socket = self.socket.as_deref().map(std::path::absolute).transpose()?;
        // What was given may be a link to the node.
        let device =
            self.device.as_deref().map(|device| device.canonicalize().unwrap_or_else(|_| device.to_owned()));
        let meant = |disk: &Attachment| {
            let by_nqn = self.nqn.is_some_and(|nqn| disk.nqn == nqn.as_str());
            let by_socket = socket.is_some() && socket == disk.socket;
            let by_device = device.is_some() && device == disk.device;
            self.all || by_nqn || by_socket || by_device
        };
        disks.retain(meant);
        killed.retain(meant);
        for disk in &killed {
            println!("cleared away {disk}, whose server was killed: what was not flushed may be lost");
        }
        let none = disks.is_empty() && killed.is_empty();
        ensure!(self.all || !none, "no such disk is attached: `nvmf list` shows those that are");
        let mut failed = 0;
        for disk in &disks {
            match self.end(&registry, disk) {
                Ok(()) => println!("detached {disk}"),
                // The others are detached all the same.
                Err(error) => {
                    failed += 1;
                    eprintln!("{ERROR_PREFIX}{disk}: {}", crate::command::chain(&error));
                }
            }
        }
        ensure!(failed == 0, "{failed} of {} disks did not end in order", disks.len());
        Ok(())
    }

    /// Ends a disk, unless it is in use.
    fn end(&self, registry: &Registry, disk: &Attachment) -> Result<()> {
        if let (Some(device), false) = (&disk.device, self.force) {
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
