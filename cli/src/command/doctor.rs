//! `nvmf doctor`.

use super::{Format, Output};
use crate::doctor::{PORT, Plan, ProviderChoice, SIZES, examine, listen, ping, resolve};
use crate::print::{ERROR_PREFIX, chain};
use std::process::ExitCode;
use std::time::Duration;

/// Exit status when something needs mending.
const SICK: u8 = 1;
/// Exit status when it could not be found out.
const BLIND: u8 = 2;

#[derive(clap::Args)]
pub(crate) struct Doctor {
    /// Address or name of a target, or an address of this machine: which provider serves it, and why
    address: Option<String>,
    /// Seconds between the two readings of the counters
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3600))]
    watch: u32,
    /// Measure round trips and bandwidth towards a machine where `nvmf doctor --listen` runs
    #[arg(long, value_name = "ADDRESS[:PORT]", conflicts_with_all = ["address", "listen"])]
    ping: Option<String>,
    /// Be the other end of --ping, until stopped
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
    /// 0: nothing wrong. 1: something needs mending. 2: it could not be found out.
    pub(crate) fn run(&self) -> ExitCode {
        let json = self.output.format == Format::Json;
        let outcome = if let Some(address) = &self.listen {
            resolve(address, PORT).and_then(|address| listen(address, self.provider)).map(|()| true)
        } else if let Some(address) = &self.ping {
            let plan = self.plan.plan();
            resolve(address, PORT).and_then(|address| ping(address, self.provider, &plan, json))
        } else {
            examine(self.address.as_deref(), Duration::from_secs(self.watch.into()), json)
        };
        match outcome {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => SICK.into(),
            Err(error) => {
                eprintln!("{ERROR_PREFIX}{}", chain(&error));
                BLIND.into()
            }
        }
    }
}
