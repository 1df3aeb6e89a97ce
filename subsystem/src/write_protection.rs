//! Write protection of a namespace by its hosts (NVMe Base, "Namespace Write Protection").

/// The write protection of a namespace, as a host set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WriteProtection {
    /// Writes are taken.
    #[default]
    Off,
    /// No command changes the namespace, until a host sets it to [`WriteProtection::Off`]: also over a loss of power.
    On,
    /// No command changes the namespace for as long as the target runs.
    UntilPowerCycle,
}

impl WriteProtection {
    /// The state of that value (WPS). There is no permanent one: a file can always be written to by others.
    pub(crate) fn from_wps(wps: u32) -> Option<Self> {
        [Self::Off, Self::On, Self::UntilPowerCycle].into_iter().find(|state| state.wps() == wps)
    }

    /// Its value (WPS).
    pub(crate) fn wps(self) -> u32 {
        match self {
            Self::Off => 0b000,
            Self::On => 0b001,
            Self::UntilPowerCycle => 0b010,
        }
    }
}
