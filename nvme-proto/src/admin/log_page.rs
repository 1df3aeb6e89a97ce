//! Log pages (NVMe Base, "Get Log Page command").

use crate::ident::Nsid;
use crate::opcode::AdminOpcode;
use crate::sqe::Sqe;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

open_enum! {
    /// Log page identifier.
    pub struct LogPageId: u8 {
        /// Supported log pages.
        SUPPORTED_LOG_PAGES = 0x00,
        /// Error information.
        ERROR = 0x01,
        /// SMART / health information.
        SMART = 0x02,
        /// Firmware slot information.
        FIRMWARE_SLOT = 0x03,
        /// Changed namespace list.
        CHANGED_ATTACHED_NAMESPACE_LIST = 0x04,
        /// Commands supported and effects.
        COMMANDS_SUPPORTED_AND_EFFECTS = 0x05,
        /// Device self-test.
        DEVICE_SELF_TEST = 0x06,
        /// Telemetry, host initiated.
        TELEMETRY_HOST = 0x07,
        /// Telemetry, controller initiated.
        TELEMETRY_CONTROLLER = 0x08,
        /// Endurance group information.
        ENDURANCE_GROUP = 0x09,
        /// Asymmetric namespace access.
        ANA = 0x0c,
        /// Persistent event log.
        PERSISTENT_EVENT = 0x0d,
        /// Feature identifiers supported and effects.
        FEATURES_SUPPORTED_AND_EFFECTS = 0x12,
        /// NVMe-MI commands supported and effects.
        MI_COMMANDS_SUPPORTED_AND_EFFECTS = 0x13,
        /// Cross-controller reset.
        CROSS_CONTROLLER_RESET = 0x1e,
        /// Discovery.
        DISCOVERY = 0x70,
        /// Reservation notification.
        RESERVATION_NOTIFICATION = 0x80,
        /// Sanitize status.
        SANITIZE = 0x81,
    }
}

/// Get Log Page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLogPage {
    /// Which.
    pub lid: LogPageId,
    /// Of which namespace, where that matters.
    pub nsid: Nsid,
    /// Log specific field.
    pub lsp: u8,
    /// Retain the asynchronous event: reading does not clear it.
    pub retain_event: bool,
    /// Bytes, 4 to 16 GiB, a multiple of 4.
    pub len: u64,
    /// From this byte on; an index when `offset_is_index`.
    pub offset: u64,
    /// Offset type.
    pub offset_is_index: bool,
    /// Log specific identifier.
    pub lsi: u16,
    /// I/O command set.
    pub csi: u8,
    /// UUID index.
    pub uuid_index: u8,
}

impl GetLogPage {
    /// `len` bytes (a multiple of 4) of a page from `offset` on.
    #[must_use]
    pub fn new(lid: LogPageId, nsid: Nsid, offset: u64, len: u64) -> Self {
        Self {
            lid,
            nsid,
            lsp: 0,
            retain_event: false,
            len,
            offset,
            offset_is_index: false,
            lsi: 0,
            csi: 0,
            uuid_index: 0,
        }
    }

    /// Reads the command.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [cdw10, cdw11, cdw12, cdw13, cdw14, _] = sqe.dwords();
        let numd_z = u64::from(cdw11 as u16) << 16 | u64::from(cdw10 >> 16);
        Self {
            lid: LogPageId(cdw10 as u8),
            nsid: sqe.nsid(),
            lsp: (cdw10 >> 8) as u8 & 0x7f,
            retain_event: cdw10 >> 15 & 1 == 1,
            len: (numd_z + 1) * 4,
            offset: u64::from(cdw13) << 32 | u64::from(cdw12),
            offset_is_index: cdw14 >> 23 & 1 == 1,
            lsi: (cdw11 >> 16) as u16,
            csi: (cdw14 >> 24) as u8,
            uuid_index: cdw14 as u8 & 0x7f,
        }
    }

    /// The command.
    ///
    /// # Panics
    /// When `len` is not a multiple of 4 from 4 to 16 GiB.
    #[must_use]
    pub fn emit(&self) -> Sqe {
        assert!(self.len >= 4 && self.len.is_multiple_of(4), "a log page of {} bytes", self.len);
        let numd_z = u32::try_from(self.len / 4 - 1).expect("a log page of at most 16 GiB");
        let cdw10 = u32::from(self.lid.0)
            | u32::from(self.lsp & 0x7f) << 8
            | u32::from(self.retain_event) << 15
            | (numd_z & 0xffff) << 16;
        let cdw11 = numd_z >> 16 | u32::from(self.lsi) << 16;
        let cdw14 = u32::from(self.csi) << 24
            | u32::from(self.offset_is_index) << 23
            | u32::from(self.uuid_index & 0x7f);
        let sqe = Sqe::new(AdminOpcode::GET_LOG_PAGE.0).with_nsid(self.nsid);
        sqe.with_dwords([cdw10, cdw11, self.offset as u32, (self.offset >> 32) as u32, cdw14, 0])
    }
}

/// The discovery log page's own bits.
pub mod discovery {
    /// LSP bit 1 (PLEO): only entries of the port that the command came through.
    pub const PORT_LOCAL_ENTRIES_ONLY: u8 = 1 << 1;
    /// In the page of supported log pages (PLEOS): the bit is honoured.
    pub const PORT_LOCAL_ENTRIES_ONLY_SUPPORTED: u32 = 1 << 17;
}

/// Supported log pages, as on the wire: 32 bits for each identifier, bit 0 of them "supported".
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SupportedLogPages {
    /// By log page identifier.
    pub pages: [U32; 256],
}

/// An entry of the error log, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ErrorEntry {
    /// Counts errors from 1; 0 is an empty entry.
    pub error_count: U64,
    /// Queue.
    pub sqid: U16,
    /// Command.
    pub cid: U16,
    /// Status field, as in the completion.
    pub status: U16,
    /// Where in the command: byte in 7:0, bit in 10:8; FFFFh where nowhere.
    pub parameter_error_location: U16,
    /// First block that failed.
    pub lba: U64,
    /// Namespace.
    pub nsid: U32,
    /// Vendor specific log page with more.
    pub vendor_specific_information_available: u8,
    /// Transport type.
    pub trtype: u8,
    /// Command set indicator.
    pub csi: u8,
    /// Opcode.
    pub opcode: u8,
    /// Command specific.
    pub command_specific_information: U64,
    /// Transport specific.
    pub transport_specific: U16,
    reserved: [u8; 21],
    /// Version of the entry.
    pub lpver: u8,
}

/// SMART / health information, as on the wire. 128-bit counters are little-endian.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields are the standard's, in its words")]
pub struct SmartLog {
    pub critical_warning: u8,
    pub composite_temperature_kelvin: U16,
    pub available_spare: u8,
    pub available_spare_threshold: u8,
    pub percentage_used: u8,
    pub endurance_group_critical_warning_summary: u8,
    reserved0: [u8; 25],
    pub data_units_read: [u8; 16],
    pub data_units_written: [u8; 16],
    pub host_read_commands: [u8; 16],
    pub host_write_commands: [u8; 16],
    pub controller_busy_time: [u8; 16],
    pub power_cycles: [u8; 16],
    pub power_on_hours: [u8; 16],
    pub unsafe_shutdowns: [u8; 16],
    pub media_errors: [u8; 16],
    pub error_log_entries: [u8; 16],
    pub warning_temperature_minutes: U32,
    pub critical_temperature_minutes: U32,
    pub temperature_sensors: [U16; 8],
    pub thermal_management_temperature_transition_count: [U32; 2],
    pub total_time_for_thermal_management_temperature: [U32; 2],
    reserved1: [u8; 280],
}

/// Firmware slots, as on the wire.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FirmwareSlotLog {
    /// Active slot in 2:0, the next one in 6:4.
    pub afi: u8,
    reserved0: [u8; 7],
    /// Revisions, in ASCII.
    pub revisions: [[u8; 8]; 7],
    reserved1: [u8; 448],
}

/// Commands supported and their effects, as on the wire.
#[derive(Clone, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CommandsSupportedLog {
    /// By admin opcode.
    pub admin: [U32; 256],
    /// By I/O opcode.
    pub io: [U32; 256],
    reserved: [u8; 2048],
}

/// Bits of an entry in [`CommandsSupportedLog`].
pub mod effects {
    /// The command is supported.
    pub const SUPPORTED: u32 = 1 << 0;
    /// It may change blocks.
    pub const LOGICAL_BLOCK_CHANGE: u32 = 1 << 1;
}

/// Header of the ANA page, as on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AnaHeader {
    /// Counts changes.
    pub chgcnt: U64,
    /// Groups behind the header.
    pub ngrps: U16,
    reserved: [u8; 6],
}

/// A group in the ANA page, as on the wire; its NSIDs follow, 4 bytes each.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AnaGroup {
    /// Group identifier.
    pub group_id: U32,
    /// NSIDs behind it.
    pub nnsids: U32,
    /// Counts changes of this group.
    pub chgcnt: U64,
    /// State in bits 3:0.
    pub state: AnaState,
    reserved: [u8; 15],
}

open_enum! {
    /// Asymmetric namespace access state.
    pub struct AnaState: u8 {
        /// Optimized.
        OPTIMIZED = 0x1,
        /// Non-optimized.
        NON_OPTIMIZED = 0x2,
        /// Inaccessible.
        INACCESSIBLE = 0x3,
        /// Persistent loss.
        PERSISTENT_LOSS = 0x4,
        /// Change.
        CHANGE = 0xf,
    }
}

/// Reservation notification, as on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReservationNotification {
    /// Counts notifications.
    pub lpc: U64,
    /// 0 empty, 1 registration preempted, 2 reservation released, 3 reservation preempted.
    pub rnlpt: u8,
    /// Notifications that wait behind this one.
    pub nalp: u8,
    reserved0: [u8; 2],
    /// Namespace.
    pub nsid: U32,
    reserved1: [u8; 48],
}

const _: () = {
    assert!(size_of::<SupportedLogPages>() == 1024);
    assert!(size_of::<ErrorEntry>() == 64);
    assert!(size_of::<SmartLog>() == 512 && core::mem::offset_of!(SmartLog, data_units_read) == 32);
    assert!(size_of::<FirmwareSlotLog>() == 512);
    assert!(size_of::<CommandsSupportedLog>() == 4096);
    assert!(size_of::<AnaHeader>() == 16 && size_of::<AnaGroup>() == 32);
    assert!(size_of::<ReservationNotification>() == 64);
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lengths_are_split_over_two_words() {
        let sqe = GetLogPage::new(LogPageId::DISCOVERY, Nsid(0), 1024, 4 * 0x1_0003).emit();
        assert_eq!(sqe.dwords(), [0x0002_0070, 1, 1024, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn what_parses_is_emitted_the_same(cdw: [u32; 6], nsid: u32) {
            let sqe = Sqe::new(AdminOpcode::GET_LOG_PAGE.0).with_nsid(Nsid(nsid)).with_dwords(cdw);
            let command = GetLogPage::parse(&sqe);
            prop_assert_eq!(GetLogPage::parse(&command.emit()), command);
        }
    }
}
