//! Locks of files that end with their process: who serves a disk.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::fs::File;
use std::io;

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
