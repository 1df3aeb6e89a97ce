//! A Unix socket's file, and who may use it.

use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::geteuid;
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs::{File, OpenOptions, Permissions, set_permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{
    FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown,
};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// The permissions of a socket's file at first, which no other socket has: its owner may connect, and may not read.
const FIRST: u32 = 0o200;

/// The file of a Unix socket, wherever its path leads by now.
///
/// Whoever may write to its folder can put another file, or a link to one, at its path at any moment. What is said of the
/// socket by its path would be said of that file then.
#[derive(Debug)]
pub struct SocketFile {
    file: File,
    id: (u64, u64),
}

/// A Unix socket that listens at a path where nothing is. Nobody but its owner may connect before [`SocketFile::set_mode`]. Connections
/// queue in it, at most `backlog` and what the system allows.
///
/// # Errors
/// When something is there ([`ErrorKind::AddrInUse`]), when no socket can be there, or when somebody else has put another file in
/// its place at this moment.
pub fn listen_unix(path: &Path, backlog: i32) -> io::Result<(UnixListener, SocketFile)> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // Its file gets the permissions that the socket has when it is bound (unix(7)).
    fchmod(&socket, Mode::from_bits_truncate(FIRST))?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = SocketFile::just_bound(path)?;
    socket.listen(backlog)?;
    Ok((OwnedFd::from(socket).into(), file))
}

impl SocketFile {
    /// The file of a socket that this process has bound to this path just now, if it is there and no other.
    fn just_bound(path: &Path) -> io::Result<Self> {
        let flags = (OFlag::O_PATH | OFlag::O_NOFOLLOW).bits();
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(replaced()),
            opened => opened?,
        };
        let found = file.metadata()?;
        let is_it = found.file_type().is_socket()
            && found.mode() & 0o7777 == FIRST
            && found.uid() == geteuid().as_raw();
        let id = (found.dev(), found.ino());
        if is_it { Ok(Self { file, id }) } else { Err(replaced()) }
    }

    /// Its device and inode number. They are given to no other file while the socket, or this, is there.
    #[must_use]
    pub fn id(&self) -> (u64, u64) {
        self.id
    }

    /// Gives it to a group.
    ///
    /// # Errors
    /// When this process may not.
    pub fn set_group(&self, group: u32) -> io::Result<()> {
        chown(self.name(), None, Some(group))
    }

    /// Sets its permissions: who may write to it may connect.
    ///
    /// # Errors
    /// When the file system does not take them.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        set_permissions(self.name(), Permissions::from_mode(mode))
    }

    /// A path that leads to it and to nothing else: that of its descriptor.
    fn name(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }
}

fn replaced() -> io::Error {
    io::Error::other(
        "somebody else has removed it, or put another file in its place, while it was made: choose a path in a folder that nobody \
         else may write to",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixStream;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    fn set_mode(path: &Path, mode: u32) {
        set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn socket_is_its_owner_s_alone_until_it_is_said_whose_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let (listener, file) = listen_unix(&path, 1).unwrap();
        assert_eq!(mode(&path), FIRST);
        file.set_group(nix::unistd::getegid().as_raw()).unwrap();
        file.set_mode(0o660).unwrap();
        assert_eq!(mode(&path), 0o660);
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!(file.id(), (found.dev(), found.ino()));
        let _client = UnixStream::connect(&path).unwrap();
        assert!(listener.accept().is_ok());
        assert_eq!(listen_unix(&path, 1).unwrap_err().kind(), ErrorKind::AddrInUse);
    }

    #[test]
    fn what_is_said_of_a_socket_is_said_of_no_file_that_took_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let (path, moved, theirs) =
            (folder.path().join("socket"), folder.path().join("moved"), folder.path().join("theirs"));
        std::fs::write(&theirs, "").unwrap();
        set_mode(&theirs, 0o600);
        let (_listener, file) = listen_unix(&path, 1).unwrap();
        std::fs::rename(&path, &moved).unwrap();
        symlink(&theirs, &path).unwrap();
        file.set_group(nix::unistd::getegid().as_raw()).unwrap();
        file.set_mode(0o666).unwrap();
        assert_eq!((mode(&theirs), mode(&moved)), (0o600, 0o666));
    }

    #[test]
    fn file_that_took_the_place_of_a_socket_is_not_taken_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let is_refused = || SocketFile::just_bound(&path).unwrap_err().to_string().contains("in its place");
        assert!(is_refused(), "nothing is there");
        let other = folder.path().join("other");
        drop(listen_unix(&other, 1).unwrap());
        symlink(&other, &path).unwrap();
        assert!(is_refused(), "a link, to a socket that was only just made");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        set_mode(&path, FIRST);
        assert!(is_refused(), "a file");
        std::fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        for mode in [0o600, 0o000, 0o777] {
            set_mode(&path, mode);
            assert!(is_refused(), "another socket, with mode {mode:o}");
        }
        std::fs::rename(&other, &path).unwrap();
        assert!(SocketFile::just_bound(&path).is_ok());
    }
}
