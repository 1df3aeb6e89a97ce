//! A remote namespace on the thread that serves it as a disk: connected, watched, and left in order.

use super::fence::{Fence, FenceFile};
use super::serve::{Change, lock_disk};
use super::{AttachOptions, disk};
use crate::connect::{Via, reach};
use crate::namespace::{choose, taken_of};
use anyhow::{Context, Result, anyhow};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmf_attached::{Attachment, DiskLock};
use nvmf_block::{Backend, BlockError, BlockOp, Completion, DeviceId, Tag};
use nvmf_host::{AssociationError, Namespace};
use nvmf_initiator::transport::AnyTransport;
use nvmf_initiator::{ConnectionState, RemoteBackend};
use nvmf_spin::Spin;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// How long requests under way and the last flush may take together when a disk is detached.
pub(super) const FINISH_TIME_MAX: Duration = Duration::from_secs(15);
/// How long the end of the connection may take.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(15);
/// How long the thread may take for all of it.
pub(super) const END_TIME_MAX: Duration = Duration::from_secs(35);
/// How long the commands of a server are carried out after its target knows of its end, where the target has not said.
const UNKNOWN_QUIESCE: Duration = Duration::from_secs(30);
/// The last flush's tag: no request's.
const LAST_FLUSH: Tag = Tag(u64::MAX);

fn is_connected(state: ConnectionState) -> bool {
    matches!(state, ConnectionState::Live | ConnectionState::Foreign)
}

/// What of this connection may be carried out after the end of this process.
fn now_fenced(backend: &RemoteBackend<AnyTransport>, otherwise: Duration) -> Fence {
    let controller = backend.controller().and_then(|controller| controller.instance);
    Fence::new(controller, backend.quiesce_time().unwrap_or(otherwise))
}

/// How a thread that serves a disk is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// Not yet.
    NotYet = 0,
    /// After what is under way at the target: another server goes on, with what has not begun.
    HandOver = 1,
    /// After what is under way, and a flush.
    InOrder = 2,
    /// At once: every request fails, those that wait and those that come.
    AtOnce = 3,
}

/// What the thread is told by others: how to end, and to connect again.
#[derive(Debug)]
pub(super) struct Control {
    end: AtomicU8,
    reconnect: AtomicBool,
    /// The thread was woken; set after that.
    rung: AtomicBool,
    wakeup: EventFd,
}

impl Control {
    pub(super) fn new() -> Result<Arc<Self>> {
        let wakeup = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let end = AtomicU8::new(End::NotYet as u8);
        let (reconnect, rung) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Arc::new(Self { end, reconnect, rung, wakeup }))
    }

    /// Has the thread connect again, also to a target that it gave up.
    pub(super) fn reconnect(&self) {
        self.reconnect.store(true, Ordering::Release);
        self.wake();
    }

    /// Has the thread end. What was asked for before is not taken back.
    pub(super) fn end(&self, how: End) {
        self.end.fetch_max(how as u8, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        // A full counter has rung already.
        let _ = self.wakeup.write(1);
        self.rung.store(true, Ordering::Release);
    }

    /// How the thread is to end, as far as it was told.
    pub(super) fn asked(&self) -> End {
        match self.end.load(Ordering::Acquire) {
            0 => End::NotYet,
            1 => End::HandOver,
            2 => End::InOrder,
            _ => End::AtOnce,
        }
    }

    /// Takes back what woke the thread.
    fn heard(&self) {
        if self.rung.swap(false, Ordering::AcqRel) {
            let _ = self.wakeup.read();
        }
    }
}

/// How the thread is reached, and whom it tells. `U` is what it says when it serves.
pub(super) struct Wires<U> {
    pub(super) control: Arc<Control>,
    pub(super) changes: watch::Sender<Change>,
    pub(super) up: oneshot::Sender<U>,
}

/// What becomes of the connection, one change after the other.
pub(super) fn changes(mut states: watch::Receiver<Change>) -> impl AsyncFnMut() -> Change {
    async move || match states.changed().await {
        Ok(()) => states.borrow_and_update().clone(),
        // The thread is gone, which is seen elsewhere.
        Err(_) => core::future::pending().await,
    }
}

/// The state that a thread's connection begins with.
pub(super) fn first(origin: &Origin) -> (watch::Sender<Change>, watch::Receiver<Change>) {
    let state = origin.first_state();
    let bytes = origin.before.as_ref().map_or(0, |before| before.size);
    watch::channel(Change { state, reason: None, bytes })
}

/// What a disk's thread begins with.
#[derive(Clone)]
pub(super) struct Origin {
    pub(super) options: AttachOptions,
    pub(super) fence: FenceFile,
    /// The disk that it takes over.
    pub(super) before: Option<Attachment>,
    /// What the kernel has on record for the disk's device.
    pub(super) mark: u64,
}

impl Origin {
    fn first_state(&self) -> ConnectionState {
        if self.before.is_some() { ConnectionState::Connecting } else { ConnectionState::Live }
    }

    /// Longer than commands of a server that was killed are carried out, where nothing more is known.
    fn quiesce_max(&self) -> Duration {
        self.options.connection.keep_alive.saturating_mul(2) + UNKNOWN_QUIESCE
    }
}

/// Runs what blocks on a thread of its own, which nobody waits for when the process ends.
pub(super) fn in_thread<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<oneshot::Receiver<Result<T>>> {
    let (done, is_done) = oneshot::channel();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || drop(done.send(body())))?;
    Ok(is_done)
}

/// What a disk's thread has connected to, or takes over.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub(super) namespace: Namespace,
    /// The subsystem as its controller names itself.
    pub(super) subsystem_nqn: String,
    /// Over what it is connected; `None` for a disk that is taken over.
    pub(super) via: Option<Via>,
    /// What is said of the choice, if there was one and nobody made it.
    pub(super) choice: Option<String>,
}

/// The connection of a disk's thread.
pub(super) struct Remote {
    pub(super) backend: RemoteBackend<AnyTransport>,
    pub(super) found: Found,
    control: Arc<Control>,
    changes: watch::Sender<Change>,
    /// What was told last: the state, the loss, and the disk's size.
    state: ConnectionState,
    revision: u32,
    loss: Option<AssociationError>,
    bytes: u64,
    fence: FenceFile,
    /// What is in that file.
    fenced: Fence,
    spin: Spin,
    spin_max: Duration,
    /// When the clock of `spin` started.
    start: Instant,
    _lock: Option<DiskLock>,
}

impl Remote {
    /// Connects to the namespace that is meant, and locks it. A disk that is taken over is connected later: until then its
    /// requests wait.
    pub(super) fn open(
        origin: &Origin,
        control: Arc<Control>,
        changes: watch::Sender<Change>,
    ) -> Result<Self> {
        let (options, fence) = (&origin.options, origin.fence.clone());
        let connection = &options.connection;
        let (backend, found, lock, fenced) = match &origin.before {
            Some(before) => {
                let namespace = disk::namespace(before)?;
                let lock = lock_disk(options, &namespace)?;
                let left = fence.read(origin.quiesce_max());
                let impacted = left.map(Fence::impacted);
                let connection = disk::connection(connection, before);
                let backend = RemoteBackend::resume(&connection, disk::identity(before)?, impacted)?;
                let fenced = left.unwrap_or_else(|| Fence::new(None, origin.quiesce_max())).anywhere();
                // What is issued first is issued before the controller is known here.
                fence.write(Some(fenced))?;
                let subsystem_nqn = String::new();
                (backend, Found { namespace, subsystem_nqn, via: None, choice: None }, lock, fenced)
            }
            None => {
                let reached = reach(connection.clone(), async |options| RemoteBackend::connect(&options));
                let (backend, via) = crate::runtime::run(reached)?;
                let nsid = choose(&connection.nqn, options.nsid, backend.namespaces())?;
                let namespace = backend.namespace(nsid)?;
                let lock = lock_disk(options, &namespace)?;
                let fenced = now_fenced(&backend, origin.quiesce_max());
                fence.write(Some(fenced))?;
                let choice = match options.nsid {
                    Some(_) => None,
                    None => taken_of(&connection.nqn, nsid, backend.namespaces()),
                };
                let subsystem_nqn = backend.controller().map(|controller| controller.subsystem_nqn.clone());
                let subsystem_nqn = subsystem_nqn.unwrap_or_default();
                (backend, Found { namespace, subsystem_nqn, via: Some(via), choice }, lock, fenced)
            }
        };
        Ok(Self {
            bytes: found.namespace.geometry.bytes(),
            found,
            control,
            changes,
            state: origin.first_state(),
            revision: backend.revision(),
            backend,
            loss: None,
            fence,
            fenced,
            spin: Spin::new(),
            spin_max: connection.spin,
            start: Instant::now(),
            _lock: lock,
        })
    }

    /// The namespace as a device of the backend.
    pub(super) fn device(&self) -> DeviceId {
        DeviceId(self.found.namespace.nsid.0)
    }

    /// After a turn that found work or did not: tells what became of the connection, and whether to sleep now.
    pub(super) fn may_sleep(&mut self, worked: bool) -> bool {
        self.tell();
        if worked {
            if self.spin.is_waiting() {
                self.spin.on_work(self.start.elapsed());
            }
            return false;
        }
        let spins = self.spin.goes_on(self.start.elapsed(), self.spin_max);
        if spins {
            // The target may be on this machine, and the clients of a socket are: they get the processor if they need it.
            self.spin.on_yield();
            std::thread::yield_now();
        }
        !spins
    }

    /// Sleeps until there is something to do: at the latest after `most`, or when `requests` is readable.
    pub(super) fn sleep(&mut self, most: Duration, requests: BorrowedFd<'_>) {
        self.backend.sleep_for(most, &[requests, self.control.wakeup.as_fd()]);
        self.woken();
    }

    /// Prepares a sleep that ends when one of [`Remote::descriptors`] is readable: for how long it may be, at most; `None`
    /// when there is something to do already. [`Remote::woken`] follows it.
    pub(super) fn arm(&mut self) -> Option<Duration> {
        self.backend.arm()
    }

    /// The connection's descriptor and the control's. `u32`: the number of the connection's transport, which tells its
    /// descriptor from that of the one before.
    pub(super) fn descriptors(&self) -> [Option<(BorrowedFd<'_>, u32)>; 2] {
        [self.backend.descriptor(), Some((self.control.wakeup.as_fd(), 0))]
    }

    /// A sleep is over.
    pub(super) fn woken(&self) {
        self.control.heard();
    }

    /// The bytes in the disk, as far as the target has said.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn tell(&mut self) {
        if self.control.reconnect.swap(false, Ordering::Acquire) {
            self.backend.reconnect();
        }
        let (state, loss, revision) = (self.backend.state(), self.backend.loss(), self.backend.revision());
        if self.state == state && self.loss.as_ref() == loss && self.revision == revision {
            return;
        }
        self.loss = loss.cloned();
        // Before anything else is connected, and after it is.
        if self.is_connected() || is_connected(state) {
            self.write_fence(state);
        }
        (self.state, self.revision) = (state, revision);
        let foreign = self.backend.foreign().find(|(nsid, _)| *nsid == self.found.namespace.nsid);
        let mismatch = foreign.map(|(_, mismatch)| mismatch);
        if state == ConnectionState::Live
            && let Ok(namespace) = self.backend.namespace(self.found.namespace.nsid)
        {
            self.bytes = self.bytes.max(namespace.geometry.bytes());
        }
        self.changes.send_replace(Change::new(state, self.loss.as_ref(), mismatch, self.bytes));
    }

    fn is_connected(&self) -> bool {
        is_connected(self.state)
    }

    /// Writes down which controller has what is issued from now on.
    fn write_fence(&mut self, state: ConnectionState) {
        let quiesce = self.backend.quiesce_time().unwrap_or_default();
        let now =
            if is_connected(state) { now_fenced(&self.backend, quiesce) } else { self.fenced.anywhere() };
        if now != self.fenced {
            self.fenced = now;
            if let Err(error) = self.fence.write(Some(now)) {
                tracing::warn!(%error, "if this process is killed, another waits longer than it must");
            }
        }
    }

    /// Ends the connection in order: nothing of it can be carried out later, if all has ended.
    pub(super) fn hand_over(mut self, nothing_is_under_way: bool) {
        let fence = self.fence.clone();
        let may_be_clean = nothing_is_under_way && is_connected(self.backend.state());
        self.shut_down();
        if may_be_clean && self.backend.state() == ConnectionState::Lost {
            // The worst is there already.
            let _ = fence.write(None);
        }
    }

    /// Flushes what was written, if that is possible until then, and ends the connection.
    pub(super) fn finish(mut self, until: Instant) -> Result<()> {
        let flushed = self.flush(until);
        self.close();
        flushed.context("the last flush failed: what was not flushed before may be lost")
    }

    /// Ends the connection. What waits for the target fails, and is not done later.
    pub(super) fn close(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        self.backend.shutdown();
        let deadline = Instant::now() + CLOSE_TIME_MAX;
        while self.backend.state() != ConnectionState::Lost && Instant::now() < deadline {
            if !self.backend.turn() {
                self.backend.sleep_for(deadline.saturating_duration_since(Instant::now()), &[]);
            }
        }
    }

    fn flush(&mut self, until: Instant) -> Result<()> {
        let mut completions: Vec<Completion> = Vec::with_capacity(64);
        let mut is_submitted = false;
        loop {
            // It is full when requests are still under way.
            is_submitted =
                is_submitted || self.backend.submit(LAST_FLUSH, self.device(), BlockOp::Flush).is_ok();
            self.backend.poll(&mut completions);
            for completion in completions.drain(..) {
                // A request that ended after its client was gone: nobody waits for it.
                if completion.tag == LAST_FLUSH {
                    return completion.result.map_err(|error| match error {
                        BlockError::ReservationConflict => {
                            anyhow!("another host holds a reservation (`nvmf resv-report` shows which)")
                        }
                        error => error.into(),
                    });
                }
            }
            if Instant::now() >= until {
                return Err(anyhow!("it took too long"));
            }
            self.backend.sleep_for(until.saturating_duration_since(Instant::now()), &[]);
        }
    }
}
