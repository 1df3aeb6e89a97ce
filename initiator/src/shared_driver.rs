//! Who drives a connection: whoever waits for it, and its own thread when nobody does.
//!
//! The engine stands behind a lock that nobody waits for but the connection's thread. Who submits, takes it if it is free; who
//! finds it taken leaves mail, which the holder reads. [`crate::block_on`] drives while its future waits; other executors do not,
//! and the thread does it for them.
//!
//! The thread sits in one of three states. *Awake* it turns the engine, or is about to look whether it should. *On the provider* it sleeps until the
//! provider, the wakeup or a deadline of the engine's wakes it: nobody drives. *On the wakeup* it sleeps for a [`TICK`] at most: a caller drives, and the provider
//! must not wake us both.
//!
//! Why nothing is forgotten:
//!
//! 1. **Mail.** A message is put in the box before the lock is tried, and the box is looked into after the lock is released. The box has
//!    a lock of its own, so one comes first: the look, and then the lock was free before the message was there, and its sender gets it (or somebody does
//!    who will look later); or the message, and then it is seen.
//! 2. **A caller that stops driving**, in whatever way: at the end of its future, before it parks, by a panic, or never to come back
//!    because it computes for ever. `driven` says that a turn was made by a caller since the thread looked last, and the thread stays on the wakeup
//!    only when it was. So it has the provider back within two ticks, whatever callers do. That bounds the wait; rule 3 is what makes it
//!    short.
//! 3. **Operations of others.** A caller that leaves as the last looks whether anything is under way, and calls the thread back by the wakeup;
//!    who submits without driving looks whether any caller is there, and does the same when there is none. `callers` and `in_flight` are
//!    written before the other is read, in one order for all (`SeqCst`): one of the two sees the other.
//! 4. **A thread that falls asleep.** It writes its state before it looks a last time at `driven`, the mailbox and `in_flight`, and those are written before
//!    the state is read by who might have to ring.
//! 5. **Armed, and then driven by others.** A caller's first turn calls the thread off the provider. Who only submits while the thread sleeps there takes
//!    what is there to poll and arms again under the lock, and rings when that cannot be, or when there is an earlier deadline now than
//!    the thread sleeps to.
//! 6. **The end.** An engine that is over counts as none: callers stop, the thread is rung, and ends it; what was not answered ends with its channel.
//!    The same holds for an engine in which somebody panicked.

use crate::Error;
use crate::engine::{Descriptor, Turn};
use crate::mailbox::{Mailbox, Message, Request};
use crate::slot::Slots;
use core::time::Duration;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Instant;

/// How long the thread leaves the driving to callers before it looks again.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// Turns that a submitter makes to be able to arm the provider again.
const TURNS_TO_ARM: u32 = 3;

/// The thread's states.
const RUNNING: u8 = 0;
const PARKED_ON_PROVIDER: u8 = 1;
const PARKED_ON_MAILBOX: u8 = 2;

/// Who drives a connection.
pub(crate) struct SharedDriver {
    /// There is none before the driver is made, and after the end.
    engine: Mutex<Option<Box<dyn Turn>>>,
    mailbox: Mailbox,
    slots: Slots,
    spin: Duration,
    start: Instant,
    wakeup: EventFd,
    state: AtomicU8,
    /// When the thread wakes by itself, in nanoseconds since the start. Written and read under the engine's lock.
    wakes_at: AtomicU64,
    /// Callers that drive when they wait.
    callers: AtomicUsize,
    /// A caller made a turn since the thread looked last.
    driven: AtomicBool,
    /// What the engine had under way when its lock was released last.
    in_flight: AtomicUsize,
    ended: AtomicBool,
}

impl SharedDriver {
    /// Of a connection that has `operations` at once, and whose drivers spin for so long.
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

    /// How long who drives it goes on when nothing comes.
    pub(crate) fn spin(&self) -> Duration {
        self.spin
    }

    /// Whether nothing will be driven any more.
    pub(crate) fn ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    /// Whether there is anything to wait for.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight.load(SeqCst) > 0 || !self.mailbox.is_empty()
    }

    fn since_start(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.start)
    }

    // What anyone may do.

    /// Tells the engine something, for the thread or whoever drives to go on with.
    pub(crate) fn send(&self, message: Message) {
        self.post(message, self.since_start(Instant::now()));
    }

    /// Tells the engine what it has to know before the next operation and not earlier: wakes nobody.
    pub(crate) fn note(&self, message: Message) {
        // After the end there is nobody to know.
        drop(self.mailbox.put(message));
    }

    /// Submits an operation: on this thread if the engine is free, else by mail.
    pub(crate) fn submit(&self, request: Request) {
        let now = self.since_start(Instant::now());
        let mut request = Some(request);
        let submitted = self.try_with(now, |engine| {
            if let Some(request) = request.take() {
                engine.submit(now, request);
            }
            self.keep_asleep(now, engine);
        });
        match request {
            Some(request) if submitted.is_none() => self.post(Message::Submit(request), now),
            _ => self.hand_over(),
        }
    }

    fn post(&self, message: Message, now: Duration) {
        if let Err(refused) = self.mailbox.put(message) {
            // Outside of every lock: a buffer that goes back to its pool may have something to say.
            drop(refused);
            return;
        }
        // Who has the lock looks into the box when it lets go of it.
        self.try_with(now, |engine| self.keep_asleep(now, engine));
        self.hand_over();
    }

    /// Does something with the engine if it is free and not over, and then what was left in the mailbox meanwhile.
    fn try_with<R>(&self, now: Duration, act: impl FnOnce(&mut dyn Turn) -> R) -> Option<R> {
        let result = self.try_once(now, act)?;
        while !self.mailbox.is_empty() {
            if self.try_once(now, |engine| self.keep_asleep(now, engine)).is_none() {
                break;
            }
            self.hand_over();
        }
        Some(result)
    }

    fn try_once<R>(&self, now: Duration, act: impl FnOnce(&mut dyn Turn) -> R) -> Option<R> {
        let mut engine = match self.engine.try_lock() {
            Ok(engine) => engine,
            Err(TryLockError::WouldBlock) => return None,
            Err(TryLockError::Poisoned(_)) => {
                self.call_back();
                return None;
            }
        };
        let engine = engine.as_deref_mut().filter(|engine| !engine.is_over())?;
        engine.read(now, &self.mailbox);
        let result = act(engine);
        self.in_flight.store(engine.under_way(), SeqCst);
        if engine.is_over() {
            self.call_back();
        }
        Some(result)
    }

    /// After something was submitted while the thread sleeps on the provider: has what it sleeps on still tell of everything.
    fn keep_asleep(&self, now: Duration, engine: &mut dyn Turn) {
        if self.state.load(SeqCst) != PARKED_ON_PROVIDER {
            return;
        }
        for _ in 0..TURNS_TO_ARM {
            engine.turn(now);
            if let Some(at) = engine.rest(now) {
                if nanoseconds(at) < self.wakes_at.load(SeqCst) {
                    break;
                }
                return;
            }
        }
        self.ring();
    }

    /// Calls the thread back when something is under way that nobody drives.
    fn hand_over(&self) {
        if self.callers.load(SeqCst) == 0
            && self.in_flight.load(SeqCst) > 0
            && self.state.load(SeqCst) == PARKED_ON_MAILBOX
        {
            self.call_back();
        }
    }

    /// Has the thread drive, whoever drove until now.
    fn call_back(&self) {
        self.driven.store(false, SeqCst);
        self.ring();
    }

    /// Wakes the thread if it sleeps.
    fn ring(&self) {
        if self.state.swap(RUNNING, SeqCst) != RUNNING {
            // A full counter has rung already.
            let _ = self.wakeup.write(1);
        }
    }

    // What a caller that waits does.

    /// Says that this caller will drive when it waits.
    pub(crate) fn join(&self) {
        self.callers.fetch_add(1, SeqCst);
    }

    /// Says that it will not any more.
    pub(crate) fn leave(&self) {
        self.callers.fetch_sub(1, SeqCst);
        self.hand_over();
    }

    /// Makes a turn, and whether there was something to do; `None` when somebody else is at it.
    pub(crate) fn drive(&self, now: Instant) -> Option<bool> {
        let now = self.since_start(now);
        let worked = self.try_with(now, |engine| engine.turn(now))?;
        if !self.driven.load(SeqCst) {
            self.driven.store(true, SeqCst);
        }
        if self.state.load(SeqCst) == PARKED_ON_PROVIDER {
            self.ring();
        }
        Some(worked)
    }

    // What the connection's thread does.

    /// Sets the engine in its place.
    pub(crate) fn start(&self, engine: Box<dyn Turn>) {
        *self.engine.lock().unwrap_or_else(PoisonError::into_inner) = Some(engine);
    }

    /// Drives until the connection is over, sleeping on the provider in between.
    pub(crate) fn drive_until_over(&self) {
        let mut descriptor = None;
        let mut idle_since = None;
        loop {
            if self.driven.swap(false, SeqCst) {
                self.sit_back();
                idle_since = None;
                continue;
            }
            let now = self.since_start(Instant::now());
            match self.with(|engine| engine.turn(now)) {
                None => return,
                Some(true) => idle_since = None,
                Some(false) if now.saturating_sub(*idle_since.get_or_insert(now)) < self.spin => {
                    std::hint::spin_loop();
                }
                Some(false) => {
                    self.sleep(&mut descriptor);
                    idle_since = None;
                }
            }
        }
    }

    /// Does something with the engine as soon as it is free; `None` when it is over.
    fn with<R>(&self, act: impl FnOnce(&mut dyn Turn) -> R) -> Option<R> {
        let mut engine = self.engine.lock().ok()?;
        let engine = engine.as_deref_mut().filter(|engine| !engine.is_over())?;
        engine.read(self.since_start(Instant::now()), &self.mailbox);
        let result = act(engine);
        self.in_flight.store(engine.under_way(), SeqCst);
        Some(result)
    }

    /// Leaves the driving to a caller for a tick.
    fn sit_back(&self) {
        self.state.store(PARKED_ON_MAILBOX, SeqCst);
        let left = self.callers.load(SeqCst) == 0 && self.in_flight.load(SeqCst) > 0;
        if !left && self.mailbox.is_empty() {
            self.wait(None, TICK);
        }
        self.wake();
    }

    /// Sleeps until the provider, the wakeup or a deadline.
    fn sleep(&self, descriptor: &mut Option<Descriptor>) {
        self.state.store(PARKED_ON_PROVIDER, SeqCst);
        let now = self.since_start(Instant::now());
        let until = self.with(|engine| {
            let until = engine.rest(now)?;
            if let Some(new) = engine.descriptor(descriptor.as_ref().map(|known| known.provider)) {
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
        self.wake();
    }

    fn wake(&self) {
        self.state.store(RUNNING, SeqCst);
        // Empty when it has not rung.
        let _ = self.wakeup.read();
    }

    fn wait(&self, provider: Option<BorrowedFd<'_>>, time: Duration) {
        // Rounded up, so that a deadline is past when we wake for it.
        let timeout = PollTimeout::try_from(time + Duration::from_micros(999)).unwrap_or(PollTimeout::ZERO);
        let wakeup = self.wakeup.as_fd();
        let mut watched = [wakeup, provider.unwrap_or(wakeup)].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut watched, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => tracing::error!(%errno, "poll failed"),
        }
    }

    /// Ends the engine: whoever waits is told by the end of its channel.
    pub(crate) fn end(&self) {
        let rest = self.mailbox.close();
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.in_flight.store(0, SeqCst);
        self.ended.store(true, SeqCst);
        drop(engine);
        drop(rest);
    }
}

/// Five hundred years fit.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
