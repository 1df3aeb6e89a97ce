//! What connections cost that do nothing: processor time and memory of our target.

use super::ours::{self, Export};
use super::site::Site;
use anyhow::{Context, Result, ensure};
use nvmf_tests::process::{self, Target};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

/// Connections to a target, for as long as this lives.
struct Held {
    child: Child,
    input: Option<ChildStdin>,
}

impl Held {
    /// So many hosts, each with so many I/O queues of so many entries.
    fn connect(site: &Site, target: &Target, hosts: u16, io_queues: u16, depth: u16) -> Result<Self> {
        let mut command = ours::with_target(site, target, "hold");
        command.args(["--hosts", &hosts.to_string(), "--io-queues", &io_queues.to_string()]);
        command.args(["--iodepth", &depth.to_string()]);
        let said = site.folder.join("hold.log");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(std::fs::File::create(&said)?);
        let mut child = command.spawn().context("cannot start nvmf-baseline")?;
        let output = child.stdout.take().context("it has no output")?;
        let held = Self { input: child.stdin.take(), child };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        let said = std::fs::read_to_string(said).unwrap_or_default();
        ensure!(line.starts_with("holding"), "nvmf-baseline could not connect: {said}");
        Ok(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The end of its input is its sign to leave.
        drop(self.input.take());
        // It is killed when it does not.
        let _ = process::end(&mut self.child);
    }
}

/// Parts of a core that an idle target takes with so many hosts connected, each with an Admin queue and `io_queues` others.
pub(super) fn processor(site: &Site, hosts: u16, io_queues: u16) -> Result<f64> {
    let settings = "poll = \"adaptive\"\nqueue_depth = 32\nbuffer_memory = \"512MiB\"\nconnections = 2048";
    let export = Export { target: settings.into(), ..Export::memory() };
    let target = ours::serve(site, &export)?;
    let held = Held::connect(site, &target, hosts, io_queues, 32)?;
    let before = process::cpu_time(target.pid())?;
    std::thread::sleep(Duration::from_secs(site.idle_seconds));
    let used = process::cpu_time(target.pid())?.saturating_sub(before);
    drop(held);
    target.stop()?;
    Ok(used.as_secs_f64() / site.idle_seconds as f64)
}

/// Queue pairs of the smaller and of the larger target whose memory is compared.
const FEW: u16 = 64;
const MANY: u16 = 256;

/// Resident bytes that one more connected queue pair of depth 128 with 8 KiB of data in capsules costs: a target for [`MANY`] with
/// all of them connected, less one for [`FEW`], by the difference. Data buffers, which are shared, are the same in both.
pub(super) fn memory(site: &Site) -> Result<f64> {
    let (few, many) = (resident(site, FEW)?, resident(site, MANY)?);
    Ok((many as f64 - few as f64) / f64::from(MANY - FEW))
}

fn resident(site: &Site, io_queues: u16) -> Result<u64> {
    /// Of each host: what a target lets it have.
    const EACH: u16 = 64;
    let hosts = io_queues / EACH;
    let settings = format!(
        "poll = \"adaptive\"\nqueue_depth = 128\nin_capsule_data = \"8KiB\"\nbuffer_memory = \"512MiB\"\nconnections = {}",
        io_queues + hosts
    );
    let export = Export { target: settings, ..Export::memory() };
    let target = ours::serve(site, &export)?;
    let held = Held::connect(site, &target, hosts, EACH, 128)?;
    let resident = process::resident(target.pid())?;
    drop(held);
    target.stop()?;
    Ok(resident)
}
