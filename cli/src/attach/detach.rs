//! Taking a disk away.

use super::answer::Silent;
use super::in_use;
use super::process::pid_namespace;
use super::registry::{Listed, Outcome};
use anyhow::{Context, Result, bail, ensure};
use nvmf_attached::{State, Supervisor};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a disk may take to be detached: its last requests, and a flush.
const DETACH_TIME_MAX: Duration = Duration::from_secs(80);
/// The same of a server that is stopped: it can do nothing.
const STOPPED_TIME_MAX: Duration = Duration::from_millis(500);
/// How long a device may be open in processes that come and go, as udev's do, and a socket have clients that do.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(5);
/// How long another server may take to take over a disk whose server was killed.
pub(super) const RESTART_TIME_MAX: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(5);
/// Between two signals: the second one says that the first was meant.
const INSIST: Duration = Duration::from_millis(500);

impl Listed {
    /// Has the disk's server flush and end, and waits until it has. A disk that is in use is refused, unless with
    /// `force`. What a server that was killed left behind is cleared away, which is an error too: what was not flushed
    /// may be lost.
    pub(crate) fn detach(&self, force: bool) -> Result<()> {
        self.check_folder()?;
        if let Some(served) = self.after_restart()? {
            return served.detach(force);
        }
        let disk = &self.disk;
        let pid = disk.pid;
        let refuse_left_in_use = || match (&disk.device, force) {
            (Some(device), false) => refuse_in_use(device, pid),
            _ => Ok(()),
        };
        match disk.state {
            State::Killed => {
                refuse_left_in_use()?;
                let by_whom = self.cleared_away()?;
                bail!(
                    "its server was killed, and it is cleared away{by_whom}: what was not flushed may be lost"
                );
            }
            State::Unknown if self.is_served() => {
                let or_end = self.server().map(|pid| format!(", or end process {pid}")).unwrap_or_default();
                bail!(
                    "{} was written by another version of nvmf, whose server has it: detach it with that{or_end}",
                    self.file().display()
                );
            }
            State::Unknown => {
                refuse_left_in_use()?;
                let by_whom = self.cleared_away()?;
                bail!(
                    "another version of nvmf wrote {}, or it was damaged, and its server is gone: it is cleared away{by_whom}, with the files \
                     of the same name; what was not flushed may be lost",
                    self.file().display()
                );
            }
            _ => {}
        }
        ensure!(
            disk.pid_namespace == pid_namespace(),
            "it is served by process {pid} of another PID namespace (a container's?): detach it there"
        );
        let process = Process::open(pid);
        // The number was this server's if it holds its lock now, and the descriptor is its from here on.
        if self.is_served() {
            let process = match (process, self.again()?) {
                (Ok(process), _) => process,
                // It has just ended, and another has its place.
                (Err(_), Some(now)) if now.disk.pid != pid => return now.detach(force),
                (Err(error), _) => return Err(error),
            };
            let is_silent = self.answers_now().is_err_and(|error| error.is::<Silent>());
            if !force {
                match &disk.device {
                    Some(device) => refuse_in_use(device, pid)?,
                    // One that says nothing has its disk detached all the same.
                    None if is_silent => {}
                    None => self.refuse_clients()?,
                }
            }
            process.terminate()?;
            if let Some(other) = self.wait(&process, force, is_silent && is_stopped(pid))? {
                // It was killed before it could end, and another has taken its place.
                return other.detach(force);
            }
        }
        let outcome = self.outcome();
        // Its files, should it have left any.
        self.clear_away();
        match outcome {
            Outcome::Flushed => Ok(()),
            Outcome::Failed(reason) => bail!("it is detached, but its server ended with an error: {reason}"),
            Outcome::Killed => bail!("its server was killed: what was not flushed may be lost"),
        }
    }

    /// Clears away what a killed server left: by whom that was done, if not here. Fails where another server has it by now.
    fn cleared_away(&self) -> Result<&'static str> {
        let is_cleared = self.clear_away();
        ensure!(is_cleared || !self.exists(), "another server takes it over at this moment: detach it again");
        Ok(if is_cleared { "" } else { " by somebody else" })
    }

    /// Whether nobody uses its device, as far as can be seen. Of a socket that is whether it has no client.
    pub(crate) fn is_idle(&self) -> bool {
        let disk = &self.disk;
        match &disk.device {
            Some(device) => in_use::users(device, disk.pid).is_empty(),
            None => self.statistics().is_ok_and(|statistics| statistics.clients == 0),
        }
    }

    /// Fails when its socket has clients, after a while in which they may go.
    fn refuse_clients(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            let clients = self.statistics().map_or(0, |statistics| statistics.clients);
            if clients == 0 {
                return Ok(());
            }
            if start.elapsed() > SETTLE_TIME_MAX {
                let whose = match (self.disk.vhost_user, clients) {
                    (true, _) => "a virtual machine".to_owned(),
                    (false, 1) => "a client".to_owned(),
                    (false, clients) => format!("{clients} clients"),
                };
                bail!(
                    "{} is in use by {whose}; end that first, or detach it with --force",
                    self.disk.place().display()
                );
            }
            std::thread::sleep(POLL * 10);
        }
    }

    /// The disk once another server has taken it over from one that was killed; `None` when none does. The time for that is since the
    /// entry was read: many of them are waited for together.
    fn after_restart(&self) -> Result<Option<Self>> {
        if self.disk.state != State::Killed || self.disk.supervisor == Supervisor::Nobody || !self.is_usable()
        {
            return Ok(None);
        }
        loop {
            let Some(now) = self.again()? else { return Ok(None) };
            if now.disk.state != State::Killed {
                return Ok(Some(now));
            }
            if self.read_at.elapsed() > RESTART_TIME_MAX {
                return Ok(None);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Waits for the server's end. The disk, if it was taken over by another meanwhile.
    fn wait(&self, process: &Process, force: bool, is_stopped: bool) -> Result<Option<Self>> {
        let (start, pid) = (Instant::now(), self.disk.pid);
        let mut insisted = start;
        while self.is_served() {
            if let Some(other) = self.again()?.filter(|now| now.disk.pid != self.disk.pid) {
                return Ok(Some(other));
            }
            if self.now().is_some_and(|now| now.state == State::Ending) {
                ensure!(
                    force,
                    "{} came into use: it is detached as soon as it is not, or with --force",
                    self.disk.place().display()
                );
                if insisted.elapsed() > INSIST {
                    insisted = Instant::now();
                    process.terminate()?;
                }
            }
            ensure!(
                !is_stopped || start.elapsed() < STOPPED_TIME_MAX,
                "{Silent}: look at process {pid}: stopped, it goes on with kill -CONT {pid}, and the disk is detached then"
            );
            ensure!(
                start.elapsed() < DETACH_TIME_MAX,
                "{} is still being detached after {DETACH_TIME_MAX:?}: is its target there? (kill -9 {pid} ends it; what was not flushed may \
                 be lost)",
                self.disk.place().display(),
            );
            std::thread::sleep(POLL);
        }
        Ok(None)
    }
}

/// Whether a process is stopped (SIGSTOP, a debugger), as far as can be told. One that is only slow answers in the end.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which may have anything in it.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

/// Fails when a device is in use, after a while in which its users may go.
fn refuse_in_use(device: &Path, server: u32) -> Result<()> {
    let start = Instant::now();
    loop {
        let users = in_use::users(device, server);
        if users.is_empty() {
            return Ok(());
        }
        let only_open = users.iter().all(in_use::User::comes_and_goes);
        if !only_open || start.elapsed() > SETTLE_TIME_MAX {
            let users: Vec<_> = users.iter().map(ToString::to_string).collect();
            bail!(
                "{} is in use: {}; end that first, or detach it with --force",
                device.display(),
                users.join(", ")
            );
        }
        std::thread::sleep(POLL * 10);
    }
}

/// A process, which stays the same whatever becomes of its number.
pub(super) struct Process(OwnedFd);

impl Process {
    pub(super) fn open(pid: u32) -> Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no process has such a number")?;
        let process = pidfd_open(pid, PidfdFlags::empty());
        Ok(Self(process.with_context(|| format!("cannot reach process {pid}"))?))
    }

    fn terminate(&self) -> Result<()> {
        self.signal(Signal::TERM)
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        match pidfd_send_signal(&self.0, signal) {
            // It has ended already.
            Err(rustix::io::Errno::SRCH) => Ok(()),
            sent => sent.context("cannot reach the disk's server"),
        }
    }
}
