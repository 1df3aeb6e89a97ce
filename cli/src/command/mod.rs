//! The command line. Its flags are nvme-cli's where nvme-cli has them.

mod attach;
mod compare;
mod discover;
mod doctor;
mod identify;
mod list;
mod nvm;
mod smart_log;
mod target;
mod transfer;

use anyhow::Result;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

use target::TargetArguments;

#[derive(Parser)]
#[command(name = "nvmf", version, about = "Uses NVMe over Fabrics (RDMA) disks from user space")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Asks a target what it exports
    Discover(discover::Discover),
    /// Gives this machine a disk: makes a namespace a block device, or serves it on an NBD socket
    Attach(attach::Attach),
    /// Takes a disk away
    Detach(attach::Detach),
    /// Lists the disks that are attached
    List(list::List),
    /// Shows what a controller says of itself
    IdCtrl(identify::IdCtrl),
    /// Shows what a controller says of a namespace
    IdNs(identify::IdNs),
    /// Shows the SMART / Health log of a controller
    SmartLog(smart_log::SmartLogArguments),
    /// Copies from a namespace to a file or pipe
    Read(transfer::Read),
    /// Copies from a file or pipe to a namespace
    Write(transfer::Write),
    /// Makes durable what was written to a namespace
    Flush(nvm::Flush),
    /// Gives up ranges of a namespace (Dataset Management: deallocate)
    Dsm(nvm::Dsm),
    /// Makes a range of a namespace read as zeroes
    WriteZeroes(nvm::WriteZeroes),
    /// Compares a range of a namespace with a file: 0 equal, 1 different, 2 not found out
    Compare(compare::Compare),
    /// Examines this machine: RDMA devices, limits, counters, and what mends them
    Doctor(doctor::Doctor),
    /// Prints this host's NQN
    ShowHostnqn,
    /// Prints a new host NQN
    GenHostnqn,
    /// Serves an attached disk (what `attach` starts)
    #[command(hide = true)]
    Serve(attach::Serve),
    /// Takes an nbd device away when its server is gone (what `attach` starts)
    #[command(hide = true)]
    Guard(attach::Guard),
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
    /// Runs the command; the exit status that it ends with.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let filter = EnvFilter::try_from_env("NVMF_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_target(false)
            .with_ansi(std::io::stderr().is_terminal())
            .init();
        match self.command {
            Command::Doctor(doctor) => return Ok(doctor.run()),
            Command::Compare(compare) => return Ok(compare.run()),
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
            Command::ShowHostnqn => {
                println!("{}", nvmf_initiator::HostIdentity::of_this_machine()?.nqn);
                Ok(())
            }
            Command::GenHostnqn => {
                println!("{}", nvmf_initiator::HostIdentity::generate()?.nqn);
                Ok(())
            }
        }?;
        Ok(ExitCode::SUCCESS)
    }
}
