//! The command line. Its flags are nvme-cli's where nvme-cli has them.
//!
//! Where nvme-cli has another meaning for a short name of the connection's options, that option has its long name only.
//! `-t`, `-a`, `-n`, `-w` and `-S` are always the connection's, and `-s` is refused where it is not.

mod again;
mod attach;
mod blocks;
mod compare;
mod connect;
mod connect_all;
mod dhchap_key;
mod discover;
mod doctor;
mod human;
mod identify;
mod info;
mod list;
mod list_subsys;
mod lists;
mod nvm;
mod of_disk;
mod output;
mod path;
mod persist;
mod raw;
mod refused;
mod serve_vhost;
mod show_regs;
mod smart_log;
mod target;
mod tls_key;
mod top;
mod transfer;
mod upgrade;
mod waiting;

use crate::discovery::given;
use crate::print::{self, OutputClosed, WrongArguments, chain, complain, line, wrong_arguments};
use anyhow::Result;
use clap::builder::Resettable::Reset;
use clap::error::{ContextKind, ContextValue};
use clap::{Arg, Args, CommandFactory, Parser, Subcommand};
use nvmf_initiator::HostIdentity;
use std::ffi::OsString;
use std::process::ExitCode;

pub(crate) use dhchap_key::is_secret;
use output::{Format, Output, PageOutput, Verbosity};
pub(crate) use path::{OPTIONS as PATH_OPTIONS, OwnOptions, PathArgument};
pub(crate) use target::{DISCOVERY_PORT, Further, PORT, TargetArguments};

#[derive(Parser)]
#[command(
    name = "nvmf",
    version,
    about = "Uses NVMe over Fabrics (RDMA, TCP) disks from user space",
    mut_subcommands(of_disk::with_disk)
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Asks discovery controllers what they list: the one at an address, else those in nvme-cli's files
    #[command(mut_arg("traddr", |argument| argument.required_unless_present(Reset)))]
    Discover(discover::Discover),
    /// Attaches every namespace of every subsystem that discovery controllers list, with all paths
    #[command(mut_arg("traddr", |argument| argument.required_unless_present(Reset)))]
    ConnectAll(connect_all::ConnectAll),
    /// Stays connected to discovery controllers: attaches what they list, and detaches what they list no more
    #[command(mut_arg("traddr", |argument| argument.required_unless_present(Reset)))]
    Discoverd(connect_all::Discoverd),
    /// Attaches a namespace: as a block device, or on an NBD socket
    Attach(attach::Attach),
    /// Attaches every namespace of a subsystem that this host sees; with --nsid, --socket, --persist or --foreground, one
    Connect(connect::Connect),
    /// Serves a namespace as the disk of a virtual machine (vhost-user-blk), from this process until it is stopped
    ServeVhost(serve_vhost::ServeVhost),
    /// Detaches a disk, flushed
    #[command(visible_alias = "disconnect")]
    Detach(attach::Detach),
    /// Connects attached disks again now, also those whose target was given up
    Reconnect(attach::Named),
    /// Has attached disks use further paths to their subsystem, from now on
    AddPath(attach::AddPath),
    /// Has attached disks served by the version that is installed now, while they are used
    Upgrade(attach::Named),
    /// Lists the disks that are attached
    List(list::List),
    /// Lists the subsystems of attached disks, with their namespaces, controllers and paths
    ListSubsys(list_subsys::ListSubsys),
    /// Shows all that is known of an attached disk, and what it has done
    Info(info::Info),
    /// Shows what attached disks do, and how fast
    Top(top::Top),
    /// Has attached disks' targets asked again which namespaces there are
    #[command(visible_alias = "rescan")]
    NsRescan(attach::Named),
    /// Ends the connections of attached disks, and connects again; I/O waits meanwhile
    Reset(attach::Named),
    /// Shows a controller's Identify data
    IdCtrl(identify::IdCtrl),
    /// Shows a namespace's Identify data
    IdNs(identify::IdNs),
    /// Lists the namespaces that a controller has
    ListNs(lists::ListNs),
    /// Lists the controllers of a subsystem, or those that have a namespace
    ListCtrl(lists::ListCtrl),
    /// Shows the names of a namespace (Namespace Identification Descriptors)
    NsDescs(lists::NsDescs),
    /// Shows the properties of a controller, under the registers' names
    ShowRegs(show_regs::ShowRegs),
    /// Shows the SMART / Health log of a controller
    SmartLog(smart_log::SmartLogArguments),
    /// Shows a log page, byte by byte
    #[command(mut_args(without_short("sil")), arg(refused::no_port("--lsp")))]
    GetLog(raw::GetLog),
    /// Shows how namespaces are reached through this controller (Asymmetric Namespace Access)
    #[command(mut_args(without_short("g")))]
    AnaLog(raw::AnaLog),
    /// Shows the Error Information log of the controller that this command connects to
    ///
    /// Each command is a controller of its own, and each controller has its own log: a target that keeps it so, as
    /// nvmf-target does, shows no errors of other connections, nor of `nvmf attach`.
    ErrorLog(raw::ErrorLog),
    /// Shows which commands a controller has, and what they do (Commands Supported and Effects)
    #[command(mut_args(without_short("c")))]
    EffectsLog(raw::EffectsLog),
    /// Shows a feature
    #[command(mut_args(without_short("sflc")), arg(refused::no_port("--sel")))]
    GetFeature(raw::GetFeature),
    /// Sets a feature of the controller, for as long as this command is connected, or of a namespace
    #[command(mut_args(without_short("sfldc")), arg(refused::no_port("--save")))]
    SetFeature(raw::SetFeature),
    /// Registers this host with a namespace's reservations
    #[command(mut_args(without_short("cki")))]
    ResvRegister(raw::Register),
    /// Acquires a reservation, or preempts others
    #[command(mut_args(without_short("ci")))]
    ResvAcquire(raw::Acquire),
    /// Releases or clears a reservation
    #[command(mut_args(without_short("ci")))]
    ResvRelease(raw::Release),
    /// Shows who is registered, and which reservation is held
    #[command(mut_args(without_short("d")))]
    ResvReport(raw::Report),
    /// Copies blocks within a namespace; the data stay at the target
    #[command(mut_args(without_short("sdfl")), arg(refused::no_port("--slbs")))]
    Copy(raw::Copy),
    /// Sends any Admin command
    #[command(mut_args(without_short("sfldiT")), arg(refused::no_port("--show-command")))]
    AdminPassthru(raw::AdminPassthru),
    /// Sends any I/O command with up to 1 KiB of data
    #[command(mut_args(without_short("sfldiT")), arg(refused::no_port("--show-command")))]
    IoPassthru(raw::IoPassthru),
    /// Copies from a namespace to a file or pipe
    #[command(mut_args(without_short("scfd")))]
    Read(transfer::Read),
    /// Copies from a file or pipe to a namespace
    #[command(mut_args(without_short("scfd")))]
    Write(transfer::Write),
    /// Flushes a namespace: what was written is durable afterwards
    Flush(nvm::Flush),
    /// Deallocates ranges of a namespace (Dataset Management)
    #[command(mut_args(without_short("scfd")))]
    Dsm(nvm::Dsm),
    /// Makes a range of a namespace read as zeroes
    #[command(mut_args(without_short("scfd")))]
    WriteZeroes(nvm::WriteZeroes),
    /// Compares a range of a namespace with a file: exit status 0 equal, 1 different, 2 error
    #[command(mut_args(without_short("scfd")))]
    Compare(compare::Compare),
    /// Examines this machine and the way to a target, and says how to fix what is wrong
    Doctor(doctor::Doctor),
    /// Makes a key for TLS over NVMe/TCP
    GenTlsKey(tls_key::GenTlsKey),
    /// Checks a key for TLS, and prints its identity
    CheckTlsKey(tls_key::CheckTlsKey),
    /// Prints the version of this program
    Version,
    /// Prints this host's NQN
    ShowHostnqn,
    /// Prints a new host NQN
    GenHostnqn,
    /// Detaches every disk, flushed
    DisconnectAll(attach::DetachAll),
    /// Makes a secret for DH-HMAC-CHAP
    GenDhchapKey(dhchap_key::GenDhchapKey),
    /// Checks a secret for DH-HMAC-CHAP
    CheckDhchapKey(dhchap_key::CheckDhchapKey),
    /// nvme-cli's keys in the keyring
    #[command(hide = true, disable_help_flag = true)]
    TlsKey(OtherName),
    /// Serves an attached disk (what `attach` starts)
    #[command(hide = true)]
    Serve(attach::Serve),
    /// Prints what udev is to know of a device
    #[command(hide = true)]
    UdevProperties(attach::UdevProperties),
    /// Starts the server of an attached disk again when that was killed (what `attach` starts)
    #[command(hide = true)]
    Guard(attach::Guard),
}

/// What follows a command of nvme-cli that has another name here.
#[derive(Args)]
struct OtherName {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _arguments: Vec<OsString>,
}

/// Takes the short names in `letters` from the flags of the connection: they have other meanings.
fn without_short(letters: &'static str) -> impl Fn(Arg) -> Arg {
    move |argument| {
        let is_of_connection = matches!(
            argument.get_id().as_str(),
            "trsvcid"
                | "reconnect_delay"
                | "host_iface"
                | "disable_sqflow"
                | "nr_io_queues"
                | "keep_alive_tmo"
                | "ctrl_loss_tmo"
                | "hdr_digest"
                | "tos"
        );
        let is_taken = is_of_connection && argument.get_short().is_some_and(|short| letters.contains(short));
        if is_taken { argument.short(None) } else { argument }
    }
}

impl Arguments {
    /// Runs the command; the exit status that it ends with: 0 for success, 1 for failure, 2 for wrong arguments.
    /// `compare` and `doctor` have meanings of their own.
    pub(crate) fn run(self) -> ExitCode {
        let prints = matches!(self.command, Command::ConnectAll(_));
        crate::log::start(self.command.verbosity(), prints);
        if self.command.dumps() {
            print::leave_output_to_a_document();
        }
        let outcome = match self.command {
            Command::Doctor(doctor) => return exit(doctor.run(), doctor::UNKNOWN),
            Command::Compare(compare) => return exit(compare.run(), compare::UNKNOWN),
            Command::Discover(discover) => discover.run(),
            Command::ConnectAll(all) => return exit(all.run(), FAILURE),
            Command::Discoverd(service) => service.run(),
            Command::Attach(attach) => return exit(attach.run(), FAILURE),
            Command::Connect(connect) => return exit(connect.run(), FAILURE),
            Command::ServeVhost(serve) => return exit(serve.run(), FAILURE),
            Command::Serve(serve) => return exit(serve.run(), FAILURE),
            Command::Reconnect(named) => named.reconnect(),
            Command::AddPath(add) => add.run(),
            Command::Upgrade(named) => named.upgrade(),
            Command::Detach(detach) => detach.run(),
            Command::List(list) => list.run(),
            Command::ListSubsys(list) => list.run(),
            Command::Info(info) => info.run(),
            Command::Top(top) => top.run(),
            Command::NsRescan(named) => named.rescan(),
            Command::Reset(named) => named.reset(),
            Command::IdCtrl(identify) => identify.run(),
            Command::IdNs(identify) => identify.run(),
            Command::ListNs(list) => list.run(),
            Command::ListCtrl(list) => list.run(),
            Command::NsDescs(descriptors) => descriptors.run(),
            Command::ShowRegs(regs) => regs.run(),
            Command::SmartLog(smart_log) => smart_log.run(),
            Command::GetLog(log) => log.run(),
            Command::AnaLog(log) => log.run(),
            Command::ErrorLog(log) => log.run(),
            Command::EffectsLog(log) => log.run(),
            Command::GetFeature(feature) => feature.run(),
            Command::SetFeature(feature) => feature.run(),
            Command::ResvRegister(register) => register.run(),
            Command::ResvAcquire(acquire) => acquire.run(),
            Command::ResvRelease(release) => release.run(),
            Command::ResvReport(report) => report.run(),
            Command::Copy(copy) => copy.run(),
            Command::AdminPassthru(passthru) => passthru.run(),
            Command::IoPassthru(passthru) => passthru.run(),
            Command::Read(read) => read.run(),
            Command::Write(write) => write.run(),
            Command::Flush(flush) => flush.run(),
            Command::Dsm(dsm) => dsm.run(),
            Command::WriteZeroes(write_zeroes) => write_zeroes.run(),
            Command::Guard(guard) => guard.run(),
            Command::UdevProperties(device) => device.run(),
            Command::DisconnectAll(all) => all.run(),
            Command::GenDhchapKey(key) => key.run(),
            Command::CheckDhchapKey(key) => key.run(),
            Command::TlsKey(_) => wrong_arguments(
                "the commands are `nvmf gen-tls-key` and `nvmf check-tls-key`, which put keys into the keyring with \
                 --insert; /proc/keys lists those that are there",
            ),
            Command::GenTlsKey(key) => key.run(),
            Command::CheckTlsKey(key) => key.run(),
            Command::Version => line(format_args!("nvmf version {}", env!("CARGO_PKG_VERSION"))),
            Command::ShowHostnqn => show_hostnqn(),
            Command::GenHostnqn => gen_hostnqn(),
        };
        exit(outcome.map(|()| ExitCode::SUCCESS), FAILURE)
    }
}

impl Command {
    /// How much more than usual is said.
    fn verbosity(&self) -> u8 {
        match self {
            Self::Attach(attach) => attach.verbosity(),
            Self::Connect(connect) => connect.verbosity(),
            Self::ConnectAll(all) => all.verbosity(),
            Self::Detach(detach) => detach.verbosity(),
            Self::DisconnectAll(all) => all.verbosity(),
            Self::Discover(discover) => discover.verbosity(),
            Self::Serve(serve) => serve.verbosity(),
            Self::ServeVhost(serve) => serve.verbosity(),
            _ => 0,
        }
    }

    /// Whether the standard output is for nvme-cli's `config.json`.
    fn dumps(&self) -> bool {
        match self {
            Self::Attach(attach) => attach.dumps(),
            Self::Connect(connect) => connect.dumps(),
            Self::ConnectAll(all) => all.dumps(),
            Self::Discover(discover) => discover.dumps(),
            _ => false,
        }
    }
}

/// The arguments of this call, with those of the files that it names.
pub(crate) fn expand(arguments: Vec<OsString>) -> Result<Vec<OsString>> {
    connect::expand(persist::expand(of_disk::expand(arguments)?)?)
}

/// The options of this call for a connection, by their long names, but for those that say where the controller is.
fn given_options() -> Vec<String> {
    let arguments = expand(std::env::args_os().collect()).unwrap_or_default();
    let matches = Arguments::command().get_matches_from(arguments);
    matches.subcommand().map(|(_, matches)| given(matches)).unwrap_or_default()
}

/// Exit status when the command could not do what was asked.
const FAILURE: u8 = 1;
/// Exit status for wrong arguments, as clap's.
const USAGE: u8 = 2;
/// Exit status when the standard output is closed: that of a program that SIGPIPE ends.
const OUTPUT_CLOSED: u8 = 128 + 13;

/// The exit status of a call whose arguments cannot be read; prints why.
pub(crate) fn refuse(error: anyhow::Error) -> ExitCode {
    exit(Err(error), FAILURE)
}

/// Prints what is wrong with the command line, or what it asks to be told of itself (`--help`); the exit status.
pub(crate) fn answer(mut answer: clap::Error) -> ExitCode {
    // That an option which is not known could be the name of a file helps nobody.
    if let Some(ContextValue::StyledStrs(tips)) = answer.get(ContextKind::Suggested)
        && tips.iter().any(|tip| tip.to_string().contains("to pass"))
    {
        answer.remove(ContextKind::Suggested);
    }
    let printed = answer.print();
    match answer.use_stderr() {
        true => USAGE.into(),
        false => exit(print::printed(printed).map(|()| ExitCode::SUCCESS), FAILURE),
    }
}

/// The exit status of a command; prints why it failed.
fn exit(outcome: Result<ExitCode>, failure: u8) -> ExitCode {
    match outcome {
        Ok(status) => status,
        Err(error) if error.is::<OutputClosed>() => OUTPUT_CLOSED.into(),
        Err(error) => {
            complain(chain(&error));
            if error.is::<WrongArguments>() { USAGE.into() } else { failure.into() }
        }
    }
}

fn show_hostnqn() -> Result<()> {
    line(HostIdentity::of_this_machine()?.nqn)
}

fn gen_hostnqn() -> Result<()> {
    line(HostIdentity::generate()?.nqn)
}
