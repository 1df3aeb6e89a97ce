//! Who drives a connection's engine: whoever waits for an operation, or the connection's own thread.
//!
//! The engine is behind a lock that only the connection's thread ever waits for. A caller that submits takes the lock if it is free;
//! if not, it puts a message into the mailbox, which the holder reads. [`crate::block_on`] drives the engine while its future waits.
//! Other executors do not: for them the thread does.
//!
//! The thread is in one of three states. *Running*: it drives the engine, or is about to check whether it should. *Parked on the
//! transport*: it sleeps until the transport's descriptor, its wake-up descriptor or a deadline of the engine's ends the sleep. *Parked
//! on the mailbox*: a caller drives, and the thread sleeps for [`TICK`] at most, without watching the transport, which would wake both.
//!
//! Why no message and no completion is left lying:
//!
//! 1. **Messages.** A sender puts its message into the mailbox and then tries the lock. A holder releases the lock and then looks into
//!    the mailbox. The mailbox has a lock of its own, so one of the two comes first: either the holder sees the message, or the
//!    sender finds the lock free.
//! 2. **A caller that stops driving**, at the end of its future, before it parks, by a panic, or because it computes without end.
//!    `driven` says that a caller made a turn since the thread looked last, and only then does the thread stay parked on the
//!    mailbox. So the thread takes over within two ticks, whatever callers do. Rule 3 makes it sooner in the usual cases.
//! 3. **Operations of other callers.** The last caller to leave checks whether anything is in flight, and wakes the thread if so. A
//!    caller that submits without driving checks whether another caller drives, and wakes the thread if none does. `callers` and
//!    `in_flight` are each written before the other is read, in one order for all threads (`SeqCst`), so one of the two sees the other.
//! 4. **A thread that parks** writes its state before it checks `driven`, the mailbox and `in_flight` for the last time. Those are
//!    written before the state is read by a caller that may have to wake it.
//! 5. **A transport that was armed, and then polled by callers.** A caller's first turn wakes the thread from the transport. A caller that
//!    only submits while the thread is parked there polls what there is and arms the transport again under the lock. It wakes the
//!    thread if that fails, or if there is an earlier deadline now than the one that the thread sleeps to.
//! 6. **An operation that waits for a turn.** A submitter that finds the thread running, or that will drive itself, leaves it in the
//!    mailbox, puts it there before it looks at the state again, and does what rule 1 says if that has changed. A thread that parks
//!    looks into the mailbox afterwards (rule 4), and so does a caller that leaves.
//! 7. **The end.** An engine that is over is treated as if there were none: callers stop, and the thread is woken and ends it.
//!    Replies that were not sent end with their channels. The same holds for an engine in which a caller panicked.

use crate::Error;
use crate::engine::{Descriptor, Turn};
use crate::mailbox::{Mailbox, Message, Request};
use crate::slot::Slots;
use crate::wakes::Wakes;
use core::time::Duration;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmf_spin::Spin;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Instant;

/// How long the thread leaves the driving to callers before it looks again.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// Turns that a submitter makes to be able to arm the transport again.
const TURNS_TO_ARM: u32 = 3;

/// The thread's states.
const RUNNING: u8 = 0;
const PARKED_ON_TRANSPORT: u8 = 1;
const PARKED_ON_MAILBOX: u8 = 2;

/// A connection's engine, and who drives it.
pub(crate) struct SharedDriver {
    /// `None` before the driver is made, and after the end.
    engine: Mutex<Option<Box<dyn Turn>>>,
    mailbox: Mailbox,
    slots: Slots,
    wakes: Wakes,
    spin: Duration,
    start: Instant,
    wakeup: EventFd,
    state: AtomicU8,
    /// When the thread's sleep ends by itself, in nanoseconds since the start. Written and read under the engine's lock.
    wakes_at: AtomicU64,
    /// Callers that drive the engine while they wait.
    callers: AtomicUsize,
    /// Whether a caller made a turn since the thread looked last.
    driven: AtomicBool,
    /// Operations and admin commands in flight when the engine's lock was released last.
    in_flight: AtomicUsize,
    ended: AtomicBool,
}

impl SharedDriver {
    /// For a connection that has `operations` at once, and whose drivers spin for so long.
    ///
    /// # Errors
    /// [`Error::System`] when there is no descriptor left for its wakeup.
    pub(crate) fn new(operations: usize, spin: Duration) -> Result<Arc<Self>, Error> {
        let wakeup =
            EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(|errno| {
                Error::System { what: "cannot make an event descriptor", reason: errno.to_string() }
            })?;
        Ok(Arc::new(Self {
            engine: Mutex::new(None),
            mailbox: Mailbox::default(),
            slots: Slots::new(operations),
            wakes: Wakes::default(),
            spin,
            start: Instant::now(),
            wakeup,
            state: AtomicU8::new(RUNNING),
            wakes_at: AtomicU64::new(0),
            callers: AtomicUsize::new(0),
            driven: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        }))
    }

    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Who is to be told of operations that have ended.
    pub(crate) fn wakes(&self) -> &Wakes {
        &self.wakes
    }

    /// How long a driver of the engine goes on polling when nothing comes.
    pub(crate) fn spin(&self) -> Duration {
        self.spin
    }

    /// Whether the engine is gone.
    pub(crate) fn ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    /// Whether there is anything to wait for.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight.load(SeqCst) > 0 || !self.mailbox.is_empty()
    }

    /// The time that its engine counts in.
    pub(crate) fn now(&self) -> Duration {
        self.since_start(Instant::now())
    }

    fn since_start(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.start)
    }

    // For anyone.

    /// Sends the engine a message, and sees to it that the message is acted on.
    pub(crate) fn send(&self, message: Message) {
        self.post(message, self.now());
    }

    /// Sends the engine a message that it needs to see before the next operation and no earlier: wakes nobody.
    pub(crate) fn note(&self, message: Message) {
        // After the end nobody needs it.
        drop(self.mailbox.put(message));
    }

    /// Submits an operation: by a message to whoever is about to make a turn, which sends all that have come until then together; else
    /// on this thread if the engine is free. `drives` says that this thread will drive the engine when it has nothing else to do.
    pub(crate) fn submit(&self, request: Request, drives: bool) {
        let now = self.now();
        if self.turn_is_due(drives) {
            if let Err(refused) = self.mailbox.put(Message::Submit(request)) {
                // As in `post`.
                drop(refused);
            } else if !self.turn_is_due(drives) {
                self.read_mail(now);
            }
            return;
        }
        let mut request = Some(request);
        let submitted = self.try_with(now, |engine| {
            if let Some(request) = request.take() {
                engine.submit(now, request);
            }
            self.rearm(now, engine);
        });
        match request {
            Some(request) if submitted.is_none() => self.post(Message::Submit(request), now),
            _ => self.wake_if_undriven(),
        }
    }

    fn post(&self, message: Message, now: Duration) {
        if let Err(refused) = self.mailbox.put(message) {
            // Outside of every lock: a buffer that goes back to its pool may send a message.
            drop(refused);
            return;
        }
        self.read_mail(now);
    }

    /// Sees to it that what is in the mailbox is acted on.
    fn read_mail(&self, now: Duration) {
        // A holder of the lock looks into the mailbox after releasing it.
        self.try_with(now, |engine| self.rearm(now, engine));
        self.wake_if_undriven();
    }

    /// Whether the thread, or this one, is about to make a turn. This one alone may still be busy with other things for a while: it
    /// lets an operation wait only behind others that are under way, and the thread takes over meanwhile (rule 2).
    fn turn_is_due(&self, drives: bool) -> bool {
        let state = self.state.load(SeqCst);
        if drives {
            state != PARKED_ON_TRANSPORT && self.in_flight.load(SeqCst) > 0
        } else {
            state == RUNNING && self.callers.load(SeqCst) == 0
        }
    }

    /// Runs `act` on the engine if it is free and not over, and then handles what came into the mailbox meanwhile.
    fn try_with<R>(&self, now: Duration, act: impl FnOnce(&mut dyn Turn) -> R) -> Option<R> {
        let result = self.try_once(now, act)?;
        self.wakes.wake_all();
        while !self.mailbox.is_empty() {
            if self.try_once(now, |engine| self.rearm(now, engine)).is_none() {
                break;
            }
            self.wakes.wake_all();
            self.wake_if_undriven();
        }
        Some(result)
    }

    fn try_once<R>(&self, now: Duration, act: impl FnOnce(&mut dyn Turn) -> R) -> Option<R> {
        let mut engine = match self.engine.try_lock() {
            Ok(engine) => engine,
            Err(TryLockError::WouldBlock) => return None,
            Err(TryLockError::Poisoned(_)) => {
                self.wake_to_drive();
                return None;
            }
        };
        let engine = engine.as_deref_mut().filter(|engine| !engine.is_over())?;
        engine.read(now, &self.mailbox);
        let result = act(engine);
        self.in_flight.store(engine.under_way(), SeqCst);
        if engine.is_over() {
            self.wake_to_drive();
        }
        Some(result)
    }

    /// After a submission while the thread is parked on the transport: arms the transport again, so that the thread still wakes for
    /// every completion, or wakes the thread.
    fn rearm(&self, now: Duration, engine: &mut dyn Turn) {
        if self.state.load(SeqCst) != PARKED_ON_TRANSPORT {
            return;
        }
        for _ in 0..TURNS_TO_ARM {
            engine.turn(now, &self.wakes);
            if let Some(at) = engine.rest(now) {
                if nanoseconds(at) < self.wakes_at.load(SeqCst) {
                    break;
                }
                return;
            }
        }
        self.wake();
    }

    /// Wakes the thread when something is in flight and no caller drives.
    fn wake_if_undriven(&self) {
        if self.callers.load(SeqCst) == 0
            && self.in_flight.load(SeqCst) > 0
            && self.state.load(SeqCst) == PARKED_ON_MAILBOX
        {
            self.wake_to_drive();
        }
    }

    /// Wakes the thread, and makes it drive even if a caller drove until now.
    fn wake_to_drive(&self) {
        self.driven.store(false, SeqCst);
        self.wake();
    }

    /// Wakes the thread if it sleeps.
    fn wake(&self) {
        if self.state.swap(RUNNING, SeqCst) != RUNNING {
            // A counter that is full ends the sleep as well.
            let _ = self.wakeup.write(1);
        }
    }

    // For callers that wait.

    /// Announces that this caller drives while it waits.
    pub(crate) fn join(&self) {
        self.callers.fetch_add(1, SeqCst);
    }

    /// Ends what `join` announced.
    pub(crate) fn leave(&self) {
        self.callers.fetch_sub(1, SeqCst);
        if self.mailbox.is_empty() {
            self.wake_if_undriven();
        } else {
            self.read_mail(self.now());
        }
    }

    /// Makes a turn, and returns whether there was something to do; `None` when another thread has the engine.
    pub(crate) fn drive(&self, now: Instant) -> Option<bool> {
        let now = self.since_start(now);
        let worked = self.try_with(now, |engine| engine.turn(now, &self.wakes))?;
        if !self.driven.load(SeqCst) {
            self.driven.store(true, SeqCst);
        }
        if self.state.load(SeqCst) == PARKED_ON_TRANSPORT {
            self.wake();
        }
        Some(worked)
    }

    // For the connection's thread.

    /// Installs the engine.
    pub(crate) fn start(&self, engine: Box<dyn Turn>) {
        *self.engine.lock().unwrap_or_else(PoisonError::into_inner) = Some(engine);
    }

    /// Drives the engine until the connection is over, parked while there is nothing to do.
    pub(crate) fn drive_until_over(&self) {
        let mut descriptor = None;
        let mut spin = Spin::new();
        let mut has_worked = false;
        loop {
            if self.driven.swap(false, SeqCst) {
                self.park_on_mailbox();
                spin.on_leave();
                continue;
            }
            let now = self.since_start(Instant::now());
            let worked = self.with(|engine| engine.turn(now, &self.wakes));
            self.wakes.wake_all();
            match worked {
                None => return,
                Some(true) => {
                    spin.on_work(now);
                    has_worked = true;
                }
                Some(false) if spin.goes_on(now, self.spin) => {
                    // Who was told may have to run on this processor, and brings what comes next.
                    if core::mem::take(&mut has_worked) { spin.give_way() } else { spin.pause(now) }
                }
                Some(false) => self.park_on_transport(&mut descriptor),
            }
        }
    }

    /// Runs `act` on the engine as soon as it is free; `None` when it is over.
    fn with<R>(&self, act: impl FnOnce(&mut dyn Turn) -> R) -> Option<R> {
        let mut engine = self.engine.lock().ok()?;
        let engine = engine.as_deref_mut().filter(|engine| !engine.is_over())?;
        engine.read(self.since_start(Instant::now()), &self.mailbox);
        let result = act(engine);
        self.in_flight.store(engine.under_way(), SeqCst);
        Some(result)
    }

    /// Lets callers drive for a tick.
    fn park_on_mailbox(&self) {
        self.state.store(PARKED_ON_MAILBOX, SeqCst);
        let left = self.callers.load(SeqCst) == 0 && self.in_flight.load(SeqCst) > 0;
        if !left && self.mailbox.is_empty() {
            self.wait(None, TICK);
        }
        self.resume();
    }

    /// Sleeps until the transport has something, somebody wakes the thread, or a deadline comes.
    fn park_on_transport(&self, descriptor: &mut Option<Descriptor>) {
        self.state.store(PARKED_ON_TRANSPORT, SeqCst);
        let now = self.since_start(Instant::now());
        let until = self.with(|engine| {
            let until = engine.rest(now)?;
            if let Some(new) = engine.descriptor(descriptor.as_ref().map(|known| known.transport)) {
                *descriptor = Some(new);
            }
            self.wakes_at.store(nanoseconds(until), SeqCst);
            Some(until)
        });
        if let Some(Some(until)) = until
            && !self.driven.load(SeqCst)
            && self.mailbox.is_empty()
        {
            let fd = descriptor.as_ref().and_then(|known| known.fd.as_ref()).map(AsFd::as_fd);
            self.wait(fd, until.saturating_sub(now));
        }
        self.resume();
    }

    fn resume(&self) {
        self.state.store(RUNNING, SeqCst);
        // An error says that nobody woke us.
        let _ = self.wakeup.read();
    }

    fn wait(&self, transport: Option<BorrowedFd<'_>>, time: Duration) {
        // Rounded up, so that a deadline is past when we wake for it.
        let timeout = PollTimeout::try_from(time + Duration::from_micros(999)).unwrap_or(PollTimeout::ZERO);
        let wakeup = self.wakeup.as_fd();
        let mut watched = [wakeup, transport.unwrap_or(wakeup)].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut watched, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => tracing::error!(%errno, "poll failed"),
        }
    }

    /// Drops the engine: whoever waits is told by the end of its channel.
    pub(crate) fn end(&self) {
        let rest = self.mailbox.close();
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.in_flight.store(0, SeqCst);
        self.ended.store(true, SeqCst);
        drop(engine);
        drop(rest);
        self.wakes.wake_all();
    }
}

/// 584 years fit.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
