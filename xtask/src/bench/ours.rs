//! This project's side: `nvmf-target` on one core, `nvmf-bench` or `nvmf-baseline` on the other.

use super::fio::Report;
use super::site::{Background, Site, free_address};
use super::transport::Transport;
use super::workload::Workload;
use anyhow::{Context, Result};
use nvmf_tests::process::Target;
use serde_json::Value;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) const NQN: &str = "nqn.2026-11.com.example:bench";
/// The host that has the key of TLS.
const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-41d0-a765-00a0c91e6bf6";
/// A key that everybody knows: it protects nothing.
const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";

/// How the target's worker and the job's thread wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Polling {
    /// Both poll without a pause.
    Busy,
    /// As by default: both poll for a while, then sleep.
    Default,
    /// Both sleep at once.
    Interrupt,
}

impl Polling {
    /// The value of `poll`; `None` leaves it out.
    fn value(self) -> Option<&'static str> {
        match self {
            Self::Busy => Some("busy"),
            Self::Default => None,
            Self::Interrupt => Some("interrupt"),
        }
    }

    /// A line of `[target]`.
    fn key(self) -> String {
        self.value().map(|value| format!("poll = \"{value}\"\n")).unwrap_or_default()
    }

    /// The option of `nvmf-bench`.
    fn option(self) -> Option<String> {
        self.value().map(|value| format!("--poll={value}"))
    }
}

/// Our initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Client {
    /// Submit and poll, on the job's own thread.
    OwnThread,
    /// The async library.
    Async,
}

impl Client {
    fn engine(self) -> &'static str {
        match self {
            Self::OwnThread => "--ioengine=nvmf",
            Self::Async => "--ioengine=nvmf-async",
        }
    }

    /// How the job's thread waits. That of the async library sleeps at once, as a runtime's does: the connection's own
    /// thread polls, with the library's default.
    fn polling(self, polling: Polling) -> Polling {
        match self {
            Self::OwnThread => polling,
            Self::Async => Polling::Interrupt,
        }
    }
}

/// Configuration of the target.
#[derive(Debug, Clone)]
pub(super) struct Export {
    pub(super) transport: Transport,
    pub(super) polling: Polling,
    pub(super) workers: usize,
    /// Further keys of `[target]`, one per line.
    pub(super) target: String,
    /// Backing of the namespace: a line of `[[subsystem.namespace]]`.
    pub(super) namespace: String,
}

impl Export {
    /// A memory disk.
    pub(super) fn memory(transport: Transport, polling: Polling) -> Self {
        let namespace = "memory = \"64MiB\"".into();
        Self { transport, polling, workers: 1, target: String::new(), namespace }
    }

    /// A file.
    pub(super) fn file(path: &Path, polling: Polling) -> Self {
        let namespace = format!("path = \"{}\"", path.display());
        Self { namespace, ..Self::memory(Transport::Iwarp, polling) }
    }

    fn config(&self, address: impl std::fmt::Display, key: &Path) -> String {
        let Self { transport, polling, workers, target, namespace } = self;
        let (listener, poll) = (transport.listener(), polling.key());
        let host = match transport {
            Transport::TcpTls => {
                format!("[[host]]\nnqn = \"{HOST_NQN}\"\ntls_key_file = \"{}\"\n\n", key.display())
            }
            Transport::Iwarp | Transport::Tcp | Transport::TcpDigests => String::new(),
        };
        format!(
            "[target]\nworkers = {workers}\n{poll}{target}\n\n[[listener]]\naddress = \"{address}\"\n{listener}\n\n{host}\
             [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\n\
             [[subsystem.namespace]]\nnsid = 1\n{namespace}\n"
        )
    }
}

/// Starts the target, bound to its core.
pub(super) fn serve(site: &Site, export: &Export) -> Result<Target> {
    start(site, site.on(site.cores.target, site.ours("nvmf-target")), export)
}

/// Starts the target, which may use both cores.
pub(super) fn serve_on_both(site: &Site, export: &Export) -> Result<Target> {
    start(site, site.on_both(site.ours("nvmf-target")), export)
}

fn start(site: &Site, mut command: Command, export: &Export) -> Result<Target> {
    let address = free_address()?;
    let config = site.folder.join("target.toml");
    std::fs::write(&config, export.config(address, &key_file(site)?))?;
    command.args(["serve", "--config"]).arg(&config);
    site.show(&command);
    Target::start(command, address, &site.folder.join("target.log"))
}

/// The file with the key of TLS, which only its owner may read.
fn key_file(site: &Site) -> Result<PathBuf> {
    let path = site.folder.join("key");
    let mut options = std::fs::OpenOptions::new();
    let file = options.create(true).write(true).truncate(true).mode(0o600).open(&path);
    let mut file = file.with_context(|| format!("cannot make {}", path.display()))?;
    writeln!(file, "{KEY}")?;
    Ok(path)
}

/// Runs a job of `nvmf-bench` on a new target.
pub(super) fn run(
    site: &Site,
    export: &Export,
    client: Client,
    workload: &Workload,
    page: &str,
) -> Result<Report> {
    let target = serve(site, export)?;
    let engine = engine(site, export, client, &target)?;
    let call = site.on(site.cores.initiator, site.ours("nvmf-bench"));
    let report = bench(site, call, &engine, client.polling(export.polling), workload, Some(page))?;
    target.stop()?;
    Ok(report)
}

/// Runs a job on a new target over so many paths, a worker of the target's for each. Both programs may use both cores.
pub(super) fn run_over_paths(
    site: &Site,
    export: &Export,
    paths: usize,
    workload: &Workload,
) -> Result<Report> {
    let target = serve_on_both(site, &Export { workers: paths, ..export.clone() })?;
    let mut engine = engine(site, export, Client::OwnThread, &target)?;
    engine.extend((1..paths).map(|_| format!("--path={}", target.address)));
    let call = site.on_both(site.ours("nvmf-bench"));
    let report = bench(site, call, &engine, export.polling, workload, None)?;
    target.stop()?;
    Ok(report)
}

/// The options of `nvmf-bench` for a target.
fn engine(site: &Site, export: &Export, client: Client, target: &Target) -> Result<Vec<String>> {
    let mut engine = vec![
        client.engine().into(),
        format!("--address={}", target.address),
        format!("--nqn={NQN}"),
        "--nsid=1".into(),
    ];
    engine.extend(export.transport.bench_options().iter().map(|&option| option.to_owned()));
    if export.transport == Transport::TcpTls {
        engine.push(format!("--tls_key_file={}", key_file(site)?.display()));
        engine.push(format!("--hostnqn={HOST_NQN}"));
    }
    Ok(engine)
}

/// Runs `nvmf-bench` as a client of another project's NBD server.
pub(super) fn run_nbd(site: &Site, uri: &str, polling: Polling, workload: &Workload) -> Result<Report> {
    let call = site.on(site.cores.initiator, site.ours("nvmf-bench"));
    bench(site, call, &["--ioengine=nbd".into(), format!("--filename={uri}")], polling, workload, None)
}

/// Writes to every block of an NBD server's disk.
pub(super) fn fill_nbd(site: &Site, uri: &str) -> Result<()> {
    fill(site, &["--ioengine=nbd".into(), format!("--filename={uri}")])
}

/// Writes to every block of a target's disk.
pub(super) fn fill_target(site: &Site, export: &Export, target: &Target) -> Result<()> {
    fill(site, &engine(site, export, Client::OwnThread, target)?)
}

fn fill(site: &Site, engine: &[String]) -> Result<()> {
    let mut bench = site.on_both(site.ours("nvmf-bench"));
    bench.args(["--name=fill", "--rw=write", "--bs=256k", "--iodepth=8", "--eta=never"]);
    site.run(bench.args(engine)).map(drop)
}

/// Runs a job with a call of `nvmf-bench`.
fn bench(
    site: &Site,
    mut bench: Command,
    engine: &[String],
    polling: Polling,
    workload: &Workload,
    page: Option<&str>,
) -> Result<Report> {
    bench.args(["--name=bench", "--output-format=json", "--eta=never"]).args(polling.option());
    bench.args(engine).args(workload.arguments(site));
    if let (Some(folder), Some(page)) = (&site.html, page) {
        bench.arg(format!("--html={}", folder.join(page).with_extension("html").display()));
    }
    Report::parse(&site.run(&mut bench)?)
}

/// Runs `nvmf-baseline` with `ping-pong`, `exchange` or `stream` and its options between two cores; returns its figures.
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

/// Measures bare TCP with the bytes of as many outstanding 4 KiB reads of a memory of `disk` bytes, exchanges per second.
pub(super) fn bare_exchange(site: &Site, transport: Transport, iodepth: u32, disk: usize) -> Result<f64> {
    let (iodepth, disk) = (iodepth.to_string(), disk.to_string());
    let what = ["exchange", "--transport", transport.name(), "--iodepth", &iodepth, "--disk", &disk];
    let figures = baseline(site, &what, site.cores.target, site.cores.initiator)?;
    figures["exchanges_per_second"].as_f64().context("no rate")
}

/// Measures the throughput of bare TCP between two cores, bytes per second.
pub(super) fn bare_stream(site: &Site, from: usize, to: usize) -> Result<f64> {
    baseline(site, &["stream"], from, to)?["bytes_per_second"].as_f64().context("no rate")
}

/// Measures the median round trip of a host that reads 4 KiB at a time while another has `heavy` outstanding reads,
/// nanoseconds.
pub(super) fn beside(site: &Site, heavy: u16) -> Result<f64> {
    let target = serve(site, &Export::memory(Transport::Iwarp, Polling::Busy))?;
    let mut command = with_target(site, &target, "neighbour");
    // nvmf-baseline adds the warm-up itself.
    command.args(["--heavy", &heavy.to_string(), "--runtime", &site.seconds.to_string()]);
    let figures: Value =
        serde_json::from_slice(&site.run(&mut command)?).context("nvmf-baseline printed no JSON")?;
    target.stop()?;
    figures["short"]["latency_ns"]["p50"].as_f64().context("no latency")
}

/// Keeps both cores busy until it is dropped: a thread on each, which never sleeps.
pub(super) fn other_load(site: &Site) -> Result<Background> {
    let mut command = Command::new(site.ours("nvmf-baseline"));
    command.args(["load", "--cores", &site.cores.to_string()]);
    Background::start(site, command)
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
        let config = |transport| {
            Export::memory(transport, Polling::Busy).config("127.0.0.1:4420", Path::new("/a/key"))
        };
        assert!(config(Transport::Iwarp).contains("\nprovider = \"iwarp\"\n"));
        assert!(config(Transport::Tcp).contains("\ntransport = \"tcp\"\n"));
        let with_tls = config(Transport::TcpTls);
        assert!(with_tls.contains("\ntls = \"required\"\n"), "{with_tls}");
        assert!(with_tls.contains("\ntls_key_file = \"/a/key\"\n"), "{with_tls}");
    }
    #[test]
    fn default_polling_is_left_out() {
        let of = |polling| Export::memory(Transport::Tcp, polling).config("a", Path::new("b"));
        assert!(of(Polling::Busy).contains("\npoll = \"busy\"\n"));
        assert!(!of(Polling::Default).contains("poll"));
        assert_eq!(
            (Polling::Default.option(), Polling::Interrupt.option().as_deref()),
            (None, Some("--poll=interrupt"))
        );
    }
}
