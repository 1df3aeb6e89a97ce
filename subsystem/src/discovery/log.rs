//! The discovery log page: what one host may find, written out only as far as it is read.

use super::{AddressFamily, DiscoveryView, Port, PortConcatenation, RdmaProviderType, Referral};
use crate::Nqn;
use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use nvme_proto::fabrics::discovery::{
    DiscoveryEntry, DiscoveryHeader, EFLAGS_DUPRETINFO, EFLAGS_EPCSD, RdmaAddressSubtype, SubsystemType,
    TransportType,
};
use zerocopy::IntoBytes;

/// Bytes of the header, and of each entry.
const RECORD_LEN: usize = DiscoveryEntry::LEN;
/// PORTID of an entry that is on no port of ours.
const NO_PORT: u16 = 0;

const _: () = assert!(DiscoveryHeader::LEN == RECORD_LEN);

/// Where a host connected: what it finds depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Through {
    /// The port.
    pub(crate) port: u16,
    /// Our address on it.
    pub(crate) local: IpAddr,
}

/// The discovery log of one host that came through one of our ports.
#[derive(Debug, PartialEq, Eq)]
pub struct DiscoveryLog {
    /// Of the view that it is made of.
    version: u64,
    /// GENCTR: the view that this host last found something else in.
    generation: u64,
    through: Through,
    /// Those of the port that the host came through come first, and the referrals.
    entries: Vec<Entry>,
    /// How many those are.
    port_local: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Entry {
    Subsystem(Nqn, Arc<Port>),
    /// The discovery subsystem itself. `same`: whoever connects there finds what this host finds.
    Current {
        nqn: Nqn,
        port: Arc<Port>,
        same: bool,
    },
    Referral(Referral),
}

impl DiscoveryView {
    /// What this host may find that came this way.
    pub(crate) fn log_for(&self, host_nqn: &Nqn, through: Through) -> DiscoveryLog {
        let mut entries = Vec::new();
        self.add_ports(&mut entries, host_nqn, through, true);
        entries.extend(self.referrals.iter().copied().map(Entry::Referral));
        let port_local = entries.len();
        self.add_ports(&mut entries, host_nqn, through, false);
        let version = self.version;
        DiscoveryLog { version, generation: version, through, entries, port_local }
    }

    /// The entries of the port that the host came through, or of the others.
    fn add_ports(&self, entries: &mut Vec<Entry>, host_nqn: &Nqn, through: Through, own: bool) {
        for view in self.ports.iter().filter(|view| (view.port.id == through.port) == own) {
            let Some(port) = view.port.seen_from(through.local) else { continue };
            let allowed = view.subsystems.iter().filter(|(_, hosts)| hosts.allows(host_nqn));
            entries.extend(allowed.map(|(nqn, _)| Entry::Subsystem(*nqn, Arc::clone(&port))));
            if self.nqn != Nqn::DISCOVERY && port.discovery {
                let same = self.is_same_from(&port, through.local);
                entries.push(Entry::Current { nqn: self.nqn, port, same });
            }
        }
    }

    /// Whether a host that comes through this port finds every port as one that came through `local`.
    fn is_same_from(&self, port: &Port, local: IpAddr) -> bool {
        let there = port.address.parse().unwrap_or(local);
        self.ports.iter().all(|view| view.port.seen_from(there) == view.port.seen_from(local))
    }
}

impl DiscoveryLog {
    /// Whether the view is newer than the one that it is made of.
    pub(crate) fn is_older_than(&self, view: &DiscoveryView) -> bool {
        self.version < view.version
    }

    /// GENCTR. It only grows, also over a restart ([`crate::Options::discovery_generation`]).
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The log of the same host in another view.
    pub(crate) fn renewed(&self, view: &DiscoveryView, host_nqn: &Nqn) -> Self {
        let new = view.log_for(host_nqn, self.through);
        let generation = if new.finds_the_same(self) { self.generation } else { new.generation };
        Self { generation, ..new }
    }

    /// Entries of the page, or of its part that is about the port that the host came through, and referrals.
    fn count(&self, port_local: bool) -> usize {
        if port_local { self.port_local } else { self.entries.len() }
    }

    /// Bytes of the page.
    pub(crate) fn len(&self, port_local: bool) -> u64 {
        (self.count(port_local) as u64 + 1) * RECORD_LEN as u64
    }

    /// Whether the host finds the same in both.
    pub(crate) fn finds_the_same(&self, other: &Self) -> bool {
        self.entries == other.entries
    }

    /// Copies the page's bytes from `from` on; zeroes behind its end.
    pub(crate) fn read(&self, port_local: bool, from: u64, out: &mut [u8]) {
        let mut position = from;
        let mut out = out;
        while !out.is_empty() {
            let (index, within) = (position / RECORD_LEN as u64, (position % RECORD_LEN as u64) as usize);
            let len = out.len().min(RECORD_LEN - within);
            let (piece, rest) = out.split_at_mut(len);
            piece.copy_from_slice(&self.record(port_local, index)[within..within + len]);
            position = position.saturating_add(len as u64);
            out = rest;
        }
    }

    /// The header is record 0, the first entry record 1.
    fn record(&self, port_local: bool, index: u64) -> [u8; RECORD_LEN] {
        let mut bytes = [0; RECORD_LEN];
        let entries = &self.entries[..self.count(port_local)];
        match index.checked_sub(1) {
            None => {
                let header = DiscoveryHeader::new(self.generation(), entries.len() as u64);
                bytes.copy_from_slice(header.as_bytes());
            }
            Some(entry) => {
                if let Some(entry) = usize::try_from(entry).ok().and_then(|entry| entries.get(entry)) {
                    bytes.copy_from_slice(entry.emit().as_bytes());
                }
            }
        }
        bytes
    }
}

impl Entry {
    fn emit(&self) -> DiscoveryEntry {
        match self {
            Self::Subsystem(nqn, port) => of_port(SubsystemType::NVM_SUBSYSTEM, nqn, port),
            Self::Current { nqn, port, same } => {
                let mut entry = of_port(SubsystemType::CURRENT_DISCOVERY, nqn, port);
                entry.eflags = (EFLAGS_EPCSD | if *same { EFLAGS_DUPRETINFO } else { 0 }).into();
                entry
            }
            Self::Referral(referral) => of_referral(referral),
        }
    }
}

fn of_port(subtype: SubsystemType, nqn: &Nqn, port: &Port) -> DiscoveryEntry {
    let Port { transport, family, address, service, id, .. } = port;
    let entry = DiscoveryEntry::new(*transport, subtype, *family, address, service, *id, nqn);
    let entry = with_rdma(entry, port.rdma_provider);
    match (port.requires_tls, port.concatenation) {
        (true, _) => entry.with_required_tls(),
        (false, PortConcatenation::Required) => entry.with_tls_by_concatenation(),
        (false, _) => entry,
    }
}

/// What the other target can do beyond being there is not known here.
fn of_referral(referral: &Referral) -> DiscoveryEntry {
    let Referral { transport, address, nqn } = referral;
    let family = if address.is_ipv4() { AddressFamily::IPV4 } else { AddressFamily::IPV6 };
    let (ip, service) = (address.ip().to_string(), address.port().to_string());
    let subtype = SubsystemType::REFERRAL;
    let mut entry = DiscoveryEntry::new(*transport, subtype, family, &ip, &service, NO_PORT, nqn);
    entry.treq = 0;
    with_rdma(entry, RdmaProviderType::NO_PROVIDER_SPECIFIED)
}

fn with_rdma(entry: DiscoveryEntry, provider: RdmaProviderType) -> DiscoveryEntry {
    if entry.trtype == TransportType::RDMA {
        entry.with_rdma_subtype(RdmaAddressSubtype::new(provider))
    } else {
        entry
    }
}
