//! Reads of a whole disk of 1 GiB: by `nvmf read`, and by the library into a program's own memory. Every process may use
//! both cores.

use super::ours::{self, Export, NQN, Polling};
use super::site::Site;
use super::transport::Transport;
use anyhow::{Context, Result};
use nvmf_tests::process::Target;
use serde_json::Value;
use std::process::Command;

const SIZE: u64 = 1 << 30;

/// What reads the disk once, and how long that took, in seconds, without its start and the connect.
pub(super) type Reading = fn(&Site, &Target) -> Result<f64>;

/// Has it read a new target's disk again and again, with the defaults; returns bytes per second.
pub(super) fn bandwidth(site: &Site, reading: Reading) -> Result<f64> {
    let namespace = format!("memory = \"{SIZE}\"");
    let export = Export { namespace, ..Export::memory(Transport::Iwarp, Polling::Default) };
    let target = ours::serve_on_both(site, &export)?;
    ours::fill_target(site, &export, &target)?;
    reading(site, &target)?;
    let (mut seconds, mut reads) = (0.0, 0_u32);
    while seconds < site.seconds as f64 {
        seconds += reading(site, &target)?;
        reads += 1;
    }
    target.stop()?;
    Ok(f64::from(reads) * SIZE as f64 / seconds)
}

/// `nvmf read` to nowhere.
pub(super) fn by_command(site: &Site, target: &Target) -> Result<f64> {
    let (host, port) = (target.address.ip().to_string(), target.address.port().to_string());
    let mut read = site.on_both(site.ours("nvmf"));
    read.args([
        "read",
        "-t",
        "rdma",
        "--provider",
        "iwarp",
        "-a",
        &host,
        "--trsvcid",
        &port,
        "-n",
        NQN,
        "/dev/null",
    ]);
    seconds(&String::from_utf8_lossy(&site.output(&mut read)?.stderr))
}

/// Parses `read: 1073741824 bytes (1.00 GiB) in 0.312 s, 3.20 GiB/s`.
fn seconds(text: &str) -> Result<f64> {
    let time = text.split_once(") in ").and_then(|(_, rest)| rest.split_once(" s,"));
    time.context("nvmf read printed no time")?.0.parse().context("not a number of seconds")
}

/// The library, by one call.
pub(super) fn by_one_call(site: &Site, target: &Target) -> Result<f64> {
    by_library(site, &mut call(site, target))
}

/// The library, by a call for each MiB, as an application reads that uses the C library's `nvmf_pread`.
pub(super) fn by_calls_of_a_mebibyte(site: &Site, target: &Target) -> Result<f64> {
    by_library(site, call(site, target).args(["--bs", "1048576"]))
}

fn call(site: &Site, target: &Target) -> Command {
    let mut command = site.on_both(site.ours("nvmf-baseline"));
    command.args(["read", "--nqn", NQN, "--address", &target.address.to_string()]);
    command
}

fn by_library(site: &Site, read: &mut Command) -> Result<f64> {
    let figures: Value = serde_json::from_slice(&site.run(read)?).context("nvmf-baseline printed no JSON")?;
    figures["seconds"].as_f64().context("no time")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_nvmf_read_is_parsed() {
        let text = "read: 1073741824 bytes (1.00 GiB) in 0.312 s, 3.20 GiB/s\n";
        assert_eq!(seconds(text).unwrap(), 0.312);
        assert!(seconds("nvmf: cannot connect\n").is_err());
    }
}
