//! How much the service does at once, how often, and how much of it it tells.

use super::super::engine::Limits;
use std::time::Duration;

/// Before a controller that was never reached is tried again; doubled each time.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(1);
pub(super) const RETRY_DELAY_MAX: Duration = Duration::from_secs(30);
/// Keep Alive of connections on which little happens, as nvme-cli's to discovery controllers.
pub(super) const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Disks that are attached at once; the others wait.
pub(super) const AT_ONCE: usize = 16;
/// Subsystems that are connected to at once, to ask which namespaces they have, and discovery controllers; the others wait. Half of them
/// are of one discovery controller that is named, with all that it refers to. Each connection takes a thread and some descriptors until it
/// is there or has failed, and how many there are to be others say.
pub(super) const ASKED_AT_ONCE: usize = 128;
/// Of what is listed, what a service looks after.
pub(super) const LIMITS: Limits = Limits {
    subsystems: 1024,
    disks: 1024,
    disks_of_subsystem: 256,
    at_once: AT_ONCE,
    at_once_of_subsystem: 2,
};
/// Things that are said to be left out: what they are called others say.
pub(super) const LEFT_OUT_MAX: usize = 256;
/// Lines a minute of what cannot be reached.
pub(super) const FAILURES_MAX: usize = 60;
/// No disk disappears from the list without somebody's doing: how often that is looked at where nothing else happens.
pub(super) const LOOK: Duration = Duration::from_secs(60);
