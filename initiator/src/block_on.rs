//! Runs a future without a runtime, and drives the connections that it waits for.

use crate::caller::{self, CallerScope, Round};
use core::cell::Cell;
use core::pin::pin;
use nvmf_spin::Spin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

thread_local! {
    /// What waits in this thread, between two uses.
    static SPARE: Cell<Option<Waiting>> = const { Cell::new(None) };
}

struct Waiting {
    unpark: Arc<Unpark>,
    waker: Waker,
    spin: Spin,
    /// When the clock of `spin` started.
    start: Instant,
}

struct Unpark {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            self.thread.unpark();
        }
    }
}

/// Runs a future to its end on this thread.
///
/// While the future waits for operations on [`crate::Device`]s, the thread drives their connections itself, for as long as
/// [`crate::Options::spin`] says after there was something to do last; then it sleeps, and the connections' own threads drive.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    // A wake left over from the last use costs one poll. A nested use takes another waker.
    // A thread that ends keeps none: it may still wait, in what runs at its end.
    let spare = SPARE.try_with(Cell::take).unwrap_or_default();
    let mut waiting = spare.unwrap_or_else(Waiting::of_this_thread);
    let scope = CallerScope::begin();
    let waker = waiting.waker.clone();
    let mut context = Context::from_waker(&waker);
    let output = loop {
        waiting.unpark.woken.store(false, Ordering::SeqCst);
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            break output;
        }
        waiting.wait();
    };
    drop(scope);
    let _ = SPARE.try_with(|spare| spare.set(Some(waiting)));
    output
}

impl Waiting {
    fn of_this_thread() -> Self {
        let unpark = Arc::new(Unpark { thread: thread::current(), woken: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&unpark));
        Self { unpark, waker, spin: Spin::new(), start: Instant::now() }
    }

    /// Drives what the future waits for until the future is woken, and sleeps when that takes long.
    fn wait(&mut self) {
        let Self { unpark, spin, start, .. } = self;
        let woken = || unpark.woken.load(Ordering::SeqCst);
        while !woken() {
            let now = Instant::now();
            let at = now.saturating_duration_since(*start);
            match caller::drive(now) {
                Round::Worked => spin.on_work(at),
                Round::Quiet(max) if spin.goes_on(at, max) => spin.pause(at),
                // The thread that has the engine may need this core.
                Round::Taken(max) if spin.goes_on(at, max) => spin.give_way(),
                Round::Quiet(_) | Round::Taken(_) | Round::Idle => {
                    caller::leave_all();
                    while !woken() {
                        thread::park();
                    }
                    spin.on_work(start.elapsed());
                }
            }
        }
        // Where another thread did the work.
        spin.on_leave();
    }
}

#[cfg(test)]
mod tests {
    use super::block_on;

    #[test]
    fn future_completed_by_another_thread_wakes_block_on() {
        let (sender, receiver) = futures_channel::oneshot::channel();
        let thread = std::thread::spawn(move || sender.send(7));
        assert_eq!(block_on(receiver), Ok(7));
        assert_eq!(thread.join().unwrap(), Ok(()));
    }

    #[test]
    fn nested_block_on_takes_no_wake_of_the_outer() {
        let (sender, receiver) = futures_channel::oneshot::channel();
        let waker = std::thread::spawn(move || sender.send(7));
        let both = async {
            let inner = block_on(async { 1 });
            inner + receiver.await.expect("sent")
        };
        assert_eq!(block_on(both), 8);
        assert_eq!(waker.join().unwrap(), Ok(()));
    }
}
