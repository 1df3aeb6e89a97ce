//! What stands behind a connection: the driver, and who waits for what of it. Without a thread, a lock or a clock.

use crate::ConnectionState;
use crate::buffer::Buffer;
use crate::driver::{AdminReply, Driver, DriverEvent};
use crate::mailbox::{Mailbox, Message, Request};
use crate::sleep::SLEEP_MAX;
use crate::slot::Reply;
use core::time::Duration;
use nvmf_block::{Completion, Tag};
use nvmf_host::{AssociationError, ControllerInfo, DiscoveryLog, Namespace};
use nvmf_rdma::Provider;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{oneshot, watch};

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

/// Who hears of a connection's life.
pub(crate) struct Audience {
    pub(crate) snapshot: SharedSnapshot,
    pub(crate) state: watch::Sender<ConnectionState>,
    /// How the first connection went; `None` once that was told.
    pub(crate) first: Option<oneshot::Sender<FirstResult>>,
}

/// An [`Engine`] over a provider of some kind: handles to a connection do not name it.
pub(crate) trait Turn: Send {
    /// Takes what the mailbox holds, and does it as far as there is room.
    fn read(&mut self, now: Duration, mailbox: &Mailbox);
    /// Takes an operation, and sends it if there is room.
    fn submit(&mut self, now: Duration, request: Request);
    /// Does everything that there is to do now; whether that was something.
    fn turn(&mut self, now: Duration) -> bool;
    /// Operations and admin commands that somebody waits for.
    fn under_way(&self) -> usize;
    /// Arms the provider. When a turn is due even if nothing arrives; `None` when there is something to do at once.
    fn rest(&mut self, now: Duration) -> Option<Duration>;
    /// Whether the connection was closed or given up.
    fn is_over(&self) -> bool;
}

/// The driver, and who waits for what of it.
pub(crate) struct Engine<P: Provider> {
    driver: Driver<P>,
    audience: Audience,
    /// Time as it was told last. Who waited for the lock comes with an older one.
    now: Duration,
    /// By tag.
    pending: Vec<Option<(Option<Buffer>, Reply)>>,
    free: Vec<usize>,
    /// What found no room in the driver, and what came after it.
    backlog: VecDeque<Message>,
    admin: HashMap<u32, oneshot::Sender<Option<AdminReply>>>,
    next_admin: u32,
    closing: Vec<oneshot::Sender<()>>,
    completions: Vec<Completion>,
    over: bool,
}

impl<P: Provider> Engine<P> {
    /// Around a driver that takes `operations` at once.
    pub(crate) fn new(driver: Driver<P>, operations: usize, audience: Audience) -> Self {
        Self {
            driver,
            audience,
            now: Duration::ZERO,
            pending: (0..operations).map(|_| None).collect(),
            free: (0..operations).rev().collect(),
            backlog: VecDeque::new(),
            admin: HashMap::new(),
            next_admin: 0,
            closing: Vec::new(),
            completions: Vec::with_capacity(64),
            over: false,
        }
    }

    fn advance(&mut self, now: Duration) -> Duration {
        self.now = self.now.max(now);
        self.now
    }

    /// Does what waits, as far as there is room.
    fn catch_up(&mut self) -> bool {
        let mut worked = false;
        while let Some(message) = self.backlog.pop_front() {
            if let Some(message) = self.on_message(message) {
                self.backlog.push_front(message);
                return worked;
            }
            worked = true;
        }
        worked
    }

    /// Returns the message for which there is no room.
    fn on_message(&mut self, message: Message) -> Option<Message> {
        match message {
            Message::Register(piece) => {
                if let Err(error) = self.driver.register(piece.region, &piece.memory) {
                    // Operations on it fail as "bad buffer"; this says why.
                    tracing::error!(%error, bytes = piece.memory.len(), "cannot register a buffer");
                }
            }
            Message::Deregister(region) => self.driver.deregister(region),
            Message::Submit(request) => return self.begin(request).map(Message::Submit),
            Message::Admin { command, reply } => {
                self.next_admin = self.next_admin.wrapping_add(1);
                self.admin.insert(self.next_admin, reply);
                self.driver.submit_admin(self.next_admin, command);
            }
            Message::Close { reply } => {
                self.closing.extend(reply);
                self.driver.shutdown(self.now);
            }
        }
        None
    }

    /// Returns the operation when there is no room for it.
    fn begin(&mut self, request: Request) -> Option<Request> {
        let Some(tag) = self.free.pop() else { return Some(request) };
        if self.driver.submit(Tag(tag as u64), request.nsid, request.op).is_err() {
            self.free.push(tag);
            return Some(request);
        }
        self.pending[tag] = Some((request.buffer, request.reply));
        None
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
                reply.send(completion.result, buffer);
            }
        }
        self.completions = completions;
        worked
    }

    fn on_events(&mut self) {
        while let Some(event) = self.driver.poll_event() {
            if let Some(state) = ConnectionState::after(&event) {
                self.audience.state.send_replace(state);
            }
            match event {
                DriverEvent::Ready => {
                    self.publish();
                    if let Some(first) = self.audience.first.take() {
                        let _ = first.send(Ok(()));
                    } else {
                        tracing::info!("connected again");
                    }
                }
                DriverEvent::NamespacesChanged => self.publish(),
                DriverEvent::Lost(error) => {
                    // Whoever waits for the first connection is told.
                    if self.audience.first.is_none() {
                        tracing::warn!(%error, "the association is lost");
                    }
                    self.audience.snapshot.lock().unwrap_or_else(PoisonError::into_inner).lost = Some(error);
                }
                DriverEvent::Admin(number, reply) => {
                    if let Some(waiting) = self.admin.remove(&number) {
                        let _ = waiting.send(reply);
                    }
                }
                DriverEvent::GaveUp => {
                    self.on_gave_up();
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

    fn on_gave_up(&mut self) {
        let Some(first) = self.audience.first.take() else {
            tracing::error!("the controller is given up: all I/O fails from now on");
            return;
        };
        let lost = self.audience.snapshot.lock().unwrap_or_else(PoisonError::into_inner).lost.clone();
        let _ = first
            .send(Err(lost
                .map_or_else(|| FirstError::System("no reason given".to_owned()), FirstError::Association)));
    }

    fn publish(&mut self) {
        let Some(association) = self.driver.association() else { return };
        let mut snapshot = self.audience.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        snapshot.controller = association.controller().clone();
        snapshot.namespaces = association.namespaces().to_vec();
        snapshot.discovery_log = association.discovery_log().clone();
    }
}

impl<P: Provider + Send> Turn for Engine<P> {
    fn read(&mut self, now: Duration, mailbox: &Mailbox) {
        self.advance(now);
        mailbox.take(&mut self.backlog);
        if !self.backlog.is_empty() {
            self.catch_up();
            self.driver.flush(self.now);
        }
    }

    fn submit(&mut self, now: Duration, request: Request) {
        let now = self.advance(now);
        let refused = if self.backlog.is_empty() { self.begin(request) } else { Some(request) };
        // Behind what waits already, which may be the registration of its buffer.
        self.backlog.extend(refused.map(Message::Submit));
        self.driver.flush(now);
    }

    fn turn(&mut self, now: Duration) -> bool {
        let now = self.advance(now);
        let mut worked = self.catch_up();
        worked |= self.driver.turn(now);
        worked |= self.complete();
        self.on_events();
        worked
    }

    fn under_way(&self) -> usize {
        self.pending.len() - self.free.len() + self.backlog.len() + self.admin.len()
    }

    fn rest(&mut self, now: Duration) -> Option<Duration> {
        let now = self.advance(now);
        if !self.driver.provider_mut().arm() {
            return None;
        }
        let latest = now.saturating_add(SLEEP_MAX);
        Some(self.driver.poll_timeout().map_or(latest, |at| at.min(latest)))
    }

    fn is_over(&self) -> bool {
        self.over
    }
}
