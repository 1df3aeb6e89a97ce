//! The driver of a connection, and the futures that wait for its operations. Without a thread, a lock or a clock.

use crate::buffer::Buffer;
use crate::driver::{AdminReply, Driver, DriverEvent, Ended, Failure, PathStatus, StartError, Unanswered};
use crate::log::Log;
use crate::mailbox::{CommandRequest, Mailbox, Message, Request};
use crate::sleep::SLEEP_MAX;
use crate::slot::{Reply, Slot};
use crate::state::StateSender;
use crate::statistics::{Counters, Kind};
use crate::transport::Transport;
use crate::wakes::Wakes;
use crate::{ConnectionState, Effect};
use core::time::Duration;
use futures_channel::oneshot;
use nvme_proto::Nsid;
use nvmf_block::{BlockError, Tag};
use nvmf_host::{AssociationError, ControllerInfo, DiscoveryLog, Mismatch, Namespace};
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// What an operation ends with for whom it took too long: ETIMEDOUT. No device ends one with it.
pub(crate) const TIMED_OUT: BlockError = BlockError::Os(110);

/// What is known of the controller, for all handles to read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    pub(crate) controller: ControllerInfo,
    pub(crate) namespaces: Vec<Namespace>,
    pub(crate) discovery_log: DiscoveryLog,
    /// Opened namespaces that are other disks now.
    pub(crate) foreign: Vec<(Nsid, Mismatch)>,
    /// How each path is.
    pub(crate) paths: Vec<PathStatus>,
    /// Why the association was lost last, or could not be set up again; `None` while it is up.
    pub(crate) lost: Option<AssociationError>,
}

pub(crate) type SharedSnapshot = Arc<Mutex<Snapshot>>;

/// The result of the first attempt to connect.
pub(crate) type FirstResult = Result<(), FirstError>;

#[derive(Debug)]
pub(crate) enum FirstError {
    Association(AssociationError),
    System(String),
}

impl From<StartError> for FirstError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Association(error) => Self::Association(error),
            error => Self::System(error.to_string()),
        }
    }
}

/// Those that are told what happens to a connection.
pub(crate) struct Observers {
    pub(crate) snapshot: SharedSnapshot,
    pub(crate) state: StateSender,
    pub(crate) counters: Arc<Counters>,
    /// Told the result of the first attempt; `None` afterwards.
    pub(crate) first: Option<oneshot::Sender<FirstResult>>,
}

/// An [`Engine`] over a transport of some kind: handles to a connection do not name it.
pub(crate) trait Turn: Send {
    /// Takes what the mailbox holds, and does it as far as there is room.
    fn read(&mut self, now: Duration, mailbox: &Mailbox);
    /// Takes an operation, and sends it if there is room.
    fn submit(&mut self, now: Duration, request: Request);
    /// Does everything that there is to do now, and lists whom to tell; whether there was something.
    fn turn(&mut self, now: Duration, wakes: &Wakes) -> bool;
    /// Operations and admin commands that somebody waits for.
    fn under_way(&self) -> usize;
    /// Arms the transport. When a turn is due even if nothing arrives; `None` when there is something to do at once.
    fn rest(&mut self, now: Duration) -> Option<Duration>;
    /// Whether the connection was closed or given up.
    fn is_over(&self) -> bool;
    /// The descriptor to sleep on, if the transport is another than the one numbered `known`.
    fn descriptor(&self, known: Option<u32>) -> Option<Descriptor>;
}

/// The descriptor of a transport, which is readable when there is something to poll.
pub(crate) struct Descriptor {
    /// The transport's number: it is replaced when its device is lost.
    pub(crate) transport: u32,
    pub(crate) fd: Option<OwnedFd>,
}

/// An operation that the driver has.
struct Pending {
    /// Kept until its end, also where nobody waits any longer.
    buffer: Option<Buffer>,
    reply: Option<Reply>,
    /// How long somebody waits.
    until: Option<Duration>,
    kind: Kind,
}

/// An admin command or a raw command that the driver has.
struct Asked {
    reply: Option<oneshot::Sender<Result<AdminReply, Unanswered>>>,
    /// How long somebody waits.
    until: Option<Duration>,
}

impl Asked {
    fn end(&mut self, reply: Result<AdminReply, Unanswered>) {
        if let Some(asker) = self.reply.take() {
            let _ = asker.send(reply);
        }
    }
}

impl Drop for Asked {
    /// Nobody knows whether it was sent.
    fn drop(&mut self) {
        self.end(Err(Unanswered::Lost));
    }
}

/// The driver, and the futures that wait for its operations.
pub(crate) struct Engine<T: Transport> {
    driver: Driver<T>,
    observers: Observers,
    /// The latest time that it was told. A caller that waited for the lock brings an earlier one.
    now: Duration,
    /// By tag.
    pending: Vec<Option<Pending>>,
    /// The earliest time at which somebody does not wait any longer.
    until: Option<Duration>,
    free: Vec<usize>,
    /// Operations that found no room in the driver, and what came after them for operations to come.
    backlog: VecDeque<Message>,
    /// There is room for what waits there.
    has_room: bool,
    /// Messages as they come out of the mailbox.
    incoming: VecDeque<Message>,
    log: Log,
    admin: HashMap<u32, Asked>,
    next_admin: u32,
    closing: Vec<oneshot::Sender<()>>,
    /// Who waits for an authentication that is done again.
    authenticating: Option<oneshot::Sender<bool>>,
    /// It was closed: operations that come from now on fail.
    closes: bool,
    /// The state that the observers were told last.
    state: ConnectionState,
    over: bool,
}

impl<T: Transport> Engine<T> {
    /// Around a driver that takes `operations` at once.
    pub(crate) fn new(driver: Driver<T>, operations: usize, log: Log, observers: Observers) -> Self {
        Self {
            driver,
            observers,
            now: Duration::ZERO,
            pending: (0..operations).map(|_| None).collect(),
            until: None,
            free: (0..operations).rev().collect(),
            backlog: VecDeque::new(),
            has_room: false,
            incoming: VecDeque::new(),
            log,
            admin: HashMap::new(),
            next_admin: 0,
            closing: Vec::new(),
            authenticating: None,
            closes: false,
            state: ConnectionState::Connecting,
            over: false,
        }
    }

    fn advance(&mut self, now: Duration) -> Duration {
        self.now = self.now.max(now);
        self.now
    }

    /// Takes a message: at once, unless it has to keep its place among the operations.
    fn receive(&mut self, message: Message) {
        match message {
            // As with an operation: who waits learns it when the reply is dropped.
            Message::Command(_) if self.closes => {}
            Message::Command(CommandRequest { queue, recipient, command, times, reply }) => {
                self.next_admin = self.next_admin.wrapping_add(1);
                self.admin.insert(self.next_admin, Asked { reply: Some(reply), until: times.until });
                self.note_until(times.until);
                self.driver.submit_command(self.next_admin, queue, recipient, command);
                self.driver.bound_command(self.next_admin, times.sent_by);
            }
            Message::Withdraw(slot) => self.withdraw(&slot),
            Message::Open(identity) => self.driver.open(self.now, identity),
            Message::AuthenticateAgain { secrets, reply } => {
                if self.authenticating.is_none() && self.driver.authenticate_again(self.now, &secrets) {
                    self.authenticating = Some(reply);
                } else {
                    let _ = reply.send(false);
                }
            }
            Message::Close { reply } => {
                self.closing.extend(reply);
                self.driver.shutdown(self.now);
                self.closes = true;
                // The futures learn it when their replies are dropped.
                self.backlog.clear();
            }
            Message::Submit(_) if self.closes => {}
            Message::Register(_) | Message::Deregister(_) | Message::Submit(_) => {
                if let Message::Submit(request) = &message {
                    self.note_until(request.until);
                }
                self.backlog.push_back(message);
            }
        }
    }

    /// Does what waits, as far as there is room.
    fn catch_up(&mut self) -> bool {
        let mut worked = false;
        self.has_room = false;
        while let Some(message) = self.backlog.pop_front() {
            // Nobody waits for it any longer, and nothing of it was done.
            if matches!(&message, Message::Submit(request) if request.reply.is_abandoned()) {
                continue;
            }
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
                    tracing::error!(%error, bytes = piece.memory.len(), "cannot register a buffer");
                    // Whoever uses it is told, and it is not used again.
                    let _ = piece.refused.set(error.to_string());
                }
            }
            Message::Deregister(region) => self.driver.deregister(region),
            Message::Submit(request) => return self.begin(request).map(Message::Submit),
            message => self.receive(message),
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
        let Request { op, buffer, mut reply, until, .. } = request;
        if op.has_effect() {
            reply.on_begun();
        }
        self.pending[tag] = Some(Pending { buffer, reply: Some(reply), until, kind: Kind::of(&op) });
        None
    }

    /// Somebody waits until then at most.
    fn note_until(&mut self, until: Option<Duration>) {
        self.until = [self.until, until].into_iter().flatten().min();
    }

    /// Nobody waits for the operation of this slot any longer. One in the backlog is left out when its turn comes.
    fn withdraw(&mut self, slot: &Arc<Slot>) {
        let of_it = |pending: &Option<Pending>| {
            pending.as_ref().and_then(|pending| pending.reply.as_ref()).is_some_and(|reply| reply.is_of(slot))
        };
        if let Some(tag) = self.pending.iter().position(of_it) {
            self.driver.withdraw(Tag(tag as u64), TIMED_OUT);
        }
    }

    /// Tells those that they have waited long enough. Nothing more of their operations is sent. Whether some have ended with that.
    fn expire(&mut self, wakes: &Wakes) -> bool {
        if self.until.is_none_or(|until| self.now < until) {
            return false;
        }
        let mut ended = false;
        self.until = None;
        let now = self.now;
        let mut next = None;
        let mut is_late = |until: Option<Duration>| {
            let is_late = until.is_some_and(|until| until <= now);
            if !is_late {
                next = [next, until].into_iter().flatten().min();
            }
            is_late
        };
        let failed = |effect| Err(Failure { error: TIMED_OUT, effect });
        for (tag, pending) in self.pending.iter_mut().enumerate() {
            let Some(pending) = pending.as_mut() else { continue };
            if pending.reply.is_none() || !is_late(pending.until) {
                continue;
            }
            match self.driver.withdraw(Tag(tag as u64), TIMED_OUT) {
                // It is told as any end, with its buffer.
                None => ended = true,
                Some(effect) => {
                    let reply = pending.reply.take().expect("it is there");
                    reply.send(failed(effect), None).into_iter().for_each(|waker| wakes.add(waker));
                }
            }
        }
        let mut late = Vec::new();
        self.backlog.retain_mut(|message| match message {
            Message::Submit(request) if is_late(request.until) => {
                late.push((core::mem::take(&mut request.reply), request.buffer.take()));
                false
            }
            _ => true,
        });
        // Nothing of these was done.
        let nothing = failed(Effect::Nothing);
        let woken = late.into_iter().filter_map(|(reply, buffer)| reply.send(nothing, buffer));
        woken.for_each(|waker| wakes.add(waker));
        for (number, mut asked) in self.admin.extract_if(|_, asked| is_late(asked.until)) {
            let was_waiting = self.driver.withdraw_command(number);
            asked.end(Err(Unanswered::TimedOut { was_waiting }));
        }
        self.until = next;
        ended
    }

    fn complete(&mut self, wakes: &Wakes) -> bool {
        let mut worked = false;
        while let Some(Ended { tag, result }) = self.driver.poll_ended() {
            worked = true;
            let tag = usize::try_from(tag.0).expect("a tag of ours");
            if let Some(Pending { buffer, reply, kind, .. }) = self.pending[tag].take() {
                self.free.push(tag);
                self.has_room |= !self.backlog.is_empty();
                self.observers.counters.on_end(kind, result.is_ok());
                // If nobody waits, its buffer goes back to the pool here.
                if let Some(waker) = reply.and_then(|reply| reply.send(result, buffer)) {
                    wakes.add(waker);
                }
            }
        }
        worked
    }

    fn on_events(&mut self, wakes: &Wakes) {
        while let Some(event) = self.driver.poll_event() {
            // Whoever waits for the first connection is told what happens to it.
            if self.observers.first.is_none() {
                self.log.on_event(&event, |path| self.driver.address(path), self.driver.without_access());
            }
            match event {
                DriverEvent::Ready { after } => {
                    if after.is_some() {
                        self.observers.counters.on_reconnect();
                    }
                    self.publish();
                    self.observers.snapshot.lock().unwrap_or_else(PoisonError::into_inner).lost = None;
                    // Whoever asks as soon as it is connected finds it so.
                    self.tell_state();
                    // One that was lost in the same turn is waited for: nothing of it is known.
                    if self.driver.ready_association().is_some()
                        && let Some(first) = self.observers.first.take()
                    {
                        let _ = first.send(Ok(()));
                    }
                }
                DriverEvent::NamespacesChanged
                | DriverEvent::Foreign(..)
                | DriverEvent::Restored(_)
                | DriverEvent::NoAccess(_)
                | DriverEvent::AccessAgain(_)
                | DriverEvent::PathReady(..)
                | DriverEvent::PathForeign(..) => self.publish(),
                DriverEvent::PathFailed(..) | DriverEvent::PathWaits(_) => {
                    let paths = self.driver.paths();
                    self.observers.snapshot.lock().unwrap_or_else(PoisonError::into_inner).paths = paths;
                }
                DriverEvent::AuthenticatedAgain => {
                    if let Some(waiting) = self.authenticating.take() {
                        let _ = waiting.send(true);
                    }
                }
                DriverEvent::PathLost(..) => {
                    self.authenticating = None;
                    self.publish();
                }
                DriverEvent::Lost(error) | DriverEvent::AttemptFailed(error) => {
                    // Who waits for an authentication learns from its end that it failed.
                    self.authenticating = None;
                    let mut snapshot = self.observers.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
                    snapshot.lost = Some(error);
                    snapshot.paths = self.driver.paths();
                }
                DriverEvent::Admin(number, reply) => {
                    if let Some(mut asked) = self.admin.remove(&number) {
                        asked.end(reply);
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
            while self.complete(wakes) {}
            for closing in self.closing.drain(..) {
                let _ = closing.send(());
            }
        }
    }

    fn on_gave_up(&mut self) {
        let Some(first) = self.observers.first.take() else { return };
        let lost = self.observers.snapshot.lock().unwrap_or_else(PoisonError::into_inner).lost.clone();
        let _ = first.send(Err(
            lost.map_or_else(|| FirstError::System("no answer in time".to_owned()), FirstError::Association)
        ));
    }

    fn tell_state(&mut self) {
        let state = self.driver.state();
        if core::mem::replace(&mut self.state, state) != state {
            self.observers.state.set(state);
        }
    }

    /// Of what is being connected nothing is known yet: what was known last stays.
    fn publish(&mut self) {
        let mut snapshot = self.observers.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(association) = self.driver.ready_association() {
            snapshot.controller = association.controller().clone();
            snapshot.namespaces = self.driver.namespaces();
            snapshot.discovery_log = association.discovery_log().clone();
        }
        snapshot.foreign = self.driver.foreign().collect();
        snapshot.paths = self.driver.paths();
        drop(snapshot);
        self.observers.state.namespaces_changed();
    }
}

impl<T: Transport<Region: Send> + Send> Turn for Engine<T> {
    fn read(&mut self, now: Duration, mailbox: &Mailbox) {
        self.advance(now);
        let mut incoming = core::mem::take(&mut self.incoming);
        mailbox.take(&mut incoming);
        if incoming.is_empty() {
            self.incoming = incoming;
            return;
        }
        incoming.drain(..).for_each(|message| self.receive(message));
        self.incoming = incoming;
        self.catch_up();
        self.driver.flush(self.now);
    }

    fn submit(&mut self, now: Duration, request: Request) {
        let now = self.advance(now);
        if self.closes {
            return;
        }
        self.note_until(request.until);
        let refused = if self.backlog.is_empty() { self.begin(request) } else { Some(request) };
        // Behind the messages that wait, one of which may be the registration of its buffer.
        self.backlog.extend(refused.map(Message::Submit));
        self.driver.flush(now);
    }

    fn turn(&mut self, now: Duration, wakes: &Wakes) -> bool {
        let now = self.advance(now);
        let mut worked = self.catch_up();
        worked |= self.driver.turn(now);
        worked |= self.complete(wakes);
        if self.expire(wakes) {
            worked |= self.complete(wakes);
        }
        self.on_events(wakes);
        self.tell_state();
        worked
    }

    fn under_way(&self) -> usize {
        self.pending.len() - self.free.len() + self.backlog.len() + self.admin.len()
    }

    fn rest(&mut self, now: Duration) -> Option<Duration> {
        let now = self.advance(now);
        if self.has_room || !self.driver.arm() {
            return None;
        }
        let latest = now.saturating_add(SLEEP_MAX);
        Some([self.driver.poll_timeout(), self.until].into_iter().flatten().fold(latest, Duration::min))
    }

    fn is_over(&self) -> bool {
        self.over
    }

    fn descriptor(&self, known: Option<u32>) -> Option<Descriptor> {
        let transport = self.driver.replaced();
        if known == Some(transport) {
            return None;
        }
        let fd = self.driver.fd().map(|fd| fd.try_clone_to_owned()).transpose();
        // Without a descriptor the thread wakes from time to time, and tries again.
        match fd {
            Ok(fd) => Some(Descriptor { transport, fd }),
            Err(error) => {
                tracing::error!(%error, "cannot watch the connections");
                None
            }
        }
    }
}
