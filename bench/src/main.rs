//! The `nvmf-bench` command.
#![forbid(unsafe_code)]

fn main() {}
