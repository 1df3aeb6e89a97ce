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
//! | `control` | what these threads are told |
//! | `changes` | what they tell of their connections |
//! | `fence` | what of it may still be carried out at the target when the server is killed |
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
mod errno;
mod fence;
mod form;
mod guard;
mod in_use;
mod lock;
mod nbd;
mod process;
mod registry;
mod remote;
mod seccomp;
mod serve;
mod socket;
mod stop;
mod ublk;
mod vhost;

pub(crate) use answer::Unable;
pub(crate) use counted::{Kind, Statistics, step_us};
pub(crate) use form::Form;
pub(crate) use guard::{Restart, guard};
pub(crate) use registry::{Listed, Registry};
pub(crate) use serve::{Ended, resume, serve, serve_in_background};
pub(crate) use ublk::QUEUES_MAX;

use crate::command::Further;
use crate::runtime::run;
use anyhow::{Context, Result, bail};
use nvme_proto::Nsid;
use nvmf_attached::Attachment;
use nvmf_initiator::Options;
use serve::Report;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use stop::Stop;
use tokio::task::spawn_blocking;

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
}

/// An NBD socket, and who may use it.
#[derive(Clone, Default)]
pub(crate) struct SocketOptions {
    /// Where it is; in the registry's folder, where no path is named.
    pub(crate) path: Option<PathBuf>,
    /// Its permissions.
    pub(crate) mode: u32,
    /// Its group, by name or number.
    pub(crate) group: Option<String>,
    /// NBD clients may ask which parts of the disk are zeroes.
    pub(crate) block_status: bool,
}

/// A signal ended the waiting for a disk's server.
#[derive(Debug, thiserror::Error)]
#[error("stopped before the disk was attached: nothing is left of it")]
pub(crate) struct Stopped;

/// Starts this program again as the disk's server, with these arguments, and waits until it serves or says why not. A
/// signal that ends the waiting ends the server, too.
pub(crate) fn in_background(arguments: impl Iterator<Item = OsString>) -> Result<Attachment> {
    process::keep_descriptors();
    let program = std::env::current_exe().context("cannot tell where this program lies")?;
    let mut command = Command::new(program);
    command.arg0(SERVER_NAME).arg("serve").args(arguments).env_remove("NOTIFY_SOCKET");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = command.spawn().context("cannot start the disk's server")?;
    let output = server.stdout.take().context("the disk's server has no output")?;
    run(hear(&mut server, output))
}

/// Waits for the server's report. What holds its input keeps it: when that goes before the report was heard, it ends.
async fn hear(server: &mut Child, output: ChildStdout) -> Result<Attachment> {
    let mut stop = Stop::new(None)?;
    let mut line = spawn_blocking(move || {
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).map(|_| line)
    });
    let line = tokio::select! {
        line = &mut line => line?.context("cannot hear from the disk's server")?,
        () = stop.asked() => {
            drop(server.stdin.take());
            // Its output ends with it, or it has said that it serves and waits in vain to be heard.
            let _ = line.await;
            server.wait()?;
            return Err(Stopped.into());
        }
    };
    match serde_json::from_str(&line) {
        Ok(Report::Attached(disk)) => {
            let heard = server.stdin.take().map(|mut pipe| pipe.write_all(b"\n"));
            heard.transpose()?.context("the disk's server has no input")?;
            Ok(*disk)
        }
        Ok(Report::Failed(reason)) => {
            server.wait()?;
            bail!("{reason}")
        }
        Err(_) => bail!("the disk's server ended with {}", server.wait()?),
    }
}
