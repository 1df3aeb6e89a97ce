//! What is attached on this machine: one JSON file for each disk, in a folder that does not outlive a reboot.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// An attached disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attachment {
    /// Version of this format.
    pub(crate) version: u32,
    /// Subsystem.
    pub(crate) nqn: String,
    /// Address and port of the target.
    pub(crate) address: String,
    /// Namespace.
    pub(crate) nsid: u32,
    /// Bytes in it.
    pub(crate) size: u64,
    /// Bytes in a block of it.
    pub(crate) block_size: u32,
    /// The NBD socket.
    pub(crate) socket: PathBuf,
    /// The process that serves it.
    pub(crate) pid: u32,
    /// When that process started, in clock ticks since boot: tells it from a later process of the same number.
    pub(crate) started: u64,
}

impl std::fmt::Display for Attachment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} namespace {} ({})", self.nqn, self.nsid, self.socket.display())
    }
}

impl Attachment {
    /// The disk's address for NBD clients.
    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    /// As `-o json` prints it.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "nqn": self.nqn, "address": self.address, "nsid": self.nsid, "size": self.size,
            "block_size": self.block_size, "socket": self.socket, "uri": self.uri(), "pid": self.pid,
        })
    }
}

/// Version of [`Attachment`]'s format.
pub(crate) const VERSION: u32 = 1;

/// The folder.
#[derive(Debug, Clone)]
pub(crate) struct Registry {
    folder: PathBuf,
}

impl Registry {
    /// This user's: `/run/nvmf` for root, else below `$XDG_RUNTIME_DIR`, else below the folder for temporary files.
    pub(crate) fn of_this_user() -> Result<Self> {
        let user = nix::unistd::geteuid();
        let folder = match std::env::var_os("XDG_RUNTIME_DIR") {
            _ if user.is_root() => PathBuf::from("/run/nvmf"),
            Some(folder) => PathBuf::from(folder).join("nvmf"),
            None => std::env::temp_dir().join(format!("nvmf-{user}")),
        };
        Self::in_folder(folder)
    }

    pub(crate) fn in_folder(folder: PathBuf) -> Result<Self> {
        use std::os::unix::fs::{DirBuilderExt, MetadataExt};
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        let owner = std::fs::metadata(&folder)?.uid();
        if owner != nix::unistd::geteuid().as_raw() {
            bail!(
                "{} belongs to another user (uid {owner}): remove it, or set XDG_RUNTIME_DIR",
                folder.display()
            );
        }
        Ok(Self { folder })
    }

    /// Where the socket of a namespace lies unless the user says otherwise.
    pub(crate) fn default_socket(&self, nqn: &str, nsid: u32) -> PathBuf {
        // A Unix socket's path has 107 bytes at most, and an NQN up to 223: the end tells more than the beginning.
        let plain: String = nqn
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || ".-".contains(c) { c } else { '_' })
            .collect();
        let end = plain[plain.len().saturating_sub(60)..].trim_start_matches(['.', '-', '_']);
        self.folder.join(format!("{end}-n{nsid}.sock"))
    }

    /// Where a background server's log goes.
    pub(crate) fn log(&self, pid: u32) -> PathBuf {
        self.folder.join(format!("{pid}.log"))
    }

    /// What a background server that has ended died of, from its log; `None` when it ended in good order.
    pub(crate) fn failure(&self, pid: u32) -> Option<String> {
        let log = std::fs::read_to_string(self.log(pid)).ok()?;
        log.lines().rev().find_map(|line| line.strip_prefix(crate::cli::ERROR_PREFIX)).map(str::to_owned)
    }

    fn file(&self, pid: u32) -> PathBuf {
        self.folder.join(format!("{pid}.json"))
    }

    /// Adds a disk. Readers see the whole entry or none.
    pub(crate) fn add(&self, attachment: &Attachment) -> Result<()> {
        let file = self.file(attachment.pid);
        let draft = file.with_extension("draft");
        std::fs::write(&draft, serde_json::to_vec_pretty(attachment)?)
            .and_then(|()| std::fs::rename(&draft, &file))
            .with_context(|| format!("cannot write {}", file.display()))
    }

    /// Removes a disk; its log stays, for whoever waits for its server's end.
    pub(crate) fn remove_entry(&self, pid: u32) {
        // What is gone already need not be removed.
        let _ = std::fs::remove_file(self.file(pid));
    }

    /// Removes a disk, with its log.
    pub(crate) fn remove(&self, pid: u32) {
        self.remove_entry(pid);
        let _ = std::fs::remove_file(self.log(pid));
    }

    /// The disks whose servers run. Entries of those that were killed are cleared away, with their sockets.
    pub(crate) fn list(&self) -> Result<Vec<Attachment>> {
        let mut all = Vec::new();
        let entries = std::fs::read_dir(&self.folder)
            .with_context(|| format!("cannot read {}", self.folder.display()))?;
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let Some(attachment) = read(&path) else { continue };
            if start_time(attachment.pid) == Some(attachment.started) {
                all.push(attachment);
            } else {
                let _ = std::fs::remove_file(&attachment.socket);
                self.remove(attachment.pid);
            }
        }
        all.sort_by(|a, b| (&a.nqn, a.nsid, &a.socket).cmp(&(&b.nqn, b.nsid, &b.socket)));
        Ok(all)
    }
}

fn read(path: &Path) -> Option<Attachment> {
    let attachment: Attachment = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    (attachment.version == VERSION).then_some(attachment)
}

/// When a process started, in clock ticks since boot; `None` when it is gone.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything. Behind it come fields 3 and on; the state is 3, the start time 22.
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    let state = fields.next()?;
    if state == "Z" { None } else { fields.nth(18)?.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_killed_is_cleared_away() {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::in_folder(folder.path().join("nvmf")).unwrap();
        let this = Attachment {
            version: VERSION,
            nqn: "nqn.2026-11.com.example:a".to_owned(),
            address: "127.0.0.1:4420".to_owned(),
            nsid: 1,
            size: 4096,
            block_size: 512,
            socket: folder.path().join("a.sock"),
            pid: std::process::id(),
            started: start_time(std::process::id()).unwrap(),
        };
        registry.add(&this).unwrap();
        let killed =
            Attachment { pid: 1, started: u64::MAX, socket: folder.path().join("b.sock"), ..this.clone() };
        std::fs::write(&killed.socket, []).unwrap();
        registry.add(&killed).unwrap();
        assert_eq!(registry.list().unwrap(), std::slice::from_ref(&this));
        assert!(!killed.socket.exists() && !registry.file(1).exists());
        registry.remove(this.pid);
        assert_eq!(registry.list().unwrap(), []);
    }

    #[test]
    fn what_a_server_died_of_is_in_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::in_folder(folder.path().to_owned()).unwrap();
        assert_eq!(registry.failure(7), None);
        std::fs::write(registry.log(7), " WARN the association is lost\n").unwrap();
        assert_eq!(registry.failure(7), None);
        std::fs::write(registry.log(7), " WARN the association is lost\nnvmf: no such luck\n").unwrap();
        assert_eq!(registry.failure(7).as_deref(), Some("no such luck"));
        registry.remove(7);
        assert_eq!(registry.failure(7), None);
    }

    #[test]
    fn a_default_socket_fits_a_socket_address() {
        let registry = Registry { folder: "/run/user/1000/nvmf".into() };
        let socket =
            registry.default_socket(&format!("nqn.2014-08.org.nvmexpress:{}é/..", "x".repeat(190)), 1024);
        assert!(socket.as_os_str().len() <= 107, "{}", socket.display());
        let uuid = format!("nqn.2014-08.org.nvmexpress:uuid:{}", uuid::Uuid::nil());
        let name = registry.default_socket(&uuid, 1);
        assert!(name.file_name().is_some_and(|name| name.to_string_lossy().starts_with("08.org.")));
        assert_eq!(socket.parent(), Some(Path::new("/run/user/1000/nvmf")));
    }
}
