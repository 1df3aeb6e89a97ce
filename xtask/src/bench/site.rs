//! Where it all runs: cores, folder, programs, and the processes that are started on them.

use anyhow::{Context, Result, ensure};
use nvmf_tests::process;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// One core for whoever serves, one for whoever asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cores {
    pub(super) target: usize,
    pub(super) initiator: usize,
}

impl std::str::FromStr for Cores {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no pair of cores: write two numbers, such as 0,1");
        let (target, initiator) = text.split_once(',').ok_or_else(wrong)?;
        let number = |text: &str| text.trim().parse().map_err(|_| wrong());
        let cores = Self { target: number(target)?, initiator: number(initiator)? };
        if cores.target == cores.initiator { Err(wrong()) } else { Ok(cores) }
    }
}

/// What every measurement needs to know.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) cores: Cores,
    /// How long one measurement takes, without its warm-up.
    pub(super) seconds: u64,
    /// How long an idle target is watched.
    pub(super) idle_seconds: u64,
    /// For what is made on the way.
    pub(super) folder: PathBuf,
    /// Where our programs lie.
    pub(super) programs: PathBuf,
    /// Where the pages of `nvmf-bench` go.
    pub(super) html: Option<PathBuf>,
}

impl Site {
    /// Seconds before a measurement that do not count.
    pub(super) fn warm_up(&self) -> u64 {
        (self.seconds / 5).max(1)
    }

    /// A program of ours.
    pub(super) fn ours(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// A call bound to a core.
    pub(super) fn on(&self, core: usize, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("taskset");
        command.args(["-c", &core.to_string()]).arg(program);
        command
    }

    /// The output of a program that must end well, in the time that a measurement may take.
    pub(super) fn run(&self, command: &mut Command) -> Result<Vec<u8>> {
        let limit = Duration::from_secs(self.warm_up() + self.seconds) + process::TIMEOUT;
        let output = process::run_for(command, limit)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command:?} ended with {}:\n{}", output.status, tail(&said));
        Ok(output.stdout)
    }

    /// Starts a server of somebody else's, and waits until it listens.
    pub(super) fn serve(&self, command: &mut Command, address: SocketAddr) -> Result<Server> {
        let log = self.folder.join("peer.log");
        let output = std::fs::File::create(&log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        let mut server = Server(child);
        let mut ended = None;
        let listens = process::until("it listens", || {
            ended = server.0.try_wait().ok().flatten();
            ended.is_some() || TcpStream::connect(address).is_ok()
        });
        let said = || tail(&std::fs::read_to_string(&log).unwrap_or_default()).to_owned();
        listens.with_context(|| format!("{command:?}:\n{}", said()))?;
        ensure!(ended.is_none(), "{command:?} ended at once:\n{}", said());
        Ok(server)
    }
}

/// A free port of the loopback address.
pub(super) fn free_address() -> Result<SocketAddr> {
    Ok((Ipv4Addr::LOCALHOST, process::free_port()?).into())
}

/// The last lines of what a program said.
fn tail(text: &str) -> &str {
    const LINES: usize = 12;
    let start = text.trim_end().rmatch_indices('\n').nth(LINES - 1).map_or(0, |(at, _)| at + 1);
    &text[start..]
}

/// A process that is stopped when this is dropped.
pub(super) struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Politely first: some leave sockets and locks behind otherwise.
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
    fn cores_are_two_different_numbers() {
        assert_eq!("2,5".parse(), Ok(Cores { target: 2, initiator: 5 }));
        for wrong in ["1", "1,1", "a,b", "1,2,3", ""] {
            let error = wrong.parse::<Cores>().unwrap_err();
            assert!(error.contains("two numbers"), "{error}");
        }
    }

    #[test]
    fn the_tail_is_the_last_lines() {
        let text: String = (0..20).map(|line| format!("{line}\n")).collect();
        assert!(tail(&text).starts_with("8\n") && tail(&text).ends_with("19\n"));
        assert_eq!(tail("one"), "one");
    }
}
