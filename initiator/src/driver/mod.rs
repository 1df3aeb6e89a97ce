//! One remote controller: its association, its queues, its operations, through losses and reconnects.
//!
//! | file | what it does |
//! |---|---|
//! | `mod` | what goes in and out; [`Driver::turn`] |
//! | `link` | queues: opened, connected, closed |
//! | `operation` | block operations: issued part by part, finished, issued again after a loss |
//!
//! The driver has no thread, no clock and makes no system call of its own: whoever drives a [`crate::Connection`] runs
//! [`Driver::turn`], and so does a simulator under virtual time.

mod link;
mod operation;
#[cfg(test)]
mod tests;

use crate::transport::{Data, Finished, Owner, QueuePair, WorkRequest};
use core::time::Duration;
use nvme_proto::Nsid;
use nvmf_block::{BlockError, BlockOp, Completion as BlockCompletion, Full, RegionId, Tag};
use nvmf_host::admin::AdminCommand;
use nvmf_host::{
    Action, AdminData, Association, AssociationConfig, AssociationError, CommandId, Decision, Outcome,
    Recovery, RecoveryPolicy, Reply,
};
use nvmf_memory::Memory;
use nvmf_rdma::{Completion, CompletionQueueId, MemoryRegion, Provider, RegisterError, ResourceError};
use operation::Operations;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Completions taken from the provider at once.
const COMPLETIONS_AT_ONCE: usize = 64;
/// Connection events taken in one turn.
const EVENTS_AT_ONCE: usize = 16;

/// What a driver is to do.
#[derive(Debug, Clone)]
pub struct DriverConfig {
    /// Where the controller listens.
    pub address: SocketAddr,
    /// From which of our addresses to connect.
    pub source: Option<SocketAddr>,
    /// Whom to connect to, as whom, with what queues.
    pub association: AssociationConfig,
    /// When to reconnect and when to give up.
    pub recovery: RecoveryPolicy,
    /// How long an I/O command may take before its connection is given up.
    pub io_timeout: Duration,
    /// Operations at once, waiting or in flight.
    pub operations: u32,
    /// For the jitter of reconnects: anything that differs between hosts.
    pub seed: u64,
}

/// The reply to an admin command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminReply {
    /// How it ended.
    pub outcome: Outcome,
    /// What the controller sent.
    pub data: Vec<u8>,
}

/// What happens to a driver.
#[derive(Debug)]
pub enum DriverEvent {
    /// Connected, for the first time or again: [`Driver::association`] tells the rest.
    Ready,
    /// Namespaces came, went or changed.
    NamespacesChanged,
    /// The association is lost; a reconnect follows, unless [`DriverEvent::GaveUp`] does.
    Lost(AssociationError),
    /// An admin command ended; `None` when its association did, first.
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
    admin_waiting: VecDeque<(u32, AdminCommand)>,
    /// What the admin commands in flight read, by their number.
    admin_reading: Vec<(u32, u32)>,
    /// What the association's own commands in flight read.
    association_reading: Vec<(CommandId, u32)>,
    events: VecDeque<DriverEvent>,
    completions: Vec<Completion>,
    /// The I/O queue that comes next.
    round: usize,
    closing: bool,
    shut: bool,
}

impl<P: Provider> Driver<P> {
    /// Starts to connect.
    ///
    /// # Errors
    /// When the configuration cannot be, or the provider refuses a completion queue.
    pub fn new(mut provider: P, config: DriverConfig, now: Duration) -> Result<Self, StartError> {
        let association = Association::new(config.association.clone(), now)?;
        let admin = QueuePair::completions_max(nvmf_host::limits::ADMIN_QUEUE_ENTRIES);
        let io = QueuePair::completions_max(config.association.io_queue_entries.saturating_add(1));
        let cq = provider.create_completion_queue(admin + io * u32::from(config.association.io_queues))?;
        let mut driver = Self {
            provider,
            cq,
            recovery: Recovery::new(config.recovery, config.seed, now),
            association: Some(association),
            queues: Vec::new(),
            regions: Vec::new(),
            operations: Operations::new(config.operations),
            admin_waiting: VecDeque::new(),
            admin_reading: Vec::new(),
            association_reading: Vec::new(),
            events: VecDeque::new(),
            completions: Vec::with_capacity(COMPLETIONS_AT_ONCE),
            round: 0,
            closing: false,
            shut: false,
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

    /// Takes an admin command of the user's; [`DriverEvent::Admin`] follows with this number.
    pub fn submit_admin(&mut self, number: u32, command: AdminCommand) {
        if self.recovery.may_queue() && !self.shut {
            self.admin_waiting.push_back((number, command));
        } else {
            self.events.push_back(DriverEvent::Admin(number, None));
        }
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
        [queues, association, self.recovery.poll_timeout(), self.provider.poll_timeout()]
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
        self.issue(now);
        for queue in self.queues.iter_mut().flatten() {
            queue.pay(&mut self.provider);
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
        if worked && let Some(association) = &mut self.association {
            association.on_traffic(now);
        }
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
                self.operations.on_part(index, finished.outcome, &self.recovery);
            }
            Owner::Association(id) => {
                let len = take(&mut self.association_reading, id);
                let data = self.slot_data(qid, finished, len);
                if let Some(association) = &mut self.association {
                    association.on_completion(now, id, Reply { outcome: finished.outcome, data: &data });
                    self.act(now);
                }
            }
            Owner::Admin(number) => {
                let len = take(&mut self.admin_reading, number);
                let data = self.slot_data(qid, finished, len);
                let reply = AdminReply { outcome: finished.outcome, data };
                self.events.push_back(DriverEvent::Admin(number, Some(reply)));
            }
        }
    }

    fn slot_data(&self, qid: usize, finished: &Finished, len: u32) -> Vec<u8> {
        let mut data = vec![0; len as usize];
        if let Some(Some(queue)) = self.queues.get(qid) {
            queue.memory.read(finished.data_offset, &mut data);
        }
        data
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
                let admin = AdminCommand { command, data };
                if !self.send_admin(qid.0.into(), Owner::Association(id), &admin) {
                    // Its deadline ends the wait: the queue has room for the association's commands unless the connection is dying.
                    tracing::debug!(qid = qid.0, "no room for a command of the association's");
                }
            }
            Action::Ready => {
                self.on_ready();
                self.recovery.on_ready(now);
                self.events.push_back(DriverEvent::Ready);
            }
            Action::NamespacesChanged => self.events.push_back(DriverEvent::NamespacesChanged),
            Action::DiscoveryLogChanged | Action::Event(_) => {}
            Action::Failed(error) => {
                self.recovery.on_lost(now, &error);
                self.events.push_back(DriverEvent::Lost(error));
            }
            Action::CloseQueues => self.close_queues(now),
            Action::Closed => self.on_closed(now),
        }
    }

    fn on_decision(&mut self, now: Duration, decision: Decision) {
        match decision {
            Decision::Reconnect { .. } => match Association::new(self.config.association.clone(), now) {
                Ok(association) => self.association = Some(association),
                Err(error) => self.recovery.on_lost(now, &error),
            },
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

    /// Sends an admin or Fabrics command; `false` when there is no room.
    fn send_admin(&mut self, queue: usize, owner: Owner, admin: &AdminCommand) -> bool {
        let Some(Some(pair)) = self.queues.get_mut(queue) else { return false };
        let data = match &admin.data {
            AdminData::None => Data::None,
            AdminData::ToController { bytes, in_capsule } => Data::Bytes { bytes, in_capsule: *in_capsule },
            AdminData::FromController { len } => Data::IntoSlot { len: *len },
        };
        let sent = pair.send(&mut self.provider, owner, &admin.command, data, None, None).is_ok();
        if let (true, AdminData::FromController { len }) = (sent, &admin.data) {
            match owner {
                Owner::Association(id) => self.association_reading.push((id, *len)),
                Owner::Admin(number) => self.admin_reading.push((number, *len)),
                Owner::Operation(_) => {}
            }
        }
        sent
    }

    fn fail_admin(&mut self) {
        self.association_reading.clear();
        for (number, _) in self.admin_waiting.drain(..) {
            self.events.push_back(DriverEvent::Admin(number, None));
        }
    }
}

/// Takes the value of a key out of a short list; 0 when it is not there.
fn take<K: PartialEq + Copy>(list: &mut Vec<(K, u32)>, key: K) -> u32 {
    list.iter().position(|(k, _)| *k == key).map_or(0, |at| list.swap_remove(at).1)
}

/// A driver could not start.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot be.
    #[error(transparent)]
    Association(#[from] AssociationError),
    /// The provider refused.
    #[error("the RDMA provider refused: {0}")]
    Provider(String),
}

impl From<ResourceError> for StartError {
    fn from(error: ResourceError) -> Self {
        Self::Provider(error.to_string())
    }
}
