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
    /// The server that is to end has not.
    Ending,
    /// Another serves the disk, and is not connected yet.
    Connecting,
    /// Another serves the disk, as well as the one before it did.
    Done,
}

/// Where the upgrade is of a disk, by its entry before and now.
fn step(before: &Attachment, now: &Attachment, waited: Duration) -> Step {
    if now.pid == before.pid {
        return Step::Ending;
    }
    // A target that was away before may be away for a day.
    let was_away = before.state != State::Live;
    match now.state == State::Live || was_away && waited >= QUIET {
        true => Step::Done,
        false => Step::Connecting,
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

/// Has a new server take the disk over, and waits until it does. That the target is away meanwhile is no failure of that.
pub(super) fn upgrade(listed: &Listed) -> Result<()> {
    let (before, begun) = (&listed.disk, Instant::now());
    let (ended, result) = channel();
    // It waits for the target, too: longer than anybody wants to for one that was away before.
    let asked = entry(listed.id())?.context("it was detached meanwhile")?;
    std::thread::Builder::new().spawn(move || ended.send(asked.upgrade()))?;
    let mut was_said = false;
    loop {
        let result = match result.recv_timeout(POLL) {
            Ok(result) => Some(result),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                anyhow::bail!("nothing became of it: nvmf list shows how it is")
            }
        };
        let now = entry(listed.id())?.map(|listed| listed.disk);
        let (now, waited) = (now.as_ref().unwrap_or(before), begun.elapsed());
        match (step(before, now, waited), result) {
            (_, Some(Ok(pid))) => return line(format_args!("process {pid} serves {}", listed.disk)),
            (Step::Done, _) if now.state == State::Live => {
                return line(format_args!("process {} serves {}", now.pid, listed.disk));
            }
            (Step::Done, _) => {
                return line(format_args!(
                    "process {} serves {}, which is as it was before: {}",
                    now.pid,
                    listed.disk,
                    how(now)
                ));
            }
            // It was done, whatever became of the target.
            (Step::Connecting, Some(Err(_))) => {
                complain(format_args!(
                    "{}: its target was there before, and is not now: {}. I/O waits for it",
                    listed.disk,
                    how(now)
                ));
                return line(format_args!("process {} serves {}", now.pid, listed.disk));
            }
            (Step::Ending, Some(Err(error))) => return Err(error),
            (step, _) if waited >= QUIET && !was_said => {
                was_said = true;
                match step {
                    Step::Connecting => complain(format_args!(
                        "process {} serves {} now, and waits for its target: it is {}",
                        now.pid,
                        listed.disk,
                        how(now)
                    )),
                    _ => complain(format_args!(
                        "waits for process {} to end what is under way on {}",
                        before.pid, listed.disk
                    )),
                }
            }
            _ => {}
        }
    }
}
