//! The process that outlives a disk's server, and starts another when that is killed.
//!
//! While a disk has no server its requests wait: ublk's driver keeps them, and so does the kernel's nbd client; the clients of a
//! socket connect again. Where systemd supervises the server, it does what is done here.

use super::process;
use super::registry::Registry;
use anyhow::{Context, Result};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// What the server says at an end that is meant.
const OVER: u8 = b'.';
/// Before the second start of a server that has not lived long; doubled for each one after it.
const RESTART_DELAY: Duration = Duration::from_millis(100);
const RESTART_DELAY_MAX: Duration = Duration::from_secs(10);
/// So many starts take some ten minutes.
const STARTS_WITHOUT_FOLDER_MAX: u32 = 60;
/// Before the name of the disk that a server is to take over, in its arguments.
pub(super) const RESUME: &str = "--resume=";
/// A server that lived so long was started well.
const LONG_LIFE: Duration = Duration::from_secs(60);

/// How a server is started again.
#[derive(Debug, Clone)]
pub(crate) struct Restart {
    /// The arguments of `serve`.
    pub(crate) arguments: Vec<OsString>,
    /// The folder that their paths are meant in.
    pub(crate) folder: PathBuf,
    /// How often that was done since the last one that lived long.
    pub(crate) count: u32,
}

/// Waits for the end of the process that started this one. If that did not say that the end was meant, starts another one, again and
/// again until one has a guard of its own, or nobody wants it any more.
pub(crate) fn guard(restart: &Restart) -> Result<()> {
    process::leave_caller();
    process::stay_in_memory();
    let start = Instant::now();
    let program = program()?;
    crate::runtime::run(async {
        // Signals to the server's terminal reach this process, too.
        let _deaf = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
        let mut said = Vec::new();
        std::io::stdin().read_to_end(&mut said)?;
        if said.contains(&OVER) {
            return Ok(());
        }
        let mut count = if start.elapsed() > LONG_LIFE { 0 } else { restart.count };
        loop {
            if count > 0 {
                let factor = 1_u32.checked_shl(count - 1).unwrap_or(u32::MAX);
                std::thread::sleep(RESTART_DELAY.saturating_mul(factor).min(RESTART_DELAY_MAX));
            }
            count = count.saturating_add(1);
            // What lies there now may be a newer version. Where it is gone, this one goes on. What keeps either from starting may pass.
            let started = start_server(&program, restart, count)
                .or_else(|_| start_server(Path::new("/proc/self/exe"), restart, count));
            if started.is_ok_and(is_guarded) || !restart.is_wanted(count) {
                return Ok(());
            }
        }
    })
}

fn start_server(program: &Path, restart: &Restart, count: u32) -> io::Result<Child> {
    let folder = if restart.folder.is_dir() { restart.folder.as_path() } else { Path::new("/") };
    let mut command = Command::new(program);
    command.arg0(super::SERVER_NAME).arg("serve").args(&restart.arguments);
    command.arg(format!("--restarts={count}")).current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
}

/// Whether a server that was started says that it has a guard; otherwise it has ended.
fn is_guarded(mut server: Child) -> bool {
    let said = server.stdout.take().is_some_and(|mut output| output.read_exact(&mut [0]).is_ok());
    said || server.wait().is_err()
}

/// What a server has to tell the guard that started it.
#[derive(Debug)]
pub(super) struct Starter(File);

impl Starter {
    pub(super) fn of_this_process() -> Result<Self> {
        Ok(Self(File::from(io::stdout().as_fd().try_clone_to_owned()?)))
    }

    /// Another guard looks after this process from now on.
    pub(super) fn dismiss(mut self) {
        // Whoever is gone already waits for nothing.
        let _ = self.0.write_all(&[OVER]);
    }
}

impl Restart {
    /// Whether the disk still waits for a server. Where its folder is not there it may come back, but not for ever.
    fn is_wanted(&self, count: u32) -> bool {
        let of = |argument: &OsString| argument.to_str()?.strip_prefix(RESUME).map(str::to_owned);
        let Some(id) = self.arguments.iter().find_map(of) else { return false };
        let registry = Registry::of_this_user();
        if registry.is_there() { registry.waits(&id) } else { count < STARTS_WITHOUT_FOLDER_MAX }
    }
}

/// Where this program lies, or lay before it was replaced.
fn program() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot tell where this program lies")?;
    let text = program.to_str().and_then(|text| text.strip_suffix(" (deleted)"));
    Ok(text.map_or_else(|| program.clone(), PathBuf::from))
}

/// A guard, as its server has it.
#[derive(Debug)]
pub(super) struct Guard {
    child: Child,
    line: ChildStdin,
}

impl Guard {
    /// Starts a guard over this process.
    pub(super) fn start(restart: &Restart) -> Result<Self> {
        let spawn = |program: &Path| {
            let mut command = Command::new(program);
            command.arg0(super::SERVER_NAME).arg("guard").arg(format!("--restarts={}", restart.count));
            command.arg("--folder").arg(&restart.folder).arg("--").args(&restart.arguments);
            process::name_folder(&mut command);
            command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
        };
        // What lies there may be gone, or in a home that a server which has given up capabilities may not enter.
        let child = spawn(&program()?).or_else(|_| spawn(Path::new("/proc/self/exe")));
        let mut child = child.context("cannot start the disk's guard")?;
        let line = child.stdin.take().context("the disk's guard does not listen")?;
        Ok(Self { child, line })
    }

    /// Whether it lives, as it should.
    pub(super) fn lives(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The end of this process is meant.
    pub(super) fn dismiss(mut self) {
        let _ = self.line.write_all(&[OVER]);
        drop(self.line);
        let _ = self.child.wait();
    }
}
