//! Commands with a range of blocks: Read, Write, Compare, Write Zeroes, Verify (NVM Command Set); and Flush.

use crate::ident::Nsid;
use crate::opcode::NvmOpcode;
use crate::sqe::Sqe;

/// What Read, Write, Compare, Write Zeroes and Verify share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadWrite {
    /// First block.
    pub slba: u64,
    /// Blocks, 1 to 65536.
    pub blocks: u32,
    /// Force unit access: durable before it completes.
    pub fua: bool,
    /// Limited retry.
    pub limited_retry: bool,
    /// Write Zeroes only: the blocks may be deallocated.
    pub deallocate: bool,
    /// Protection information field (PRACT and PRCHK): 0 without end-to-end protection.
    pub prinfo: u8,
    /// Storage tag check.
    pub storage_tag_check: bool,
    /// Directive type.
    pub directive: u8,
}

impl ReadWrite {
    /// `blocks` blocks from `slba` on, nothing special.
    #[must_use]
    pub fn new(slba: u64, blocks: u32) -> Self {
        Self {
            slba,
            blocks,
            fua: false,
            limited_retry: false,
            deallocate: false,
            prinfo: 0,
            storage_tag_check: false,
            directive: 0,
        }
    }

    /// Reads the command.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [cdw10, cdw11, cdw12, ..] = sqe.dwords();
        let nlb_z = cdw12 as u16;
        Self {
            slba: u64::from(cdw11) << 32 | u64::from(cdw10),
            blocks: u32::from(nlb_z) + 1,
            fua: cdw12 >> 30 & 1 == 1,
            limited_retry: cdw12 >> 31 == 1,
            deallocate: cdw12 >> 25 & 1 == 1,
            prinfo: (cdw12 >> 26) as u8 & 0xf,
            storage_tag_check: cdw12 >> 24 & 1 == 1,
            directive: (cdw12 >> 20) as u8 & 0xf,
        }
    }

    /// The command.
    ///
    /// # Panics
    /// When `blocks` is not from 1 to 65536: the caller splits.
    #[must_use]
    pub fn emit(&self, opcode: NvmOpcode, nsid: Nsid) -> Sqe {
        assert!((1..=65536).contains(&self.blocks), "{} blocks in one command", self.blocks);
        let cdw12 = (self.blocks - 1)
            | u32::from(self.directive & 0xf) << 20
            | u32::from(self.storage_tag_check) << 24
            | u32::from(self.deallocate) << 25
            | u32::from(self.prinfo & 0xf) << 26
            | u32::from(self.fua) << 30
            | u32::from(self.limited_retry) << 31;
        let slba = [self.slba as u32, (self.slba >> 32) as u32];
        Sqe::new(opcode.0).with_nsid(nsid).with_dwords([slba[0], slba[1], cdw12, 0, 0, 0])
    }
}

/// Flush, of one namespace or ([`Nsid::ALL`]) of all.
#[must_use]
pub fn flush(nsid: Nsid) -> Sqe {
    Sqe::new(NvmOpcode::FLUSH.0).with_nsid(nsid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    #[test]
    fn counts_are_zeroes_based_on_the_wire_only() {
        let sqe = ReadWrite { fua: true, ..ReadWrite::new(0x1_0000_0002, 8) }.emit(NvmOpcode::WRITE, Nsid(1));
        assert_eq!(sqe.as_bytes()[..8], [1, 0x40, 0, 0, 1, 0, 0, 0]);
        assert_eq!(sqe.as_bytes()[40..52], [2, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0x40]);
        assert_eq!(ReadWrite::parse(&ReadWrite::new(0, 65536).emit(NvmOpcode::READ, Nsid(1))).blocks, 65536);
    }

    proptest! {
        #[test]
        fn what_parses_is_emitted_the_same(a: [u8; 32], b: [u8; 32]) {
            let bytes: [u8; 64] = core::array::from_fn(|i| if i < 32 { a[i] } else { b[i - 32] });
            let command = ReadWrite::parse(&Sqe::read_from_bytes(&bytes).unwrap());
            prop_assert_eq!(ReadWrite::parse(&command.emit(NvmOpcode::READ, Nsid(1))), command);
        }
    }
}
