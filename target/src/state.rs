//! The state directory: what outlives the process. Today that is the reservations that persist through a loss of power,
//! and which namespaces hosts have protected against writes: files for each namespace, named by its UUID.
//!
//! A file is replaced as a whole, and is on the disk before the command that changes it completes. One that cannot be
//! read, or is of another namespace or a newer version, is never taken for an empty one.

use crate::cluster::Kept;
use crate::limits::{LAST_PROCESS_INTERVAL, LAST_PROCESS_TIMEOUT};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nvmf_memory::Crc32c;
use nvmf_subsystem::HostId;
use nvmf_subsystem::reservation::{Reservation, ReservationType, RestoreError};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thiserror::Error;
use uuid::Uuid;

/// Where it is if nobody says.
const DEFAULT: &str = "/var/lib/nvmf";
/// The version of the files.
const VERSION: u32 = 1;
/// The largest file: that of the most registrants has less.
const LEN_MAX: u64 = 1 << 20;
/// What the last line of a file begins with.
const CHECKSUM: &str = "# crc32c ";

/// The state directory cannot be used, or a file in it.
#[derive(Debug, Error)]
pub enum StateError {
    /// It cannot be made, opened or locked.
    #[error("the state directory {path} cannot be used: correct state_dir in [target], or its permissions")]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another daemon has it.
    #[error(
        "another nvmf-target has the state directory {0}: give this one its own, with state_dir in [target]"
    )]
    Locked(PathBuf),
    /// A file cannot be read.
    #[error("its {what} cannot be read from {path}")]
    Read {
        /// What is in it.
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file says something that cannot be.
    #[error(
        "its reservation cannot be restored: {path} {reason}. Restore the file from a backup; or, if no host relies on \
         the reservation, remove it"
    )]
    Content {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// The files of a state directory: those of a file system, or of a simulated one.
pub trait Folder: core::fmt::Debug + Send + Sync {
    /// What is in a file, up to so many bytes.
    ///
    /// # Errors
    /// What the system says.
    fn read(&self, name: &str, len_max: u64) -> io::Result<Vec<u8>>;

    /// Makes a file, or replaces what is in it. A power cut may leave any part of that until [`Folder::sync`].
    ///
    /// # Errors
    /// What the system says; part of it may have been written.
    fn write(&self, name: &str, text: &str) -> io::Result<()>;

    /// What is in a file is on the disk afterwards.
    ///
    /// # Errors
    /// What the system says.
    fn sync(&self, name: &str) -> io::Result<()>;

    /// Renames a file, in place of another. A power cut may undo that until [`Folder::sync_name`].
    ///
    /// # Errors
    /// What the system says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. A power cut may undo that until [`Folder::sync_name`].
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Whether a file of this name is there, and which, is on the disk afterwards. It may be so of others, too.
    ///
    /// # Errors
    /// What the system says.
    fn sync_name(&self, name: &str) -> io::Result<()>;
}

/// The state directory of this process.
#[derive(Debug)]
pub struct StateDirectory {
    path: PathBuf,
    files: Files,
    /// It is this daemon's: something can be kept here.
    keeps: bool,
}

/// Where its files are.
#[derive(Debug)]
enum Files {
    Folder(Box<dyn Folder>),
    /// The pool of a group of targets. It has reservations that do not persist, too: another target may have the disk while
    /// hosts have power.
    Pool(Kept),
}

/// A folder of a file system.
#[derive(Debug)]
struct OnDisk {
    path: PathBuf,
    /// Locked for as long as this is there. `None`: another daemon has it, or it cannot be used.
    lock: Option<Flock<File>>,
}

impl Folder for OnDisk {
    fn read(&self, name: &str, len_max: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.path.join(name))?.take(len_max).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(self.path.join(name))?.write_all(text.as_bytes())
    }

    /// An error that the system met since the file was written is told to who opens it next.
    fn sync(&self, name: &str) -> io::Result<()> {
        File::open(self.path.join(name))?.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync_name(&self, _name: &str) -> io::Result<()> {
        self.lock.as_ref().map_or(Ok(()), |directory| directory.sync_all())
    }
}

/// A file, as text.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    /// Of the namespace.
    uuid: Uuid,
    generation: u32,
    /// Whether it persists; left out where it does.
    #[serde(default = "persists", skip_serializing_if = "core::clone::Clone::clone")]
    persists: bool,
    /// What is held: RTYPE, and the Host Identifier of the holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<HeldContent>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    registrant: Vec<RegistrantContent>,
}

fn persists() -> bool {
    true
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeldContent {
    rtype: u8,
    host: Uuid,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RegistrantContent {
    host: Uuid,
    /// In hexadecimal: TOML has no number of 64 bits without sign.
    key: String,
}

impl StateDirectory {
    /// The directory that is configured, else that of systemd (`STATE_DIRECTORY`), else `/var/lib/nvmf` where that is
    /// there. One that was asked for is made; without one, nothing is kept.
    ///
    /// # Errors
    /// [`StateError::Directory`], [`StateError::Locked`]: of a directory that was asked for.
    pub fn open(configured: Option<&Path>) -> Result<Self, StateError> {
        // systemd may name several, the first of them the unit's own.
        let of_unit = || {
            let all = std::env::var_os("STATE_DIRECTORY").filter(|path| !path.is_empty())?;
            Some(PathBuf::from(all.to_string_lossy().split(':').next()?))
        };
        match configured.map(Path::to_owned).or_else(of_unit) {
            Some(path) => {
                let lock = make_and_lock(&path, LAST_PROCESS_TIMEOUT)?;
                Ok(Self::on_disk(path, Some(lock)))
            }
            None => Ok(Self::standard(PathBuf::from(DEFAULT))),
        }
    }

    fn standard(path: PathBuf) -> Self {
        let lock = path.is_dir().then(|| make_and_lock(&path, LAST_PROCESS_TIMEOUT));
        let lock = lock.and_then(|lock| {
            lock.inspect_err(|error| {
                tracing::warn!("{error}. Until then, reservations do not persist through a loss of power");
            })
            .ok()
        });
        Self::on_disk(path, lock)
    }

    fn on_disk(path: PathBuf, lock: Option<Flock<File>>) -> Self {
        let keeps = lock.is_some();
        Self { files: Files::Folder(Box::new(OnDisk { path: path.clone(), lock })), path, keeps }
    }

    /// One with these files, which are this daemon's.
    #[must_use]
    pub fn over(folder: Box<dyn Folder>) -> Self {
        Self { path: PathBuf::new(), files: Files::Folder(folder), keeps: true }
    }

    /// One with the files of a group of targets, each of which may have a disk next.
    #[must_use]
    pub fn shared(kept: Kept) -> Self {
        Self { path: PathBuf::new(), files: Files::Pool(kept), keeps: true }
    }

    fn is_shared(&self) -> bool {
        matches!(self.files, Files::Pool(_))
    }

    /// Whether something can be kept here.
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    /// Where keys are kept that no file of the configuration holds, of hosts or of the `controller` towards them, by the name
    /// of the host; `None` if nothing can be kept here.
    #[must_use]
    pub fn keys(&self, controller: bool) -> Option<PathBuf> {
        (self.keeps() && !self.is_shared())
            .then(|| self.path.join(if controller { "controller-keys" } else { "keys" }))
    }

    /// The reservation of a namespace, if one was kept. It is on the disk afterwards, also where whoever stored it could
    /// not make sure of that: hosts rely on it from now on.
    ///
    /// # Errors
    /// [`StateError::Read`], [`StateError::Content`]: there is one, and it cannot be had.
    pub fn load(&self, uuid: [u8; 16]) -> Result<Option<Reservation>, StateError> {
        let name = file(uuid);
        let path = self.path.join(&name);
        let failed = |source| StateError::Read { what: "reservation", path: path.clone(), source };
        let text = match self.read(&name, LEN_MAX + 1) {
            // What is no text has a wrong checksum.
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // One that was removed does not come back.
                return self.make_sure(&name, false).map(|()| None).map_err(failed);
            }
            Err(source) => return Err(failed(source)),
        };
        self.make_sure(&name, true).map_err(failed)?;
        match parse(&text, uuid) {
            Ok(_) if !self.keeps() => Err(StateError::Content {
                path,
                reason: "is in a directory that is not this daemon's".into(),
            }),
            Ok(reservation) => Ok(Some(reservation)),
            Err(reason) => Err(StateError::Content { path, reason }),
        }
    }

    /// Keeps the reservation of a namespace, or nothing of one that does not persist. It is on the disk afterwards.
    ///
    /// # Errors
    /// What the system said: the file that was there is there still, except where the disk itself failed.
    pub fn store(&self, uuid: [u8; 16], reservation: &Reservation) -> io::Result<()> {
        if !self.keeps {
            return if reservation.persists() {
                Err(io::Error::other("there is no state directory"))
            } else {
                Ok(())
            };
        }
        let is_kept = reservation.persists() || self.is_shared() && *reservation != Reservation::default();
        let text = is_kept.then(|| text(uuid, reservation));
        self.replace(&file(uuid), text.as_deref())
    }

    /// Whether a reservation is to be kept, or no longer. A group keeps it again even if nothing changes: the pool
    /// refuses a gateway that does not know any more what is so.
    #[must_use]
    pub fn is_to_be_stored(&self, old: &Reservation, new: &Reservation) -> bool {
        self.is_shared() || old != new && (old.persists() || new.persists())
    }

    fn read(&self, name: &str, len_max: u64) -> io::Result<Vec<u8>> {
        match &self.files {
            Files::Folder(folder) => folder.read(name, len_max),
            Files::Pool(kept) => kept.read(name, len_max),
        }
    }

    /// That a file is there, and what is in it, or that it is not, stays so.
    fn make_sure(&self, name: &str, is_there: bool) -> io::Result<()> {
        match &self.files {
            Files::Folder(folder) if self.keeps => {
                let synced = if is_there { folder.sync(name) } else { Ok(()) };
                synced.and_then(|()| folder.sync_name(name))
            }
            Files::Folder(_) | Files::Pool(_) => Ok(()),
        }
    }

    /// Gives a file another text, or none, and makes sure that it stays so. If that fails, it has its old text again, as
    /// far as the disk lets it: what has failed must not count after a restart.
    fn replace(&self, name: &str, text: Option<&str>) -> io::Result<()> {
        let folder = match &self.files {
            Files::Folder(folder) => &**folder,
            Files::Pool(kept) => return kept.replace(name, text),
        };
        let old = match folder.read(name, LEN_MAX) {
            Ok(old) => Some(String::from_utf8_lossy(&old).into_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        put(folder, name, text)?;
        folder.sync_name(name).inspect_err(|_| {
            if let Err(error) = put(folder, name, old.as_deref()).and_then(|()| folder.sync_name(name)) {
                tracing::error!("{name} in the state directory cannot be given its old text again: {error}");
            }
        })
    }

    /// Whether hosts have protected a namespace against writes. That its file is there says so, whatever is in it.
    ///
    /// # Errors
    /// [`StateError::Read`]: it cannot be found out.
    pub fn is_write_protected(&self, uuid: [u8; 16]) -> Result<bool, StateError> {
        let name = protection_file(uuid);
        let failed =
            |source| StateError::Read { what: "write protection", path: self.path.join(&name), source };
        match self.read(&name, 0) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(source) => Err(failed(source)),
        }
    }

    /// Keeps whether hosts have protected a namespace. It is on the disk afterwards.
    ///
    /// # Errors
    /// What the system said: nothing is changed, except where the disk itself failed.
    pub fn set_write_protected(&self, uuid: [u8; 16], on: bool) -> io::Result<()> {
        if !self.keeps {
            return Err(io::Error::other("there is no state directory"));
        }
        const TEXT: &str = "# A host has protected this namespace against writes. nvmf-target makes and removes this file.\n";
        self.replace(&protection_file(uuid), on.then_some(TEXT))
    }
}

/// Gives a file another text, or none.
fn put(folder: &dyn Folder, name: &str, text: Option<&str>) -> io::Result<()> {
    let Some(text) = text else { return remove(folder, name) };
    let new = format!("{}.new", name.trim_end_matches(".toml"));
    let written = folder.write(&new, text).and_then(|()| folder.sync(&new));
    // What is left of it must not fill the disk.
    written.and_then(|()| folder.rename(&new, name)).inspect_err(|_| drop(folder.remove(&new)))
}

/// Removes a file, if it is there.
fn remove(folder: &dyn Folder, name: &str) -> io::Result<()> {
    match folder.remove(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The name of the file of a namespace's reservation.
fn file(uuid: [u8; 16]) -> String {
    format!("reservation-{}.toml", Uuid::from_bytes(uuid))
}

/// The name of the file that says that a namespace is protected against writes.
fn protection_file(uuid: [u8; 16]) -> String {
    format!("write-protection-{}", Uuid::from_bytes(uuid))
}

/// Waits so long for the process before to be gone.
fn make_and_lock(path: &Path, patience: Duration) -> Result<Flock<File>, StateError> {
    let failed = |source| StateError::Directory { path: path.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let mut directory = File::open(path).map_err(failed)?;
    let deadline = Instant::now() + patience;
    loop {
        directory = match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => return Ok(locked),
            Err((directory, Errno::EWOULDBLOCK)) if Instant::now() < deadline => directory,
            Err((_, Errno::EWOULDBLOCK)) => return Err(StateError::Locked(path.to_owned())),
            Err((_, error)) => return Err(failed(error.into())),
        };
        std::thread::sleep(LAST_PROCESS_INTERVAL);
    }
}

fn text(uuid: [u8; 16], reservation: &Reservation) -> String {
    let held = reservation.held();
    let content = Content {
        version: VERSION,
        uuid: Uuid::from_bytes(uuid),
        generation: reservation.generation(),
        persists: reservation.persists(),
        held: held.map(|(kind, host)| HeldContent { rtype: kind.0, host: Uuid::from_bytes(host.0) }),
        registrant: reservation
            .registrants()
            .map(|(host, key)| RegistrantContent { host: Uuid::from_bytes(host.0), key: format!("{key:#x}") })
            .collect(),
    };
    let body = toml::to_string(&content).expect("plain values become TOML");
    let mut text =
        format!("# The reservation of a namespace. nvmf-target writes this file: do not edit it.\n{body}");
    let checksum = Crc32c::of(text.as_bytes());
    let _ = writeln!(text, "{CHECKSUM}{checksum:08x}");
    text
}

/// The reservation, or what is wrong with the text.
fn parse(text: &str, uuid: [u8; 16]) -> Result<Reservation, String> {
    if text.len() as u64 > LEN_MAX {
        return Err("is too large".into());
    }
    let at = text.rfind(CHECKSUM).ok_or("is cut off: its checksum is missing")?;
    let (body, checksum) = text.split_at(at);
    let checksum = checksum[CHECKSUM.len()..].trim_end();
    if u32::from_str_radix(checksum, 16) != Ok(Crc32c::of(body.as_bytes())) {
        return Err("is damaged: its checksum is wrong".into());
    }
    let version = toml::from_str::<toml::Table>(body).ok().and_then(|it| it.get("version")?.as_integer());
    match version {
        Some(version) if version > VERSION.into() => {
            return Err(format!("has version {version}, which a newer nvmf-target has written"));
        }
        Some(version) if version == i64::from(VERSION) => {}
        _ => return Err("has no version".into()),
    }
    let content: Content =
        toml::from_str(body).map_err(|error| format!("cannot be understood: {}", error.message()))?;
    if *content.uuid.as_bytes() != uuid {
        return Err(format!("is of another namespace, {}", content.uuid));
    }
    let key = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let registrants: Option<Vec<_>> =
        content.registrant.iter().map(|it| Some((HostId(*it.host.as_bytes()), key(&it.key)?))).collect();
    let registrants = registrants.ok_or("has a key that is not hexadecimal")?;
    let held = content.held.map(|held| (ReservationType(held.rtype), HostId(*held.host.as_bytes())));
    Reservation::restored(content.generation, held, registrants)
        .map(|reservation| reservation.with_persistence(content.persists))
        .map_err(|error: RestoreError| format!("cannot be: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    const UUID: [u8; 16] = [7; 16];
    const HOST: HostId = HostId([1; 16]);

    fn reservation() -> Reservation {
        let held = Some((ReservationType::EXCLUSIVE_ACCESS, HOST));
        Reservation::restored(5, held, [(HOST, u64::MAX), (HostId([2; 16]), 1)]).unwrap()
    }

    fn directory() -> (tempfile::TempDir, StateDirectory) {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::open(Some(&folder.path().join("state"))).unwrap();
        (folder, directory)
    }

    #[test]
    fn write_protection_is_kept_until_it_is_taken_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let (ours, other) = ([7; 16], [8; 16]);
        {
            let directory = StateDirectory::open(Some(&path)).unwrap();
            assert!(!directory.is_write_protected(ours).unwrap());
            directory.set_write_protected(ours, false).unwrap();
            directory.set_write_protected(ours, true).unwrap();
        }
        let directory = StateDirectory::open(Some(&path)).unwrap();
        assert!(directory.is_write_protected(ours).unwrap() && !directory.is_write_protected(other).unwrap());
        std::fs::write(folder.path().join("state").join(protection_file(ours)), "").unwrap();
        assert!(directory.is_write_protected(ours).unwrap(), "whatever is in the file");
        directory.set_write_protected(ours, false).unwrap();
        assert!(!directory.is_write_protected(ours).unwrap());
        let nowhere = StateDirectory::on_disk(folder.path().join("none"), None);
        assert!(nowhere.set_write_protected(ours, true).is_err());
    }

    #[test]
    fn what_is_stored_is_loaded() {
        let (folder, directory) = directory();
        assert!(directory.load(UUID).unwrap().is_none());
        directory.store(UUID, &reservation()).unwrap();
        assert_eq!(directory.load(UUID).unwrap(), Some(reservation()));
        drop(directory);
        let directory = StateDirectory::open(Some(&folder.path().join("state"))).unwrap();
        assert_eq!(directory.load(UUID).unwrap(), Some(reservation()));
        directory.store(UUID, &Reservation::default()).unwrap();
        assert!(directory.load(UUID).unwrap().is_none());
        assert_eq!(std::fs::read_dir(folder.path().join("state")).unwrap().count(), 0);
    }

    #[test]
    fn file_of_the_most_registrants_is_small_enough() {
        let many = (1..=1024u128).map(|host| (HostId((u128::MAX - host).to_be_bytes()), u64::MAX));
        let reservation = Reservation::restored(u32::MAX, None, many).unwrap();
        assert!(text(UUID, &reservation).len() as u64 <= LEN_MAX);
        assert_eq!(parse(&text(UUID, &reservation), UUID), Ok(reservation));
    }

    #[test]
    fn damaged_foreign_and_newer_files_are_refused_by_name() {
        let (folder, directory) = directory();
        directory.store(UUID, &reservation()).unwrap();
        let path = folder.path().join("state").join(format!("reservation-{}.toml", Uuid::from_bytes(UUID)));
        let good = std::fs::read_to_string(&path).unwrap();
        let sealed = |body: String| {
            let body = body[..body.rfind(CHECKSUM).unwrap()].to_owned();
            format!("{body}{CHECKSUM}{:08x}\n", Crc32c::of(body.as_bytes()))
        };
        let newer = sealed(good.replace("version = 1", "version = 2\nfuture = true"));
        let foreign = sealed(good.replace(&Uuid::from_bytes(UUID).to_string(), &Uuid::nil().to_string()));
        let strange = sealed(good.replace("rtype = 2", "rtype = 9"));
        for (text, reason) in [
            (good[..good.len() / 2].to_owned(), "cut off"),
            (String::new(), "cut off"),
            (good.replacen("generation = 5", "generation = 6", 1), "damaged"),
            (newer, "version 2"),
            (foreign, "another namespace"),
            (strange, "type 9"),
            ("x".repeat(2 << 20), "too large"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = directory.load(UUID).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains(path.to_str().unwrap()), "{error}");
        }
        for at in 0..good.len() {
            let mut bytes = good.clone().into_bytes();
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            // A flipped bit in the case of a checksum's letter says the same.
            if let Ok(loaded) = directory.load(UUID) {
                assert_eq!(loaded, Some(reservation()), "byte {at}");
            }
        }
    }

    /// A folder that notes what changes it, and whose names cannot be synchronised while it says so.
    #[derive(Debug)]
    struct Watched {
        on_disk: OnDisk,
        fails: AtomicBool,
        calls: Mutex<Vec<String>>,
    }

    impl Watched {
        fn new(path: &Path) -> Arc<Self> {
            let on_disk = OnDisk { path: path.to_owned(), lock: None };
            Arc::new(Self { on_disk, fails: AtomicBool::new(false), calls: Mutex::default() })
        }

        fn note(&self, call: &str) {
            self.calls.lock().unwrap().push(call.to_owned());
        }
    }

    impl Folder for Arc<Watched> {
        fn read(&self, name: &str, len_max: u64) -> io::Result<Vec<u8>> {
            self.on_disk.read(name, len_max)
        }

        fn write(&self, name: &str, text: &str) -> io::Result<()> {
            self.note(&format!("write {name}"));
            self.on_disk.write(name, text)
        }

        fn sync(&self, name: &str) -> io::Result<()> {
            self.note(&format!("sync {name}"));
            self.on_disk.sync(name)
        }

        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            self.note(&format!("rename {from} {to}"));
            self.on_disk.rename(from, to)
        }

        fn remove(&self, name: &str) -> io::Result<()> {
            self.note(&format!("remove {name}"));
            self.on_disk.remove(name)
        }

        fn sync_name(&self, name: &str) -> io::Result<()> {
            self.note("sync names");
            if self.fails.load(Ordering::Relaxed) {
                return Err(io::Error::other("a disk error"));
            }
            self.on_disk.sync_name(name)
        }
    }

    #[test]
    fn file_is_on_the_disk_before_it_has_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let watched = Watched::new(folder.path());
        let directory = StateDirectory::over(Box::new(Arc::clone(&watched)));
        directory.replace("one.toml", Some("text")).unwrap();
        directory.replace("one.toml", None).unwrap();
        let calls = watched.calls.lock().unwrap();
        let stored = ["write one.new", "sync one.new", "rename one.new one.toml", "sync names"];
        assert_eq!(*calls, [&stored[..], &["remove one.toml", "sync names"]].concat());
    }

    #[test]
    fn file_has_its_old_text_when_the_directory_cannot_be_synchronised() {
        let folder = tempfile::tempdir().unwrap();
        let watched = Watched::new(folder.path());
        watched.fails.store(true, Ordering::Relaxed);
        let directory = StateDirectory::over(Box::new(Arc::clone(&watched)));
        let path = folder.path().join("reservation.toml");
        assert!(directory.replace("reservation.toml", Some("one")).is_err());
        assert!(!path.exists());
        watched.fails.store(false, Ordering::Relaxed);
        directory.replace("reservation.toml", Some("one")).unwrap();
        watched.fails.store(true, Ordering::Relaxed);
        for text in [Some("two"), None] {
            assert!(directory.replace("reservation.toml", text).is_err());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "one");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(directory.load(UUID).is_err(), "what may come back is not taken for none");
    }

    #[test]
    fn directory_belongs_to_one_daemon() {
        let (folder, directory) = directory();
        let path = folder.path().join("state");
        assert!(matches!(StateDirectory::open(Some(&path)), Err(StateError::Locked(_))));
        directory.store(UUID, &reservation()).unwrap();
        // As with a standard directory that another daemon has: what is there is not ignored.
        let second = StateDirectory::standard(path.clone());
        assert!(!second.keeps());
        assert!(second.load(UUID).is_err() && second.load([8; 16]).unwrap().is_none());
        assert!(second.store(UUID, &reservation()).is_err());
        drop(directory);
        assert!(StateDirectory::open(Some(&path)).is_ok());
    }

    #[test]
    fn file_that_cannot_be_written_leaves_the_old_one() {
        let (folder, directory) = directory();
        directory.store(UUID, &reservation()).unwrap();
        let old = reservation();
        let in_the_way =
            folder.path().join("state").join(format!("reservation-{}.new", Uuid::from_bytes(UUID)));
        std::fs::create_dir(&in_the_way).unwrap();
        let new = Reservation::restored(9, None, [(HOST, 3)]).unwrap();
        assert!(directory.store(UUID, &new).is_err());
        assert_eq!(directory.load(UUID).unwrap(), Some(old));
    }
}
