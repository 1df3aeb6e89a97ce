//! What is known of the devices behind namespaces: how warm they are, and what drives say of their wear.

use crate::Nqn;
use crate::namespace::NamespaceTable;
use alloc::collections::BTreeMap;
use nvmf_block::DeviceId;

/// Critical warnings of the SMART / Health log page (NVMe Base, "SMART / Health Information").
pub(crate) mod warning {
    /// The available spare is below its threshold.
    pub(crate) const SPARE: u8 = 1 << 0;
    /// A temperature is at or beyond a threshold.
    pub(crate) const TEMPERATURE: u8 = 1 << 1;
    /// Reliability is degraded, media are read-only, or the backup of volatile memory failed.
    pub(crate) const RELIABILITY: u8 = 0b11100;
}

/// What is known of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceHealth {
    /// In Kelvin; 0 is not known.
    pub temperature: u16,
    /// What the drive says of itself, if it can be asked.
    pub wear: Option<Wear>,
}

/// What a drive's own SMART / Health log page says of its wear, in the standard's units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wear {
    /// Critical Warning. That of the temperature (bit 1) is left out: the host's own thresholds decide it.
    pub critical_warning: u8,
    /// Percent that is left.
    pub available_spare: u8,
    /// Percent under which the drive warns.
    pub available_spare_threshold: u8,
    /// Percent of the life that the vendor expects; up to 255.
    pub percentage_used: u8,
}

impl Default for Wear {
    /// Of a device that says nothing: nothing is used up, and nothing can fall below a threshold of 0.
    fn default() -> Self {
        Self { critical_warning: 0, available_spare: 100, available_spare_threshold: 0, percentage_used: 0 }
    }
}

impl DeviceHealth {
    /// The worse of both in each.
    fn worse(self, other: Self) -> Self {
        let wear = match (self.wear, other.wear) {
            (Some(one), Some(two)) => Some(one.worse(two)),
            (one, two) => one.or(two),
        };
        Self { temperature: self.temperature.max(other.temperature), wear }
    }
}

impl Wear {
    fn worse(self, other: Self) -> Self {
        let margin = |it: &Self| i16::from(it.available_spare) - i16::from(it.available_spare_threshold);
        let spare = if margin(&self) <= margin(&other) { self } else { other };
        Self {
            critical_warning: self.critical_warning | other.critical_warning,
            percentage_used: self.percentage_used.max(other.percentage_used),
            ..spare
        }
    }
}

/// What is known of all devices at one time: immutable, replaced as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HealthTable {
    /// Hours that the target has run: Power On Hours.
    pub hours: u64,
    /// Those that something is known of.
    pub devices: BTreeMap<DeviceId, DeviceHealth>,
}

impl HealthTable {
    /// The worst of the devices behind the namespaces that exist for a host.
    pub(crate) fn behind(&self, namespaces: &NamespaceTable, host: &Nqn) -> DeviceHealth {
        if self.devices.is_empty() {
            return DeviceHealth::default();
        }
        let known = namespaces.seen_by(host).filter_map(|namespace| self.devices.get(&namespace.device));
        known.copied().fold(DeviceHealth::default(), DeviceHealth::worse)
    }
}
