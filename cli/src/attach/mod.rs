//! Giving the machine a disk, and taking it away.
//!
//! | file | what it does |
//! |---|---|
//! | `mod` | starting a disk's server in the background |
//! | `detach` | ending it |
//! | `form` | as what a disk appears: a block device, or a socket |
//! | `serve` | the server's process: what the servers of all forms have in common |
//! | `stop` | what it is asked for |
//! | `bring_back` | bringing a disk back that was given up, or that nobody serves |
//! | `ask` | asking it: to connect again, to make room for a newer version, what it has done |
//! | `answer` | what it answers, and on which socket |
//! | `counted` | what it has done |
//! | `process` | what that process asks of the system for itself |
//! | `seccomp` | what its threads may ask of the system from then on |
//! | `ublk` | `/dev/ublkbN` |
//! | `block_device` | what the kernel is told of a block device, whichever driver has it |
//! | `vhost` | the disk of a virtual machine: vhost-user-blk |
//! | `socket` | a socket for NBD clients, or for the kernel's own: `/dev/nbdN` |
//! | `guard` | the process that outlives a disk's server, and starts another |
//! | `remote` | the connection of a thread that serves a disk |
//! | `shown` | which namespaces its paths show at first |
//! | `control` | what these threads are told |
//! | `changes` | what they tell of their connections |
//! | `fence` | what of it may still be carried out at the target when the server is killed |
//! | `entry` | what is written down at first |
//! | `host` | as which host a disk is attached |
//! | `disk` | what is written down of the disk itself |
//! | `nbd` | the NBD server, and the kernel's client |
//! | `errno` | what a file system is told of an operation that failed |
//! | `in_use` | who uses a block device |
//! | `registry` | what is attached |
//! | `lock` | who serves a disk |

mod answer;
mod ask;
mod block_device;
mod bring_back;
mod changes;
mod control;
mod counted;
mod detach;
mod disk;
mod entry;
mod errno;
mod fence;
mod form;
mod guard;
mod host;
mod in_use;
mod lock;
mod nbd;
mod process;
mod registry;
mod remote;
mod seccomp;
mod serve;
mod shown;
mod socket;
mod stop;
mod ublk;
mod vhost;

pub(crate) use answer::Unable;
pub(crate) use bring_back::remedy;
pub(crate) use counted::{Kind, Statistics, step_us};
pub(crate) use entry::PROVE_AS_MUCH;
pub(crate) use form::Form;
pub(crate) use guard::{Restart, guard};
pub(crate) use host::{OtherHost, other_host};
pub(crate) use registry::{Listed, Registry, has_socket};
pub(crate) use serve::{Ended, resume, serve, serve_in_background};
pub(crate) use ublk::QUEUES_MAX;

use crate::command::Further;
use crate::interrupt::{self, Careful};
use crate::runtime::run;
use anyhow::{Context, Result, bail};
use nvme_proto::Nsid;
use nvmf_attached::Attachment;
use nvmf_initiator::{Options, PathOptions};
use registry::Next;
use serve::Report;
use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe;
use tokio::time::sleep;

/// How long a server may take to end when it is asked to before it has attached its disk.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);
/// How long the kernel may take to end a process.
const KILL_TIME_MAX: Duration = Duration::from_secs(2);
const KILL_POLL: Duration = Duration::from_millis(5);
/// How long a guard may take to start another server: until then the killed one has to be over.
const GUARD_TIME_MAX: Duration = Duration::from_secs(10);

/// What the server's process is called. systemd spares a process whose name begins with an `@` when it kills what is
/// left at shutdown: a root file system may be on its disk.
const SERVER_NAME: &str = "@nvmf";

/// Which disk is attached, and as what.
#[derive(Clone)]
pub(crate) struct AttachOptions {
    /// How to connect.
    pub(crate) connection: Options,
    /// How to connect over a path that is added later.
    pub(crate) further: Further,
    /// The namespace; the first, where none is named.
    pub(crate) nsid: Option<Nsid>,
    /// As what it appears.
    pub(crate) form: Form,
    /// Queues of a device by ublk, each with its thread; as many as suit this machine, where none is named.
    pub(crate) queues: Option<u16>,
    /// The NBD socket, and who may use it.
    pub(crate) socket: SocketOptions,
    /// Attach it though it is attached already.
    pub(crate) duplicate: bool,
    /// The discovery service attaches it, and detaches it when it is gone.
    pub(crate) by_discovery: bool,
    /// The threads that serve it may ask the kernel for no more than they need.
    pub(crate) seccomp: bool,
    /// Options of this call, by their long names, that whoever takes the disk over has, too, unless its own call gives them.
    pub(crate) lasting: Vec<String>,
    /// Those of this call with such ones besides, of the disk that it takes over. No name is looked up of the paths that were found.
    pub(crate) again: fn(&[String], &[PathOptions]) -> Result<Self>,
}

/// An NBD socket, and who may use it.
#[derive(Clone, Default)]
pub(crate) struct SocketOptions {
    /// Where it is; in the registry's folder, where no path is named.
    pub(crate) path: Option<PathBuf>,
    /// Its permissions, if they are named.
    pub(crate) mode: Option<u32>,
    /// Its group, by name or number.
    pub(crate) group: Option<String>,
    /// NBD clients may ask which parts of the disk are zeroes.
    pub(crate) block_status: bool,
}

/// Fails for a path that no socket can have.
pub(crate) fn check_socket(path: &Path) -> Result<(), String> {
    nbd::Listener::check(path).map_err(|error| error.to_string())
}

/// A signal ended the waiting for a disk's server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stopped {
    /// As if nobody had asked.
    #[error("stopped before the disk was attached: nothing is left of this call")]
    Nothing,
    /// Something is left: what.
    #[error("stopped, but {0}")]
    But(String),
    /// The waiting for a disk that was there before.
    #[error("stopped: nobody waits for it any more, and it goes on as it can (nvmf list shows how it is)")]
    Waiting,
}

/// Starts this program again as the disk's server, with these arguments, and waits until it serves or says why not. A
/// signal that ends the waiting ends the server, too.
pub(crate) fn in_background(arguments: impl Iterator<Item = OsString>) -> Result<Attachment> {
    let careful = Careful::new()?;
    interrupt::check()?;
    process::keep_descriptors();
    let program = std::env::current_exe().context("cannot tell where this program lies")?;
    let mut command = Command::new(program);
    command.arg0(SERVER_NAME).arg("serve").args(arguments).env_remove("NOTIFY_SOCKET");
    process::name_folder(&mut command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = command.spawn().map_err(|error| {
        let help = match error.kind() {
            ErrorKind::WouldBlock => " (this user has as many processes as it may have: ulimit -u)",
            _ => "",
        };
        anyhow::Error::new(error).context(format!("cannot start the disk's server{help}"))
    })?;
    let output = server.stdout.take().context("the disk's server has no output")?;
    run(hear(&mut server, output, &careful))
}

/// Waits for the server's report. What holds its input keeps it: when that goes before the report was heard, it ends.
async fn hear(server: &mut Child, output: ChildStdout, stop: &Careful) -> Result<Attachment> {
    let output =
        pipe::Receiver::from_owned_fd(output.into()).context("cannot hear from the disk's server")?;
    let (mut output, mut line) = (BufReader::new(output), String::new());
    tokio::select! {
        heard = output.read_line(&mut line) => drop(heard.context("cannot hear from the disk's server")?),
        () = stop.asked(1) => {
            drop(server.stdin.take());
            // Its output ends with it, or it has said that it serves and waits in vain to be heard.
            let ends = tokio::select! {
                ends = until_ended(&mut output) => ends,
                // It may be stopped, or wait for a file system that does not answer.
                () = sleep(STOP_TIME_MAX) => Err(None),
                () = stop.asked(2) => Err(None),
            };
            return Err(match ends {
                Ok(()) => after_stop(server),
                Err(Some(disk)) => Stopped::But(format!("{disk} was taken over: it stays")).into(),
                Err(None) => kill(server),
            });
        }
    }
    match serde_json::from_str(&line) {
        Ok(Report::Attached(disk)) => {
            let mut input = server.stdin.take().context("the disk's server has no input")?;
            // Nobody reads it any more where it was killed meanwhile.
            if input.write_all(b"\n").is_ok() { Ok(*disk) } else { after_end(server) }
        }
        Ok(Report::TakenOver(disk)) => Ok(*disk),
        Ok(Report::Failed(reason)) => {
            server.wait()?;
            bail!("{reason}")
        }
        Err(_) => after_end(server),
    }
}

/// Reads until the server has ended; or until it says that it has taken over a disk that was there before, which stays.
async fn until_ended(output: &mut BufReader<pipe::Receiver>) -> Result<(), Option<Box<Attachment>>> {
    loop {
        let mut line = String::new();
        match output.read_line(&mut line).await {
            Ok(0) | Err(_) => return Ok(()),
            Ok(_) => {}
        }
        if let Ok(Report::TakenOver(disk)) = serde_json::from_str(&line) {
            return Err(Some(disk));
        }
    }
}

/// What is left of a server that has ended because it was to.
fn after_stop(server: &mut Child) -> anyhow::Error {
    let pid = server.id();
    if let Err(error) = server.wait() {
        return error.into();
    }
    let left = Registry::of_this_user().entry_of(pid);
    left.map_or(Stopped::Nothing, |left| {
        Stopped::But(format!("{} is there, as it was before: nvmf list shows it", left.disk))
    })
    .into()
}

/// Ends a server that does not end when it is asked to.
fn kill(server: &mut Child) -> anyhow::Error {
    let pid = server.id();
    // It may have ended by now.
    let _ = server.kill();
    let deadline = Instant::now() + KILL_TIME_MAX;
    while server.try_wait().is_ok_and(|ended| ended.is_none()) {
        if Instant::now() > deadline {
            return Stopped::But(format!(
                "the disk's server, process {pid}, does not end: it waits in the kernel"
            ))
            .into();
        }
        std::thread::sleep(KILL_POLL);
    }
    let registry = Registry::of_this_user();
    match registry.entry_of(pid) {
        Some(left) if left.is_usable() => Stopped::But(format!(
            "{} was attached already, and another server may go on with it: nvmf list shows it, and nvmf detach takes it away",
            left.disk
        ))
        .into(),
        // The next one that is attached clears it away, too.
        _ => registry.clear_away().err().unwrap_or_else(|| Stopped::Nothing.into()),
    }
}

/// The disk of a server that has ended without a word, which its guard may go on with.
fn after_end(server: &mut Child) -> Result<Attachment> {
    let (pid, ended) = (server.id(), server.wait()?);
    // Nobody goes on with one that was not attached yet.
    let left = Registry::of_this_user().entry_of(pid).filter(Listed::is_usable);
    let next = left.map_or(Next::Gone, |left| left.next_server(GUARD_TIME_MAX));
    match next {
        Next::Served(disk) => Ok(*disk),
        Next::Gone => bail!("the disk's server ended with {ended}"),
        Next::Nobody(disk) => bail!(
            "the disk's server, process {pid}, ended with {ended}, and {disk} waits for another one: nvmf list shows whether it has one by \
             now, and nvmf detach takes it away"
        ),
    }
}
