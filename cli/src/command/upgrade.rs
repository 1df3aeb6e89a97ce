//! `nvmf upgrade`: has a disk served by the version that is installed now.

use crate::attach::{Listed, Registry};
use crate::print::{complain, line};
use anyhow::{Context, Result};
use nvmf_attached::{Attachment, State};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long it may take before it is said what it waits for, and how long a disk that was not in use before has to come back.
const QUIET: Duration = Duration::from_secs(3);
const POLL: Duration = Duration::from_millis(50);

/// Where an upgrade is.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// The server that is to end has not, or nobody serves the disk.
    Ending,
    /// Another serves the disk, and is not connected yet.
    Connecting,
    /// Another serves the disk, and its target has not what it had before.
    Worse,
    /// Another serves the disk, as well as the one before it did.
    Done,
}

/// Where the upgrade is of a disk, by its entry before and now, and by how long the process that serves it now has done so.
fn step(before: &Attachment, now: &Attachment, served: Duration) -> Step {
    if now.pid == before.pid {
        return Step::Ending;
    }
    // A target that was away before may be away for a day; a program that cannot serve ends sooner.
    let is_as_before = before.state != State::Live && served >= QUIET;
    match now.state {
        State::Killed | State::Unknown | State::Attaching => Step::Ending,
        State::Live => Step::Done,
        _ if is_as_before => Step::Done,
        State::Foreign | State::Removed | State::Lost => Step::Worse,
        State::Reconnecting | State::Inaccessible | State::Ending => Step::Connecting,
    }
}

/// How a disk is that is not live, and why.
fn how(disk: &Attachment) -> String {
    let why = disk.reason.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    format!("{}{why}", disk.state.as_str())
}

/// The entry of a disk as it is now; `None`: it was detached.
fn entry(id: &str) -> Result<Option<Listed>> {
    Ok(Registry::of_this_user().list()?.into_iter().find(|listed| listed.id() == id))
}

/// What it waits for.
fn awaited(step: &Step, before: &Attachment, now: &Attachment) -> String {
    match step {
        Step::Ending if now.pid == before.pid => {
            format!("waits for process {} to end what is under way on {before}", before.pid)
        }
        Step::Ending => format!("process {} had taken {before} over: {}", now.pid, how(now)),
        _ => format!("process {} serves {before} now, and waits for its target: it is {}", now.pid, how(now)),
    }
}

/// Has a new server take the disk over, and waits until it does. That the target is away meanwhile is no failure of that.
pub(super) fn upgrade(listed: &Listed) -> Result<()> {
    let (ended, result) = channel();
    // Others may have been upgraded since the disk was listed, for a minute each.
    let asked = entry(listed.id())?.context("it was detached meanwhile")?;
    let (before, begun) = (asked.disk.clone(), Instant::now());
    // It waits for the target, too: longer than anybody wants to for one that was away before.
    std::thread::Builder::new().spawn(move || ended.send(asked.upgrade()))?;
    let (mut was_said, mut server) = (false, (before.pid, begun));
    loop {
        let result = match result.recv_timeout(POLL) {
            Ok(result) => Some(result),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                anyhow::bail!("nothing became of it: nvmf list shows how it is")
            }
        };
        let now = entry(listed.id())?.map(|listed| listed.disk);
        let now = now.as_ref().unwrap_or(&before);
        if now.pid != server.0 || now.state == State::Killed {
            server = (now.pid, Instant::now());
        }
        let served = server.1.elapsed();
        match (step(&before, now, served), result) {
            (_, Some(Ok(pid))) => return line(format_args!("process {pid} serves {before}")),
            (Step::Done, _) if now.state == State::Live => {
                return line(format_args!("process {} serves {before}", now.pid));
            }
            (Step::Done, _) => {
                let was = match before.state {
                    state if state == now.state => "is as it was before".to_owned(),
                    state => format!("was {} before, and is so no more", state.as_str()),
                };
                return line(format_args!("process {} serves {before}, which {was}: {}", now.pid, how(now)));
            }
            // It was done, whatever became of the target.
            (Step::Connecting, Some(Err(_))) if served >= QUIET => {
                complain(format_args!(
                    "{before}: its target was there before, and is not now: {}. I/O waits for it",
                    how(now)
                ));
                return line(format_args!("process {} serves {before}", now.pid));
            }
            (_, Some(Err(error))) => return Err(error),
            (step, None) if begun.elapsed() >= QUIET && !was_said => {
                was_said = true;
                complain(awaited(&step, &before, now));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(pid: u32, state: State) -> Attachment {
        Attachment { pid, state, ..Attachment::default() }
    }

    #[test]
    fn disk_is_upgraded_when_another_process_serves_it_and_has_not_died() {
        let of = |before, now, served| step(&disk(1, before), &disk(2, now), served);
        let soon = Duration::from_millis(1);
        for before in [State::Live, State::Reconnecting, State::Lost] {
            assert_eq!(step(&disk(1, before), &disk(1, State::Live), QUIET), Step::Ending);
            assert_eq!(of(before, State::Live, soon), Step::Done);
            for nobody in [State::Killed, State::Unknown, State::Attaching] {
                assert_eq!(of(before, nobody, QUIET), Step::Ending, "{before:?} {nobody:?}");
            }
        }
        for away in [State::Reconnecting, State::Inaccessible] {
            assert_eq!(of(State::Live, away, QUIET), Step::Connecting);
            assert_eq!(of(State::Reconnecting, away, soon), Step::Connecting);
            assert_eq!(of(State::Reconnecting, away, QUIET), Step::Done);
        }
        for gone in [State::Foreign, State::Removed, State::Lost] {
            assert_eq!(of(State::Live, gone, QUIET), Step::Worse);
            assert_eq!(of(gone, gone, QUIET), Step::Done);
        }
    }
}
