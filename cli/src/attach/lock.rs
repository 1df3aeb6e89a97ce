//! Locks that end with their process: who serves a disk, and that nobody else does.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nvme_proto::Nqn;
use nvmf_host::Namespace;
use std::fs::File;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use uuid::Uuid;

/// Locks a file for as long as it is open; `false` when another process has locked it.
pub(super) fn try_lock(file: &File) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&whole(libc::F_WRLCK))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether another process has locked the file. Asks only: nobody who locks at this moment is disturbed.
pub(super) fn is_locked(file: &File) -> io::Result<bool> {
    let mut lock = whole(libc::F_RDLCK);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

fn whole(kind: i32) -> libc::flock {
    let (l_type, l_whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 }
}

/// Says on the whole machine that a namespace is attached, whoever attached it.
///
/// Two attachments would be two page caches over one disk. The names are abstract Unix addresses, which the kernel
/// frees with the process that has them; each network namespace has its own.
#[derive(Debug)]
pub(crate) struct DiskLock {
    _names: Vec<UnixDatagram>,
}

impl DiskLock {
    /// Takes the lock; `None` when another process has it.
    ///
    /// # Errors
    /// When the system has no socket for it.
    pub(crate) fn take(nqn: &Nqn, namespace: &Namespace) -> io::Result<Option<Self>> {
        // A name of bounded length.
        let by_name = Uuid::new_v5(&Uuid::NAMESPACE_URL, format!("{nqn}#{}", namespace.nsid).as_bytes());
        let by_uuid = Some(Uuid::from_bytes(namespace.uuid)).filter(|uuid| !uuid.is_nil());
        let keys = [Some(format!("name/{by_name}")), by_uuid.map(|uuid| format!("uuid/{uuid}"))];
        let mut names = Vec::with_capacity(keys.len());
        for key in keys.into_iter().flatten() {
            let name = SocketAddr::from_abstract_name(format!("nvmf-attached/{key}"))?;
            match UnixDatagram::bind_addr(&name) {
                Ok(socket) => names.push(socket),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(Self { _names: names }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_is_seen_by_other_open_files_and_ends_with_its_own() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(file.path()).unwrap();
        let (first, second) = (open(), open());
        assert!(!is_locked(&second).unwrap());
        assert!(try_lock(&first).unwrap());
        assert!(is_locked(&File::open(file.path()).unwrap()).unwrap());
        assert!(!try_lock(&second).unwrap() && !is_locked(&first).unwrap());
        drop(first);
        assert!(!is_locked(&second).unwrap() && try_lock(&second).unwrap());
    }
}
