//! An entry, as it was when it was read: of a disk that is served, or whose server was killed.

use super::{Claim, Registry, owner};
use crate::attach::nbd::{self, kernel};
use crate::attach::{entry, lock, ublk};
use crate::interrupt;
use anyhow::Result;
use nvmf_attached::{Attachment, State, Supervisor, VERSION};
use std::fs::File;
use std::io::{Read, Seek};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How often is looked whether a disk has another server.
const NEXT_POLL: Duration = Duration::from_millis(5);

/// An entry, as it was when it was read.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) disk: Attachment,
    /// The state that its server wrote down last.
    pub(super) written: State,
    pub(super) registry: Registry,
    pub(super) id: String,
    /// Open since then, so that what the server ends with can be read however the entry goes.
    pub(super) lock: Option<File>,
    /// When it was read.
    pub(in crate::attach) read_at: Instant,
}

/// What becomes of a disk whose server was killed.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::attach) enum Next {
    /// Another server has it.
    Served(Box<Attachment>),
    /// It is not attached any more.
    Gone,
    /// It waits.
    Nobody(Box<Attachment>),
}

/// What a server ended with.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::attach) enum Outcome {
    /// All was flushed.
    Flushed,
    /// Something went wrong.
    Failed(String),
    /// It said nothing: it was killed.
    Killed,
}

impl Listed {
    /// What the entry is called.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Takes over a disk whose server was killed, if it is meant; `None` when somebody else has, or nobody can.
    pub(in crate::attach) fn take_over(
        self,
        is_meant: impl Fn(&Attachment) -> bool,
    ) -> Result<Option<(Claim, Attachment)>> {
        let Some(lock) = self.registry.lock_dead(&self.id) else { return Ok(None) };
        // Under the lock, as it is now: another server may have had it since it was looked at, and have been killed, too.
        let Some(now) = self.now().filter(is_meant).map(|disk| self.as_written(disk)) else {
            return Ok(None);
        };
        if now.disk.version != VERSION || !now.is_usable() {
            return Ok(None);
        }
        let claim = Claim { registry: now.registry, id: now.id, lock };
        // From now on the entry is that of a server that lives, and what the one before has written last is not so.
        let _ = claim.write(&entry::taken_over(&now.disk));
        Ok(Some((claim, now.disk)))
    }

    /// The same entry, with what its server has written down.
    pub(super) fn as_written(&self, disk: Attachment) -> Self {
        let (registry, id) = (self.registry.clone(), self.id.clone());
        Self { written: disk.state, disk, registry, id, lock: None, read_at: self.read_at }
    }

    /// Fails where others could have written the entry: it names processes, sockets and devices.
    pub(in crate::attach) fn check_folder(&self) -> Result<()> {
        self.registry.check()
    }

    /// Whether a disk whose server was killed had been attached, and is still there.
    pub(in crate::attach) fn is_usable(&self) -> bool {
        let disk = &self.disk;
        let is_there = match disk.device.as_deref() {
            Some(device) if ublk::number(device).is_some() => ublk::is_left(disk.mark),
            Some(device) => kernel::is_owned(device, &owner(disk.mark)),
            None => disk.socket.is_some(),
        };
        self.written != State::Attaching && disk.disk.is_some() && is_there
    }

    /// Whether somebody serves it, or may go on with it: else a device that it names may be another disk's by now.
    pub(crate) fn is_there(&self) -> bool {
        self.is_served() || self.is_usable()
    }

    /// Where its server is asked.
    pub(in crate::attach) fn answers(&self) -> PathBuf {
        self.registry.path(&self.id, "ask")
    }

    /// The entry as it is now, and whether its server lives.
    pub(in crate::attach) fn again(&self) -> Result<Option<Self>> {
        self.registry.read(self.id.clone())
    }

    /// Waits for what becomes of a disk whose server, as this says it, was killed, or is being killed.
    pub(in crate::attach) fn next_server(&self, most: Duration) -> Next {
        let deadline = Instant::now() + most;
        loop {
            let now = match self.again() {
                Ok(Some(now)) => now,
                Ok(None) => return Next::Gone,
                Err(_) => return Next::Nobody(Box::new(self.disk.clone())),
            };
            if now.is_served() && now.disk.pid != self.disk.pid {
                return Next::Served(Box::new(now.disk));
            }
            let is_awaited = now.is_served() || now.disk.supervisor != Supervisor::Nobody;
            let is_over = Instant::now() > deadline || interrupt::was_asked();
            if !is_awaited || now.disk.state == State::Unknown || is_over {
                return Next::Nobody(Box::new(now.disk));
            }
            std::thread::sleep(NEXT_POLL);
        }
    }

    /// Whether there is still an entry.
    pub(crate) fn exists(&self) -> bool {
        self.file().exists()
    }

    /// Whether its server lives.
    pub(crate) fn is_served(&self) -> bool {
        self.lock.as_ref().is_some_and(|lock| lock::is_locked(lock).unwrap_or(true))
    }

    /// The entry as it is now; `None` when it is gone.
    pub(in crate::attach) fn now(&self) -> Option<Attachment> {
        serde_json::from_slice(&nvmf_attached::read(&self.file()).ok()?).ok()
    }

    /// Where the entry is written down.
    pub(crate) fn file(&self) -> PathBuf {
        self.registry.path(&self.id, "json")
    }

    /// The process that serves it, if that is its server indeed, as far as can be told from here: it has the lock open.
    pub(in crate::attach) fn server(&self) -> Option<u32> {
        let lock = self.registry.path(&self.id, "lock").canonicalize().ok()?;
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.disk.pid)).ok()?.flatten();
        let has_it = |file: std::fs::DirEntry| std::fs::read_link(file.path()).is_ok_and(|it| it == lock);
        files.into_iter().any(has_it).then_some(self.disk.pid)
    }

    /// What its server, which lives no more, ended with.
    pub(in crate::attach) fn outcome(&self) -> Outcome {
        self.lock.as_ref().map_or(Outcome::Killed, outcome)
    }

    /// Clears away what its server, which was killed, left behind; `false` when somebody else has.
    pub(in crate::attach) fn clear_away(&self) -> bool {
        self.clear_away_if(|_| true)
    }

    /// The same, unless it can be used: another server may have had it since it was looked at.
    pub(in crate::attach) fn clear_away_useless(&self) -> bool {
        self.clear_away_if(|now| !now.is_usable())
    }

    fn clear_away_if(&self, is_meant: impl Fn(&Self) -> bool) -> bool {
        let Some(lock) = self.registry.lock_dead(&self.id) else { return false };
        // Under the lock, as the entry is now: once it has been cleared away, its device's number may be another's.
        let (is_there, disk) = (self.exists(), self.now());
        if disk.as_ref().is_some_and(|disk| !is_meant(&self.as_written(disk.clone()))) {
            return false;
        }
        if let Some(disk) = &disk {
            if let Some(socket) = &disk.socket {
                // By now it may be another server's, which lives.
                nbd::clear_socket_away(socket, &self.registry.socket_lock());
            }
            // By its mark: one that was killed early did not know the device's number.
            ublk::clear_away(disk.mark);
            kernel::clear_away(&owner(disk.mark));
        }
        self.registry.remove(&self.id, lock);
        is_there
    }
}

/// What the server ended with that had this lock, and lives no more.
pub(super) fn outcome(mut lock: &File) -> Outcome {
    let mut said = String::new();
    let _ = lock.rewind().and_then(|()| lock.read_to_string(&mut said));
    match said.strip_prefix("failed: ") {
        Some(reason) => Outcome::Failed(reason.to_owned()),
        None if said == "flushed" => Outcome::Flushed,
        None => Outcome::Killed,
    }
}
