//! This project's side: `nvmf-target` on one core, `nvmf-bench` or `nvmf-baseline` on the other.

use super::fio::Report;
use super::site::{Site, free_address};
use super::transport::Transport;
use super::workload::Workload;
use anyhow::{Context, Result};
use nvmf_tests::process::Target;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

pub(super) const NQN: &str = "nqn.2026-11.com.example:bench";

/// Configuration of the target.
#[derive(Debug, Clone)]
pub(super) struct Export {
    pub(super) transport: Transport,
    /// Keys of `[target]`, one per line.
    pub(super) target: String,
    /// Backing of the namespace: a line of `[[subsystem.namespace]]`.
    pub(super) namespace: String,
}

impl Export {
    /// A memory disk and a busy-polling worker, as the peers have.
    pub(super) fn memory(transport: Transport) -> Self {
        Self { transport, target: "poll = \"busy\"".into(), namespace: "memory = \"64MiB\"".into() }
    }

    pub(super) fn file(path: &Path) -> Self {
        Self { namespace: format!("path = \"{}\"", path.display()), ..Self::memory(Transport::Iwarp) }
    }

    fn config(&self, address: impl std::fmt::Display) -> String {
        let Self { transport, target, namespace } = self;
        let listener = transport.listener();
        format!(
            "[target]\nworkers = 1\n{target}\n\n[[listener]]\naddress = \"{address}\"\n{listener}\n\n\
             [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\n\
             [[subsystem.namespace]]\nnsid = 1\n{namespace}\n"
        )
    }
}

/// Starts the target, bound to its core.
pub(super) fn serve(site: &Site, export: &Export) -> Result<Target> {
    let address = free_address()?;
    let config = site.folder.join("target.toml");
    std::fs::write(&config, export.config(address))?;
    let mut command = site.on(site.cores.target, site.ours("nvmf-target"));
    command.args(["serve", "--config"]).arg(&config);
    Target::start(command, address, &site.folder.join("target.log"))
}

/// Runs a job of `nvmf-bench` on a new target.
pub(super) fn run(site: &Site, export: &Export, workload: &Workload, page: &str) -> Result<Report> {
    let target = serve(site, export)?;
    let address = target.address;
    let mut engine = vec![
        "--ioengine=nvmf".into(),
        format!("--address={address}"),
        format!("--nqn={NQN}"),
        "--nsid=1".into(),
    ];
    engine.extend(export.transport.bench_options().iter().map(|&option| option.to_owned()));
    let report = bench(site, &engine, workload, Some(page))?;
    target.stop()?;
    Ok(report)
}

/// Runs `nvmf-bench` as a client of another project's NBD server.
pub(super) fn run_nbd(site: &Site, uri: &str, workload: &Workload) -> Result<Report> {
    bench(site, &["--ioengine=nbd".into(), format!("--filename={uri}")], workload, None)
}

fn bench(site: &Site, engine: &[String], workload: &Workload, page: Option<&str>) -> Result<Report> {
    let core = site.cores.initiator;
    let mut bench = site.on(core, site.ours("nvmf-bench"));
    bench.args(["--name=bench", "--poll=busy", "--output-format=json", "--eta=never"]);
    bench.arg(format!("--cpus_allowed={core}")).args(engine).args(workload.arguments(site));
    if let (Some(folder), Some(page)) = (&site.html, page) {
        bench.arg(format!("--html={}", folder.join(page).with_extension("html").display()));
    }
    Report::parse(&site.run(&mut bench)?)
}

/// Runs `nvmf-baseline` with `ping-pong` or `stream` and its options between two cores; returns its figures.
fn baseline(site: &Site, what: &[&str], from: usize, to: usize) -> Result<Value> {
    let mut command = Command::new(site.ours("nvmf-baseline"));
    // The runtime includes a warm-up of a fifth of it.
    let runtime = site.seconds + site.warm_up();
    command.args(what).args(["--from", &from.to_string(), "--to", &to.to_string()]);
    command.args(["--runtime", &runtime.to_string()]);
    serde_json::from_slice(&site.run(&mut command)?).context("nvmf-baseline printed no JSON")
}

/// Measures the median round trip of bare TCP with the sizes of the transport's 4 KiB read, nanoseconds.
pub(super) fn bare_round_trip(site: &Site, transport: Transport) -> Result<f64> {
    let what = ["ping-pong", "--transport", transport.name()];
    let figures = baseline(site, &what, site.cores.target, site.cores.initiator)?;
    figures["round_trip_ns"]["p50"].as_f64().context("no round trip")
}

/// Measures the throughput of bare TCP between two cores, bytes per second.
pub(super) fn bare_stream(site: &Site, from: usize, to: usize) -> Result<f64> {
    baseline(site, &["stream"], from, to)?["bytes_per_second"].as_f64().context("no rate")
}

/// Measures the median round trip of a host that reads 4 KiB at a time while another has `heavy` outstanding reads,
/// nanoseconds.
pub(super) fn beside(site: &Site, heavy: u16) -> Result<f64> {
    let target = serve(site, &Export::memory(Transport::Iwarp))?;
    let mut command = with_target(site, &target, "neighbour");
    // nvmf-baseline adds the warm-up itself.
    command.args(["--heavy", &heavy.to_string(), "--runtime", &site.seconds.to_string()]);
    let figures: Value =
        serde_json::from_slice(&site.run(&mut command)?).context("nvmf-baseline printed no JSON")?;
    target.stop()?;
    figures["short"]["latency_ns"]["p50"].as_f64().context("no latency")
}

/// A call of `nvmf-baseline` with the target's address.
pub(super) fn with_target(site: &Site, target: &Target, what: &str) -> Command {
    let mut command = site.on(site.cores.initiator, site.ours("nvmf-baseline"));
    command.args([what, "--nqn", NQN, "--address", &target.address.to_string()]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listener_has_the_transport_of_the_row() {
        let config = |transport| Export::memory(transport).config("127.0.0.1:4420");
        assert!(config(Transport::Iwarp).contains("\nprovider = \"iwarp\"\n"));
        assert!(config(Transport::TCP).contains("\ntransport = \"tcp\"\n"));
    }
}
