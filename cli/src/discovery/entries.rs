//! A discovery log, as the engine wants it.

use super::engine::{Entry, Place};
use nvme_proto::fabrics::discovery::{AddressFamily, DiscoveryEntry, SubsystemType, TransportType};

/// TSAS of NVMe/TCP: no secure channel.
const NO_CHANNEL: u8 = 0;
/// TREQ: the secure channel, bits 1:0; it is required.
const CHANNEL: u8 = 0b11;
const CHANNEL_REQUIRED: u8 = 1;

/// What this host can connect to.
pub(super) fn entries(log: &[DiscoveryEntry]) -> Vec<Entry> {
    log.iter().filter_map(entry).collect()
}

fn entry(entry: &DiscoveryEntry) -> Option<Entry> {
    let transport = match entry.trtype {
        TransportType::TCP => "tcp",
        TransportType::RDMA => "rdma",
        _ => return None,
    };
    if !matches!(entry.adrfam, AddressFamily::IPV4 | AddressFamily::IPV6) {
        return None;
    }
    let port = entry.trsvcid().trim().parse().ok().filter(|port| *port != 0)?;
    let place = Place { transport: transport.to_owned(), address: entry.traddr().trim().to_owned(), port };
    match entry.subtype {
        SubsystemType::REFERRAL => Some(Entry::Referral(place)),
        SubsystemType::NVM_SUBSYSTEM => {
            let tls = entry.trtype == TransportType::TCP
                && entry.tsas[0] != NO_CHANNEL
                && entry.treq & CHANNEL == CHANNEL_REQUIRED;
            Some(Entry::Subsystem { nqn: entry.subnqn().ok()?.to_string(), place, tls })
        }
        _ => None,
    }
}
