//! SPDK as a peer, if its programs are on the PATH: its NVMe/TCP target with a memory disk, and its perf tool.

use super::site::{Server, Site, free_address};
use super::transport::Transport;
use super::workload::Workload;
use crate::step;
use anyhow::{Context, Result};
use std::net::{SocketAddr, TcpStream};

const NQN: &str = "nqn.2026-11.com.example:spdk";
/// The host's name: the perf tool has an empty one of its own, which only SPDK's target accepts.
const HOST_NQN: &str = "nqn.2026-11.com.example:perf";
/// Memory of the target, in MB.
const MEMORY_MB: u64 = 512;
const BLOCK: u64 = 512;
/// Blocks of 64 MiB.
const BLOCKS: u64 = 131_072;

fn target() -> Option<&'static str> {
    ["nvmf_tgt", "spdk_tgt"].into_iter().find(|name| step::on_path(name))
}

pub(super) fn missing() -> Option<String> {
    let here = target().is_some() && step::on_path("spdk_nvme_perf");
    (!here).then(|| "not here: put SPDK's nvmf_tgt and spdk_nvme_perf on the PATH".into())
}

/// The target's configuration file.
fn config(address: SocketAddr) -> String {
    let call =
        |method: &str, params: serde_json::Value| serde_json::json!({ "method": method, "params": params });
    let listen = serde_json::json!({
        "trtype": "TCP", "adrfam": "IPv4", "traddr": address.ip().to_string(), "trsvcid": address.port().to_string(),
    });
    let bdev = call(
        "bdev_malloc_create",
        serde_json::json!({ "name": "M", "num_blocks": BLOCKS, "block_size": BLOCK }),
    );
    let nvmf = [
        call("nvmf_create_transport", serde_json::json!({ "trtype": "TCP" })),
        call(
            "nvmf_create_subsystem",
            serde_json::json!({ "nqn": NQN, "allow_any_host": true, "serial_number": "B" }),
        ),
        call("nvmf_subsystem_add_ns", serde_json::json!({ "nqn": NQN, "namespace": { "bdev_name": "M" } })),
        call("nvmf_subsystem_add_listener", serde_json::json!({ "nqn": NQN, "listen_address": listen })),
    ];
    serde_json::json!({ "subsystems": [
        { "subsystem": "bdev", "config": [bdev] },
        { "subsystem": "nvmf", "config": nvmf },
    ]})
    .to_string()
}

/// Whether enough hugepages are free for both programs, which allocate their memory at the same time.
pub(super) fn has_hugepages() -> bool {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let value = |key: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let free = (value("HugePages_Free:").unwrap_or(0) * value("Hugepagesize:").unwrap_or(0)) >> 10;
    free >= 2 * MEMORY_MB
}

/// Memory options: hugepages if there were enough when the run began, otherwise ordinary pages.
fn memory(site: &Site, megabytes: u64) -> Vec<String> {
    let ordinary = (!site.hugepages).then(|| "--no-huge".to_owned());
    ordinary.into_iter().chain(["-s".into(), megabytes.to_string()]).collect()
}

/// Figures of the perf tool.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Report {
    pub(super) iops: f64,
    /// Nanoseconds.
    pub(super) latency_mean: f64,
}

impl Report {
    /// Parses the line `Total : IOPS MiB/s Average min max`, with latencies in microseconds.
    fn parse(text: &str) -> Result<Self> {
        let line = text.lines().rev().find(|line| line.trim_start().starts_with("Total"));
        let line = line.context("spdk_nvme_perf printed no total")?;
        let (_, figures) =
            line.rsplit_once(':').context("the total line of spdk_nvme_perf has no figures")?;
        let figures: Vec<f64> = figures.split_whitespace().map_while(|text| text.parse().ok()).collect();
        let &[iops, _, average, ..] = &figures[..] else {
            anyhow::bail!("not the figures of a total: {line}")
        };
        Ok(Self { iops, latency_mean: average * 1e3 })
    }
}

/// Runs the perf tool on a new target of SPDK's.
pub(super) fn run(site: &Site, transport: Transport, workload: &Workload) -> Result<Report> {
    let (_server, address) = serve(site)?;
    perf(site, address, NQN, transport, workload)
}

/// Starts the target, bound to its core.
fn serve(site: &Site) -> Result<(Server, SocketAddr)> {
    let address = free_address()?;
    let (file, socket) = (site.folder.join("spdk.json"), site.folder.join("spdk.sock"));
    std::fs::write(&file, config(address))?;
    let mut serve = std::process::Command::new(target().context("no SPDK target")?);
    serve
        .args(["-m", &mask(site.cores.target)])
        .args(memory(site, MEMORY_MB))
        .arg("-r")
        .arg(&socket)
        .arg("-c")
        .arg(&file);
    Ok((site.serve(&mut serve, || TcpStream::connect(address).is_ok())?, address))
}

/// Runs the perf tool on the target at this address.
pub(super) fn perf(
    site: &Site,
    address: SocketAddr,
    nqn: &str,
    transport: Transport,
    workload: &Workload,
) -> Result<Report> {
    let mut perf = std::process::Command::new("spdk_nvme_perf");
    perf.args(["-c", &mask(site.cores.initiator)]).args(memory(site, MEMORY_MB / 2));
    perf.args(["-q", &workload.iodepth.to_string(), "-o", &workload.bs.to_string(), "-w", workload.rw]);
    perf.args(["-t", &site.seconds.to_string(), "-a", &site.warm_up().to_string()]);
    perf.args(transport.perf_options());
    let (host, port) = (address.ip(), address.port());
    let remote =
        format!("trtype:TCP adrfam:IPv4 traddr:{host} trsvcid:{port} subnqn:{nqn} hostnqn:{HOST_NQN}");
    perf.args(["-r", &remote]);
    Report::parse(&String::from_utf8_lossy(&site.run(&mut perf)?))
}

/// The core mask of a single core.
fn mask(core: usize) -> String {
    format!("[{core}]")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERF: &str = "\
Initialization complete. Launching workers.
========================================================
                                                                          Latency(us)
Device Information                       :       IOPS      MiB/s    Average        min        max
TCP (addr:127.0.0.1 subnqn:a) NSID 1 from core  1:   31939.88     124.77    1050.69      27.31  347329.01
========================================================
Total                                    :   31939.88     124.77    1050.69      27.31  347329.01

";

    #[test]
    fn perf_total_is_parsed() {
        assert_eq!(Report::parse(PERF).unwrap(), Report { iops: 31_939.88, latency_mean: 1_050_690.0 });
    }

    #[test]
    fn report_without_total_is_error() {
        assert!(Report::parse("No valid NVMe controllers found").is_err());
        assert!(Report::parse("Total : none").is_err());
    }

    #[test]
    fn configuration_contains_address() {
        let text = config("127.0.0.1:4999".parse().unwrap());
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["subsystems"][1]["config"][3]["params"]["listen_address"]["trsvcid"], "4999");
    }
}
