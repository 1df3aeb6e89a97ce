//! A guest: its start, its output and its time limit.

use super::host::Host;
use super::image::{Image, Kernel};
use super::machine::{Clock, Machine, Second, System};
use super::programs::Programs;
use super::scenario::{self, Case};
use crate::{ceph, step};
use anyhow::{Context, Result, bail};
use core::fmt;
use nvmf_tests::process;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Most attempts to boot a guest. The emulator occasionally crashes while the booting kernel patches its own code; the
/// guest is then restarted, if the scenario has not started yet.
const BOOTS_MAX: u32 = 5;
/// Time limit for booting.
const BOOT_TIME_MAX: Duration = Duration::from_secs(240);
/// Time limit for booting into systemd.
const SYSTEMD_BOOT_TIME_MAX: Duration = Duration::from_secs(360);
/// Interval between polls of the host's side.
const TURN: Duration = Duration::from_millis(20);
/// Messages in the kernel log that fail a scenario.
const KERNEL_ERRORS: [&str; 9] = [
    "WARNING:",
    "BUG:",
    "Oops",
    "Call Trace",
    "Kernel panic",
    "blocked for more than",
    "refcount_t:",
    "UBSAN:",
    "soft lockup",
];

/// How many times as long all may take where one thread emulates all processors.
const INSTRUCTION_CLOCK_TIMES: u32 = 4;

fn boot_time_max(system: System) -> Duration {
    match system {
        System::Script => BOOT_TIME_MAX,
        System::Systemd => SYSTEMD_BOOT_TIME_MAX,
    }
}

/// Result of a scenario.
pub(super) enum Verdict {
    Passed,
    /// The script failed with this exit status.
    Failed(i32),
    /// The scenario exceeded its time limit.
    TimedOut(Duration),
    /// The guest's kernel logged this error.
    KernelError(String),
    /// The guest ended during the scenario.
    GuestEnded,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => write!(f, "passed"),
            Self::Failed(status) => write!(f, "exit status {status}"),
            Self::TimedOut(time) => write!(f, "stopped at its time limit of {} s", time.as_secs()),
            Self::KernelError(line) => write!(f, "the guest's kernel logged: {line}"),
            Self::GuestEnded => write!(f, "the guest ended unexpectedly"),
        }
    }
}

/// For scenarios that measure: an idle processor waits for work in a loop. To wake an emulated one that was halted takes
/// about 100 µs of the guest's clock, where a real one takes a few: a target that runs on another processor than its
/// initiator would pay it twice a command, and one that runs in the initiator's own interrupts never.
const POLL_WHEN_IDLE: &str = "idle=poll";

/// Bytes of the virtio disk beside one that `nvmf serve-vhost` serves.
const BESIDE_LEN: u64 = 256 << 20;

/// Outcome of a scenario.
pub(super) struct Outcome {
    pub(super) verdict: Verdict,
    /// The release of the guest's kernel, as `uname -r` prints it.
    pub(super) release: String,
    /// Its steps, in order, and whether they passed.
    pub(super) steps: Vec<(String, bool)>,
    /// Its figures, as printed.
    pub(super) figures: Vec<String>,
    /// The folder with the script's output, the kernel's log and the logs of programs.
    pub(super) folder: PathBuf,
}

/// How a guest is started.
struct Boot<'a> {
    image: &'a Image,
    kernel: Kernel,
    /// What the kernel's command line has beside the usual.
    options: &'a str,
    system: System,
    clock: Clock,
    /// With an empty NVMe drive.
    nvme: bool,
    /// With a disk that `nvmf serve-vhost` serves, and a virtio disk on a file in memory.
    vhost: bool,
    /// With such a disk as its root disk.
    vhost_root: bool,
    two_machines: bool,
    /// The cluster beside it, and where a gateway can be cut from that.
    ceph: Option<&'a ceph::Cluster>,
    island: Option<&'a ceph::Island>,
    script: &'a Path,
}

/// A running guest.
pub(super) struct Guest {
    emulator: Child,
    second: Option<Second>,
    host: Host,
    folder: PathBuf,
    /// The file of a disk, which has no name and goes with this.
    _memory: Option<fs::File>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.emulator.kill();
        let _ = self.emulator.wait();
    }
}

impl Guest {
    /// Runs a scenario in a fresh guest.
    pub(super) fn run(image: &Image, programs: &Programs, case: Case<'_>, verbose: bool) -> Result<Outcome> {
        let (name, scenario) = (case.name(), case.scenario);
        let folder = step::root().join(".build/lab").join(&name);
        for _ in 0..BOOTS_MAX {
            let island = scenario.island.then(ceph::Island::new).transpose()?;
            let start = || match &island {
                Some(island) => ceph::Cluster::start_at(island.ceph(), ceph::OSDS),
                None => ceph::Cluster::start(ceph::OSDS),
            };
            let cluster = scenario.ceph.then(start).transpose()?;
            let system = if scenario.systemd { System::Systemd } else { System::Script };
            let boot = Boot {
                image,
                kernel: case.kernel,
                // With a disk from the host, idle processors leave the host's to who serves it.
                options: if scenario.alone && !scenario.vhost { POLL_WHEN_IDLE } else { "" },
                system,
                clock: case.clock,
                nvme: scenario.nvme,
                vhost: scenario.vhost,
                vhost_root: scenario.vhost_root,
                two_machines: scenario.two_machines,
                ceph: cluster.as_ref(),
                island: island.as_ref(),
                script: &scenario.path,
            };
            let mut guest = Self::boot(&boot, programs, &folder, Stdio::piped())?;
            let output = guest.emulator.stdout.take().context("the emulator has no output")?;
            let times = match case.clock {
                Clock::Host => 1,
                Clock::Instructions => INSTRUCTION_CLOCK_TIMES,
            };
            let limits = (boot_time_max(system) * times, scenario.time_max * times);
            let Some(outcome) = guest.follow(&lines_of(output), &name, limits, verbose)? else {
                println!("{name}: (the guest ended while it booted; restarting it)");
                continue;
            };
            match (&outcome.verdict, &scenario.known) {
                (Verdict::KernelError(line), Some(known)) if line.contains(known) => {
                    println!(
                        "{name}: (a known bug of the guest's kernel occurred, {line}; repeating the scenario)"
                    );
                }
                _ => return Ok(outcome),
            }
        }
        bail!("the guest failed {BOOTS_MAX} times: see {}", folder.join("kernel.log").display())
    }

    fn boot(boot: &Boot<'_>, programs: &Programs, folder: &Path, output: Stdio) -> Result<Self> {
        let _ = fs::remove_dir_all(folder);
        let share = folder.join("share");
        fs::create_dir_all(&share)?;
        let folder = fs::canonicalize(folder)?;
        let share = folder.join("share");
        step::copy_all(&scenario::folder(), &share.join("lab"))?;
        fs::copy(boot.script, share.join("scenario"))?;
        fs::rename(share.join("lab/begin"), share.join("begin"))?;
        programs.copy_into(&share.join("bin"))?;
        if boot.system == System::Systemd {
            // What runs there is what the packages install.
            for program in ["nvmf", "nvmf-target"] {
                fs::remove_file(share.join("bin").join(program))?;
            }
            programs.copy_packages_into(&share.join("packages"))?;
        }
        let control = "blktests-control";
        fs::copy(step::root().join("deploy").join(control), share.join("bin").join(control))?;
        let (port, guest_port) = (process::free_port()?, process::free_port()?);
        let mut host = Host::new(
            &share,
            [
                ("BIN", share.join("bin").display().to_string()),
                ("PORT", port.to_string()),
                ("GUEST_PORT", guest_port.to_string()),
                ("ROOT_DISK", boot.image.root().display().to_string()),
            ]
            .into_iter()
            .chain(boot.ceph.map(|cluster| ("CEPH_CONF", cluster.conf().display().to_string())))
            .chain(boot.island.into_iter().flat_map(ceph::Island::variables))
            .collect(),
        )?;
        let socket = share.join("vhost.sock");
        let memory = boot.vhost.then(|| memory_file(BESIDE_LEN)).transpose()?;
        let memory_path = memory.as_ref().map(path_of);
        if boot.vhost {
            host.prepare("vhost_start")?;
        }
        if boot.vhost_root {
            host.prepare("vhost_start_root")?;
        }
        let machine = Machine {
            image: boot.image,
            kernel: boot.kernel,
            options: boot.options,
            system: boot.system,
            clock: boot.clock,
            folder: &folder,
            share: &share,
            port: Some(guest_port),
            nvme: boot.nvme,
            vhost: memory_path.as_deref().map(|path| (&*socket, path)),
            vhost_root: boot.vhost_root.then_some(&*socket),
            number: boot.two_machines.then_some(1),
        };
        let second = boot.two_machines.then(|| Second::start(machine)).transpose()?;
        let mut emulator = machine.command()?;
        if !std::io::IsTerminal::is_terminal(&std::io::stdin()) {
            emulator.stdin(Stdio::null());
        }
        let emulator = emulator.stdout(output).spawn().context("cannot start qemu-system-x86_64")?;
        Ok(Self { emulator, second, host, folder, _memory: memory })
    }

    /// Reads the guest's output until it ends; `None` if it ended before the scenario started.
    fn follow(
        &mut self,
        lines: &Receiver<String>,
        name: &str,
        (boot_time_max, time_max): (Duration, Duration),
        verbose: bool,
    ) -> Result<Option<Outcome>> {
        let booted = Instant::now();
        let (mut all, mut release) = (String::new(), String::new());
        let (mut steps, mut figures) = (Vec::new(), Vec::new());
        let mut timed_out = false;
        loop {
            match lines.recv_timeout(TURN) {
                Ok(line) => {
                    let line = line.trim_end();
                    all.push_str(line);
                    all.push('\n');
                    if let Some(line) = line.strip_prefix(":: kernel ") {
                        line.clone_into(&mut release);
                    }
                    let is_result = parse_line(line, &mut steps, &mut figures);
                    if is_result || verbose {
                        println!("{name}: {line}");
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.host.turn()?;
            if let Some(second) = &mut self.second {
                second.turn()?;
            }
            let begun = self.folder.join("share/begun").exists();
            if booted.elapsed() > if begun { time_max } else { boot_time_max } {
                timed_out = begun;
                self.emulator.kill()?;
            }
        }
        self.emulator.wait()?;
        fs::write(self.folder.join("output.log"), &all)?;
        if !self.folder.join("share/begun").exists() {
            return Ok(None);
        }
        let verdict = if timed_out { Verdict::TimedOut(time_max) } else { self.verdict() };
        if !matches!(verdict, Verdict::Passed) && !verbose {
            all.lines()
                .rev()
                .take(40)
                .collect::<Vec<_>>()
                .iter()
                .rev()
                .for_each(|line| println!("{name}: | {line}"));
        }
        Ok(Some(Outcome { verdict, release, steps, figures, folder: self.folder.clone() }))
    }

    fn verdict(&self) -> Verdict {
        let log = fs::read(self.folder.join("kernel.log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        if let Some(line) = log.lines().find(|line| KERNEL_ERRORS.iter().any(|c| line.contains(c))) {
            return Verdict::KernelError(line.trim().to_owned());
        }
        match fs::read_to_string(self.folder.join("share/status")).map(|text| text.trim().parse()) {
            Ok(Ok(0)) => Verdict::Passed,
            Ok(Ok(status)) => Verdict::Failed(status),
            _ => Verdict::GuestEnded,
        }
    }
}

/// A file of this length in the host's memory, which has no name.
fn memory_file(len: u64) -> Result<fs::File> {
    let file = tempfile::tempfile_in("/dev/shm").context("cannot make a file in /dev/shm")?;
    file.set_len(len)?;
    Ok(file)
}

/// The name of an open file for other processes, as long as this one has it open.
fn path_of(file: &fs::File) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
}

/// Opens a root shell in a guest, on this terminal.
pub(super) fn shell(image: &Image, kernel: Kernel, programs: &Programs) -> Result<()> {
    let folder = step::root().join(".build/lab/shell");
    println!("(the host's loopback address is 10.0.2.2; load the scenarios' functions with . $LAB/lib.sh)");
    let script = scenario::folder().join("shell");
    let system = System::Script;
    let boot = Boot {
        image,
        kernel,
        options: "",
        system,
        clock: Clock::Host,
        nvme: true,
        vhost: false,
        vhost_root: false,
        two_machines: false,
        ceph: None,
        island: None,
        script: &script,
    };
    let mut guest = Guest::boot(&boot, programs, &folder, Stdio::inherit())?;
    while guest.emulator.try_wait()?.is_none() {
        guest.host.turn()?;
        std::thread::sleep(TURN);
    }
    Ok(())
}

/// Records the result in a line of output; whether the line contains one.
fn parse_line(line: &str, steps: &mut Vec<(String, bool)>, figures: &mut Vec<String>) -> bool {
    if let Some(step) = line.strip_prefix(":: ok ") {
        steps.push((without_time(step), true));
    } else if let Some(step) = line.strip_prefix(":: FAILED ") {
        steps.push((without_time(step), false));
    } else if let Some(figure) = line.strip_prefix(":: figure ") {
        figures.push(figure.to_owned());
    } else {
        return line.starts_with(":: ");
    }
    true
}

fn without_time(step: &str) -> String {
    step.rsplit_once(" (").map_or(step, |(name, _)| name).to_owned()
}

fn lines_of(output: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while matches!(output.read_until(b'\n', &mut line), Ok(1..)) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
            line.clear();
        }
    });
    lines
}
