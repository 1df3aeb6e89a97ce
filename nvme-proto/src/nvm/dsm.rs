//! Dataset Management (NVM Command Set).

use crate::ident::Nsid;
use crate::opcode::NvmOpcode;
use crate::sqe::Sqe;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Dataset Management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetManagement {
    /// Ranges in its data, 1 to 256.
    pub ranges: u16,
    /// Deallocate them (AD).
    pub deallocate: bool,
    /// Access hints: integral dataset for write (IDW) and read (IDR).
    pub hints: u8,
}

/// A range, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DsmRange {
    /// Context attributes: hints.
    pub attributes: U32,
    /// Blocks (not 0's based).
    pub blocks: U32,
    /// First block.
    pub slba: U64,
}

const _: () = assert!(size_of::<DsmRange>() == DsmRange::LEN);

impl DsmRange {
    /// Bytes on the wire.
    pub const LEN: usize = 16;
    /// Ranges in a command.
    pub const COUNT_MAX: usize = 256;

    /// A range without hints.
    #[must_use]
    pub fn new(slba: u64, blocks: u32) -> Self {
        Self { attributes: 0.into(), blocks: blocks.into(), slba: slba.into() }
    }
}

impl DatasetManagement {
    /// Reads the command.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [nr_z, attributes, ..] = sqe.dwords();
        Self {
            ranges: u16::from(nr_z as u8) + 1,
            deallocate: attributes >> 2 & 1 == 1,
            hints: attributes as u8 & 0b11,
        }
    }

    /// The command.
    ///
    /// # Panics
    /// When `ranges` is not from 1 to 256.
    #[must_use]
    pub fn emit(&self, nsid: Nsid) -> Sqe {
        assert!((1..=256).contains(&self.ranges), "{} ranges in one command", self.ranges);
        let attributes = u32::from(self.hints & 0b11) | u32::from(self.deallocate) << 2;
        let sqe = Sqe::new(NvmOpcode::DATASET_MANAGEMENT.0).with_nsid(nsid);
        sqe.with_dwords([u32::from(self.ranges) - 1, attributes, 0, 0, 0, 0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_survives() {
        for ranges in 1..=256 {
            let command = DatasetManagement { ranges, deallocate: ranges % 2 == 0, hints: 2 };
            assert_eq!(DatasetManagement::parse(&command.emit(Nsid(9))), command);
        }
        let sqe = DatasetManagement { ranges: 256, deallocate: true, hints: 0 }.emit(Nsid(9));
        assert_eq!(sqe.as_bytes()[40..48], [255, 0, 0, 0, 4, 0, 0, 0]);
    }
}
