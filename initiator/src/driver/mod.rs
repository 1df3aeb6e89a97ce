//! One remote controller: its association, its queues, its operations, through losses and reconnects.
//!
//! | file | what it does |
//! |---|---|
//! | `mod` | what goes in and out; [`Driver::turn`] |
//! | `config` | what a driver is made with |
//! | `link` | queues: opened, connected, closed; a provider that is lost, replaced |
//! | `admin` | admin and Fabrics commands |
//! | `disks` | namespaces, pinned to the disks that they were |
//! | `operation` | block operations: issued part by part, finished, issued again after a loss |
//!
//! The driver has no thread, no clock and makes no system call of its own: whoever drives a [`crate::Connection`] runs
//! [`Driver::turn`], and so does a simulator under virtual time.

mod admin;
mod config;
mod disks;
mod link;
mod operation;
#[cfg(test)]
pub(crate) mod tests;

pub use admin::AdminReply;
pub use config::{DriverConfig, StartError};

use crate::ConnectionState;
use crate::transport::{Finished, Owner, QueuePair, WorkRequest};
use admin::{AdminCommands, KeyRefused};
use core::time::Duration;
use disks::Disks;
use nvme_proto::{Nsid, Status};
use nvmf_block::{BlockError, BlockOp, Completion as BlockCompletion, Full, RegionId, Tag};
use nvmf_host::admin::AdminCommand;
use nvmf_host::{Action, Association, AssociationError, Decision, Fate, Mismatch, Outcome, Recovery};
use nvmf_memory::Memory;
use nvmf_rdma::{Completion, CompletionQueueId, MemoryRegion, Provider, RegisterError};
use operation::Operations;
use std::collections::VecDeque;

/// Completions taken from the provider at once.
const COMPLETIONS_AT_ONCE: usize = 64;
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
    /// An admin command ended; `None` when its association did first.
    Admin(u32, Option<AdminReply>),
    /// It is over: all I/O has failed and will fail.
    GaveUp,
    /// [`Driver::shutdown`] is done.
    Closed,
}

struct Region {
    memory: Memory,
    region: MemoryRegion,
}

/// One remote controller.
pub struct Driver<P: Provider> {
    provider: P,
    cq: CompletionQueueId,
    config: DriverConfig,
    association: Option<Association>,
    recovery: Recovery,
    /// By qid.
    queues: Vec<Option<QueuePair>>,
    /// By region.
    regions: Vec<Option<Region>>,
    operations: Operations,
    disks: Disks,
    admin: AdminCommands,
    key_refused: Option<KeyRefused>,
    /// When Invalid Field may next cause a scan of the namespaces.
    next_doubt: Duration,
    events: VecDeque<DriverEvent>,
    completions: Vec<Completion>,
    /// The I/O queue that comes next.
    round: usize,
    closing: bool,
    /// The association ended from the controller's side, so that the controller knows of it.
    ended_by_controller: bool,
    shut: bool,
    factory: Option<Factory<P>>,
    /// The provider failed to make a queue: its device may be gone.
    suspect: bool,
    /// How often the provider was replaced.
    replaced: u32,
}

/// Makes a provider anew after the device of the last one is gone.
pub type Factory<P> = Box<dyn FnMut() -> Result<P, String> + Send>;

impl<P: Provider> Driver<P> {
    /// Starts to connect.
    ///
    /// # Errors
    /// When the configuration cannot be, or the provider refuses a completion queue.
    pub fn new(mut provider: P, config: DriverConfig, now: Duration) -> Result<Self, StartError> {
        let association = Association::new(config.association.clone(), now)?;
        let cq = provider.create_completion_queue(config.completions_max())?;
        let mut driver = Self {
            provider,
            cq,
            recovery: Recovery::new(config.recovery, config.seed, now),
            association: Some(association),
            queues: Vec::new(),
            regions: Vec::new(),
            operations: Operations::new(config.operations),
            disks: Disks::default(),
            admin: AdminCommands::default(),
            key_refused: None,
            next_doubt: Duration::ZERO,
            events: VecDeque::new(),
            completions: Vec::with_capacity(COMPLETIONS_AT_ONCE),
            round: 0,
            closing: false,
            ended_by_controller: false,
            shut: false,
            factory: None,
            suspect: false,
            replaced: 0,
            config,
        };
        driver.act(now);
        Ok(driver)
    }

    /// The association, when there is one.
    #[must_use]
    pub fn association(&self) -> Option<&Association> {
        self.association.as_ref()
    }

    /// Has the provider replaced when its device is lost. Without this, every reconnect fails from then on.
    pub fn set_factory(&mut self, factory: Factory<P>) {
        self.factory = Some(factory);
    }

    /// How often the provider was replaced. Each has another descriptor.
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

    /// The provider: its descriptor, its deadlines.
    #[must_use]
    pub fn provider(&self) -> &P {
        &self.provider
    }

    /// The provider, to arm.
    pub fn provider_mut(&mut self) -> &mut P {
        &mut self.provider
    }

    /// Makes memory usable in operations, under a number of the caller's choice.
    ///
    /// # Errors
    /// What the provider says.
    pub fn register(&mut self, id: RegionId, memory: &Memory) -> Result<(), RegisterError> {
        let access = crate::transport::local_access(self.provider.capabilities().per_command_keys);
        let region = self.provider.register(memory, access)?;
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
            self.provider.deregister(region.region.local_key);
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
        self.provider.flush();
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

    /// When [`Driver::turn`] must be called again even if nothing arrives.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let queues = self.queues.iter().flatten().filter_map(QueuePair::poll_timeout).min();
        let association = self.association.as_ref().and_then(Association::poll_timeout);
        let waiting = self.operations.poll_timeout();
        let key = self.key_refused.map(KeyRefused::poll_timeout);
        let (recovery, provider) = (self.recovery.poll_timeout(), self.provider.poll_timeout());
        [queues, association, recovery, provider, waiting, key, self.disks.poll_timeout()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Does everything that there is to do now. `true` when something was done: there may be more at once.
    pub fn turn(&mut self, now: Duration) -> bool {
        let mut worked = self.poll_provider(now);
        worked |= self.poll_connections(now);
        self.poll_timers(now);
        self.act(now);
        self.issue_own(now);
        self.issue(now);
        for queue in self.queues.iter_mut().flatten() {
            queue.post_pending(&mut self.provider);
        }
        self.provider.flush();
        worked
    }

    fn poll_provider(&mut self, now: Duration) -> bool {
        let mut completions = core::mem::take(&mut self.completions);
        self.provider.poll_cq(self.cq, &mut completions);
        let worked = !completions.is_empty();
        for completion in completions.drain(..) {
            self.on_completion(now, &completion);
        }
        self.completions = completions;
        worked
    }

    fn on_completion(&mut self, now: Duration, completion: &Completion) {
        let (qid, request) = WorkRequest::parse(completion.id);
        let Some(Some(queue)) = self.queues.get_mut(usize::from(qid.0)) else { return };
        // What failed or was flushed announces the end of its connection, whose event says why.
        if queue.id != completion.queue_pair || !completion.status.is_success() {
            return;
        }
        match queue.on_completion(&mut self.provider, request, completion) {
            Ok(Some(finished)) => self.on_finished(now, usize::from(qid.0), &finished),
            Ok(None) => {}
            Err(violation) => {
                if let Some(association) = &mut self.association {
                    association.on_violation(now, violation);
                }
            }
        }
    }

    fn on_finished(&mut self, now: Duration, qid: usize, finished: &Finished) {
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
            Action::DiscoveryLogChanged | Action::Event(_) => {}
            Action::Failed(error) => {
                let was_ready = self.recovery.may_issue();
                self.recovery.on_lost(now, &error);
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
