//! `cargo xtask crash`: kills targets and servers of disks at random times under verified load.

use super::daemon::Daemon;
use super::disk::Disk;
use super::load::Load;
use anyhow::{Context, Result, ensure};
use nvmf_tests::process::until_within;
use nvmf_tests::rng::Rng;
use std::time::{Duration, Instant};

/// The longest time under load before a kill.
const LOAD_MAX: u64 = 300_000;
/// Who waits longest, waits for what a killed server had sent to a target that was killed as well.
const BACK_MAX: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
pub(crate) struct Crash {
    /// How often something is killed
    #[arg(long, default_value_t = 100)]
    rounds: u64,
    /// What is killed when
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Target,
    Server,
    Both,
}

const VICTIMS: [Victim; 3] = [Victim::Target, Victim::Server, Victim::Both];

impl Victim {
    fn name(self) -> &'static str {
        match self {
            Self::Target => "target",
            Self::Server => "server of a disk",
            Self::Both => "server, then target",
        }
    }
}

impl Crash {
    pub(crate) fn run(&self) -> Result<()> {
        super::build()?;
        let mut target = Daemon::start("crash")?;
        let disks = [Disk::attach(&target, 1, "rdma")?, Disk::attach(&target, 2, "tcp")?];
        let mut loads = disks.each_ref().map(|disk| Load::start(disk, self.seed));
        let mut random = Rng::new(self.seed);
        println!("\n== {} rounds, seed {}", self.rounds, self.seed);
        let mut times = [const { Vec::new() }; VICTIMS.len()];
        for round in 0..self.rounds {
            let at = usize::try_from(random.below(VICTIMS.len() as u64))?;
            let disk = &disks[usize::try_from(random.below(disks.len() as u64))?];
            let pause = Duration::from_micros(random.below(LOAD_MAX));
            let took = kill(VICTIMS[at], &mut target, disk, pause, &mut loads);
            let what = || format!("round {round}, seed {}: {} killed", self.seed, VICTIMS[at].name());
            times[at].push(took.with_context(what)?);
        }
        let mut operations = 0;
        for load in loads {
            operations += load.end()?;
        }
        disks.iter().try_for_each(Disk::detach)?;
        target.stop()?;
        println!("{:<24} {:>8} {:>28}", "killed", "times", "all writers go on after, s");
        println!("{:<24} {:>8} {:>14} {:>13}", "", "", "median", "longest");
        for (victim, mut times) in VICTIMS.into_iter().zip(times) {
            times.sort_unstable();
            let seconds = |time: Option<&Duration>| time.map_or(0.0, Duration::as_secs_f64);
            let (median, longest) = (seconds(times.get(times.len() / 2)), seconds(times.last()));
            println!("{:<24} {:>8} {median:>14.2} {longest:>13.2}", victim.name(), times.len());
        }
        println!(
            "\n{operations} operations, each verified; then every block, by its disk and in its file: nothing is lost"
        );
        Ok(())
    }
}

/// Kills under load, starts what nobody else starts, and gives the time until every writer goes on.
fn kill(
    victim: Victim,
    target: &mut Daemon,
    disk: &Disk,
    pause: Duration,
    loads: &mut [Load],
) -> Result<Duration> {
    std::thread::sleep(pause);
    let begun = Instant::now();
    let server = disk.pid()?;
    if victim != Victim::Target {
        disk.kill()?;
    }
    if victim != Victim::Server {
        target.kill()?;
        target.restart()?;
    }
    until_within("the disk is live again", BACK_MAX, || {
        let is_another = || disk.pid().is_ok_and(|pid| pid != server);
        disk.is_live() && (victim == Victim::Target || is_another())
    })?;
    let before: Vec<_> = loads.iter().flat_map(Load::done).collect();
    let go_on = until_within("every writer goes on", BACK_MAX, || {
        let now = loads.iter().flat_map(Load::done);
        // Two operations: the first may have been answered before the kill.
        now.zip(&before).all(|(now, before)| now >= before + 2)
    });
    loads.iter_mut().try_for_each(Load::check)?;
    go_on?;
    ensure!(disk.is_live(), "the disk is not live");
    Ok(begun.elapsed())
}
