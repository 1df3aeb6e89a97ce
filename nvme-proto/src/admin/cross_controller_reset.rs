//! Cross-Controller Reset (NVMe Base 2.3, "Cross-Controller Reset command" and the log page of that name): a host that has
//! lost one controller has it reset through another one of the same subsystem.

use crate::ident::Cntlid;
use crate::opcode::AdminOpcode;
use crate::sqe::Sqe;
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Names one life of a controller, from one reset to the next: Identify Controller has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerInstance {
    /// CNTLID.
    pub cntlid: Cntlid,
    /// Controller Instance Uniquifier (CIU): another one after each reset, never 0. 0 is a controller that has no
    /// Cross-Controller Reset.
    pub uniquifier: u8,
    /// Controller Instance Random Number (CIRN).
    pub random: u64,
}

/// Cross-Controller Reset: names the controller to reset, the impacted controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrossControllerReset {
    /// ICID, CIU and CIRN.
    pub impacted: ControllerInstance,
}

/// DW0 of the response, Immediate Reset Successful: the reset is over. Otherwise the log page tells how it ends.
pub const IMMEDIATE_RESET_SUCCESSFUL: u32 = 1;
/// The log page's own bit of LSP, Remove Completed (RMC): entries of resets that are over are removed with this read.
pub const REMOVE_COMPLETED: u8 = 1;

impl CrossControllerReset {
    /// Reads the command.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [cdw10, _, low, high, ..] = sqe.dwords();
        let random = u64::from(high) << 32 | u64::from(low);
        let (cntlid, uniquifier) = (Cntlid(cdw10 as u16), (cdw10 >> 16) as u8);
        Self { impacted: ControllerInstance { cntlid, uniquifier, random } }
    }

    /// The command.
    #[must_use]
    pub fn emit(&self) -> Sqe {
        let ControllerInstance { cntlid, uniquifier, random } = self.impacted;
        let cdw10 = u32::from(cntlid.0) | u32::from(uniquifier) << 16;
        let sqe = Sqe::new(AdminOpcode::CROSS_CONTROLLER_RESET.0);
        sqe.with_dwords([cdw10, 0, random as u32, (random >> 32) as u32, 0, 0])
    }
}

open_enum! {
    /// Cross-Controller Reset Status (CCRS).
    pub struct ResetStatus: u8 {
        /// It is under way.
        IN_PROGRESS = 0,
        /// Nothing that the impacted controller was sent is under way any more.
        SUCCESSFUL = 1,
        /// It did not succeed.
        FAILED = 2,
    }
}

/// The head of the log page of resets, and of that of lost host communication; the entries follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ResetLogHeader {
    /// Number of Entries (NE).
    pub entries: U16,
    reserved: [u8; 6],
}

impl ResetLogHeader {
    /// Of so many entries.
    #[must_use]
    pub fn new(entries: u16) -> Self {
        Self { entries: entries.into(), reserved: [0; 6] }
    }
}

/// One reset in the log page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ResetLogEntry {
    /// Impacted Controller ID (ICID).
    pub icid: U16,
    /// CIU of the impacted controller.
    pub ciu: u8,
    reserved: u8,
    /// Alternate Controller ID (ACID): of the controller that was sent the command.
    pub acid: U16,
    /// [`ResetStatus`].
    pub ccrs: u8,
    /// Flags (CCRF): bit 0 the command was found valid, bit 1 the reset has begun.
    pub ccrf: u8,
}

impl ResetLogEntry {
    /// An entry of a reset that was found valid and has begun.
    #[must_use]
    pub fn new(impacted: &ControllerInstance, acid: Cntlid, status: ResetStatus) -> Self {
        Self {
            icid: impacted.cntlid.0.into(),
            ciu: impacted.uniquifier,
            reserved: 0,
            acid: acid.0.into(),
            ccrs: status.0,
            ccrf: 0b11,
        }
    }
}

/// Most entries of the log page: it has 4096 bytes.
pub const LOG_ENTRIES_MAX: usize = (4096 - size_of::<ResetLogHeader>()) / size_of::<ResetLogEntry>();

const _: () = assert!(size_of::<ResetLogHeader>() == 8 && size_of::<ResetLogEntry>() == 8);
const _: () = assert!(LOG_ENTRIES_MAX == 511);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn command_is_what_the_standard_says() {
        let impacted =
            ControllerInstance { cntlid: Cntlid(0x1234), uniquifier: 0x56, random: 0x1122_3344_5566_7788 };
        let sqe = CrossControllerReset { impacted }.emit();
        assert_eq!(sqe.opcode, 0x38);
        assert_eq!(sqe.dwords(), [0x0056_1234, 0, 0x5566_7788, 0x1122_3344, 0, 0]);
    }

    #[test]
    fn entry_is_what_the_standard_says() {
        let impacted = ControllerInstance { cntlid: Cntlid(0x1234), uniquifier: 0x56, random: 0 };
        let entry = ResetLogEntry::new(&impacted, Cntlid(7), ResetStatus::FAILED);
        assert_eq!(entry.as_bytes(), [0x34, 0x12, 0x56, 0, 7, 0, 2, 3]);
    }

    proptest! {
        #[test]
        fn what_parses_is_emitted_the_same(cdw: [u32; 6]) {
            let command = CrossControllerReset::parse(&Sqe::new(0).with_dwords(cdw));
            prop_assert_eq!(CrossControllerReset::parse(&command.emit()), command);
        }
    }
}
