//! Who this host is: its NQN and its identifier, where nvme-cli keeps them.

use crate::Error;
use core::str::FromStr;
use nvme_proto::{HostId, Nqn};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// A host's NQN and identifier. Two hosts that share them corrupt shared disks: they are made once, at random, and kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostIdentity {
    /// Its name.
    pub nqn: Nqn,
    /// Its identifier.
    pub id: HostId,
}

impl HostIdentity {
    /// A new one.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn generate() -> Result<Self, Error> {
        Ok(Self::of_uuid(Uuid::new_v4()))
    }

    fn of_uuid(uuid: Uuid) -> Self {
        let uuid = uuid.into_bytes();
        Self { nqn: Nqn::from_uuid(uuid), id: HostId(uuid) }
    }

    /// This machine's: from `/etc/nvme/hostnqn` and `/etc/nvme/hostid`, which nvme-cli uses as well; else from `nvmf` in this user's
    /// configuration folder. Writes nothing: [`HostIdentity::of_this_machine_or_new`] does.
    ///
    /// # Errors
    /// [`Error::Identity`] when there is none, or a file is there and holds something else.
    pub fn of_this_machine() -> Result<Self, Error> {
        let folders = folders();
        match Self::find(&folders)? {
            Some(identity) => Ok(identity),
            None => Err(Error::Identity {
                path: folders.first().cloned().unwrap_or_default(),
                reason: "this machine has no host identity yet; every command that connects (`nvmf discover`, `nvmf attach`) makes one, or give the host NQN and ID yourself".to_owned(),
            }),
        }
    }

    /// The same; made and kept in the first of the two folders that can be written, if there is none yet.
    ///
    /// # Errors
    /// [`Error::Identity`] when a file is there and holds something else, or none can be written.
    pub fn of_this_machine_or_new() -> Result<Self, Error> {
        Self::in_folders(&folders())
    }

    fn find(folders: &[PathBuf]) -> Result<Option<Self>, Error> {
        let named = folders.iter().find_map(|folder| Self::read(folder).transpose()).transpose()?;
        match named {
            Some(identity) => Ok(Some(identity)),
            None => folders.iter().find_map(|folder| Self::of_id(folder).transpose()).transpose(),
        }
    }

    /// Of an identifier without an NQN beside it: the NQN of that UUID, which nvme-cli makes as well.
    fn of_id(folder: &Path) -> Result<Option<Self>, Error> {
        let path = folder.join("hostid");
        let Some(text) = read_line(&path)? else { return Ok(None) };
        let id = uuid(&path, &text)?.into_bytes();
        Ok(Some(Self { nqn: Nqn::from_uuid(id), id: HostId(id) }))
    }

    fn in_folders(folders: &[PathBuf]) -> Result<Self, Error> {
        if let Some(identity) = Self::find(folders)? {
            return Ok(identity);
        }
        let new = Self::generate()?;
        let mut refusal = String::from("there is no folder to keep it in: set HOME");
        for folder in folders {
            match new.write(folder) {
                // Another process may have been first: what stands there counts, for all.
                Ok(()) => return Ok(Self::read(folder)?.unwrap_or(new)),
                Err(error) => refusal = error.to_string(),
            }
        }
        let path = folders.last().cloned().unwrap_or_default();
        Err(Error::Identity { path, reason: format!("{refusal}; or give the host NQN and ID yourself") })
    }

    fn read(folder: &Path) -> Result<Option<Self>, Error> {
        let (nqn_path, id_path) = (folder.join("hostnqn"), folder.join("hostid"));
        let Some(nqn) = read_line(&nqn_path)? else { return Ok(None) };
        let bad = |path: &Path, reason: String| Error::Identity { path: path.to_owned(), reason };
        let nqn: Nqn = nqn.parse().map_err(|e| bad(&nqn_path, format!("it holds no NQN ({e})")))?;
        // As nvme-cli does: the NQN's own UUID.
        let of_nqn = nqn.as_str().rsplit_once(":uuid:").and_then(|(_, uuid)| Uuid::parse_str(uuid).ok());
        let id = match (read_line(&id_path)?, of_nqn) {
            (Some(text), _) => uuid(&id_path, &text)?,
            (None, Some(uuid)) => uuid,
            (None, None) => return Err(bad(&id_path, "it is not there: `uuidgen` makes one".to_owned())),
        };
        Ok(Some(Self { nqn, id: HostId(id.into_bytes()) }))
    }

    /// Keeps both. Of several processes that begin at once, one makes each file; a host ID of another process beside this one's NQN
    /// would be a pair that nobody made, so the ID is the NQN's own UUID and is written behind it.
    fn write(&self, folder: &Path) -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        write_new(folder, "hostnqn", self.nqn.as_str())?;
        match Self::read(folder) {
            Ok(Some(kept)) => write_new(folder, "hostid", &kept.id.to_string()),
            _ => Ok(()),
        }
    }
}

impl FromStr for HostIdentity {
    type Err = Error;

    /// That of a UUID, which is its host identifier and in its NQN.
    fn from_str(text: &str) -> Result<Self, Error> {
        uuid(Path::new("(a UUID)"), text).map(Self::of_uuid)
    }
}

/// Where an identity may be, in the order in which they count.
fn folders() -> Vec<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config"));
    let user = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home);
    [PathBuf::from("/etc/nvme")].into_iter().chain(user.map(|folder| folder.join("nvmf"))).collect()
}

/// The UUID in a file.
fn uuid(path: &Path, text: &str) -> Result<Uuid, Error> {
    let bad = |e| Error::Identity { path: path.to_owned(), reason: format!("it holds no UUID ({e})") };
    Uuid::parse_str(text).map_err(bad)
}

/// A file's line; `None` when the file is not there.
fn read_line(path: &Path) -> Result<Option<String>, Error> {
    let refused = |reason: String| Error::Identity { path: path.to_owned(), reason };
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim().is_empty() => Err(refused(
            "it is empty: write the name back that this host had, or delete the file to have a new one made"
                .to_owned(),
        )),
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(refused(error.to_string())),
    }
}

/// Writes a file that is not there yet; one that is stays as it is. Whoever sees the file sees all of it, also after a crash: it gets its
/// name once its content is on the disk.
fn write_new(folder: &Path, name: &str, line: &str) -> io::Result<()> {
    let path = folder.join(name);
    if path.exists() {
        return Ok(());
    }
    let draft = folder.join(format!(".{name}.{}", Uuid::new_v4()));
    let written = (|| {
        let mut file = File::options().write(true).create_new(true).open(&draft)?;
        writeln!(file, "{line}")?;
        file.sync_all()?;
        match std::fs::hard_link(&draft, &path) {
            // Another process was first.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    })();
    let removed = std::fs::remove_file(&draft);
    written?;
    removed?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let folders = [PathBuf::from("/proc/nvmf"), folder.path().join("nvmf")];
        let made = HostIdentity::in_folders(&folders).unwrap();
        assert_eq!(HostIdentity::in_folders(&folders).unwrap(), made);
        assert_eq!(made.nqn, Nqn::from_uuid(made.id.0));
    }

    #[test]
    fn files_of_nvme_cli_are_used() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write("hostnqn", "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000007\n");
        let folders = [folder.path().to_owned()];
        assert_eq!(HostIdentity::in_folders(&folders).unwrap().id.0[15], 7);
        write("hostid", "00000000-0000-0000-0000-000000000009\n");
        assert_eq!(HostIdentity::in_folders(&folders).unwrap().id.0[15], 9);
        write("hostnqn", "iqn.wrong\n");
        assert!(HostIdentity::in_folders(&folders).unwrap_err().to_string().contains("it holds no NQN"));
    }

    #[test]
    fn identifier_without_an_nqn_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("hostid"), "00000000-0000-0000-0000-000000000009\n").unwrap();
        let folders = [folder.path().to_owned()];
        let identity = HostIdentity::in_folders(&folders).unwrap();
        assert_eq!((identity.id.0[15], identity.nqn), (9, Nqn::from_uuid(identity.id.0)));
        assert_eq!(HostIdentity::find(&folders).unwrap(), Some(identity));
        assert!(!folder.path().join("hostnqn").exists(), "nothing is written where there is an identity");
        // A whole identity counts more, wherever it is.
        let other = tempfile::tempdir().unwrap();
        let made = HostIdentity::in_folders(&[other.path().to_owned()]).unwrap();
        let folders = [folder.path().to_owned(), other.path().to_owned()];
        assert_eq!(HostIdentity::in_folders(&folders).unwrap(), made);
    }

    #[test]
    fn empty_file_is_an_error_and_no_new_identity() {
        let folder = tempfile::tempdir().unwrap();
        for (name, other) in [("hostnqn", "hostid"), ("hostid", "hostnqn")] {
            let _ = std::fs::remove_file(folder.path().join(other));
            let nqn = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000007\n";
            std::fs::write(folder.path().join("hostnqn"), nqn).unwrap();
            std::fs::write(folder.path().join(name), "\n").unwrap();
            for _ in 0..2 {
                let error = HostIdentity::in_folders(&[folder.path().to_owned()]).unwrap_err().to_string();
                assert!(error.contains("it is empty") && error.contains(name), "{error}");
            }
        }
    }

    #[test]
    fn looking_for_an_identity_makes_none() {
        let folder = tempfile::tempdir().unwrap();
        let folders = [folder.path().join("nvmf")];
        assert_eq!(HostIdentity::find(&folders).unwrap(), None);
        assert!(!folders[0].exists());
    }

    #[test]
    fn processes_that_begin_at_once_agree() {
        for _ in 0..50 {
            let folder = tempfile::tempdir().unwrap();
            let folders = [folder.path().join("nvmf")];
            let barrier = std::sync::Barrier::new(4);
            let identities: Vec<HostIdentity> = std::thread::scope(|scope| {
                let one = || {
                    barrier.wait();
                    HostIdentity::in_folders(&folders).unwrap()
                };
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(identities.iter().all(|identity| *identity == identities[0]), "{identities:?}");
            let left = std::fs::read_dir(&folders[0]).unwrap().count();
            assert_eq!(left, 2, "no draft stays");
        }
    }
}
