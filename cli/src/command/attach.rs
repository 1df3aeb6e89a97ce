//! `nvmf attach`, `nvmf detach`, and the processes that `attach` starts.

use super::target::NamespaceArguments;
use super::{Format, Output};
use crate::attach::{self, AttachOptions, Attachment, Form, Registry};
use crate::print::{ERROR_PREFIX, chain, human, print_json};
use anyhow::{Result, bail, ensure};
use nvme_proto::{Nqn, Nsid};
use std::path::PathBuf;

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
struct DiskArguments {
    #[command(flatten)]
    namespace: NamespaceArguments,
    /// As what it appears; a socket where --socket names one
    #[arg(long = "as", value_enum, default_value_t = Form::Auto)]
    form: Form,
    /// The NBD socket; one in the folder for running programs by default
    #[arg(long)]
    socket: Option<PathBuf>,
}

/// What `attach` starts in the background.
#[derive(clap::Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    disk: DiskArguments,
    #[command(flatten)]
    _output: Output,
}

/// What the server of a `/dev/nbdN` starts.
#[derive(clap::Args)]
pub(crate) struct Guard {
    /// The device
    device: PathBuf,
    /// What the kernel says of whose it is
    owner: String,
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

impl DiskArguments {
    fn options(&self) -> Result<AttachOptions> {
        Ok(AttachOptions {
            connection: self.namespace.options()?,
            nsid: self.namespace.nsid.map(Nsid),
            form: self.form()?,
            socket: self.socket.clone(),
        })
    }

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

impl Attach {
    pub(crate) fn run(&self) -> Result<()> {
        let format = self.output.format;
        if self.foreground {
            return attach::serve(&self.disk.options()?, &mut |attachment| report(format, attachment));
        }
        // The server is given this program's own arguments, behind the command's name.
        report(format, &attach::in_background(std::env::args_os().skip(2))?)
    }
}

impl Serve {
    pub(crate) fn run(&self) -> Result<()> {
        attach::serve_in_background(&self.disk.options()?)
    }
}

impl Guard {
    pub(crate) fn run(&self) -> Result<()> {
        attach::guard(&self.device, &self.owner)
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
            match attach::detach(&registry, disk, self.force) {
                Ok(()) => println!("detached {disk}"),
                // The others are detached all the same.
                Err(error) => {
                    failed += 1;
                    eprintln!("{ERROR_PREFIX}{disk}: {}", chain(&error));
                }
            }
        }
        ensure!(failed == 0, "{failed} of {} disks did not end in order", disks.len());
        Ok(())
    }
}
