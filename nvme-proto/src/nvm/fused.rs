//! Fused operations (NVMe Base, "Fused Operations"; NVM Command Set, "Compare and Write").

use crate::ident::Nsid;
use crate::opcode::NvmOpcode;
use crate::status::Status;

open_enum! {
    /// Fused operation (FUSE, bits 1:0 of the command's flags). 3 is reserved.
    pub struct FusedOperation: u8 {
        /// Not fused.
        NORMAL = 0b00,
        /// First command of a fused operation.
        FIRST = 0b01,
        /// Second command of a fused operation.
        SECOND = 0b10,
    }
}

impl FusedOperation {
    /// Reads it from the flags (byte 1) of a submission queue entry.
    #[must_use]
    pub const fn parse(flags: u8) -> Self {
        Self(flags & 0b11)
    }

    /// The flags with it in bits 1:0.
    #[must_use]
    pub const fn emit(self, flags: u8) -> u8 {
        flags & !0b11 | self.0 & 0b11
    }
}

/// What of a command decides whether it fuses with its neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FusedCommand {
    /// FUSE.
    pub fuse: FusedOperation,
    /// Opcode.
    pub opcode: NvmOpcode,
    /// Namespace.
    pub nsid: Nsid,
    /// First block.
    pub slba: u64,
    /// Blocks.
    pub blocks: u32,
}

/// Whether two commands that follow each other in one submission queue are a compare-and-write: a Compare marked first, then a Write
/// marked second, of the same blocks of the same namespace. If they are, the Write takes place only if the Compare succeeds.
///
/// # Errors
/// [`Status::ABORTED_MISSING_FUSED`] if they are not marked as a pair: for the marked one, whose other half is not there.
/// [`Status::INVALID_FIELD`] if they are but cannot be fused: for both.
pub fn compare_and_write(first: FusedCommand, second: FusedCommand) -> Result<(), Status> {
    if (first.fuse, second.fuse) != (FusedOperation::FIRST, FusedOperation::SECOND) {
        return Err(Status::ABORTED_MISSING_FUSED);
    }
    let blocks = |command: FusedCommand| (command.nsid, command.slba, command.blocks);
    if (first.opcode, second.opcode) != (NvmOpcode::COMPARE, NvmOpcode::WRITE)
        || blocks(first) != blocks(second)
    {
        return Err(Status::INVALID_FIELD);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPARE: FusedCommand = FusedCommand {
        fuse: FusedOperation::FIRST,
        opcode: NvmOpcode::COMPARE,
        nsid: Nsid(1),
        slba: 8,
        blocks: 1,
    };
    const WRITE: FusedCommand =
        FusedCommand { fuse: FusedOperation::SECOND, opcode: NvmOpcode::WRITE, ..COMPARE };

    #[test]
    fn only_a_compare_and_a_write_of_the_same_blocks_fuse() {
        assert_eq!(compare_and_write(COMPARE, WRITE), Ok(()));
        let unlike = [
            FusedCommand { slba: 9, ..WRITE },
            FusedCommand { blocks: 2, ..WRITE },
            FusedCommand { nsid: Nsid(2), ..WRITE },
            FusedCommand { opcode: NvmOpcode::READ, ..WRITE },
        ];
        for second in unlike {
            assert_eq!(compare_and_write(COMPARE, second), Err(Status::INVALID_FIELD));
        }
    }

    #[test]
    fn a_command_without_its_other_half_is_missing_one() {
        let normal = FusedCommand { fuse: FusedOperation::NORMAL, ..WRITE };
        for (first, second) in [(COMPARE, normal), (COMPARE, COMPARE), (normal, WRITE), (WRITE, COMPARE)] {
            assert_eq!(compare_and_write(first, second), Err(Status::ABORTED_MISSING_FUSED));
        }
    }

    #[test]
    fn flags_keep_their_other_bits() {
        for flags in 0..=255 {
            assert_eq!(FusedOperation::parse(flags).emit(flags), flags);
            assert_eq!(FusedOperation::parse(FusedOperation::SECOND.emit(flags)), FusedOperation::SECOND);
        }
        assert_eq!(FusedOperation::FIRST.emit(0x40), 0x41);
    }
}
