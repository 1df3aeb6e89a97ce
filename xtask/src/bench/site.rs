//! The environment of the measurements: cores, folders, programs and processes.

use anyhow::{Context, Result, ensure};
use nvmf_tests::process;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
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

/// The environment of all measurements.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) cores: Cores,
    /// Duration of a measurement, without its warm-up, in seconds.
    pub(super) seconds: u64,
    /// Duration of the measurement of an idle target, in seconds.
    pub(super) idle_seconds: u64,
    /// Folder for temporary files.
    pub(super) folder: PathBuf,
    /// Folder of this project's programs.
    pub(super) programs: PathBuf,
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
        let mut command = Command::new("taskset");
        command.args(["-c", &core.to_string()]).arg(program);
        command
    }

    /// Runs a program that must succeed within the time of a measurement; returns its output.
    pub(super) fn run(&self, command: &mut Command) -> Result<Vec<u8>> {
        let limit = Duration::from_secs(self.warm_up() + self.seconds) + process::TIMEOUT;
        let output = process::run_for(command, limit)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command:?} ended with {}:\n{}", output.status, tail(&said));
        Ok(output.stdout)
    }

    /// Starts a peer's server and waits until it listens.
    pub(super) fn serve(&self, command: &mut Command, address: SocketAddr) -> Result<Server> {
        let log = self.folder.join("peer.log");
        let output = std::fs::File::create(&log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let mut server = Server(child);
        let mut ended = None;
        let listens = process::until("the server listens", || {
            ended = server.0.try_wait().ok().flatten();
            ended.is_some() || TcpStream::connect(address).is_ok()
        });
        let said = || tail(&std::fs::read_to_string(&log).unwrap_or_default()).to_owned();
        listens.with_context(|| format!("{command:?}:\n{}", said()))?;
        ensure!(ended.is_none(), "{command:?} ended immediately:\n{}", said());
        Ok(server)
    }
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
pub(super) struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // SIGTERM first: some servers leave sockets and locks behind if they are killed.
        let _ = process::signal(self.0.id(), "TERM");
        if process::end(&mut self.0).is_err() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
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
