//! `cargo xtask sim`: runs seeds of a simulation, and prints which faults met which operations, or steps.

use crate::step;
use anyhow::{Result, bail};
use core::ops::Range;
use std::time::{Duration, Instant};

/// Seeds between two looks at the clock.
const ROUND: u64 = 2000;

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Which {
    /// One seed, with its events
    #[arg(long)]
    seed: Option<u64>,
    /// The seeds from A on, before B
    #[arg(long, value_name = "A..B", value_parser = range)]
    seeds: Option<Range<u64>>,
    /// Seeds for so long, from --from on
    #[arg(long)]
    minutes: Option<u64>,
}

#[derive(clap::Args)]
pub(crate) struct Sim {
    #[command(flatten)]
    which: Which,
    /// The first seed of --minutes
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Only this transport
    #[arg(long, value_parser = ["rdma", "tcp"])]
    transport: Option<String>,
    /// The simulation of a gateway group instead
    #[arg(long, conflicts_with = "transport")]
    group: bool,
}

fn range(text: &str) -> Result<Range<u64>, String> {
    let numbers = text.split_once("..").and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
    numbers.filter(|range| range.start < range.end).ok_or_else(|| "it is written A..B, A below B".into())
}

impl Sim {
    pub(crate) fn run(&self) -> Result<()> {
        match &self.which {
            Which { seed: Some(seed), .. } => self.seeds(("NVMF_SIMULATION_SEED", seed.to_string())),
            Which { seeds: Some(Range { start, end }), .. } => {
                self.seeds(("NVMF_SIMULATION_SEEDS", format!("{start}..{end}")))
            }
            Which { minutes: Some(minutes), .. } => {
                let until = Instant::now() + Duration::from_secs(60 * minutes);
                let mut first = self.from;
                while Instant::now() < until {
                    let Some(end) = first.checked_add(ROUND) else { bail!("--from is too large") };
                    self.seeds(("NVMF_SIMULATION_SEEDS", format!("{first}..{end}")))?;
                    first = end;
                }
                Ok(())
            }
            _ => bail!("--seed, --seeds or --minutes is missing"),
        }
    }

    fn seeds(&self, (variable, value): (&str, String)) -> Result<()> {
        let (package, test) = match self.transport.as_deref() {
            _ if self.group => ("nvmf-cluster", "group_of_gateways"),
            Some("rdma") => ("nvmf-tests", "simulated_blocks_always"),
            Some(_) => ("nvmf-tests", "simulated_blocks_over_tcp"),
            None => ("nvmf-tests", "simulated_blocks"),
        };
        let mut cargo = step::cargo(&["test", "-p", package, "--test", "simulation", test]);
        cargo.args(["--", "--nocapture"]).env(variable, &value);
        step::run(&format!("simulation, {value}"), &mut cargo)
    }
}
