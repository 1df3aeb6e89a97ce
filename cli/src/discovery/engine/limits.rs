//! How much of what others list is looked after.

/// How much that is listed is beyond the limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Beyond {
    /// Discovery controllers that are not followed.
    pub(crate) referrals: usize,
    /// Subsystems that are not watched.
    pub(crate) subsystems: usize,
    /// Namespaces of others that are not attached.
    pub(crate) disks: usize,
}

/// How much there is at most of what others list. One discovery controller that is named has half of it, with all that it refers to;
/// so have all that are announced.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Subsystems that are watched.
    pub(crate) subsystems: usize,
    pub(crate) disks: usize,
    pub(crate) disks_of_subsystem: usize,
    /// Disks that are attached at the same time.
    pub(crate) at_once: usize,
    pub(crate) at_once_of_subsystem: usize,
}

impl Limits {
    pub(crate) const NONE: Self = Self {
        subsystems: usize::MAX,
        disks: usize::MAX,
        disks_of_subsystem: usize::MAX,
        at_once: usize::MAX,
        at_once_of_subsystem: usize::MAX,
    };
}
