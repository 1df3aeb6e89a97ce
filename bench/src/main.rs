//! The `nvmf-bench` command.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
