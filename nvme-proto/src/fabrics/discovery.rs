//! The discovery log page (NVMe Base, "Discovery Log Page"; log page identifier 70h).

use crate::ident::Cntlid;
use crate::nqn::{FIELD_LEN, Nqn, NqnError};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The page's header, as on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiscoveryHeader {
    /// Counts changes of the page: a reader that sees it move reads again.
    pub genctr: U64,
    /// Entries behind the header.
    pub numrec: U64,
    /// Record format: 0.
    pub recfmt: U16,
    reserved: [u8; 1006],
}

/// An entry, as on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiscoveryEntry {
    /// Transport.
    pub trtype: TransportType,
    /// Address family.
    pub adrfam: AddressFamily,
    /// What is there.
    pub subtype: SubsystemType,
    /// Secure channel (bits 1:0), and the bits of `TREQ_*`.
    pub treq: u8,
    /// The port, the same for all entries of one.
    pub portid: U16,
    /// Controller: [`Cntlid::DYNAMIC`].
    pub cntlid: U16,
    /// Entries that the admin queue may have.
    pub asqsz: U16,
    /// EFLAGS.
    pub eflags: U16,
    reserved0: [u8; 20],
    /// Service: for RDMA the port in decimal ASCII.
    pub trsvcid: [u8; 32],
    reserved1: [u8; 192],
    /// Subsystem NQN.
    pub subnqn: [u8; FIELD_LEN],
    /// Address in ASCII.
    pub traddr: [u8; 256],
    /// Transport specific address subtype; of RDMA: [`RdmaAddressSubtype`].
    pub tsas: [u8; 256],
}

/// Transport specific address subtype of RDMA, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RdmaAddressSubtype {
    /// Queue pair service type.
    pub qptype: RdmaQpType,
    /// Provider.
    pub prtype: RdmaProviderType,
    /// Connection management service.
    pub cms: RdmaCms,
    reserved: [u8; 5],
    /// Partition key (InfiniBand).
    pub pkey: U16,
}

const _: () = {
    assert!(size_of::<DiscoveryHeader>() == 1024 && size_of::<DiscoveryEntry>() == 1024);
    assert!(core::mem::offset_of!(DiscoveryEntry, trsvcid) == 32);
    assert!(core::mem::offset_of!(DiscoveryEntry, subnqn) == 256);
    assert!(core::mem::offset_of!(DiscoveryEntry, traddr) == 512);
    assert!(core::mem::offset_of!(DiscoveryEntry, tsas) == 768);
    assert!(core::mem::offset_of!(RdmaAddressSubtype, pkey) == 8);
};

open_enum! {
    /// TRTYPE.
    pub struct TransportType: u8 {
        /// RDMA.
        RDMA = 1,
        /// Fibre Channel.
        FC = 2,
        /// TCP.
        TCP = 3,
        /// Within the host.
        INTRA_HOST = 254,
    }
}

open_enum! {
    /// ADRFAM.
    pub struct AddressFamily: u8 {
        /// IPv4.
        IPV4 = 1,
        /// IPv6.
        IPV6 = 2,
        /// InfiniBand.
        INFINIBAND = 3,
        /// Fibre Channel.
        FC = 4,
        /// Intra-host transport.
        INTRA_HOST = 254,
    }
}

open_enum! {
    /// SUBTYPE.
    pub struct SubsystemType: u8 {
        /// A referral to another discovery service.
        REFERRAL = 1,
        /// An NVM subsystem.
        NVM_SUBSYSTEM = 2,
        /// The discovery subsystem that was asked.
        CURRENT_DISCOVERY = 3,
    }
}

open_enum! {
    /// RDMA_QPTYPE.
    pub struct RdmaQpType: u8 {
        /// Reliable connected.
        RELIABLE_CONNECTED = 1,
        /// Reliable datagram.
        RELIABLE_DATAGRAM = 2,
    }
}

open_enum! {
    /// RDMA_PRTYPE.
    pub struct RdmaProviderType: u8 {
        /// Not said.
        NO_PROVIDER_SPECIFIED = 1,
        /// InfiniBand.
        INFINIBAND = 2,
        /// RoCE.
        ROCE = 3,
        /// RoCE version 2.
        ROCE_V2 = 4,
        /// iWARP.
        IWARP = 5,
    }
}

open_enum! {
    /// RDMA_CMS.
    pub struct RdmaCms: u8 {
        /// The RDMA_IP connection management service.
        RDMA_IP_CM = 1,
    }
}

/// TREQ bits 1:0: whether a secure channel is needed.
pub const TREQ_SECURE_CHANNEL: u8 = 0b11;
/// TREQ bits 1:0, 01b: it is required.
pub const TREQ_SECURE_CHANNEL_REQUIRED: u8 = 0b01;
/// TREQ: a secure channel is not required.
pub const TREQ_SECURE_CHANNEL_NOT_REQUIRED: u8 = 0b10;
/// SECTYPE, the first byte of TSAS for TCP: TLS 1.3.
pub const SECTYPE_TLS13: u8 = 2;
/// TREQ bit 3 (ZHIDS): a host identifier of 0 is accepted.
pub const TREQ_ZHIDS: u8 = 1 << 3;
/// TREQ bits 5:4 (TASC), 01b: the host must authenticate.
pub const TREQ_TASC_AUTHENTICATION: u8 = 0b01 << 4;
/// TREQ bits 5:4 (TASC), 10b: the host must authenticate and concatenate a secure channel.
pub const TREQ_TASC_CONCATENATION: u8 = 0b10 << 4;
/// TREQ bit 2: SQ flow control can be off.
pub const TREQ_SQFCD: u8 = 1 << 2;
/// EFLAGS bit 0: the same information comes from every port of this subsystem.
pub const EFLAGS_DUPRETINFO: u16 = 1 << 0;
/// EFLAGS bit 1: explicit persistent connections are supported.
pub const EFLAGS_EPCSD: u16 = 1 << 1;

impl DiscoveryHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 1024;

    /// A header.
    #[must_use]
    pub fn new(genctr: u64, numrec: u64) -> Self {
        Self { genctr: genctr.into(), numrec: numrec.into(), ..Self::new_zeroed() }
    }
}

impl DiscoveryEntry {
    /// Bytes on the wire.
    pub const LEN: usize = 1024;

    /// An entry for a dynamic controller behind this transport. Texts longer than their fields are cut.
    #[must_use]
    pub fn new(
        trtype: TransportType,
        subtype: SubsystemType,
        adrfam: AddressFamily,
        traddr: &str,
        trsvcid: &str,
        portid: u16,
        subnqn: &Nqn,
    ) -> Self {
        let mut entry = Self {
            trtype,
            adrfam,
            subtype,
            treq: TREQ_SQFCD,
            portid: portid.into(),
            cntlid: Cntlid::DYNAMIC.0.into(),
            asqsz: 32.into(),
            subnqn: subnqn.to_field(),
            ..Self::new_zeroed()
        };
        fill(&mut entry.trsvcid, trsvcid);
        fill(&mut entry.traddr, traddr);
        entry
    }

    /// The same, over TCP, where hosts must connect with TLS 1.3.
    #[must_use]
    pub fn with_required_tls(mut self) -> Self {
        self.treq = self.treq & !TREQ_SECURE_CHANNEL | TREQ_SECURE_CHANNEL_REQUIRED;
        self.tsas[0] = SECTYPE_TLS13;
        self
    }

    /// The same, over TCP, where TLS 1.3 need not be there from the first byte: hosts take that as a sign to authenticate,
    /// and to come back with the key that this makes (secure channel concatenation).
    #[must_use]
    pub fn with_tls_by_concatenation(mut self) -> Self {
        self.treq = self.treq & !TREQ_SECURE_CHANNEL | TREQ_SECURE_CHANNEL_NOT_REQUIRED;
        self.tsas[0] = SECTYPE_TLS13;
        self
    }

    /// Whether hosts must connect with TLS 1.3.
    #[must_use]
    pub fn requires_tls(&self) -> bool {
        self.trtype == TransportType::TCP
            && self.tsas[0] == SECTYPE_TLS13
            && self.treq & TREQ_SECURE_CHANNEL == TREQ_SECURE_CHANNEL_REQUIRED
    }

    /// The same with this subtype of its RDMA address.
    #[must_use]
    pub fn with_rdma_subtype(mut self, subtype: RdmaAddressSubtype) -> Self {
        let bytes = subtype.as_bytes();
        self.tsas[..bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Subtype of its RDMA address.
    #[must_use]
    pub fn rdma_subtype(&self) -> RdmaAddressSubtype {
        RdmaAddressSubtype::read_from_prefix(&self.tsas)
            .map_or_else(|_| RdmaAddressSubtype::new_zeroed(), |(s, _)| s)
    }

    /// The subsystem's name.
    ///
    /// # Errors
    /// [`NqnError`] when the field holds none.
    pub fn subnqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_field(&self.subnqn)
    }

    /// The address; empty when it is not printable ASCII.
    #[must_use]
    pub fn traddr(&self) -> &str {
        text(&self.traddr)
    }

    /// The service; empty when it is not printable ASCII.
    #[must_use]
    pub fn trsvcid(&self) -> &str {
        text(&self.trsvcid)
    }
}

impl RdmaAddressSubtype {
    /// Reliable connections of this provider, set up by RDMA_CM.
    #[must_use]
    pub fn new(prtype: RdmaProviderType) -> Self {
        Self {
            qptype: RdmaQpType::RELIABLE_CONNECTED,
            prtype,
            cms: RdmaCms::RDMA_IP_CM,
            ..Self::new_zeroed()
        }
    }
}

/// Copies ASCII into a field, cut to its length, the rest NUL.
fn fill(field: &mut [u8], text: &str) {
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from;
    }
}

/// Printable ASCII up to the first NUL, without blanks at its end (targets pad with either).
fn text(field: &[u8]) -> &str {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    let text = core::str::from_utf8(&field[..end]).unwrap_or_default();
    if text.bytes().all(|b| (0x20..0x7f).contains(&b)) { text.trim_end() } else { "" }
}

/// The port of a TRSVCID: decimal, 1 to 65535, no leading zeros.
#[must_use]
pub fn parse_trsvcid(text: &str) -> Option<u16> {
    let plain = !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_entry_says_what_was_put_in() {
        let nqn: Nqn = "nqn.2026-11.com.example:a".parse().unwrap();
        let entry = DiscoveryEntry::new(
            TransportType::RDMA,
            SubsystemType::NVM_SUBSYSTEM,
            AddressFamily::IPV4,
            "192.0.2.1",
            "4420",
            7,
            &nqn,
        )
        .with_rdma_subtype(RdmaAddressSubtype::new(RdmaProviderType::IWARP));
        assert_eq!(entry.as_bytes()[..12], [1, 1, 2, 4, 7, 0, 0xff, 0xff, 32, 0, 0, 0]);
        assert_eq!((entry.subnqn(), entry.traddr(), entry.trsvcid()), (Ok(nqn), "192.0.2.1", "4420"));
        assert_eq!(entry.tsas[..3], [1, 5, 1]);
        assert!(!entry.requires_tls());
    }

    #[test]
    fn an_entry_says_whether_tls_is_required() {
        let nqn: Nqn = "nqn.2026-11.com.example:a".parse().unwrap();
        let (subtype, family) = (SubsystemType::NVM_SUBSYSTEM, AddressFamily::IPV4);
        let plain = DiscoveryEntry::new(TransportType::TCP, subtype, family, "192.0.2.1", "4420", 7, &nqn);
        let secure = plain.with_required_tls();
        assert_eq!((plain.treq, plain.tsas[0], plain.requires_tls()), (4, 0, false));
        assert_eq!((secure.treq, secure.tsas[0], secure.requires_tls()), (5, 2, true));
        let later = plain.with_tls_by_concatenation();
        assert_eq!((later.treq, later.tsas[0], later.requires_tls()), (6, 2, false));
    }

    #[test]
    fn a_service_is_a_plain_number() {
        assert_eq!(parse_trsvcid("4420"), Some(4420));
        for text in ["", "0", "04420", "65536", "+1", "44a", "４"] {
            assert_eq!(parse_trsvcid(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_entry(bytes in prop::collection::vec(any::<u8>(), 1024)) {
            let entry = DiscoveryEntry::read_from_bytes(&bytes).unwrap();
            let _ = (entry.subnqn(), entry.traddr(), entry.trsvcid(), entry.rdma_subtype());
        }
    }
}
