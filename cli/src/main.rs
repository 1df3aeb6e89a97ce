//! `nvmf`: discover, attach, detach, list; and read, write and identify without attaching.
#![recursion_limit = "256"]

mod attach;
mod command;
mod connect;
mod doctor;
mod log;
mod namespace;
mod print;
mod runtime;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    command::Arguments::parse().run()
}
