//! Description of the machine, and how busy its cores are.

use super::site::{Cores, Site};
use super::spdk;
use crate::{lab, step};
use anyhow::{Context, Result};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long is looked at what else the machine does.
const LOOK: Duration = Duration::from_secs(2);
/// Clock ticks of `/proc/stat` in a second: USER_HZ, the same on every machine that this runs on.
const TICKS: f64 = 100.0;

/// Describes the machine and the programs: processor, cores, kernel, date, versions, and what else it does.
pub(super) fn facts(site: &Site, other_work: f64) -> Result<String> {
    let cores = site.cores;
    let info = std::fs::read_to_string("/proc/cpuinfo").context("cannot read /proc/cpuinfo")?;
    let model = model(&info).unwrap_or("unknown processor");
    let guest = if is_guest(&info) { " of a virtual machine" } else { "" };
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = nix::sys::utsname::uname()?;
    let kernel = kernel.release().to_string_lossy().into_owned();
    let day = first_line("date", &["-u", "+%Y-%m-%d"]).context("cannot run date")?;
    let commit = first_line("git", &["describe", "--always", "--dirty"]).unwrap_or("of no commit".into());
    let mut programs = vec![format!("nvmf {commit}")];
    for (program, argument) in
        [("fio", "--version"), ("nbdkit", "--version"), ("qemu-img", "--version"), ("nbdcopy", "--version")]
    {
        programs.extend(first_line(program, &[argument]));
    }
    if spdk::missing().is_none() {
        let pages = if site.hugepages { "in hugepages" } else { "with --no-huge" };
        let version = first_line("nvmf_tgt", &["--version"]).unwrap_or("SPDK".into());
        programs.push(format!("{version} {pages}"));
    }
    Ok(format!(
        "{model}, {count} cores{guest} (target on core {}, initiator on core {}), Linux {kernel}, {day}. Other work kept \
         {other_work:.2} of these cores busy before. {}",
        cores.target,
        cores.initiator,
        programs.join(", ")
    ))
}

/// The first line that a program prints.
fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).current_dir(step::root()).output().ok()?;
    let said = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    let line = String::from_utf8_lossy(&said).lines().next()?.trim().to_owned();
    output.status.success().then_some(line)
}

fn model(info: &str) -> Option<&str> {
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim())
}

fn is_guest(info: &str) -> bool {
    lab::has_flag(info, &["hypervisor"])
}

/// How many of the cores are busy with other work, while nothing is measured.
pub(super) fn other_work(cores: Cores) -> Result<f64> {
    let before = Busy::now(cores).context("cannot read /proc/stat")?;
    std::thread::sleep(LOOK);
    Ok(Busy::now(cores).context("cannot read /proc/stat")?.since(before))
}

/// How long cores have been busy until now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Busy {
    ticks: u64,
    at: Instant,
}

impl Busy {
    /// `None` where the kernel does not say it.
    pub(super) fn now(cores: Cores) -> Option<Self> {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        let ticks = [cores.target, cores.initiator].map(|core| busy_ticks(&text, core));
        Some(Self { ticks: ticks[0]? + ticks[1]?, at: Instant::now() })
    }

    /// How many cores were busy since then, on average.
    pub(super) fn since(self, before: Self) -> f64 {
        let time = self.at.duration_since(before.at).as_secs_f64();
        self.ticks.saturating_sub(before.ticks) as f64 / TICKS / time.max(1.0 / TICKS)
    }
}

/// All but the time in which a core was idle or waited for a disk, from `/proc/stat`.
fn busy_ticks(text: &str, core: usize) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("cpu{core} ")))?;
    let ticks: Vec<u64> = line.split_whitespace().map(|field| field.parse().ok()).collect::<Option<_>>()?;
    // user nice system idle iowait irq softirq steal; guests are counted as user.
    let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = ticks[..] else { return None };
    Some(user + nice + system + irq + softirq + steal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_model_is_parsed() {
        let info =
            "processor\t: 0\nvendor_id\t: X\nmodel name\t: Some CPU @ 2.0GHz\nflags\t: fpu hypervisor\n";
        assert_eq!(model(info), Some("Some CPU @ 2.0GHz"));
        assert_eq!(model("processor: 0\n"), None);
        assert!(is_guest(info) && !is_guest("flags : fpu\n"));
    }

    #[test]
    fn busy_time_of_a_core_is_what_is_not_idle() {
        let text = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 400 500 6 7 8 0 0\ncpu10 0 0 0 1 1 0 0 0 0 0\n";
        assert_eq!(
            (busy_ticks(text, 0), busy_ticks(text, 10), busy_ticks(text, 1)),
            (Some(27), Some(0), None)
        );
        let (before, at) = (Instant::now(), Duration::from_secs(2));
        let (before, now) = (Busy { ticks: 100, at: before }, Busy { ticks: 400, at: before + at });
        assert_eq!(now.since(before), 1.5);
    }
}
