//! The command line. Its flags are nvme-cli's where nvme-cli has them.
//!
//! In commands that read, write or destroy ranges, nvme-cli has other meanings for `-s`, `-c`, `-d` and `-f`. There the
//! options of the connection have their long names only.

mod attach;
mod compare;
mod dhchap_key;
mod discover;
mod doctor;
mod identify;
mod list;
mod nvm;
mod refused;
mod smart_log;
mod target;
mod tls_key;
mod transfer;

use crate::print::{ERROR_PREFIX, OutputClosed, WrongArguments, chain, line, wrong_arguments};
use anyhow::Result;
use clap::{Arg, Args, Parser, Subcommand, ValueEnum};
use nvmf_initiator::HostIdentity;
use std::ffi::OsString;
use std::process::ExitCode;

use target::TargetArguments;

#[derive(Parser)]
#[command(name = "nvmf", version, about = "Uses NVMe over Fabrics (RDMA, TCP) disks from user space")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Asks a target what it exports
    Discover(discover::Discover),
    /// Attaches a namespace: as a block device, or on an NBD socket
    Attach(attach::Attach),
    /// Detaches a disk, flushed
    Detach(attach::Detach),
    /// Lists the disks that are attached
    List(list::List),
    /// Shows a controller's Identify data
    IdCtrl(identify::IdCtrl),
    /// Shows a namespace's Identify data
    IdNs(identify::IdNs),
    /// Shows the SMART / Health log of a controller
    SmartLog(smart_log::SmartLogArguments),
    /// Copies from a namespace to a file or pipe
    #[command(mut_args(without_short))]
    Read(transfer::Read),
    /// Copies from a file or pipe to a namespace
    #[command(mut_args(without_short))]
    Write(transfer::Write),
    /// Flushes a namespace: what was written is durable afterwards
    Flush(nvm::Flush),
    /// Deallocates ranges of a namespace (Dataset Management)
    #[command(mut_args(without_short))]
    Dsm(nvm::Dsm),
    /// Makes a range of a namespace read as zeroes
    #[command(mut_args(without_short))]
    WriteZeroes(nvm::WriteZeroes),
    /// Compares a range of a namespace with a file: exit status 0 equal, 1 different, 2 error
    #[command(mut_args(without_short))]
    Compare(compare::Compare),
    /// Examines this machine and the way to a target, and says how to fix what is wrong
    Doctor(doctor::Doctor),
    /// Makes a key for TLS over NVMe/TCP
    GenTlsKey(tls_key::GenTlsKey),
    /// Checks a key for TLS, and prints its identity
    CheckTlsKey(tls_key::CheckTlsKey),
    /// Prints this host's NQN
    ShowHostnqn,
    /// Prints a new host NQN
    GenHostnqn,
    /// nvme-cli's name for `attach`
    #[command(hide = true, alias = "connect-all", disable_help_flag = true)]
    Connect(OtherName),
    /// nvme-cli's name for `detach`
    #[command(hide = true, alias = "disconnect-all", disable_help_flag = true)]
    Disconnect(OtherName),
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
    /// Takes an nbd device away when its server is gone (what `attach` starts)
    #[command(hide = true)]
    Guard(attach::Guard),
}

/// What follows a command of nvme-cli that has another name here.
#[derive(Args)]
struct OtherName {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _arguments: Vec<OsString>,
}

/// A flag of the connection without its short name, where that has another meaning.
fn without_short(argument: Arg) -> Arg {
    match argument.get_id().as_str() {
        "trsvcid" | "reconnect_delay" | "host_iface" | "disable_sqflow" => argument.short(None),
        _ => argument,
    }
}

/// How results are printed.
#[derive(Args, Clone, Copy)]
struct Output {
    /// How to print
    #[arg(short = 'o', long = "output-format", value_enum, default_value_t = Format::Normal)]
    format: Format,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Format {
    Normal,
    Json,
}

impl Arguments {
    /// Runs the command; the exit status that it ends with: 0 for success, 1 for failure, 2 for wrong arguments.
    /// `compare` and `doctor` have meanings of their own.
    pub(crate) fn run(self) -> ExitCode {
        crate::log::start();
        let outcome = match self.command {
            Command::Doctor(doctor) => return exit(doctor.run(), doctor::UNKNOWN),
            Command::Compare(compare) => return exit(compare.run(), compare::UNKNOWN),
            Command::Discover(discover) => discover.run(),
            Command::Attach(attach) => attach.run(),
            Command::Detach(detach) => detach.run(),
            Command::List(list) => list.run(),
            Command::IdCtrl(identify) => identify.run(),
            Command::IdNs(identify) => identify.run(),
            Command::SmartLog(smart_log) => smart_log.run(),
            Command::Read(read) => read.run(),
            Command::Write(write) => write.run(),
            Command::Flush(flush) => flush.run(),
            Command::Dsm(dsm) => dsm.run(),
            Command::WriteZeroes(write_zeroes) => write_zeroes.run(),
            Command::Serve(serve) => serve.run(),
            Command::Guard(guard) => guard.run(),
            Command::Connect(_) => wrong_arguments(
                "the command is `nvmf attach`; it takes nvme-cli's options (one namespace at a time, with --nsid)",
            ),
            Command::Disconnect(_) => wrong_arguments(
                "the command is `nvmf detach DEVICE`, or -n NQN, or --all; `nvmf list` shows what is attached",
            ),
            Command::GenDhchapKey(key) => key.run(),
            Command::CheckDhchapKey(key) => key.run(),
            Command::TlsKey(_) => wrong_arguments(
                "the commands are `nvmf gen-tls-key` and `nvmf check-tls-key`, which put keys into the keyring with \
                 --insert; /proc/keys lists those that are there",
            ),
            Command::GenTlsKey(key) => key.run(),
            Command::CheckTlsKey(key) => key.run(),
            Command::ShowHostnqn => show_hostnqn(),
            Command::GenHostnqn => gen_hostnqn(),
        };
        exit(outcome.map(|()| ExitCode::SUCCESS), FAILURE)
    }
}

/// Exit status when the command could not do what was asked.
const FAILURE: u8 = 1;
/// Exit status for wrong arguments, as clap's.
const USAGE: u8 = 2;
/// Exit status when the standard output is closed: that of a program that SIGPIPE ends.
const OUTPUT_CLOSED: u8 = 128 + 13;

/// The exit status of a command; prints why it failed.
fn exit(outcome: Result<ExitCode>, failure: u8) -> ExitCode {
    match outcome {
        Ok(status) => status,
        Err(error) if error.is::<OutputClosed>() => OUTPUT_CLOSED.into(),
        Err(error) => {
            eprintln!("{ERROR_PREFIX}{}", chain(&error));
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
