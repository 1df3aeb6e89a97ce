//! A gateway of a group: where the group's state is, and as whom it is used.

use std::path::PathBuf;

/// The group of gateways that this one is of. What the group serves is in a Ceph pool, not in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// The pool with the group's state.
    pub pool: String,
    /// The namespace of the pool.
    pub namespace: Option<String>,
    /// The group's name.
    pub group: String,
    /// This gateway's name, which no other one of the group has; the host's name when not given.
    pub name: Option<String>,
    /// Where hosts reach this gateway, as the others tell them; the listeners' addresses when there is none.
    pub addresses: Vec<String>,
    /// Ceph's configuration file: an absolute path. Otherwise the one at the usual place.
    pub conf: Option<PathBuf>,
    /// The user, without `client.`.
    pub user: String,
    /// The file with the user's key: an absolute path. Otherwise where the configuration says.
    pub keyring: Option<PathBuf>,
    /// How many ANA groups the group of gateways gets when it is made.
    pub ana_groups: u32,
}

impl Cluster {
    /// [`Cluster::group`] where nothing is said.
    pub const GROUP: &str = "default";
    /// [`Cluster::ana_groups`] where nothing is said.
    pub const ANA_GROUPS: u32 = 16;
    const NAME_MAX: usize = 64;

    /// Whether a text can be the name of a group or a gateway.
    #[must_use]
    pub fn is_name(text: &str) -> bool {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        !text.is_empty() && text.len() <= Self::NAME_MAX && text.chars().all(allowed)
    }
}
