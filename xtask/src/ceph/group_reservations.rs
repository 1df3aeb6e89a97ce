//! Reservations of hosts that persist: they are the group's, whichever gateway serves their namespace.

use super::cluster::Cluster;
use super::group::{Group, NQN};
use super::group_images::owner_of;
use super::groups::{SOON, images};
use anyhow::{Context, Result, ensure};
use nvmf_tests::process::{program, run_for, signal, until_within};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

/// What a command may take: a gateway that is taken over from is among what it waits for.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// The registrants' keys, and the type of the reservation that is held.
type Held = (Vec<u64>, u64);
const WRITE_EXCLUSIVE: u64 = 1;

/// A host, and the key that it registers.
struct Host {
    name: &'static str,
    id: &'static str,
    key: u64,
}

impl Host {
    const FIRST: Self = Self { name: "first", id: "6e766d66-0000-4000-8000-0000000000a1", key: 0xa1 };
    const SECOND: Self = Self { name: "second", id: "6e766d66-0000-4000-8000-0000000000b2", key: 0xb2 };

    /// Gives a command to the namespace, over the paths to all gateways.
    fn call(&self, group: &Group, command: &str, options: &[&str]) -> Result<Output> {
        let (first, others) = group.addresses().split_first().context("a group without gateways")?;
        let mut call = Command::new(program("nvmf")?);
        call.args([
            command,
            "-t",
            "tcp",
            "-a",
            &first.ip().to_string(),
            "--trsvcid",
            &first.port().to_string(),
        ]);
        call.args(others.iter().map(|path| format!("--path={path}")));
        call.args(["-n", NQN, "--nsid=1", "-I", self.id]);
        call.arg(format!("-q=nqn.2026-11.com.example:{}", self.name)).args(options);
        run_for(&mut call, COMMAND_TIMEOUT)
    }

    fn does(&self, group: &Group, command: &str, options: &[&str]) -> Result<String> {
        let output = self.call(group, command, options)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command} of the {} host: {said}", self.name);
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Writes, or is refused for the reservation of another.
    fn may_write(&self, group: &Group, data: &Path) -> Result<bool> {
        let output = self.call(group, "write", &[data.to_str().context("a folder's name is not UTF-8")?])?;
        let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
        ensure!(
            output.status.success() || said.contains("reserv"),
            "a write of the {} host: {said}",
            self.name
        );
        Ok(output.status.success())
    }

    fn register(&self, group: &Group) -> Result<String> {
        self.does(group, "resv-register", &[&format!("--nrkey={:#x}", self.key), "--cptpl=3"])
    }

    fn acquire(&self, group: &Group, more: &[&str]) -> Result<String> {
        let key = format!("--crkey={:#x}", self.key);
        self.does(group, "resv-acquire", &[&[key.as_str(), "--rtype=1"], more].concat())
    }

    fn report(&self, group: &Group) -> Result<Held> {
        let report: Value = serde_json::from_str(&self.does(group, "resv-report", &["-e", "-o", "json"])?)?;
        let registrants = report["regctlext"].as_array().into_iter().flatten();
        let mut keys: Vec<u64> = registrants.filter_map(|it| it["rkey"].as_u64()).collect();
        keys.sort_unstable();
        Ok((keys, report["rtype"].as_u64().context("no type in the report")?))
    }
}

/// A reservation stays through a planned move, the loss of its owner and of all gateways, and what a gateway took over from
/// thinks of it does not count.
pub(super) fn persist(cluster: &mut Cluster) -> Result<()> {
    let images = images("reserved", 1);
    let mut group = Group::start(cluster, "reserved", 2, 1, &images)?;
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    std::fs::write(&data, [0x5a; 4096])?;
    let (first, second) = (Host::FIRST, Host::SECOND);
    first.register(&group)?;
    second.register(&group)?;
    first.acquire(&group, &[])?;
    // Both registered, one of them holds it and writes.
    let is_kept = |group: &Group, what: &str, holder: &Host, other: &Host, keys: &[u64]| {
        let held = holder.report(group)?;
        ensure!(held == (keys.to_vec(), WRITE_EXCLUSIVE), "{what}: {held:x?}");
        ensure!(holder.may_write(group, &data)?, "{what}: who holds the reservation may not write");
        ensure!(!other.may_write(group, &data)?, "{what}: the other host has written");
        println!("  kept: {what}");
        Ok(())
    };
    let both = [first.key, second.key];
    is_kept(&group, "acquired", &first, &second, &both)?;
    group.change(0, &["cluster", "move", "1", "gw1"])?;
    is_kept(&group, "moved to another gateway", &first, &second, &both)?;
    group.kill(1)?;
    group.until_served(0, 1, SOON)?;
    is_kept(&group, "its owner killed", &first, &second, &both)?;
    group.revive(1)?;
    group.kill(0)?;
    group.kill(1)?;
    group.revive(0)?;
    group.revive(1)?;
    until_within("a gateway owns the ANA group", SOON, || owner_of(&group).is_ok())?;
    group.until_served(owner_of(&group)?, 1, SOON)?;
    is_kept(&group, "all gateways killed at once", &first, &second, &both)?;

    // The owner is stopped, and what it knows is old when it goes on.
    let owner = owner_of(&group)?;
    let other = 1 - owner;
    let pid = group.pid(owner)?;
    signal(pid, "STOP")?;
    let taken = group.until_served(other, 1, SOON);
    let preempted =
        taken.and_then(|_| second.acquire(&group, &["--racqa=1", &format!("--prkey={:#x}", first.key)]));
    signal(pid, "CONT")?;
    preempted?;
    let alone = [second.key];
    is_kept(&group, "preempted while its owner was stopped", &second, &first, &alone)?;
    group.until_back(owner, other)?;
    group.change(other, &["cluster", "move", "1", &format!("gw{owner}")])?;
    is_kept(&group, "moved back to the gateway that was stopped", &second, &first, &alone)?;
    let key = format!("--crkey={:#x}", second.key);
    second.does(&group, "resv-release", &[&key, "--rrela=1"])?;
    group.change(owner, &["cluster", "move", "1", &format!("gw{other}")])?;
    let left = first.report(&group)?;
    ensure!(left == (Vec::new(), 0), "cleared, and there again after a move: {left:x?}");
    ensure!(first.may_write(&group, &data)?, "nothing is reserved, and a host may not write");
    group.stop()
}
