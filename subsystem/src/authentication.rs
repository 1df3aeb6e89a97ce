//! In-band authentication of one queue: Authentication Send and Receive, and the time that they may take.

use crate::data::{self, Fit};
use crate::limits::{AUTHENTICATION_LINGER, AUTHENTICATION_TIMEOUT, PAGE_LEN, PARAMETERS_LEN_MAX};
use crate::step::{Step, Violation, Work};
use crate::ticket::{Kind, Outcome, Reply};
use crate::{Association, Nqn, Page, Question, status};
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use core::net::IpAddr;
use core::time::Duration;
use nvme_proto::fabrics::auth::Authentication as Command;
use nvme_proto::opcode::FabricsType;
use nvme_proto::{Sqe, Status};
use nvmf_auth::controller::{Computed, Controller, Fault};
use nvmf_auth::{Concatenation, Names, Terms};

/// Which hosts must authenticate, and how. Their keys are the control plane's affair.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Authentication {
    /// These hosts must, on every queue.
    pub hosts: BTreeMap<Nqn, Terms>,
    /// Of these hosts, those that use namespaces over TLS only: where it is not there from the first byte, an
    /// authentication must make its key (secure channel concatenation).
    pub concatenate: BTreeSet<Nqn>,
    /// On discovery controllers, too. Not all hosts can.
    pub discovery: bool,
}

/// How a queue's host authenticates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) terms: Terms,
    pub(crate) concatenation: Concatenation,
}

impl Demand {
    /// Whether it must, before the queue is used.
    pub(crate) fn is_due(&self) -> bool {
        !matches!(self.concatenation, Concatenation::Replace { .. })
    }

    /// Whether it must make a key for TLS.
    pub(crate) fn is_for_channel(&self) -> bool {
        self.concatenation == Concatenation::New { required: true }
    }
}

/// What the transport does when the ticket comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthenticationKind {
    /// The message of an Authentication Send is being pulled, or computed on.
    Send,
    /// The message of an Authentication Receive is being pushed.
    Receive,
}

/// The authentication of one queue.
#[derive(Debug)]
pub(crate) struct QueueAuthentication {
    protocol: Controller,
    machine: IpAddr,
    /// By when the host must have gone on: on a queue that is not authenticated by when it must be.
    deadline: Option<Duration>,
    /// Since when the control plane has a question. That time is not the host's.
    asked: Option<Duration>,
    expired: bool,
}

impl QueueAuthentication {
    pub(crate) fn new(now: Duration, association: &Association, demand: Demand) -> Self {
        let names = Names { host: association.host_nqn, subsystem: association.subsystem_nqn };
        let deadline = demand.is_due().then(|| now.saturating_add(AUTHENTICATION_TIMEOUT));
        Self {
            protocol: Controller::new(names, demand.terms).with_concatenation(demand.concatenation),
            machine: association.machine,
            deadline,
            asked: None,
            expired: false,
        }
    }

    /// Whether nothing but authentication is allowed.
    pub(crate) fn is_locked(&self) -> bool {
        !self.protocol.is_authenticated()
    }

    /// Why it failed, if it did.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.protocol.fault()
    }

    /// Authentication Send or Receive.
    pub(crate) fn on_command(
        &mut self,
        now: Duration,
        fctype: FabricsType,
        sqe: &Sqe,
        in_capsule_len: usize,
    ) -> Outcome {
        let command = Command::parse(sqe.cdw10.get(), sqe.cdw11.get());
        if !command.is_nvme() || command.len == 0 {
            return Err(status::INVALID_FIELD);
        }
        if fctype == FabricsType::AUTHENTICATION_SEND {
            if command.len as usize > PARAMETERS_LEN_MAX {
                return Err(status::INVALID_FIELD);
            }
            let transfer = data::from_host(sqe, command.len, Fit::Exact, in_capsule_len)?;
            let kind = Kind::Authentication(AuthenticationKind::Send);
            return Ok(Reply::Execute { kind, work: Work::Parameters, transfer });
        }
        let len = command.len.min(PAGE_LEN as u32);
        let fit = if len == command.len { Fit::Exact } else { Fit::AtLeast };
        let transfer = data::to_host(sqe, len, fit)?;
        let message = self.protocol.message();
        // What does not fit would be no message.
        if message.len() > len as usize {
            return Err(status::INVALID_FIELD);
        }
        let page = Page::build(|page| page[..message.len()].copy_from_slice(message));
        self.note_progress(now);
        let kind = Kind::Authentication(AuthenticationKind::Receive);
        Ok(Reply::Execute { kind, work: Work::Page(Box::new(page)), transfer })
    }

    /// A message of the host's.
    pub(crate) fn on_message(&mut self, now: Duration, message: &[u8]) -> Outcome {
        let task = self.protocol.on_message(message);
        self.note_progress(now);
        let Some(task) = task else { return Ok(Reply::Done(0)) };
        self.asked = Some(now);
        let (names, machine) = (*self.protocol.names(), self.machine);
        let question = Box::new(Question::Authenticate { names, machine, task });
        Ok(Reply::Ask { kind: Kind::Authentication(AuthenticationKind::Send), question })
    }

    /// The answer to the question. The command itself succeeds, whatever it is: the host asks for the next message.
    pub(crate) fn on_computed(&mut self, now: Duration, computed: Computed) -> Outcome {
        let waited = self.asked.take().map_or(Duration::ZERO, |asked| now.saturating_sub(asked));
        self.deadline = self.deadline.map(|deadline| deadline.saturating_add(waited));
        self.protocol.on_computed(computed);
        self.note_progress(now);
        Ok(Reply::Done(0))
    }

    /// The host has the message.
    pub(crate) fn on_message_taken(&mut self, now: Duration) -> Outcome {
        self.protocol.on_message_taken();
        self.note_progress(now);
        Ok(Reply::Done(0))
    }

    /// The first authentication has one deadline for all of it. A later one has one for each step, and its end is the
    /// end of that attempt only. After a failure the host gets a moment to ask why.
    fn note_progress(&mut self, now: Duration) {
        let within = |time: Duration| Some(now.saturating_add(time));
        self.deadline = match self.protocol.fault() {
            Some(_) => within(AUTHENTICATION_LINGER).min(self.deadline.or(within(AUTHENTICATION_LINGER))),
            None if self.is_locked() => self.deadline,
            None if self.protocol.is_under_way() => within(AUTHENTICATION_TIMEOUT),
            None => None,
        };
    }

    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        self.deadline.filter(|_| self.asked.is_none() && !self.expired)
    }

    pub(crate) fn on_timeout(&mut self, now: Duration) {
        if self.poll_timeout().is_none_or(|deadline| now < deadline) {
            return;
        }
        if self.is_locked() {
            self.expired = true;
        } else {
            self.protocol.give_up();
            self.deadline = None;
        }
    }

    pub(crate) fn poll_step(&self) -> Option<Step> {
        match (self.fault(), self.expired) {
            (Some(_), expired) if expired || self.protocol.is_over() => Some(Step::CloseQueue),
            // The host went on over TLS, and has left this connection open.
            (None, true) if self.protocol.is_concatenated() => Some(Step::CloseQueue),
            (None, true) => {
                Some(Step::CloseAssociation(Violation::AuthenticationTimeout(AUTHENTICATION_TIMEOUT)))
            }
            _ => None,
        }
    }
}

/// Whether it is one of the two commands that an unauthenticated queue has.
pub(crate) fn is_authentication(fctype: Option<FabricsType>) -> Option<FabricsType> {
    fctype.filter(|it| matches!(*it, FabricsType::AUTHENTICATION_SEND | FabricsType::AUTHENTICATION_RECEIVE))
}

/// The status of every other command on a queue that is not authenticated.
pub(crate) const REQUIRED: Status = Status::AUTHENTICATION_REQUIRED.with_dnr();
