//! What the features' values mean (NVMe Base, "Feature Specific Information"). [`super::features`] has the commands.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Volatile Write Cache, bit 0 (WCE): it is on.
pub const WRITE_CACHE_ENABLE: u32 = 1 << 0;
/// Write Atomicity, bit 0 (DN): only the power fail unit is kept, not the normal one.
pub const DISABLE_NORMAL_ATOMICITY: u32 = 1 << 0;
/// Reservation Persistence, bit 0 (PTPL): reservations survive power loss.
pub const PERSIST_THROUGH_POWER_LOSS: u32 = 1 << 0;

/// Bits of the Reservation Notification Mask: a set bit keeps that notification back.
pub mod reservation_mask {
    /// Registration preempted.
    pub const REGISTRATION_PREEMPTED: u32 = 1 << 1;
    /// Reservation released.
    pub const RESERVATION_RELEASED: u32 = 1 << 2;
    /// Reservation preempted.
    pub const RESERVATION_PREEMPTED: u32 = 1 << 3;
}

/// Arbitration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arbitration {
    /// Commands at a time, a power of two; 7 is no limit.
    pub burst: u8,
    /// Commands in a round from the low class, 1 to 256.
    pub low_weight: u16,
    /// Commands in a round from the medium class, 1 to 256.
    pub medium_weight: u16,
    /// Commands in a round from the high class, 1 to 256.
    pub high_weight: u16,
}

impl Arbitration {
    /// Reads CDW11 or DW0.
    #[must_use]
    pub fn parse(word: u32) -> Self {
        let [burst, lpw_z, mpw_z, hpw_z] = word.to_le_bytes();
        let [low_weight, medium_weight, high_weight] = [lpw_z, mpw_z, hpw_z].map(|z| u16::from(z) + 1);
        Self { burst: burst & 7, low_weight, medium_weight, high_weight }
    }

    /// CDW11, or DW0.
    ///
    /// # Panics
    /// When a weight is not from 1 to 256.
    #[must_use]
    pub fn emit(self) -> u32 {
        let [low, medium, high] =
            [self.low_weight, self.medium_weight, self.high_weight].map(to_zeroes_based);
        u32::from_le_bytes([self.burst & 7, low, medium, high])
    }
}

/// Power Management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerManagement {
    /// Power state.
    pub state: u8,
    /// Workload hint.
    pub workload_hint: u8,
}

impl PowerManagement {
    /// Reads CDW11 or DW0.
    #[must_use]
    pub fn parse(word: u32) -> Self {
        Self { state: word as u8 & 0x1f, workload_hint: (word >> 5) as u8 & 7 }
    }

    /// CDW11, or DW0.
    #[must_use]
    pub fn emit(self) -> u32 {
        u32::from(self.state & 0x1f) | u32::from(self.workload_hint & 7) << 5
    }
}

/// Temperature Threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemperatureThreshold {
    /// Kelvin.
    pub kelvin: u16,
    /// Sensor: 0 the composite temperature, 1 to 8 a sensor, Fh all that there are.
    pub sensor: u8,
    /// THSEL: 0 over temperature, 1 under temperature.
    pub select: u8,
}

impl TemperatureThreshold {
    /// Reads CDW11 or DW0.
    #[must_use]
    pub fn parse(word: u32) -> Self {
        Self { kelvin: word as u16, sensor: (word >> 16) as u8 & 0xf, select: (word >> 20) as u8 & 3 }
    }

    /// CDW11, or DW0.
    #[must_use]
    pub fn emit(self) -> u32 {
        u32::from(self.kelvin) | u32::from(self.sensor & 0xf) << 16 | u32::from(self.select & 3) << 20
    }
}

/// Error Recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorRecovery {
    /// Time limited error recovery in units of 100 ms; 0 is no limit.
    pub limit_100ms: u16,
    /// Reads of deallocated or unwritten blocks are errors (DULBE).
    pub deallocated_is_error: bool,
}

impl ErrorRecovery {
    /// Reads CDW11 or DW0.
    #[must_use]
    pub fn parse(word: u32) -> Self {
        Self { limit_100ms: word as u16, deallocated_is_error: word >> 16 & 1 == 1 }
    }

    /// CDW11, or DW0.
    #[must_use]
    pub fn emit(self) -> u32 {
        u32::from(self.limit_100ms) | u32::from(self.deallocated_is_error) << 16
    }
}

/// Interrupt Coalescing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptCoalescing {
    /// Completions before an interrupt, 1 to 256.
    pub threshold: u16,
    /// Longest delay in units of 100 µs; 0 is none.
    pub time_100us: u8,
}

impl InterruptCoalescing {
    /// Reads CDW11 or DW0.
    #[must_use]
    pub fn parse(word: u32) -> Self {
        Self { threshold: u16::from(word as u8) + 1, time_100us: (word >> 8) as u8 }
    }

    /// CDW11, or DW0.
    ///
    /// # Panics
    /// When the threshold is not from 1 to 256.
    #[must_use]
    pub fn emit(self) -> u32 {
        u32::from(to_zeroes_based(self.threshold)) | u32::from(self.time_100us) << 8
    }
}

fn to_zeroes_based(count: u16) -> u8 {
    count.checked_sub(1).and_then(|z| u8::try_from(z).ok()).expect("a count from 1 to 256")
}

/// The data of Host Behavior Support, as on the wire.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct HostBehavior {
    /// Advanced command retry (ACRE): 1 when the host honours the retry delay.
    pub acre: u8,
    /// Extended telemetry data area 4 (ETDAS).
    pub etdas: u8,
    /// Extended LBA formats (LBAFEE): 1 when the host understands them.
    pub lbafee: u8,
    /// Dispersed namespaces (HDISNS).
    pub hdisns: u8,
    /// Copy descriptor formats that are enabled (CDFE).
    pub cdfe: U16,
    reserved: [u8; 506],
}

/// The data of Timestamp, as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TimestampData {
    millis: [u8; 6],
    attributes: u8,
    reserved: u8,
}

const _: () = {
    assert!(size_of::<HostBehavior>() == super::features::HOST_BEHAVIOR_LEN);
    assert!(core::mem::offset_of!(HostBehavior, cdfe) == 4);
    assert!(size_of::<TimestampData>() == super::features::TIMESTAMP_LEN);
};

impl HostBehavior {
    /// A host that asks for nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::new_zeroed()
    }
}

impl Default for HostBehavior {
    fn default() -> Self {
        Self::new()
    }
}

impl TimestampData {
    /// Milliseconds since 1970 (its lower 48 bits), set by the host when `set_by_host`, else counted since the
    /// controller's reset.
    #[must_use]
    pub fn new(millis: u64, set_by_host: bool) -> Self {
        let [a, b, c, d, e, f, ..] = millis.to_le_bytes();
        Self { millis: [a, b, c, d, e, f], attributes: u8::from(set_by_host) << 1, reserved: 0 }
    }

    /// Milliseconds.
    #[must_use]
    pub fn millis(&self) -> u64 {
        let [a, b, c, d, e, f] = self.millis;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }

    /// Timestamp origin (bits 3:1 of the attributes) is a Set Features command.
    #[must_use]
    pub fn set_by_host(&self) -> bool {
        self.attributes >> 1 & 7 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_stand_where_the_standard_puts_them() {
        let arbitration = Arbitration { burst: 7, low_weight: 1, medium_weight: 256, high_weight: 3 };
        assert_eq!(arbitration.emit(), 0x02ff_0007);
        assert_eq!(PowerManagement { state: 3, workload_hint: 1 }.emit(), 0x23);
        assert_eq!(TemperatureThreshold { kelvin: 343, sensor: 0xf, select: 1 }.emit(), 0x001f_0157);
        assert_eq!(ErrorRecovery { limit_100ms: 5, deallocated_is_error: true }.emit(), 0x0001_0005);
        assert_eq!(InterruptCoalescing { threshold: 8, time_100us: 1 }.emit(), 0x0107);
        assert_eq!(TimestampData::new(0x0102_0304_0506, true).as_bytes(), [6, 5, 4, 3, 2, 1, 2, 0]);
    }

    proptest! {
        #[test]
        fn what_parses_is_emitted_the_same(word: u32, bytes: [u8; 8]) {
            let value = Arbitration::parse(word);
            prop_assert_eq!(Arbitration::parse(value.emit()), value);
            let value = PowerManagement::parse(word);
            prop_assert_eq!(PowerManagement::parse(value.emit()), value);
            let value = TemperatureThreshold::parse(word);
            prop_assert_eq!(TemperatureThreshold::parse(value.emit()), value);
            let value = ErrorRecovery::parse(word);
            prop_assert_eq!(ErrorRecovery::parse(value.emit()), value);
            let value = InterruptCoalescing::parse(word);
            prop_assert_eq!(InterruptCoalescing::parse(value.emit()), value);
            let read = TimestampData::read_from_bytes(&bytes).unwrap();
            let value = TimestampData::new(read.millis(), read.set_by_host());
            prop_assert_eq!((value.millis(), value.set_by_host()), (read.millis(), read.set_by_host()));
        }
    }
}
