//! A barrier: when a change in the registry has come into force everywhere.
//!
//! A change takes effect on each worker when that has read its [`Notice`](nvmf_subsystem::Notice). A barrier that is
//! posted behind the notice is reached when every worker has read both, and has nothing *older* in flight that the
//! barrier names. Whatever takes something away (a namespace, a size, a path, a reservation) is done then, and not
//! before.

use crate::message::WorkerId;
use nvmf_block::DeviceId;
use nvmf_subsystem::{Association, AssociationKey, HostId};
use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What a barrier waits for, beside the notices before it: commands that a worker had taken up before.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scope {
    /// Those with work on these devices, also where their connection is gone and the device has the operation yet.
    pub devices: BTreeSet<DeviceId>,
    /// Of the commands for devices only those of these hosts; `None`: of all.
    pub hosts: Option<BTreeSet<HostId>>,
    /// Of these hosts, commands for the devices that are not at a device yet end (Preempt and Abort).
    pub aborts: BTreeSet<HostId>,
    /// And only those that came in through this port; `None`: through any.
    pub port: Option<u16>,
    /// All commands of these associations.
    pub associations: BTreeSet<AssociationKey>,
}

impl Scope {
    /// Nothing but the notices.
    #[must_use]
    pub fn notices() -> Self {
        Self::default()
    }

    /// Commands of any host for these devices.
    #[must_use]
    pub fn devices(devices: impl IntoIterator<Item = DeviceId>) -> Self {
        Self { devices: devices.into_iter().collect(), ..Self::default() }
    }

    /// Whether it names anything in flight at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.associations.is_empty()
    }

    /// Whether it names a command of this association with work on this device.
    #[must_use]
    pub fn names(&self, association: &Association, device: Option<DeviceId>) -> bool {
        let is_of_host = || self.hosts.as_ref().is_none_or(|hosts| hosts.contains(&association.host_id()));
        let is_of_port = || self.port.is_none_or(|port| association.port() == port);
        self.associations.contains(&association.key())
            || device.is_some_and(|device| self.devices.contains(&device)) && is_of_host() && is_of_port()
    }
}

/// One barrier, shared by who waits for it and the workers.
#[derive(Debug)]
pub struct Barrier {
    scope: Scope,
    /// The workers that have not reached it.
    missing: Mutex<BTreeSet<WorkerId>>,
    reached: Condvar,
}

impl Barrier {
    /// A barrier for the first so many workers. Each is to be given it by
    /// [`WorkerMessage::Barrier`](crate::message::WorkerMessage::Barrier).
    #[must_use]
    pub fn new(workers: usize, scope: Scope) -> Arc<Self> {
        let missing = (0..workers).map(WorkerId).collect();
        Arc::new(Self { scope, missing: Mutex::new(missing), reached: Condvar::new() })
    }

    /// What it waits for.
    #[must_use]
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// A worker has reached it.
    pub fn reach(&self, worker: WorkerId) {
        let mut missing = self.missing();
        if missing.remove(&worker) && missing.is_empty() {
            self.reached.notify_all();
        }
    }

    /// Whether all have.
    #[must_use]
    pub fn is_reached(&self) -> bool {
        self.missing().is_empty()
    }

    /// Waits until all have, at most so long. `Err` names the workers that have not: each has a command of the scope in
    /// flight, or does not turn.
    ///
    /// # Errors
    /// Not reached in time.
    pub fn wait(&self, timeout: Duration) -> Result<(), BTreeSet<WorkerId>> {
        let until = Instant::now() + timeout;
        let mut missing = self.missing();
        while !missing.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(missing.clone());
            }
            let waited = self.reached.wait_timeout(missing, left);
            missing = waited.expect("no panic happened at the barrier").0;
        }
        Ok(())
    }

    fn missing(&self) -> MutexGuard<'_, BTreeSet<WorkerId>> {
        self.missing.lock().expect("no panic happened at the barrier")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn barrier_is_reached_by_the_last_worker() {
        let barrier = Barrier::new(2, Scope::notices());
        barrier.reach(WorkerId(1));
        barrier.reach(WorkerId(1));
        assert_eq!(barrier.wait(Duration::ZERO), Err(BTreeSet::from([WorkerId(0)])));
        let waiting = {
            let barrier = Arc::clone(&barrier);
            std::thread::spawn(move || barrier.wait(Duration::from_secs(60)))
        };
        barrier.reach(WorkerId(0));
        assert_eq!(waiting.join().unwrap(), Ok(()));
        assert!(barrier.is_reached());
    }
}
