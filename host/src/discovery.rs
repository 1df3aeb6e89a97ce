//! The discovery log page.

use alloc::string::String;
use alloc::vec::Vec;

/// The discovery log page, as it was at one generation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiscoveryLog {
    /// GENCTR.
    pub generation: u64,
    /// Its entries, in the controller's order.
    pub entries: Vec<DiscoveryEntry>,
}

/// One way to a subsystem. Unknown codes stay numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// TRTYPE: 1 RDMA, 2 FC, 3 TCP, 254 loop.
    pub transport: u8,
    /// ADRFAM: 1 IPv4, 2 IPv6, 3 InfiniBand, 4 FC.
    pub address_family: u8,
    /// SUBTYPE: 1 referral to another discovery service, 2 NVM subsystem, 3 this discovery subsystem.
    pub subsystem_type: u8,
    /// TREQ.
    pub requirements: u8,
    /// PORTID.
    pub port: u16,
    /// CNTLID: 0xFFFF for the dynamic model.
    pub controller: u16,
    /// ASQSZ.
    pub admin_queue_entries: u16,
    /// EFLAGS.
    pub flags: u16,
    /// TRSVCID: the port, in decimal.
    pub service: String,
    /// TRADDR.
    pub address: String,
    /// SUBNQN.
    pub subsystem_nqn: String,
    /// TSAS for RDMA: QPTYPE, PRTYPE, CMS.
    pub rdma: [u8; 3],
}
