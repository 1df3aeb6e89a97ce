//! What is attached on this machine: one JSON file for each disk, in a folder that does not outlive a reboot.

use anyhow::{Context, Result, bail};
use nvme_proto::{Nqn, Nsid};
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
    /// The block device, if it is one.
    #[serde(default)]
    pub(crate) device: Option<PathBuf>,
    /// The NBD socket, if it has one.
    pub(crate) socket: Option<PathBuf>,
    /// Why it is not a block device, where that was wanted.
    #[serde(default)]
    pub(crate) note: Option<String>,
    /// How its connection fares.
    #[serde(default)]
    pub(crate) state: State,
    /// The process that serves it.
    pub(crate) pid: u32,
    /// When that process started, in clock ticks since boot: tells it from a later process of the same number.
    pub(crate) started: u64,
}

/// How an attached disk fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// It works.
    #[default]
    Live,
    /// Its target is away: requests wait.
    Reconnecting,
    /// Its target was given up: requests fail.
    Lost,
}

impl State {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Reconnecting => "reconnecting",
            Self::Lost => "lost",
        }
    }
}

impl std::fmt::Display for Attachment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} namespace {} ({})", self.nqn, self.nsid, self.place().display())
    }
}

impl Attachment {
    /// Where it is: its device, else its socket.
    pub(crate) fn place(&self) -> &Path {
        self.device.as_ref().or(self.socket.as_ref()).map_or(Path::new("-"), PathBuf::as_path)
    }

    /// The disk's address for NBD clients.
    pub(crate) fn uri(&self) -> Option<String> {
        self.socket.as_ref().map(|socket| format!("nbd+unix:///?socket={}", socket.display()))
    }

    /// Clears away what a server that was killed left behind.
    fn clear_away(&self) {
        if let Some(socket) = &self.socket {
            let _ = std::fs::remove_file(socket);
        }
        let Some(device) = &self.device else { return };
        if let Some(number) = super::ublk::number(device) {
            super::ublk::clear_away(number);
        } else {
            super::nbd::kernel::clear_away(device, &owner(self.pid));
        }
    }

    /// As `-o json` prints it.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "device": self.device, "state": self.state,
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

    /// What a background server that has ended died of, from its log; `None` when it ended in order.
    pub(crate) fn failure(&self, pid: u32) -> Option<String> {
        let log = std::fs::read_to_string(self.log(pid)).ok()?;
        log.lines().rev().find_map(|line| line.strip_prefix(crate::print::ERROR_PREFIX)).map(str::to_owned)
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

    /// Fails when the namespace is attached already.
    pub(crate) fn refuse_twice(&self, nqn: &Nqn, nsid: Nsid) -> Result<()> {
        let attached = self.list()?;
        if let Some(other) = attached.iter().find(|other| other.nqn == nqn.as_str() && other.nsid == nsid.0) {
            bail!(
                "{nqn} namespace {nsid} is attached already, on {} (process {}): use that, or detach it first",
                other.place().display(),
                other.pid
            );
        }
        Ok(())
    }

    /// The disks whose servers run. Those whose servers were killed are cleared away.
    pub(crate) fn list(&self) -> Result<Vec<Attachment>> {
        Ok(self.sort_out()?.0)
    }

    /// The disks whose servers run, and those whose servers were killed, which are cleared away: their sockets and devices too.
    pub(crate) fn sort_out(&self) -> Result<(Vec<Attachment>, Vec<Attachment>)> {
        let entries = std::fs::read_dir(&self.folder)
            .with_context(|| format!("cannot read {}", self.folder.display()))?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let files = paths.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
        let (mut running, killed): (Vec<_>, Vec<_>) = files
            .filter_map(|path| read(&path))
            .partition(|attachment| start_time(attachment.pid) == Some(attachment.started));
        for attachment in &killed {
            // Whoever removes the entry clears away: its device's number may be another's afterwards.
            if std::fs::remove_file(self.file(attachment.pid)).is_ok() {
                attachment.clear_away();
                self.remove(attachment.pid);
            }
        }
        running.sort_by(|a, b| (&a.nqn, a.nsid, a.place()).cmp(&(&b.nqn, b.nsid, b.place())));
        Ok((running, killed))
    }
}

/// What the kernel is told of whose a device is.
pub(crate) fn owner(pid: u32) -> String {
    format!("nvmf {pid}")
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
            device: None,
            socket: Some(folder.path().join("a.sock")),
            note: None,
            state: State::Live,
            pid: std::process::id(),
            started: start_time(std::process::id()).unwrap(),
        };
        registry.add(&this).unwrap();
        let killed = Attachment {
            pid: 1,
            started: u64::MAX,
            socket: Some(folder.path().join("b.sock")),
            ..this.clone()
        };
        let socket = killed.socket.clone().unwrap();
        std::fs::write(&socket, []).unwrap();
        registry.add(&killed).unwrap();
        assert_eq!(registry.sort_out().unwrap(), (vec![this.clone()], vec![killed]));
        assert_eq!(registry.list().unwrap(), std::slice::from_ref(&this));
        assert!(!socket.exists() && !registry.file(1).exists());
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
