//! `nvmf doctor`.

use super::{Format, Output};
use crate::doctor::{PORT, Plan, ProviderChoice, SIZES, examine, listen, ping, resolve};
use anyhow::Result;
use std::process::ExitCode;
use std::time::Duration;

/// Exit status when something is to be fixed.
const WRONG: u8 = 1;
/// Exit status when it could not be determined.
pub(super) const UNKNOWN: u8 = 2;

#[derive(clap::Args)]
pub(crate) struct Doctor {
    /// Address or name of a target: which provider is used for it and why, and whether it answers
    address: Option<String>,
    /// Seconds between the two readings of the counters
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3600))]
    watch: u32,
    /// Measure round trips and bandwidth towards a machine where `nvmf doctor --listen` runs
    #[arg(long, value_name = "ADDRESS[:PORT]", conflicts_with_all = ["address", "listen"])]
    ping: Option<String>,
    /// Listen for --ping, until stopped
    #[arg(long, value_name = "ADDRESS[:PORT]", conflicts_with = "address")]
    listen: Option<String>,
    /// Over which provider
    #[arg(long, value_enum, default_value_t = ProviderChoice::All)]
    provider: ProviderChoice,
    #[command(flatten)]
    plan: PlanArguments,
    #[command(flatten)]
    output: Output,
}

/// What `--ping` measures.
#[derive(clap::Args)]
struct PlanArguments {
    /// Bytes of a message, for --ping
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(SIZES))]
    size: u32,
    /// Round trips at most, for --ping
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    count: u32,
    /// Seconds for each of the six measurements at most, for --ping
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=60))]
    time: u32,
}

impl PlanArguments {
    fn plan(&self) -> Plan {
        Plan { size: self.size as usize, count: self.count, time: Duration::from_secs(self.time.into()) }
    }
}

impl Doctor {
    /// 0: nothing wrong. 1: something is to be fixed. 2, for an error: it could not be determined.
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let json = self.output.format == Format::Json;
        let is_well = if let Some(address) = &self.listen {
            resolve(address, PORT).and_then(|address| listen(address, self.provider)).map(|()| true)
        } else if let Some(address) = &self.ping {
            let plan = self.plan.plan();
            resolve(address, PORT).and_then(|address| ping(address, self.provider, &plan, json))
        } else {
            examine(self.address.as_deref(), Duration::from_secs(self.watch.into()), json)
        }?;
        Ok(if is_well { ExitCode::SUCCESS } else { WRONG.into() })
    }
}
