//! What is at a Unix socket's path, and who may change that.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long others may take that look at a socket's path.
const LOCK_TIME_MAX: Duration = Duration::from_secs(5);
const LOCK_POLL: Duration = Duration::from_millis(1);

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Nothing.
    Free,
    /// A socket that no process has any more: its server was killed.
    Stale,
    /// A socket that a process has.
    Served,
    /// Something else.
    NotASocket,
}

impl Place {
    /// Looks. Nobody who has the socket is disturbed, or waited for.
    ///
    /// # Errors
    /// When it cannot be told, most likely for want of permission.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        match std::fs::symlink_metadata(path) {
            Ok(metadata) if metadata.file_type().is_socket() => {}
            Ok(_) => return Ok(Self::NotASocket),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::Free),
            Err(error) => return Err(error),
        }
        // A datagram socket is not connected to a stream socket, however long the queue of that one's clients is.
        match UnixDatagram::unbound()?.connect(path) {
            Ok(()) => Ok(Self::Served),
            Err(error) => match error.raw_os_error() {
                Some(libc::EPROTOTYPE) => Ok(Self::Served),
                Some(libc::ECONNREFUSED) => Ok(Self::Stale),
                Some(libc::ENOENT) => Ok(Self::Free),
                _ => Err(error),
            },
        }
    }
}

/// The right to make or remove sockets, of all processes that take this lock, and only for as long as that lasts: a path that was
/// found stale stays so until it is replaced.
///
/// It is a lock of a file that only its user may open, in a folder where only he makes files: nobody else can keep it. It ends with
/// its process, however that ends.
#[derive(Debug)]
pub(super) struct PlaceLock {
    _file: File,
}

impl PlaceLock {
    /// Waits for the lock that is this file.
    ///
    /// # Errors
    /// When there is no such file and it cannot be made, or another process keeps the lock.
    pub(super) fn take(lock: &Path) -> io::Result<Self> {
        let file = open(lock)?;
        let deadline = Instant::now() + LOCK_TIME_MAX;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self { _file: file }),
                Err(TryLockError::Error(error)) => return Err(error),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(LOCK_POLL),
                Err(TryLockError::WouldBlock) => {
                    let kept = format!("another process keeps {} locked", lock.display());
                    return Err(io::Error::new(io::ErrorKind::TimedOut, kept));
                }
            }
        }
    }
}

/// The file of a lock, made where it is not there. The threads that serve a disk may make none (seccomp): for them it has been there
/// since their socket was made.
fn open(lock: &Path) -> io::Result<File> {
    // Nobody writes to a FIFO there.
    let file = match File::options().read(true).custom_flags(libc::O_NONBLOCK).open(lock) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            File::options().write(true).create(true).truncate(false).mode(0o600).open(lock)?
        }
        opened => opened?,
    };
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    let what = format!("{} is no file: remove it", lock.display());
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

/// The folder of this path, as the kernel tells it from others: its path may be spelled in several ways.
fn folder(path: &Path) -> io::Result<(u64, u64)> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = std::fs::metadata(folder.unwrap_or(Path::new(".")))?;
    Ok((folder.dev(), folder.ino()))
}

/// Whether two paths are those of one socket, which need not be there: the same name in the same folder.
pub(crate) fn is_same(a: &Path, b: &Path) -> bool {
    let is_one_folder = || folder(a).ok().zip(folder(b).ok()).is_some_and(|(a, b)| a == b);
    a == b || a.file_name().is_some() && a.file_name() == b.file_name() && is_one_folder()
}

/// Removes a socket that a server left behind which was killed, and nothing else; under this lock.
pub(crate) fn clear_away(path: &Path, lock: &Path) {
    let is_stale = || matches!(Place::of(path), Ok(Place::Stale));
    if is_stale()
        && let Ok(_lock) = PlaceLock::take(lock)
        && is_stale()
    {
        let _ = std::fs::remove_file(path);
    }
}
