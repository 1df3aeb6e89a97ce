//! Features (NVMe Base, "Get Features command" and "Set Features command").

use crate::ident::Nsid;
use crate::opcode::AdminOpcode;
use crate::sqe::Sqe;

open_enum! {
    /// Feature identifier.
    pub struct FeatureId: u8 {
        /// Arbitration.
        ARBITRATION = 0x01,
        /// Power management.
        POWER_MANAGEMENT = 0x02,
        /// Temperature threshold.
        TEMPERATURE_THRESHOLD = 0x04,
        /// Error recovery.
        ERROR_RECOVERY = 0x05,
        /// Volatile write cache.
        VOLATILE_WRITE_CACHE = 0x06,
        /// Number of queues.
        NUMBER_OF_QUEUES = 0x07,
        /// Interrupt coalescing (not used by Fabrics).
        INTERRUPT_COALESCING = 0x08,
        /// Interrupt vector configuration (not used by Fabrics).
        INTERRUPT_VECTOR = 0x09,
        /// Write atomicity.
        WRITE_ATOMICITY = 0x0a,
        /// Asynchronous event configuration.
        ASYNC_EVENT_CONFIG = 0x0b,
        /// Timestamp.
        TIMESTAMP = 0x0e,
        /// Keep alive timer.
        KEEP_ALIVE_TIMER = 0x0f,
        /// Host behavior support.
        HOST_BEHAVIOR_SUPPORT = 0x16,
        /// I/O command set profile.
        IO_COMMAND_SET_PROFILE = 0x19,
        /// Host identifier.
        HOST_ID = 0x81,
        /// Reservation notification mask.
        RESERVATION_NOTIFICATION_MASK = 0x82,
        /// Reservation persistence.
        RESERVATION_PERSISTENCE = 0x83,
        /// Namespace write protection.
        NAMESPACE_WRITE_PROTECTION_CONFIG = 0x84,
    }
}

open_enum! {
    /// Which value Get Features is asked for.
    pub struct Select: u8 {
        /// The current one.
        CURRENT = 0,
        /// The default.
        DEFAULT = 1,
        /// The saved one.
        SAVED = 2,
        /// What can be done with it.
        SUPPORTED_CAPABILITIES = 3,
    }
}

/// DW0 of Get Features with [`Select::SUPPORTED_CAPABILITIES`].
pub mod capability {
    /// It can be saved.
    pub const SAVEABLE: u32 = 1 << 0;
    /// It belongs to a namespace.
    pub const NAMESPACE_SPECIFIC: u32 = 1 << 1;
    /// It can be changed.
    pub const CHANGEABLE: u32 = 1 << 2;
}

/// Get Features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetFeatures {
    /// Which.
    pub fid: FeatureId,
    /// Which value of it.
    pub select: Select,
    /// Of which namespace, where that matters.
    pub nsid: Nsid,
    /// Feature specific.
    pub cdw11: u32,
}

/// Set Features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetFeatures {
    /// Which.
    pub fid: FeatureId,
    /// Keep the value over resets and power cycles.
    pub save: bool,
    /// Of which namespace, where that matters.
    pub nsid: Nsid,
    /// Feature specific.
    pub cdw11: u32,
    /// Feature specific.
    pub cdw12: u32,
}

impl GetFeatures {
    /// The current value.
    #[must_use]
    pub fn new(fid: FeatureId) -> Self {
        Self { fid, select: Select::CURRENT, nsid: Nsid(0), cdw11: 0 }
    }

    /// Reads the command.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [cdw10, cdw11, ..] = sqe.dwords();
        Self { fid: FeatureId(cdw10 as u8), select: Select((cdw10 >> 8) as u8 & 7), nsid: sqe.nsid(), cdw11 }
    }

    /// The command.
    #[must_use]
    pub fn emit(&self) -> Sqe {
        let cdw10 = u32::from(self.fid.0) | u32::from(self.select.0 & 7) << 8;
        let sqe = Sqe::new(AdminOpcode::GET_FEATURES.0).with_nsid(self.nsid);
        sqe.with_dwords([cdw10, self.cdw11, 0, 0, 0, 0])
    }
}

impl SetFeatures {
    /// Sets it to this.
    #[must_use]
    pub fn new(fid: FeatureId, cdw11: u32) -> Self {
        Self { fid, save: false, nsid: Nsid(0), cdw11, cdw12: 0 }
    }

    /// Reads the command.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let [cdw10, cdw11, cdw12, ..] = sqe.dwords();
        Self { fid: FeatureId(cdw10 as u8), save: cdw10 >> 31 == 1, nsid: sqe.nsid(), cdw11, cdw12 }
    }

    /// The command.
    #[must_use]
    pub fn emit(&self) -> Sqe {
        let cdw10 = u32::from(self.fid.0) | u32::from(self.save) << 31;
        let sqe = Sqe::new(AdminOpcode::SET_FEATURES.0).with_nsid(self.nsid);
        sqe.with_dwords([cdw10, self.cdw11, self.cdw12, 0, 0, 0])
    }
}

/// Number of Queues: what is asked for in DW11, what is granted in DW0. Counts of I/O queues, 1 to 65536.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounts {
    /// Submission queues.
    pub submission: u32,
    /// Completion queues.
    pub completion: u32,
}

impl QueueCounts {
    /// Reads CDW11 or DW0.
    #[must_use]
    pub fn parse(word: u32) -> Self {
        Self { submission: u32::from(word as u16) + 1, completion: (word >> 16) + 1 }
    }

    /// CDW11, or DW0.
    ///
    /// # Panics
    /// When a count is not from 1 to 65536.
    #[must_use]
    pub fn emit(self) -> u32 {
        assert!((1..=65536).contains(&self.submission) && (1..=65536).contains(&self.completion));
        (self.submission - 1) | (self.completion - 1) << 16
    }
}

/// Host Identifier, DW11 bit 0 (EXHID): 16 bytes rather than 8. Fabrics takes 16 only.
pub const EXTENDED_HOST_ID: u32 = 1;
/// Bytes of the Host Behavior Support data.
pub const HOST_BEHAVIOR_LEN: usize = 512;
/// Bytes of the Timestamp data.
pub const TIMESTAMP_LEN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_parses_is_emitted_the_same(cdw: [u32; 6], nsid: u32, word in 0u32..0xffff_fffe) {
            let get = GetFeatures::parse(&Sqe::new(0).with_nsid(Nsid(nsid)).with_dwords(cdw));
            prop_assert_eq!(GetFeatures::parse(&get.emit()), get);
            let set = SetFeatures::parse(&Sqe::new(0).with_nsid(Nsid(nsid)).with_dwords(cdw));
            prop_assert_eq!(SetFeatures::parse(&set.emit()), set);
            prop_assert_eq!(QueueCounts::parse(word).emit(), word);
        }
    }
}
