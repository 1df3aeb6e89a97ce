//! The Identify Namespace data structure (NVM Command Set, "Identify Namespace Data Structure").

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A namespace of the NVM command set, as on the wire. Fields bear the standard's names. `nawun`, `nawupf`, `nacwu`,
/// `nabsn` and
/// `nabspf` are "0's based, with the exception of the value 0": 0 refers to the controller's value, or says that there is no
/// boundary.
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
    pub nawun: U16,
    pub nawupf: U16,
    pub nacwu: U16,
    pub nabsn: U16,
    pub nabo: U16,
    pub nabspf: U16,
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
    pub kpios: u8,
    pub nulbaf: u8,
    reserved0: u8,
    pub kpiodaag: U32,
    reserved2: [u8; 4],
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
    assert!(offset_of!(IdentifyNamespace, nulbaf) == 82);
    assert!(offset_of!(IdentifyNamespace, kpiodaag) == 84);
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
    /// NSABP: NAWUN, NAWUPF and NACWU are valid.
    pub const ATOMIC: u8 = 1 << 1;
    /// OPTPERF: NPWG, NPWA and NOWS are valid if any of the two bits is set.
    pub const OPTPERF: u8 = 0b11 << 4;
    /// OPTPERF 01b: NPWG, NPWA, NPDG, NPDA and NOWS are valid. The only value before version 2.1.
    pub const OPTPERF_NPDG: u8 = 0b01 << 4;
}

impl IdentifyNamespace {
    /// The LBA format in use; `None` when FLBAS names one that is not there, or a block size that no namespace has.
    #[must_use]
    pub fn format(&self) -> Option<LbaFormat> {
        let formats = usize::from(self.nlbaf_z) + 1 + usize::from(self.nulbaf);
        // With 16 formats or fewer, the upper bits of the index (FIDXU) mean nothing.
        let upper = if formats > 16 { self.flbas >> 1 & 0x30 } else { 0 };
        let index = usize::from(self.flbas & 0xf | upper);
        let format = *self.lbaf.get(index)?;
        (index < formats && (9..=16).contains(&format.lbads)).then_some(format)
    }

    /// Reads of deallocated blocks give zeroes (DLFEAT bits 2:0 are 001b).
    #[must_use]
    pub fn reads_zeroes_when_deallocated(&self) -> bool {
        self.dlfeat & 0b111 == 0b001
    }
}

/// NSFEAT of [`IndependentNamespace`].
pub mod independent_nsfeat {
    /// VWCNP: the namespace has no volatile write cache, whatever VWC of the controller says.
    pub const VWCNP: u8 = 1 << 5;
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

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn format_index_has_six_bits_only_with_more_than_sixteen_formats() {
        let mut id = IdentifyNamespace::new_zeroed();
        id.lbaf.iter_mut().zip(0..).for_each(|(format, at)| (format.lbads, format.rp) = (9, at));
        let mut index = |nlbaf_z, nulbaf, flbas| {
            (id.nlbaf_z, id.nulbaf, id.flbas) = (nlbaf_z, nulbaf, flbas);
            id.format().map(|format| format.rp)
        };
        assert_eq!(index(0, 0, 0x20), Some(0), "the upper bits are ignored with one format");
        assert_eq!(index(0, 1, 0x01), Some(1), "unique attribute formats count");
        assert_eq!(index(0, 0, 0x01), None);
        assert_eq!(index(15, 0, 0x6f), Some(15));
        assert_eq!(index(16, 0, 0x20), Some(16));
        assert_eq!(index(10, 10, 0x24), Some(20));
        assert_eq!(index(10, 10, 0x25), None);
    }
}
