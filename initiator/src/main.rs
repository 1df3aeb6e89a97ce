//! `nvmf`: discover, attach, detach, list; and read, write and identify without attaching.
#![recursion_limit = "256"]

mod attach;
mod cli;
mod doctor;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::Arguments::parse().run() {
        Ok(status) => status,
        Err(error) => {
            eprintln!("{}{}", cli::ERROR_PREFIX, cli::chain(&error));
            ExitCode::FAILURE
        }
    }
}
