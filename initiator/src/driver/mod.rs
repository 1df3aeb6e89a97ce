//! One remote controller: its association, its queues, its operations, through losses and reconnects.
//!
//! | file | what it does |
//! |---|---|
//! | `mod` | what goes in and out; [`Driver::turn`] |
//! | `config` | what a driver is made with |
//! | `link` | queues: opened, connected, closed; a transport whose device is lost, replaced |
//! | `queue` | the commands in flight on one queue |
//! | `admin` | admin and Fabrics commands |
//! | `authentication` | what is computed for an authentication, and the key for TLS that it makes |
//! | `disks` | namespaces, pinned to the disks that they were |
//! | `operation` | block operations: issued part by part, finished, issued again after a loss |
//!
//! The driver has no thread, no clock and makes no system call of its own (but what an authentication is to compute, it gives to a
//! thread): whoever drives a [`crate::Connection`] runs
//! [`Driver::turn`], and so does a simulator under virtual time.

mod admin;
mod authentication;
mod config;
mod disks;
mod link;
mod operation;
mod queue;
#[cfg(test)]
pub(crate) mod tests;

pub use admin::AdminReply;
pub use config::{DriverConfig, StartError};

use crate::ConnectionState;
use crate::transport::{Arrival, Transport, TransportError};
use admin::{AdminCommands, KeyRefused};
use authentication::Computing;
use core::time::Duration;
use disks::Disks;
use link::{Fence, IoEnd};
use nvme_proto::{Nsid, Qid, Status};
use nvmf_block::{BlockError, BlockOp, Completion as BlockCompletion, Full, RegionId, Tag};
use nvmf_host::admin::AdminCommand;
use nvmf_host::{
    Action, Association, AssociationError, Decision, Fate, Impacted, Mismatch, Outcome, Recovery,
};
use nvmf_memory::Memory;
use operation::Operations;
use queue::{Finished, Owner, Queue};
use std::collections::VecDeque;

/// Connection events taken in one turn.
const EVENTS_AT_ONCE: usize = 16;
/// Time between two scans of the namespaces that a status causes.
const DOUBT_INTERVAL: Duration = Duration::from_secs(1);

/// What happens to a driver.
#[derive(Debug)]
pub enum DriverEvent {
    /// Connected: [`Driver::association`] tells the rest.
    Ready {
        /// How long the controller was away; `None` for the first connection.
        after: Option<Duration>,
    },
    /// Namespaces came, went or changed.
    NamespacesChanged,
    /// The association was in use and is lost; a reconnect follows, unless [`DriverEvent::GaveUp`] does.
    Lost(AssociationError),
    /// An attempt to connect, for the first time or again, failed; what follows is the same.
    AttemptFailed(AssociationError),
    /// A namespace in use is not the disk that was opened: its operations wait.
    Foreign(Nsid, Mismatch),
    /// The disk that was opened is there again.
    Restored(Nsid),
    /// An admin command or a raw command ended; `None` when its association did first.
    Admin(u32, Option<AdminReply>),
    /// It is over: all I/O has failed and will fail.
    GaveUp,
    /// [`Driver::authenticate_again`] is done.
    AuthenticatedAgain,
    /// [`Driver::shutdown`] is done.
    Closed,
}

struct Region<R> {
    memory: Memory,
    region: R,
}

/// One remote controller.
pub struct Driver<T: Transport> {
    transport: T,
    config: DriverConfig,
    association: Option<Association>,
    recovery: Recovery,
    /// By qid.
    queues: Vec<Option<Queue>>,
    /// By region.
    regions: Vec<Option<Region<T::Region>>>,
    operations: Operations,
    disks: Disks,
    admin: AdminCommands,
    key_refused: Option<KeyRefused>,
    computing: Option<Computing>,
    /// When Invalid Field may next cause a scan of the namespaces.
    next_doubt: Duration,
    events: VecDeque<DriverEvent>,
    /// The I/O queue that was used last, by kind of operation.
    rounds: [usize; 2],
    closing: bool,
    /// The association ended from the controller's side, so that the controller knows of it.
    ended_by_controller: bool,
    /// The controller ended an I/O queue: whether it ended all of them will be seen.
    io_end: Option<IoEnd>,
    /// What was sent to a controller that was lost may still be carried out.
    fence: Option<Fence>,
    /// An admin command of the user's was in flight when the association ended.
    admin_lost: bool,
    shut: bool,
    factory: Option<Factory<T>>,
    /// How often the transport was replaced.
    replaced: u32,
}

/// Makes a transport anew after the device of the last one is gone.
pub type Factory<T> = Box<dyn FnMut() -> Result<T, String> + Send>;

impl<T: Transport> Driver<T> {
    /// Starts to connect.
    ///
    /// # Errors
    /// When the configuration cannot be, or the transport lacks a resource.
    pub fn new(mut transport: T, mut config: DriverConfig, now: Duration) -> Result<Self, StartError> {
        config.association.transport = transport.kind();
        let association = Association::new(config.association.clone(), now)?;
        config.prepare(&mut transport)?;
        let recovery = Recovery::new(config.recovery, config.seed, now);
        let mut driver = Self { association: Some(association), ..Self::idle(transport, config, recovery) };
        driver.act(now);
        Ok(driver)
    }

    /// Takes over a controller that another process of this host used until it ended, as after a loss: operations wait for the
    /// controller, and nothing is issued before what that process had sent is over, if it had sent anything.
    ///
    /// # Errors
    /// As [`Driver::new`].
    pub fn resume(
        mut transport: T,
        mut config: DriverConfig,
        impacted: Option<Impacted>,
        now: Duration,
    ) -> Result<Self, StartError> {
        config.association.transport = transport.kind();
        // Made anew for each attempt; here, only what is wrong with it is asked.
        Association::new(config.association.clone(), now)?;
        config.prepare(&mut transport)?;
        let fence = impacted.map(Fence::new);
        let quiesce = fence.as_ref().map_or(Duration::ZERO, |fence| fence.pause(now));
        let recovery = Recovery::resumed(config.recovery, config.seed, now, quiesce);
        Ok(Self { fence, ..Self::idle(transport, config, recovery) })
    }

    fn idle(transport: T, config: DriverConfig, recovery: Recovery) -> Self {
        Self {
            transport,
            recovery,
            association: None,
            queues: Vec::new(),
            regions: Vec::new(),
            operations: Operations::new(config.operations, config.write_queues > 0),
            disks: Disks::default(),
            admin: AdminCommands::default(),
            key_refused: None,
            computing: None,
            next_doubt: Duration::ZERO,
            events: VecDeque::new(),
            rounds: [0; 2],
            closing: false,
            ended_by_controller: false,
            io_end: None,
            fence: None,
            admin_lost: false,
            shut: false,
            factory: None,
            replaced: 0,
            config,
        }
    }

    /// The association, when there is one.
    #[must_use]
    pub fn association(&self) -> Option<&Association> {
        self.association.as_ref()
    }

    /// Has the transport replaced when its device is lost. Without this, every reconnect fails from then on.
    pub fn set_factory(&mut self, factory: Factory<T>) {
        self.factory = Some(factory);
    }

    /// How often the transport was replaced. Each has another descriptor.
    #[must_use]
    pub fn replaced(&self) -> u32 {
        self.replaced
    }

    /// The state of the connection.
    #[must_use]
    pub fn state(&self) -> ConnectionState {
        if self.recovery.is_over() {
            ConnectionState::Lost
        } else if !self.recovery.may_issue() {
            ConnectionState::Connecting
        } else if self.foreign().next().is_some() {
            ConnectionState::Foreign
        } else {
            ConnectionState::Live
        }
    }

    /// The transport: its descriptor, its deadlines.
    #[must_use]
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// The transport, to arm.
    pub fn transport_mut(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Makes memory usable in operations, under a number of the caller's choice.
    ///
    /// # Errors
    /// What the transport says.
    pub fn register(&mut self, id: RegionId, memory: &Memory) -> Result<(), TransportError> {
        let region = self.transport.register(memory)?;
        let index = usize::from(id.0);
        if self.regions.len() <= index {
            self.regions.resize_with(index + 1, || None);
        }
        self.deregister(id);
        self.regions[index] = Some(Region { memory: memory.clone(), region });
        Ok(())
    }

    /// Ends a registration. No operation may be in flight on it.
    pub fn deregister(&mut self, id: RegionId) {
        if let Some(region) = self.regions.get_mut(usize::from(id.0)).and_then(Option::take) {
            self.transport.deregister(region.region);
        }
    }

    /// Takes a block operation on a namespace. It waits while there is no connection.
    ///
    /// # Errors
    /// [`Full`]: nothing was taken.
    pub fn submit(&mut self, tag: Tag, nsid: Nsid, op: BlockOp) -> Result<(), Full> {
        self.use_disk(nsid);
        self.operations.submit(tag, nsid, op, self.recovery.may_queue() && !self.shut)
    }

    /// Sends what was submitted, as far as the queues have room.
    pub fn flush(&mut self, now: Duration) {
        self.issue(now);
        self.transport.flush();
    }

    /// The operations that have ended, up to the capacity left.
    pub fn poll(&mut self, completions: &mut Vec<BlockCompletion>) {
        self.operations.poll(completions);
    }

    /// What happened.
    pub fn poll_event(&mut self) -> Option<DriverEvent> {
        self.events.pop_front()
    }

    /// Ends it in order: the controller is shut down, the queues are closed. [`DriverEvent::Closed`] follows.
    pub fn shutdown(&mut self, now: Duration) {
        if core::mem::replace(&mut self.shut, true) {
            return;
        }
        match &mut self.association {
            Some(association) => association.shutdown(now),
            None => {
                self.recovery.stop();
                self.operations.fail_waiting(BlockError::Gone);
                self.events.push_back(DriverEvent::Closed);
            }
        }
        self.act(now);
    }

    /// Connects again as soon as that is safe, also to a controller that was given up. Nothing changes while it is in use, or after
    /// [`Driver::shutdown`].
    pub fn retry(&mut self, now: Duration) {
        if !self.shut {
            self.recovery.retry(now, self.time_to_fence(now));
        }
    }

    /// When [`Driver::turn`] must be called again even if nothing arrives.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let queues = self.queues.iter().flatten().filter_map(Queue::poll_timeout).min();
        let association = self.association.as_ref().and_then(Association::poll_timeout);
        let waiting = self.operations.poll_timeout();
        let key = self.key_refused.map(KeyRefused::poll_timeout);
        let (recovery, transport) = (self.recovery.poll_timeout(), self.transport.poll_timeout());
        let io_end = self.io_end.as_ref().map(|end| end.until);
        let computing = self.computing.as_ref().map(|computing| computing.look_at);
        [queues, association, recovery, transport, waiting, key, self.disks.poll_timeout(), io_end, computing]
            .into_iter()
            .flatten()
            .min()
    }

    /// Does everything that there is to do now. `true` when something was done: there may be more at once.
    pub fn turn(&mut self, now: Duration) -> bool {
        let mut worked = self.poll_arrivals(now);
        worked |= self.poll_connections(now);
        worked |= self.poll_computed(now);
        self.poll_timers(now);
        self.act(now);
        self.issue_own(now);
        self.issue(now);
        self.transport.flush();
        worked
    }

    fn poll_arrivals(&mut self, now: Duration) -> bool {
        let worked = self.transport.poll();
        while let Some(arrival) = self.transport.next_arrival() {
            let (qid, finished) = match arrival {
                Arrival::Response(qid, response, invalidated) => {
                    let Some(Some(queue)) = self.queues.get_mut(usize::from(qid.0)) else { continue };
                    (qid, queue.on_response(&mut self.transport, &response, invalidated))
                }
                Arrival::Released(qid, slot) => {
                    let Some(Some(queue)) = self.queues.get_mut(usize::from(qid.0)) else { continue };
                    (qid, Ok(queue.on_released(slot)))
                }
                Arrival::Violation(violation) => (Qid(0), Err(violation)),
            };
            match finished {
                Ok(Some(finished)) => self.on_finished(now, qid, &finished),
                Ok(None) => {}
                Err(violation) => {
                    if let Some(association) = &mut self.association {
                        association.on_violation(now, violation);
                    }
                }
            }
        }
        worked
    }

    fn on_finished(&mut self, now: Duration, qid: Qid, finished: &Finished) {
        match finished.owner {
            Owner::Operation(index) => {
                self.on_part(now, index, finished.outcome);
            }
            Owner::Association(id) => self.on_association_reply(now, id, qid, finished),
            Owner::Admin(number) => self.on_user_reply(number, qid, finished),
        }
    }

    fn on_part(&mut self, now: Duration, index: u32, outcome: Outcome) {
        let status = outcome.status;
        // The standard's status for a namespace that is not active any more, and for much else: a scan tells which it is.
        let doubt = status.is(Status::INVALID_FIELD) && self.next_doubt <= now;
        if doubt && let Some(association) = &mut self.association {
            self.next_doubt = now.saturating_add(DOUBT_INTERVAL);
            association.scan(now);
        }
        let asked = self.association.as_ref().map(|a| a.controller().retry_delay(status));
        let recovery = &self.recovery;
        self.operations.on_part(now, index, outcome, |begun, waited| {
            if doubt {
                return Fate::Requeue(Duration::ZERO);
            }
            recovery.fate_of_failed(status, begun, waited, asked.unwrap_or_default())
        });
    }

    fn poll_timers(&mut self, now: Duration) {
        let due = |at: Option<Duration>| at.is_some_and(|at| at <= now);
        for index in 0..self.queues.len() {
            let Some(queue) = &mut self.queues[index] else { continue };
            if due(queue.poll_timeout())
                && queue.expired(now)
                && let Some(association) = &mut self.association
            {
                association.on_command_timeout(now, queue.qid);
            }
        }
        if let Some(end) = self.io_end.take_if(|end| end.until <= now) {
            self.on_lost(now, end.qid, &end.cause, false);
        }
        if let Some(association) = &mut self.association
            && due(association.poll_timeout())
        {
            association.on_timeout(now);
        }
        if due(self.recovery.poll_timeout()) {
            self.recovery.on_timeout(now);
        }
        if due(self.disks.poll_timeout()) {
            self.fail_blocked(now);
        }
        if due(self.operations.poll_timeout()) {
            self.operations.on_timeout(now);
        }
    }

    /// Does what the association and the recovery want, until they want no more.
    fn act(&mut self, now: Duration) {
        loop {
            if let Some(action) = self.association.as_mut().and_then(Association::poll_action) {
                self.on_action(now, action);
            } else if let Some(decision) = self.recovery.poll_decision() {
                self.on_decision(now, decision);
            } else {
                return;
            }
        }
    }

    fn on_action(&mut self, now: Duration, action: Action) {
        match action {
            Action::OpenQueue { qid, private_data, entries, .. } => {
                self.open_queue(now, qid, &private_data, entries)
            }
            Action::Send { qid, id, command, data } => {
                self.send_own(now, qid.0.into(), id, AdminCommand { command, data });
            }
            Action::Ready => {
                self.on_ready();
                let after = self.recovery.on_ready(now);
                self.events.push_back(DriverEvent::Ready { after });
                self.check_disks(now, after.is_some());
            }
            Action::NamespacesChanged => {
                self.events.push_back(DriverEvent::NamespacesChanged);
                self.check_disks(now, false);
            }
            Action::Authenticate(task) => self.authenticate(now, task),
            Action::AuthenticatedAgain => self.events.push_back(DriverEvent::AuthenticatedAgain),
            Action::Secure { key, qid } => self.secure(now, &key, qid),
            Action::DiscoveryLogChanged | Action::Event(_) => {}
            Action::Failed(error) => {
                let was_ready = self.recovery.may_issue();
                self.recovery.on_lost(now, &error);
                self.on_failed(&error);
                self.events.push_back(if was_ready {
                    DriverEvent::Lost(error)
                } else {
                    DriverEvent::AttemptFailed(error)
                });
            }
            Action::CloseQueues => self.close_queues(now),
            Action::Closed => self.on_closed(now),
        }
    }

    fn on_decision(&mut self, now: Duration, decision: Decision) {
        match decision {
            Decision::Reconnect { .. } => self.reconnect(now),
            Decision::Abandon => {
                self.destroy_queues();
                self.on_closed(now);
            }
            Decision::FailIo => self.operations.fail_waiting(BlockError::Gone),
            Decision::GiveUp => {
                self.operations.fail_waiting(BlockError::Gone);
                self.fail_admin();
                self.events.push_back(DriverEvent::GaveUp);
            }
        }
    }
}
