//! The Identify Controller data structure (NVMe Base, "Identify Controller Data Structure").

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The controller, as on the wire. Fields bear the standard's names.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields are the standard's, under the standard's names")]
pub struct IdentifyController {
    pub vid: U16,
    pub ssvid: U16,
    pub sn: [u8; 20],
    pub mn: [u8; 40],
    pub fr: [u8; 8],
    pub rab: u8,
    pub ieee: [u8; 3],
    pub cmic: u8,
    pub mdts: u8,
    pub cntlid: U16,
    pub ver: U32,
    pub rtd3r: U32,
    pub rtd3e: U32,
    pub oaes: U32,
    pub ctratt: U32,
    pub rrls: U16,
    pub bpcap: u8,
    reserved0: u8,
    pub nssl: U32,
    reserved8: [u8; 2],
    pub plsi: u8,
    pub cntrltype: u8,
    pub fguid: [u8; 16],
    pub crdt1: U16,
    pub crdt2: U16,
    pub crdt3: U16,
    pub crcap: u8,
    pub ciu: u8,
    pub cirn: U64,
    reserved1: [u8; 109],
    pub nvmsr: u8,
    pub vwci: u8,
    pub mec: u8,
    pub oacs: U16,
    pub acl_z: u8,
    pub aerl_z: u8,
    pub frmw: u8,
    pub lpa: u8,
    pub elpe_z: u8,
    pub npss_z: u8,
    pub avscc: u8,
    pub apsta: u8,
    pub wctemp: U16,
    pub cctemp: U16,
    pub mtfa: U16,
    pub hmpre: U32,
    pub hmmin: U32,
    pub tnvmcap: [u8; 16],
    pub unvmcap: [u8; 16],
    pub rpmbs: U32,
    pub edstt: U16,
    pub dsto: u8,
    pub fwug: u8,
    pub kas: U16,
    pub hctma: U16,
    pub mntmt: U16,
    pub mxtmt: U16,
    pub sanicap: U32,
    pub hmminds: U32,
    pub hmmaxd: U16,
    pub nsetidmax: U16,
    pub endgidmax: U16,
    pub anatt: u8,
    pub anacap: u8,
    pub anagrpmax: U32,
    pub nanagrpid: U32,
    pub pels: U32,
    pub domainid: U16,
    pub kpioc: u8,
    reserved2: u8,
    pub mptfawr: U16,
    reserved9: [u8; 6],
    pub megcap: [u8; 16],
    pub tmpthha: u8,
    reserved3: u8,
    pub cqt: U16,
    pub cdpa: U16,
    pub mup: U16,
    pub ipmsr: U16,
    pub msmt: U16,
    reserved4: [u8; 116],
    pub sqes: u8,
    pub cqes: u8,
    pub maxcmd: U16,
    pub nn: U32,
    pub oncs: U16,
    pub fuses: U16,
    pub fna: u8,
    pub vwc: u8,
    pub awun_z: U16,
    pub awupf_z: U16,
    pub icsvscc: u8,
    pub nwpc: u8,
    pub acwu_z: U16,
    pub cdfs: U16,
    pub sgls: U32,
    pub mnan: U32,
    pub maxdna: [u8; 16],
    pub maxcna: U32,
    pub oaqd: U32,
    pub rhiri: u8,
    pub hirt: u8,
    pub cmmrtd: U16,
    pub nmmrtd: U16,
    pub minmrtg: u8,
    pub maxmrtg: u8,
    pub trattr: u8,
    reserved10: u8,
    pub mcudmq: U16,
    pub mnsudmq: U16,
    pub mcmr: U16,
    pub nmcmr: U16,
    pub mcdqpc: U16,
    reserved5: [u8; 180],
    pub subnqn: [u8; 256],
    reserved6: [u8; 768],
    pub ioccsz: U32,
    pub iorcsz: U32,
    pub icdoff: U16,
    pub fcatt: u8,
    pub msdbd: u8,
    pub ofcs: U16,
    pub dctype: u8,
    pub ccrl: u8,
    reserved7: [u8; 240],
    pub psd: [PowerStateDescriptor; 32],
    pub vs: [u8; 1024],
}

/// A power state, as on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PowerStateDescriptor {
    /// Maximum power, in centiwatts; in units of 0.1 mW when bit 0 of `flags` is set.
    pub mp: U16,
    reserved0: u8,
    /// Bit 0 the scale of `mp`, bit 1 "non-operational".
    pub flags: u8,
    /// Entry latency in microseconds.
    pub enlat: U32,
    /// Exit latency in microseconds.
    pub exlat: U32,
    /// Relative read throughput.
    pub rrt: u8,
    /// Relative read latency.
    pub rrl: u8,
    /// Relative write throughput.
    pub rwt: u8,
    /// Relative write latency.
    pub rwl: u8,
    /// Idle power.
    pub idlp: U16,
    /// Scale of `idlp`, in bits 7:6.
    pub ips: u8,
    reserved1: u8,
    /// Active power.
    pub actp: U16,
    /// Workload in bits 2:0, scale of `actp` in bits 7:6.
    pub apws: u8,
    /// Emergency power fail recovery time.
    pub epfrt: u8,
    /// Forced quiescence vault time.
    pub fqvt: u8,
    /// Emergency power fail vault time.
    pub epfvt: u8,
    /// Scale of `epfrt` in bits 3:0, of `fqvt` in bits 7:4.
    pub epfrfqvts: u8,
    /// Scale of `epfvt` in bits 3:0.
    pub epfvts: u8,
    reserved2: [u8; 4],
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<IdentifyController>() == super::LEN);
    assert!(offset_of!(IdentifyController, mdts) == 77);
    assert!(offset_of!(IdentifyController, cntlid) == 78);
    assert!(offset_of!(IdentifyController, ver) == 80);
    assert!(offset_of!(IdentifyController, ctratt) == 96);
    assert!(size_of::<PowerStateDescriptor>() == 32 && offset_of!(PowerStateDescriptor, actp) == 20);
    assert!(offset_of!(PowerStateDescriptor, epfvts) == 27);
    assert!(offset_of!(IdentifyController, nssl) == 104);
    assert!(offset_of!(IdentifyController, plsi) == 110);
    assert!(offset_of!(IdentifyController, cntrltype) == 111);
    assert!(offset_of!(IdentifyController, ciu) == 135);
    assert!(offset_of!(IdentifyController, cirn) == 136);
    assert!(offset_of!(IdentifyController, oacs) == 256);
    assert!(offset_of!(IdentifyController, wctemp) == 266);
    assert!(offset_of!(IdentifyController, tnvmcap) == 280);
    assert!(offset_of!(IdentifyController, kas) == 320);
    assert!(offset_of!(IdentifyController, anatt) == 342);
    assert!(offset_of!(IdentifyController, nanagrpid) == 348);
    assert!(offset_of!(IdentifyController, mptfawr) == 360);
    assert!(offset_of!(IdentifyController, megcap) == 368);
    assert!(offset_of!(IdentifyController, cqt) == 386);
    assert!(offset_of!(IdentifyController, msmt) == 394);
    assert!(offset_of!(IdentifyController, sqes) == 512);
    assert!(offset_of!(IdentifyController, maxcmd) == 514);
    assert!(offset_of!(IdentifyController, nn) == 516);
    assert!(offset_of!(IdentifyController, oncs) == 520);
    assert!(offset_of!(IdentifyController, fuses) == 522);
    assert!(offset_of!(IdentifyController, vwc) == 525);
    assert!(offset_of!(IdentifyController, sgls) == 536);
    assert!(offset_of!(IdentifyController, mnan) == 540);
    assert!(offset_of!(IdentifyController, rhiri) == 568);
    assert!(offset_of!(IdentifyController, mcdqpc) == 586);
    assert!(offset_of!(IdentifyController, subnqn) == 768);
    assert!(offset_of!(IdentifyController, ioccsz) == 1792);
    assert!(offset_of!(IdentifyController, icdoff) == 1800);
    assert!(offset_of!(IdentifyController, msdbd) == 1803);
    assert!(offset_of!(IdentifyController, ofcs) == 1804);
    assert!(offset_of!(IdentifyController, ccrl) == 1807);
    assert!(offset_of!(IdentifyController, psd) == 2048);
    assert!(offset_of!(IdentifyController, vs) == 3072);
};

macro_rules! bits {
    ($(#[$doc:meta])* $module:ident: $repr:ty { $($(#[$vdoc:meta])* $name:ident = $value:expr,)* }) => {
        $(#[$doc])*
        pub mod $module {
            $($(#[$vdoc])* pub const $name: $repr = $value;)*
        }
    };
}

bits! {
    /// CMIC: multi-path and sharing.
    cmic: u8 {
        /// The subsystem may have several ports.
        MULTI_PORT = 1 << 0,
        /// The subsystem may have several controllers.
        MULTI_CONTROLLER = 1 << 1,
        /// Asymmetric namespace access is reported.
        ANARS = 1 << 3,
    }
}
bits! {
    /// CTRATT: controller attributes.
    ctratt: u32 {
        /// 128-bit host identifiers.
        HOST_ID_128 = 1 << 0,
        /// Traffic based keep alive.
        TRAFFIC_BASED_KEEP_ALIVE = 1 << 6,
        /// Extended LBA formats.
        ELBAS = 1 << 15,
    }
}
bits! {
    /// OACS: optional admin commands.
    oacs: u16 {
        /// Namespace management.
        NAMESPACE_MANAGEMENT = 1 << 3,
        /// Directives.
        DIRECTIVES = 1 << 5,
    }
}
bits! {
    /// LPA: log page attributes.
    lpa: u8 {
        /// SMART per namespace.
        SMART_PER_NAMESPACE = 1 << 0,
        /// Commands supported and effects.
        EFFECTS = 1 << 1,
        /// Extended data: the 32-bit number of dwords and the offset.
        EXTENDED_DATA = 1 << 2,
        /// Supported log pages and the like.
        SUPPORTED_LOG_PAGES = 1 << 5,
    }
}
bits! {
    /// ONCS: optional NVM commands.
    oncs: u16 {
        /// Compare.
        COMPARE = 1 << 0,
        /// Write Uncorrectable.
        WRITE_UNCORRECTABLE = 1 << 1,
        /// Dataset Management.
        DATASET_MANAGEMENT = 1 << 2,
        /// Write Zeroes.
        WRITE_ZEROES = 1 << 3,
        /// Save and Select in Get and Set Features.
        SAVE_SELECT = 1 << 4,
        /// Reservations.
        RESERVATIONS = 1 << 5,
        /// Timestamp.
        TIMESTAMP = 1 << 6,
        /// Verify.
        VERIFY = 1 << 7,
        /// Copy.
        COPY = 1 << 8,
    }
}
bits! {
    /// FUSES: fused operations.
    fuses: u16 {
        /// Compare and Write.
        COMPARE_AND_WRITE = 1 << 0,
    }
}
bits! {
    /// SGLS: SGL support.
    sgls: u32 {
        /// SGLs of any alignment.
        SUPPORTED = 0b01,
        /// Keyed data blocks.
        KSDBDS = 1 << 2,
        /// A bit bucket.
        BIT_BUCKET = 1 << 16,
        /// Addresses in data block and segment descriptors may be offsets (in-capsule data).
        SAOS = 1 << 20,
        /// Transport data blocks.
        TSDBDS = 1 << 21,
    }
}
bits! {
    /// VWC: volatile write cache.
    vwc: u8 {
        /// There is one.
        PRESENT = 1 << 0,
        /// Flush with all ones as NSID flushes every namespace.
        FLUSH_ALL = 0b11 << 1,
    }
}

impl IdentifyController {
    /// All zeroes, texts blank.
    #[must_use]
    pub fn new() -> Self {
        let mut identify = Self::new_zeroed();
        identify.sn.fill(b' ');
        identify.mn.fill(b' ');
        identify.fr.fill(b' ');
        identify
    }

    /// Writes ASCII into one of the blank-padded fields, cut to its length.
    pub fn set_text(field: &mut [u8], text: &str) {
        field.fill(b' ');
        for (to, from) in field.iter_mut().zip(text.bytes()) {
            *to = from;
        }
    }

    /// Reads one of the blank-padded ASCII fields; what is not printable ends it.
    #[must_use]
    pub fn text(field: &[u8]) -> &str {
        let end = field.iter().position(|b| !(0x20..0x7f).contains(b)).unwrap_or(field.len());
        core::str::from_utf8(&field[..end]).unwrap_or_default().trim_end()
    }
}

impl Default for IdentifyController {
    fn default() -> Self {
        Self::new()
    }
}
