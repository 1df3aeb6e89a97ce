//! Namespaces whose disks bear one UUID. Hosts take them for two paths to one disk, so at most one is served: never the
//! one whose disk happened to open first.

use crate::exports::{Export, ExportFault};
use nvmf_config::{Config, Namespace, Subsystem};
use nvmf_subsystem::Nqn;
use std::collections::HashMap;
use uuid::Uuid;

/// Which namespace.
pub(super) type Key = (Nqn, u32);

/// A namespace and the UUID of its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(super) key: Key,
    pub(super) uuid: [u8; 16],
    /// By the key `uuid` in the file: of these, no two are the same.
    pub(super) is_configured: bool,
}

impl Claim {
    pub(super) fn of(export: &Export) -> Self {
        Self {
            key: (export.nqn, export.namespace.nsid),
            uuid: export.uuid,
            is_configured: export.namespace.uuid.is_some(),
        }
    }

    /// Of a namespace that gateways of the group have served under this UUID.
    pub(super) fn of_group(key: Key, uuid: Uuid) -> Self {
        Self { key, uuid: uuid.into_bytes(), is_configured: false }
    }

    fn configured(nqn: Nqn, namespace: &Namespace) -> Option<Self> {
        Some(Self { key: (nqn, namespace.nsid), uuid: namespace.uuid?, is_configured: true })
    }

    /// Why it cannot be served, if another has its UUID. What is served goes on; else the one that has the UUID from
    /// the configuration has it. Which of the others is the copy, a UUID does not tell: none of them is served.
    pub(super) fn refused(
        &self,
        served: &Claims,
        configured: &Claims,
        found: &Claims,
    ) -> Option<ExportFault> {
        if let Some((uuid, nqn, nsid)) = served.rival(self) {
            return Some(ExportFault::Twice { uuid, nqn, nsid });
        }
        if self.is_configured {
            return None;
        }
        if let Some((uuid, nqn, nsid)) = configured.rival(self) {
            return Some(ExportFault::Twice { uuid, nqn, nsid });
        }
        found.rival(self).map(|(uuid, nqn, nsid)| ExportFault::Twins { uuid, nqn, nsid })
    }
}

/// Claims, by their UUIDs.
#[derive(Debug, Default)]
pub(crate) struct Claims(HashMap<[u8; 16], Vec<Claim>>);

impl FromIterator<Claim> for Claims {
    fn from_iter<T: IntoIterator<Item = Claim>>(claims: T) -> Self {
        let mut by_uuid: HashMap<_, Vec<Claim>> = HashMap::new();
        for claim in claims {
            by_uuid.entry(claim.uuid).or_default().push(claim);
        }
        Self(by_uuid)
    }
}

impl Claims {
    /// Those of the configuration.
    pub(super) fn configured(wanted: &[Subsystem]) -> Self {
        let namespaces = wanted.iter().flat_map(|s| s.namespaces.iter().map(move |n| (s.nqn, n)));
        namespaces.filter_map(|(nqn, n)| Claim::configured(nqn, n)).collect()
    }

    /// Another that has the UUID of this one: its UUID, and which namespace it is.
    fn rival(&self, claim: &Claim) -> Option<(Uuid, Box<Nqn>, u32)> {
        let others = self.0.get(&claim.uuid)?.iter().filter(|other| other.key != claim.key);
        others.map(|other| (Uuid::from_bytes(other.uuid), Box::new(other.key.0), other.key.1)).min()
    }
}

/// What a start would refuse of a configuration whose disks have these UUIDs, where they could be found out.
pub(crate) fn refused(
    config: &Config,
    uuid_of: impl Fn(&Nqn, &Namespace) -> Option<[u8; 16]>,
) -> Vec<(Key, ExportFault)> {
    let namespaces = config.subsystems.iter().flat_map(|s| s.namespaces.iter().map(move |n| (s.nqn, n)));
    let claim = |(nqn, namespace): (Nqn, &Namespace)| {
        let own = || uuid_of(&nqn, namespace);
        let found = || Some(Claim { key: (nqn, namespace.nsid), uuid: own()?, is_configured: false });
        Claim::configured(nqn, namespace).or_else(found)
    };
    let claims: Vec<Claim> = namespaces.filter_map(claim).collect();
    let (configured, found) = (Claims::configured(&config.subsystems), claims.iter().copied().collect());
    let refused = |claim: &Claim| Some((claim.key, claim.refused(&Claims::default(), &configured, &found)?));
    claims.iter().filter_map(refused).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(nsid: u32, uuid: u8) -> Claim {
        Claim { key: (nqn(), nsid), uuid: [uuid; 16], is_configured: false }
    }

    fn nqn() -> Nqn {
        "nqn.2026-11.com.example:twins".parse().unwrap()
    }

    /// Namespaces 1, 2 and so on, with these UUIDs in the configuration.
    fn wanted(uuids: &[Option<u8>]) -> Config {
        let namespace = |(nsid, uuid): (usize, &Option<u8>)| {
            let uuid = uuid.map(|uuid| format!("uuid = \"{}\"\n", Uuid::from_bytes([uuid; 16])));
            let path = format!("path = \"/srv/{nsid}.img\"\n");
            format!("[[subsystem.namespace]]\nnsid = {nsid}\n{path}{}", uuid.unwrap_or_default())
        };
        let namespaces: String = (1..).zip(uuids).map(namespace).collect();
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"{}\"\nallow_any_host = true\n{namespaces}",
            nqn()
        );
        Config::parse(&text).unwrap()
    }

    fn refused(config: &Config, served: &[Claim], found: &[Claim]) -> Vec<Option<(bool, u32)>> {
        let index = |claims: &[Claim]| claims.iter().copied().collect::<Claims>();
        let (served, configured) = (index(served), Claims::configured(&config.subsystems));
        let all = index(found);
        let fault = |claim: &Claim| match claim.refused(&served, &configured, &all)? {
            ExportFault::Twice { nsid, .. } => Some((false, nsid)),
            ExportFault::Twins { nsid, .. } => Some((true, nsid)),
            other => panic!("{other}"),
        };
        found.iter().map(fault).collect()
    }

    #[test]
    fn of_two_disks_with_one_uuid_neither_is_served() {
        let found = [claim(1, 7), claim(2, 7), claim(3, 8)];
        let config = wanted(&[None, None, None]);
        assert_eq!(refused(&config, &[], &found), [Some((true, 2)), Some((true, 1)), None]);
    }

    #[test]
    fn uuid_in_the_configuration_decides() {
        let found = [claim(1, 7), Claim { is_configured: true, ..claim(2, 7) }];
        let config = wanted(&[None, Some(7)]);
        assert_eq!(refused(&config, &[], &found), [Some((false, 2)), None]);
        assert_eq!(refused(&config, &[], &found[..1]), [Some((false, 2))], "though its disk is not there");
    }

    #[test]
    fn served_disk_goes_on_and_its_copy_is_refused() {
        let config = wanted(&[None, None]);
        assert_eq!(refused(&config, &[claim(2, 7)], &[claim(1, 7)]), [Some((false, 2))]);
        let configured = [Claim { is_configured: true, ..claim(1, 7) }];
        assert_eq!(refused(&config, &[claim(2, 7)], &configured), [Some((false, 2))]);
        assert_eq!(refused(&config, &[claim(2, 7)], &[claim(2, 7)]), [None], "it is itself");
    }

    #[test]
    fn configuration_is_looked_at_with_the_uuids_that_its_disks_have() {
        let own = |_: &Nqn, namespace: &Namespace| Some([if namespace.nsid == 3 { 8 } else { 7 }; 16]);
        let nsids =
            |config: &Config| super::refused(config, own).iter().map(|(key, _)| key.1).collect::<Vec<_>>();
        assert_eq!(nsids(&wanted(&[None, None, None])), [1, 2]);
        assert_eq!(nsids(&wanted(&[None, Some(9), None])), [0; 0], "the copy has one of its own");
        assert_eq!(nsids(&wanted(&[Some(7), None, None])), [2], "the original is named");
    }
}
