//! Reservation commands and write protection: decided, stored, put in force on every worker, and answered then.

use super::workers::{Common, publish};
use crate::barrier::{Barrier, Scope};
use crate::cluster::refusal;
use crate::mailbox::Mailboxes;
use crate::message::{Answered, Origin, WorkerId};
use crate::state::StateDirectory;
use crate::thread::Clock;
use crate::transport::Detached;
use core::time::Duration;
use nvme_proto::HostId;
use nvme_proto::Status;
use nvmf_block::DeviceId;
use nvmf_cluster::RequestError;
use nvmf_subsystem::{
    Answer, Nqn, Nsid, Registry, ReservationCommand, ReservationQuestion, WriteProtection,
    WriteProtectionQuestion,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use uuid::Uuid;

/// How long a command waits for the workers, and for what preempted hosts have in flight.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What is around the commands: a clock, the place where reservations are kept, and the workers. The daemon's, or a
/// simulation's.
pub trait Surroundings {
    /// The time.
    fn now(&self) -> Duration;

    /// Where reservations are kept.
    fn state(&self) -> &StateDirectory;

    /// Tells every worker what has changed in the registry.
    fn publish(&self, registry: &mut Registry);

    /// Posts a barrier to every worker, behind what was published before.
    fn barrier(&self, scope: Scope) -> Arc<Barrier>;

    /// Answers a command.
    fn answer(&self, worker: WorkerId, answered: Answered);
}

/// The daemon's.
pub(super) struct OfDaemon {
    /// They end with the daemon.
    mailboxes: Weak<Mailboxes<Detached>>,
    state: Arc<StateDirectory>,
    clock: Clock,
}

impl OfDaemon {
    pub(super) fn new(common: &Common) -> Self {
        Self {
            mailboxes: Arc::downgrade(&common.mailboxes),
            state: Arc::clone(&common.state),
            clock: common.clock,
        }
    }
}

/// Where the workers are gone, there is nobody to tell.
impl Surroundings for OfDaemon {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn state(&self) -> &StateDirectory {
        &self.state
    }

    fn publish(&self, registry: &mut Registry) {
        if let Some(mailboxes) = self.mailboxes.upgrade() {
            publish(registry, &mailboxes);
        }
    }

    fn barrier(&self, scope: Scope) -> Arc<Barrier> {
        let Some(mailboxes) = self.mailboxes.upgrade() else { return Barrier::new(0, scope) };
        let barrier = mailboxes.barrier(scope);
        // Mostly reached at once.
        let _ = barrier.wait(Duration::from_millis(1));
        barrier
    }

    fn answer(&self, worker: WorkerId, answered: Answered) {
        if let Some(mailboxes) = self.mailboxes.upgrade() {
            mailboxes.answer(worker, answered);
        }
    }
}

/// A write protection that the operator ends.
#[derive(Debug)]
pub struct Lift {
    /// Of a namespace of this subsystem.
    pub nqn: Nqn,
    /// Which one.
    pub nsid: Nsid,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// It is kept in the state directory.
    pub persists: bool,
    /// To be told what came of it.
    pub tell: Sender<Result<(), String>>,
}

/// What carries reservation commands out, one after the other.
pub struct Reservations<S> {
    registry: Arc<Mutex<Registry>>,
    surroundings: S,
    waiting: Vec<Waiting>,
    /// The namespaces, by UUID, of which a reservation could not be stored: nobody knows which one is on the disk now.
    unsure: BTreeSet<[u8; 16]>,
    /// What a Preempt and Abort failed for: the next one of the namespace waits for it, too.
    late: BTreeMap<DeviceId, Late>,
}

/// Preempted hosts of whom a device still had something when their Preempt and Abort failed for that.
#[derive(Default)]
struct Late {
    hosts: BTreeSet<HostId>,
    /// The keys that were preempted: nobody has them any more, and the same command may be tried again.
    keys: BTreeSet<u64>,
}

/// A command that is in force on some workers, and answered when it is on all.
struct Waiting {
    /// What to say if it takes too long.
    late: String,
    /// The key that a Preempt and Abort preempts.
    preempted: Option<u64>,
    origin: Origin,
    barrier: Arc<Barrier>,
    until: Duration,
}

impl<S: Surroundings> Reservations<S> {
    /// For the namespaces of this registry.
    #[must_use]
    pub fn new(registry: Arc<Mutex<Registry>>, surroundings: S) -> Self {
        Self { registry, surroundings, waiting: Vec::new(), unsure: BTreeSet::new(), late: BTreeMap::new() }
    }

    /// What is around it.
    #[must_use]
    pub fn surroundings(&self) -> &S {
        &self.surroundings
    }

    /// Whether a command waits until it is in force.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Carries a command out. It is answered at once if it fails, and by
    /// [`Reservations::answer_those_in_force`] if it does not.
    pub fn take_up(&mut self, question: &ReservationQuestion, origin: Origin) {
        match self.carry_out(question) {
            Ok(barrier) => self.wait(barrier, too_late(question), aborts(question), origin),
            Err(status) => self.reply(&origin, Err(status)),
        }
    }

    /// Changes the write protection of a namespace. Writes from before are over when the host hears of it.
    pub fn protect(&mut self, question: &WriteProtectionQuestion, origin: Origin) {
        match self.put_protection_in_force(question) {
            Ok(barrier) => {
                let WriteProtectionQuestion { association, nsid, .. } = question;
                let late = format!(
                    "the write protection of namespace {nsid} of {} is in force, but writes from before are still in \
                     flight after {TIMEOUT:?}, or a worker does not turn: the command of {} is answered as failed",
                    association.subsystem_nqn(),
                    association.host_nqn(),
                );
                self.wait(barrier, late, None, origin);
            }
            Err(status) => self.reply(&origin, Err(status)),
        }
    }

    /// Ends a write protection that a host has set: on the disk first, so that it is not there again after a restart.
    pub fn lift(&mut self, lift: &Lift) {
        let &Lift { nqn, nsid, uuid, persists, ref tell } = lift;
        let stored =
            if persists { self.surroundings.state().set_write_protected(uuid, false) } else { Ok(()) };
        let lifted = stored.map_err(|error| format!("its write protection cannot be removed: {error}"));
        let lifted = lifted.and_then(|()| {
            let mut registry = self.registry();
            registry
                .lift_write_protection(&nqn, nsid, uuid)
                .map_err(|_| "it was removed meanwhile".to_owned())?;
            self.surroundings.publish(&mut registry);
            Ok(())
        });
        // Nobody may wait any more.
        let _ = tell.send(lifted);
    }

    fn put_protection_in_force(&self, question: &WriteProtectionQuestion) -> Result<Arc<Barrier>, Status> {
        if question.association.is_closing() {
            return Err(Status::ABORTED_SQ_DELETION);
        }
        // What is stored for a namespace that is gone would be in force when it is back, after a failed command.
        self.registry().plan_write_protection(question)?;
        if question.persists {
            let on = question.to == WriteProtection::On;
            self.surroundings.state().set_write_protected(question.uuid, on).map_err(|error| {
                tracing::error!(
                    "a command of {} fails, as the write protection of the namespace with UUID {} cannot be stored: \
                     {error}",
                    question.association.host_nqn(),
                    Uuid::from_bytes(question.uuid),
                );
                status_of(&error)
            })?;
        }
        let mut registry = self.registry();
        let device = registry.set_write_protection(question)?;
        self.surroundings.publish(&mut registry);
        Ok(self.surroundings.barrier(Scope::devices([device])))
    }

    fn wait(&mut self, barrier: Arc<Barrier>, late: String, preempted: Option<u64>, origin: Origin) {
        let until = self.surroundings.now() + TIMEOUT;
        self.waiting.push(Waiting { late, preempted, origin, barrier, until });
    }

    /// Answers the commands that are in force, and those that have waited for too long.
    pub fn answer_those_in_force(&mut self) {
        let now = self.surroundings.now();
        let over: Vec<_> =
            self.waiting.extract_if(.., |it| it.barrier.is_reached() || it.until <= now).collect();
        for Waiting { late, preempted, origin, barrier, .. } in over {
            let is_reached = barrier.is_reached();
            self.note(barrier.scope(), preempted, is_reached);
            if !is_reached {
                tracing::error!("{late}");
            }
            self.reply(&origin, if is_reached { Ok(()) } else { Err(Status::INTERNAL_ERROR) });
        }
    }

    /// Whether what a Preempt and Abort waited for is over.
    fn note(&mut self, scope: &Scope, preempted: Option<u64>, is_over: bool) {
        let Some(hosts) = &scope.hosts else { return };
        for &device in &scope.devices {
            let late = self.late.entry(device).or_default();
            if is_over {
                late.hosts.retain(|host| !hosts.contains(host));
            } else {
                late.hosts.extend(hosts);
                late.keys.extend(preempted);
            }
        }
        self.late.retain(|_, late| !late.hosts.is_empty());
    }

    /// Success is to be answered once the barrier is reached. A command that fails has changed nothing.
    fn carry_out(&mut self, question: &ReservationQuestion) -> Result<Arc<Barrier>, Status> {
        if question.association.is_closing() {
            // Its host may have been told by now that nothing of it takes effect any more.
            return Err(Status::ABORTED_SQ_DELETION);
        }
        let (old, device, planned) = {
            let registry = self.registry();
            let planned = registry.plan_reservation(question);
            let table = registry.namespaces(question.association.subsystem_nqn());
            let namespace = table.and_then(|table| Some((table, table.get(question.nsid)?)));
            let Some((table, namespace)) = namespace else {
                return Err(planned.err().unwrap_or(Status::INTERNAL_ERROR));
            };
            (table.reservation(question.nsid).cloned().unwrap_or_default(), namespace.device, planned)
        };
        let aborts_late = |late: &&Late| {
            matches!(question.command, ReservationCommand::Preempt { key, preempted, abort: true, .. }
                if late.keys.contains(&preempted) && old.key(question.association.host_id()) == Some(key))
        };
        let plan = match (planned, self.late.get(&device).filter(aborts_late)) {
            (Ok(plan), _) => plan,
            // The same command once more: the key is gone, what its host sent is not.
            (Err(_), Some(Late { hosts, .. })) => {
                let scope = Scope { hosts: Some(hosts.clone()), ..Scope::devices([device]) };
                return Ok(self.surroundings.barrier(scope));
            }
            (Err(status), None) => return Err(status),
        };
        let ReservationQuestion { uuid, .. } = *question;
        if self.surroundings.state().is_to_be_stored(&old, &plan.reservation) || self.unsure.contains(&uuid) {
            let stored = self.surroundings.state().store(uuid, &plan.reservation);
            if let Err(error) = stored {
                self.unsure.insert(uuid);
                return Err(not_stored(question, &error));
            }
            self.unsure.remove(&uuid);
        }
        let aborts = plan.aborted.clone();
        let mut hosts = aborts.clone();
        if matches!(question.command, ReservationCommand::Preempt { abort: true, .. }) {
            hosts.extend(self.late.get(&device).iter().flat_map(|late| &late.hosts));
        }
        if *old != plan.reservation {
            let mut registry = self.registry();
            registry.set_reservation(question, plan)?;
            self.surroundings.publish(&mut registry);
        }
        let scope = match hosts.is_empty() {
            true => Scope::notices(),
            // Those that are late had their commands ended before: what they have sent since is not meant.
            false => Scope { hosts: Some(hosts), aborts, ..Scope::devices([device]) },
        };
        Ok(self.surroundings.barrier(scope))
    }

    fn reply(&self, origin: &Origin, result: Result<(), Status>) {
        let &Origin { worker, place, serial } = origin;
        self.surroundings.answer(worker, Answered { place, serial, answer: Answer::Reservation(result) });
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().expect("no panic happened under the registry's lock")
    }
}

fn not_stored(question: &ReservationQuestion, error: &io::Error) -> Status {
    tracing::error!(
        "a reservation command of {} fails, as the reservation of the namespace with UUID {} cannot be stored: {error}",
        question.association.host_nqn(),
        Uuid::from_bytes(question.uuid),
    );
    status_of(error)
}

/// Of a command that could not be kept. Where another gateway has the namespace, and the command had no effect, its host asks that
/// one. What was lost with the ANA group in the middle of it may be in force there, so no host may take it for undone. What takes
/// too long is undone, and the host may ask again.
fn status_of(error: &io::Error) -> Status {
    match refusal(error) {
        Some(RequestError::NotOwner(_)) => Status::ANA_INACCESSIBLE,
        Some(RequestError::Busy) => Status::NAMESPACE_NOT_READY,
        Some(RequestError::Late | RequestError::Lost(_)) => Status::COMMAND_INTERRUPTED,
        _ => Status::INTERNAL_ERROR,
    }
}

/// The key that a Preempt and Abort preempts.
fn aborts(question: &ReservationQuestion) -> Option<u64> {
    match question.command {
        ReservationCommand::Preempt { preempted, abort: true, .. } => Some(preempted),
        _ => None,
    }
}

fn too_late(question: &ReservationQuestion) -> String {
    format!(
        "a reservation command of {} for namespace {} of {} is in force, but commands of preempted hosts are still in \
         flight after {TIMEOUT:?}, or a worker does not turn: it is answered as failed",
        question.association.host_nqn(),
        question.nsid,
        question.association.subsystem_nqn(),
    )
}
