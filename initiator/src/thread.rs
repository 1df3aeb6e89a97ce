//! The thread behind a connection: mail in, turns, sleep.

use crate::buffer::{Buffer, Piece};
use crate::driver::{AdminReply, Driver, DriverConfig, DriverEvent};
use crate::sleep::sleep;
use crate::{ConnectionState, Error};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nvme_proto::Nsid;
use nvmf_block::{BlockError, BlockOp, Completion, RegionId, Tag};
use nvmf_host::admin::AdminCommand;
use nvmf_host::{AssociationError, ControllerInfo, DiscoveryLog, Namespace};
use nvmf_rdma::Provider;
use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// What an operation ends with: its result, and its buffer.
pub(crate) type Ended = (Result<(), BlockError>, Option<Buffer>);

/// What the thread is told.
pub(crate) enum Message {
    Register(Piece),
    Deregister(RegionId),
    Submit { nsid: Nsid, op: BlockOp, buffer: Option<Buffer>, reply: oneshot::Sender<Ended> },
    Admin { command: AdminCommand, reply: oneshot::Sender<Option<AdminReply>> },
    Close { reply: Option<oneshot::Sender<()>> },
}

/// The way to the thread. Ringing costs a system call only when the thread sleeps.
pub(crate) struct Mailbox {
    messages: Mutex<VecDeque<Message>>,
    bell: EventFd,
    asleep: AtomicBool,
    over: AtomicBool,
}

impl Mailbox {
    pub(crate) fn new() -> Result<Arc<Self>, Error> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(|errno| {
            Error::System { what: "cannot make an event descriptor", reason: errno.to_string() }
        })?;
        Ok(Arc::new(Self {
            messages: Mutex::default(),
            bell,
            asleep: AtomicBool::new(false),
            over: AtomicBool::new(false),
        }))
    }

    /// Leaves a message. After the thread's end it is dropped, and with it what would have carried the reply.
    pub(crate) fn send(&self, message: Message) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        if self.over.load(Ordering::SeqCst) {
            // Dropped outside of the lock: a buffer that goes back to its pool sends a message of its own.
            drop(messages);
            drop(message);
            return;
        }
        messages.push_back(message);
        drop(messages);
        if self.asleep.swap(false, Ordering::SeqCst) {
            // A full counter has rung already.
            let _ = self.bell.write(1);
        }
    }

    fn take(&self) -> VecDeque<Message> {
        core::mem::take(&mut self.messages.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_empty(&self) -> bool {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// From now on messages are dropped; those that are there are returned.
    fn close(&self) -> VecDeque<Message> {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        self.over.store(true, Ordering::SeqCst);
        core::mem::take(&mut messages)
    }
}

/// What is known of the controller, for everyone to read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    pub(crate) controller: ControllerInfo,
    pub(crate) namespaces: Vec<Namespace>,
    pub(crate) discovery_log: DiscoveryLog,
    /// Why the association was lost last.
    pub(crate) lost: Option<AssociationError>,
}

pub(crate) type SharedSnapshot = Arc<Mutex<Snapshot>>;

/// What the first connection comes to.
pub(crate) type FirstResult = Result<(), FirstError>;

#[derive(Debug)]
pub(crate) enum FirstError {
    Association(AssociationError),
    System(String),
}

/// A connection's thread.
pub(crate) struct Worker<P: Provider> {
    driver: Driver<P>,
    mailbox: Arc<Mailbox>,
    snapshot: SharedSnapshot,
    state: watch::Sender<ConnectionState>,
    start: Instant,
    spin: Duration,
    /// By tag.
    pending: Vec<Option<(Option<Buffer>, oneshot::Sender<Ended>)>>,
    free: Vec<usize>,
    /// What found no room in the driver.
    backlog: VecDeque<Message>,
    admin: HashMap<u32, oneshot::Sender<Option<AdminReply>>>,
    next_admin: u32,
    first: Option<oneshot::Sender<FirstResult>>,
    closing: Vec<oneshot::Sender<()>>,
    completions: Vec<Completion>,
    over: bool,
}

impl<P: Provider> Worker<P> {
    /// Runs until the connection is closed or given up. `first` hears how the first connection went.
    pub(crate) fn run(
        provider: P,
        config: DriverConfig,
        spin: Duration,
        mailbox: Arc<Mailbox>,
        snapshot: SharedSnapshot,
        state: watch::Sender<ConnectionState>,
        first: oneshot::Sender<FirstResult>,
    ) {
        let start = Instant::now();
        let operations = config.operations as usize;
        let driver = match Driver::new(provider, config, Duration::ZERO) {
            Ok(driver) => driver,
            Err(error) => {
                drop(mailbox.close());
                let _ = first.send(Err(match error {
                    crate::driver::StartError::Association(error) => FirstError::Association(error),
                    crate::driver::StartError::Provider(reason) => FirstError::System(reason),
                }));
                return;
            }
        };
        let worker = Self {
            driver,
            mailbox,
            snapshot,
            state,
            start,
            spin,
            pending: (0..operations).map(|_| None).collect(),
            free: (0..operations).rev().collect(),
            backlog: VecDeque::new(),
            admin: HashMap::new(),
            next_admin: 0,
            first: Some(first),
            closing: Vec::new(),
            completions: Vec::with_capacity(64),
            over: false,
        };
        worker.turn_until_over();
    }

    fn turn_until_over(mut self) {
        let mut idle_since = None;
        while !self.over {
            let now = self.start.elapsed();
            let mut worked = self.read_mail();
            worked |= self.driver.turn(now);
            worked |= self.complete();
            self.on_events();
            if worked {
                idle_since = None;
            } else if now.saturating_sub(*idle_since.get_or_insert(now)) < self.spin {
                std::hint::spin_loop();
            } else {
                self.sleep(now);
                idle_since = None;
            }
        }
        // Whoever waits is told by the end of its channel.
        let rest = self.mailbox.close();
        drop(self);
        drop(rest);
    }

    fn sleep(&mut self, now: Duration) {
        self.mailbox.asleep.store(true, Ordering::SeqCst);
        if self.mailbox.is_empty() {
            sleep(&mut self.driver, now, Duration::MAX, &[self.mailbox.bell.as_fd()]);
        }
        self.mailbox.asleep.store(false, Ordering::SeqCst);
        // Empty when it has not rung.
        let _ = self.mailbox.bell.read();
    }

    fn read_mail(&mut self) -> bool {
        self.backlog.append(&mut self.mailbox.take());
        let mut worked = false;
        while let Some(message) = self.backlog.pop_front() {
            worked = true;
            match message {
                Message::Register(piece) => {
                    if let Err(error) = self.driver.register(piece.region, &piece.memory) {
                        // Operations on it fail as "bad buffer"; this says why.
                        tracing::error!(%error, bytes = piece.memory.len(), "cannot register a buffer");
                    }
                }
                Message::Deregister(region) => self.driver.deregister(region),
                Message::Submit { nsid, op, buffer, reply } => {
                    let Some(tag) = self.free.pop() else {
                        self.backlog.push_front(Message::Submit { nsid, op, buffer, reply });
                        return false;
                    };
                    if self.driver.submit(Tag(tag as u64), nsid, op).is_err() {
                        self.free.push(tag);
                        self.backlog.push_front(Message::Submit { nsid, op, buffer, reply });
                        return false;
                    }
                    self.pending[tag] = Some((buffer, reply));
                }
                Message::Admin { command, reply } => {
                    self.next_admin = self.next_admin.wrapping_add(1);
                    self.admin.insert(self.next_admin, reply);
                    self.driver.submit_admin(self.next_admin, command);
                }
                Message::Close { reply } => {
                    self.closing.extend(reply);
                    self.driver.shutdown(self.start.elapsed());
                }
            }
        }
        worked
    }

    fn complete(&mut self) -> bool {
        let mut completions = core::mem::take(&mut self.completions);
        self.driver.poll(&mut completions);
        let worked = !completions.is_empty();
        for completion in completions.drain(..) {
            let tag = usize::try_from(completion.tag.0).expect("a tag of ours");
            if let Some((buffer, reply)) = self.pending[tag].take() {
                self.free.push(tag);
                // A future that was dropped does not hear; its buffer goes back to the pool here.
                let _ = reply.send((completion.result, buffer));
            }
        }
        self.completions = completions;
        worked
    }

    fn on_events(&mut self) {
        while let Some(event) = self.driver.poll_event() {
            if let Some(state) = ConnectionState::after(&event) {
                self.state.send_replace(state);
            }
            match event {
                DriverEvent::Ready => {
                    self.publish();
                    if let Some(first) = self.first.take() {
                        let _ = first.send(Ok(()));
                    } else {
                        tracing::info!("connected again");
                    }
                }
                DriverEvent::NamespacesChanged => self.publish(),
                DriverEvent::Lost(error) => {
                    // Whoever waits for the first connection is told.
                    if self.first.is_none() {
                        tracing::warn!(%error, "the association is lost");
                    }
                    self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).lost = Some(error);
                }
                DriverEvent::Admin(number, reply) => {
                    if let Some(waiting) = self.admin.remove(&number) {
                        let _ = waiting.send(reply);
                    }
                }
                DriverEvent::GaveUp => {
                    let lost = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).lost.clone();
                    if let Some(first) = self.first.take() {
                        let _ = first.send(Err(lost.map_or_else(
                            || FirstError::System("no reason given".to_owned()),
                            FirstError::Association,
                        )));
                    } else {
                        tracing::error!("the controller is given up: all I/O fails from now on");
                    }
                    self.over = true;
                }
                DriverEvent::Closed => self.over = true,
            }
        }
        if self.over {
            while self.complete() {}
            for closing in self.closing.drain(..) {
                let _ = closing.send(());
            }
        }
    }

    fn publish(&mut self) {
        let Some(association) = self.driver.association() else { return };
        let mut snapshot = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        snapshot.controller = association.controller().clone();
        snapshot.namespaces = association.namespaces().to_vec();
        snapshot.discovery_log = association.discovery_log().clone();
    }
}
