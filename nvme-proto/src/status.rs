//! Status of a completed command (NVMe Base, "Status Field").

use core::fmt;

/// Status code type, status code, and the bits beside them; bit positions as in the completion's status field shifted
/// right by the phase: SC 7:0, SCT 10:8, CRD 12:11, More 13, DNR 14.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Status(u16);

const MORE: u16 = 1 << 13;
const DNR: u16 = 1 << 14;
/// SCT and SC.
const CODE: u16 = 0x07ff;

macro_rules! statuses {
    ($($name:ident = ($sct:expr, $sc:expr) $text:literal,)*) => {
        impl Status {
            $(#[doc = $text] pub const $name: Self = Self::new($sct, $sc);)*

            /// The standard's words for it, if it has some. Where an I/O command set and Fabrics use one code for two
            /// things, the words of the I/O command set: [`Status::fabrics_text`] has the others.
            #[must_use]
            pub fn text(self) -> Option<&'static str> {
                $(if self.is(Self::$name) { return Some($text); })*
                None
            }

            /// The standard's words for the status of a Fabrics command.
            #[must_use]
            pub fn fabrics_text(self) -> Option<&'static str> {
                let mut text = None;
                // Fabrics' statuses stand behind those of the I/O command sets.
                $(if self.is(Self::$name) { text = Some($text); })*
                text
            }
        }
    };
}

statuses! {
    // Generic command status (SCT 0).
    SUCCESS = (0, 0x00) "Success",
    INVALID_OPCODE = (0, 0x01) "Invalid Command Opcode",
    INVALID_FIELD = (0, 0x02) "Invalid Field in Command",
    COMMAND_ID_CONFLICT = (0, 0x03) "Command ID Conflict",
    DATA_TRANSFER_ERROR = (0, 0x04) "Data Transfer Error",
    ABORTED_POWER_LOSS = (0, 0x05) "Commands Aborted due to Power Loss Notification",
    INTERNAL_ERROR = (0, 0x06) "Internal Error",
    ABORTED_BY_REQUEST = (0, 0x07) "Command Abort Requested",
    ABORTED_SQ_DELETION = (0, 0x08) "Command Aborted due to SQ Deletion",
    ABORTED_FAILED_FUSED = (0, 0x09) "Command Aborted due to Failed Fused Command",
    ABORTED_MISSING_FUSED = (0, 0x0a) "Command Aborted due to Missing Fused Command",
    INVALID_NAMESPACE = (0, 0x0b) "Invalid Namespace or Format",
    COMMAND_SEQUENCE_ERROR = (0, 0x0c) "Command Sequence Error",
    INVALID_SGL_SEGMENT = (0, 0x0d) "Invalid SGL Segment Descriptor",
    INVALID_SGL_COUNT = (0, 0x0e) "Invalid Number of SGL Descriptors",
    DATA_SGL_LENGTH_INVALID = (0, 0x0f) "Data SGL Length Invalid",
    METADATA_SGL_LENGTH_INVALID = (0, 0x10) "Metadata SGL Length Invalid",
    SGL_DESCRIPTOR_TYPE_INVALID = (0, 0x11) "SGL Descriptor Type Invalid",
    INVALID_CMB_USE = (0, 0x12) "Invalid Use of Controller Memory Buffer",
    PRP_OFFSET_INVALID = (0, 0x13) "PRP Offset Invalid",
    ATOMIC_WRITE_UNIT_EXCEEDED = (0, 0x14) "Atomic Write Unit Exceeded",
    OPERATION_DENIED = (0, 0x15) "Operation Denied",
    SGL_OFFSET_INVALID = (0, 0x16) "SGL Offset Invalid",
    HOST_ID_INCONSISTENT_FORMAT = (0, 0x18) "Host Identifier Inconsistent Format",
    KEEP_ALIVE_EXPIRED = (0, 0x19) "Keep Alive Timer Expired",
    KEEP_ALIVE_INVALID = (0, 0x1a) "Keep Alive Timeout Invalid",
    ABORTED_PREEMPT = (0, 0x1b) "Command Aborted due to Preempt and Abort",
    SANITIZE_FAILED = (0, 0x1c) "Sanitize Failed",
    SANITIZE_IN_PROGRESS = (0, 0x1d) "Sanitize In Progress",
    SGL_DATA_BLOCK_GRANULARITY_INVALID = (0, 0x1e) "SGL Data Block Granularity Invalid",
    COMMAND_NOT_SUPPORTED_CMB = (0, 0x1f) "Command Not Supported for Queue in CMB",
    NAMESPACE_WRITE_PROTECTED = (0, 0x20) "Namespace is Write Protected",
    COMMAND_INTERRUPTED = (0, 0x21) "Command Interrupted",
    TRANSIENT_TRANSPORT_ERROR = (0, 0x22) "Transient Transport Error",
    PROHIBITED_BY_LOCKDOWN = (0, 0x23) "Command Prohibited by Command and Feature Lockdown",
    ADMIN_MEDIA_NOT_READY = (0, 0x24) "Admin Command Media Not Ready",
    INVALID_KEY_TAG = (0, 0x25) "Invalid Key Tag",
    HOST_DISPERSED_NAMESPACE_NOT_ENABLED = (0, 0x26) "Host Dispersed Namespace Support Not Enabled",
    HOST_ID_NOT_INITIALIZED = (0, 0x27) "Host Identifier Not Initialized",
    INCORRECT_KEY = (0, 0x28) "Incorrect Key",
    FDP_DISABLED = (0, 0x29) "FDP Disabled",
    INVALID_PLACEMENT_HANDLE_LIST = (0, 0x2a) "Invalid Placement Handle List",
    LBA_OUT_OF_RANGE = (0, 0x80) "LBA Out of Range",
    CAPACITY_EXCEEDED = (0, 0x81) "Capacity Exceeded",
    NAMESPACE_NOT_READY = (0, 0x82) "Namespace Not Ready",
    RESERVATION_CONFLICT = (0, 0x83) "Reservation Conflict",
    FORMAT_IN_PROGRESS = (0, 0x84) "Format In Progress",
    INVALID_VALUE_SIZE = (0, 0x85) "Invalid Value Size",
    INVALID_KEY_SIZE = (0, 0x86) "Invalid Key Size",
    KEY_DOES_NOT_EXIST = (0, 0x87) "KV Key Does Not Exist",
    UNRECOVERED_ERROR = (0, 0x88) "Unrecovered Error",
    KEY_EXISTS = (0, 0x89) "Key Exists",
    // Command specific status (SCT 1).
    COMPLETION_QUEUE_INVALID = (1, 0x00) "Completion Queue Invalid",
    INVALID_QUEUE_ID = (1, 0x01) "Invalid Queue Identifier",
    INVALID_QUEUE_SIZE = (1, 0x02) "Invalid Queue Size",
    ABORT_LIMIT_EXCEEDED = (1, 0x03) "Abort Command Limit Exceeded",
    ASYNC_EVENT_LIMIT_EXCEEDED = (1, 0x05) "Asynchronous Event Request Limit Exceeded",
    INVALID_FIRMWARE_SLOT = (1, 0x06) "Invalid Firmware Slot",
    INVALID_FIRMWARE_IMAGE = (1, 0x07) "Invalid Firmware Image",
    INVALID_INTERRUPT_VECTOR = (1, 0x08) "Invalid Interrupt Vector",
    INVALID_LOG_PAGE = (1, 0x09) "Invalid Log Page",
    INVALID_FORMAT = (1, 0x0a) "Invalid Format",
    FIRMWARE_NEEDS_RESET = (1, 0x0b) "Firmware Activation Requires Conventional Reset",
    INVALID_QUEUE_DELETION = (1, 0x0c) "Invalid Queue Deletion",
    FEATURE_NOT_SAVEABLE = (1, 0x0d) "Feature Identifier Not Saveable",
    FEATURE_NOT_CHANGEABLE = (1, 0x0e) "Feature Not Changeable",
    FEATURE_NOT_NAMESPACE_SPECIFIC = (1, 0x0f) "Feature Not Namespace Specific",
    FIRMWARE_NEEDS_SUBSYSTEM_RESET = (1, 0x10) "Firmware Activation Requires NVM Subsystem Reset",
    FIRMWARE_NEEDS_CONTROLLER_RESET = (1, 0x11) "Firmware Activation Requires Controller Level Reset",
    FIRMWARE_NEEDS_MAX_TIME = (1, 0x12) "Firmware Activation Requires Maximum Time Violation",
    FIRMWARE_PROHIBITED = (1, 0x13) "Firmware Activation Prohibited",
    OVERLAPPING_RANGE = (1, 0x14) "Overlapping Range",
    NAMESPACE_INSUFFICIENT_CAPACITY = (1, 0x15) "Namespace Insufficient Capacity",
    NAMESPACE_ID_UNAVAILABLE = (1, 0x16) "Namespace Identifier Unavailable",
    NAMESPACE_ALREADY_ATTACHED = (1, 0x18) "Namespace Already Attached",
    NAMESPACE_IS_PRIVATE = (1, 0x19) "Namespace Is Private",
    NAMESPACE_NOT_ATTACHED = (1, 0x1a) "Namespace Not Attached",
    THIN_PROVISIONING_NOT_SUPPORTED = (1, 0x1b) "Thin Provisioning Not Supported",
    CONTROLLER_LIST_INVALID = (1, 0x1c) "Controller List Invalid",
    SELF_TEST_IN_PROGRESS = (1, 0x1d) "Device Self-test In Progress",
    BOOT_PARTITION_WRITE_PROHIBITED = (1, 0x1e) "Boot Partition Write Prohibited",
    INVALID_CONTROLLER_ID = (1, 0x1f) "Invalid Controller Identifier",
    INVALID_SECONDARY_STATE = (1, 0x20) "Invalid Secondary Controller State",
    INVALID_RESOURCE_COUNT = (1, 0x21) "Invalid Number of Controller Resources",
    INVALID_RESOURCE_ID = (1, 0x22) "Invalid Resource Identifier",
    SANITIZE_PROHIBITED_PMR = (1, 0x23) "Sanitize Prohibited While Persistent Memory Region is Enabled",
    ANA_GROUP_ID_INVALID = (1, 0x24) "ANA Group Identifier Invalid",
    ANA_ATTACH_FAILED = (1, 0x25) "ANA Attach Failed",
    INSUFFICIENT_CAPACITY = (1, 0x26) "Insufficient Capacity",
    NAMESPACE_ATTACHMENT_LIMIT_EXCEEDED = (1, 0x27) "Namespace Attachment Limit Exceeded",
    PROHIBITION_OF_COMMAND_EXECUTION_NOT_SUPPORTED = (1, 0x28) "Prohibition of Command Execution Not Supported",
    IO_COMMAND_SET_NOT_SUPPORTED = (1, 0x29) "I/O Command Set Not Supported",
    IO_COMMAND_SET_NOT_ENABLED = (1, 0x2a) "I/O Command Set Not Enabled",
    IO_COMMAND_SET_COMBINATION_REJECTED = (1, 0x2b) "I/O Command Set Combination Rejected",
    INVALID_IO_COMMAND_SET = (1, 0x2c) "Invalid I/O Command Set",
    IDENTIFIER_UNAVAILABLE = (1, 0x2d) "Identifier Unavailable",
    NAMESPACE_IS_DISPERSED = (1, 0x2e) "Namespace Is Dispersed",
    INVALID_DISCOVERY_INFORMATION = (1, 0x2f) "Invalid Discovery Information",
    ZONING_DATA_LOCKED = (1, 0x30) "Zoning Data Structure Locked",
    ZONING_DATA_NOT_FOUND = (1, 0x31) "Zoning Data Structure Not Found",
    INSUFFICIENT_DISCOVERY_RESOURCES = (1, 0x32) "Insufficient Discovery Resources",
    FUNCTION_DISABLED = (1, 0x33) "Requested Function Disabled",
    ZONEGROUP_ORIGINATOR_INVALID = (1, 0x34) "ZoneGroup Originator Invalid",
    CONTROLLER_RESET_IN_PROGRESS = (1, 0x3f) "Controller Reset In Progress",
    CONTROLLER_RESET_LOG_PAGE_FULL = (1, 0x40) "Cross-Controller Reset Log Page Full",
    CONTROLLER_RESET_LIMIT_EXCEEDED = (1, 0x41) "Cross-Controller Reset Limit Exceeded",
    CONFLICTING_ATTRIBUTES = (1, 0x80) "Conflicting Attributes",
    INVALID_PROTECTION_INFORMATION = (1, 0x81) "Invalid Protection Information",
    WRITE_TO_READ_ONLY_RANGE = (1, 0x82) "Attempted Write to Read Only Range",
    COMMAND_SIZE_LIMIT_EXCEEDED = (1, 0x83) "Command Size Limit Exceeded",
    INCOMPATIBLE_NAMESPACE_OR_FORMAT = (1, 0x85) "Incompatible Namespace or Format",
    FAST_COPY_NOT_POSSIBLE = (1, 0x86) "Fast Copy Not Possible",
    OVERLAPPING_IO_RANGE = (1, 0x87) "Overlapping I/O Range",
    NAMESPACE_NOT_REACHABLE = (1, 0x88) "Namespace Not Reachable",
    INSUFFICIENT_RESOURCES = (1, 0x89) "Insufficient Resources",
    ZONE_BOUNDARY_ERROR = (1, 0xb8) "Zone Boundary Error",
    ZONE_IS_FULL = (1, 0xb9) "Zone Is Full",
    ZONE_IS_READ_ONLY = (1, 0xba) "Zone Is Read Only",
    ZONE_IS_OFFLINE = (1, 0xbb) "Zone Is Offline",
    ZONE_INVALID_WRITE = (1, 0xbc) "Zone Invalid Write",
    TOO_MANY_ACTIVE_ZONES = (1, 0xbd) "Too Many Active Zones",
    TOO_MANY_OPEN_ZONES = (1, 0xbe) "Too Many Open Zones",
    INVALID_ZONE_STATE_TRANSITION = (1, 0xbf) "Invalid Zone State Transition",
    // Command specific status of Fabrics commands (SCT 1; the codes overlap with those of the NVM command set).
    CONNECT_INCOMPATIBLE_FORMAT = (1, 0x80) "Incompatible Format",
    CONNECT_CONTROLLER_BUSY = (1, 0x81) "Controller Busy",
    CONNECT_INVALID_PARAMETERS = (1, 0x82) "Connect Invalid Parameters",
    CONNECT_RESTART_DISCOVERY = (1, 0x83) "Connect Restart Discovery",
    CONNECT_INVALID_HOST = (1, 0x84) "Connect Invalid Host",
    INVALID_QUEUE_TYPE = (1, 0x85) "Invalid Queue Type",
    DISCOVER_RESTART = (1, 0x90) "Discover Restart",
    AUTHENTICATION_REQUIRED = (1, 0x91) "Authentication Required",
    // Media and data integrity errors (SCT 2).
    WRITE_FAULT = (2, 0x80) "Write Fault",
    UNRECOVERED_READ_ERROR = (2, 0x81) "Unrecovered Read Error",
    GUARD_CHECK_ERROR = (2, 0x82) "End-to-end Guard Check Error",
    APPLICATION_TAG_CHECK_ERROR = (2, 0x83) "End-to-end Application Tag Check Error",
    REFERENCE_TAG_CHECK_ERROR = (2, 0x84) "End-to-end Reference Tag Check Error",
    COMPARE_FAILURE = (2, 0x85) "Compare Failure",
    ACCESS_DENIED = (2, 0x86) "Access Denied",
    DEALLOCATED_OR_UNWRITTEN_BLOCK = (2, 0x87) "Deallocated or Unwritten Logical Block",
    STORAGE_TAG_CHECK_ERROR = (2, 0x88) "End-to-End Storage Tag Check Error",
    // Path related status (SCT 3).
    INTERNAL_PATH_ERROR = (3, 0x00) "Internal Path Error",
    ANA_PERSISTENT_LOSS = (3, 0x01) "Asymmetric Access Persistent Loss",
    ANA_INACCESSIBLE = (3, 0x02) "Asymmetric Access Inaccessible",
    ANA_TRANSITION = (3, 0x03) "Asymmetric Access Transition",
    CONTROLLER_PATHING_ERROR = (3, 0x60) "Controller Pathing Error",
    HOST_PATHING_ERROR = (3, 0x70) "Host Pathing Error",
    ABORTED_BY_HOST = (3, 0x71) "Command Aborted By Host",
}

impl Status {
    /// A status of this type and code.
    #[must_use]
    pub const fn new(sct: u8, sc: u8) -> Self {
        Self((sct as u16 & 7) << 8 | sc as u16)
    }

    /// From the completion's 16-bit field (whose bit 0 is the phase).
    #[must_use]
    pub const fn from_field(field: u16) -> Self {
        Self(field >> 1)
    }

    /// The completion's 16-bit field, phase 0.
    #[must_use]
    pub const fn to_field(self) -> u16 {
        self.0 << 1
    }

    /// Status code type: 0 generic, 1 command specific, 2 media, 3 path, 7 vendor.
    #[must_use]
    pub const fn sct(self) -> u8 {
        (self.0 >> 8) as u8 & 7
    }

    /// Status code.
    #[must_use]
    pub const fn sc(self) -> u8 {
        self.0 as u8
    }

    /// Whether the command did what it was asked.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 & CODE == 0
    }

    /// Whether these are the same, but for the retry bits.
    #[must_use]
    pub const fn is(self, other: Self) -> bool {
        self.0 & CODE == other.0 & CODE
    }

    /// Do not retry: the same command would fail again.
    #[must_use]
    pub const fn dnr(self) -> bool {
        self.0 & DNR != 0
    }

    /// Command retry delay: 0 none, 1 to 3 the time that Identify Controller has in CRDT1 to CRDT3.
    #[must_use]
    pub const fn crd(self) -> u8 {
        (self.0 >> 11) as u8 & 3
    }

    /// The same, to be retried after the time in CRDT`crd` (1 to 3; 0 at once).
    #[must_use]
    pub const fn with_crd(self, crd: u8) -> Self {
        Self(self.0 & !(3 << 11) | (crd as u16 & 3) << 11)
    }

    /// The same, and the error log has more to say.
    #[must_use]
    pub const fn with_more(self) -> Self {
        Self(self.0 | MORE)
    }

    /// The error log has more to say.
    #[must_use]
    pub const fn more(self) -> bool {
        self.0 & MORE != 0
    }

    /// The same, not to be retried.
    #[must_use]
    pub const fn with_dnr(self) -> Self {
        Self(self.0 | DNR)
    }
}

impl Default for Status {
    fn default() -> Self {
        Self::SUCCESS
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text().unwrap_or(if self.sct() == 7 {
            "Vendor Specific"
        } else {
            "Unknown Status"
        }))?;
        // The code alone does not say which command it completed.
        if let Some(fabrics) = self.fabrics_text().filter(|&fabrics| self.text() != Some(fabrics)) {
            write!(f, " or {fabrics}")?;
        }
        write!(f, " (SCT {:#x}, SC {:#04x})", self.sct(), self.sc())?;
        if self.dnr() { f.write_str(", do not retry") } else { Ok(()) }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn the_field_has_the_phase_below_and_dnr_on_top() {
        let status = Status::INVALID_FIELD.with_dnr();
        assert_eq!(status.to_field(), 0x8004);
        assert_eq!(Status::from_field(0x8005), status);
        assert!(status.is(Status::INVALID_FIELD) && status != Status::INVALID_FIELD && !status.is_success());
        assert_eq!(status.to_string(), "Invalid Field in Command (SCT 0x0, SC 0x02), do not retry");
        assert_eq!(Status::COMPARE_FAILURE.to_field() >> 1, 0x285);
    }

    #[test]
    fn unknown_codes_are_values() {
        assert_eq!(Status::new(0, 0x7f).to_string(), "Unknown Status (SCT 0x0, SC 0x7f)");
        assert_eq!(Status::new(7, 1).to_string(), "Vendor Specific (SCT 0x7, SC 0x01)");
        assert_eq!(Status::CONNECT_INVALID_HOST.text(), Some("Connect Invalid Host"));
    }

    #[test]
    fn display_of_a_shared_code_names_both_meanings() {
        assert_eq!(Status::INVALID_FORMAT.to_string(), "Invalid Format (SCT 0x1, SC 0x0a)");
        for (code, io, fabrics) in [
            (0x80, "Conflicting Attributes", "Incompatible Format"),
            (0x81, "Invalid Protection Information", "Controller Busy"),
            (0x82, "Attempted Write to Read Only Range", "Connect Invalid Parameters"),
            (0x83, "Command Size Limit Exceeded", "Connect Restart Discovery"),
            (0x85, "Incompatible Namespace or Format", "Invalid Queue Type"),
        ] {
            let status = Status::new(1, code);
            assert_eq!(status.to_string(), std::format!("{io} or {fabrics} (SCT 0x1, SC {code:#04x})"));
        }
    }
}
