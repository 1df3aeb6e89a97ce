//! The state directory: what outlives the process. Today that is the reservations that persist through a loss of power,
//! a file for each namespace, named by its UUID.
//!
//! A file is replaced as a whole, and is on the disk before the command that changes it completes. One that cannot be
//! read, or is of another namespace or a newer version, is never taken for an empty one.

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
    #[error("its reservation cannot be read from {path}")]
    Read {
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

/// The state directory of this process.
#[derive(Debug)]
pub struct StateDirectory {
    path: PathBuf,
    /// Locked for as long as this is there. `None`: nothing can be kept here.
    lock: Option<Flock<File>>,
}

/// A file, as text.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    /// Of the namespace.
    uuid: Uuid,
    generation: u32,
    /// What is held: RTYPE, and the Host Identifier of the holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<HeldContent>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    registrant: Vec<RegistrantContent>,
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
                let lock = make_and_lock(&path)?;
                Ok(Self { path, lock: Some(lock) })
            }
            None => Ok(Self::standard(PathBuf::from(DEFAULT))),
        }
    }

    fn standard(path: PathBuf) -> Self {
        let lock = path.is_dir().then(|| make_and_lock(&path));
        let lock = lock.and_then(|lock| {
            lock.inspect_err(|error| {
                tracing::warn!("{error}. Until then, reservations do not persist through a loss of power");
            })
            .ok()
        });
        Self { path, lock }
    }

    /// Whether something can be kept here.
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.lock.is_some()
    }

    /// The reservation of a namespace, if one was kept.
    ///
    /// # Errors
    /// [`StateError::Read`], [`StateError::Content`]: there is one, and it cannot be had.
    pub fn load(&self, uuid: [u8; 16]) -> Result<Option<Reservation>, StateError> {
        let path = self.file(uuid);
        let mut text = String::new();
        match File::open(&path).and_then(|file| file.take(LEN_MAX + 1).read_to_string(&mut text)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(StateError::Read { path, source }),
        }
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
        let Some(directory) = &self.lock else {
            return if reservation.persists() {
                Err(io::Error::other("there is no state directory"))
            } else {
                Ok(())
            };
        };
        let path = self.file(uuid);
        if reservation.persists() {
            let new = path.with_extension("new");
            let written =
                write_synced(&new, &text(uuid, reservation)).and_then(|()| std::fs::rename(&new, &path));
            if let Err(error) = written {
                // What is left of it must not fill the disk.
                let _ = std::fs::remove_file(&new);
                return Err(error);
            }
        } else {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        directory.sync_all()
    }

    fn file(&self, uuid: [u8; 16]) -> PathBuf {
        self.path.join(format!("reservation-{}.toml", Uuid::from_bytes(uuid)))
    }
}

/// Whether a reservation is to be kept, or no longer.
#[must_use]
pub fn is_to_be_stored(old: &Reservation, new: &Reservation) -> bool {
    old != new && (old.persists() || new.persists())
}

fn make_and_lock(path: &Path) -> Result<Flock<File>, StateError> {
    let failed = |source| StateError::Directory { path: path.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let directory = File::open(path).map_err(failed)?;
    Flock::lock(directory, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
        nix::errno::Errno::EWOULDBLOCK => StateError::Locked(path.to_owned()),
        error => failed(error.into()),
    })
}

fn write_synced(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn text(uuid: [u8; 16], reservation: &Reservation) -> String {
    let held = reservation.held();
    let content = Content {
        version: VERSION,
        uuid: Uuid::from_bytes(uuid),
        generation: reservation.generation(),
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
        .map_err(|error: RestoreError| format!("cannot be: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
