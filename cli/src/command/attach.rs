//! `nvmf attach`, `nvmf detach`, and the processes that `attach` starts.

use super::persist::{self, Written};
use super::target::NamespaceArguments;
use super::upgrade::upgrade;
use super::{Format, Output, Verbosity, again, given_options};
use crate::attach::{
    self, AttachOptions, Ended, Form, Listed, QUEUES_MAX, Registry, Restart, SocketOptions, has_socket,
};
use crate::connect::Transport;
use crate::discovery::{Added, Subsystem, add_missing_paths, config, options_of};
use crate::print::{
    OutputClosed, chain, complain, document, human, line, print_json, shell_word, wrong_arguments,
};
use anyhow::{Context, Result, bail, ensure};
use nvme_proto::{Nqn, Nsid};
use nvmf_attached::{Attachment, State};
use nvmf_initiator::PathOptions;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

#[derive(clap::Args)]
pub(crate) struct Attach {
    #[command(flatten)]
    disk: DiskArguments,
    /// Serve from this process, until it is stopped
    #[arg(long)]
    foreground: bool,
    /// Attach it at every boot: writes /etc/nvmf/attach.d/NAME.toml, and enables the unit nvmf-attach@NAME
    #[arg(long, value_name = "NAME", conflicts_with_all = ["foreground", "from"])]
    persist: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// Which disk, and where it is served.
#[derive(clap::Args, Clone)]
pub(super) struct DiskArguments {
    /// Take the options from this file, as --persist writes them
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Take what is not given here from what nvme-cli's config.json says of this controller; `none`: from nowhere
    #[arg(short = 'J', long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print nvme-cli's config.json of this connection afterwards, without secrets and keys, and nothing else to the standard output
    #[arg(short = 'O', long)]
    dump_config: bool,
    #[command(flatten)]
    namespace: NamespaceArguments,
    /// Form of the disk; a socket if --socket is given
    #[arg(long = "as", value_enum, default_value_t = Form::Auto)]
    pub(super) form: Form,
    /// Queues of a ublk device, each with a thread and connections of its own; by default one for each processor, up to 4
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(QUEUES_MAX)))]
    queues: Option<u16>,
    /// Path of the socket; by default one in the runtime folder
    #[arg(long)]
    socket: Option<PathBuf>,
    /// Permissions of the socket, in octal: whoever may write to it has the disk; 600 by default, or what it had of a disk that is
    /// taken over
    #[arg(long, visible_alias = "mode", value_name = "MODE", value_parser = mode)]
    socket_mode: Option<u32>,
    /// Group of the socket, by name or number
    #[arg(long, visible_alias = "group", value_name = "GROUP")]
    socket_group: Option<String>,
    /// Tell NBD clients that ask which parts of the disk are zeroes (qemu-img map): it is found out by reading them
    #[arg(long)]
    block_status: bool,
    /// Attach the disk though it is attached on this machine: a file system that both attachments write to is destroyed
    #[arg(short = 'D', long)]
    duplicate_connect: bool,
    /// Let the threads that serve the disk call everything in the kernel, in case that the filter forbids what they need here
    #[arg(long)]
    no_seccomp: bool,
    /// Detach it when its discovery controller lists it no more (what `discoverd` says)
    #[arg(long, hide = true)]
    by_discovery: bool,
    #[command(flatten)]
    verbosity: Verbosity,
}

/// Permissions, in octal.
fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "permissions are three octal digits, such as 660".to_owned())
}

/// What `attach` starts in the background.
#[derive(clap::Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    disk: DiskArguments,
    /// The entry of the disk to take over
    #[arg(long)]
    resume: Option<String>,
    /// The entry of the disk to take over now, for whoever asks
    #[arg(long)]
    take_over: Option<String>,
    /// The process that served that disk, whose end may not be over
    #[arg(long)]
    after: Option<u32>,
    /// How often servers of this disk were started that did not live long
    #[arg(long, default_value_t = 0)]
    restarts: u32,
    #[command(flatten)]
    _output: Output,
}

/// What a disk's server starts.
#[derive(clap::Args)]
pub(crate) struct Guard {
    /// How often servers of this disk were started that did not live long
    #[arg(long)]
    restarts: u32,
    /// The folder in which the arguments are meant
    #[arg(long)]
    folder: PathBuf,
    /// The arguments of the server
    #[arg(last = true)]
    arguments: Vec<OsString>,
}

/// What deploy/60-nvmf.rules asks.
#[derive(clap::Args)]
pub(crate) struct UdevProperties {
    /// The device's node
    device: PathBuf,
}

/// Disks that are asked for something.
#[derive(clap::Args)]
pub(crate) struct Named {
    /// The block device, the NBD socket, or the NQN
    name: OsString,
}

/// Further paths of attached disks.
#[derive(clap::Args)]
pub(crate) struct AddPath {
    /// The block device, the NBD socket, or the NQN
    name: OsString,
    /// The path, as --path of attach has it; port and transport are those that the disk was attached with where none is named
    #[arg(required = true, value_name = "ADDRESS[:PORT][/TRANSPORT][,OPTION]...", value_parser = named_path)]
    paths: Vec<String>,
}

fn named_path(text: &str) -> Result<String, String> {
    super::path::path(text).map(|_| text.to_owned())
}

impl AddPath {
    pub(crate) fn run(&self) -> Result<()> {
        for_each(&named(&self.name)?, |listed| {
            // One that cannot be made does not keep the others away.
            let mut failed = Vec::new();
            for path in &self.paths {
                match listed.add_path(path) {
                    Ok(()) => line(format_args!(
                        "{path} is a path of {} from now on (nvmf list-subsys shows whether it is connected)",
                        listed.disk
                    ))?,
                    Err(error) => failed.push(format!("{path}: {}", chain(&error))),
                }
            }
            ensure!(failed.is_empty(), "{}", failed.join("; "));
            Ok(())
        })
    }
}

#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["name", "device", "nqn", "socket", "all"]))]
pub(crate) struct Detach {
    /// The block device, the NBD socket, or the NQN
    name: Option<OsString>,
    /// The same, as nvme-cli's `disconnect` has it
    #[arg(short = 'd', long, value_name = "DEVICE", conflicts_with = "name")]
    device: Option<OsString>,
    /// NQN of the subsystem: every disk of it, or the one of --nsid
    #[arg(short = 'n', long)]
    nqn: Option<Nqn>,
    /// Only this namespace of the subsystem
    #[arg(long, visible_alias = "namespace-id", conflicts_with_all = ["socket", "all"])]
    nsid: Option<u32>,
    /// The NBD socket
    #[arg(long)]
    socket: Option<PathBuf>,
    /// Every disk
    #[arg(long)]
    all: bool,
    /// Detach a disk that is in use: its users get I/O errors, clients of its socket are disconnected
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    verbosity: Verbosity,
}

#[derive(clap::Args)]
pub(crate) struct DetachAll {
    /// Only those that are reached over this transport
    #[arg(short = 'r', long, value_name = "TRANSPORT", value_enum)]
    transport: Option<Transport>,
    /// Detach also disks that are in use: their users get I/O errors
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    verbosity: Verbosity,
}

impl DiskArguments {
    pub(super) fn verbosity(&self) -> u8 {
        self.verbosity.level()
    }

    /// What nvme-cli's `config.json` says of the controller, if one is named, for what these options do not.
    pub(super) fn configured(&self) -> Result<Vec<String>> {
        let file = self.config.as_deref().filter(|file| *file != Path::new("none"));
        let NamespaceArguments { target, nqn, .. } = &self.namespace;
        let Some(file) = file else { return Ok(Vec::new()) };
        options_of(file, target.hostnqn, *nqn, &target.place(false)?, target.has_first())
    }

    /// The subsystem that is meant, with these options.
    fn subsystem(&self, options: Vec<String>) -> Result<Subsystem> {
        let NamespaceArguments { target, nqn, .. } = &self.namespace;
        Ok(Subsystem { nqn: nqn.to_string(), paths: target.paths()?, options })
    }

    /// The same with paths that were found before.
    pub(super) fn with_found(mut self, found: &[PathOptions]) -> Self {
        self.namespace.target.found = found.to_vec();
        self
    }

    /// The same disk in this form.
    pub(super) fn in_form(self, form: Form) -> Self {
        Self { form, ..self }
    }

    pub(super) fn options(&self) -> Result<AttachOptions> {
        if let Some(what) = self.namespace.target.key_as_argument(self.config.is_some()) {
            return wrong_arguments(format!(
                "{what} to everybody (ps) for as long as the disk is attached: put it into a file that only you may read, \
                 and name that: --tls-key-file FILE, --dhchap-secret FILE, --dhchap-ctrl-secret FILE"
            ));
        }
        let connection = self.namespace.options()?;
        // The server changes its working folder.
        let socket = self.socket.as_deref().map(std::path::absolute).transpose()?;
        let form = self.form()?;
        if let Form::Socket | Form::Vhost = form {
            let nqn = connection.nqn.to_string();
            let default = || Registry::of_this_user().default_socket(&nqn, self.namespace.nsid.unwrap_or(1));
            let socket = socket.clone().unwrap_or_else(default);
            attach::check_socket(&socket).or_else(wrong_arguments)?;
        }
        Ok(AttachOptions {
            connection,
            further: self.namespace.further()?,
            nsid: self.namespace.nsid.map(Nsid),
            form,
            queues: self.queues()?,
            socket: SocketOptions {
                path: socket,
                mode: self.socket_mode,
                group: self.socket_group.clone(),
                block_status: self.block_status,
            },
            duplicate: self.duplicate_connect,
            by_discovery: self.by_discovery,
            seccomp: !self.no_seccomp,
            lasting: Vec::new(),
            again: again::with,
        })
    }

    /// The queues of a device by ublk.
    fn queues(&self) -> Result<Option<u16>> {
        let by_ublk = matches!(self.form, Form::Auto | Form::Ublk) && self.socket.is_none();
        match self.queues {
            Some(_) if !by_ublk => {
                wrong_arguments("only a device by ublk has --queues: leave out that, or --as")
            }
            queues => Ok(queues),
        }
    }

    /// The form of the disk.
    fn form(&self) -> Result<Form> {
        match (self.form, &self.socket) {
            (form, None) => Ok(form),
            (Form::Auto | Form::Socket, Some(_)) => Ok(Form::Socket),
            (Form::Vhost, Some(_)) => Ok(Form::Vhost),
            (Form::Ublk | Form::Nbd, Some(_)) => {
                wrong_arguments("a block device has no --socket: leave out that, or --as")
            }
        }
    }
}

impl Attach {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let format = self.output.format;
        // In the background, too: what is wrong with the arguments is said before a server is started.
        self.disk.options()?;
        if self.foreground {
            let restart = restart(0)?;
            let ended =
                attach::serve(&again::options()?, restart, &mut |attachment| report(format, attachment))?;
            return Ok(exit_code(ended));
        }
        let disk = match &self.persist {
            Some(name) => self.attach_persistently(name)?,
            None => attach::in_background(arguments())?,
        };
        report(format, &disk)?;
        self.dump()?;
        Ok(ExitCode::SUCCESS)
    }

    pub(super) fn options(&self) -> Result<AttachOptions> {
        self.disk.options()
    }

    /// Gives a disk that is attached already the paths of this call that it does not have.
    pub(super) fn add_missing_paths(&self, listed: &Listed) -> Result<()> {
        let target = &self.disk.namespace.target;
        // Each was named: one that the disk cannot have is a failure, too.
        let Added { failed, unable, .. } = add_missing_paths(listed, &target.host()?, &target.whole_paths()?);
        failed.or(unable).map_or(Ok(()), Err)
    }

    /// Whether no path of this call goes in the clear.
    pub(super) fn insists_on_tls(&self) -> bool {
        self.disk.namespace.target.insists_on_tls()
    }

    /// Prints nvme-cli's `config.json` of this call, if that is asked for.
    pub(super) fn dump(&self) -> Result<()> {
        if !self.disk.dump_config {
            return Ok(());
        }
        let subsystem = self.disk.subsystem(given_options())?;
        document(&config(&self.disk.namespace.target.host()?, &[subsystem]))
    }

    pub(super) fn verbosity(&self) -> u8 {
        self.disk.verbosity()
    }

    pub(super) fn format(&self) -> Format {
        self.output.format
    }

    pub(super) fn dumps(&self) -> bool {
        self.disk.dump_config
    }

    /// Whether it can be meant of one disk only.
    pub(super) fn names_one_disk(&self) -> bool {
        let DiskArguments { from, namespace, socket, .. } = &self.disk;
        let is_named = from.is_some() || namespace.nsid.is_some() || socket.is_some();
        is_named || self.foreground || self.persist.is_some()
    }

    /// Writes the unit's file, and attaches the disk. A file that attaches nothing does not stay: corrected options would be refused
    /// for it.
    fn attach_persistently(&self, name: &str) -> Result<Attachment> {
        let (unit, has_systemd) = (format!("nvmf-attach@{name}.service"), Path::new(SYSTEMD).exists());
        if has_systemd {
            self.check_unattached(&unit)?;
        }
        let Written { file, is_new } = persist::write(name)?;
        let undo = || {
            if is_new && let Err(error) = std::fs::remove_file(&file) {
                complain(format_args!("{} cannot be removed: {error}", file.display()));
            }
        };
        if has_systemd {
            start(&unit, &file).inspect_err(|_| {
                if is_new {
                    // Nor does it try again, now or at the next boot.
                    let _ = systemctl(&["disable", "--now", &unit]).status();
                }
                undo();
            })?;
            // From here on somebody may use the disk.
            return disk_of(&unit).with_context(|| {
                format!(
                    "{unit} has started, and goes on, but its disk is not found (nvmf list; journalctl -u {unit}; systemctl disable \
                     --now {unit} takes it away, and {} with its options stays)",
                    file.display()
                )
            });
        }
        let attached = attach::in_background(arguments()).inspect_err(|_| undo())?;
        complain(format_args!(
            "this machine does not run systemd: have it run `nvmf attach --from {}` at boot",
            file.display()
        ));
        Ok(attached)
    }

    /// That no other server has the disk: what its unit would fail with is in the journal only.
    fn check_unattached(&self, unit: &str) -> Result<()> {
        let AttachOptions { connection, nsid, duplicate, .. } = self.options()?;
        if duplicate {
            return Ok(());
        }
        let is_it = |listed: &Listed| {
            let Attachment { nqn, nsid: there, asked_nsid, .. } = &listed.disk;
            let is_meant = nsid.map_or(asked_nsid.is_none(), |nsid| nsid.0 == *there);
            *nqn == connection.nqn.as_str() && is_meant && listed.is_served()
        };
        let there: Vec<_> = Registry::of_this_user().list()?.into_iter().filter(is_it).collect();
        // The call may be made again.
        let is_of_unit = |pid: u32| there.iter().any(|listed| listed.disk.pid == pid);
        let Some(Listed { disk, .. }) = there.first() else { return Ok(()) };
        if main_process(unit).is_ok_and(is_of_unit) {
            return Ok(());
        }
        bail!(
            "{disk} is attached already (process {}), and {unit} could not attach it: detach it first (nvmf detach {})",
            disk.pid,
            shell_word(&disk.place().to_string_lossy())
        )
    }
}

fn systemctl(arguments: &[&str]) -> Command {
    let mut command = Command::new("systemctl");
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Has systemd attach the disk of this file now and at every boot.
fn start(unit: &str, file: &Path) -> Result<()> {
    let enabled = systemctl(&["enable", "--now", unit]).status().context("cannot run systemctl")?;
    ensure!(
        enabled.success(),
        "{unit}, of {}, does not start: journalctl -u {unit} says why",
        file.display()
    );
    Ok(())
}

/// The disk that the main process of this unit serves.
fn disk_of(unit: &str) -> Result<Attachment> {
    let pid = main_process(unit)?;
    let disk = Registry::of_this_user().list()?.into_iter().find(|listed| listed.disk.pid == pid);
    let disk = disk.with_context(|| format!("no attached disk has its process ({pid}) as its server"))?;
    Ok(disk.disk)
}

/// The number of a unit's main process; 0 of one that does not run.
fn main_process(unit: &str) -> Result<u32> {
    let main = systemctl(&["show", unit, "-P", "MainPID"]).output().context("cannot run systemctl")?;
    Ok(String::from_utf8_lossy(&main.stdout).trim().parse().unwrap_or_default())
}

/// There where systemd runs.
const SYSTEMD: &str = "/run/systemd/system";

/// The exit status of a server that leaves its disk to another: the unit has systemd start that.
const HANDED_OVER: u8 = 75;

pub(super) fn exit_code(ended: Ended) -> ExitCode {
    match ended {
        Ended::Over => ExitCode::SUCCESS,
        Ended::HandedOver => HANDED_OVER.into(),
    }
}

/// This program's own arguments after the command's name, as a server in the background gets them.
pub(super) fn arguments() -> impl Iterator<Item = OsString> {
    let mut is_name = false;
    let arguments = std::env::args_os().skip(2).filter(move |argument| {
        let text = argument.to_string_lossy();
        let of_this_call = ["--resume=", "--take-over=", "--after=", "--restarts=", "--persist="];
        let of_this_call = of_this_call.iter().any(|it| text.starts_with(it));
        let was_name = std::mem::replace(&mut is_name, text == "--persist");
        !(text == "--foreground" || of_this_call || was_name || is_name)
    });
    persist::with_whole_paths(arguments.collect()).into_iter()
}

/// How this server is started again.
pub(super) fn restart(count: u32) -> Result<Restart> {
    let folder = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    Ok(Restart { arguments: arguments().collect(), folder, count })
}

impl Serve {
    pub(super) fn verbosity(&self) -> u8 {
        self.disk.verbosity()
    }

    pub(crate) fn run(&self) -> Result<ExitCode> {
        let (options, restart) = (again::options(), restart(self.restarts)?);
        let ended = match &self.resume {
            Some(id) => attach::resume(id, self.after, options, restart),
            None => attach::serve_in_background(options, self.take_over.as_deref(), restart),
        };
        ended.map(exit_code)
    }
}

impl UdevProperties {
    /// Prints what udev is to know of a device, if it is an attached disk.
    pub(crate) fn run(&self) -> Result<()> {
        let disks = Registry::of_this_user().list()?;
        let disk = disks
            .into_iter()
            .map(|listed| listed.disk)
            .find(|disk| disk.device.as_ref() == Some(&self.device));
        let Some(Attachment { nqn, nsid, uuid, .. }) = disk else { return Ok(()) };
        if let Some(uuid) = uuid {
            line(format_args!("NVMF_UUID={uuid}"))?;
        }
        line(format_args!("NVMF_NQN={nqn}\nNVMF_NSID={nsid}"))
    }
}

impl Guard {
    pub(crate) fn run(&self) -> Result<()> {
        let Self { restarts, folder, arguments } = self;
        attach::guard(&Restart { arguments: arguments.clone(), folder: folder.clone(), count: *restarts })
    }
}

impl Named {
    /// Has the servers of these disks connect again.
    pub(crate) fn reconnect(&self) -> Result<()> {
        self.each(|listed| {
            listed.reconnect()?;
            line(format_args!("connected {}", listed.disk))
        })
    }

    /// Has new servers take these disks over.
    pub(crate) fn upgrade(&self) -> Result<()> {
        self.each(upgrade)
    }

    /// Has the servers of these disks ask their targets again which namespaces there are.
    pub(crate) fn rescan(&self) -> Result<()> {
        self.each(Listed::rescan)
    }

    /// Has the servers of these disks end their connections and connect again.
    pub(crate) fn reset(&self) -> Result<()> {
        self.each(|listed| {
            let but = listed.reset()?.map(|state| format!(": {state}")).unwrap_or_default();
            line(format_args!("connected {}{but}", listed.disk))
        })
    }

    fn each(&self, act: impl Fn(&Listed) -> Result<()>) -> Result<()> {
        for_each(&named(&self.name)?, act)
    }
}

/// The disks that are attached and have this name: a block device, a socket, an NQN. At least one.
pub(super) fn named(name: &OsStr) -> Result<Vec<Listed>> {
    let mut disks = Vec::new();
    for listed in Registry::of_this_user().list()? {
        if is_named(&listed.disk, name) {
            disks.push(listed);
        }
    }
    ensure!(!disks.is_empty(), "no such disk is attached: `nvmf list` shows those that are");
    Ok(disks)
}

/// Whether this names the disk.
pub(super) fn is_named(disk: &Attachment, name: &OsStr) -> bool {
    name == disk.nqn.as_str() || is_at(disk, Path::new(name))
}

/// Whether the disk's device or socket is at this path, which may be relative, or lead over links.
fn is_at(disk: &Attachment, given: &Path) -> bool {
    let path = path(given);
    disk.device.as_ref() == Some(&path) || has_socket(disk, given) || has_socket(disk, &path)
}

/// Does something with each of the disks, and goes on with the others where that fails.
fn for_each(disks: &[Listed], act: impl Fn(&Listed) -> Result<()>) -> Result<()> {
    let mut failures = Vec::new();
    for listed in disks {
        match act(listed) {
            Ok(()) => {}
            Err(error) if error.is::<OutputClosed>() => return Err(error),
            Err(error) => failures.push(format!("{}: {}", listed.disk, chain(&error))),
        }
    }
    let Some((last, others)) = failures.split_last() else { return Ok(()) };
    for failure in others {
        complain(failure);
    }
    bail!("{last}")
}

/// The path that is meant: it may be a link to the node, or relative. One that is in a folder which is gone leads nowhere.
fn path(path: &Path) -> PathBuf {
    path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

pub(super) fn report(format: Format, disk: &Attachment) -> Result<()> {
    if let Some(note) = &disk.note {
        complain(note);
    }
    warn_of_paths(disk);
    if format == Format::Json {
        return print_json(disk.json());
    }
    let (place, whence) = (disk.place().display(), if disk.device.is_some() { "as" } else { "served on" });
    let Attachment { nqn, nsid, block_size, .. } = disk;
    let via = disk.via();
    let size = human(disk.size);
    line(format_args!(
        "{nqn} namespace {nsid}, {size} in blocks of {block_size} bytes, over {via}, {whence}"
    ))?;
    if let Some(uri) = disk.uri() {
        line(format_args!("  {uri}"))?;
        // Only where the kernel has its client.
        let client = if Path::new("/sys/module/nbd").exists() {
            format!("   nbd-client -unix {place} /dev/nbd0 (as root)")
        } else {
            String::new()
        };
        line(format_args!("Use it:  nbdinfo '{uri}'   qemu-img info '{uri}'{client}"))?;
    } else if disk.vhost_user {
        line(format_args!("  {place}"))?;
        line(format_args!(
            "Use it:  qemu-system-x86_64 ... -m 4G -object memory-backend-memfd,id=memory,size=4G,share=on \
             -machine memory-backend=memory -chardev socket,id=disk,path={place},reconnect=1 \
             -device vhost-user-blk-pci,chardev=disk   (QEMU 9.2 and later: reconnect-ms=1000)"
        ))?;
    } else {
        line(format_args!("  {place}"))?;
        line(format_args!("Use it:  lsblk {place}   mkfs.ext4 {place}   mount {place} /mnt"))?;
    }
    line(format_args!("End it:  nvmf detach {place}"))
}

/// Says which of its paths a disk that was just attached is without.
pub(super) fn warn_of_paths(disk: &Attachment) {
    for path in disk.paths.iter().filter(|path| path.state != State::Live) {
        let reason = path.reason.as_deref().unwrap_or("it has not answered yet");
        complain(format_args!(
            "the path over {} is not there: {reason}. It is tried again: see nvmf list-subsys",
            path.address
        ));
    }
}

impl DetachAll {
    pub(super) fn verbosity(&self) -> u8 {
        self.verbosity.level()
    }

    pub(crate) fn run(&self) -> Result<()> {
        let mut disks = Registry::of_this_user().list()?;
        disks.retain(|it| self.transport.is_none_or(|transport| it.disk.transport == transport.name()));
        detach(&disks, self.force)
    }
}

fn detach(disks: &[Listed], force: bool) -> Result<()> {
    for_each(disks, |listed| {
        listed.detach(force)?;
        line(format_args!("detached {}", listed.disk))
    })
}

impl Detach {
    pub(super) fn verbosity(&self) -> u8 {
        self.verbosity.level()
    }

    pub(crate) fn run(&self) -> Result<()> {
        let mut disks = Registry::of_this_user().list()?;
        let name = self.name.as_deref().or(self.device.as_deref());
        let named = name.map(Path::new);
        let file = named.map(path);
        disks.retain(|listed| {
            let disk = &listed.disk;
            let by_nqn = self.nqn.is_some_and(|nqn| disk.nqn == nqn.as_str())
                || name.is_some_and(|name| name == disk.nqn.as_str());
            let is_at = |path: Option<&Path>| path.is_some_and(|path| is_at(disk, path));
            // One that cannot be read has no other name.
            let is_entry = file.as_ref().is_some_and(|file| *file == listed.file());
            let is_meant = self.all
                || is_entry
                || by_nqn
                || is_at(named)
                || (disk.socket.is_some() && is_at(self.socket.as_deref()));
            is_meant && self.nsid.is_none_or(|nsid| nsid == disk.nsid)
        });
        ensure!(self.all || !disks.is_empty(), "no such disk is attached: `nvmf list` shows those that are");
        detach(&disks, self.force)
    }
}
