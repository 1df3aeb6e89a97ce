//! A remote namespace on the thread that serves it as a disk: connected, watched, and left in order.

use super::AttachOptions;
use super::serve::{Change, lock_disk};
use crate::connect::{Via, reach};
use crate::namespace::{choose, taken_of};
use anyhow::{Context, Result, anyhow};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nvme_proto::admin::log_page::AnaState;
use nvme_proto::fabrics::discovery::TransportType;
use nvmf_attached::{AttachedPath, DiskLock, State};
use nvmf_block::{Backend, BlockError, BlockOp, Completion, DeviceId, Tag};
use nvmf_host::{AssociationError, Namespace};
use nvmf_initiator::transport::AnyTransport;
use nvmf_initiator::{ConnectionState, PathStatus, RemoteBackend};
use nvmf_spin::Spin;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// How long requests under way and the last flush may take together when a disk is detached.
pub(super) const FINISH_TIME_MAX: Duration = Duration::from_secs(15);
/// How long the end of the connection may take.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(15);
/// How long the thread may take for all of it.
pub(super) const END_TIME_MAX: Duration = Duration::from_secs(35);
/// The last flush's tag: no request's.
const LAST_FLUSH: Tag = Tag(u64::MAX);

/// How a thread that serves a disk is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// Not yet.
    NotYet = 0,
    /// After what is under way, and a flush.
    InOrder = 1,
    /// At once: every request fails, those that wait and those that come.
    AtOnce = 2,
}

/// What the thread is told by others: how to end.
#[derive(Debug)]
pub(super) struct Control {
    end: AtomicU8,
    wakeup: EventFd,
}

impl Control {
    pub(super) fn new() -> Result<Arc<Self>> {
        let wakeup = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Arc::new(Self { end: AtomicU8::new(End::NotYet as u8), wakeup }))
    }

    /// Has the thread end. What was asked for before is not taken back.
    pub(super) fn end(&self, how: End) {
        self.end.fetch_max(how as u8, Ordering::Release);
        // A full counter has rung already.
        let _ = self.wakeup.write(1);
    }

    /// How the thread is to end, as far as it was told.
    pub(super) fn asked(&self) -> End {
        match self.end.load(Ordering::Acquire) {
            0 => End::NotYet,
            1 => End::InOrder,
            _ => End::AtOnce,
        }
    }

    /// Takes back what woke the thread.
    fn heard(&self) {
        // Empty when it has not rung.
        let _ = self.wakeup.read();
    }
}

/// The state of a connection or a path, as it is written down.
pub(super) fn state_of(state: ConnectionState) -> State {
    match state {
        ConnectionState::Live => State::Live,
        ConnectionState::Connecting => State::Reconnecting,
        ConnectionState::Foreign => State::Foreign,
        ConnectionState::Lost => State::Lost,
    }
}

/// What nvme-cli and the kernel call it.
fn ana_name(state: AnaState) -> &'static str {
    match state {
        AnaState::OPTIMIZED => "optimized",
        AnaState::NON_OPTIMIZED => "non-optimized",
        AnaState::INACCESSIBLE => "inaccessible",
        AnaState::PERSISTENT_LOSS => "persistent-loss",
        _ => "change",
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
pub(super) fn live() -> (watch::Sender<Change>, watch::Receiver<Change>) {
    watch::channel(Change { state: ConnectionState::Live, reason: None, paths: Vec::new() })
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

/// The connection of a disk's thread.
pub(super) struct Remote {
    pub(super) backend: RemoteBackend<AnyTransport>,
    pub(super) namespace: Namespace,
    pub(super) via: Via,
    /// What is said of the choice, if there was one and nobody made it.
    pub(super) choice: Option<String>,
    control: Arc<Control>,
    changes: watch::Sender<Change>,
    /// What was told last: the state, the loss, and of how much of what happened.
    state: ConnectionState,
    loss: Option<AssociationError>,
    happened: u64,
    spin: Spin,
    spin_max: Duration,
    /// When the clock of `spin` started.
    start: Instant,
    _lock: Option<DiskLock>,
}

impl Remote {
    /// Connects to the namespace that is meant, and locks it.
    pub(super) fn connect(
        options: &AttachOptions,
        control: Arc<Control>,
        changes: watch::Sender<Change>,
    ) -> Result<Self> {
        let connection = &options.connection;
        let reached = reach(connection.clone(), async |options| RemoteBackend::connect(&options));
        let (backend, via) = crate::runtime::run(reached)?;
        let nsid = choose(&connection.nqn, options.nsid, backend.namespaces())?;
        let namespace = backend.namespace(nsid)?;
        let choice = match options.nsid {
            Some(_) => None,
            None => taken_of(&connection.nqn, nsid, backend.namespaces()),
        };
        let lock = lock_disk(options, &namespace)?;
        Ok(Self {
            backend,
            namespace,
            via,
            choice,
            control,
            changes,
            state: ConnectionState::Live,
            loss: None,
            happened: 0,
            spin: Spin::new(),
            spin_max: connection.spin,
            start: Instant::now(),
            _lock: lock,
        })
    }

    /// The namespace as a device of the backend.
    pub(super) fn device(&self) -> DeviceId {
        DeviceId(self.namespace.nsid.0)
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
        if self.control.asked() != End::NotYet {
            self.control.heard();
        }
    }

    fn tell(&mut self) {
        let (state, loss) = (self.backend.state(), self.backend.loss());
        let happened = self.backend.happened();
        if self.state != state || self.loss.as_ref() != loss || self.happened != happened {
            (self.state, self.happened) = (state, happened);
            self.loss = loss.cloned();
            let foreign = self.backend.foreign().find(|(nsid, _)| *nsid == self.namespace.nsid);
            let change = Change {
                paths: self.paths(),
                ..Change::new(state, loss, foreign.map(|(_, mismatch)| mismatch))
            };
            self.changes.send_replace(change);
        }
    }

    /// The paths, as they are written down; none where there is one only.
    pub(super) fn paths(&self) -> Vec<AttachedPath> {
        let nsid = self.namespace.nsid;
        let paths = self.backend.paths();
        let several = paths.len() > 1;
        let attached = |path: PathStatus| AttachedPath {
            address: path.address.to_string(),
            transport: if path.transport == TransportType::TCP { "tcp" } else { "rdma" }.to_owned(),
            state: state_of(path.state),
            ana_state: path
                .access
                .iter()
                .find(|(of, _)| *of == nsid)
                .map(|(_, access)| ana_name(*access).to_owned()),
            reason: path.lost.map(|error| error.to_string()),
        };
        paths.into_iter().filter(|_| several).map(attached).collect()
    }

    /// Flushes what was written, if that is possible until then, and ends the connection.
    pub(super) fn finish(mut self, until: Instant) -> Result<()> {
        let flushed = self.flush(until);
        self.close();
        flushed.context("the last flush failed: what was not flushed before may be lost")
    }

    /// Ends the connection. What waits for the target fails, and is not done later.
    pub(super) fn close(mut self) {
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
