//! The project's own commands: `cargo xtask demo`, `cargo xtask test`, `cargo xtask fuzz`, `cargo xtask lab`, `cargo xtask bench`.
#![forbid(unsafe_code)]

mod bench;
mod demo;
mod fuzz;
mod lab;
mod packages;
mod step;
mod test;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own commands")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the main job on this machine: exports a file system image and uses it from another process
    Demo(demo::Demo),
    /// Passes every test: format, clippy, rustdoc, licences, unit, property, conformance, integration, fuzz corpus
    Test(test::Test),
    /// Fuzzes every target for a while (needs a nightly toolchain and cargo-fuzz)
    Fuzz(fuzz::Fuzz),
    /// The kernel lab: scenarios with a stock Linux kernel as the peer, in a guest of this machine
    Lab(lab::Lab),
    /// Measures against bare TCP, fio, nbdkit, qemu-nbd and SPDK, as far as they are here; writes the table of docs/PERFORMANCE.md
    Bench(bench::Bench),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Demo(demo) => demo.run(),
        Command::Test(test) => test.run(),
        Command::Fuzz(fuzz) => fuzz.run(),
        Command::Lab(lab) => lab.run(),
        Command::Bench(bench) => bench.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nfailed: {error:#}");
            ExitCode::FAILURE
        }
    }
}
