//! What is attached: for each disk an entry in a folder that does not outlive a reboot.
//!
//! | file | what it is |
//! |---|---|
//! | `ID.json` | the [`Attachment`] |
//! | `ID.lock` | locked by the disk's server while it lives; holds what it ended with |
//! | `ID.fence` | what may still be carried out at the target when the server is killed (`fence`) |
//! | `ID.ask` | the socket on which its server is asked what it has done (`answer`) |
//! | `ID.log` | the log of a server in the background |
//! | `sockets.lock` | locked while the socket of a disk is made or removed |
//!
//! Whether a server lives is asked of the lock, which the kernel frees with its process: a process number says nothing
//! in another PID namespace, and may be another process's by now. A query changes nothing. A disk whose server was killed
//! is taken over by another server under the same lock, and keeps its entry; what nobody uses yet, and what has no device any
//! more, is cleared away by `attach`, and the rest by `detach`.

mod claim;
mod listed;
#[cfg(test)]
mod tests;

pub(super) use claim::Claim;
pub(crate) use listed::Listed;
use listed::outcome;
pub(super) use listed::{Next, Outcome};

use super::AttachOptions;
use super::host::{OtherHost, other_host};
use super::{entry, lock, nbd, process};
use crate::runtime::allow_open_files;
use anyhow::{Context, Result, bail, ensure};
use nix::libc::O_NONBLOCK;
use nvme_proto::Nqn;
use nvmf_attached::{Attachment, FOLDER_VARIABLE, State, VERSION};
use nvmf_host::Namespace;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Entries that one process number may have, in as many PID namespaces.
const SAME_NUMBER_MAX: u32 = 1000;
/// Bytes that a server may need to say what it ended with.
const OUTCOME_LEN: u64 = 4096;
/// The files of an entry. The lock is removed last: it says until then whose they are.
const EXTENSIONS: [&str; 6] = ["json", "draft", "fence", "ask", "log", "lock"];

/// The folder.
#[derive(Debug, Clone)]
pub(crate) struct Registry {
    folder: PathBuf,
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

    /// What is locked while the socket of a disk is made or removed, wherever that lies: a file of this folder, which nobody else can
    /// lock.
    pub(super) fn socket_lock(&self) -> PathBuf {
        self.folder.join("sockets.lock")
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

    /// Fails where an attached disk has this socket. The server may be gone, or be about to be: its clients connect to the path again,
    /// and another disk there would take their writes.
    pub(super) fn check_socket(&self, path: &Path) -> Result<()> {
        let has_it = |it: &Listed| has_socket(&it.disk, path) && (it.is_served() || it.is_usable());
        let Some(other) = self.list()?.into_iter().find(has_it) else { return Ok(()) };
        let how = if other.is_served() { "is served already" } else { "is kept for clients that wait" };
        let (path, disk) = (path.display(), &other.disk);
        bail!(
            "{path} {how}: it is the socket of {disk}; choose another --socket, or detach that disk first: nvmf detach {path}"
        )
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
        // Each has its lock open.
        allow_open_files();
        let read = self.ids()?.into_iter().filter_map(|id| self.read(id).transpose());
        let mut disks = read.collect::<Result<Vec<_>>>()?;
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
        let mut ids = Vec::new();
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot read {}", self.folder.display()))?;
            let name = entry.file_name();
            let Some((id, extension)) = name.to_str().and_then(|name| name.rsplit_once('.')) else {
                continue;
            };
            if EXTENSIONS.contains(&extension) && nvmf_attached::is_entry(id) {
                ids.push(id.to_owned());
            }
        }
        ids.sort();
        ids.dedup();
        Ok(ids)
    }

    /// The entry of this name, if there is one. Fails where that cannot be told: of a disk that is not listed nobody knows.
    fn read(&self, id: String) -> Result<Option<Listed>> {
        // The lock first: a server that ends meanwhile is seen as killed otherwise.
        let path = self.path(&id, "lock");
        let lock = if_there(nvmf_attached::open(&path), &path)?;
        let locked = lock.as_ref().is_some_and(|lock| lock::is_locked(lock).unwrap_or(true));
        let path = self.path(&id, "json");
        let Some(text) = if_there(nvmf_attached::read(&path), &path)? else { return Ok(None) };
        let (mut disk, is_readable) = match serde_json::from_slice::<Attachment>(&text) {
            Ok(disk) => (disk, true),
            Err(_) => (Attachment::default(), false),
        };
        let written = disk.state;
        if let Some(lock) = lock.as_ref().filter(|_| !locked)
            && outcome(lock) != Outcome::Killed
        {
            // It ended in order, with all there was to take away, and could not remove its files.
            return Ok(None);
        }
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
        Ok(Some(Listed { disk, written, registry: self.clone(), id, lock, read_at: Instant::now() }))
    }

    /// Takes over the disk of this entry, and nothing else, if its server was killed and it is the one that is meant.
    pub(super) fn take_this_over(&self, id: &str, options: &AttachOptions) -> Result<(Claim, Attachment)> {
        self.check()?;
        let killed = self.killed(id)?.context("it was taken over or detached at this moment")?;
        check_meant(&killed.disk, options)?;
        let taken = killed.take_over(|disk| is_meant(disk, options))?;
        taken.context("it was taken over or detached at this moment")
    }

    /// Takes over the disk that is meant, if its server was killed.
    pub(super) fn take_over(&self, options: &AttachOptions) -> Result<Option<(Claim, Attachment)>> {
        for listed in self.list()? {
            if listed.disk.state != State::Killed || !is_meant(&listed.disk, options) {
                continue;
            }
            self.check()?;
            if let Some(taken) = listed.take_over(|disk| is_meant(disk, options))? {
                return Ok(Some(taken));
            }
        }
        Ok(None)
    }

    /// What another server left of this disk, whose lock it has no more: it was killed, or is being killed, and a third
    /// may be about to take it over.
    pub(crate) fn left(&self, nqn: &Nqn, namespace: &Namespace) -> Result<Option<Listed>> {
        let is_it = |listed: &Listed| {
            let is_there = listed.disk.nqn == nqn.as_str() && listed.disk.nsid == namespace.nsid.0;
            if listed.disk.state == State::Unknown && !listed.is_served() && is_there {
                // Whatever else it says means nothing here.
                return true;
            }
            let Some(uuid) = listed.disk.disk.as_ref().map(|disk| disk.uuid) else { return false };
            let is_same = uuid == namespace.uuid;
            is_same && (is_there || uuid != [0; 16]) && listed.is_usable()
        };
        // The lock of a disk is one of a network namespace: in another one the disk is locked, and stays.
        let is_elsewhere = |listed: &Listed| listed.is_served() && !process::shares_network(&listed.disk);
        Ok(self.list()?.into_iter().find(|listed| is_it(listed) && !is_elsewhere(listed)))
    }

    /// The entry of this name, if its server was killed.
    pub(super) fn killed(&self, id: &str) -> Result<Option<Listed>> {
        Ok(self.read(id.to_owned())?.filter(|listed| listed.disk.state == State::Killed))
    }

    /// Whether the server of this entry is the process with this number, and lives or has not quite ended.
    pub(super) fn is_served_by(&self, id: &str, pid: u32) -> Result<bool> {
        Ok(self.read(id.to_owned())?.is_some_and(|listed| listed.is_served() && listed.disk.pid == pid))
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
            Ok(Some(listed)) => listed.disk.state == State::Killed,
            Ok(None) => self.path(id, "json").exists(),
            Err(_) => true,
        }
    }

    /// The entry of this name, if another version wrote it and its server is gone.
    pub(super) fn strange(&self, id: &str) -> Result<Option<Listed>> {
        let is_strange = |listed: &Listed| listed.disk.state == State::Unknown && !listed.is_served();
        Ok(self.read(id.to_owned())?.filter(is_strange))
    }

    /// Where the log of this entry's server goes.
    pub(super) fn log(&self, id: &str) -> PathBuf {
        self.path(id, "log")
    }

    /// Removes what servers that were killed left behind and nobody can use.
    pub(super) fn clear_away(&self) -> Result<()> {
        for id in self.ids()? {
            match self.read(id.clone())? {
                Some(listed) if listed.disk.state == State::Killed => {
                    if !listed.is_usable() {
                        listed.clear_away_useless();
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
    check_meant(disk, options).is_ok()
}

/// Says why these options do not name an attached disk.
fn check_meant(disk: &Attachment, options: &AttachOptions) -> Result<()> {
    let (connection, path) = (&options.connection, options.socket.path.as_ref());
    ensure!(options.form.allows(disk), "it is attached in another form: leave out --as, or give the same");
    if let Some(clear) = entry::in_the_clear(disk, connection) {
        bail!(
            "it was attached with TLS, and is taken over in no other way: give the same --tls for the path over {}, and its key",
            clear.place
        );
    }
    ensure!(
        entry::proves_as_much(disk, connection.authentication.as_ref()),
        "it was attached with {}, and is taken over in no other way: {}",
        disk.authentication.map(String::from).unwrap_or_default(),
        entry::PROVE_AS_MUCH
    );
    if let Some(OtherHost { how, options }) = other_host(disk, &connection.host) {
        bail!("it was attached as {how}: {options} takes it over");
    }
    ensure!(
        disk.is_duplicate == options.duplicate
            && disk.nqn == connection.nqn.as_str()
            && disk.asked_nsid == options.nsid.map(|nsid| nsid.0)
            && path.is_none_or(|path| has_socket(disk, path)),
        "it was attached with other options"
    );
    Ok(())
}

/// Whether the disk has this socket, however its path is spelled here, and was spelled when it was attached.
pub(crate) fn has_socket(disk: &Attachment, path: &Path) -> bool {
    disk.socket.as_deref().is_some_and(|socket| nbd::is_same_socket(socket, path))
}

/// A file of an entry, if there is one.
fn if_there<T>(found: io::Result<T>, path: &Path) -> Result<Option<T>> {
    let error = match found {
        Ok(found) => return Ok(Some(found)),
        Err(error) if nvmf_attached::is_nothing(&error) => return Ok(None),
        Err(error) => error,
    };
    let help = match error.raw_os_error() {
        Some(nix::libc::EMFILE) => {
            " (each disk of the list takes one: raise the limit of open files, ulimit -n)"
        }
        _ => "",
    };
    Err(error).with_context(|| format!("cannot read {}{help}", path.display()))
}

/// Whether this open file is what is at that path now.
fn is_at(file: &File, path: &Path) -> bool {
    let here = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    file.metadata().map(here).ok() == std::fs::metadata(path).map(here).ok()
}

/// What the kernel is told of whose a device is.
pub(super) fn owner(mark: u64) -> String {
    format!("nvmf {mark:016x}")
}
