//! Paths that attached disks do not have yet.

use super::arguments::parse;
use super::engine::{Place, Subsystem, SubsystemPath};
use crate::attach::{Listed, Unable};
use anyhow::Result;
use nvmf_attached::AttachedPath;
use nvmf_initiator::HostIdentity;

/// What became of paths that a disk did not have.
#[derive(Debug, Default)]
pub(crate) struct Added {
    /// How many it has now.
    pub(crate) count: usize,
    /// Why one could not be made, for now.
    pub(crate) failed: Option<anyhow::Error>,
    /// Why it can never have one, as it is attached.
    pub(crate) unable: Option<anyhow::Error>,
}

impl Added {
    /// That of another disk as well.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            failed: self.failed.or(other.failed),
            unable: self.unable.or(other.unable),
        }
    }

    fn add(&mut self, place: &Place, made: Result<()>) {
        // The others are not worse for it.
        let Err(error) = made else { return self.count += 1 };
        let why = if error.is::<Unable>() { &mut self.unable } else { &mut self.failed };
        why.get_or_insert(error.context(format!("the path over {place}")));
    }
}

impl From<anyhow::Error> for Added {
    fn from(error: anyhow::Error) -> Self {
        Self { failed: Some(error), ..Self::default() }
    }
}

/// Gives an attached disk those of these paths that it does not have, if it is this host's.
pub(crate) fn add_missing_paths(listed: &Listed, host: &HostIdentity, paths: &[SubsystemPath]) -> Added {
    let mut added = Added::default();
    if listed.disk.host_nqn != host.nqn.as_str() {
        return added;
    }
    let is_there = |path: &&SubsystemPath| listed.disk.paths.iter().any(|attached| path.is_at(attached));
    // A disk that was attached over TLS is reached in no other way.
    let insists = listed.disk.tls;
    let is_able = |path: &&SubsystemPath| !insists || path.place.transport == "tcp";
    let mut missing: Vec<_> = paths.iter().filter(|path| !is_there(path) && is_able(path)).cloned().collect();
    for path in &mut missing {
        if insists && !path.has_tls() {
            path.options.push("--tls".to_owned());
        }
        added.add(&path.place, listed.add_path(&path.text()));
    }
    added
}

impl Subsystem {
    /// Gives an attached disk of it those of its paths that it does not have.
    pub(super) fn add_missing_paths(&self, listed: &Listed) -> Added {
        let host = parse(&self.arguments()).and_then(|(attach, _)| attach.target.host());
        // A disk that was attached over TLS has its key.
        let paths = if listed.disk.tls { self.paths.clone() } else { self.with_keys().0.paths };
        host.map_or_else(Added::from, |host| add_missing_paths(listed, &host, &paths))
    }
}

impl SubsystemPath {
    /// Whether an attached disk has it as this path.
    fn is_at(&self, attached: &AttachedPath) -> bool {
        let (address, port) = attached.host_and_port();
        let Place { transport, address: own, port: own_port } = &self.place;
        let option = |name: &str| self.options.iter().find_map(|option| option.strip_prefix(name));
        // One that says nothing of where it begins is every path there, as nvme-cli has it.
        let begins =
            |own: Option<&str>, attached: &Option<String>| own.is_none() || own == attached.as_deref();
        (port, &attached.transport) == (Some(*own_port), transport)
            && (address == own || attached.name.as_ref() == Some(own))
            && begins(option("--host-traddr="), &attached.source)
            && begins(option("--host-iface="), &attached.interface)
    }
}

#[cfg(test)]
mod tests {
    use super::super::sources::tests::place;
    use super::*;

    #[test]
    fn path_that_a_disk_can_never_have_is_no_failure_and_hides_no_other() {
        let mut added = Added::default();
        added.add(&place("rdma", "192.0.2.1", 4420), Err(Unable("a seccomp filter".to_owned()).into()));
        added.add(&place("tcp", "192.0.2.1", 4420), Ok(()));
        let other = Added { count: 1, ..Added::default() };
        let Added { count, failed, unable } = added.and(other);
        assert_eq!((count, failed.map(|error| error.to_string())), (2, None));
        assert!(unable.is_some_and(|error| format!("{error:#}").contains("a seccomp filter")));
        let mut added = Added::default();
        added.add(&place("tcp", "192.0.2.2", 4420), Err(anyhow::anyhow!("no descriptor is left")));
        added.add(&place("tcp", "192.0.2.1", 4420), Ok(()));
        assert_eq!((added.count, added.failed.is_some()), (1, true));
    }

    #[test]
    fn path_is_that_of_an_attached_disk_if_it_leads_from_the_same_place_to_the_same_place() {
        let attached = AttachedPath {
            address: "192.0.2.1:4420".to_owned(),
            transport: "tcp".to_owned(),
            name: Some("storage-a".to_owned()),
            interface: Some("eth0".to_owned()),
            ..AttachedPath::default()
        };
        let is_at = |transport, address, options: &[&str]| {
            let options = options.iter().map(|&option| option.to_owned()).collect();
            SubsystemPath { place: place(transport, address, 4420), options }.is_at(&attached)
        };
        assert!(is_at("tcp", "192.0.2.1", &[]) && is_at("tcp", "storage-a", &["--host-iface=eth0"]));
        assert!(!is_at("tcp", "192.0.2.1", &["--host-iface=eth1"]) && !is_at("tcp", "storage-b", &[]));
        assert!(!is_at("rdma", "192.0.2.1", &[]) && !is_at("tcp", "192.0.2.1", &["--host-traddr=192.0.2.9"]));
    }
}
