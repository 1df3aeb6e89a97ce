//! Giving the machine a disk, and taking it away.
//!
//! | file | what it does |
//! |---|---|
//! | `mod` | `nvmf attach` and `nvmf detach` |
//! | `serve` | the background process: connects, serves, ends in good order |
//! | `remote` | a remote namespace as what the NBD server serves |
//! | `nbd` | the NBD server |
//! | `registry` | what is attached |

mod nbd;
mod registry;
mod remote;
mod serve;

pub(crate) use registry::{Attachment, Registry};
pub(crate) use serve::Serve;

use crate::cli::{Format, NamespaceArguments, Output, human, print_json};
use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvme_proto::Nqn;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a disk may take to be detached: its last requests, and a flush.
const DETACH_TIME_MAX: Duration = Duration::from_secs(40);

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
    /// The NBD socket; one in the folder for running programs by default
    #[arg(long)]
    socket: Option<PathBuf>,
}

#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["nqn", "socket", "all"]))]
pub(crate) struct Detach {
    /// NQN of the subsystem: every disk of it
    #[arg(short = 'n', long)]
    nqn: Option<Nqn>,
    /// The NBD socket
    #[arg(long)]
    socket: Option<PathBuf>,
    /// Every disk
    #[arg(long)]
    all: bool,
}

impl Attach {
    pub(crate) fn run(self) -> Result<()> {
        let format = self.output.format;
        if self.foreground {
            return serve::serve(&self.disk, |attachment| report(format, attachment));
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
    let socket = disk.socket.display();
    let uri = disk.uri();
    if format == Format::Json {
        return print_json(disk.json());
    }
    println!(
        "{} namespace {}, {} in blocks of {} bytes, served on",
        disk.nqn,
        disk.nsid,
        human(disk.size),
        disk.block_size
    );
    println!("  {uri}");
    println!(
        "Use it:  nbdinfo '{uri}'   qemu-img info '{uri}'   nbd-client -unix {socket} /dev/nbd0 (as root)"
    );
    println!("End it:  nvmf detach --socket {socket}");
    Ok(())
}

impl Detach {
    pub(crate) fn run(&self) -> Result<()> {
        let registry = Registry::of_this_user()?;
        let mut disks = registry.list()?;
        let socket = self.socket.as_deref().map(std::path::absolute).transpose()?;
        disks.retain(|disk| {
            let by_nqn = self.nqn.is_some_and(|nqn| disk.nqn == nqn.as_str());
            self.all || by_nqn || socket.as_ref() == Some(&disk.socket)
        });
        ensure!(self.all || !disks.is_empty(), "no such disk is attached: `nvmf list` shows those that are");
        let mut failed = 0;
        for disk in &disks {
            match end(&registry, disk) {
                Ok(()) => println!("detached {disk}"),
                // The others are detached all the same.
                Err(error) => {
                    failed += 1;
                    eprintln!("{}{disk}: {}", crate::cli::ERROR_PREFIX, crate::cli::chain(&error));
                }
            }
        }
        ensure!(failed == 0, "{failed} of {} disks did not end in good order", disks.len());
        Ok(())
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
            disk.socket.display()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let failure = registry.failure(disk.pid);
    registry.remove(disk.pid);
    match failure {
        Some(failure) => bail!("it is detached, but not in good order: {failure}"),
        None => Ok(()),
    }
}
