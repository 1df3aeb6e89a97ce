//! Asynchronous events (NVMe Base, "Asynchronous Event Request command").

open_enum! {
    /// Asynchronous event type.
    pub struct EventType: u8 {
        /// Error status.
        ERROR = 0,
        /// SMART / health status.
        SMART = 1,
        /// Notice.
        NOTICE = 2,
        /// Immediate.
        IMMEDIATE = 3,
        /// One-Shot.
        ONE_SHOT = 4,
        /// I/O command specific status.
        IO_COMMAND_SPECIFIC = 6,
        /// Vendor specific.
        VENDOR = 7,
    }
}

/// An event: DW0 of the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Type.
    pub kind: EventType,
    /// Information; its meaning depends on the type.
    pub info: u8,
    /// The log page to read, which clears the event.
    pub log_page: u8,
}

impl AsyncEvent {
    /// Notice: the attributes of a namespace changed, or the list of namespaces.
    pub const ATTACHED_NAMESPACE_ATTRIBUTE_CHANGED: Self =
        Self { kind: EventType::NOTICE, info: 0x00, log_page: 0x04 };
    /// Notice: asymmetric namespace access changed.
    pub const ANA_CHANGE: Self = Self { kind: EventType::NOTICE, info: 0x03, log_page: 0x0c };
    /// Error: the controller is broken for good.
    pub const PERSISTENT_INTERNAL_ERROR: Self = Self { kind: EventType::ERROR, info: 0x03, log_page: 0x01 };
    /// Error: the controller was broken for a while.
    pub const TRANSIENT_INTERNAL_ERROR: Self = Self { kind: EventType::ERROR, info: 0x04, log_page: 0x01 };
    /// Health: the subsystem's reliability is degraded.
    pub const NVM_SUBSYSTEM_RELIABILITY: Self = Self { kind: EventType::SMART, info: 0x00, log_page: 0x02 };
    /// Health: a temperature crossed its threshold.
    pub const TEMPERATURE: Self = Self { kind: EventType::SMART, info: 0x01, log_page: 0x02 };
    /// Health: the spare is below its threshold.
    pub const SPARE_BELOW_THRESHOLD: Self = Self { kind: EventType::SMART, info: 0x02, log_page: 0x02 };
    /// I/O command specific: a reservation notification waits.
    pub const RESERVATION_LOG_AVAILABLE: Self =
        Self { kind: EventType::IO_COMMAND_SPECIFIC, info: 0x00, log_page: 0x80 };
    /// Notice: a Cross-Controller Reset is over.
    pub const CROSS_CONTROLLER_RESET_COMPLETED: Self =
        Self { kind: EventType::NOTICE, info: 0xf4, log_page: 0x1e };
    /// Notice: the discovery log page changed.
    pub const DISCOVERY_LOG_CHANGED: Self = Self { kind: EventType::NOTICE, info: 0xf0, log_page: 0x70 };

    /// Reads DW0.
    #[must_use]
    pub fn parse(dw0: u32) -> Self {
        Self { kind: EventType(dw0 as u8 & 7), info: (dw0 >> 8) as u8, log_page: (dw0 >> 16) as u8 }
    }

    /// DW0.
    #[must_use]
    pub fn emit(self) -> u32 {
        u32::from(self.kind.0 & 7) | u32::from(self.info) << 8 | u32::from(self.log_page) << 16
    }
}

/// Bits of the Asynchronous Event Configuration feature, and of OAES in Identify Controller.
pub mod notice {
    /// Namespace attribute notices.
    pub const ATTACHED_NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
    /// Firmware activation notices.
    pub const FIRMWARE_ACTIVATION: u32 = 1 << 9;
    /// Asymmetric namespace access change notices.
    pub const ANA_CHANGE: u32 = 1 << 11;
    /// Cross-Controller Reset completed notices.
    pub const CROSS_CONTROLLER_RESET: u32 = 1 << 20;
    /// Discovery log page change notices.
    pub const DISCOVERY_LOG_CHANGE: u32 = 1 << 31;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_discovery_notice_is_what_the_standard_says() {
        assert_eq!(AsyncEvent::DISCOVERY_LOG_CHANGED.emit(), 0x0070_f002);
        assert_eq!(AsyncEvent::parse(0x0070_f002), AsyncEvent::DISCOVERY_LOG_CHANGED);
        assert_eq!(AsyncEvent::CROSS_CONTROLLER_RESET_COMPLETED.emit(), 0x001e_f402);
    }
}
