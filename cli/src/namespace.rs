//! Which namespace of a subsystem is meant.

use crate::print::{human, wrong_arguments};
use anyhow::{Result, anyhow};
use nvme_proto::admin::log_page::AnaState;
use nvme_proto::{Nqn, Nsid};
use nvmf_attached::Disk;
use nvmf_host::Namespace;
use std::fmt;
use std::str::FromStr;
use uuid::Uuid;

/// Namespaces that are named where one was taken of several.
const LISTED_MAX: usize = 16;

/// The namespace that was asked for; the first of those that there are, where none was.
pub(crate) fn choose(nqn: &Nqn, asked_for: Option<Nsid>, namespaces: &[Namespace]) -> Result<Nsid> {
    let first = namespaces.first().map(|namespace| namespace.nsid);
    asked_for.or(first).ok_or_else(|| {
        anyhow!(
            "{nqn} has no namespace for this host, or none of a size and format that can be used (blocks of 512 \
             bytes to 64 KiB without metadata): check the target's configuration, and its log"
        )
    })
}

/// The namespace that was asked for; the only one that there is, where none was.
pub(crate) fn only(nqn: &Nqn, asked_for: Option<Nsid>, namespaces: &[Namespace]) -> Result<Nsid> {
    if asked_for.is_none() && namespaces.len() > 1 {
        return wrong_arguments(format!(
            "{nqn} has several namespaces: {}. Name one with --nsid",
            listed(namespaces)
        ));
    }
    choose(nqn, asked_for, namespaces)
}

/// A disk's identifiers: UUID, NGUID and EUI-64, each zeroes where it has none; as one word of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DiskName {
    pub(crate) uuid: [u8; 16],
    pub(crate) nguid: [u8; 16],
    pub(crate) eui64: [u8; 8],
}

impl From<&Namespace> for DiskName {
    fn from(&Namespace { uuid, nguid, eui64, .. }: &Namespace) -> Self {
        Self { uuid, nguid, eui64 }
    }
}

impl From<&Disk> for DiskName {
    fn from(&Disk { uuid, nguid, eui64, .. }: &Disk) -> Self {
        Self { uuid, nguid, eui64 }
    }
}

impl fmt::Display for DiskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [uuid, nguid] = [self.uuid, self.nguid].map(u128::from_be_bytes);
        write!(f, "{uuid:032x},{nguid:032x},{:016x}", u64::from_be_bytes(self.eui64))
    }
}

impl FromStr for DiskName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut names = text.split(',');
        let mut next = || u128::from_str_radix(names.next()?, 16).ok();
        let mut all = || Some((next()?, next()?, u64::try_from(next()?).ok()?));
        let (uuid, nguid, eui64) = all().ok_or("a disk is named as UUID,NGUID,EUI64")?;
        Ok(Self { uuid: uuid.to_be_bytes(), nguid: nguid.to_be_bytes(), eui64: eui64.to_be_bytes() })
    }
}

/// What is said where one of several was taken and none was asked for.
pub(crate) fn taken_of(nqn: &Nqn, taken: Nsid, namespaces: &[Namespace]) -> Option<String> {
    (namespaces.len() > 1).then(|| {
        let listed = listed(namespaces);
        format!("{nqn} has several namespaces: {listed}. This is {taken}; another is chosen by --nsid")
    })
}

fn listed(namespaces: &[Namespace]) -> String {
    let shown = |it: &Namespace| format!("{} ({})", it.nsid, human(it.geometry.bytes()));
    let listed = namespaces.iter().take(LISTED_MAX).map(shown).collect::<Vec<_>>().join(", ");
    match namespaces.len().saturating_sub(LISTED_MAX) {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}

/// What nvme-cli and the kernel call a state of Asymmetric Namespace Access.
pub(crate) fn ana_name(state: AnaState) -> &'static str {
    match state {
        AnaState::OPTIMIZED => "optimized",
        AnaState::NON_OPTIMIZED => "non-optimized",
        AnaState::INACCESSIBLE => "inaccessible",
        AnaState::PERSISTENT_LOSS => "persistent-loss",
        AnaState::CHANGE => "change",
        _ => "invalid state",
    }
}

/// Its UUID, if it has one.
pub(crate) fn uuid(namespace: &Namespace) -> Option<String> {
    let uuid = Uuid::from_bytes(namespace.uuid);
    (!uuid.is_nil()).then(|| uuid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_disk_is_read_as_it_was_written() {
        let disk = DiskName { uuid: [0x0a; 16], nguid: [0; 16], eui64: [0xff; 8] };
        assert_eq!(disk.to_string().parse(), Ok(disk));
        for text in ["", "1,2", "1,2,x", "1,2,1ffffffffffffffff"] {
            assert!(text.parse::<DiskName>().is_err(), "{text}");
        }
    }
}
