//! The files of this machine that a connection needs: Ceph's configuration and the keyring. librados says neither which one it
//! cannot read, nor why, and takes a keyring that it cannot read for a wrong key.

use crate::cluster::versions;
use crate::{ClusterSpec, Error};
use std::fs::{File, read_to_string};
use std::path::{Path, PathBuf};

/// Where Ceph's configuration is looked for, if nothing is said.
const CONF: &str = "/etc/ceph/ceph.conf";

/// What a connection to a cluster reads.
pub(crate) struct Files<'a> {
    spec: &'a ClusterSpec,
    conf: PathBuf,
    /// It is named: by the configuration of this process, or by `CEPH_CONF`.
    is_named: bool,
}

/// Looks whether this machine has what a connection needs: the libraries, Ceph's configuration, a keyring. Asks no cluster.
///
/// # Errors
/// The first that is missing, and what to do.
pub fn check(spec: &ClusterSpec) -> Result<(), Error> {
    versions()?;
    let files = Files::of(spec);
    files.check()?;
    let conf = File::open(&files.conf).map(drop);
    conf.map_err(|error| Error::File {
        what: format!("cannot read Ceph's configuration {}", files.conf()),
        cause: error.to_string(),
        advice: ": copy the cluster's ceph.conf there (mon_host is enough), or name it with `conf`",
    })?;
    let usual = usual_keyrings(&spec.user);
    if spec.keyring.is_none() && !files.conf_names_keyring() && usual.iter().all(|path| !path.exists()) {
        return Err(Error::File {
            what: format!("there is no key of client.{}", spec.user),
            cause: format!("{} is not there", usual[0].display()),
            advice: ": write it by `ceph auth get-or-create`, or name the file with `keyring`",
        });
    }
    match files.keyring().filter(|path| has_no_key(path, &spec.user)) {
        None => Ok(()),
        Some(path) => Err(Error::File {
            what: format!("the keyring {}", path.display()),
            cause: format!("it has no [client.{}]", spec.user),
            advice: ": see `ceph auth get`",
        }),
    }
}

impl<'a> Files<'a> {
    pub(crate) fn of(spec: &'a ClusterSpec) -> Self {
        let named = spec.conf.clone().or_else(|| std::env::var_os("CEPH_CONF").map(PathBuf::from));
        Self { spec, is_named: named.is_some(), conf: named.unwrap_or_else(|| CONF.into()) }
    }

    pub(crate) fn conf(&self) -> String {
        self.conf.display().to_string()
    }

    /// The keyring that is read, if it is known: Ceph's configuration may name another one.
    fn keyring(&self) -> Option<PathBuf> {
        let usual = || usual_keyrings(&self.spec.user).into_iter().find(|path| path.exists());
        self.spec.keyring.clone().or_else(|| usual().filter(|_| !self.conf_names_keyring()))
    }

    fn conf_names_keyring(&self) -> bool {
        let names = |line: &str| line.trim_start().starts_with("key");
        read_to_string(&self.conf).is_ok_and(|text| text.lines().any(names))
    }

    /// Whether what is named can be read. Another place may be meant where nothing is.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let usual = &usual_keyrings(&self.spec.user)[0];
        let keyring = self.spec.keyring.as_ref();
        let files = [
            ("Ceph's configuration", &self.conf, self.is_named),
            ("the keyring", keyring.unwrap_or(usual), keyring.is_some()),
        ];
        for (what, path, is_named) in files {
            let Err(error) = File::open(path) else { continue };
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            if is_named || errno != libc::ENOENT {
                let advice = match errno {
                    libc::EACCES => ": the user of this process may not read it: see its owner and mode",
                    _ if what.starts_with("Ceph") && self.spec.conf.is_none() => ": CEPH_CONF names it",
                    _ => ": it is named in the configuration of this target",
                };
                let what = format!("cannot read {what} {}", path.display());
                return Err(Error::File { what, cause: error.to_string(), advice });
            }
        }
        Ok(())
    }

    /// Why a cluster cannot be connected to.
    pub(crate) fn refused(&self, errno: i32) -> Error {
        let (user, conf) = (&self.spec.user, self.conf());
        let known = self.keyring();
        let keyring = known
            .as_ref()
            .map_or_else(|| format!("the keyring that {conf} names"), |path| path.display().to_string());
        let is_missing = known.is_none() && !self.conf_names_keyring();
        let advice = match errno {
            libc::ETIMEDOUT => {
                format!("no monitor answers: check mon_host in {conf}, the network and firewalls")
            }
            _ if is_missing => format!(
                "there is no keyring {}: write it by ceph auth get client.{user} -o FILE, or name another one",
                usual_keyrings(user)[0].display()
            ),
            _ if known.is_some_and(|path| has_no_key(&path, user)) => {
                format!("{keyring} has no [client.{user}]: see ceph auth get client.{user}")
            }
            libc::EPERM | libc::EACCES | libc::ENOTSUP => {
                format!(
                    "the cluster does not know client.{user} by the key in {keyring}: see ceph auth get client.{user}"
                )
            }
            libc::EIO => {
                format!("is the key of client.{user} in {keyring} whole? See ceph auth get client.{user}")
            }
            libc::ENOENT | libc::EINVAL => {
                format!(
                    "is there a key of client.{user} in {keyring}, readable by this process, and mon_host in {conf}?"
                )
            }
            _ => "is the configuration that of the cluster?".to_owned(),
        };
        Error::with(format!("cannot connect to the Ceph cluster of {conf} as client.{user}"), errno, advice)
    }
}

/// Where librados looks for a keyring that nothing names.
fn usual_keyrings(user: &str) -> [PathBuf; 4] {
    let own = format!("/etc/ceph/ceph.client.{user}.keyring");
    [own.as_str(), "/etc/ceph/ceph.keyring", "/etc/ceph/keyring", "/etc/ceph/keyring.bin"].map(PathBuf::from)
}

/// Whether a keyring that can be read has no key of the user.
fn has_no_key(keyring: &Path, user: &str) -> bool {
    read_to_string(keyring).is_ok_and(|text| !text.contains(&format!("[client.{user}]")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(folder: &Path, conf: &str) -> ClusterSpec {
        let path = folder.join("ceph.conf");
        std::fs::write(&path, conf).unwrap();
        ClusterSpec { conf: Some(path), user: "nobody-has-this-name".to_owned(), keyring: None }
    }

    #[test]
    fn refusal_names_the_keyring_that_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let spec = spec(folder.path(), "mon_host = 127.0.0.1\n");
        let text = Files::of(&spec).refused(libc::ENOENT).to_string();
        assert!(
            text.contains("there is no keyring /etc/ceph/ceph.client.nobody-has-this-name.keyring"),
            "{text}"
        );
        assert!(text.contains(&format!("cluster of {}", folder.path().display())), "{text}");
    }

    #[test]
    fn refusal_points_at_a_key_that_is_damaged_or_of_another_user() {
        let folder = tempfile::tempdir().unwrap();
        let mut spec = spec(folder.path(), "mon_host = 127.0.0.1\n");
        let keyring = folder.path().join("keyring");
        spec.keyring = Some(keyring.clone());
        std::fs::write(&keyring, "[client.nobody-has-this-name]\nkey = x\n").unwrap();
        let said = |errno| Files::of(&spec).refused(errno).to_string();
        assert!(said(libc::EIO).contains("whole?"), "{}", said(libc::EIO));
        std::fs::write(&keyring, "[client.other]\nkey = x\n").unwrap();
        assert!(said(libc::EPERM).contains("has no [client.nobody-has-this-name]"), "{}", said(libc::EPERM));
    }

    #[test]
    fn keyring_that_ceph_s_configuration_names_is_not_missed() {
        let folder = tempfile::tempdir().unwrap();
        let spec = spec(folder.path(), "mon_host = 127.0.0.1\n  keyring = /x\n");
        let text = Files::of(&spec).refused(libc::EPERM).to_string();
        assert!(text.contains("ceph.conf names"), "{text}");
    }
}
