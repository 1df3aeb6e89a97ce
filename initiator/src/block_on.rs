//! Runs a future without a runtime, and drives the connections that it waits for.

use crate::caller::{self, CallerScope, Round};
use core::cell::Cell;
use core::pin::pin;
use nvmf_spin::Spin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

thread_local! {
    /// What waits in this thread, between two uses.
    static SPARE: Cell<Option<Waiting>> = const { Cell::new(None) };
}

struct Waiting {
    sleep: Arc<Sleep>,
    waker: Waker,
    spin: Spin,
    /// When the clock of `spin` started.
    start: Instant,
}

/// Where the thread sleeps. Not `std::thread::park`: that ends the process in a thread that has nothing of its own any more, as
/// while the destructors of pthread keys run for the second time.
#[derive(Default)]
struct Sleep {
    /// [`AWAKE`], [`ASLEEP`] or [`WOKEN`].
    state: AtomicU8,
    asleep: Mutex<()>,
    woken: Condvar,
}

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const WOKEN: u8 = 2;

impl Sleep {
    fn is_woken(&self) -> bool {
        self.state.load(Ordering::SeqCst) == WOKEN
    }

    /// Until it is woken, or has been since the last poll.
    fn sleep(&self) {
        let asleep = self.asleep.lock().unwrap_or_else(PoisonError::into_inner);
        if self.state.compare_exchange(AWAKE, ASLEEP, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            drop(self.woken.wait_while(asleep, |()| !self.is_woken()));
        }
    }
}

impl Wake for Sleep {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::SeqCst) == ASLEEP {
            // It waits by now, or has seen that it need not.
            drop(self.asleep.lock());
            self.woken.notify_one();
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
    let mut waiting = spare.unwrap_or_else(Waiting::new);
    let scope = CallerScope::begin();
    let waker = waiting.waker.clone();
    let mut context = Context::from_waker(&waker);
    let output = loop {
        // Not a store: what woke it has to be read, so that the poll sees what was written before the wake.
        waiting.sleep.state.swap(AWAKE, Ordering::SeqCst);
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
    fn new() -> Self {
        let sleep = Arc::<Sleep>::default();
        let waker = Waker::from(Arc::clone(&sleep));
        Self { sleep, waker, spin: Spin::new(), start: Instant::now() }
    }

    /// Drives what the future waits for until the future is woken, and sleeps when that takes long.
    fn wait(&mut self) {
        let Self { sleep, spin, start, .. } = self;
        while !sleep.is_woken() {
            let now = Instant::now();
            let at = now.saturating_duration_since(*start);
            match caller::drive(now) {
                Round::Worked => spin.on_work(at),
                Round::Quiet(max) if spin.goes_on(at, max) => spin.pause(at),
                // The thread that has the engine may need this core.
                Round::Taken(max) if spin.goes_on(at, max) => spin.give_way(),
                Round::Quiet(_) | Round::Taken(_) | Round::Idle => {
                    caller::leave_all();
                    sleep.sleep();
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
