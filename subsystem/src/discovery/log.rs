//! The discovery log page: what one host may find, written out only as far as it is read.

use super::Port;
use crate::Nqn;
use crate::subsystem::HostAccess;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use nvme_proto::fabrics::discovery::{
    DiscoveryEntry, DiscoveryHeader, RdmaAddressSubtype, SubsystemType, TransportType,
};
use zerocopy::IntoBytes;

/// Bytes of the header, and of each entry.
const RECORD_LEN: usize = DiscoveryEntry::LEN;

const _: () = assert!(DiscoveryHeader::LEN == RECORD_LEN);

/// Everything that can be found, for every host: immutable, replaced as a whole.
#[derive(Debug, PartialEq, Eq)]
pub struct DiscoveryView {
    pub(crate) generation: u64,
    pub(crate) records: Vec<Record>,
}

/// A subsystem on a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) nqn: Nqn,
    pub(crate) hosts: Arc<HostAccess>,
    pub(crate) port: Arc<Port>,
}

/// The discovery log of one host that came through one of our addresses.
#[derive(Debug, PartialEq, Eq)]
pub struct DiscoveryLog {
    generation: u64,
    local: IpAddr,
    records: Vec<(Nqn, Arc<Port>)>,
}

impl DiscoveryView {
    /// What this host may find that came through this address of ours.
    pub(crate) fn log_for(&self, host_nqn: &Nqn, local: IpAddr) -> DiscoveryLog {
        let mut records = Vec::new();
        // Records of one port come one after the other.
        for of_port in self.records.chunk_by(|one, other| Arc::ptr_eq(&one.port, &other.port)) {
            let Some(port) = of_port.first().and_then(|record| record.port.seen_from(local)) else {
                continue;
            };
            let allowed = of_port.iter().filter(|record| record.hosts.allows(host_nqn));
            records.extend(allowed.map(|record| (record.nqn, Arc::clone(&port))));
        }
        DiscoveryLog { generation: self.generation, local, records }
    }
}

impl DiscoveryLog {
    /// GENCTR.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// The log of the same host in another view.
    pub(crate) fn renewed(&self, view: &DiscoveryView, host_nqn: &Nqn) -> Self {
        view.log_for(host_nqn, self.local)
    }

    /// Bytes of the whole page.
    pub(crate) fn len(&self) -> u64 {
        (self.records.len() as u64 + 1) * RECORD_LEN as u64
    }

    /// Whether the host finds the same in both.
    pub(crate) fn finds_the_same(&self, other: &Self) -> bool {
        self.records == other.records
    }

    /// Copies the page's bytes from `from` on; zeroes behind its end.
    pub(crate) fn read(&self, from: u64, out: &mut [u8]) {
        let mut position = from;
        let mut out = out;
        while !out.is_empty() {
            let (index, within) = (position / RECORD_LEN as u64, (position % RECORD_LEN as u64) as usize);
            let len = out.len().min(RECORD_LEN - within);
            let (piece, rest) = out.split_at_mut(len);
            piece.copy_from_slice(&self.record(index)[within..within + len]);
            position = position.saturating_add(len as u64);
            out = rest;
        }
    }

    /// The header is record 0, the first entry record 1.
    fn record(&self, index: u64) -> [u8; RECORD_LEN] {
        let mut bytes = [0; RECORD_LEN];
        match index.checked_sub(1) {
            None => {
                let header = DiscoveryHeader::new(self.generation, self.records.len() as u64);
                bytes.copy_from_slice(header.as_bytes());
            }
            Some(entry) => {
                if let Some((nqn, port)) =
                    usize::try_from(entry).ok().and_then(|entry| self.records.get(entry))
                {
                    bytes.copy_from_slice(entry_of(nqn, port).as_bytes());
                }
            }
        }
        bytes
    }
}

fn entry_of(nqn: &Nqn, port: &Port) -> DiscoveryEntry {
    let mut entry = DiscoveryEntry::new(
        port.transport,
        SubsystemType::NVM_SUBSYSTEM,
        port.family,
        &port.address,
        &port.service,
        port.id,
        nqn,
    );
    if port.transport == TransportType::RDMA {
        entry = entry.with_rdma_subtype(RdmaAddressSubtype::new(port.rdma_provider));
    }
    if port.requires_tls { entry.with_required_tls() } else { entry }
}
