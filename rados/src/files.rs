//! The files of this machine that a connection needs: Ceph's configuration and the keyring. librados says neither which one it
//! cannot read, nor why, and takes a keyring that it cannot read for a wrong key.

use crate::cluster::versions;
use crate::{ClusterSpec, Error};
use std::env::var_os;
use std::ffi::OsString;
use std::fs::{File, read_to_string};
use std::io;
use std::path::{Path, PathBuf};

/// Where librados looks for Ceph's configuration, if nothing is said: here, and in the folders of the user and of the process.
const CONF: &str = "/etc/ceph/ceph.conf";

/// What a connection to a cluster reads.
pub(crate) struct Files<'a> {
    spec: &'a ClusterSpec,
    conf: PathBuf,
    /// It is named: by the configuration of this process, or by `CEPH_CONF`.
    is_named: bool,
    /// What the process is told of the keyring by `CEPH_KEYRING`.
    keyring: Option<PathBuf>,
}

/// Looks whether this machine has what a connection needs: the libraries, Ceph's configuration, a keyring. Asks no cluster.
/// Returns what is not where it usually is, and may be known to the service by its environment.
///
/// # Errors
/// The first that is missing, and what to do.
pub fn check(spec: &ClusterSpec) -> Result<Vec<Error>, Error> {
    versions()?;
    Files::of(spec).look()
}

impl<'a> Files<'a> {
    pub(crate) fn of(spec: &'a ClusterSpec) -> Self {
        Self::with(spec, |name| var_os(name))
    }

    fn with(spec: &'a ClusterSpec, environment: impl Fn(&str) -> Option<OsString>) -> Self {
        let of_environment = environment("CEPH_CONF").filter(|_| spec.conf.is_none());
        let is_named = spec.conf.is_some() || of_environment.is_some();
        let conf = spec.conf.clone().or_else(|| first(of_environment?.to_str()?.split([',', ';'])));
        let usual = || {
            let own = environment("HOME").map(|home| PathBuf::from(home).join(".ceph/ceph.conf"));
            own.filter(|path| path.exists() && !Path::new(CONF).exists())
        };
        let conf = conf.or_else(|| usual().filter(|_| !is_named)).unwrap_or_else(|| CONF.into());
        Self { spec, conf, is_named, keyring: environment("CEPH_KEYRING").map(PathBuf::from) }
    }

    fn look(&self) -> Result<Vec<Error>, Error> {
        self.check()?;
        let mut absent = Vec::new();
        if let Err(error) = File::open(&self.conf) {
            absent.push(Error::File {
                what: format!("cannot read Ceph's configuration {}", self.conf()),
                cause: error.to_string(),
                advice: ": copy the cluster's ceph.conf there (mon_host is enough), or name it with `conf`, if CEPH_CONF \
                    in the unit does not",
            });
        }
        let known = self.keyring();
        if known.is_none() && self.needs_keyring() {
            let user = &self.spec.user;
            absent.push(Error::File {
                what: format!("there is no key of client.{user}"),
                cause: format!("{} is not there", usual_keyrings(user)[0].display()),
                advice: ": write it by `ceph auth get-or-create`, or name the file with `keyring`, if CEPH_KEYRING in the \
                    unit does not",
            });
        }
        match known.filter(|path| has_no_key(path, &self.spec.user)) {
            None => Ok(absent),
            Some(path) => Err(Error::File {
                what: format!("the keyring {}", path.display()),
                cause: format!("it has no [client.{}]", self.spec.user),
                advice: ": see `ceph auth get`",
            }),
        }
    }

    pub(crate) fn conf(&self) -> String {
        self.conf.display().to_string()
    }

    /// The keyring that is read, if it is known: Ceph's configuration may name another one.
    fn keyring(&self) -> Option<PathBuf> {
        let usual = || usual_keyrings(&self.spec.user).into_iter().find(|path| path.exists());
        let named = self.spec.keyring.clone().or_else(|| self.keyring.clone());
        named.or_else(|| usual().filter(|_| !self.conf_names_keyring()))
    }

    fn conf_names_keyring(&self) -> bool {
        let of_user = options_of(&self.conf, &self.spec.user);
        of_user.iter().any(|(name, _)| matches!(name.as_str(), "keyring" | "keyfile" | "key"))
    }

    /// Whether a user without a keyring is one that the cluster may not let in.
    fn needs_keyring(&self) -> bool {
        let of_user = options_of(&self.conf, &self.spec.user);
        let is_none = |(name, value): &(String, String)| name == "auth_client_required" && value == "none";
        !self.conf_names_keyring() && !of_user.iter().any(is_none)
    }

    /// Whether what is named can be read. Another place may be meant where nothing is.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let usual = &usual_keyrings(&self.spec.user)[0];
        let keyring = self.spec.keyring.as_ref();
        let files = [
            ("Ceph's configuration", &self.conf, self.is_named),
            ("the keyring", keyring.unwrap_or(usual), keyring.is_some()),
        ];
        // Where another one is named, nobody reads the usual one.
        let is_usual = keyring.is_none() && self.keyring.is_none() && !self.conf_names_keyring();
        for (what, path, is_named) in files {
            if what == "the keyring" && keyring.is_none() && !is_usual {
                continue;
            }
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
        let is_missing = known.is_none() && self.needs_keyring();
        let advice = match errno {
            libc::ETIMEDOUT => {
                format!("no monitor answers: check mon_host in {conf}, the network and firewalls")
            }
            // Then nothing that is looked for is found.
            libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN => {
                "raise the limit that is reached (LimitNOFILE, TasksMax, MemoryMax of the unit)".to_owned()
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
                    "the cluster does not know client.{user} by the key in {keyring}, or it has no caps for the monitors (mon 'profile \
                     rbd'): see ceph auth get client.{user}"
                )
            }
            libc::EIO => {
                format!("is the key of client.{user} in {keyring} whole? See ceph auth get client.{user}")
            }
            libc::ENOENT | libc::EINVAL => {
                format!(
                    "is there a key of client.{user} in {keyring}, readable by this process, and mon_host in {conf}, of addresses or \
                     names that resolve?"
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

/// The first of these files that is there, as librados takes it; if none is, the first.
fn first<'a>(paths: impl Iterator<Item = &'a str>) -> Option<PathBuf> {
    let paths: Vec<PathBuf> = paths.map(|path| path.trim().into()).collect();
    let is_absent =
        |path: &&PathBuf| File::open(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    paths.iter().find(|path| !is_absent(path)).or(paths.first()).cloned()
}

/// The options of Ceph's configuration that hold for a user, with underscores in their names; none where it cannot be read.
fn options_of(conf: &Path, user: &str) -> Vec<(String, String)> {
    let text = read_to_string(conf).unwrap_or_default();
    let mut holds = true;
    let mut options = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        if let Some((section, _)) = line.strip_prefix('[').and_then(|line| line.split_once(']')) {
            let section = section.trim();
            holds = matches!(section, "global" | "client") || section.strip_prefix("client.") == Some(user);
        } else if let Some((name, value)) = line.split_once('=').filter(|_| holds) {
            let name = name.split([' ', '\t', '_', '-']).filter(|word| !word.is_empty()).collect::<Vec<_>>();
            let value = value.split(['#', ';']).next().unwrap_or_default().trim().trim_matches('"');
            options.push((name.join("_"), value.to_owned()));
        }
    }
    options
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
        let text = Files::of(&spec).refused(libc::EMFILE).to_string();
        assert!(text.contains("LimitNOFILE") && !text.contains("there is no keyring"), "{text}");
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

    #[test]
    fn keyring_of_another_user_or_daemon_is_none_of_ours_and_who_needs_none_is_told_of_none() {
        let folder = tempfile::tempdir().unwrap();
        let says = |conf: &str| {
            let spec = spec(folder.path(), conf);
            Files::with(&spec, |_| None)
                .look()
                .map(|all| all.iter().map(ToString::to_string).collect::<String>())
        };
        for conf in [
            "[osd]\nkeyring = /x\n",
            "[client.rgw.x]\nkeyring = /x\n[mon.a]\nkey = y\n",
            "[global]\n# keyring = /x\nkeyring_of_mine = /x\n",
        ] {
            let text = says(conf).unwrap();
            assert!(text.contains("there is no key of client.nobody-has-this-name"), "{conf}: {text}");
        }
        for conf in [
            "[global]\nkeyring = /x\n",
            "[osd]\na = b\n[client]\nkeyfile=/x\n",
            "[client.nobody-has-this-name]\nkey = y\n",
            "[global]\nauth client required = none ; no cephx\n",
            "auth_client_required = none\n",
        ] {
            assert_eq!(says(conf).unwrap(), "", "{conf}");
        }
    }

    #[test]
    fn environment_names_files_as_for_librados() {
        let folder = tempfile::tempdir().unwrap();
        let conf = spec(folder.path(), "mon_host = 127.0.0.1\n").conf.unwrap();
        let spec = ClusterSpec { conf: None, user: "nobody-has-this-name".to_owned(), keyring: None };
        let list = format!("/nonexistent/ceph.conf, {}", conf.display());
        let keyring = folder.path().join("keyring");
        let environment = |name: &str| match name {
            "CEPH_CONF" => Some(list.clone().into()),
            "CEPH_KEYRING" => Some(keyring.clone().into()),
            _ => None,
        };
        let files = Files::with(&spec, environment);
        assert_eq!(files.conf(), conf.display().to_string());
        std::fs::write(&keyring, "[client.nobody-has-this-name]\nkey = x\n").unwrap();
        assert!(files.look().unwrap().is_empty());
        std::fs::write(&keyring, "[client.other]\nkey = x\n").unwrap();
        assert!(files.look().unwrap_err().to_string().contains("has no [client.nobody-has-this-name]"));
        let nowhere =
            Files::with(&spec, |name| (name == "CEPH_CONF").then(|| "/nonexistent/a;/nonexistent/b".into()));
        let error = nowhere.look().unwrap_err().to_string();
        assert!(error.contains("/nonexistent/a") && error.contains("CEPH_CONF names it"), "{error}");
    }
}
