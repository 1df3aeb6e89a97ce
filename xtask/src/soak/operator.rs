//! What operators and faults do to targets and disks during a soak, one thing at a time.

use super::daemon::Daemon;
use super::disk::Disk;
use super::load;
use anyhow::{Context, Result, ensure};
use nvmf_tests::process::{self, until_within};
use nvmf_tests::rng::Rng;
use std::collections::BTreeMap;
use std::fs::File;
use std::process::Command;
use std::time::{Duration, Instant};

/// A disk is served again, and its operations go on, after whatever was done to it.
const BACK_MAX: Duration = Duration::from_secs(60);
/// The largest file that is grown.
const GROWN_MAX: u64 = 8 * load::SIZE;
/// The namespace that is reconfigured, and that hosts use who come and go.
const SPARE: u32 = 3;

type Action = fn(&mut Operator) -> Result<()>;

/// What is done, and whether the steady target's hosts wait meanwhile.
const ACTIONS: &[(&str, bool, Action)] = &[
    ("namespace added and removed", true, Operator::add_and_remove),
    ("subsystem added and removed", true, Operator::add_and_remove_subsystem),
    ("disk grown", true, Operator::grow),
    ("namespace read-only and back", true, Operator::read_only),
    ("configuration reloaded", true, Operator::reload),
    ("host came, verified and went", true, Operator::guest),
    ("connections closed", false, Operator::close_connections),
    ("ANA group inaccessible for a second", false, Operator::inaccessible),
    ("disk's controllers reset by their host", false, Operator::reset),
    ("other target stopped and started", true, Operator::restart),
    ("other target killed and started", true, Operator::kill_target),
    ("server of a disk of the other killed", true, Operator::kill_server),
];

pub(super) struct Operator {
    random: Rng,
    steady: Daemon,
    other: Daemon,
    /// Two of the steady target, two of the other.
    disks: [Disk; 4],
    done: BTreeMap<&'static str, u64>,
    /// The bytes of the spare disk.
    grown: u64,
}

impl Operator {
    pub(super) fn new(seed: u64, [steady, other]: [Daemon; 2], disks: [Disk; 4]) -> Self {
        let (random, done) = (Rng::new(seed), BTreeMap::new());
        Self { random, steady, other, disks, done, grown: load::SIZE }
    }

    /// Does one thing, and waits. Gives whether nothing held the hosts of the steady target up.
    pub(super) fn turn(&mut self, until: Instant) -> Result<bool> {
        let at = usize::try_from(self.random.below(ACTIONS.len() as u64))?;
        let (name, calm, action) = ACTIONS[at];
        action(self).with_context(|| name)?;
        self.settle().with_context(|| name)?;
        *self.done.entry(name).or_default() += 1;
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        Ok(calm)
    }

    /// Waits until all disks are served.
    pub(super) fn settle(&self) -> Result<()> {
        until_within("all disks are live", BACK_MAX, || self.disks.iter().all(Disk::is_live))
    }

    pub(super) fn table(&self) -> String {
        ACTIONS
            .iter()
            .map(|(name, ..)| format!("{:>6} x {name}\n", self.done.get(name).unwrap_or(&0)))
            .collect()
    }

    /// Detaches everything and stops the targets, which have logged no error.
    pub(super) fn end(mut self) -> Result<()> {
        self.disks.iter().try_for_each(Disk::detach)?;
        self.steady.stop()?;
        self.other.stop()?;
        let complaints = [self.steady.complaints(), self.other.complaints()].concat();
        ensure!(complaints.is_empty(), "the targets' logs: {}", complaints.join("\n"));
        Ok(())
    }

    fn ask(&self, words: &[&str]) -> Result<()> {
        self.steady.ask(words).map(drop)
    }

    fn add_and_remove(&mut self) -> Result<()> {
        self.ask(&["namespace", "add", &self.steady.nqn, "--nsid", "9", "--memory", "8MiB"])?;
        self.ask(&["namespace", "remove", &self.steady.nqn, "9"])
    }

    fn add_and_remove_subsystem(&mut self) -> Result<()> {
        let nqn = format!("{}-more", self.steady.nqn);
        self.ask(&["subsystem", "add", &nqn, "--allow-any-host"])?;
        self.ask(&["namespace", "add", &nqn, "--memory", "8MiB"])?;
        self.ask(&["subsystem", "remove", &nqn])
    }

    fn grow(&mut self) -> Result<()> {
        self.grown = if self.grown >= GROWN_MAX { load::SIZE } else { self.grown + load::SIZE };
        File::options().write(true).open(self.steady.image(SPARE))?.set_len(self.grown)?;
        let nsid = SPARE.to_string();
        let shrink: &[&str] = if self.grown == load::SIZE { &["--shrink"] } else { &[] };
        self.ask(&[&["namespace", "resize", &self.steady.nqn, &nsid][..], shrink].concat())
    }

    fn read_only(&mut self) -> Result<()> {
        let nsid = SPARE.to_string();
        for value in ["true", "false"] {
            self.ask(&["namespace", "set", &self.steady.nqn, &nsid, "--read-only", value])?;
        }
        Ok(())
    }

    fn reload(&mut self) -> Result<()> {
        process::signal(self.steady.pid()?, "HUP")
    }

    fn guest(&mut self) -> Result<()> {
        let transport = ["rdma", "tcp"][usize::try_from(self.random.below(2))?];
        let mut bench = Command::new(process::program("nvmf-bench")?);
        bench.args(["--name=job", "--output-format=json", "--eta=never", "--ioengine=nvmf", "--size=4m"]);
        bench.args(["--rw=randwrite", "--bs=4k", "--iodepth=16", "--verify=crc32c"]);
        bench.args([
            format!("--transport={transport}"),
            format!("--address={}", self.steady.address(transport)),
        ]);
        bench.args([format!("--nqn={}", self.steady.nqn), format!("--nsid={SPARE}")]);
        let output = process::run_for(&mut bench, Duration::from_secs(60))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "nvmf-bench ended with {}: {said}", output.status);
        Ok(())
    }

    fn close_connections(&mut self) -> Result<()> {
        self.ask(&["connections", "close", "--all"])
    }

    fn inaccessible(&mut self) -> Result<()> {
        let address = self.steady.address("tcp").to_string();
        for state in ["inaccessible", "optimized"] {
            self.ask(&["ana", "set", &address, "1", state])?;
            std::thread::sleep(Duration::from_secs(1));
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<()> {
        self.disks[usize::try_from(self.random.below(2))?].reset()
    }

    fn restart(&mut self) -> Result<()> {
        self.other.stop()?;
        self.other.restart()
    }

    fn kill_target(&mut self) -> Result<()> {
        self.other.kill()?;
        self.other.restart()
    }

    fn kill_server(&mut self) -> Result<()> {
        let disk = &self.disks[3];
        let killed = disk.pid()?;
        disk.kill()?;
        until_within("another process serves the disk", BACK_MAX, || {
            disk.is_live() && disk.pid().is_ok_and(|pid| pid != killed)
        })
    }
}
