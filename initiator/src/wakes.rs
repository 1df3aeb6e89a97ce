//! Futures whose operations have ended, and who is still to be told.
//!
//! What ends in one turn is listed, and whoever made the turn wakes it after it has released the engine. A task that is woken may run at
//! once in its waker's place, on the same processor. It finds the others here and wakes them before it goes on: they run in one go, on
//! the thread that runs them, instead of one at a time with two changes of threads for each.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// In the order in which their operations ended.
#[derive(Default)]
pub(crate) struct Wakes(Mutex<VecDeque<Waker>>);

impl Wakes {
    /// Lists one.
    pub(crate) fn add(&self, waker: Waker) {
        self.lock().push_back(waker);
    }

    /// Wakes those that are listed, and outside of every lock: a waker may run anything.
    pub(crate) fn wake_all(&self) {
        while let Some(waker) = self.next() {
            waker.wake();
        }
    }

    fn next(&self) -> Option<Waker> {
        self.lock().pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Waker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
