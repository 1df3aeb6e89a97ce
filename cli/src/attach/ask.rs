//! Asking the server of an attached disk for something, and waiting for it.

use super::answer::{self, OtherVersion, Question};
use super::counted::Statistics;
use super::detach::Process;
use super::process::pid_namespace;
use super::registry::Listed;
use crate::interrupt;
use anyhow::{Context, Result, bail, ensure};
use nvmf_attached::{Attachment, State, Supervisor};
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// How long a target may take to answer that is there.
pub(super) const RECONNECT_TIME_MAX: Duration = Duration::from_secs(20);
/// When one that is lost again is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long a server may take to end what is under way, and another to take its place.
const UPGRADE_TIME_MAX: Duration = Duration::from_secs(60);
/// How long a server may take to say how a disk is that is connected again.
const STATE_TIME_MAX: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);

/// Why a disk cannot be used, behind what is said of it.
fn why(disk: &Attachment) -> String {
    disk.reason.as_ref().map_or_else(String::new, |why| format!(": {why}"))
}

impl Listed {
    /// What the disk's server has done since it began to serve.
    pub(crate) fn statistics(&self) -> Result<Statistics> {
        self.check_is_served()?;
        answer::ask(&self.answers(), &Question::Statistics)?.context("its server's answer cannot be read")
    }

    /// Has the disk's server do something that it has not done yet when this ends.
    pub(crate) fn ask(&self, question: &Question) -> Result<()> {
        self.check_is_served()?;
        answer::ask(&self.answers(), question).map(drop)
    }

    /// Has the disk's server connect again now, also to a target that was given up, and waits until it has.
    pub(crate) fn reconnect(&self) -> Result<()> {
        let live = |disk: &Attachment| disk.state == State::Live;
        let deadline = Instant::now() + RECONNECT_TIME_MAX;
        loop {
            match self.ask(&Question::Reconnect) {
                // All versions are asked by this signal.
                Err(error) if error.is::<OtherVersion>() => self.signal(Signal::USR1)?,
                asked => asked?,
            }
            // A target that has just started may not have all of its addresses yet, and some give up at the first failure.
            let asked = Instant::now();
            let is_over = |disk: &Attachment| disk.state == State::Lost && asked.elapsed() > ASK_AGAIN;
            match self.until(deadline - asked.min(deadline), |disk| live(disk) || is_over(disk))? {
                Some(disk) if live(&disk) => return Ok(()),
                Some(_) if interrupt::was_asked() => interrupt::check()?,
                Some(Attachment { state, reason, .. }) if Instant::now() >= deadline => bail!(
                    "it is {} still{}",
                    state.as_str(),
                    reason.map(|reason| format!(": {reason}")).unwrap_or_default()
                ),
                Some(_) => {}
                None => bail!("it was detached meanwhile"),
            }
        }
    }

    /// Has the disk's server use one more path, named as `--path` does, and waits until that is written down.
    pub(crate) fn add_path(&self, name: &str) -> Result<()> {
        self.ask(&Question::AddPath(name.to_owned()))?;
        let has = |disk: &Attachment| disk.added_paths.iter().any(|it| it == name);
        match self.until(RECONNECT_TIME_MAX, has)? {
            Some(disk) if has(&disk) => Ok(()),
            Some(_) if interrupt::was_asked() => interrupt::check(),
            Some(_) => bail!("its server has not written the path down: its log may say why"),
            None => bail!("it was detached meanwhile"),
        }
    }

    /// Whether its server answers, if it has one.
    pub(crate) fn answers_now(&self) -> Result<()> {
        if matches!(self.disk.state, State::Killed | State::Unknown | State::Attaching) {
            return Ok(());
        }
        answer::ask(&self.answers(), &Question::Statistics).map(drop)
    }

    /// Has the disk's target asked again which namespaces there are.
    pub(crate) fn rescan(&self) -> Result<()> {
        self.connected_paths("nobody to ask")?;
        self.ask(&Question::Rescan)
    }

    /// How many of its paths are connected: one at least. `what` there is not without one.
    fn connected_paths(&self, what: &str) -> Result<u64> {
        self.check_is_served()?;
        let is_connected = |state| matches!(state, State::Live | State::Foreign);
        let paths = self.disk.paths.iter().filter(|path| is_connected(path.state)).count() as u64;
        ensure!(
            paths > 0,
            "it is {}: there is {what} (nvmf reconnect tries again at once){}",
            self.disk.state.as_str(),
            why(&self.disk)
        );
        Ok(paths)
    }

    /// Has the disk's server end its connections and connect again, and waits until it has: how the disk is by then, if it is not live.
    pub(crate) fn reset(&self) -> Result<Option<String>> {
        let Statistics { reconnects: before, threads, .. } = self.statistics()?;
        // Each of its threads has them.
        let connections = self.connected_paths("no connection to end")? * threads.max(1);
        answer::ask(&self.answers(), &Question::Reset)?;
        let deadline = Instant::now() + RECONNECT_TIME_MAX;
        loop {
            let now = self.again()?.context("it was detached meanwhile")?;
            let again = now.statistics()?.reconnects.saturating_sub(before);
            if again >= connections {
                let disk = self.until(STATE_TIME_MAX, |disk| disk.state == State::Live)?;
                let disk = disk.context("it was detached meanwhile")?;
                let state = disk.state;
                return Ok((state != State::Live).then(|| format!("it is {}{}", state.as_str(), why(&disk))));
            }
            ensure!(
                Instant::now() < deadline,
                "{again} of {connections} connection(s) are there again, it is {}{}",
                now.disk.state.as_str(),
                why(&now.disk)
            );
            std::thread::sleep(POLL);
        }
    }

    /// Has the disk's server end what is under way and leave the disk to a new one, of the program that is installed now: the number
    /// of that process.
    pub(crate) fn upgrade(&self) -> Result<u32> {
        ensure!(
            self.disk.supervisor != Supervisor::Nobody,
            "nobody would start its server again: detach it, and attach it with this version"
        );
        self.signal(Signal::USR2)?;
        let served = |disk: &Attachment| disk.pid != self.disk.pid && disk.state == State::Live;
        match self.until(UPGRADE_TIME_MAX, served)? {
            Some(disk) if served(&disk) => Ok(disk.pid),
            Some(disk) if disk.pid != self.disk.pid && disk.state == State::Killed => {
                bail!("process {} took it over, and nobody serves it now{}", disk.pid, why(&disk))
            }
            Some(Attachment { state, pid, .. }) if pid != self.disk.pid => {
                bail!("process {pid} serves it now, but it is {} still: nvmf list says more", state.as_str())
            }
            Some(_) => bail!("no other process serves it yet: nvmf list shows whether one does"),
            None => bail!("it was detached meanwhile"),
        }
    }

    /// Fails where nobody could answer.
    fn check_is_served(&self) -> Result<()> {
        match self.disk.state {
            State::Killed => {
                bail!("its server was killed: {}", self.remedy())
            }
            State::Unknown => {
                bail!("another version of nvmf serves it: use that, or detach it and attach it again")
            }
            State::Attaching => bail!("it is only being attached"),
            _ => Ok(()),
        }
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        self.check_folder()?;
        self.check_is_served()?;
        let disk = &self.disk;
        let pid = disk.pid;
        ensure!(
            disk.pid_namespace == pid_namespace(),
            "it is served by process {pid} of another PID namespace (a container's?): ask there"
        );
        let process = Process::open(pid)?;
        ensure!(self.is_served(), "its server has just ended");
        process.signal(signal)
    }

    /// The entry once it is as wanted, or as it is when the time is over; `None` when it is gone.
    pub(super) fn until(
        &self,
        most: Duration,
        wanted: impl Fn(&Attachment) -> bool,
    ) -> Result<Option<Attachment>> {
        let deadline = Instant::now() + most;
        loop {
            let Some(now) = self.again()? else { return Ok(None) };
            if wanted(&now.disk) || Instant::now() > deadline || interrupt::was_asked() {
                return Ok(Some(now.disk));
            }
            std::thread::sleep(POLL);
        }
    }
}
