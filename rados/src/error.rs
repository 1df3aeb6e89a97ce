//! What Ceph refused.

use crate::NoLibrary;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why something of Ceph cannot be had.
#[derive(Debug, Clone, Error)]
pub enum Error {
    /// It is not installed.
    #[error(transparent)]
    NoLibrary(#[from] NoLibrary),
    /// A file of this machine cannot be read, which says nothing of the cluster.
    #[error("{what}: {cause}{advice}")]
    File {
        /// Which file, of what.
        what: String,
        /// Why not.
        cause: String,
        /// What to do, in front of it a colon.
        advice: &'static str,
    },
    /// An encrypted image has another passphrase. To find that out takes a second or so of a processor.
    #[error(
        "cannot decrypt the image {image}: the passphrase in {} is not that of the image. As trying takes time, it is tried rarely, \
         and at once when the configuration is reloaded", file.display()
    )]
    Passphrase {
        /// Which image.
        image: String,
        /// The file with the passphrase.
        file: PathBuf,
    },
    /// It refused, or did not answer.
    #[error("{what}: {}{advice}", io::Error::from_raw_os_error(*errno))]
    Failed {
        /// What failed, on what.
        what: String,
        /// The error number.
        errno: i32,
        /// What to do, in front of it a comma or a colon; empty where the error says it.
        advice: String,
    },
}

impl Error {
    pub(crate) fn new(what: impl Into<String>, errno: i32) -> Self {
        let advice = advice(errno);
        let advice = if advice.is_empty() { String::new() } else { format!(": {advice}") };
        Self::Failed { what: what.into(), errno, advice }
    }

    /// Of what is in a pool, as that user.
    pub(crate) fn in_pool(what: impl Into<String>, errno: i32, (pool, user): (&str, &str)) -> Self {
        match errno {
            libc::EPERM | libc::EACCES => {
                let advice = format!(
                    "the capabilities of client.{user} do not allow it; it needs mon 'profile rbd' and osd 'profile rbd pool={pool}' \
                     (ceph auth get client.{user})"
                );
                Self::with(what, errno, advice)
            }
            _ => Self::new(what, errno),
        }
    }

    /// Of what the monitors do, as that user.
    pub(crate) fn of_monitors(what: impl Into<String>, errno: i32, user: &str) -> Self {
        match errno {
            libc::EPERM | libc::EACCES => {
                let advice = format!(
                    "the capabilities of client.{user} do not allow it; it needs mon 'profile rbd' (ceph auth get client.{user})"
                );
                Self::with(what, errno, advice)
            }
            _ => Self::new(what, errno),
        }
    }

    /// With what to do in this case.
    pub(crate) fn with(what: impl Into<String>, errno: i32, advice: impl Into<String>) -> Self {
        Self::Failed { what: what.into(), errno, advice: format!(": {}", advice.into()) }
    }

    /// The error number, if it came from Ceph.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::NoLibrary(_) | Self::File { .. } | Self::Passphrase { .. } => None,
            Self::Failed { errno, .. } => Some(*errno),
        }
    }

    /// Whether the user's capabilities do not allow it.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(self.errno(), Some(libc::EPERM | libc::EACCES))
    }

    /// Whether the cluster has fenced this client: its handle is of no use any more.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.errno() == Some(libc::ESHUTDOWN)
    }
}

/// What to do, whatever failed.
fn advice(errno: i32) -> &'static str {
    match errno {
        libc::ESHUTDOWN => "the cluster has fenced this client (ceph osd blocklist ls)",
        libc::ETIMEDOUT => "the cluster does not answer",
        libc::EPERM | libc::EACCES => {
            "the user's capabilities do not allow it; it needs mon 'profile rbd' and osd 'profile rbd pool=…' \
             (ceph auth get client.…)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_in_a_pool_says_which_capabilities_who_needs() {
        let of = |errno| {
            Error::in_pool("cannot lock object x of pool nvmf/lab", errno, ("nvmf", "gw")).to_string()
        };
        let text = of(libc::EPERM);
        assert!(text.contains("'profile rbd pool=nvmf' (ceph auth get client.gw)"), "{text}");
        assert!(of(libc::ETIMEDOUT).ends_with("the cluster does not answer"), "{}", of(libc::ETIMEDOUT));
    }
}
