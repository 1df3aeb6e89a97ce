//! Listening on a Unix socket.

use super::place::{Place, PlaceLock};
use crate::attach::SocketOptions;
use nvmf_attached::Attachment;
use nvmf_stream::listen_unix;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Permissions of a socket, unless the user says otherwise.
pub(crate) const OWN_MODE: u32 = 0o600;
/// Bytes of a path in a socket's address (unix(7)), without the zero behind it.
const PATH_LEN_MAX: usize = 107;
/// Clients that wait to be accepted: as many as the system lets wait.
const BACKLOG: i32 = i32::MAX;

/// The socket cannot be served.
#[derive(Debug, Error)]
pub(crate) enum ListenError {
    /// Another server answers there.
    #[error("{} is served already: another process listens there; choose another --socket, or, if nvmf list shows a disk there, nvmf detach --socket {}", path.display(), path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something else is there.
    #[error("{} exists and is not a socket: choose another --socket, or remove it", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// Whether a server answers there cannot be told.
    #[error("cannot tell whether {} is served: choose another --socket, or remove it if nobody has it", path.display())]
    Unknown {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// There is no such group.
    #[error("there is no group {name}, which the socket is to have")]
    NoGroup {
        /// Its name.
        name: String,
    },
    /// No socket address has so much.
    #[error("{}: the path of a socket has {PATH_LEN_MAX} bytes at most, and this one has {}", path.display(), path.as_os_str().len())]
    TooLong {
        /// The path.
        path: PathBuf,
    },
    /// It cannot be written down.
    #[error("{}: the path of the socket is not UTF-8", path.display())]
    NotText {
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot listen on {}", path.display())]
    Os {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Who may use a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    /// Its permissions.
    pub(crate) mode: u32,
    /// The number of its group, where it is not that of the process.
    pub(crate) group: Option<u32>,
}

impl Access {
    /// As these options say; where they do not, as the entry of the disk says that is taken over. Whatever lies at its path says
    /// nothing: anybody may have put it there.
    ///
    /// # Errors
    /// [`ListenError::NoGroup`].
    pub(crate) fn new(options: &SocketOptions, before: Option<&Attachment>) -> Result<Self, ListenError> {
        let asked = options.group.as_deref().map(group).transpose()?;
        let mode = options.mode.or(before.and_then(|before| before.socket_mode)).unwrap_or(OWN_MODE);
        Ok(Self { mode, group: asked.or(before.and_then(|before| before.socket_group)) })
    }
}

/// A Unix socket that clients connect to; its path goes with it, unless it is another's by then.
#[derive(Debug)]
pub(crate) struct Listener {
    /// Goes first: its numbers are not given to another file while the socket is open.
    _place: OwnPlace,
    socket: UnixListener,
}

/// The path at which this process has made a socket.
#[derive(Debug)]
struct OwnPlace {
    path: PathBuf,
    /// Device and inode number of the socket.
    id: (u64, u64),
    /// What is locked when it is removed.
    lock: PathBuf,
}

impl Drop for OwnPlace {
    fn drop(&mut self) {
        let Ok(_lock) = PlaceLock::take(&self.lock) else { return };
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.id) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Listener {
    /// Fails for a path that no socket can have, or that no entry can name.
    ///
    /// # Errors
    /// [`ListenError::TooLong`], [`ListenError::NotText`].
    pub(crate) fn check(path: &Path) -> Result<(), ListenError> {
        match path.to_str() {
            None => Err(ListenError::NotText { path: path.to_owned() }),
            Some(text) if text.len() > PATH_LEN_MAX => Err(ListenError::TooLong { path: path.to_owned() }),
            Some(_) => Ok(()),
        }
    }

    /// Listens. A socket that nobody answers on, left by a server that was killed, is replaced. `lock` is a file that all servers of this
    /// user lock while they make or remove a socket, and nobody else may open.
    ///
    /// # Errors
    /// [`ListenError`].
    pub(crate) fn bind(path: &Path, access: Access, lock: &Path) -> Result<Self, ListenError> {
        Self::check(path)?;
        let os = |source| ListenError::Os { path: path.to_owned(), source };
        // Until the socket is there.
        let locked = PlaceLock::take(lock).map_err(os)?;
        let owned = || path.to_owned();
        match Place::of(path) {
            Ok(Place::Free) => {}
            Ok(Place::Stale) => std::fs::remove_file(path).map_err(os)?,
            Ok(Place::Served) => return Err(ListenError::InUse { path: owned() }),
            Ok(Place::NotASocket) => return Err(ListenError::NotASocket { path: owned() }),
            Err(source) => return Err(ListenError::Unknown { path: owned(), source }),
        }
        let (socket, file) = listen_unix(path, BACKLOG).map_err(os)?;
        drop(locked);
        let listener =
            Self { _place: OwnPlace { path: owned(), id: file.id(), lock: lock.to_owned() }, socket };
        listener.socket.set_nonblocking(true).map_err(os)?;
        if let Some(group) = access.group {
            file.set_group(group).map_err(os)?;
        }
        file.set_mode(access.mode).map_err(os)?;
        Ok(listener)
    }

    /// One more client, if there is one now.
    ///
    /// # Errors
    /// Most likely there are no descriptors left.
    pub(crate) fn accept(&self) -> io::Result<Option<UnixStream>> {
        match self.socket.accept() {
            Ok((stream, _)) => Ok(Some(stream)),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// A group's number.
fn group(name: &str) -> Result<u32, ListenError> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let found = nix::unistd::Group::from_name(name).ok().flatten();
    found.map(|group| group.gid.as_raw()).ok_or_else(|| ListenError::NoGroup { name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn socket_is_for_those_that_it_was_for_unless_others_are_named() {
        let before = Attachment { socket_mode: Some(0o660), socket_group: Some(7), ..Attachment::default() };
        let of = |mode, group: Option<&str>, before| {
            let options = SocketOptions { mode, group: group.map(str::to_owned), ..SocketOptions::default() };
            Access::new(&options, before).map_err(|error| error.to_string())
        };
        assert_eq!(of(None, None, None), Ok(Access { mode: 0o600, group: None }));
        assert_eq!(of(None, None, Some(&before)), Ok(Access { mode: 0o660, group: Some(7) }));
        assert_eq!(of(Some(0o666), Some("8"), Some(&before)), Ok(Access { mode: 0o666, group: Some(8) }));
        assert!(of(None, Some("no such group"), Some(&before)).unwrap_err().contains("no such group"));
    }

    #[test]
    fn path_that_no_socket_can_have_is_refused_with_the_limit() {
        let of = |bytes: Vec<u8>| {
            let checked = Listener::check(Path::new(&std::ffi::OsString::from_vec(bytes)));
            checked.map_err(|error| error.to_string())
        };
        assert_eq!(of(vec![b'a'; 107]), Ok(()));
        let error = of(vec![b'a'; 108]).unwrap_err();
        assert!(error.contains("107") && error.contains("108"), "{error}");
        assert!(of(b"/run/\xff.sock".to_vec()).unwrap_err().contains("UTF-8"));
    }
}
