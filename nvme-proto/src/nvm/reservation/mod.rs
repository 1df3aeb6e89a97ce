//! Reservations (NVMe Base, "Reservations"): Register, Acquire, Release and Report.

mod data;
#[cfg(test)]
mod tests;

pub use data::{AcquireData, ExtendedRegistrant, RegisterData, Registrant, ReleaseData, ReservationStatus};

open_enum! {
    /// Reservation type (RTYPE).
    pub struct ReservationType: u8 {
        /// No reservation is held (Report only).
        NONE = 0,
        /// Write Exclusive.
        WRITE_EXCLUSIVE = 1,
        /// Exclusive Access.
        EXCLUSIVE_ACCESS = 2,
        /// Write Exclusive - Registrants Only.
        WRITE_EXCLUSIVE_REGISTRANTS_ONLY = 3,
        /// Exclusive Access - Registrants Only.
        EXCLUSIVE_ACCESS_REGISTRANTS_ONLY = 4,
        /// Write Exclusive - All Registrants.
        WRITE_EXCLUSIVE_ALL_REGISTRANTS = 5,
        /// Exclusive Access - All Registrants.
        EXCLUSIVE_ACCESS_ALL_REGISTRANTS = 6,
    }
}

open_enum! {
    /// Reservation Register Action (RREGA).
    pub struct RegisterAction: u8 {
        /// Register the new key.
        REGISTER = 0,
        /// Unregister.
        UNREGISTER = 1,
        /// Replace the current key with the new one.
        REPLACE = 2,
    }
}

open_enum! {
    /// Change Persist Through Power Loss State (CPTPL).
    pub struct PersistChange: u8 {
        /// As it is.
        NONE = 0b00,
        /// Reservations and registrants are gone after a loss of power.
        CLEAR = 0b10,
        /// They persist.
        PERSIST = 0b11,
    }
}

open_enum! {
    /// Reservation Acquire Action (RACQA).
    pub struct AcquireAction: u8 {
        /// Acquire.
        ACQUIRE = 0,
        /// Preempt.
        PREEMPT = 1,
        /// Preempt, and abort what the preempted have in flight.
        PREEMPT_AND_ABORT = 2,
    }
}

open_enum! {
    /// Reservation Release Action (RRELA).
    pub struct ReleaseAction: u8 {
        /// Release the reservation.
        RELEASE = 0,
        /// Release it, and unregister everyone.
        CLEAR = 1,
    }
}

/// IEKEY: the current key is not checked.
const IGNORE_KEY: u32 = 1 << 3;
/// DISNSRS: the host knows that a registrant may be a controller of another subsystem (dispersed namespaces).
const DISPERSED: u32 = 1 << 4;

/// Reservation Register. Its data are [`RegisterData`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// What to do.
    pub action: RegisterAction,
    /// IEKEY: the current key is not checked.
    pub ignore_key: bool,
    /// Whether reservations persist through power loss.
    pub persist: PersistChange,
    /// DISNSRS: the host supports dispersed namespaces.
    pub dispersed: bool,
}

/// Reservation Acquire. Its data are [`AcquireData`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// What to do.
    pub action: AcquireAction,
    /// IEKEY: the current key is not checked.
    pub ignore_key: bool,
    /// Which reservation to hold.
    pub kind: ReservationType,
    /// DISNSRS: the host supports dispersed namespaces.
    pub dispersed: bool,
}

/// Reservation Release. Its data are [`ReleaseData`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// What to do.
    pub action: ReleaseAction,
    /// IEKEY: the current key is not checked.
    pub ignore_key: bool,
    /// Which reservation is held.
    pub kind: ReservationType,
    /// DISNSRS: the host supports dispersed namespaces.
    pub dispersed: bool,
}

/// Reservation Report. It answers with a [`ReservationStatus`] and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Bytes to transfer, 4 to 16 GiB, a multiple of 4.
    pub len: u64,
    /// EDS: the extended structure, with host identifiers of 128 bits. Fabrics has no other.
    pub extended: bool,
    /// DISNSRS: the host supports dispersed namespaces.
    pub dispersed: bool,
}

impl Register {
    /// Reads command dword 10.
    #[must_use]
    pub fn parse(cdw10: u32) -> Self {
        Self {
            action: RegisterAction(cdw10 as u8 & 7),
            ignore_key: cdw10 & IGNORE_KEY != 0,
            dispersed: cdw10 & DISPERSED != 0,
            persist: PersistChange((cdw10 >> 30) as u8),
        }
    }

    /// Command dword 10.
    #[must_use]
    pub fn cdw10(&self) -> u32 {
        action(self.action.0, self.ignore_key, self.dispersed) | u32::from(self.persist.0 & 3) << 30
    }
}

impl Acquire {
    /// Reads command dword 10.
    #[must_use]
    pub fn parse(cdw10: u32) -> Self {
        Self {
            action: AcquireAction(cdw10 as u8 & 7),
            ignore_key: cdw10 & IGNORE_KEY != 0,
            dispersed: cdw10 & DISPERSED != 0,
            kind: ReservationType((cdw10 >> 8) as u8),
        }
    }

    /// Command dword 10.
    #[must_use]
    pub fn cdw10(&self) -> u32 {
        action(self.action.0, self.ignore_key, self.dispersed) | u32::from(self.kind.0) << 8
    }
}

impl Release {
    /// Reads command dword 10.
    #[must_use]
    pub fn parse(cdw10: u32) -> Self {
        Self {
            action: ReleaseAction(cdw10 as u8 & 7),
            ignore_key: cdw10 & IGNORE_KEY != 0,
            dispersed: cdw10 & DISPERSED != 0,
            kind: ReservationType((cdw10 >> 8) as u8),
        }
    }

    /// Command dword 10.
    #[must_use]
    pub fn cdw10(&self) -> u32 {
        action(self.action.0, self.ignore_key, self.dispersed) | u32::from(self.kind.0) << 8
    }
}

impl Report {
    /// Reads command dwords 10 and 11.
    #[must_use]
    pub fn parse(cdw10: u32, cdw11: u32) -> Self {
        let numd_z = cdw10;
        Self { len: (u64::from(numd_z) + 1) * 4, extended: cdw11 & 1 == 1, dispersed: cdw11 & 2 == 2 }
    }

    /// Command dword 10.
    ///
    /// # Panics
    /// When `len` is not from 4 to 16 GiB or no multiple of 4.
    #[must_use]
    pub fn cdw10(&self) -> u32 {
        assert!(self.len.is_multiple_of(4), "{} bytes are no dwords", self.len);
        let numd_z = (self.len / 4).checked_sub(1).and_then(|z| u32::try_from(z).ok());
        numd_z.expect("a report has 4 bytes to 16 GiB")
    }

    /// Command dword 11.
    #[must_use]
    pub fn cdw11(&self) -> u32 {
        u32::from(self.extended) | u32::from(self.dispersed) << 1
    }
}

fn action(action: u8, ignore_key: bool, dispersed: bool) -> u32 {
    let flag = |on: bool, bit| if on { bit } else { 0 };
    u32::from(action & 7) | flag(ignore_key, IGNORE_KEY) | flag(dispersed, DISPERSED)
}
