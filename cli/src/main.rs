//! `nvmf`: discover, attach, detach, list; and read, write and identify without attaching.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    nvmf_cli::main()
}
