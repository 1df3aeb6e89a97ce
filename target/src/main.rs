//! nvmf-target: exports disks and files over NVMe/RDMA.
#![forbid(unsafe_code)]

use clap::Parser;
use nvmf_target::cli::{self, Cli, NotWell};
use nvmf_target::log;
use nvmf_target::sockets::Sockets;
use std::io::Write;
use std::process::ExitCode;

/// The exit status of `ctl status --check` where something is not well.
const NOT_WELL: u8 = 3;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(answer) => return cli::answer(&answer),
    };
    // Before there is another thread.
    let sockets = Sockets::of_this_process();
    let log = log::start();
    let done = cli::run(&cli, sockets);
    // Writes what was logged before the error.
    drop(log);
    let status = match done {
        Ok(()) => 0,
        Err(error) => {
            log::say(format_args!("nvmf-target: {error:#}"));
            if error.is::<NotWell>() { NOT_WELL } else { 1 }
        }
    };
    // What cannot be written now, nobody reads.
    let _ = std::io::stdout().flush();
    nvmf_rados::end_process(status);
    ExitCode::from(status)
}
