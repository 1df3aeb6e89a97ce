//! What is attached: for each disk an entry in a folder that does not outlive a reboot.
//!
//! | file | what it is |
//! |---|---|
//! | `ID.json` | the [`Attachment`] |
//! | `ID.lock` | locked by the disk's server while it lives; holds what it ended with |
//! | `ID.fence` | what may still be carried out at the target when the server is killed (`fence`) |
//! | `ID.ask` | the socket on which its server is asked what it has done (`answer`) |
//! | `ID.log` | the log of a server in the background |
//!
//! Whether a server lives is asked of the lock, which the kernel frees with its process: a process number says nothing
//! in another PID namespace, and may be another process's by now. A query changes nothing. A disk whose server was killed
//! is taken over by another server under the same lock, and keeps its entry; what nobody uses yet, and what has no device any
//! more, is cleared away by `attach`, and the rest by `detach`.

use super::AttachOptions;
use super::fence::FenceFile;
use super::nbd::kernel;
use super::ublk;
use super::{lock, process};
use anyhow::{Context, Result, bail, ensure};
use nix::libc::O_NONBLOCK;
use nvme_proto::Nqn;
use nvmf_attached::{Attachment, FOLDER_VARIABLE, State, Supervisor, VERSION};
use nvmf_host::Namespace;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Entries that one process number may have, in as many PID namespaces.
const SAME_NUMBER_MAX: u32 = 1000;
/// How often is looked whether a disk has another server.
const NEXT_POLL: Duration = Duration::from_millis(5);
/// Bytes that a server may need to say what it ended with.
const OUTCOME_LEN: u64 = 4096;
/// The files of an entry. The lock is removed last: it says until then whose they are.
const EXTENSIONS: [&str; 6] = ["json", "draft", "fence", "ask", "log", "lock"];

/// The folder.
#[derive(Debug, Clone)]
pub(crate) struct Registry {
    folder: PathBuf,
}

/// An entry, as it was when it was read.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) disk: Attachment,
    /// The state that its server wrote down last.
    written: State,
    registry: Registry,
    id: String,
    /// Open since then, so that what the server ends with can be read however the entry goes.
    lock: Option<File>,
}

/// What becomes of a disk whose server was killed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another server has it.
    Served(Box<Attachment>),
    /// It is not attached any more.
    Gone,
    /// It waits.
    Nobody(Box<Attachment>),
}

/// The entry of the disk that this process serves.
#[derive(Debug)]
pub(super) struct Claim {
    registry: Registry,
    id: String,
    lock: File,
}

/// What a server ended with.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All was flushed.
    Flushed,
    /// Something went wrong.
    Failed(String),
    /// It said nothing: it was killed.
    Killed,
}

impl Registry {
    /// This user's.
    pub(crate) fn of_this_user() -> Self {
        Self { folder: nvmf_attached::folder() }
    }

    /// Whether its folder is there.
    pub(super) fn is_there(&self) -> bool {
        self.folder.is_dir()
    }

    /// Makes the folder if it is not there.
    fn make(&self) -> Result<()> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        // What is there instead of a folder is said below.
        if made.as_ref().is_err_and(|error| error.kind() != ErrorKind::AlreadyExists) {
            made.with_context(|| format!("cannot make {}", self.folder.display()))?;
        }
        self.check()
    }

    /// Why what lies in the folder is not to be believed, if it is there.
    pub(crate) fn doubt(&self) -> Option<anyhow::Error> {
        self.is_there().then(|| self.check().err()).flatten()
    }

    /// Fails where others could put files into the folder, or lead to another one: what lies there is believed, and removed.
    fn check(&self) -> Result<()> {
        let refused = |what: &str, help: &str| {
            bail!("{} {what}: {help}, or name another folder in {FOLDER_VARIABLE}", self.folder.display())
        };
        let found = std::fs::symlink_metadata(&self.folder)?;
        let (owner, mode) = (found.uid(), found.mode() & 0o7777);
        if found.file_type().is_symlink() {
            return refused("is a symbolic link", "remove it");
        }
        if !found.is_dir() {
            return refused("is no folder", "remove it");
        }
        if owner != nix::unistd::geteuid().as_raw() {
            return refused(
                &format!("belongs to another user (uid {owner})"),
                "do this as that user, remove it",
            );
        }
        if mode & 0o022 != 0 {
            let help = format!("chmod go-w {}", self.folder.display());
            return refused(&format!("can be written by others (mode {mode:o})"), &help);
        }
        Ok(())
    }

    /// Where the socket of a namespace lies unless the user says otherwise.
    pub(crate) fn default_socket(&self, nqn: &str, nsid: u32) -> PathBuf {
        // A Unix socket's path has 107 bytes at most, and an NQN up to 223: the end tells more than the beginning.
        let plain: String = nqn
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || ".-".contains(c) { c } else { '_' })
            .collect();
        let end = plain[plain.len().saturating_sub(60)..].trim_start_matches(['.', '-', '_']);
        self.folder.join(format!("{end}-n{nsid}.sock"))
    }

    fn path(&self, id: &str, extension: &str) -> PathBuf {
        self.folder.join(format!("{id}.{extension}"))
    }

    /// An entry for this process, which is locked from now on. Nothing is listed before [`Claim::write`].
    pub(super) fn claim(&self) -> Result<Claim> {
        self.make()?;
        let pid = std::process::id();
        for number in 0..SAME_NUMBER_MAX {
            let id = if number == 0 { pid.to_string() } else { format!("{pid}-{number}") };
            let path = self.path(&id, "lock");
            let lock = match File::options().read(true).write(true).create_new(true).open(&path) {
                Ok(lock) => lock,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error).with_context(|| format!("cannot make {}", path.display())),
            };
            // Somebody who clears away may have been faster, and has removed the file then.
            if lock::try_lock(&lock)? && is_at(&lock, &path) {
                // What it ends with is to be written also when the folder's file system is full by then.
                let _ = fallocate(&lock, FallocateFlags::KEEP_SIZE, 0, OUTCOME_LEN);
                return Ok(Claim { registry: self.clone(), id, lock });
            }
        }
        bail!("{} is full of entries of process {pid}: remove those that are old", self.folder.display())
    }

    /// The disks that are attached, and those whose servers were killed. Changes nothing.
    pub(crate) fn list(&self) -> Result<Vec<Listed>> {
        let mut disks: Vec<_> = self.ids()?.into_iter().filter_map(|id| self.read(id)).collect();
        disks.sort_by(|Listed { disk: a, .. }, Listed { disk: b, .. }| {
            (&a.nqn, a.nsid, a.place()).cmp(&(&b.nqn, b.nsid, b.place()))
        });
        Ok(disks)
    }

    /// The names of all entries, and of what is left of some. Other files of the folder are not this program's.
    fn ids(&self) -> Result<Vec<String>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", self.folder.display()));
            }
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let ids = names.filter_map(|name| {
            let (id, extension) = name.rsplit_once('.')?;
            (EXTENSIONS.contains(&extension) && nvmf_attached::is_entry(id)).then(|| id.to_owned())
        });
        let mut ids: Vec<_> = ids.collect();
        ids.sort();
        ids.dedup();
        Ok(ids)
    }

    fn read(&self, id: String) -> Option<Listed> {
        // The lock first: a server that ends meanwhile is seen as killed otherwise.
        let lock = nvmf_attached::open(&self.path(&id, "lock")).ok();
        let locked = lock.as_ref().is_some_and(|lock| lock::is_locked(lock).unwrap_or(true));
        let path = self.path(&id, "json");
        let text = nvmf_attached::read(&path).ok()?;
        let (mut disk, is_readable) = match serde_json::from_slice::<Attachment>(&text) {
            Ok(disk) => (disk, true),
            Err(_) => (Attachment::default(), false),
        };
        let written = disk.state;
        if disk.version != VERSION {
            disk.state = State::Unknown;
            let what =
                if is_readable { "is of another version of nvmf" } else { "cannot be read as an entry" };
            if !locked {
                // By now it may be any process's number.
                disk.pid = 0;
            }
            let whose = match locked {
                true => "a server has it: detach it with the nvmf that attached it",
                false => "its server is gone",
            };
            let end = if locked {
                String::new()
            } else {
                format!(": nvmf detach {} clears it away", path.display())
            };
            disk.reason = Some(format!("{} {what}, and {whose}{end}", path.display()));
        } else if !locked {
            let pid = disk.pid;
            let reason = disk.reason.take().map(|reason| format!(" ({reason})")).unwrap_or_default();
            disk.state = State::Killed;
            // Nobody is connected.
            disk.paths = disk.paths.iter().map(|path| path.unconnected(State::Killed)).collect();
            disk.reason = Some(format!(
                "its server, process {pid}, is gone{reason}: what it is asked for waits; the same nvmf attach, connect or connect-all takes it over (nvmf info prints it; nvmf discoverd does so by itself), nvmf detach clears it away"
            ));
        }
        Some(Listed { disk, written, registry: self.clone(), id, lock })
    }

    /// Takes over the disk of this entry, and nothing else, if its server was killed and it is the one that is meant.
    pub(super) fn take_this_over(&self, id: &str, options: &AttachOptions) -> Result<(Claim, Attachment)> {
        self.check()?;
        let killed = self.killed(id).context("it was taken over or detached at this moment")?;
        let disk = &killed.disk;
        ensure!(
            options.form.allows(disk),
            "it is attached in another form: leave out --as, or give the same"
        );
        ensure!(
            !disk.tls || options.connection.has_tls(),
            "it was attached with TLS, and is taken over in no other way: give the same --tls, and its key"
        );
        ensure!(is_meant(disk, options), "it was attached with other options");
        killed.take_over()?.context("it was taken over or detached at this moment")
    }

    /// Takes over the disk that is meant, if its server was killed.
    pub(super) fn take_over(&self, options: &AttachOptions) -> Result<Option<(Claim, Attachment)>> {
        for listed in self.list()? {
            if listed.disk.state != State::Killed || !is_meant(&listed.disk, options) {
                continue;
            }
            self.check()?;
            if let Some(taken) = listed.take_over()? {
                return Ok(Some(taken));
            }
        }
        Ok(None)
    }

    /// What another server left of this disk, whose lock it has no more: it was killed, or is being killed, and a third
    /// may be about to take it over.
    pub(super) fn left(&self, nqn: &Nqn, namespace: &Namespace) -> Result<Option<Listed>> {
        let is_it = |listed: &Listed| {
            let Some(uuid) = listed.disk.disk.as_ref().map(|disk| disk.uuid) else { return false };
            let is_same = uuid == namespace.uuid;
            let is_there = listed.disk.nqn == nqn.as_str() && listed.disk.nsid == namespace.nsid.0;
            is_same && (is_there || uuid != [0; 16]) && !listed.disk.is_duplicate && listed.is_usable()
        };
        // The lock of a disk is one of a network namespace: in another one the disk is locked, and stays.
        let is_elsewhere = |listed: &Listed| listed.is_served() && !process::shares_network(&listed.disk);
        Ok(self.list()?.into_iter().find(|listed| is_it(listed) && !is_elsewhere(listed)))
    }

    /// The entry of this name, if its server was killed.
    pub(super) fn killed(&self, id: &str) -> Option<Listed> {
        self.read(id.to_owned()).filter(|listed| listed.disk.state == State::Killed)
    }

    /// Whether the server of this entry is the process with this number, and lives or has not quite ended.
    pub(super) fn is_served_by(&self, id: &str, pid: u32) -> bool {
        self.read(id.to_owned()).is_some_and(|listed| listed.is_served() && listed.disk.pid == pid)
    }

    /// The entry of a process of this PID namespace, which made it or has taken it over: the youngest, as another process may have had
    /// the number before.
    pub(super) fn entry_of(&self, pid: u32) -> Option<Listed> {
        let is_its = |listed: &Listed| {
            let made = listed.id.split('-').next() == Some(&pid.to_string());
            (made || listed.disk.pid == pid) && listed.disk.pid_namespace == process::pid_namespace()
        };
        let written =
            |listed: &Listed| std::fs::metadata(listed.file()).and_then(|file| file.modified()).ok();
        self.list().ok()?.into_iter().filter(is_its).max_by_key(written)
    }

    /// Whether the disk of this entry waits for another server, as far as that can be told: what cannot be read now may be later.
    pub(super) fn waits(&self, id: &str) -> bool {
        match self.read(id.to_owned()) {
            Some(listed) => listed.disk.state == State::Killed,
            None => self.path(id, "json").exists(),
        }
    }

    /// The entry of this name, if another version wrote it and its server is gone.
    pub(super) fn strange(&self, id: &str) -> Option<Listed> {
        self.read(id.to_owned()).filter(|listed| listed.disk.state == State::Unknown && !listed.is_served())
    }

    /// Where the log of this entry's server goes.
    pub(super) fn log(&self, id: &str) -> PathBuf {
        self.path(id, "log")
    }

    /// Removes what servers that were killed left behind and nobody can use.
    pub(super) fn clear_away(&self) -> Result<()> {
        for id in self.ids()? {
            match self.read(id.clone()) {
                Some(listed) if listed.disk.state == State::Killed => {
                    if !listed.is_usable() {
                        listed.clear_away();
                    }
                }
                Some(_) => {}
                // No disk: a server that ended without its files, or that is only just starting.
                None => drop(self.lock_dead(&id).map(|lock| self.remove(&id, lock))),
            }
        }
        Ok(())
    }

    /// The lock of an entry whose server is gone.
    fn lock_dead(&self, id: &str) -> Option<File> {
        let path = self.path(id, "lock");
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).custom_flags(O_NONBLOCK);
        let lock = options.open(&path).ok().filter(|lock| lock.metadata().is_ok_and(|it| it.is_file()))?;
        (lock::try_lock(&lock).ok()? && is_at(&lock, &path)).then_some(lock)
    }

    /// Removes an entry's files.
    fn remove(&self, id: &str, lock: File) {
        for extension in EXTENSIONS {
            // What is gone already need not be removed.
            let _ = std::fs::remove_file(self.path(id, extension));
        }
        drop(lock);
    }
}

/// Whether these options name an attached disk.
fn is_meant(disk: &Attachment, options: &AttachOptions) -> bool {
    let path = options.socket.path.as_ref();
    disk.is_duplicate == options.duplicate
        && disk.nqn == options.connection.nqn.as_str()
        && disk.asked_nsid == options.nsid.map(|nsid| nsid.0)
        && path.is_none_or(|path| disk.socket.as_ref() == Some(path))
        && options.form.allows(disk)
        && (!disk.tls || options.connection.has_tls())
}

/// Whether this open file is what is at that path now.
fn is_at(file: &File, path: &Path) -> bool {
    let here = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    file.metadata().map(here).ok() == std::fs::metadata(path).map(here).ok()
}

impl Claim {
    /// What the entry is called.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// The record of what is under way at the target.
    pub(super) fn fence(&self) -> Result<FenceFile> {
        FenceFile::open(&self.registry.path(&self.id, "fence"))
    }

    /// Where this server is asked.
    pub(super) fn answers(&self) -> PathBuf {
        self.registry.path(&self.id, "ask")
    }

    /// Where this server's log goes.
    pub(super) fn log(&self) -> PathBuf {
        self.registry.log(&self.id)
    }

    /// Writes the entry. Readers see the whole of it, or what was there before.
    pub(super) fn write(&self, disk: &Attachment) -> Result<()> {
        let (file, draft) = (self.registry.path(&self.id, "json"), self.registry.path(&self.id, "draft"));
        std::fs::write(&draft, serde_json::to_vec_pretty(disk)?)
            .and_then(|()| std::fs::rename(&draft, &file))
            .with_context(|| format!("cannot write {}", file.display()))
    }

    /// Takes away the device of a disk that was to be taken over.
    pub(super) fn clear_device_away(&self, disk: &Attachment) {
        ublk::clear_away(disk.mark);
        kernel::clear_away(&owner(disk.mark));
    }

    /// Removes the entry, and leaves its outcome for those who wait for this process's end. The lock goes with the
    /// process. The log of a failure that nobody heard of otherwise stays, until the next disk is attached.
    pub(super) fn end(self, outcome: &Result<()>, keep_log: bool) {
        let said = match outcome {
            Ok(()) => "flushed".to_owned(),
            Err(error) => format!("failed: {}", crate::print::chain(error)),
        };
        // Whoever waits hears of a server that was killed if this cannot be written, which is the safe side.
        let mut lock = &self.lock;
        let _ = lock.rewind().and_then(|()| lock.write_all(said.as_bytes()));
        for extension in EXTENSIONS {
            if extension != "log" || outcome.is_ok() || !keep_log {
                let _ = std::fs::remove_file(self.registry.path(&self.id, extension));
            }
        }
        self.keep();
    }

    /// Leaves the entry to the next server, from this process's end on: then all of it is over.
    pub(super) fn keep(self) {
        std::mem::forget(self.lock);
    }
}

impl Listed {
    /// What the entry is called.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Takes over a disk whose server was killed; `None` when somebody else has, or nobody can.
    pub(super) fn take_over(self) -> Result<Option<(Claim, Attachment)>> {
        let Some(lock) = self.registry.lock_dead(&self.id) else { return Ok(None) };
        if !self.is_usable() {
            return Ok(None);
        }
        let Some(disk) = self.now() else { return Ok(None) };
        Ok(Some((Claim { registry: self.registry, id: self.id, lock }, disk)))
    }

    /// Fails where others could have written the entry: it names processes, sockets and devices.
    pub(super) fn check_folder(&self) -> Result<()> {
        self.registry.check()
    }

    /// Whether a disk whose server was killed had been attached, and is still there.
    pub(super) fn is_usable(&self) -> bool {
        let disk = &self.disk;
        let is_there = match disk.device.as_deref() {
            Some(device) if ublk::number(device).is_some() => ublk::is_left(disk.mark),
            Some(device) => kernel::is_owned(device, &owner(disk.mark)),
            None => disk.socket.is_some(),
        };
        self.written != State::Attaching && disk.disk.is_some() && is_there
    }

    /// Where its server is asked.
    pub(super) fn answers(&self) -> PathBuf {
        self.registry.path(&self.id, "ask")
    }

    /// The entry as it is now, and whether its server lives.
    pub(super) fn again(&self) -> Option<Self> {
        self.registry.read(self.id.clone())
    }

    /// Waits for what becomes of a disk whose server, as this says it, was killed, or is being killed.
    pub(super) fn next_server(&self, most: Duration) -> Next {
        let deadline = Instant::now() + most;
        loop {
            let Some(now) = self.again() else { return Next::Gone };
            if now.is_served() && now.disk.pid != self.disk.pid {
                return Next::Served(Box::new(now.disk));
            }
            let is_awaited = now.is_served() || now.disk.supervisor != Supervisor::Nobody;
            if !is_awaited || now.disk.state == State::Unknown || Instant::now() > deadline {
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
    pub(super) fn is_served(&self) -> bool {
        self.lock.as_ref().is_some_and(|lock| lock::is_locked(lock).unwrap_or(true))
    }

    /// The entry as it is now; `None` when it is gone.
    pub(super) fn now(&self) -> Option<Attachment> {
        serde_json::from_slice(&nvmf_attached::read(&self.file()).ok()?).ok()
    }

    /// Where the entry is written down.
    pub(crate) fn file(&self) -> PathBuf {
        self.registry.path(&self.id, "json")
    }

    /// The process that serves it, if that is its server indeed, as far as can be told from here: it has the lock open.
    pub(super) fn server(&self) -> Option<u32> {
        let lock = self.registry.path(&self.id, "lock").canonicalize().ok()?;
        let files = std::fs::read_dir(format!("/proc/{}/fd", self.disk.pid)).ok()?.flatten();
        let has_it = |file: std::fs::DirEntry| std::fs::read_link(file.path()).is_ok_and(|it| it == lock);
        files.into_iter().any(has_it).then_some(self.disk.pid)
    }

    /// What its server, which lives no more, ended with.
    pub(super) fn outcome(&self) -> Outcome {
        let mut said = String::new();
        if let Some(mut lock) = self.lock.as_ref() {
            let _ = lock.rewind().and_then(|()| lock.read_to_string(&mut said));
        }
        match said.strip_prefix("failed: ") {
            Some(reason) => Outcome::Failed(reason.to_owned()),
            None if said == "flushed" => Outcome::Flushed,
            None => Outcome::Killed,
        }
    }

    /// Clears away what its server, which was killed, left behind; `false` when somebody else has.
    pub(super) fn clear_away(&self) -> bool {
        let Some(lock) = self.registry.lock_dead(&self.id) else { return false };
        // Under the lock, as the entry is now: once it has been cleared away, its device's number may be another's.
        let (is_there, disk) = (self.exists(), self.now());
        if let Some(disk) = &disk {
            if let Some(socket) = &disk.socket {
                // By now it may be another server's, which lives.
                super::nbd::clear_socket_away(socket);
            }
            // By its mark: one that was killed early did not know the device's number.
            ublk::clear_away(disk.mark);
            kernel::clear_away(&owner(disk.mark));
        }
        self.registry.remove(&self.id, lock);
        is_there
    }
}

/// What the kernel is told of whose a device is.
pub(super) fn owner(mark: u64) -> String {
    format!("nvmf {mark:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    fn registry(folder: &tempfile::TempDir) -> Registry {
        Registry { folder: folder.path().join("nvmf") }
    }

    fn disk(socket: &Path) -> Attachment {
        Attachment {
            version: VERSION,
            nqn: "nqn.2026-11.com.example:a".to_owned(),
            nsid: 1,
            socket: Some(socket.to_owned()),
            state: State::Live,
            ..Attachment::default()
        }
    }

    #[test]
    fn list_without_a_folder_makes_none() {
        let folder = tempfile::tempdir().unwrap();
        let registry = registry(&folder);
        assert!(registry.list().unwrap().is_empty());
        assert!(!registry.folder.exists());
    }

    #[test]
    fn entry_lives_as_long_as_its_lock() {
        let folder = tempfile::tempdir().unwrap();
        let registry = registry(&folder);
        let socket = folder.path().join("a.sock");
        drop(UnixListener::bind(&socket).unwrap());
        let claim = registry.claim().unwrap();
        claim.write(&disk(&socket)).unwrap();
        assert_eq!(registry.list().unwrap()[0].disk, disk(&socket));
        registry.clear_away().unwrap();
        assert!(socket.exists() && !registry.list().unwrap()[0].clear_away(), "it is served");
        // What the end of its process does.
        drop(claim);
        let listed = registry.list().unwrap();
        assert_eq!((listed[0].disk.state, listed[0].outcome()), (State::Killed, Outcome::Killed));
        assert!(socket.exists(), "a query changes nothing");
        registry.clear_away().unwrap();
        assert!(!socket.exists() && std::fs::read_dir(&registry.folder).unwrap().next().is_none());
        assert!(!listed[0].clear_away(), "somebody else has");
    }

    #[test]
    fn socket_of_another_server_stays_when_a_killed_one_is_cleared_away() {
        let folder = tempfile::tempdir().unwrap();
        let registry = registry(&folder);
        let socket = folder.path().join("a.sock");
        let claim = registry.claim().unwrap();
        claim.write(&disk(&socket)).unwrap();
        drop(claim);
        // Where the one that was killed had its own.
        let _other = UnixListener::bind(&socket).unwrap();
        assert!(registry.list().unwrap()[0].clear_away());
        assert!(UnixStream::connect(&socket).is_ok());
        assert!(registry.list().unwrap().is_empty());
    }

    #[test]
    fn outcome_is_heard_by_all_who_wait() {
        let folder = tempfile::tempdir().unwrap();
        let registry = registry(&folder);
        for (outcome, expected) in [
            (Ok(()), Outcome::Flushed),
            (Err(anyhow::anyhow!("no such luck")), Outcome::Failed("no such luck".to_owned())),
        ] {
            let claim = registry.claim().unwrap();
            claim.write(&disk(Path::new("/nowhere"))).unwrap();
            let waiting = [registry.list().unwrap(), registry.list().unwrap()];
            claim.end(&outcome, false);
            assert!(waiting.iter().all(|listed| listed[0].outcome() == expected));
            assert!(registry.list().unwrap().is_empty());
        }
    }

    #[test]
    fn default_socket_fits_a_socket_address() {
        let registry = Registry { folder: "/run/user/1000/nvmf".into() };
        let socket =
            registry.default_socket(&format!("nqn.2014-08.org.nvmexpress:{}é/..", "x".repeat(190)), 1024);
        assert!(socket.as_os_str().len() <= 107, "{}", socket.display());
        let uuid = format!("nqn.2014-08.org.nvmexpress:uuid:{}", uuid::Uuid::nil());
        let name = registry.default_socket(&uuid, 1);
        assert!(name.file_name().is_some_and(|name| name.to_string_lossy().starts_with("08.org.")));
        assert_eq!(socket.parent(), Some(Path::new("/run/user/1000/nvmf")));
    }

    fn write(registry: &Registry, name: &str, text: &str) {
        std::fs::write(registry.folder.join(name), text).unwrap();
    }

    fn names(registry: &Registry) -> Vec<String> {
        let files = std::fs::read_dir(&registry.folder).unwrap().flatten();
        let mut names: Vec<_> = files.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn files_of_others_in_the_folder_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let registry = registry(&folder);
        registry.make().unwrap();
        let mut theirs = [
            "Cargo.lock",
            "build.log",
            "notes.draft",
            "my.fence",
            "questions.ask",
            "data.json",
            "1-.lock",
            "-1.log",
            "1-2-3.log",
            ".lock",
            "1.5.log",
            "+1.log",
            "٣.log",
        ];
        theirs.sort_unstable();
        for name in theirs {
            write(&registry, name, "precious");
        }
        // What is left of an entry whose server had nothing written down.
        write(&registry, "12.log", "");
        write(&registry, "12-1.fence", "");
        let claim = registry.claim().unwrap();
        registry.clear_away().unwrap();
        assert!(registry.list().unwrap().is_empty());
        claim.end(&Ok(()), false);
        assert_eq!(names(&registry), theirs);
        for name in theirs {
            assert_eq!(std::fs::read(registry.folder.join(name)).unwrap(), b"precious");
        }
    }

    #[test]
    fn folder_that_others_may_change_is_refused() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let registry = registry(&folder);
        let refused = |said: &str| {
            let error = format!("{:#}", registry.claim().unwrap_err());
            let path = registry.folder.to_str().unwrap();
            assert!([path, said, FOLDER_VARIABLE].iter().all(|it| error.contains(it)), "{error}");
        };
        let other = folder.path().join("other");
        std::fs::create_dir(&other).unwrap();
        symlink(&other, &registry.folder).unwrap();
        refused("symbolic link");
        assert!(std::fs::read_dir(&other).unwrap().next().is_none());
        std::fs::remove_file(&registry.folder).unwrap();
        std::fs::write(&registry.folder, "").unwrap();
        refused("no folder");
        std::fs::remove_file(&registry.folder).unwrap();
        registry.make().unwrap();
        for mode in [0o720, 0o702, 0o1777] {
            std::fs::set_permissions(&registry.folder, PermissionsExt::from_mode(mode)).unwrap();
            refused("chmod go-w");
            assert!(names(&registry).is_empty());
        }
        for mode in [0o700, 0o755] {
            std::fs::set_permissions(&registry.folder, PermissionsExt::from_mode(mode)).unwrap();
            registry.claim().unwrap().end(&Ok(()), false);
        }
    }

    /// Each of another version, or unreadable: its state, and what it says.
    const STRANGE: [&str; 4] = [
        r#"{ "version": 99, "nqn": "nqn.2026-11.com.example:new", "nsid": 1, "pid": 4194305 }"#,
        r#"{ "version": 3, "size": -1 }"#,
        "",
        "no entry",
    ];

    #[test]
    fn entry_that_cannot_be_understood_is_cleared_away_once_its_server_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let registry = registry(&folder);
        registry.make().unwrap();
        for (text, has_lock) in STRANGE.iter().flat_map(|text| [(text, false), (text, true)]) {
            write(&registry, "7.json", text);
            if has_lock {
                write(&registry, "7.lock", "");
            }
            registry.clear_away().unwrap();
            let listed = registry.list().unwrap();
            assert_eq!((listed.len(), listed[0].disk.state), (1, State::Unknown), "{text}");
            // Nor does a guard's server take it over, or find it gone without a word.
            assert!(registry.killed("7").is_none() && registry.strange("7").is_some());
            assert_eq!(listed[0].disk.served_by(), None);
            let said = listed[0].disk.reason.clone().unwrap();
            assert!(said.contains("7.json") && said.contains("nvmf detach"), "{said}");
            let error = format!("{:#}", listed[0].detach(false).unwrap_err());
            assert!(error.contains("7.json") && error.contains("cleared away"), "{error}");
            assert!(!error.contains("process"), "{error}");
            assert!(names(&registry).is_empty(), "{text}: {:?}", names(&registry));
        }
    }

    #[test]
    fn entry_that_cannot_be_understood_is_left_alone_while_its_server_lives() {
        let folder = tempfile::tempdir().unwrap();
        let registry = registry(&folder);
        let claim = registry.claim().unwrap();
        for text in STRANGE {
            write(&registry, &format!("{}.json", claim.id()), text);
            let listed = registry.list().unwrap().remove(0);
            assert_eq!(listed.disk.state, State::Unknown);
            assert!(registry.strange(claim.id()).is_none());
            let error = format!("{:#}", listed.detach(true).unwrap_err());
            // The process that it names is not its server.
            assert!(error.contains(".json") && !error.contains("process"), "{error}");
            assert!(listed.exists());
        }
        let its = Attachment { version: 99, pid: std::process::id(), ..disk(Path::new("/nowhere")) };
        claim.write(&its).unwrap();
        let error = format!("{:#}", registry.list().unwrap()[0].detach(false).unwrap_err());
        assert!(error.contains(&format!("process {}", its.pid)), "{error}");
    }

    #[test]
    fn disk_of_a_killed_server_is_waited_for_until_another_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let registry = registry(&folder);
        let most = Duration::from_millis(50);
        let before =
            Attachment { pid: 1, supervisor: Supervisor::Guard, ..disk(&folder.path().join("a.sock")) };
        let claim = registry.claim().unwrap();
        claim.write(&before).unwrap();
        let left = registry.list().unwrap().remove(0);
        assert!(matches!(left.next_server(most), Next::Nobody(_)), "it is the same server still");
        let id = claim.id().to_owned();
        drop(claim);
        assert!(matches!(left.next_server(most), Next::Nobody(now) if now.state == State::Killed));
        // What a guard's server does.
        let lock = registry.lock_dead(&id).unwrap();
        let after = Attachment { pid: 2, state: State::Reconnecting, ..before };
        let claim = Claim { registry, id, lock };
        claim.write(&after).unwrap();
        assert_eq!(left.next_server(most), Next::Served(Box::new(after)));
        claim.end(&Ok(()), false);
        assert_eq!(left.next_server(most), Next::Gone);
    }

    #[test]
    fn entry_that_another_server_takes_over_at_this_moment_is_not_said_to_be_cleared_away() {
        let folder = tempfile::tempdir().unwrap();
        let registry = registry(&folder);
        let claim = registry.claim().unwrap();
        let left = disk(&folder.path().join("none.sock"));
        claim.write(&left).unwrap();
        let id = claim.id().to_owned();
        drop(claim);
        let listed = registry.killed(&id).unwrap();
        let lock = registry.lock_dead(&id).unwrap();
        let error = listed.detach(false).unwrap_err().to_string();
        assert!(error.contains("detach it again") && listed.exists(), "{error}");
        drop(lock);
        let error = listed.detach(false).unwrap_err().to_string();
        assert!(error.contains("it is cleared away") && !listed.exists(), "{error}");
    }

    #[test]
    fn entry_that_cannot_be_read_now_waits_for_a_server_until_it_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let registry = registry(&folder);
        registry.make().unwrap();
        let file = registry.path("7", "json");
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(registry.waits("7"));
        std::fs::remove_file(&file).unwrap();
        assert!(!registry.waits("7"));
        std::fs::write(&file, serde_json::to_vec(&disk(Path::new("/none"))).unwrap()).unwrap();
        assert!(registry.waits("7"));
    }

    #[test]
    fn entry_of_a_process_is_the_youngest_with_its_number() {
        let folder = tempfile::tempdir().unwrap();
        let registry = registry(&folder);
        registry.make().unwrap();
        let own = Attachment { pid: 7, pid_namespace: process::pid_namespace(), ..disk(Path::new("/none")) };
        let begin = std::time::SystemTime::UNIX_EPOCH;
        for (id, nsid, pid, seconds) in [("7", 1, 7, 1), ("7-1", 2, 7, 3), ("9", 3, 7, 2), ("8", 4, 8, 4)] {
            let entry = Attachment { nsid, pid, ..own.clone() };
            std::fs::write(registry.path(id, "json"), serde_json::to_vec(&entry).unwrap()).unwrap();
            let file = File::options().write(true).open(registry.path(id, "json")).unwrap();
            file.set_modified(begin + Duration::from_secs(seconds)).unwrap();
        }
        let nsid = |pid| registry.entry_of(pid).map(|listed| listed.disk.nsid);
        assert_eq!((nsid(7), nsid(8), nsid(9), nsid(6)), (Some(2), Some(4), Some(3), None));
    }

    #[test]
    fn what_is_no_file_is_no_entry_and_nothing_waits_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let registry = registry(&folder);
        registry.make().unwrap();
        for name in ["5555.json", "6666.lock", "7777.lock"] {
            nix::unistd::mkfifo(&registry.folder.join(name), nix::sys::stat::Mode::S_IRWXU).unwrap();
        }
        write(&registry, "7777.json", "");
        let (tell, heard) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let claim = registry.claim().unwrap();
            registry.clear_away().unwrap();
            let listed = registry.list().unwrap().len();
            claim.end(&Ok(()), false);
            tell.send(listed)
        });
        assert_eq!(heard.recv_timeout(Duration::from_secs(20)), Ok(1));
    }
}
