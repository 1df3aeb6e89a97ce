//! A new file, its folder and its UUID are synced: these tests have the sync fail, and expect the error.
#![expect(unsafe_code, reason = "a filter of system calls has no safe wrapper; see the SAFETY comment")]

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JUMP, BPF_K, BPF_LD, BPF_RET, BPF_STMT, BPF_W, sock_fprog};
use nvmf_backend::{Disk, DiskSpec, IdentitySource, OpenError};
use std::path::{Path, PathBuf};

/// Makes a system call fail with EIO in this thread, from now on.
fn fail_system_call(number: libc::c_long) {
    nix::sys::prctl::set_no_new_privs().unwrap();
    let number = u32::try_from(number).unwrap();
    let fails = libc::SECCOMP_RET_ERRNO | libc::EIO as u32;
    // SAFETY: these only fill in fields.
    let mut filter = unsafe {
        [
            BPF_STMT((BPF_LD | BPF_W | BPF_ABS) as u16, 0),
            BPF_JUMP((BPF_JMP | BPF_JEQ | BPF_K) as u16, number, 0, 1),
            BPF_STMT((BPF_RET | BPF_K) as u16, fails),
            BPF_STMT((BPF_RET | BPF_K) as u16, libc::SECCOMP_RET_ALLOW),
        ]
    };
    let program = sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which lives until the call returns.
    let result =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

fn new_file(path: &Path) -> Result<Disk, OpenError> {
    Disk::open(&DiskSpec::Path { path: path.to_owned(), create: Some(1 << 20) }, None, false)
}

fn without<T: Send + 'static>(number: libc::c_long, path: PathBuf, then: fn(&Path) -> T) -> T {
    let thread = std::thread::spawn(move || {
        fail_system_call(number);
        then(&path)
    });
    thread.join().unwrap()
}

#[test]
fn a_new_file_and_its_folder_are_synced() {
    let folder = tempfile::tempdir().unwrap();
    for (number, what) in [(libc::SYS_fdatasync, "the file"), (libc::SYS_fsync, "its folder")] {
        let path = folder.path().join("disk.img");
        let opened = without(number, path.clone(), |path| new_file(path).map(drop));
        assert!(matches!(opened, Err(OpenError::Os { .. })), "{what} is not synced: {opened:?}");
        assert!(!path.exists(), "what may not last is removed");
    }
}

#[test]
fn a_new_uuid_is_synced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    drop(new_file(&path).unwrap());
    let identity = without(libc::SYS_fsync, path, |path| new_file(path).unwrap().identity());
    let identity = match identity {
        Err(_) => return,
        Ok(identity) => identity.unwrap(),
    };
    assert_ne!(identity.source, IdentitySource::Attribute, "it is stored, and not synced");
}
