//! Property Get and Set, and the controller properties (NVMe Base, "Controller Properties").

use crate::fabrics::command;
use crate::opcode::FabricsType;
use crate::sqe::Sqe;

open_enum! {
    /// Offset of a property.
    pub struct Property: u32 {
        /// Controller Capabilities, 8 bytes.
        CAP = 0x00,
        /// Version, 4 bytes.
        VS = 0x08,
        /// Controller Configuration, 4 bytes.
        CC = 0x14,
        /// Controller Status, 4 bytes.
        CSTS = 0x1c,
        /// NVM Subsystem Reset, 4 bytes.
        NSSR = 0x20,
        /// NVM Subsystem Shutdown, 4 bytes.
        NSSD = 0x64,
        /// Controller Ready Timeouts, 4 bytes.
        CRTO = 0x68,
    }
}

/// Property Get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertyGet {
    /// ATTRIB bits 2:0: 0 is 4 bytes, 1 is 8 bytes, the rest is reserved.
    pub size: u8,
    /// Which.
    pub property: Property,
}

/// Property Set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertySet {
    /// As in [`PropertyGet`].
    pub size: u8,
    /// Which.
    pub property: Property,
    /// To what.
    pub value: u64,
}

impl PropertyGet {
    /// Reads the command.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        Self { size: sqe.cdw10.get() as u8 & 7, property: Property(sqe.cdw11.get()) }
    }

    /// The command.
    #[must_use]
    pub fn emit(&self) -> Sqe {
        command(FabricsType::PROPERTY_GET).with_dwords([u32::from(self.size), self.property.0, 0, 0, 0, 0])
    }
}

impl PropertySet {
    /// Reads the command.
    #[must_use]
    pub fn parse(sqe: &Sqe) -> Self {
        let PropertyGet { size, property } = PropertyGet::parse(sqe);
        let value = u64::from(sqe.cdw13.get()) << 32 | u64::from(sqe.cdw12.get());
        Self { size, property, value }
    }

    /// The command.
    #[must_use]
    pub fn emit(&self) -> Sqe {
        let value = [self.value as u32, (self.value >> 32) as u32];
        command(FabricsType::PROPERTY_SET).with_dwords([
            u32::from(self.size),
            self.property.0,
            value[0],
            value[1],
            0,
            0,
        ])
    }
}

/// Controller Capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// Capabilities of a Fabrics controller: contiguous queues required, the NVM command set, 4 KiB pages.
    ///
    /// `entries` are those of the largest queue, 2 to 65536; `timeout_500ms` is how long enabling may take.
    #[must_use]
    pub fn new(entries: u32, timeout_500ms: u8) -> Self {
        let mqes_z = u64::from(entries.clamp(2, 65536) - 1);
        Self(mqes_z | 1 << 16 | u64::from(timeout_500ms) << 24 | 1 << 37)
    }

    /// The same with the choice of command sets (CSS bit 6: the host may write 110b to CC.CSS).
    #[must_use]
    pub fn with_all_command_sets(self) -> Self {
        Self(self.0 | 1 << 43)
    }

    /// Entries in the largest queue.
    #[must_use]
    pub fn queue_entries(self) -> u32 {
        u32::from(self.0 as u16) + 1
    }

    /// How long the controller may take to become ready, in units of 500 ms.
    #[must_use]
    pub fn timeout_500ms(self) -> u8 {
        (self.0 >> 24) as u8
    }

    /// Whether the NVM command set is there (CSS bit 0).
    #[must_use]
    pub fn nvm_command_set(self) -> bool {
        self.0 >> 37 & 1 == 1
    }

    /// Whether one or more I/O command sets can be chosen (CSS bit 6: CC.CSS may be 110b).
    #[must_use]
    pub fn all_command_sets(self) -> bool {
        self.0 >> 43 & 1 == 1
    }

    /// The least page size as a power of two from 4 KiB (MPSMIN).
    #[must_use]
    pub fn page_size_min(self) -> u32 {
        (self.0 >> 48) as u32 & 0xf
    }
}

/// Controller Configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Configuration(pub u32);

impl Configuration {
    /// What a host writes to enable a controller: 64-byte and 16-byte entries, 4 KiB pages, the NVM command set.
    pub const ENABLE: Self = Self(1 | 6 << 16 | 4 << 20);

    /// EN.
    #[must_use]
    pub fn enabled(self) -> bool {
        self.0 & 1 == 1
    }

    /// CSS.
    #[must_use]
    pub fn command_set(self) -> u8 {
        (self.0 >> 4) as u8 & 7
    }

    /// MPS, a power of two from 4 KiB.
    #[must_use]
    pub fn page_size(self) -> u8 {
        (self.0 >> 7) as u8 & 0xf
    }

    /// AMS.
    #[must_use]
    pub fn arbitration(self) -> u8 {
        (self.0 >> 11) as u8 & 7
    }

    /// SHN: 0 none, 1 normal, 2 abrupt.
    #[must_use]
    pub fn shutdown(self) -> u8 {
        (self.0 >> 14) as u8 & 3
    }

    /// IOSQES, a power of two.
    #[must_use]
    pub fn io_sqes(self) -> u8 {
        (self.0 >> 16) as u8 & 0xf
    }

    /// IOCQES, a power of two.
    #[must_use]
    pub fn io_cqes(self) -> u8 {
        (self.0 >> 20) as u8 & 0xf
    }

    /// The same with a normal shutdown asked for.
    #[must_use]
    pub fn with_normal_shutdown(self) -> Self {
        Self(self.0 & !(3 << 14) | 1 << 14)
    }
}

/// Controller Status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ControllerStatus(pub u32);

impl ControllerStatus {
    /// Ready.
    pub const READY: Self = Self(1);
    /// Fatal.
    pub const FATAL: Self = Self(1 << 1);
    /// Shutdown occurring.
    pub const SHUTDOWN_OCCURRING: Self = Self(0b01 << 2);
    /// Shutdown complete.
    pub const SHUTDOWN_COMPLETE: Self = Self(0b10 << 2);

    /// RDY.
    #[must_use]
    pub fn ready(self) -> bool {
        self.0 & 1 == 1
    }

    /// CFS.
    #[must_use]
    pub fn fatal(self) -> bool {
        self.0 >> 1 & 1 == 1
    }

    /// SHST is "complete".
    #[must_use]
    pub fn shutdown_complete(self) -> bool {
        self.0 >> 2 & 3 == 2
    }

    /// Both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Version: major, minor, tertiary.
#[must_use]
pub const fn version(major: u16, minor: u8, tertiary: u8) -> u32 {
    (major as u32) << 16 | (minor as u32) << 8 | tertiary as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_linux_host_writes_to_enable() {
        assert_eq!(Configuration::ENABLE.0, 0x0046_0001);
        assert_eq!((Configuration::ENABLE.io_sqes(), Configuration::ENABLE.io_cqes()), (6, 4));
        assert_eq!(Configuration::ENABLE.with_normal_shutdown().shutdown(), 1);
    }

    #[test]
    fn capabilities() {
        let cap = Capabilities::new(128, 15);
        assert_eq!(cap.0, 0x0000_0020_0f01_007f);
        assert_eq!((cap.queue_entries(), cap.timeout_500ms(), cap.nvm_command_set()), (128, 15, true));
    }

    proptest! {
        #[test]
        fn parse_and_emit_are_inverse(size in 0u8..8, property: u32, value: u64) {
            let get = PropertyGet { size, property: Property(property) };
            prop_assert_eq!(PropertyGet::parse(&get.emit()), get);
            let set = PropertySet { size, property: Property(property), value };
            prop_assert_eq!(PropertySet::parse(&set.emit()), set);
        }
    }
}
