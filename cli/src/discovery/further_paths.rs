//! Paths that attached disks do not have yet.

use super::arguments::parse;
use super::engine::{Place, Subsystem, SubsystemPath};
use crate::attach::Listed;
use anyhow::Result;
use nvmf_attached::AttachedPath;
use nvmf_initiator::HostIdentity;

/// Gives an attached disk those of these paths that it does not have, if it is this host's; how many those are.
pub(crate) fn add_missing_paths(
    listed: &Listed,
    host: &HostIdentity,
    paths: &[SubsystemPath],
) -> Result<usize> {
    if listed.disk.host_nqn != host.nqn.as_str() {
        return Ok(0);
    }
    let is_there = |path: &&SubsystemPath| listed.disk.paths.iter().any(|attached| path.is_at(attached));
    // A disk that was attached over TLS is reached in no other way.
    let insists = listed.disk.tls;
    let is_able = |path: &&SubsystemPath| !insists || path.place.transport == "tcp";
    let mut missing: Vec<_> = paths.iter().filter(|path| !is_there(path) && is_able(path)).cloned().collect();
    let mut failed = None;
    for path in &mut missing {
        if insists && !path.has_tls() {
            path.options.push("--tls".to_owned());
        }
        if let Err(error) = listed.add_path(&path.text()) {
            // The others are not worse for it.
            failed.get_or_insert(error.context(format!("the path over {}", path.place)));
        }
    }
    failed.map_or(Ok(missing.len()), Err)
}

impl Subsystem {
    /// Gives an attached disk of it those of its paths that it does not have; how many those are.
    pub(super) fn add_missing_paths(&self, listed: &Listed) -> Result<usize> {
        let host = parse(&self.arguments())?.0.target.host()?;
        add_missing_paths(listed, &host, &self.paths)
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
