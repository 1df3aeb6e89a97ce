//! `nvmf doctor --ping` and `--listen`: round trips and bandwidth, in the manner of `ib_write_lat` and `ib_write_bw`.
//!
//! | file | what it holds |
//! |---|---|
//! | `message` | what the ends say to each other |
//! | `line` | a connection: queue pair, memory, posts |
//! | `client` | the end that measures |
//! | `server` | the end that listens |
//! | `report` | the figures |

mod client;
mod line;
mod message;
mod report;
mod server;

use super::ProviderChoice;
use crate::cli::{ERROR_PREFIX, Format, chain, print_json};
use anyhow::{Context, Result, bail};
use client::Plan;
use nvmf_iwarp::{IwarpConfig, IwarpProvider};
use serde_json::json;
use std::net::SocketAddr;
use std::time::Duration;

/// The port when none is named: perftest's.
pub(super) const PORT: u16 = 18515;

#[derive(clap::Args)]
pub(crate) struct PlanArguments {
    /// Bytes of a message, for --ping
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(message::LEN as i64..=line::CHUNK as i64))]
    size: u32,
    /// Round trips at most, for --ping
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    count: u32,
    /// Seconds for each of the six measurements at most, for --ping
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60))]
    time: u32,
}

/// A provider that this program has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Road {
    Iwarp,
}

impl Road {
    fn name(self) -> &'static str {
        match self {
            Self::Iwarp => "iwarp",
        }
    }

    /// Those that were asked for.
    fn chosen(choice: ProviderChoice) -> Result<Vec<Self>> {
        match choice {
            ProviderChoice::Iwarp | ProviderChoice::All => Ok(vec![Self::Iwarp]),
            ProviderChoice::Verbs => bail!("this build has no verbs provider: use --provider iwarp"),
        }
    }

    fn measure(self, address: SocketAddr, plan: &Plan) -> Result<report::Measured> {
        match self {
            Self::Iwarp => client::measure(iwarp()?, address, plan),
        }
    }

    fn serve(self, address: SocketAddr) -> Result<()> {
        match self {
            Self::Iwarp => server::serve(iwarp()?, self.name(), address),
        }
    }
}

fn iwarp() -> Result<IwarpProvider> {
    IwarpProvider::new(IwarpConfig::default()).context("cannot start iwarp")
}

/// Measures over each provider; whether each was reached.
pub(super) fn ping(
    address: SocketAddr,
    choice: ProviderChoice,
    plan: &PlanArguments,
    format: Format,
) -> Result<bool> {
    let plan =
        Plan { size: plan.size as usize, count: plan.count, time: Duration::from_secs(plan.time.into()) };
    let (mut reached, mut pings) = (true, Vec::new());
    for road in Road::chosen(choice)? {
        let name = road.name();
        match (road.measure(address, &plan), format) {
            (Ok(measured), Format::Normal) => {
                println!("{address} over {name}, messages of {} bytes\n{}", plan.size, measured.text());
            }
            (Ok(measured), Format::Json) => {
                pings.push(json!({ "provider": name, "measured": measured.json() }))
            }
            (Err(error), _) => {
                reached = false;
                let error = chain(&error);
                eprintln!("{ERROR_PREFIX}{name}: {error}");
                pings.push(json!({ "provider": name, "error": error }));
            }
        }
    }
    if format == Format::Json {
        print_json(json!({ "address": address, "size": plan.size, "pings": pings }))?;
    }
    Ok(reached)
}

/// Is the other end over each provider, until stopped.
pub(super) fn listen(address: SocketAddr, choice: ProviderChoice) -> Result<()> {
    let roads = Road::chosen(choice)?;
    std::thread::scope(|scope| {
        // A provider belongs to the thread that made it.
        let ends: Vec<_> = roads.into_iter().map(|road| scope.spawn(move || road.serve(address))).collect();
        ends.into_iter()
            .try_for_each(|end| end.join().unwrap_or_else(|_| bail!("the listening end broke down")))
    })
}
