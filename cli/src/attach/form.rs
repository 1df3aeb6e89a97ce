//! The form of an attached disk: a block device, or a socket.

use super::{nbd, ublk};
use anyhow::{Context, Result, anyhow};
use nvmf_attached::Attachment;
use std::path::Path;
use std::process::{Command, Stdio};

/// The form that was asked for.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The best that this machine has: ublk, else nbd, else a socket
    Auto,
    /// A block device, /dev/ublkbN
    Ublk,
    /// A block device, /dev/nbdN
    Nbd,
    /// A socket for NBD clients, and no block device
    Socket,
    /// A socket for virtual machines (vhost-user-blk), and no block device
    Vhost,
}

/// The server that was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Server {
    Ublk,
    Nbd,
    /// With the reason for no block device, if one was asked for.
    Socket(Option<String>),
    Vhost,
}

impl Form {
    /// Whether an attached disk is of this form.
    pub(super) fn allows(self, disk: &Attachment) -> bool {
        self == Self::Auto && !disk.vhost_user || Server::of(disk).form() == self
    }

    /// The server that this machine can have.
    pub(super) fn choose(self) -> Result<Server> {
        match self {
            Self::Socket => Ok(Server::Socket(None)),
            Self::Vhost => Ok(Server::Vhost),
            Self::Ublk => can_ublk().map(|()| Server::Ublk).context("no /dev/ublkbN can be made here"),
            Self::Nbd => can_nbd().map(|()| Server::Nbd).context("no /dev/nbdN can be made here"),
            Self::Auto => Ok(match can_ublk() {
                Ok(()) => Server::Ublk,
                Err(no_ublk) => match can_nbd() {
                    Ok(()) => Server::Nbd,
                    Err(no_nbd) => Server::Socket(Some(why(&no_ublk, &no_nbd))),
                },
            }),
        }
    }
}

impl Server {
    /// The server of a disk that is attached.
    pub(super) fn of(disk: &Attachment) -> Self {
        match disk.device.as_deref() {
            Some(device) if ublk::number(device).is_some() => Self::Ublk,
            Some(_) => Self::Nbd,
            None if disk.vhost_user => Self::Vhost,
            None => Self::Socket(disk.note.clone()),
        }
    }

    pub(super) fn form(&self) -> Form {
        match self {
            Self::Ublk => Form::Ublk,
            Self::Nbd => Form::Nbd,
            Self::Socket(_) => Form::Socket,
            Self::Vhost => Form::Vhost,
        }
    }
}

/// The reason for no block device, and what to do, in one line.
fn why(no_ublk: &anyhow::Error, no_nbd: &anyhow::Error) -> String {
    let (no_ublk, no_nbd) = (crate::print::chain(no_ublk), crate::print::chain(no_nbd));
    if no_ublk == no_nbd {
        return format!("no block device: {no_ublk}; it is served on an NBD socket");
    }
    format!(
        "no block device: {no_ublk}; {no_nbd} (load either module for one); it is served on an NBD socket"
    )
}

fn must_be_root() -> Result<()> {
    let message = || anyhow!("only root may make one (run it as root, or with --as socket)");
    nix::unistd::geteuid().is_root().then_some(()).ok_or_else(message)
}

fn can_ublk() -> Result<()> {
    must_be_root()?;
    if !Path::new("/dev/ublk-control").exists() {
        load("ublk_drv");
    }
    if !Path::new("/dev/ublk-control").exists() {
        return Err(anyhow!("this kernel has no ublk (modprobe ublk_drv)"));
    }
    ublk::available()
}

fn can_nbd() -> Result<()> {
    must_be_root()?;
    if nbd::kernel::Kernel::open().is_ok() {
        return Ok(());
    }
    load("nbd");
    nbd::kernel::Kernel::open().map(drop).map_err(|_| anyhow!("no nbd client (modprobe nbd)"))
}

/// Has the kernel load a module, unless the administrator has forbidden it.
fn load(module: &str) {
    let mut command = Command::new("modprobe");
    command.args(["-q", "-b", module]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // The caller looks whether it helped.
    let _ = command.status();
}
