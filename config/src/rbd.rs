//! Images of Ceph clusters, as they are written and named.

use core::fmt;
use core::str::FromStr;
use std::path::PathBuf;
use thiserror::Error;

/// An image of a Ceph cluster, or a snapshot of one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rbd {
    /// The pool.
    pub pool: String,
    /// The namespace of the pool.
    pub namespace: Option<String>,
    /// The image.
    pub image: String,
    /// The snapshot, which is read only.
    pub snapshot: Option<String>,
    /// Ceph's configuration file: an absolute path. Otherwise the one at the usual place.
    pub conf: Option<PathBuf>,
    /// The user, without `client.`.
    pub user: String,
    /// The file with the user's key: an absolute path. Otherwise where the configuration says.
    pub keyring: Option<PathBuf>,
    /// How it is decrypted.
    pub encryption: Option<RbdEncryption>,
}

/// How an image is decrypted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RbdEncryption {
    /// The version of LUKS: 1 or 2.
    pub luks: u8,
    /// The file with the passphrase: an absolute path.
    pub passphrase_file: PathBuf,
}

/// A text names no image.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("\"{0}\" names no image: write POOL/IMAGE, POOL/NAMESPACE/IMAGE, or either with @SNAPSHOT")]
pub struct RbdNameError(String);

impl Rbd {
    /// The pool where nothing is said, as for `rbd`.
    pub const POOL: &str = "rbd";
    /// The user where nothing is said, as for `rbd`.
    pub const USER: &str = "admin";
    /// In front of an image's name where a path could stand.
    pub const PREFIX: &str = "rbd:";

    /// Whether a text can be the name of a pool, an image and so on.
    pub(crate) fn is_name(text: &str) -> bool {
        !text.is_empty() && !text.contains(['/', '@', '\0'])
    }
}

impl FromStr for Rbd {
    type Err = RbdNameError;

    /// As `rbd` names images: `POOL/NAMESPACE/IMAGE@SNAPSHOT`, of which only the image must be there.
    fn from_str(text: &str) -> Result<Self, RbdNameError> {
        let error = || RbdNameError(text.to_owned());
        let (place, snapshot) = match text.split_once('@') {
            Some((place, snapshot)) => (place, Some(snapshot)),
            None => (text, None),
        };
        let parts: Vec<&str> = place.split('/').collect();
        let (pool, namespace, image) = match parts[..] {
            [image] => (Self::POOL, None, image),
            [pool, image] => (pool, None, image),
            [pool, namespace, image] => (pool, Some(namespace), image),
            _ => return Err(error()),
        };
        if ![Some(pool), namespace, Some(image), snapshot].into_iter().flatten().all(Self::is_name) {
            return Err(error());
        }
        Ok(Self {
            pool: pool.to_owned(),
            namespace: namespace.map(str::to_owned),
            image: image.to_owned(),
            snapshot: snapshot.map(str::to_owned),
            conf: None,
            user: Self::USER.to_owned(),
            keyring: None,
            encryption: None,
        })
    }
}

impl fmt::Display for Rbd {
    /// With its cluster's configuration, if that is not the usual one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}/", Self::PREFIX, self.pool)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.image)?;
        if let Some(snapshot) = &self.snapshot {
            write!(f, "@{snapshot}")?;
        }
        match &self.conf {
            Some(conf) => write!(f, " ({})", conf.display()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_rbd() {
        for text in ["rbd:ssd/vm1", "rbd:ssd/tenant/vm1", "rbd:ssd/vm1@monday"] {
            let image: Rbd = text[Rbd::PREFIX.len()..].parse().unwrap();
            assert_eq!(image.to_string(), text);
        }
        assert_eq!("vm1".parse::<Rbd>().unwrap().to_string(), "rbd:rbd/vm1");
        for text in ["", "/", "ssd/", "a/b/c/d", "ssd/vm1@", "ssd/vm1@a@b", "//vm1"] {
            assert!(text.parse::<Rbd>().is_err(), "{text}");
        }
    }
}
