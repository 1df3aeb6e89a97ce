//! The Identify Namespace data structure (NVM Command Set, "Identify Namespace Data Structure").

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A namespace of the NVM command set, as on the wire. Fields bear the standard's names.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields are the standard's, under the standard's names")]
pub struct IdentifyNamespace {
    pub nsze: U64,
    pub ncap: U64,
    pub nuse: U64,
    pub nsfeat: u8,
    /// LBA formats, 0's based.
    pub nlbaf_z: u8,
    pub flbas: u8,
    pub mc: u8,
    pub dpc: u8,
    pub dps: u8,
    pub nmic: u8,
    pub rescap: u8,
    pub fpi: u8,
    pub dlfeat: u8,
    pub nawun_z: U16,
    pub nawupf_z: U16,
    pub nacwu_z: U16,
    pub nabsn_z: U16,
    pub nabo: U16,
    pub nabspf_z: U16,
    pub noiob: U16,
    pub nvmcap: [u8; 16],
    pub npwg_z: U16,
    pub npwa_z: U16,
    pub npdg_z: U16,
    pub npda_z: U16,
    pub nows_z: U16,
    pub mssrl: U16,
    pub mcl: U32,
    pub msrc_z: u8,
    reserved0: [u8; 11],
    pub anagrpid: U32,
    reserved1: [u8; 3],
    pub nsattr: u8,
    pub nvmsetid: U16,
    pub endgid: U16,
    pub nguid: [u8; 16],
    pub eui64: [u8; 8],
    pub lbaf: [LbaFormat; 64],
    pub vendor: [u8; 3712],
}

/// An LBA format, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LbaFormat {
    /// Metadata bytes a block.
    pub ms: U16,
    /// Block size, a power of two.
    pub lbads: u8,
    /// Relative performance.
    pub rp: u8,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<IdentifyNamespace>() == super::LEN);
    assert!(offset_of!(IdentifyNamespace, nmic) == 30);
    assert!(offset_of!(IdentifyNamespace, dlfeat) == 33);
    assert!(offset_of!(IdentifyNamespace, nvmcap) == 48);
    assert!(offset_of!(IdentifyNamespace, npwg_z) == 64);
    assert!(offset_of!(IdentifyNamespace, mssrl) == 74);
    assert!(offset_of!(IdentifyNamespace, anagrpid) == 92);
    assert!(offset_of!(IdentifyNamespace, nsattr) == 99);
    assert!(offset_of!(IdentifyNamespace, nguid) == 104);
    assert!(offset_of!(IdentifyNamespace, eui64) == 120);
    assert!(offset_of!(IdentifyNamespace, lbaf) == 128);
    assert!(offset_of!(IdentifyNamespace, vendor) == 384);
};

/// NSFEAT: namespace features.
pub mod nsfeat {
    /// Thin provisioning: NCAP may be less than NSZE.
    pub const THIN_PROVISIONING: u8 = 1 << 0;
    /// NPWG, NPWA, NPDG, NPDA and NOWS say something.
    pub const OPTIMAL_IO: u8 = 1 << 4;
}

impl IdentifyNamespace {
    /// The LBA format in use; `None` when FLBAS names one that is not there, or a block size that no namespace has.
    #[must_use]
    pub fn format(&self) -> Option<LbaFormat> {
        let index = usize::from(self.flbas & 0xf | self.flbas >> 1 & 0x30);
        let format = *self.lbaf.get(index)?;
        (index <= usize::from(self.nlbaf_z) && (9..=16).contains(&format.lbads)).then_some(format)
    }

    /// Reads of deallocated blocks give zeroes (DLFEAT bits 2:0 are 001b).
    #[must_use]
    pub fn reads_zeroes_when_deallocated(&self) -> bool {
        self.dlfeat & 0b111 == 0b001
    }
}

/// A namespace, independent of its I/O command set (CNS 08h), as on the wire.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields are the standard's, under the standard's names")]
pub struct IndependentNamespace {
    pub nsfeat: u8,
    pub nmic: u8,
    pub rescap: u8,
    pub fpi: u8,
    pub anagrpid: U32,
    pub nsattr: u8,
    reserved0: u8,
    pub nvmsetid: U16,
    pub endgid: U16,
    pub nstat: u8,
    reserved1: [u8; 4081],
}

const _: () = assert!(size_of::<IndependentNamespace>() == super::LEN);
