//! What a thread that runs [`crate::block_on`] waits for, and drives meanwhile.

use crate::shared_driver::SharedDriver;
use core::cell::RefCell;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

thread_local! {
    /// The connections that the future at the top of this thread waits for; `None` outside of `block_on`.
    static HELPER: RefCell<Option<Helper>> = const { RefCell::new(None) };
    /// Its memory, for the next.
    static SPARE: RefCell<Vec<Arc<SharedDriver>>> = const { RefCell::new(Vec::new()) };
}

#[derive(Default)]
struct Helper {
    shared_drivers: Vec<Arc<SharedDriver>>,
    /// The connections count on us.
    joined: bool,
}

/// What a round over the connections came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// Something was done.
    Worked,
    /// There was nothing to do yet; go on for so long.
    Quiet(Duration),
    /// Somebody else is at it; go on for so long.
    Taken(Duration),
    /// There is nothing to wait for.
    Idle,
}

/// That this thread drives what its future waits for, until it is dropped.
pub(crate) struct Helping {
    outer: Option<Helper>,
}

impl Helping {
    pub(crate) fn begin() -> Self {
        let shared_drivers = SPARE.take();
        Self { outer: HELPER.replace(Some(Helper { shared_drivers, joined: true })) }
    }
}

impl Drop for Helping {
    fn drop(&mut self) {
        if let Some(mut helper) = HELPER.replace(self.outer.take()) {
            helper.leave();
            let mut shared_drivers = core::mem::take(&mut helper.shared_drivers);
            shared_drivers.clear();
            SPARE.replace(shared_drivers);
        }
    }
}

/// Also when something panics while we drive.
impl Drop for Helper {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Helper {
    fn join(&mut self) {
        if !core::mem::replace(&mut self.joined, true) {
            self.shared_drivers.iter().for_each(|shared_driver| shared_driver.join());
        }
    }

    fn leave(&mut self) {
        if core::mem::replace(&mut self.joined, false) {
            self.shared_drivers.iter().for_each(|shared_driver| shared_driver.leave());
        }
    }

    fn drive(&self, now: Instant) -> Round {
        let mut round = Round::Idle;
        for shared_driver in self.shared_drivers.iter().filter(|shared_driver| shared_driver.is_busy()) {
            let spin = match round {
                Round::Quiet(spin) | Round::Taken(spin) => spin.max(shared_driver.spin()),
                Round::Worked | Round::Idle => shared_driver.spin(),
            };
            round = match (shared_driver.drive(now), round) {
                (Some(true), _) | (_, Round::Worked) => Round::Worked,
                (Some(false), _) | (None, Round::Quiet(_)) => Round::Quiet(spin),
                (None, _) => Round::Taken(spin),
            };
        }
        round
    }
}

/// Has the thread's `block_on`, if there is one, drive this connection whenever it waits.
pub(crate) fn wait_for(shared_driver: &Arc<SharedDriver>) {
    HELPER.with_borrow_mut(|helper| {
        let Some(helper) = helper else { return };
        helper.join();
        if !helper.shared_drivers.iter().any(|known| Arc::ptr_eq(known, shared_driver)) {
            shared_driver.join();
            helper.shared_drivers.push(Arc::clone(shared_driver));
        }
    });
}

/// Makes a turn of each connection that there is something to wait for. To be called within [`Helping`].
pub(crate) fn drive(now: Instant) -> Round {
    // Out of its place meanwhile: a waker may run anything, futures of ours included.
    let Some(mut helper) = HELPER.take() else { return Round::Idle };
    helper.join();
    let round = helper.drive(now);
    HELPER.replace(Some(helper));
    round
}

/// Leaves the connections to their threads, and forgets those that have ended.
pub(crate) fn let_go() {
    let Some(mut helper) = HELPER.take() else { return };
    helper.leave();
    helper.shared_drivers.retain(|shared_driver| !shared_driver.ended());
    HELPER.replace(Some(helper));
}
