//! The environment of the measurements: cores, folders, programs and processes.

use anyhow::{Context, Result, ensure};
use core::fmt;
use nvmf_tests::cleanup::Cleanup;
use nvmf_tests::process;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// The cores of the target and of the initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cores {
    pub(super) target: usize,
    pub(super) initiator: usize,
}

impl std::str::FromStr for Cores {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a pair of cores: write two numbers, such as 0,1");
        let (target, initiator) = text.split_once(',').ok_or_else(wrong)?;
        let number = |text: &str| text.trim().parse().map_err(|_| wrong());
        let cores = Self { target: number(target)?, initiator: number(initiator)? };
        if cores.target == cores.initiator { Err(wrong()) } else { Ok(cores) }
    }
}

/// As the command line has them, and `taskset`.
impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.target, self.initiator)
    }
}

/// The environment of all measurements.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) cores: Cores,
    /// Duration of a measurement, without its warm-up, in seconds.
    pub(super) seconds: u64,
    /// Duration of the measurement of an idle target, in seconds.
    pub(super) idle_seconds: u64,
    /// Folder for temporary files, of this run.
    pub(super) folder: PathBuf,
    /// Removes it.
    pub(super) _cleanup: Cleanup,
    /// Folder of this project's programs.
    pub(super) programs: PathBuf,
    /// Whether SPDK's programs have hugepages: all of a run, or none.
    pub(super) hugepages: bool,
    /// Print every command that is measured.
    pub(super) verbose: bool,
    /// Folder for the HTML pages of `nvmf-bench`.
    pub(super) html: Option<PathBuf>,
}

impl Site {
    /// Duration of the warm-up, in seconds.
    pub(super) fn warm_up(&self) -> u64 {
        (self.seconds / 5).max(1)
    }

    /// Path of one of this project's programs.
    pub(super) fn ours(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// A call of a program, bound to a core.
    pub(super) fn on(&self, core: usize, program: impl AsRef<std::ffi::OsStr>) -> Command {
        bound_to(&core.to_string(), program.as_ref())
    }

    /// A call of a program that may use both cores.
    pub(super) fn on_both(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        bound_to(&self.cores.to_string(), program.as_ref())
    }

    /// Prints a command, where that is wanted.
    pub(super) fn show(&self, command: &Command) {
        if self.verbose {
            println!("+ {command:?}");
        }
    }

    /// Runs a program that must succeed within the time of a measurement; returns its standard output.
    pub(super) fn run(&self, command: &mut Command) -> Result<Vec<u8>> {
        Ok(self.output(command)?.stdout)
    }

    /// The same, with its standard error.
    pub(super) fn output(&self, command: &mut Command) -> Result<Output> {
        self.show(command);
        let limit = Duration::from_secs(self.warm_up() + self.seconds) + process::TIMEOUT;
        let output = process::run_for(command, limit)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command:?} ended with {}:\n{}", output.status, tail(&said));
        Ok(output)
    }

    /// Starts a server and waits until it listens.
    pub(super) fn serve(&self, command: &mut Command, listens: impl Fn() -> bool) -> Result<Server> {
        self.show(command);
        let log = self.folder.join("peer.log");
        let output = std::fs::File::create(&log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let cleanup = Cleanup::new("kill -TERM \"$1\"", &[&child.id().to_string()])?;
        let mut server = Server { child, cleanup };
        let mut ended = None;
        let listens = process::until("the server listens", || {
            ended = server.child.try_wait().ok().flatten();
            ended.is_some() || listens()
        });
        let said = || tail(&std::fs::read_to_string(&log).unwrap_or_default()).to_owned();
        listens.with_context(|| format!("{command:?}:\n{}", said()))?;
        ensure!(ended.is_none(), "{command:?} ended immediately:\n{}", said());
        Ok(server)
    }
}

fn bound_to(cores: &str, program: &OsStr) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", cores]).arg(program);
    command
}

/// A free port of the loopback address.
pub(super) fn free_address() -> Result<SocketAddr> {
    Ok((Ipv4Addr::LOCALHOST, process::free_port()?).into())
}

/// The last lines of a program's output.
fn tail(text: &str) -> &str {
    const LINES: usize = 12;
    let start = text.trim_end().rmatch_indices('\n').nth(LINES - 1).map_or(0, |(at, _)| at + 1);
    &text[start..]
}

/// A process that is stopped when this is dropped.
pub(super) struct Server {
    child: Child,
    cleanup: Cleanup,
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGTERM first: some servers leave sockets and locks behind if they are killed.
        let _ = process::signal(self.child.id(), "TERM");
        // It is killed if it does not end.
        let _ = process::end(&mut self.child);
        self.cleanup.cancel();
    }
}

/// A process that works until its input ends, which is when this is dropped.
pub(super) struct Background {
    child: Child,
    input: Option<ChildStdin>,
    /// What it says of what goes wrong.
    said: PathBuf,
}

impl Background {
    /// Starts it, and waits for the line that it prints when it is ready, as long as a program may take.
    pub(super) fn start(site: &Site, mut command: Command) -> Result<Self> {
        site.show(&command);
        let said = site.folder.join("background.log");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(std::fs::File::create(&said)?);
        let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let output = child.stdout.take().context("it has no output")?;
        let background = Self { input: child.stdin.take(), child, said };
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(output).read_line(&mut line);
            tell.send(line)
        });
        let line = told.recv_timeout(process::TIMEOUT);
        let line = line.with_context(|| format!("{command:?} says nothing:\n{}", background.said()))?;
        ensure!(!line.is_empty(), "{command:?} ended immediately:\n{}", background.said());
        Ok(background)
    }

    /// That it has worked until now.
    pub(super) fn check(&mut self) -> Result<()> {
        let ended = self.child.try_wait()?;
        ensure!(ended.is_none(), "what went on beside the measurement ended:\n{}", self.said());
        Ok(())
    }

    fn said(&self) -> String {
        tail(&std::fs::read_to_string(&self.said).unwrap_or_default()).to_owned()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.input.take());
        // It is killed if it does not end.
        let _ = process::end(&mut self.child);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_must_be_two_different_numbers() {
        assert_eq!("2,5".parse(), Ok(Cores { target: 2, initiator: 5 }));
        for wrong in ["1", "1,1", "a,b", "1,2,3", ""] {
            let error = wrong.parse::<Cores>().unwrap_err();
            assert!(error.contains("two numbers"), "{error}");
        }
    }

    #[test]
    fn tail_returns_last_lines() {
        let text: String = (0..20).map(|line| format!("{line}\n")).collect();
        assert!(tail(&text).starts_with("8\n") && tail(&text).ends_with("19\n"));
        assert_eq!(tail("one"), "one");
    }
}
