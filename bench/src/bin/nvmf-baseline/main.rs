//! `nvmf-baseline`: the reference measurements of `cargo xtask bench` (bare TCP), its idle connections, its load by a
//! second host or by a process that has nothing to do with it, and its program that reads by the library.
#![forbid(unsafe_code)]

mod bare;
mod exchange;
mod hold;
mod load;
mod neighbour;
mod read;
mod wire;

use clap::Parser;
use std::process::ExitCode;

/// Measures bare TCP between two cores, holds idle connections, loads cores, loads a target with two hosts, and reads by
/// the library. Prints JSON.
#[derive(Parser)]
#[command(name = "nvmf-baseline")]
enum Command {
    /// Measures TCP round trips of the sizes of a 4 KiB read: `round_trip_ns` (`mean`, `p50`, `p99`)
    PingPong {
        #[command(flatten)]
        measure: bare::Measure,
        /// Transport whose messages have these sizes
        #[arg(long, default_value = "iwarp")]
        transport: bare::Imitated,
    },
    /// Measures TCP exchanges of the bytes of several outstanding 4 KiB reads: `exchanges_per_second`
    Exchange {
        #[command(flatten)]
        measure: bare::Measure,
        /// Transport whose messages have these sizes
        #[arg(long, default_value = "iwarp")]
        transport: bare::Imitated,
        /// Outstanding reads
        #[arg(long, default_value_t = 32)]
        iodepth: u16,
        /// Size of the memory whose blocks are read, bytes: one block stays in the processor's cache
        #[arg(long, default_value_t = 64 << 20)]
        disk: usize,
    },
    /// Measures TCP throughput in one direction: `bytes_per_second`
    Stream(bare::Measure),
    /// Keeps cores busy until standard input ends
    Load(load::Load),
    /// Connects idle hosts and holds the connections until standard input ends
    Hold(Box<hold::Hold>),
    /// Measures a host with few outstanding reads next to one with many: `short` and `heavy`
    Neighbour(Box<neighbour::Neighbour>),
    /// Reads a disk by the library into a program's own memory: `seconds`
    Read(Box<read::Read>),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::PingPong { measure, transport } => measure.print_ping_pong(transport),
        Command::Exchange { measure, transport, iodepth, disk } => {
            measure.print_exchange(transport, iodepth, disk)
        }
        Command::Load(load) => load.run(),
        Command::Stream(measure) => measure.print_stream(),
        Command::Hold(hold) => hold.run(),
        Command::Neighbour(neighbour) => neighbour.run(),
        Command::Read(read) => read.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvmf-baseline: {error:#}");
            ExitCode::FAILURE
        }
    }
}
