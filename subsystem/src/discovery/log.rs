//! The discovery log page: what one host may find, written out only as far as it is read.

use super::Port;
use crate::subsystem::HostAccess;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Bytes of the header, and of each entry.
const RECORD_LEN: usize = 1024;

/// Everything that can be found, for every host: immutable, replaced as a whole.
#[derive(Debug, PartialEq, Eq)]
pub struct DiscoveryView {
    pub(crate) generation: u64,
    pub(crate) records: Vec<Record>,
}

/// A subsystem on a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) nqn: Arc<str>,
    pub(crate) hosts: Arc<HostAccess>,
    pub(crate) port: Arc<Port>,
}

/// The discovery log of one host.
#[derive(Debug, PartialEq, Eq)]
pub struct DiscoveryLog {
    generation: u64,
    records: Vec<Record>,
}

impl DiscoveryView {
    /// What this host may find.
    pub(crate) fn log_for(&self, host_nqn: &str) -> DiscoveryLog {
        let records = self.records.iter().filter(|record| record.hosts.allows(host_nqn)).cloned().collect();
        DiscoveryLog { generation: self.generation, records }
    }
}

impl DiscoveryLog {
    /// Copies the log's bytes from `from` on; zeroes behind its end.
    pub(crate) fn read(&self, from: u64, out: &mut [u8]) {
        let mut position = from;
        let mut out = out;
        while !out.is_empty() {
            let (index, within) = (position / RECORD_LEN as u64, (position % RECORD_LEN as u64) as usize);
            let len = out.len().min(RECORD_LEN - within);
            let (piece, rest) = out.split_at_mut(len);
            let record = self.record(index);
            piece.copy_from_slice(&record[within..within + len]);
            position = position.saturating_add(len as u64);
            out = rest;
        }
    }

    /// The header is record 0, the first entry record 1.
    fn record(&self, index: u64) -> [u8; RECORD_LEN] {
        let Some(entry) = index.checked_sub(1) else { return self.header() };
        let entry = usize::try_from(entry).ok().and_then(|entry| self.records.get(entry));
        entry.map_or([0; RECORD_LEN], Record::to_bytes)
    }

    fn header(&self) -> [u8; RECORD_LEN] {
        let mut header = [0; RECORD_LEN];
        header[0..8].copy_from_slice(&self.generation.to_le_bytes());
        header[8..16].copy_from_slice(&(self.records.len() as u64).to_le_bytes());
        header
    }
}

impl Record {
    fn to_bytes(&self) -> [u8; RECORD_LEN] {
        unimplemented!()
    }
}

/// Shortens nothing: lengths were checked when the port and the subsystem were defined.
pub(crate) type Text = String;
