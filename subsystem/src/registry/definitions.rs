//! Checks of definitions: bounds, and identifiers that must be unique.

use crate::discovery::{Port, Referral};
use crate::limits::{HOSTS_MAX, IN_CAPSULE_LEN_MAX, NSID_MAX, PORTS_MAX, REFERRALS_MAX, SUBSYSTEMS_MAX};
use crate::{
    AnaState, DefinitionError, HostAccess, NamespaceDefinition, Nqn, Options, SubsystemDefinition, ana,
};
use alloc::collections::BTreeSet;

/// Bytes of the fields of Identify Controller and of the discovery log.
const SERIAL_LEN: usize = 20;
const MODEL_LEN: usize = 40;
const ADDRESS_LEN: usize = 256;
const SERVICE_LEN: usize = 32;

pub(super) fn check_subsystem(
    definition: &SubsystemDefinition,
    subsystems: usize,
    options: &Options,
) -> Result<(), DefinitionError> {
    check_count("subsystems", subsystems + 1, SUBSYSTEMS_MAX)?;
    let nqn = definition.nqn;
    for (what, text, max) in
        [("serial number", &definition.serial, SERIAL_LEN), ("model number", &definition.model, MODEL_LEN)]
    {
        if !is_text(text, max) {
            return Err(DefinitionError::Text { what, nqn, max });
        }
    }
    check_hosts(&definition.hosts)?;
    check_namespaces(&nqn, &definition.namespaces, options)
}

pub(super) fn check_hosts(hosts: &HostAccess) -> Result<(), DefinitionError> {
    match hosts {
        HostAccess::Any => Ok(()),
        HostAccess::Only(hosts) => check_count("hosts", hosts.len(), HOSTS_MAX),
    }
}

pub(super) fn check_namespaces(
    nqn: &Nqn,
    namespaces: &[NamespaceDefinition],
    options: &Options,
) -> Result<(), DefinitionError> {
    check_count("namespaces", namespaces.len(), options.namespaces_max())?;
    let (mut nsids, mut uuids) = (BTreeSet::new(), BTreeSet::new());
    let (mut nguids, mut eui64s) = (BTreeSet::new(), BTreeSet::new());
    for namespace in namespaces {
        let nsid = namespace.nsid;
        if !(1..=NSID_MAX).contains(&nsid.0) || !nsids.insert(nsid) {
            return Err(DefinitionError::Nsid { nsid, nqn: *nqn });
        }
        let own = namespace.uuid != [0; 16]
            && uuids.insert(namespace.uuid)
            && (namespace.nguid == [0; 16] || nguids.insert(namespace.nguid))
            && (namespace.eui64 == [0; 8] || eui64s.insert(namespace.eui64));
        if !own {
            return Err(DefinitionError::Identifier { nsid, nqn: *nqn });
        }
        check_group(namespace.access.ana_group)?;
        check_hosts(&namespace.access.hosts)?;
    }
    Ok(())
}

pub(super) fn check_ana(group: u32, state: AnaState) -> Result<(), DefinitionError> {
    check_group(group)?;
    if ana::is_state(state) { Ok(()) } else { Err(DefinitionError::AnaState(state.0)) }
}

fn check_group(group: u32) -> Result<(), DefinitionError> {
    if ana::is_group(group) { Ok(()) } else { Err(DefinitionError::AnaGroup(group)) }
}

pub(super) fn check_ports(ports: &[Port]) -> Result<(), DefinitionError> {
    check_count("ports", ports.len(), PORTS_MAX)?;
    let mut ids = BTreeSet::new();
    for port in ports {
        let reason = if !ids.insert(port.id) {
            "its ID is there twice"
        } else if !is_text(&port.address, ADDRESS_LEN) {
            "its address must have 1 to 256 characters of printable ASCII"
        } else if !is_text(&port.service, SERVICE_LEN) {
            "its service must have 1 to 32 characters of printable ASCII"
        } else if port.in_capsule_len > IN_CAPSULE_LEN_MAX || !port.in_capsule_len.is_multiple_of(16) {
            "its in-capsule data must be a multiple of 16 bytes, at most 16384"
        } else {
            continue;
        };
        return Err(DefinitionError::Port { id: port.id, reason });
    }
    Ok(())
}

pub(super) fn check_referrals(referrals: &[Referral]) -> Result<(), DefinitionError> {
    check_count("referrals", referrals.len(), REFERRALS_MAX)
}

fn check_count(what: &'static str, count: usize, max: usize) -> Result<(), DefinitionError> {
    if count <= max { Ok(()) } else { Err(DefinitionError::TooMany { what, count, max }) }
}

/// 1 to `max` characters of printable ASCII.
fn is_text(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len()) && text.bytes().all(|byte| (0x20..0x7f).contains(&byte))
}
