//! `cargo xtask ceph`: images of a real Ceph cluster as disks of the target.
//!
//! | module | what it holds |
//! |---|---|
//! | `cluster` | a cluster in a folder, from Debian's packages |
//! | `gateway` | the target with images of it, and jobs on them |
//! | `group`, `groups` | gateways of a group, and what is done to them under I/O |
//! | `group_losses`, `group_changes`, `group_images` | the same: what they lose; what operators change; images |
//! | `group_reservations` | the same: reservations of hosts |
//! | `inactive` | images that cannot even be opened, beside others |
//! | `island` | a gateway on a network of its own, which can be cut off |
//! | `scenarios` | what is done to the cluster under I/O, and what is seen of it |
//! | `speed` | random reads and writes through the target, against librbd's own |

mod cluster;
mod gateway;
mod group;
mod group_changes;
mod group_images;
mod group_losses;
mod group_reservations;
mod groups;
mod inactive;
mod island;
mod scenarios;
mod speed;

use crate::{packages, step};
use anyhow::{Result, ensure};
use std::time::Instant;

pub(crate) use cluster::Cluster;
pub(crate) use island::Island;

/// OSDs, and replicas of everything.
pub(crate) const OSDS: usize = 3;

#[derive(clap::Args)]
pub(crate) struct Ceph {
    /// Run only those that take less than two minutes together
    #[arg(long)]
    short: bool,
    /// Measure instead: 4 KiB random reads and writes through the target and by fio's rbd engine, by turns
    #[arg(long, conflicts_with = "short")]
    speed: bool,
    /// Start a cluster and wait for Ctrl-C
    #[arg(long, conflicts_with_all = ["short", "speed"])]
    cluster: bool,
    /// Run only these scenarios
    names: Vec<String>,
}

impl Ceph {
    pub(crate) fn run(&self) -> Result<()> {
        packages::ensure(if self.speed { &[packages::CEPH, packages::FIO] } else { &[packages::CEPH] })?;
        let known: Vec<&str> = scenarios::ALL.iter().map(|scenario| scenario.name).collect();
        let unknown = self.names.iter().find(|name| !known.contains(&name.as_str()));
        ensure!(
            unknown.is_none(),
            "there is no scenario {}: there is {}",
            self.names.join(" "),
            known.join(", ")
        );
        let mut build =
            vec!["build", "-p", "nvmf-target", "-p", "nvmf-bench", "-p", "nvmf-cli", "-p", "nvmf-initiator"];
        build.extend(["--bins", "--example", "watch"]);
        if self.speed {
            build.push("--release");
        }
        step::run("programs", &mut step::cargo(&build))?;
        let begun = Instant::now();
        let mut cluster = Cluster::start(OSDS)?;
        println!("\n== a cluster of {OSDS} OSDs, after {:.1?}", begun.elapsed());
        if self.cluster {
            println!("export CEPH_CONF={}", cluster.conf().display());
            loop {
                std::thread::park();
            }
        }
        if self.speed {
            return speed::run(&cluster);
        }
        let wanted = |scenario: &&scenarios::Scenario| match self.names.is_empty() {
            true => scenario.short || !self.short,
            false => self.names.iter().any(|name| name == scenario.name),
        };
        for scenario in scenarios::ALL.iter().filter(wanted) {
            println!("\n== {}", scenario.name);
            let begun = Instant::now();
            (scenario.run)(&mut cluster).map_err(|error| error.context(scenario.name))?;
            println!("  {} held, {:.1?}", scenario.name, begun.elapsed());
        }
        Ok(())
    }
}

/// The short form, where the packages are or can be had.
pub(crate) fn quick() -> Result<()> {
    Ceph { short: true, speed: false, cluster: false, names: Vec::new() }.run()
}
