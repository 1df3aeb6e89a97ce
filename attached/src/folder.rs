//! The folder with the entries of attached disks.

use crate::Attachment;
use nix::libc::{ENXIO, O_NONBLOCK};
use nvme_proto::{Nqn, Nsid};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Names the folder, instead of the user's own.
pub const FOLDER_VARIABLE: &str = "NVMF_RUNTIME_DIR";

/// This user's folder: `$NVMF_RUNTIME_DIR`, else `/run/nvmf` for root, else `$XDG_RUNTIME_DIR/nvmf`, else one in the
/// folder for temporary files. It need not exist. Absolute, so that a process which works in another folder can be told.
#[must_use]
pub fn folder() -> PathBuf {
    let user = nix::unistd::geteuid();
    let folder = match (std::env::var_os(FOLDER_VARIABLE), std::env::var_os("XDG_RUNTIME_DIR")) {
        (Some(folder), _) => PathBuf::from(folder),
        (None, _) if user.is_root() => PathBuf::from("/run/nvmf"),
        (None, Some(folder)) => PathBuf::from(folder).join("nvmf"),
        (None, None) => std::env::temp_dir().join(format!("nvmf-{user}")),
    };
    std::path::absolute(&folder).unwrap_or(folder)
}

/// Whether an entry's files may have this name before the last dot: the number of the process that made it, and `-NUMBER` behind it
/// where another PID namespace had the same. All other files of the folder are somebody else's.
#[must_use]
pub fn is_entry(id: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (process, number) = id.split_once('-').unwrap_or((id, "0"));
    is_number(process) && is_number(number)
}

/// Opens a file of an entry to be read. Nothing else than a file: a FIFO would be waited for.
///
/// # Errors
/// When there is no file, or it may not be read.
pub fn open(path: &Path) -> io::Result<File> {
    let opened = File::options().read(true).custom_flags(O_NONBLOCK).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        // A socket.
        Some(ENXIO) => NO_FILE.into(),
        _ => error,
    })?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(NO_FILE.into()) }
}

/// What lies there is no file.
const NO_FILE: ErrorKind = ErrorKind::InvalidInput;

/// Whether [`open`] failed as there is no file. Whatever else it fails with says nothing of what is there.
#[must_use]
pub fn is_nothing(error: &io::Error) -> bool {
    [ErrorKind::NotFound, NO_FILE].contains(&error.kind())
}

/// What is in a file of an entry.
///
/// # Errors
/// As [`open`] has them.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    open(path)?.read_to_end(&mut text)?;
    Ok(text)
}

/// Where a disk is that another process has attached, in words. `uuid`: zeroes where it has none.
#[must_use]
pub fn holder(nqn: &Nqn, nsid: Nsid, uuid: [u8; 16]) -> String {
    match find(&folder(), nqn, nsid, uuid) {
        Some(disk) if disk.is(nqn, nsid) => format!("on {} (process {})", disk.place().display(), disk.pid),
        Some(disk) => format!("as {disk} with the same UUID (process {})", disk.pid),
        None => "by another user, under another name or with another NVMF_RUNTIME_DIR".to_owned(),
    }
}

/// The entry of this namespace; else that of one which has the same UUID.
fn find(folder: &Path, nqn: &Nqn, nsid: Nsid, uuid: [u8; 16]) -> Option<Attachment> {
    let entries = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let entries = entries.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    let entries = entries.filter(|path| path.file_stem().and_then(OsStr::to_str).is_some_and(is_entry));
    let disks = entries.filter_map(|path| serde_json::from_slice::<Attachment>(&read(&path).ok()?).ok());
    let has_uuid =
        |disk: &Attachment| uuid != [0; 16] && disk.disk.as_ref().is_some_and(|it| it.uuid == uuid);
    // One that asks may have written its own entry already.
    let others = disks.filter(|disk| disk.pid != std::process::id());
    others.filter(|disk| disk.is(nqn, nsid) || has_uuid(disk)).max_by_key(|disk| disk.is(nqn, nsid))
}

impl Attachment {
    fn is(&self, nqn: &Nqn, nsid: Nsid) -> bool {
        self.nqn == nqn.as_str() && self.nsid == nsid.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Disk;

    #[test]
    fn only_process_numbers_name_entries() {
        for id in ["1", "4194304", "17-1", "17-999"] {
            assert!(is_entry(id), "{id}");
        }
        for id in ["", "-", "1-", "-1", "1-2-3", "+1", "1.5", " 1", "1 ", "Cargo", "build-1", "٣", "1-x"] {
            assert!(!is_entry(id), "{id}");
        }
    }

    #[test]
    fn disk_is_found_by_nqn_and_nsid_or_by_uuid() {
        let folder = tempfile::tempdir().unwrap();
        let nqn = |name: &str| name.parse::<Nqn>().unwrap();
        let (ours, other) = (nqn("nqn.2026-11.com.example:a"), nqn("nqn.2026-11.com.example:b"));
        let disk = Attachment {
            nqn: ours.to_string(),
            nsid: 2,
            device: Some("/dev/ublkb7".into()),
            pid: 5,
            ..Attachment::default()
        };
        std::fs::write(folder.path().join("5.json"), serde_json::to_vec(&disk).unwrap()).unwrap();
        std::fs::write(folder.path().join("6.json"), "no entry").unwrap();
        std::fs::write(folder.path().join("5.lock"), []).unwrap();
        // Nobody writes to this one.
        nix::unistd::mkfifo(&folder.path().join("4.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        // That of the process that asks, and what is no entry.
        let own = Attachment { pid: std::process::id(), device: None, ..disk.clone() };
        std::fs::write(folder.path().join("3.json"), serde_json::to_vec(&own).unwrap()).unwrap();
        let theirs = Attachment { device: None, ..disk.clone() };
        std::fs::write(folder.path().join("data.json"), serde_json::to_vec(&theirs).unwrap()).unwrap();
        let same = Attachment {
            nqn: other.to_string(),
            disk: Some(Disk { uuid: [7; 16], ..Disk::default() }),
            pid: 7,
            ..disk.clone()
        };
        std::fs::write(folder.path().join("7.json"), serde_json::to_vec(&same).unwrap()).unwrap();
        let of_uuid = |nqn, nsid, uuid| find(folder.path(), nqn, Nsid(nsid), [uuid; 16]);
        let found = |nqn, nsid| of_uuid(nqn, nsid, 0);
        assert_eq!(found(&ours, 2), Some(disk.clone()));
        assert_eq!((found(&ours, 1), found(&other, 1)), (None, None));
        assert_eq!((of_uuid(&ours, 1, 7), of_uuid(&ours, 1, 8)), (Some(same), None));
        assert_eq!(of_uuid(&ours, 2, 7), Some(disk), "its own comes first");
        assert_eq!(find(&folder.path().join("nowhere"), &ours, Nsid(2), [7; 16]), None);
    }
}
