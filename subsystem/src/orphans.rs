//! Operations that are in flight on a device while their connection is gone.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use nvmf_block::DeviceId;

/// Counters of devices. Devices whose identifiers have the same remainder share one: then one waits for the other as
/// well.
const DEVICES: usize = 256;
/// How long a host that reconnects is refused because of them. Most complete within milliseconds. Those of a device
/// that hangs do not, and the host needs its other namespaces.
const REFUSAL_TIME: Duration = Duration::from_secs(5);

/// The orphaned operations of one host on the devices of one subsystem. They may yet take effect, and overwrite what
/// the host writes after it reconnected. Shared by all associations of the host with the subsystem.
#[derive(Debug)]
pub(crate) struct Orphans {
    all: AtomicU32,
    by_device: [AtomicU32; DEVICES],
    /// When a Connect was first refused because of the present ones, in milliseconds, at least 1; 0 if none was.
    refused_ms: AtomicU64,
}

impl Default for Orphans {
    fn default() -> Self {
        let by_device = [const { AtomicU32::new(0) }; DEVICES];
        Self { all: AtomicU32::new(0), by_device, refused_ms: AtomicU64::new(0) }
    }
}

impl Orphans {
    /// Whether the host has any.
    pub(crate) fn any(&self) -> bool {
        self.all.load(Ordering::Acquire) > 0
    }

    /// Whether the host has any on this device.
    pub(crate) fn any_on(&self, device: DeviceId) -> bool {
        self.any() && self.of(device).load(Ordering::Acquire) > 0
    }

    pub(crate) fn add(&self, device: DeviceId) {
        self.of(device).fetch_add(1, Ordering::AcqRel);
        self.all.fetch_add(1, Ordering::AcqRel);
    }

    /// # Panics
    /// When there is none on the device.
    pub(crate) fn remove(&self, device: DeviceId) {
        take_one(self.of(device));
        if take_one(&self.all) == 1 {
            self.refused_ms.store(0, Ordering::Release);
        }
    }

    /// Whether to refuse a Connect of the host. Called under the registry's lock.
    pub(crate) fn refuse_connect(&self, now: Duration) -> bool {
        if !self.any() {
            return false;
        }
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX).max(1);
        let first = match self.refused_ms.load(Ordering::Acquire) {
            0 => {
                self.refused_ms.store(now_ms, Ordering::Release);
                now_ms
            }
            first => first,
        };
        Duration::from_millis(now_ms.saturating_sub(first)) < REFUSAL_TIME
    }

    fn of(&self, device: DeviceId) -> &AtomicU32 {
        &self.by_device[device.0 as usize % DEVICES]
    }
}

/// Counts down; returns what it was.
fn take_one(counter: &AtomicU32) -> u32 {
    let before = counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| count.checked_sub(1));
    before.expect("an operation completed that was not counted as orphaned")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orphans_count_by_device() {
        let orphans = Orphans::default();
        orphans.add(DeviceId(1));
        orphans.add(DeviceId(1));
        orphans.add(DeviceId(300));
        assert!(orphans.any_on(DeviceId(1)) && orphans.any_on(DeviceId(300)) && !orphans.any_on(DeviceId(2)));
        orphans.remove(DeviceId(1));
        assert!(orphans.any_on(DeviceId(1)));
        orphans.remove(DeviceId(1));
        assert!(!orphans.any_on(DeviceId(1)) && orphans.any());
        orphans.remove(DeviceId(300));
        assert!(!orphans.any());
    }

    #[test]
    #[should_panic(expected = "an operation completed that was not counted as orphaned")]
    fn remove_without_add_panics() {
        Orphans::default().remove(DeviceId(1));
    }

    #[test]
    fn refuse_connect_ends_after_a_time_and_begins_anew_with_new_orphans() {
        let orphans = Orphans::default();
        let at = Duration::from_secs;
        assert!(!orphans.refuse_connect(at(10)));
        orphans.add(DeviceId(1));
        assert!(orphans.refuse_connect(at(10)) && orphans.refuse_connect(at(14)));
        assert!(!orphans.refuse_connect(at(15)));
        orphans.remove(DeviceId(1));
        orphans.add(DeviceId(1));
        assert!(orphans.refuse_connect(at(100)) && !orphans.refuse_connect(at(105)));
    }
}
