//! `nvmf-yardstick`: what `cargo xtask bench` holds our figures against, and the idle connections that it counts.
#![forbid(unsafe_code)]

mod bare;
mod hold;
mod wire;

use clap::Parser;
use std::process::ExitCode;

/// Bare TCP between two cores, busy polling; connections that do nothing. Figures are printed as JSON.
#[derive(Parser)]
#[command(name = "nvmf-yardstick")]
enum Command {
    /// Round trips of the sizes of a 4 KiB read: `round_trip_ns` (`mean`, `p50`, `p99`)
    PingPong(bare::Measure),
    /// Bytes one way: `bytes_per_second`
    Stream(bare::Measure),
    /// Connects hosts that then do nothing, until the standard input ends
    Hold(Box<hold::Hold>),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::PingPong(measure) => measure.print_ping_pong(),
        Command::Stream(measure) => measure.print_stream(),
        Command::Hold(hold) => hold.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvmf-yardstick: {error:#}");
            ExitCode::FAILURE
        }
    }
}
