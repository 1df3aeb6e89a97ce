//! `ctl host set-key`: the key of a host for DH-HMAC-CHAP, kept in the file that the configuration names.

use super::Daemon;
use super::apply::Origin;
use super::authentication::read_secret;
use super::changing::Changing;
use super::reading::ReadKeys;
use crate::control::protocol::Fault;
use crate::control::request::change::Item;
use crate::control::request::subsystem::SetKey;
use crate::exports;
use crate::limits::BARRIER_TIMEOUT;
use core::time::Duration;
use nvmf_auth::Secret;
use nvmf_config::{Config, Draft, Host, Subsystem};
use nvmf_subsystem::Nqn;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use uuid::Uuid;
use zeroize::Zeroizing;

/// A key on its way to its file: the file system may hang.
pub(super) struct Storing {
    told: Receiver<Result<Secret, String>>,
    nqn: Nqn,
    controller: bool,
    path: PathBuf,
    until: Duration,
}

impl Daemon {
    /// Checks a key and begins to store it.
    pub(super) fn set_key(&mut self, set: &SetKey) -> Result<Changing, Fault> {
        let refused = |text: String| Err(Fault::refused(text));
        let SetKey { host, controller, tls, key } = set;
        if *tls {
            return refused(
                "keys for TLS are in the files that [[host]] names (tls_key_file): change that file, and `systemctl reload \
                 nvmf-target`"
                    .to_owned(),
            );
        }
        if let Err(cause) = Secret::parse(key.text()) {
            return refused(format!("this is no secret of DH-HMAC-CHAP: {cause}"));
        }
        let nqn: Nqn = match host.parse() {
            Ok(nqn) => nqn,
            Err(error) => return refused(format!("the host {host} is no NQN: {error}")),
        };
        let known = self.config.hosts.iter().find(|known| known.nqn == nqn);
        let named = known.and_then(|known| {
            if *controller { &known.dhchap_ctrl_key_file } else { &known.dhchap_key_file }.as_ref()
        });
        if *controller && known.is_none_or(|known| known.dhchap_key_file.is_none()) {
            return refused(format!("{nqn} has no key of its own: set that first, without --controller"));
        }
        let path = match named {
            Some(path) if path.is_absolute() => path.clone(),
            Some(name) => {
                return refused(format!(
                    "the key is the systemd credential {}, which the target cannot change: change what LoadCredential= in \
                     the unit names, or put an absolute path into the configuration",
                    name.display()
                ));
            }
            None => self.own_key_file(&nqn, *controller).map_err(Fault::refused)?,
        };
        if let Some(other) = also_names(&self.config.hosts, &nqn, *controller, &path) {
            return refused(format!(
                "{} holds another key, too, of the [[host]] of {other}: name a file of its own in the [[host]] of {nqn}",
                path.display()
            ));
        }
        let asked = with_key_file(&self.config, nqn, *controller, &path);
        let checked = Draft::of(&asked).map_err(|error| Fault::refused(error.to_string()))?.check();
        checked.map_err(|error| Fault::refused(error.to_string()))?;
        let (tell, told) = channel();
        let (waker, to, key) = (self.common.waker.clone(), path.clone(), key.text().clone());
        let body = move || {
            let stored = store(&to, &key).map_err(|error| not_stored(&to, &error));
            let _ = tell.send(stored);
            waker.wake();
        };
        let started = std::thread::Builder::new().name("store-key".into()).spawn(body);
        started.map_err(|_| Fault::refused("the system has no thread left"))?;
        let now = self.common.clock.now();
        let mut changing = Changing::new(Vec::new(), Origin::Command, now);
        let until = now + BARRIER_TIMEOUT;
        changing.storing = Some(Storing { told, nqn, controller: *controller, path, until });
        Ok(changing)
    }

    /// Where a key is kept that the configuration names no file for.
    fn own_key_file(&self, nqn: &Nqn, controller: bool) -> Result<PathBuf, String> {
        let section = format!("[[host]] of {nqn}");
        let Some(folder) = self.common.state.keys(controller) else {
            return Err(format!("there is no state directory to keep the key in: name a file in {section}"));
        };
        let name = nqn.to_string();
        if name.contains('/') {
            return Err(format!("the name of the host is no name of a file: name one in {section}"));
        }
        Ok(folder.join(name))
    }

    /// Uses the key when it is stored.
    pub(super) fn advance_storing(&mut self, changing: &mut Changing, now: Duration) {
        let Some(storing) = changing.storing.take() else { return };
        let secret = match storing.told.try_recv() {
            Ok(Ok(secret)) => secret,
            Ok(Err(text)) => {
                changing.refused = Some(Fault::refused(text));
                return;
            }
            Err(TryRecvError::Empty) if now < storing.until => {
                changing.storing = Some(storing);
                return;
            }
            Err(_) => {
                let path = storing.path.display();
                let text = format!(
                    "{path} does not answer: the key may be there when it does, and be used after a reload"
                );
                changing.refused = Some(Fault::refused(text));
                return;
            }
        };
        let Storing { nqn, controller, path, .. } = storing;
        let asked = with_key_file(&self.config, nqn, controller, &path);
        // The files of the other hosts need not be read for it.
        let keys = self.common.host_keys.with(nqn, controller, secret);
        let keys = ReadKeys { tls: None, secrets: (keys, Vec::new()) };
        if asked.hosts == self.config.hosts {
            self.set_hosts_with_keys(&asked.hosts, keys);
            let note = format!(
                "it is in {}. Connections that are there stay until they authenticate again",
                path.display()
            );
            changing.items.push(Item { note: Some(note), ..Item::done("set-key", nqn.to_string()) });
        } else {
            *changing = self.apply(&asked, Origin::Command, Some(keys));
            let then = if controller {
                ""
            } else {
                ". From now on the host must authenticate: its connections that have not are closed, and it is refused until it \
                 connects with this key"
            };
            for item in &mut changing.items {
                item.note.get_or_insert_with(|| format!("the key is in {}{then}", path.display()));
            }
        }
        let is_allowed = |subsystem: &Subsystem| exports::host_access(&subsystem.hosts).allows(&nqn);
        if !self.config.subsystems.iter().any(is_allowed) {
            for note in changing.items.iter_mut().filter_map(|item| item.note.as_mut()) {
                *note += "; no subsystem allows this host";
            }
        }
    }
}

/// Why a key was not stored, and what to do.
fn not_stored(path: &Path, error: &io::Error) -> String {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = whole.parent().unwrap_or(Path::new("/")).display();
    let otherwise = "leave its key out of the [[host]], and the key is kept in the state directory";
    let what = match error.kind() {
        // ProtectSystem= of the unit, in most cases.
        io::ErrorKind::ReadOnlyFilesystem => format!(
            ". To the target this folder is read-only: under systemd, add ReadWritePaths={folder} to [Service] \
             (systemctl edit nvmf-target) and restart the target; or {otherwise}"
        ),
        io::ErrorKind::PermissionDenied => {
            format!(". The user of the target may not write to {folder}: let it (chown); or {otherwise}")
        }
        _ => String::new(),
    };
    format!("cannot store the key in {}: {error}{what}", path.display())
}

/// The host that has another key in this file.
fn also_names(hosts: &[Host], nqn: &Nqn, controller: bool, path: &Path) -> Option<Nqn> {
    let has = |host: &&Host| {
        let is_it = host.nqn == *nqn;
        let own = host.dhchap_key_file.as_ref().filter(|_| !is_it || controller);
        let ctrl = host.dhchap_ctrl_key_file.as_ref().filter(|_| !is_it || !controller);
        [own, ctrl, host.tls_key_file.as_ref()].into_iter().flatten().any(|file| file == path)
    };
    hosts.iter().find(has).map(|host| host.nqn)
}

/// The configuration in which this file holds the key of a host.
fn with_key_file(config: &Config, nqn: Nqn, controller: bool, path: &Path) -> Config {
    let mut config = config.clone();
    let at = config.hosts.iter().position(|host| host.nqn == nqn).unwrap_or_else(|| {
        let new = Host {
            nqn,
            tls_key_file: None,
            dhchap_key_file: None,
            dhchap_ctrl_key_file: None,
            require_concat: false,
            group_keys: Vec::new(),
        };
        config.hosts.push(new);
        config.hosts.len() - 1
    });
    let host = &mut config.hosts[at];
    let file = if controller { &mut host.dhchap_ctrl_key_file } else { &mut host.dhchap_key_file };
    *file = Some(path.to_owned());
    config
}

/// Replaces the file as a whole: a power cut leaves the old key or the new one. Nobody but its owner may read it, and it is
/// read back before it takes its place.
fn store(path: &Path, key: &Zeroizing<String>) -> io::Result<Secret> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().unwrap_or(Path::new("/"));
    if !folder.is_dir() {
        DirBuilder::new().mode(0o700).create(folder)?;
    }
    let new = folder.join(format!(".{}.new", Uuid::new_v4()));
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        if let (Ok(old), Ok(own)) = (std::fs::metadata(&path), file.metadata())
            && (old.uid(), old.gid()) != (own.uid(), own.gid())
        {
            fchown(&file, Some(old.uid()), Some(old.gid()))?;
        }
        file.write_all(&Zeroizing::new([key.as_bytes(), b"\n"].concat()))?;
        file.sync_all()?;
        let secret = read_secret(&new).map_err(io::Error::other)?;
        std::fs::rename(&new, &path)?;
        File::open(folder)?.sync_all()?;
        Ok(secret)
    };
    write().inspect_err(|_| {
        let _ = std::fs::remove_file(&new);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_that_cannot_be_written_is_explained() {
        let read_only = io::Error::from_raw_os_error(nix::libc::EROFS);
        let text = not_stored(Path::new("/etc/nvmf/keys/h.key"), &read_only);
        for part in ["/etc/nvmf/keys/h.key", "ReadWritePaths=/etc/nvmf/keys", "state directory"] {
            assert!(text.contains(part), "{text}");
        }
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(not_stored(Path::new("/etc/h.key"), &denied).contains("may not write to /etc:"));
    }

    #[test]
    fn file_with_the_key_of_another_is_found() {
        let host = |nqn: &str, own: &str, ctrl: Option<&str>| Host {
            nqn: nqn.parse().unwrap(),
            tls_key_file: Some(format!("/keys/{nqn}.tls").into()),
            dhchap_key_file: Some(own.into()),
            dhchap_ctrl_key_file: ctrl.map(PathBuf::from),
            require_concat: false,
            group_keys: Vec::new(),
        };
        let hosts =
            [host("nqn.a", "/keys/a", Some("/keys/target")), host("nqn.b", "/keys/b", Some("/keys/target"))];
        let (a, b) = (hosts[0].nqn, hosts[1].nqn);
        let of = |nqn, controller, path: &str| also_names(&hosts, nqn, controller, Path::new(path));
        assert_eq!((of(&a, false, "/keys/a"), of(&a, true, "/keys/a")), (None, Some(a)));
        assert_eq!((of(&a, false, "/keys/b"), of(&a, true, "/keys/target")), (Some(b), Some(b)));
        assert_eq!((of(&a, true, "/keys/nqn.a.tls"), of(&a, true, "/keys/new")), (Some(a), None));
    }
}
