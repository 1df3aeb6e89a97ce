//! The project's development commands: `cargo xtask demo`, `test`, `teeth`, `sim`, `fuzz`, `hostile`, `sanitize`, `soak`, `crash`, `lab`, `ceph`, `bench` and `dist`.
#![forbid(unsafe_code)]

mod bench;
mod ceph;
mod demo;
mod dist;
mod fuzz;
mod hostile;
mod lab;
mod packages;
mod publishable;
mod sanitize;
mod sim;
mod soak;
mod step;
mod teeth;
mod test;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's development commands")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Demonstrates the main use: exports a file system image and uses it from another process
    Demo(demo::Demo),
    /// Runs all checks: format, clippy, rustdoc, licences, tests and the fuzz corpus
    Test(test::Test),
    /// Breaks promises on purpose, one at a time, and sees that a test fails for each
    Teeth(teeth::Teeth),
    /// Runs seeds of the simulation, and counts which faults met which operations
    Sim(sim::Sim),
    /// Runs the fuzz targets (needs a nightly toolchain and cargo-fuzz)
    Fuzz(fuzz::Fuzz),
    /// Does what hostile peers can do to a target, for a time, and measures honest hosts beside it
    Hostile(hostile::Hostile),
    /// Runs tests with the address or the thread sanitizer (needs a nightly toolchain)
    Sanitize(sanitize::Sanitize),
    /// Runs the programs for hours under verified load, reconfigured, restarted and killed, and judges what they take
    Soak(soak::Soak),
    /// Kills targets and servers of disks at random times under verified load
    Crash(soak::Crash),
    /// Runs scenarios against a stock Linux kernel in a virtual machine
    Lab(lab::Lab),
    /// Runs checks against a real Ceph cluster, started for the time from Debian's packages
    Ceph(ceph::Ceph),
    /// Benchmarks against bare TCP, fio, nbdkit, qemu-nbd and SPDK, if installed, and updates docs/PERFORMANCE.md
    Bench(bench::Bench),
    /// Makes Debian packages, and an image for containers, in .build/dist
    Dist(dist::Dist),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Demo(demo) => demo.run(),
        Command::Test(test) => test.run(),
        Command::Teeth(teeth) => teeth.run(),
        Command::Sim(sim) => sim.run(),
        Command::Fuzz(fuzz) => fuzz.run(),
        Command::Hostile(hostile) => hostile.run(),
        Command::Sanitize(sanitize) => sanitize.run(),
        Command::Soak(soak) => soak.run(),
        Command::Crash(crash) => crash.run(),
        Command::Lab(lab) => lab.run(),
        Command::Ceph(ceph) => ceph.run(),
        Command::Bench(bench) => bench.run(),
        Command::Dist(dist) => dist.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nfailed: {error:#}");
            ExitCode::FAILURE
        }
    }
}
