//! nvmf-target: exports disks and files over NVMe/RDMA.
#![forbid(unsafe_code)]

use clap::Parser;
use nvmf_target::cli::{self, Cli};
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    log_to_stderr();
    match cli::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvmf-target: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// `RUST_LOG` says how much. The journal has its own times, and shows no colours.
fn log_to_stderr() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_target(false).with_writer(std::io::stderr);
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        log.with_ansi(false).without_time().init();
    } else {
        log.with_ansi(std::io::stderr().is_terminal()).init();
    }
}
