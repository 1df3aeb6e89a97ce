//! `nvmf doctor`.

use super::target::{PORT, port};
use super::{Format, Output};
use crate::connect::Transport;
use crate::doctor::{PING_PORT, Plan, ProviderChoice, Question, SIZES, examine, listen, ping, resolve};
use anyhow::{Result, ensure};
use std::process::ExitCode;
use std::time::Duration;

/// Exit status when something is to be fixed.
const WRONG: u8 = 1;
/// Exit status when it could not be determined.
pub(super) const UNKNOWN: u8 = 2;

#[derive(clap::Args)]
pub(crate) struct Doctor {
    /// Address or name of a target: whether it answers, over which transport, and which provider is used and why
    #[arg(value_name = "ADDRESS[:PORT]", group = "target")]
    address: Option<String>,
    /// The same, as other commands take it
    #[arg(short = 'a', long, value_name = "ADDRESS", group = "target")]
    traddr: Option<String>,
    /// Transport over which the target is asked; both are tried by default
    #[arg(short = 't', long, value_enum, requires = "target")]
    transport: Option<Transport>,
    /// Port of the target, 4420 by default
    #[arg(short = 's', long, requires = "target", value_parser = port)]
    trsvcid: Option<u16>,
    /// Seconds between the two readings of the counters
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3600))]
    watch: u32,
    /// Measure round trips and bandwidth towards a machine where `nvmf doctor --listen` runs
    #[arg(long, value_name = "ADDRESS[:PORT]", conflicts_with_all = ["target", "listen"])]
    ping: Option<String>,
    /// Listen for --ping, until stopped
    #[arg(long, value_name = "ADDRESS[:PORT]", conflicts_with = "target")]
    listen: Option<String>,
    /// Over which provider a target is asked, and --ping and --listen go
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
            resolve(address, PING_PORT).and_then(|address| listen(address, self.provider)).map(|()| true)
        } else if let Some(address) = &self.ping {
            let plan = self.plan.plan();
            resolve(address, PING_PORT).and_then(|address| ping(address, self.provider, &plan, json))
        } else {
            examine(self.question()?.as_ref(), Duration::from_secs(self.watch.into()), json)
        }?;
        Ok(if is_well { ExitCode::SUCCESS } else { WRONG.into() })
    }

    /// Which target is asked, and how; `None` where none is named.
    fn question(&self) -> Result<Option<Question>> {
        let Some(text) = self.address.as_deref().or(self.traddr.as_deref()) else { return Ok(None) };
        let address = resolve(text, self.trsvcid.unwrap_or(PORT))?;
        ensure!(
            self.trsvcid.is_none_or(|port| port == address.port()),
            "{text} has a port, and --trsvcid names another: leave one out"
        );
        ensure!(
            self.transport != Some(Transport::Tcp) || self.provider == ProviderChoice::All,
            "--provider is for -t rdma: leave it out, or use that transport"
        );
        Ok(Some(Question { address, transport: self.transport, provider: self.provider }))
    }
}
