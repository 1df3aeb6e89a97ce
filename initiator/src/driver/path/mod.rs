//! One path: an association with a controller, its transport and queues, through losses and reconnects.
//!
//! | file | what it does |
//! |---|---|
//! | `mod` | what goes in and out; timers |
//! | `link` | queues: opened, connected, closed; a transport whose device is lost, replaced |
//! | `queue` | the commands in flight on one queue |
//! | `admin` | admin and Fabrics commands |
//! | `regions` | memory that operations use, and the parts of them that move it |
//! | `authentication` | what is computed for an authentication, and the key for TLS that it makes |
//!
//! A path knows nothing of the others. What concerns all of them it leaves as [`Note`]s to the driver.

mod admin;
mod authentication;
mod link;
mod queue;
mod regions;

pub(in crate::driver) use queue::Owner;

use super::{AdminReply, DriverConfig, Factory, Impacted, StartError, Unanswered};
use crate::transport::{Arrival, Transport};
use admin::{AdminInFlight, KeyRefused};
use authentication::Computing;
use core::time::Duration;
use link::IoEnd;
use nvme_proto::admin::cross_controller_reset::ControllerInstance;
use nvme_proto::{Nsid, Qid, Status};
use nvmf_host::admin::AdminCommand;
use nvmf_host::association::State;
use nvmf_host::{
    Action, Association, AssociationError, Decision, Fate, Outcome, QueueFailure, Recovery, Tries,
};
use queue::{Finished, Queue};
use regions::Region;
use std::collections::VecDeque;

/// What happened to a path, for the driver to act on.
#[derive(Debug)]
pub(super) enum Note {
    Ready {
        after: Option<Duration>,
    },
    NamespacesChanged,
    AccessChanged,
    AuthenticatedAgain,
    ResetEnded {
        impacted: ControllerInstance,
        successful: bool,
    },
    /// A command of this operation was not answered in time, for which the association is given up.
    Overdue(u32),
    /// The association failed; it was ready, or an attempt.
    Failed {
        error: AssociationError,
        was_ready: bool,
    },
    /// Its connections are gone, and with them whatever was in flight; `None`: there was no association.
    Closed(Option<Lost>),
    FailIo,
    GaveUp,
    Admin(u32, Result<AdminReply, Unanswered>),
}

/// A controller that was lost.
#[derive(Debug)]
pub(super) struct Lost {
    pub(super) impacted: Impacted,
    /// An admin command or a raw command of the user's was in flight.
    pub(super) admin: bool,
}

/// One path.
pub(super) struct Path<T: Transport> {
    pub(super) transport: T,
    pub(super) config: DriverConfig,
    pub(super) association: Option<Association>,
    pub(super) recovery: Recovery,
    /// By qid.
    pub(super) queues: Vec<Option<Queue>>,
    /// By region.
    regions: Vec<Option<Region<T::Region>>>,
    admin: AdminInFlight,
    key_refused: Option<KeyRefused>,
    computing: Option<Computing>,
    notes: VecDeque<Note>,
    /// The I/O queue that was used last, by kind of operation.
    rounds: [usize; 2],
    /// Queues whose connection could not even be begun.
    unopened: VecDeque<(Qid, QueueFailure)>,
    /// I/O queues that have the first command of a pair, and not yet the second.
    seconds: usize,
    closing: bool,
    /// The association ended from the controller's side, so that the controller knows of it.
    ended_by_controller: bool,
    /// The controller ended an I/O queue: whether it ended all of them will be seen.
    io_end: Option<IoEnd>,
    /// An admin command or a raw command of the user's was in flight when the association ended.
    admin_lost: bool,
    /// A raw command was.
    raw_lost: bool,
    /// Another path is ready: what is in flight here can go on there.
    has_company: bool,
    shut: bool,
    factory: Option<Factory<T>>,
    /// How often the transport was replaced.
    pub(super) replaced: u32,
    /// Why the association was lost last, or could not be set up; `None` while it is in use.
    pub(super) lost: Option<AssociationError>,
    /// For how long its controller may carry out what it was sent, when nothing reaches it any more: as it was last connected.
    quiesce: Option<Duration>,
}

impl<T: Transport> Path<T> {
    /// Starts to connect.
    pub(super) fn new(transport: T, config: DriverConfig, now: Duration) -> Result<Self, StartError> {
        let recovery = Recovery::new(config.recovery, config.seed, now);
        let (mut path, association) = Self::idle(transport, config, recovery, now)?;
        path.association = Some(association);
        path.act(now);
        Ok(path)
    }

    /// Takes over a controller that another process of this host used until it ended, as after a loss.
    pub(super) fn resumed(transport: T, config: DriverConfig, now: Duration) -> Result<Self, StartError> {
        let recovery = Recovery::resumed(config.recovery, config.seed, now);
        // The association is made anew for each attempt; here, only what is wrong with it is asked.
        Self::idle(transport, config, recovery, now).map(|(path, _)| path)
    }

    fn idle(
        mut transport: T,
        mut config: DriverConfig,
        recovery: Recovery,
        now: Duration,
    ) -> Result<(Self, Association), StartError> {
        config.association.transport = transport.kind();
        let association = Association::new(config.association.clone(), now)?;
        config.prepare(&mut transport)?;
        let path = Self {
            transport,
            recovery,
            association: None,
            queues: Vec::new(),
            regions: Vec::new(),
            admin: AdminInFlight::default(),
            key_refused: None,
            computing: None,
            notes: VecDeque::new(),
            rounds: [0; 2],
            unopened: VecDeque::new(),
            seconds: 0,
            closing: false,
            ended_by_controller: false,
            io_end: None,
            admin_lost: false,
            raw_lost: false,
            has_company: false,
            shut: false,
            factory: None,
            replaced: 0,
            lost: None,
            quiesce: None,
            config,
        };
        Ok((path, association))
    }

    pub(super) fn set_factory(&mut self, factory: Factory<T>) {
        self.factory = Some(factory);
    }

    /// Commands may be issued on it.
    pub(super) fn is_ready(&self) -> bool {
        self.recovery.may_issue()
    }

    /// What it has sent, or may send from now on, that may still be carried out if nothing more reaches its controller.
    /// `unknown`: for how long, where that is not known.
    pub(super) fn impacted(&self, now: Duration, unknown: Duration) -> Impacted {
        let quiesce = self.quiesce.unwrap_or(unknown);
        // While it is not connected nobody can say which controller it will be.
        let instance =
            self.association.as_ref().filter(|_| self.is_ready()).and_then(|it| it.controller().instance);
        let controller = instance.map(|instance| (self.config.address, instance));
        Impacted { controller, until: now.saturating_add(quiesce), reads: false }
    }

    /// Whether one of the other paths is ready from now on.
    pub(super) fn on_others(&mut self, now: Duration, ready: bool) {
        self.has_company = ready;
        self.recovery.on_others(now, ready);
        if ready && self.is_closing() {
            self.close_queues(now);
        }
    }

    /// What happened.
    pub(super) fn poll_note(&mut self) -> Option<Note> {
        self.notes.pop_front()
    }

    /// Begins to end it in order. [`Note::Closed`] follows.
    pub(super) fn shutdown(&mut self, now: Duration) {
        self.shut = true;
        match &mut self.association {
            Some(association) => association.shutdown(now),
            None => {
                self.recovery.stop();
                self.notes.push_back(Note::Closed(None));
            }
        }
        self.act(now);
    }

    /// Nothing is left of it.
    pub(super) fn is_closed(&self) -> bool {
        self.association.is_none() && self.recovery.is_over()
    }

    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        let queues = self.queues.iter().flatten().filter_map(Queue::poll_timeout).min();
        let association = self.association.as_ref().and_then(Association::poll_timeout);
        let key = self.key_refused.map(KeyRefused::poll_timeout);
        let (recovery, transport) = (self.recovery.poll_timeout(), self.transport.poll_timeout());
        let io_end = self.io_end.as_ref().map(|end| end.until);
        let computing = self.computing.as_ref().map(|computing| computing.look_at);
        let unopened = (!self.unopened.is_empty()).then_some(Duration::ZERO);
        [queues, association, recovery, transport, key, io_end, computing, unopened]
            .into_iter()
            .flatten()
            .min()
    }

    /// Looks what arrived, for [`Path::next_part`].
    pub(super) fn poll_arrivals(&mut self, now: Duration) -> bool {
        let arrived = self.transport.poll();
        if arrived && let Some(association) = &mut self.association {
            association.on_answer(now);
        }
        arrived
    }

    /// The next part of an operation that has ended, and how. What else arrived is dealt with.
    pub(super) fn next_part(&mut self, now: Duration) -> Option<(u32, Outcome)> {
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
                Ok(Some(Finished { owner: Owner::Operation(index), outcome, .. })) => {
                    return Some((index, outcome));
                }
                Ok(Some(finished)) => self.on_admin_finished(now, qid, &finished),
                Ok(None) => {}
                Err(violation) => {
                    if let Some(association) = &mut self.association {
                        association.on_violation(now, violation);
                    }
                }
            }
        }
        None
    }

    fn on_admin_finished(&mut self, now: Duration, qid: Qid, finished: &Finished) {
        match finished.owner {
            Owner::Association(id) => self.on_association_reply(now, id, qid, finished),
            Owner::Admin(number) => self.on_user_reply(number, qid, finished),
            Owner::Operation(_) => {}
        }
    }

    /// Does everything else that there is to do now.
    pub(super) fn turn(&mut self, now: Duration) -> bool {
        let mut worked = self.poll_connections(now);
        worked |= self.poll_computed(now);
        self.poll_timers(now);
        self.act(now);
        worked
    }

    fn poll_timers(&mut self, now: Duration) {
        let due = |at: Option<Duration>| at.is_some_and(|at| at <= now);
        let mut ends = self.is_ready();
        for index in 0..self.queues.len() {
            let Some(queue) = &mut self.queues[index] else { continue };
            if due(queue.poll_timeout())
                && let Some(owner) = queue.expired(now)
                && let Some(association) = &mut self.association
            {
                association.on_command_timeout(now, queue.qid);
                // The first is what the association ends for, if it is not ending already.
                if core::mem::take(&mut ends)
                    && let Owner::Operation(index) = owner
                {
                    self.notes.push_back(Note::Overdue(index));
                }
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
    }

    /// Looks at the namespaces again.
    pub(super) fn scan(&mut self, now: Duration) {
        if let Some(association) = &mut self.association {
            association.scan(now);
        }
    }

    /// Its user wants the association to end, and another one in its place.
    pub(super) fn reset_association(&mut self, now: Duration) {
        if let Some(association) = self.association.as_mut().filter(|_| self.recovery.may_issue()) {
            association.on_reset_request(now);
        }
    }

    /// A command for this namespace had a status that tells how it can be reached.
    pub(super) fn on_ana_status(&mut self, now: Duration, nsid: Nsid, status: Status) {
        if let Some(association) = &mut self.association {
            association.on_ana_status(now, nsid, status);
        }
    }

    /// What becomes of a command that its controller failed, having been tried so often.
    pub(super) fn fate_of_failed(&self, status: Status, tries: Tries) -> Fate {
        let association = self.association.as_ref();
        let asked = association.map(|it| it.controller().retry_delay(status)).unwrap_or_default();
        self.recovery.fate_of_failed(status, tries, asked)
    }

    /// Begins to reset another controller, which was lost; `false`: it cannot.
    pub(super) fn reset(&mut self, now: Duration, impacted: ControllerInstance) -> bool {
        if !self.is_ready() {
            return false;
        }
        let begun = self.association.as_mut().is_some_and(|association| association.reset(now, impacted));
        self.act(now);
        begun
    }

    /// Does what the association and the recovery want, until they want no more.
    pub(super) fn act(&mut self, now: Duration) {
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
                self.on_ready(now);
                let after = self.recovery.on_ready(now);
                self.notes.push_back(Note::Ready { after });
            }
            Action::NamespacesChanged => self.notes.push_back(Note::NamespacesChanged),
            Action::AccessChanged => self.notes.push_back(Note::AccessChanged),
            Action::ResetEnded { impacted, successful } => {
                self.notes.push_back(Note::ResetEnded { impacted, successful });
            }
            Action::Authenticate(task) => self.authenticate(now, task),
            Action::AuthenticatedAgain => self.notes.push_back(Note::AuthenticatedAgain),
            Action::Secure { key, qid } => self.secure(now, &key, qid),
            Action::DiscoveryLogChanged => self.notes.push_back(Note::NamespacesChanged),
            Action::Event(_) => {}
            Action::Failed(error) => self.on_failed(now, error),
            Action::CloseQueues => self.close_queues(now),
            Action::Closed => self.on_closed(now),
        }
    }

    /// What is being done until the controller can be used.
    fn setting_up(&self) -> Option<State> {
        let is_setup = |state: &State| {
            !matches!(state, State::Ready | State::ShuttingDown | State::Closing | State::Closed)
        };
        self.association.as_ref().map(Association::state).filter(is_setup)
    }

    fn on_failed(&mut self, now: Duration, error: AssociationError) {
        let was_ready = self.recovery.may_issue();
        self.recovery.on_lost(now, &error);
        self.lost = Some(error.clone());
        self.notes.push_back(Note::Failed { error, was_ready });
    }

    fn on_decision(&mut self, now: Duration, decision: Decision) {
        match decision {
            Decision::Reconnect { .. } => self.reconnect(now),
            Decision::Abandon => {
                if let Some(state) = self.setting_up() {
                    // No step of it took too long, all of them together have.
                    self.on_failed(now, AssociationError::TimedOut { state });
                }
                self.destroy_queues();
                self.on_closed(now);
            }
            Decision::FailIo => self.notes.push_back(Note::FailIo),
            Decision::GiveUp => self.notes.push_back(Note::GaveUp),
        }
    }
}
