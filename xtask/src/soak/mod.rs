//! `cargo xtask soak` and `cargo xtask crash`: the programs as users run them, on loopback, under verified load.
//!
//! | module | contents |
//! |---|---|
//! | `daemon` | a target with files as disks, over both transports; what an operator asks of it |
//! | `disk` | a namespace that is attached as an NBD socket, and the processes that serve it |
//! | `load` | writers on an attached disk, which know what each block may hold |
//! | `operator` | what is done to targets and disks during a soak |
//! | `sample` | memory, descriptors, threads and latencies, and how they are judged |
//! | `crash` | targets and servers of disks killed at random times |

mod crash;
mod daemon;
mod disk;
mod load;
mod operator;
mod sample;

use crate::step;
use anyhow::{Result, ensure};
use daemon::Daemon;
use disk::Disk;
use load::Load;
use operator::Operator;
use sample::{Samples, Watched};
use std::time::{Duration, Instant};

pub(crate) use crash::Crash;

/// Between two samples.
const SAMPLE: Duration = Duration::from_secs(5);
/// Memory grows to its working size in this time.
const WARM_UP: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
pub(crate) struct Soak {
    /// How long
    #[arg(long, conflicts_with = "minutes", required_unless_present = "minutes")]
    hours: Option<u64>,
    /// How long
    #[arg(long)]
    minutes: Option<u64>,
    /// What is done when; of the load only what is read and written
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Builds the programs that are run.
fn build() -> Result<()> {
    let build = ["build", "-p", "nvmf-target", "-p", "nvmf-cli", "-p", "nvmf-bench"];
    step::run("programs", &mut step::cargo(&build))
}

impl Soak {
    /// Two targets. The steady one is reconfigured, the other one restarted and killed as well. Each has a disk over each
    /// transport; the server of one is killed at times, all others live from beginning to end and are watched.
    pub(crate) fn run(&self) -> Result<()> {
        build()?;
        let time = Duration::from_secs(self.minutes.unwrap_or(0) * 60 + self.hours.unwrap_or(0) * 3600);
        ensure!(time >= 3 * WARM_UP, "a soak takes three minutes or more: the first is for warming up");
        let (steady, other) = (Daemon::start("steady")?, Daemon::start("other")?);
        let disks = [
            Disk::attach(&steady, 1, "rdma")?,
            Disk::attach(&steady, 2, "tcp")?,
            Disk::attach(&other, 1, "rdma")?,
            Disk::attach(&other, 2, "tcp")?,
        ];
        let mut watched = vec![Watched::new("steady target", steady.pid()?)?];
        for (disk, name) in disks.iter().zip(["server, rdma", "server, tcp", "server, rdma, of the other"]) {
            watched.push(Watched::new(name, disk.pid()?)?);
        }
        println!("\n== {} minutes, seed {}", time.as_secs() / 60, self.seed);
        let mut loads = disks.each_ref().map(|disk| Load::start(disk, self.seed));
        let mut operator = Operator::new(self.seed, [steady, other], disks);
        let (begun, mut samples) = (Instant::now(), Samples::new(watched));
        let mut next = begun + SAMPLE;
        while begun.elapsed() < time {
            let calm = operator.turn(next)?;
            loads.iter_mut().try_for_each(Load::check)?;
            // The disks of the steady target, whose latency no restart explains.
            let latencies = loads[..2].iter().flat_map(Load::take_latencies).collect();
            samples.take(begun.elapsed() >= WARM_UP, calm, latencies)?;
            next = Instant::now() + SAMPLE;
        }
        operator.settle()?;
        let mut operations = 0;
        for load in loads {
            operations += load.end()?;
        }
        println!("{operations} operations on blocks, each verified; then every block once more\n");
        println!("{}", operator.table());
        let wrong = samples.judge()?;
        operator.end()?;
        ensure!(wrong.is_empty(), "{}", wrong.join("; "));
        println!("\nno error, nothing stale, no leak, no drift");
        Ok(())
    }
}
