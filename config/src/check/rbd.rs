//! Images of Ceph clusters.

use super::{Checker, Result};
use crate::file;
use crate::rbd::{Rbd, RbdEncryption};
use std::path::PathBuf;
use toml::Spanned;

impl Checker<'_> {
    pub(super) fn rbd(&self, spanned: &Spanned<file::Rbd>) -> Result<Rbd> {
        let file = spanned.as_ref();
        let name =
            |key, value: Option<&Spanned<String>>| value.map(|value| self.rbd_name(key, value)).transpose();
        let encryption = file.encryption.as_ref().map(|it| self.rbd_encryption(it.as_ref())).transpose()?;
        Ok(Rbd {
            pool: name("pool", file.pool.as_ref())?.unwrap_or_else(|| Rbd::POOL.to_owned()),
            namespace: name("namespace", file.namespace.as_ref())?,
            image: self.rbd_name("image", &file.image)?,
            snapshot: name("snapshot", file.snapshot.as_ref())?,
            conf: self.ceph_file("conf", file.conf.as_ref())?,
            user: self.ceph_user(file.user.as_ref())?,
            keyring: self.ceph_file("keyring", file.keyring.as_ref())?,
            encryption,
        })
    }

    pub(super) fn rbd_name(&self, key: &str, value: &Spanned<String>) -> Result<String> {
        match Rbd::is_name(value.as_ref()) {
            true => Ok(value.as_ref().clone()),
            false => self.error(
                value,
                format!("{key} is \"{}\": a name is not empty, and has no / or @", value.as_ref()),
            ),
        }
    }

    pub(super) fn ceph_user(&self, user: Option<&Spanned<String>>) -> Result<String> {
        let Some(value) = user else { return Ok(Rbd::USER.to_owned()) };
        match value.as_ref().strip_prefix("client.") {
            Some(name) => {
                self.error(value, format!("user goes without \"client.\": write user = \"{name}\""))
            }
            None => self.rbd_name("user", value),
        }
    }

    pub(super) fn ceph_file(&self, key: &str, path: Option<&Spanned<PathBuf>>) -> Result<Option<PathBuf>> {
        match path {
            Some(path) if !path.as_ref().is_absolute() => {
                self.error(path, format!("{key} must be absolute: the daemon does not start where you are"))
            }
            path => Ok(path.map(|path| path.as_ref().clone())),
        }
    }

    fn rbd_encryption(&self, file: &file::RbdEncryption) -> Result<RbdEncryption> {
        let luks = self.word("format", Some(&file.format), &[("luks1", 1), ("luks2", 2)], 2)?;
        let passphrase_file = self.ceph_file("passphrase_file", Some(&file.passphrase_file))?;
        Ok(RbdEncryption { luks, passphrase_file: passphrase_file.unwrap_or_default() })
    }
}
