//! What a thread that runs [`crate::block_on`] waits for, and drives meanwhile.

use crate::wheel::Wheel;
use core::cell::RefCell;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

thread_local! {
    /// The connections that the future at the top of this thread waits for; `None` outside of `block_on`.
    static HELPER: RefCell<Option<Helper>> = const { RefCell::new(None) };
    /// Its memory, for the next.
    static SPARE: RefCell<Vec<Arc<Wheel>>> = const { RefCell::new(Vec::new()) };
}

#[derive(Default)]
struct Helper {
    wheels: Vec<Arc<Wheel>>,
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
        let wheels = SPARE.take();
        Self { outer: HELPER.replace(Some(Helper { wheels, joined: true })) }
    }
}

impl Drop for Helping {
    fn drop(&mut self) {
        if let Some(mut helper) = HELPER.replace(self.outer.take()) {
            helper.leave();
            let mut wheels = core::mem::take(&mut helper.wheels);
            wheels.clear();
            SPARE.replace(wheels);
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
            self.wheels.iter().for_each(|wheel| wheel.join());
        }
    }

    fn leave(&mut self) {
        if core::mem::replace(&mut self.joined, false) {
            self.wheels.iter().for_each(|wheel| wheel.leave());
        }
    }

    fn drive(&self, now: Instant) -> Round {
        let mut round = Round::Idle;
        for wheel in self.wheels.iter().filter(|wheel| wheel.is_busy()) {
            let spin = match round {
                Round::Quiet(spin) | Round::Taken(spin) => spin.max(wheel.spin()),
                Round::Worked | Round::Idle => wheel.spin(),
            };
            round = match (wheel.drive(now), round) {
                (Some(true), _) | (_, Round::Worked) => Round::Worked,
                (Some(false), _) | (None, Round::Quiet(_)) => Round::Quiet(spin),
                (None, _) => Round::Taken(spin),
            };
        }
        round
    }
}

/// Has the thread's `block_on`, if there is one, drive this connection whenever it waits.
pub(crate) fn wait_for(wheel: &Arc<Wheel>) {
    HELPER.with_borrow_mut(|helper| {
        let Some(helper) = helper else { return };
        helper.join();
        if !helper.wheels.iter().any(|known| Arc::ptr_eq(known, wheel)) {
            wheel.join();
            helper.wheels.push(Arc::clone(wheel));
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
    helper.wheels.retain(|wheel| !wheel.ended());
    HELPER.replace(Some(helper));
}
