//! Who this host is: its NQN and its identifier, where nvme-cli keeps them.

use crate::Error;
use nvme_proto::{HostId, Nqn};
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
        let uuid = Uuid::new_v4().into_bytes();
        Ok(Self { nqn: Nqn::from_uuid(uuid), id: HostId(uuid) })
    }

    /// This machine's: from `/etc/nvme/hostnqn` and `/etc/nvme/hostid`, which nvme-cli uses as well; else from `nvmf` in this user's
    /// configuration folder. Made and kept in the first of the two that can be written, if there is none yet.
    ///
    /// # Errors
    /// [`Error::Identity`] when a file is there and holds something else, or none can be written.
    pub fn of_this_machine() -> Result<Self, Error> {
        let mut folders = vec![PathBuf::from("/etc/nvme")];
        let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config"));
        folders.extend(
            std::env::var_os("XDG_CONFIG_HOME")
                .map(PathBuf::from)
                .or_else(home)
                .map(|folder| folder.join("nvmf")),
        );
        Self::in_folders(&folders)
    }

    fn in_folders(folders: &[PathBuf]) -> Result<Self, Error> {
        for folder in folders {
            if let Some(identity) = Self::read(folder)? {
                return Ok(identity);
            }
        }
        let new = Self::generate()?;
        let mut refusal = String::from("there is no folder to keep it in: set HOME");
        for folder in folders {
            match new.write(folder) {
                // Another process may have been first: what stands there counts.
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
        let id = match read_line(&id_path)? {
            Some(text) => {
                Uuid::parse_str(&text).map_err(|e| bad(&id_path, format!("it holds no UUID ({e})")))?
            }
            // As nvme-cli does: the NQN's own UUID, or one that is derived from the name and never changes.
            None => match nqn.as_str().rsplit_once(":uuid:").and_then(|(_, uuid)| Uuid::parse_str(uuid).ok())
            {
                Some(uuid) => uuid,
                None => return Err(bad(&id_path, "it is not there: `uuidgen` makes one".to_owned())),
            },
        };
        Ok(Some(Self { nqn, id: HostId(id.into_bytes()) }))
    }

    fn write(&self, folder: &Path) -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        write_new(&folder.join("hostid"), &self.id.to_string())?;
        write_new(&folder.join("hostnqn"), self.nqn.as_str())
    }
}

fn read_line(path: &Path) -> Result<Option<String>, Error> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(Error::Identity { path: path.to_owned(), reason: error.to_string() }),
    }
}

/// Writes a file that is not there yet; one that is stays as it is.
fn write_new(path: &Path, line: &str) -> io::Result<()> {
    match std::fs::OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(mut file) => writeln!(file, "{line}"),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_made_once_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let folders = [PathBuf::from("/proc/nvmf"), folder.path().join("nvmf")];
        let made = HostIdentity::in_folders(&folders).unwrap();
        assert_eq!(HostIdentity::in_folders(&folders).unwrap(), made);
        assert_eq!(made.nqn, Nqn::from_uuid(made.id.0));
    }

    #[test]
    fn what_nvme_cli_wrote_is_used_and_what_is_wrong_is_said() {
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
}
