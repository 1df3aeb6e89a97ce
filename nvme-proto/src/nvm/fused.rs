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

/// What becomes of two commands that follow each other in one submission queue and are no compare-and-write. A command
/// without a status here is not part of a pair: it is handled by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfused {
    /// The status of the first command.
    pub first: Option<Status>,
    /// The status of the second command.
    pub second: Option<Status>,
}

/// Whether two commands that follow each other in one submission queue are a compare-and-write: a Compare marked first,
/// then a Write marked second, of the same blocks of the same namespace. If they are, the Write takes place only if the
/// Compare succeeds.
///
/// # Errors
/// The statuses to complete them with. A command that is marked and lacks its other half:
/// [`Status::ABORTED_MISSING_FUSED`]. A pair with another opcode: [`Status::INVALID_OPCODE`] for the command that has
/// it, and the other one lacks its half. A pair of different blocks: [`Status::INVALID_FIELD`] for both.
pub fn compare_and_write(first: FusedCommand, second: FusedCommand) -> Result<(), Unfused> {
    let missing = Some(Status::ABORTED_MISSING_FUSED);
    match (first.fuse, second.fuse) {
        (FusedOperation::FIRST, FusedOperation::SECOND) => {}
        // A second half that comes first has missed its first one already.
        (FusedOperation::FIRST | FusedOperation::SECOND, _) => {
            return Err(Unfused { first: missing, second: None });
        }
        (_, FusedOperation::SECOND) => return Err(Unfused { first: None, second: missing }),
        _ => return Err(Unfused { first: None, second: None }),
    }
    let (compares, writes) = (first.opcode == NvmOpcode::COMPARE, second.opcode == NvmOpcode::WRITE);
    if !compares || !writes {
        let status = |right| if right { missing } else { Some(Status::INVALID_OPCODE) };
        return Err(Unfused { first: status(compares), second: status(writes) });
    }
    let blocks = |command: FusedCommand| (command.nsid, command.slba, command.blocks);
    if blocks(first) != blocks(second) {
        let invalid = Some(Status::INVALID_FIELD);
        return Err(Unfused { first: invalid, second: invalid });
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

    fn unfused(first: Option<Status>, second: Option<Status>) -> Result<(), Unfused> {
        Err(Unfused { first, second })
    }

    #[test]
    fn compare_and_write_of_different_blocks_is_an_invalid_field_for_both() {
        assert_eq!(compare_and_write(COMPARE, WRITE), Ok(()));
        let invalid = Some(Status::INVALID_FIELD);
        let unlike = [
            FusedCommand { slba: 9, ..WRITE },
            FusedCommand { blocks: 2, ..WRITE },
            FusedCommand { nsid: Nsid(2), ..WRITE },
        ];
        for second in unlike {
            assert_eq!(compare_and_write(COMPARE, second), unfused(invalid, invalid));
        }
    }

    #[test]
    fn compare_and_write_with_another_opcode_refuses_that_opcode() {
        let (wrong, missing) = (Some(Status::INVALID_OPCODE), Some(Status::ABORTED_MISSING_FUSED));
        let read = |command| FusedCommand { opcode: NvmOpcode::READ, ..command };
        assert_eq!(compare_and_write(COMPARE, read(WRITE)), unfused(missing, wrong));
        assert_eq!(compare_and_write(read(COMPARE), WRITE), unfused(wrong, missing));
        assert_eq!(compare_and_write(read(COMPARE), read(WRITE)), unfused(wrong, wrong));
    }

    #[test]
    fn compare_and_write_without_its_other_half_leaves_the_neighbour_alone() {
        let missing = Some(Status::ABORTED_MISSING_FUSED);
        let normal = FusedCommand { fuse: FusedOperation::NORMAL, ..WRITE };
        assert_eq!(compare_and_write(COMPARE, normal), unfused(missing, None), "the neighbour runs");
        assert_eq!(compare_and_write(COMPARE, COMPARE), unfused(missing, None), "the second one waits");
        assert_eq!(compare_and_write(normal, WRITE), unfused(None, missing));
        assert_eq!(compare_and_write(WRITE, COMPARE), unfused(missing, None));
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
