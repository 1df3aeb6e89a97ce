//! What is at a Unix socket's path, and who may change that.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long others may take that look at a path of the same folder.
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

/// The right to make or remove sockets of a folder, of all processes that take this lock, and only for as long as that
/// lasts: a path that was found stale stays so until it is replaced.
///
/// It is an abstract Unix address, which ends with its process however that ends. Each network namespace has its own.
#[derive(Debug)]
pub(super) struct PlaceLock {
    _name: UnixDatagram,
}

impl PlaceLock {
    /// Waits for the lock of the folder of this path.
    ///
    /// # Errors
    /// When there is no such folder, or another process keeps the lock.
    pub(super) fn take(path: &Path) -> io::Result<Self> {
        let (device, inode) = folder(path)?;
        let name = format!("nvmf-socket/{device}/{inode}");
        let address = SocketAddr::from_abstract_name(&name)?;
        let deadline = Instant::now() + LOCK_TIME_MAX;
        loop {
            match UnixDatagram::bind_addr(&address) {
                Ok(name) => return Ok(Self { _name: name }),
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => return Err(error),
                Err(_) if Instant::now() < deadline => std::thread::sleep(LOCK_POLL),
                Err(_) => {
                    let kept =
                        format!("another process keeps the abstract socket @{name}, the lock of its folder");
                    return Err(io::Error::new(io::ErrorKind::TimedOut, kept));
                }
            }
        }
    }
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

/// Removes a socket that a server left behind which was killed, and nothing else.
pub(crate) fn clear_away(path: &Path) {
    if let Ok(_lock) = PlaceLock::take(path)
        && let Ok(Place::Stale) = Place::of(path)
    {
        let _ = std::fs::remove_file(path);
    }
}
