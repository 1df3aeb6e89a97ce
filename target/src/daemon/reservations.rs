//! Reservation commands: decided, stored, put in force on every worker, and answered then.

use super::authentication::Origin;
use super::workers::{Common, publish};
use crate::barrier::{Barrier, Scope};
use crate::mailbox::Mailboxes;
use crate::message::Answered;
use crate::state::{StateDirectory, is_to_be_stored};
use crate::thread::Clock;
use crate::transport::Detached;
use core::time::Duration;
use nvme_proto::Status;
use nvmf_subsystem::{Answer, Registry, ReservationQuestion};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use uuid::Uuid;

/// How long a command waits for the workers, and for what preempted hosts have in flight.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What carries reservation commands out, one after the other.
pub(super) struct Reservations {
    registry: Arc<Mutex<Registry>>,
    /// They end with the daemon.
    mailboxes: Weak<Mailboxes<Detached>>,
    state: Arc<StateDirectory>,
    clock: Clock,
    waiting: Vec<Waiting>,
}

/// A command that is in force on some workers, and answered when it is on all.
struct Waiting {
    question: ReservationQuestion,
    origin: Origin,
    barrier: Arc<Barrier>,
    until: Duration,
}

impl Reservations {
    pub(super) fn new(common: &Common) -> Self {
        Self {
            registry: Arc::clone(&common.registry),
            mailboxes: Arc::downgrade(&common.mailboxes),
            state: Arc::clone(&common.state),
            clock: common.clock,
            waiting: Vec::new(),
        }
    }

    /// Whether a command waits until it is in force.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Carries a command out.
    pub(super) fn take_up(&mut self, question: ReservationQuestion, origin: Origin) {
        match self.carry_out(&question) {
            Ok(barrier) => {
                // Mostly reached at once.
                let _ = barrier.wait(Duration::from_millis(1));
                let until = self.clock.now() + TIMEOUT;
                self.waiting.push(Waiting { question, origin, barrier, until });
            }
            Err(status) => self.reply(&origin, Err(status)),
        }
    }

    /// Answers the commands that are in force, and those that have waited for too long.
    pub(super) fn answer_those_in_force(&mut self) {
        let now = self.clock.now();
        let over: Vec<_> =
            self.waiting.extract_if(.., |it| it.barrier.is_reached() || it.until <= now).collect();
        for Waiting { question, origin, barrier, .. } in over {
            let result = if barrier.is_reached() { Ok(()) } else { Err(too_late(&question)) };
            self.reply(&origin, result);
        }
    }

    /// Success is to be answered once the barrier is reached. A command that fails has changed nothing.
    fn carry_out(&self, question: &ReservationQuestion) -> Result<Arc<Barrier>, Status> {
        let mailboxes = self.mailboxes.upgrade().ok_or(Status::INTERNAL_ERROR)?;
        let (old, plan) = {
            let registry = self.registry();
            let plan = registry.plan_reservation(question)?;
            let table = registry.namespaces(question.association.subsystem_nqn());
            (table.and_then(|table| table.reservation(question.nsid)).cloned().unwrap_or_default(), plan)
        };
        if is_to_be_stored(&old, &plan.reservation) {
            self.state
                .store(question.uuid, &plan.reservation)
                .map_err(|error| not_stored(question, &error))?;
        }
        let aborted = plan.aborted.clone();
        let mut scope = Scope::notices();
        if *old != plan.reservation {
            let mut registry = self.registry();
            let device = registry.set_reservation(question, plan)?;
            publish(&mut registry, &mailboxes);
            if !aborted.is_empty() {
                scope = Scope { hosts: Some(aborted), ..Scope::devices([device]) };
            }
        }
        Ok(mailboxes.barrier(scope))
    }

    fn reply(&self, origin: &Origin, result: Result<(), Status>) {
        if let Some(mailboxes) = self.mailboxes.upgrade() {
            let &Origin { worker, place, serial } = origin;
            mailboxes.answer(worker, Answered { place, serial, answer: Answer::Reservation(result) });
        }
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().expect("no panic happened under the registry's lock")
    }
}

fn not_stored(question: &ReservationQuestion, error: &std::io::Error) -> Status {
    tracing::error!(
        "a reservation command of {} fails, as the reservation of the namespace with UUID {} cannot be stored: {error}",
        question.association.host_nqn(),
        Uuid::from_bytes(question.uuid),
    );
    Status::INTERNAL_ERROR
}

fn too_late(question: &ReservationQuestion) -> Status {
    tracing::error!(
        "a reservation command of {} for namespace {} of {} is in force, but commands of preempted hosts are still in \
         flight after {TIMEOUT:?}, or a worker does not turn: it is answered as failed",
        question.association.host_nqn(),
        question.nsid,
        question.association.subsystem_nqn(),
    );
    Status::INTERNAL_ERROR
}
