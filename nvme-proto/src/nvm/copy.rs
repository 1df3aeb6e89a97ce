//! Copy (NVM Command Set).

use crate::ident::Nsid;
use core::mem::offset_of;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

open_enum! {
    /// Descriptor format: how the source ranges are written.
    pub struct DescriptorFormat: u8 {
        /// 32 bytes a range.
        FORMAT_0 = 0,
        /// 40 bytes a range: room for the long tags of 64-bit protection information.
        FORMAT_1 = 1,
        /// Format 0 with a namespace for each range.
        FORMAT_2 = 2,
        /// Format 1 with a namespace for each range.
        FORMAT_3 = 3,
    }
}

impl DescriptorFormat {
    /// Bytes of a range; `None` for formats that this crate does not know.
    #[must_use]
    pub const fn range_len(self) -> Option<usize> {
        match self {
            Self::FORMAT_0 | Self::FORMAT_2 => Some(size_of::<SourceRange0>()),
            Self::FORMAT_1 | Self::FORMAT_3 => Some(size_of::<SourceRange1>()),
            _ => None,
        }
    }

    /// Whether each range names its namespace. If not, all are in the namespace of the command.
    #[must_use]
    pub const fn names_namespaces(self) -> bool {
        matches!(self, Self::FORMAT_2 | Self::FORMAT_3)
    }
}

/// Copy. It is not called `Copy`, as that is a trait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyCommand {
    /// First block of the destination.
    pub sdlba: u64,
    /// Source ranges in its data, 1 to 256.
    pub ranges: u16,
    /// Their format.
    pub format: DescriptorFormat,
    /// Protection information field of the reads (PRACT and PRCHK): 0 without end-to-end protection.
    pub prinfo_read: u8,
    /// The same of the writes.
    pub prinfo_write: u8,
    /// Storage tag check of the reads.
    pub storage_tag_check_read: bool,
    /// The same of the writes.
    pub storage_tag_check_write: bool,
    /// Directive type.
    pub directive: u8,
    /// Force unit access: durable before it completes.
    pub fua: bool,
    /// Limited retry.
    pub limited_retry: bool,
}

impl CopyCommand {
    /// Source ranges in a command.
    pub const COUNT_MAX: usize = 256;

    /// Copies `ranges` ranges of format 0 to `sdlba`, nothing special.
    #[must_use]
    pub fn new(sdlba: u64, ranges: u16) -> Self {
        Self { ranges, ..Self::parse(sdlba as u32, (sdlba >> 32) as u32, 0) }
    }

    /// Reads command dwords 10 to 12.
    #[must_use]
    pub fn parse(cdw10: u32, cdw11: u32, cdw12: u32) -> Self {
        let bit = |at: u32| cdw12 >> at & 1 == 1;
        let nibble = |at: u32| (cdw12 >> at) as u8 & 0xf;
        let nr_z = cdw12 as u8;
        Self {
            sdlba: u64::from(cdw11) << 32 | u64::from(cdw10),
            ranges: u16::from(nr_z) + 1,
            format: DescriptorFormat(nibble(8)),
            prinfo_read: nibble(12),
            directive: nibble(20),
            storage_tag_check_write: bit(24),
            storage_tag_check_read: bit(25),
            prinfo_write: nibble(26),
            fua: bit(30),
            limited_retry: bit(31),
        }
    }

    /// Command dword 10.
    #[must_use]
    pub fn cdw10(&self) -> u32 {
        self.sdlba as u32
    }

    /// Command dword 11.
    #[must_use]
    pub fn cdw11(&self) -> u32 {
        (self.sdlba >> 32) as u32
    }

    /// Command dword 12.
    ///
    /// # Panics
    /// When `ranges` is not from 1 to 256.
    #[must_use]
    pub fn cdw12(&self) -> u32 {
        assert!((1..=256).contains(&self.ranges), "{} ranges in one command", self.ranges);
        let nibble = |value: u8, at: u32| u32::from(value & 0xf) << at;
        u32::from(self.ranges - 1)
            | nibble(self.format.0, 8)
            | nibble(self.prinfo_read, 12)
            | nibble(self.directive, 20)
            | u32::from(self.storage_tag_check_write) << 24
            | u32::from(self.storage_tag_check_read) << 25
            | nibble(self.prinfo_write, 26)
            | u32::from(self.fua) << 30
            | u32::from(self.limited_retry) << 31
    }

    /// Bytes of its data; `None` for formats that this crate does not know.
    #[must_use]
    pub fn data_len(&self) -> Option<usize> {
        Some(self.format.range_len()? * usize::from(self.ranges))
    }

    /// The source ranges in its data; `None` if there are fewer than the command says or their format is not known.
    #[must_use]
    pub fn source_ranges<'a>(&self, data: &'a [u8]) -> Option<impl Iterator<Item = SourceRange> + use<'a>> {
        let range_len = self.format.range_len()?;
        let data = data.get(..self.data_len()?)?;
        let names_namespaces = self.format.names_namespaces();
        Some(data.chunks_exact(range_len).filter_map(move |range| {
            // What all formats start with is all that is read.
            let (raw, _) = SourceRange0::read_from_prefix(range).ok()?;
            Some(SourceRange {
                nsid: names_namespaces.then(|| Nsid(raw.snsid.get())),
                slba: raw.slba.get(),
                blocks: u32::from(raw.nlb_z.get()) + 1,
                fast_copy_only: names_namespaces && raw.sopt.get() & SOPT_FCO != 0,
            })
        }))
    }
}

/// Blocks to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceRange {
    /// Its namespace, in the formats that name it.
    pub nsid: Option<Nsid>,
    /// First block.
    pub slba: u64,
    /// Blocks, 1 to 65536.
    pub blocks: u32,
    /// The controller is to copy it without moving data, or not at all (SOPT, in the formats that name a namespace).
    pub fast_copy_only: bool,
}

/// SOPT, bit 15: fast copy only.
const SOPT_FCO: u16 = 1 << 15;

/// A source range of format 0 or 2, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SourceRange0 {
    /// Its namespace; reserved in format 0.
    pub snsid: U32,
    reserved4: [u8; 4],
    /// First block.
    pub slba: U64,
    /// Blocks, 0's based.
    pub nlb_z: U16,
    reserved18: [u8; 4],
    /// Options; reserved in format 0.
    pub sopt: U16,
    /// Expected initial logical block reference tag and storage tag.
    pub elbt: [u8; 4],
    /// Expected logical block application tag.
    pub elbat: [u8; 2],
    /// Its mask.
    pub elbatm: [u8; 2],
}

/// A source range of format 1 or 3, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SourceRange1 {
    /// Its namespace; reserved in format 1.
    pub snsid: U32,
    reserved4: [u8; 4],
    /// First block.
    pub slba: U64,
    /// Blocks, 0's based.
    pub nlb_z: U16,
    reserved18: [u8; 4],
    /// Options; reserved in format 1.
    pub sopt: U16,
    reserved24: [u8; 2],
    /// Expected initial logical block reference tag and storage tag.
    pub elbt: [u8; 10],
    /// Expected logical block application tag.
    pub elbat: [u8; 2],
    /// Its mask.
    pub elbatm: [u8; 2],
}

const _: () = {
    assert!(size_of::<SourceRange0>() == 32 && size_of::<SourceRange1>() == 40);
    assert!(offset_of!(SourceRange0, slba) == 8 && offset_of!(SourceRange1, slba) == 8);
    assert!(offset_of!(SourceRange0, nlb_z) == 16 && offset_of!(SourceRange1, nlb_z) == 16);
    assert!(offset_of!(SourceRange0, sopt) == 22 && offset_of!(SourceRange1, sopt) == 22);
    assert!(offset_of!(SourceRange0, elbt) == 24 && offset_of!(SourceRange1, elbt) == 26);
    assert!(offset_of!(SourceRange0, elbat) == 28 && offset_of!(SourceRange1, elbat) == 36);
};

impl SourceRange0 {
    /// Bytes of it.
    pub const LEN: usize = size_of::<Self>();
}

impl SourceRange {
    /// `blocks` blocks from `slba` on, in the namespace of the command.
    #[must_use]
    pub fn new(slba: u64, blocks: u32) -> Self {
        Self { nsid: None, slba, blocks, fast_copy_only: false }
    }

    /// In format 0, without tags; with a namespace in format 2.
    ///
    /// # Panics
    /// When `blocks` is not from 1 to 65536: the caller splits.
    #[must_use]
    pub fn emit_format_0(&self) -> SourceRange0 {
        SourceRange0 {
            snsid: self.snsid(),
            slba: self.slba.into(),
            nlb_z: self.nlb_z().into(),
            sopt: self.sopt(),
            ..FromZeros::new_zeroed()
        }
    }

    /// In format 1, without tags; with a namespace in format 3.
    ///
    /// # Panics
    /// When `blocks` is not from 1 to 65536: the caller splits.
    #[must_use]
    pub fn emit_format_1(&self) -> SourceRange1 {
        SourceRange1 {
            snsid: self.snsid(),
            slba: self.slba.into(),
            nlb_z: self.nlb_z().into(),
            sopt: self.sopt(),
            ..FromZeros::new_zeroed()
        }
    }

    fn snsid(&self) -> U32 {
        self.nsid.map_or(0, |nsid| nsid.0).into()
    }

    fn sopt(&self) -> U16 {
        if self.fast_copy_only { SOPT_FCO.into() } else { 0.into() }
    }

    fn nlb_z(&self) -> u16 {
        let nlb_z = self.blocks.checked_sub(1).and_then(|z| u16::try_from(z).ok());
        nlb_z.expect("a source range has 1 to 65536 blocks")
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn fields_stand_where_the_standard_puts_them() {
        let copy = CopyCommand { fua: true, ..CopyCommand::new(0x1_0000_0002, 256) };
        assert_eq!((copy.cdw10(), copy.cdw11(), copy.cdw12()), (2, 1, 0x4000_00ff));
        let copy = CopyCommand::parse(0, 0, 0x0990_2103);
        assert_eq!((copy.ranges, copy.format), (4, DescriptorFormat::FORMAT_1));
        assert_eq!((copy.prinfo_read, copy.directive, copy.prinfo_write), (2, 9, 2));
        assert!(copy.storage_tag_check_write && !copy.storage_tag_check_read);
        let range = SourceRange::new(0x0102, 65536);
        assert_eq!(range.emit_format_0().as_bytes()[8..20], [2, 1, 0, 0, 0, 0, 0, 0, 255, 255, 0, 0]);
        assert_eq!(range.emit_format_1().as_bytes()[8..20], [2, 1, 0, 0, 0, 0, 0, 0, 255, 255, 0, 0]);
        let elsewhere = SourceRange { nsid: Some(Nsid(7)), fast_copy_only: true, ..range };
        let bytes = elsewhere.emit_format_0();
        assert_eq!(bytes.as_bytes()[..4], [7, 0, 0, 0]);
        assert_eq!(bytes.as_bytes()[22..24], [0, 128]);
        let copy = CopyCommand { format: DescriptorFormat::FORMAT_2, ..CopyCommand::new(0, 1) };
        assert_eq!(copy.source_ranges(bytes.as_bytes()).unwrap().collect::<Vec<_>>(), [elsewhere]);
    }

    #[test]
    fn an_unknown_format_has_no_ranges() {
        let copy = CopyCommand { format: DescriptorFormat(4), ..CopyCommand::new(0, 1) };
        assert!(copy.source_ranges(&[0; 4096]).is_none());
        assert_eq!(copy.data_len(), None);
    }

    proptest! {
        #[test]
        fn any_dwords_are_a_command(cdw10: u32, cdw11: u32, cdw12: u32, data in prop::collection::vec(any::<u8>(), 0..10240)) {
            let copy = CopyCommand::parse(cdw10, cdw11, cdw12);
            prop_assert_eq!(CopyCommand::parse(copy.cdw10(), copy.cdw11(), copy.cdw12()), copy);
            if let Some(ranges) = copy.source_ranges(&data) {
                prop_assert_eq!(ranges.count(), usize::from(copy.ranges));
            } else {
                prop_assert!(copy.data_len().is_none_or(|len| data.len() < len));
            }
        }

        #[test]
        fn ranges_survive_the_wire(ranges in prop::collection::vec((any::<u64>(), 1u32..=65536), 1..=256)) {
            let ranges: Vec<_> = ranges.into_iter().map(|(slba, blocks)| SourceRange::new(slba, blocks)).collect();
            let (mut zero, mut one) = (Vec::new(), Vec::new());
            for range in &ranges {
                zero.extend_from_slice(range.emit_format_0().as_bytes());
                one.extend_from_slice(range.emit_format_1().as_bytes());
            }
            let copy = CopyCommand::new(0, ranges.len() as u16);
            prop_assert_eq!(copy.source_ranges(&zero).unwrap().collect::<Vec<_>>(), &ranges[..]);
            let copy = CopyCommand { format: DescriptorFormat::FORMAT_1, ..copy };
            prop_assert_eq!(copy.source_ranges(&one).unwrap().collect::<Vec<_>>(), ranges);
        }
    }
}
