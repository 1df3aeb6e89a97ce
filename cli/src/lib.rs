//! The command `nvmf`: discover, attach, detach, list; and read, write and identify without attaching.
//!
//! A library only so that its manual pages and completions are made from the command line that it has.
#![recursion_limit = "256"]
// What is printed goes through `print`: these macros panic where the output is full or closed.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod attach;
mod command;
mod connect;
mod discovery;
mod doctor;
mod interrupt;
mod log;
mod namespace;
mod print;
mod runtime;

use clap::{CommandFactory, Parser};
use std::process::ExitCode;

/// Does what the command line says; the exit status of the process.
#[must_use]
pub fn main() -> ExitCode {
    match command::expand(std::env::args_os().collect()) {
        Ok(arguments) => match command::Arguments::try_parse_from(arguments) {
            Ok(arguments) => arguments.run(),
            Err(answer) => command::answer(answer),
        },
        Err(error) => command::refuse(error),
    }
}

/// The command line.
#[must_use]
pub fn command_line() -> clap::Command {
    command::Arguments::command()
}
