//! `nvmf-baseline`: what `cargo xtask bench` holds our figures against, the idle connections that it counts, and the heavy load that
//! it lets loose on a neighbour.
#![forbid(unsafe_code)]

mod bare;
mod hold;
mod neighbour;
mod wire;

use clap::Parser;
use std::process::ExitCode;

/// Bare TCP between two cores, busy polling; connections that do nothing, and ones that do too much. Figures are printed as JSON.
#[derive(Parser)]
#[command(name = "nvmf-baseline")]
enum Command {
    /// Round trips of the sizes of a 4 KiB read: `round_trip_ns` (`mean`, `p50`, `p99`)
    PingPong(bare::Measure),
    /// Bytes one way: `bytes_per_second`
    Stream(bare::Measure),
    /// Connects hosts that then do nothing, until the standard input ends
    Hold(Box<hold::Hold>),
    /// One host that reads 4 KiB at a time beside one that heavies: `short` and `heavy`
    Neighbour(Box<neighbour::Neighbour>),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::PingPong(measure) => measure.print_ping_pong(),
        Command::Stream(measure) => measure.print_stream(),
        Command::Hold(hold) => hold.run(),
        Command::Neighbour(neighbour) => neighbour.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvmf-baseline: {error:#}");
            ExitCode::FAILURE
        }
    }
}
