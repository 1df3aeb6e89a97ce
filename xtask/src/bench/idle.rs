//! The cost of idle connections: processor time and memory of the target.

use super::ours::{self, Export, Polling};
use super::site::{Background, Site};
use super::transport::Transport;
use anyhow::Result;
use nvmf_tests::process::{self, Target};
use std::time::Duration;

/// Connects `hosts` idle hosts, each with `io_queues` I/O queues of `depth` entries.
fn connect(site: &Site, target: &Target, hosts: u16, io_queues: u16, depth: u16) -> Result<Background> {
    let mut command = ours::with_target(site, target, "hold");
    command.args(["--hosts", &hosts.to_string(), "--io-queues", &io_queues.to_string()]);
    command.args(["--iodepth", &depth.to_string()]);
    Background::start(site, command)
}

/// Measures the share of a core that an idle target uses, with `hosts` hosts connected, each with an Admin queue and
/// `io_queues` I/O queues.
pub(super) fn processor(site: &Site, hosts: u16, io_queues: u16) -> Result<f64> {
    let settings = "queue_depth = 32\nbuffer_memory = \"512MiB\"\nconnections = 2048";
    let export = Export { target: settings.into(), ..Export::memory(Transport::Iwarp, Polling::Default) };
    let target = ours::serve(site, &export)?;
    let mut connections = connect(site, &target, hosts, io_queues, 32)?;
    let before = process::cpu_time(target.pid())?;
    std::thread::sleep(Duration::from_secs(site.idle_seconds));
    let used = process::cpu_time(target.pid())?.saturating_sub(before);
    // Of hosts that have gone an idle target would have less to do.
    connections.check()?;
    drop(connections);
    target.stop()?;
    Ok(used.as_secs_f64() / site.idle_seconds as f64)
}

/// Queue pairs of the two targets whose memory is compared.
const FEW: u16 = 64;
const MANY: u16 = 256;

/// Measures the resident bytes per connected queue pair of depth 128 with 8 KiB of in-capsule data: the difference of
/// two targets, with [`MANY`] and [`FEW`] connected queue pairs, divided by the difference in their number. The shared
/// data buffers are the same in both.
pub(super) fn memory(site: &Site) -> Result<f64> {
    let (few, many) = (resident(site, FEW)?, resident(site, MANY)?);
    Ok((many as f64 - few as f64) / f64::from(MANY - FEW))
}

fn resident(site: &Site, io_queues: u16) -> Result<u64> {
    /// I/O queues per host: the target's limit.
    const EACH: u16 = 64;
    let hosts = io_queues / EACH;
    let settings = format!(
        "queue_depth = 128\nin_capsule_data = \"8KiB\"\nbuffer_memory = \"512MiB\"\nconnections = {}",
        io_queues + hosts
    );
    let export = Export { target: settings, ..Export::memory(Transport::Iwarp, Polling::Default) };
    let target = ours::serve(site, &export)?;
    let connections = connect(site, &target, hosts, EACH, 128)?;
    let resident = process::resident(target.pid())?;
    drop(connections);
    target.stop()?;
    Ok(resident)
}
