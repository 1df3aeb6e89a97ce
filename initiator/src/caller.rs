//! A thread that runs [`crate::block_on`]: the connections that its future waits for, which it drives meanwhile.

use crate::shared_driver::SharedDriver;
use core::cell::RefCell;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

// A thread that ends has none of these any more while it runs what was left for its end (destructors of C and C++, `atexit`): it
// waits there without driving.
thread_local! {
    /// The connections that the future at the top of this thread waits for; `None` outside of `block_on`.
    static CALLER: RefCell<Option<Caller>> = const { RefCell::new(None) };
    /// An empty list, kept for the next `block_on`.
    static SPARE: RefCell<Vec<Arc<SharedDriver>>> = const { RefCell::new(Vec::new()) };
}

#[derive(Default)]
struct Caller {
    shared_drivers: Vec<Arc<SharedDriver>>,
    /// It is counted among the callers of these connections.
    joined: bool,
}

/// The result of one turn of each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// Something was done.
    Worked,
    /// There was nothing to do; poll on for so long.
    Quiet(Duration),
    /// Another thread has the engine; try on for so long.
    Taken(Duration),
    /// Nothing is in flight.
    Idle,
}

/// As long as this exists, this thread drives what its future waits for.
pub(crate) struct CallerScope {
    outer: Option<Caller>,
}

impl CallerScope {
    pub(crate) fn begin() -> Self {
        let shared_drivers = SPARE.try_with(RefCell::take).unwrap_or_default();
        Self { outer: swap(Some(Caller { shared_drivers, joined: true })) }
    }
}

impl Drop for CallerScope {
    fn drop(&mut self) {
        if let Some(mut caller) = swap(self.outer.take()) {
            caller.leave();
            let mut shared_drivers = core::mem::take(&mut caller.shared_drivers);
            shared_drivers.clear();
            // Without one, the next list is a new one.
            let _ = SPARE.try_with(|spare| spare.replace(shared_drivers));
        }
    }
}

/// Also on a panic in a turn.
impl Drop for Caller {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Caller {
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

/// Makes this thread's `block_on`, if it runs one, drive this connection whenever it waits. Whether it does.
pub(crate) fn wait_for(shared_driver: &Arc<SharedDriver>) -> bool {
    let waits = CALLER.try_with(|caller| {
        let mut caller = caller.borrow_mut();
        let Some(caller) = caller.as_mut() else { return false };
        caller.join();
        if !caller.shared_drivers.iter().any(|known| Arc::ptr_eq(known, shared_driver)) {
            shared_driver.join();
            caller.shared_drivers.push(Arc::clone(shared_driver));
        }
        true
    });
    waits.unwrap_or(false)
}

/// Makes `caller` this thread's; the one before. A thread that ends has none.
fn swap(caller: Option<Caller>) -> Option<Caller> {
    CALLER.try_with(|current| current.replace(caller)).unwrap_or_default()
}

/// Makes a turn of each connection that has something in flight. To be called within a [`CallerScope`].
pub(crate) fn drive(now: Instant) -> Round {
    // Taken out meanwhile: a waker may run anything, futures of this crate included.
    let Some(mut caller) = swap(None) else { return Round::Idle };
    caller.join();
    let round = caller.drive(now);
    swap(Some(caller));
    round
}

/// Leaves the connections to their threads, and forgets those that have ended.
pub(crate) fn leave_all() {
    let Some(mut caller) = swap(None) else { return };
    caller.leave();
    caller.shared_drivers.retain(|shared_driver| !shared_driver.ended());
    swap(Some(caller));
}
