//! The folder with the entries of attached disks.

use crate::Attachment;
use nvme_proto::{Nqn, Nsid};
use std::path::{Path, PathBuf};

/// Names the folder, instead of the user's own.
pub const FOLDER_VARIABLE: &str = "NVMF_RUNTIME_DIR";

/// This user's folder: `$NVMF_RUNTIME_DIR`, else `/run/nvmf` for root, else `$XDG_RUNTIME_DIR/nvmf`, else one in the
/// folder for temporary files. It need not exist.
#[must_use]
pub fn folder() -> PathBuf {
    let user = nix::unistd::geteuid();
    match (std::env::var_os(FOLDER_VARIABLE), std::env::var_os("XDG_RUNTIME_DIR")) {
        (Some(folder), _) => PathBuf::from(folder),
        (None, _) if user.is_root() => PathBuf::from("/run/nvmf"),
        (None, Some(folder)) => PathBuf::from(folder).join("nvmf"),
        (None, None) => std::env::temp_dir().join(format!("nvmf-{user}")),
    }
}

/// Where a disk is that somebody has attached, in words.
#[must_use]
pub fn holder(nqn: &Nqn, nsid: Nsid) -> String {
    match find(&folder(), nqn, nsid) {
        Some(disk) => format!("on {} (process {})", disk.place().display(), disk.pid),
        None => "by another user or under another name".to_owned(),
    }
}

fn find(folder: &Path, nqn: &Nqn, nsid: Nsid) -> Option<Attachment> {
    let entries = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let entries = entries.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    let disks = entries.filter_map(|path| serde_json::from_slice(&std::fs::read(path).ok()?).ok());
    let mut disks = disks.filter(|disk: &Attachment| disk.nqn == nqn.as_str() && disk.nsid == nsid.0);
    disks.next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_is_found_by_nqn_and_nsid() {
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
        let found = |nqn, nsid| find(folder.path(), nqn, Nsid(nsid));
        assert_eq!(found(&ours, 2), Some(disk));
        assert_eq!((found(&ours, 1), found(&other, 2)), (None, None));
        assert_eq!(find(&folder.path().join("nowhere"), &ours, Nsid(2)), None);
    }
}
