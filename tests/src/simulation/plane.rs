//! The target's control plane: the code of the daemon that carries reservation commands out, over simulated mailboxes and
//! a simulated state directory; and an operator who takes the namespace away from hosts and gives it back.
//!
//! What of the daemon waits on a thread for its workers is not here: the operator's steps are those of
//! `target/src/daemon` (`ana`, `namespaces`), in the same order, with the same barriers.

use super::command::{Command, Done};
use super::files::Files;
use super::network::Network;
use super::reservation::{Host, Model};
use super::rights::Rights;
use crate::rng::Rng;
use core::cell::{Cell, RefCell};
use core::time::Duration;
use nvme_proto::{Nsid, Status};
use nvmf_backend::simulated::SimulatedDevices;
use nvmf_block::DeviceId;
use nvmf_subsystem::{
    AnaState, Answer, NamespaceDefinition, Question, Registry, ReservationQuestion, WriteProtection,
    WriteProtectionQuestion,
};
use nvmf_target::barrier::{Barrier, Scope};
use nvmf_target::daemon::reservations::{Reservations, Surroundings};
use nvmf_target::exec::transport::Transport;
use nvmf_target::message::{Answered, Asked, Origin, WorkerId, WorkerMessage};
use nvmf_target::state::StateDirectory;
use nvmf_target::worker::Worker;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

/// A worker of the target.
pub(super) type TargetWorker<N> = Worker<<N as Network>::Target, SimulatedDevices>;
type Detached<N> = <<N as Network>::Target as Transport>::Detached;
type Message<N> = WorkerMessage<Detached<N>>;

/// The workers' mailboxes, and the state directory.
pub(super) struct Around<N: Network> {
    now: Cell<Duration>,
    state: StateDirectory,
    mail: RefCell<Vec<VecDeque<Message<N>>>>,
    answered: RefCell<Vec<(Origin, Result<(), Status>)>>,
}

impl<N: Network> Around<N> {
    fn post_all(&self, message: &Message<N>) {
        for mail in self.mail.borrow_mut().iter_mut() {
            mail.extend(message.copy());
        }
    }
}

impl<N: Network> Surroundings for Around<N> {
    fn now(&self) -> Duration {
        self.now.get()
    }

    fn state(&self) -> &StateDirectory {
        &self.state
    }

    fn publish(&self, registry: &mut Registry) {
        for notice in registry.take_notices() {
            self.post_all(&WorkerMessage::Notice(notice));
        }
    }

    fn barrier(&self, scope: Scope) -> Arc<Barrier> {
        let barrier = Barrier::new(self.mail.borrow().len(), scope);
        self.post_all(&WorkerMessage::Barrier(Arc::clone(&barrier)));
        barrier
    }

    fn answer(&self, worker: WorkerId, answered: Answered) {
        let &Answered { place, serial, ref answer } = &answered;
        if let &Answer::Reservation(result) = answer {
            self.answered.borrow_mut().push((Origin { worker, place, serial }, result));
        }
        self.mail.borrow_mut()[worker.0].push_back(WorkerMessage::Answer(Box::new(answered)));
    }
}

/// A command that was taken up, and is not answered.
struct Taken {
    origin: Origin,
    host: Host,
    command: Command,
    at: Duration,
    /// The change that it made.
    change: usize,
    /// Whose commands must be over, or everybody's.
    gone: Option<BTreeSet<Host>>,
    /// The number of what ends their commands.
    abort: Option<usize>,
}

/// The control plane of a target that runs.
pub(super) struct Plane<N: Network> {
    reservations: Reservations<Around<N>>,
    pub(super) registry: Arc<Mutex<Registry>>,
    asked: VecDeque<Asked>,
    /// Cross-Controller Resets that were asked for.
    resets: Vec<Asked>,
    taken: Vec<Taken>,
}

/// What outlives the target's process.
pub(super) struct Kept {
    pub(super) files: Files,
    /// What may be found in the state directory, by UUID; nothing of a reservation that does not persist.
    stored: BTreeMap<[u8; 16], Vec<Option<Model>>>,
    /// Whether a write protection may be found there.
    stored_protection: BTreeMap<[u8; 16], BTreeSet<bool>>,
    pub(super) rights: Rights,
    pub(super) done: Vec<Done>,
    pub(super) rng: Rng,
}

impl Kept {
    pub(super) fn new(blocks: u64, mut rng: Rng) -> Self {
        Self {
            files: Files::new(Rng::new(rng.next())),
            stored: BTreeMap::new(),
            stored_protection: BTreeMap::new(),
            rights: Rights::new(blocks),
            done: Vec::new(),
            rng,
        }
    }

    /// What may have been kept of a reservation that persists.
    fn stored(&mut self, uuid: [u8; 16]) -> &mut Vec<Option<Model>> {
        self.stored.entry(uuid).or_insert_with(|| vec![None])
    }

    /// The write protection that a disk begins with.
    pub(super) fn restored_protection(&mut self, uuid: [u8; 16]) -> WriteProtection {
        self.files.calm();
        let state = StateDirectory::over(Box::new(self.files.clone()));
        let is_on = state.is_write_protected(uuid).unwrap_or_else(|error| panic!("a state file: {error}"));
        let stored = self.stored_protection.entry(uuid).or_insert_with(|| [false].into());
        assert!(stored.contains(&is_on), "write protected: {is_on}, which was not stored");
        *stored = [is_on].into();
        if is_on { WriteProtection::On } else { WriteProtection::Off }
    }
}

fn kept(model: &Model) -> Option<Model> {
    model.persists.then(|| model.clone())
}

/// Whose an operation on a block of namespace 1 is: of one of these.
pub(super) type Owners<'a> = &'a dyn Fn(u64) -> Vec<Host>;

impl<N: Network> Plane<N> {
    pub(super) fn new(registry: &Arc<Mutex<Registry>>, workers: usize, files: &Files) -> Self {
        let around = Around {
            now: Cell::new(Duration::ZERO),
            state: StateDirectory::over(Box::new(files.clone())),
            mail: RefCell::new((0..workers).map(|_| VecDeque::new()).collect()),
            answered: RefCell::default(),
        };
        let reservations = Reservations::new(Arc::clone(registry), around);
        Self {
            reservations,
            registry: Arc::clone(registry),
            asked: VecDeque::new(),
            resets: Vec::new(),
            taken: Vec::new(),
        }
    }

    pub(super) fn around(&self) -> &Around<N> {
        self.reservations.surroundings()
    }

    /// Gives the namespace the reservation that was kept, as it was before anybody saw it.
    pub(super) fn restore(&self, kept: &mut Kept, uuid: [u8; 16]) -> Option<Model> {
        // The daemon serves the namespace once it can read it.
        kept.files.calm();
        let loaded = self.around().state.load(uuid).unwrap_or_else(|error| panic!("a state file: {error}"));
        let model = loaded.as_ref().map(Model::of);
        let stored = kept.stored(uuid);
        assert!(stored.contains(&model), "{model:?} was loaded, stored was one of {stored:?}");
        *stored = vec![model.clone()];
        if let Some(reservation) = loaded {
            let mut registry = self.registry.lock().expect("no panic before");
            let nqn = crate::worker_setup::WorkerSetup::subsystem();
            registry.restore_reservation(&nqn, Nsid(1), uuid, reservation).expect("the namespace is there");
        }
        model
    }

    /// Tells the workers what has changed in the registry.
    pub(super) fn publish(&self) {
        self.around().publish(&mut self.registry.lock().expect("no panic before"));
    }

    pub(super) fn barrier(&self, scope: Scope) -> Arc<Barrier> {
        self.around().barrier(scope)
    }

    /// The Cross-Controller Resets that were asked for.
    pub(super) fn take_resets(&mut self) -> Vec<Asked> {
        core::mem::take(&mut self.resets)
    }

    /// Whether it has anything to do at once.
    pub(super) fn is_busy(&self) -> bool {
        !self.asked.is_empty() || self.around().mail.borrow().iter().any(|mail| !mail.is_empty())
    }

    /// Whether a command waits.
    pub(super) fn is_waiting(&self) -> bool {
        self.reservations.is_waiting()
    }

    /// Delivers mail, each worker's in its order and at its own time, and carries out what was asked.
    pub(super) fn turn(
        &mut self,
        now: Duration,
        workers: &mut [TargetWorker<N>],
        kept: &mut Kept,
        owners: Owners<'_>,
    ) {
        self.around().now.set(now);
        for (worker, mail) in workers.iter_mut().zip(self.around().mail.borrow_mut().iter_mut()) {
            while !mail.is_empty() && kept.rng.percent(70) {
                worker.deliver(mail.pop_front().expect("it is not empty"));
            }
        }
        for worker in workers.iter_mut() {
            let asked = core::iter::from_fn(|| worker.poll_question());
            let (resets, others): (Vec<_>, Vec<_>) =
                asked.partition(|asked| matches!(*asked.question, Question::Reset(_)));
            self.resets.extend(resets);
            self.asked.extend(others);
        }
        if kept.rng.percent(50)
            && let Some(Asked { worker, place, serial, question }) = self.asked.pop_front()
        {
            let origin = Origin { worker, place, serial };
            match *question {
                Question::Reservation(question) => self.take_up(&question, origin, kept),
                Question::WriteProtection(question) => self.protect(&question, origin, kept),
                _ => panic!("nobody asks that here"),
            }
        }
        self.reservations.answer_those_in_force();
        for (origin, result) in self.around().answered.take() {
            let Some(at) = self.taken.iter().position(|taken| taken.origin == origin) else {
                panic!("a command was answered that nobody sent");
            };
            let Taken { host, command, at, change, gone, abort, .. } = self.taken.swap_remove(at);
            abort.into_iter().for_each(|number| kept.rights.aborted(now, number));
            kept.done.push(Done { host, command, at: now, is_success: result.is_ok() });
            if result.is_ok() {
                kept.rights.done(now, change);
                check_pending(workers, at, command.name(), owners, |host| {
                    gone.as_ref().is_none_or(|gone| gone.contains(&host))
                });
            }
        }
    }

    /// The reservation of the namespace.
    pub(super) fn model(&self) -> Model {
        let registry = self.registry.lock().expect("no panic before");
        let table = registry.namespaces(&crate::worker_setup::WorkerSetup::subsystem());
        let reservation = table.and_then(|table| table.reservation(Nsid(1)));
        reservation.map(|reservation| Model::of(reservation)).unwrap_or_default()
    }

    /// The namespace that hosts contend for.
    fn namespace<R>(&self, of: impl FnOnce(&NamespaceDefinition) -> R) -> Option<R> {
        let registry = self.registry.lock().expect("no panic before");
        let table = registry.namespaces(&crate::worker_setup::WorkerSetup::subsystem())?;
        table.get(Nsid(1)).map(of)
    }

    /// Its write protection.
    pub(super) fn protection(&self) -> Option<WriteProtection> {
        self.namespace(|namespace| namespace.access.write_protection)
    }

    /// Changes the write protection. One that fails changes nothing, but what is found at the next start may be open.
    fn protect(&mut self, question: &WriteProtectionQuestion, origin: Origin, kept: &mut Kept) {
        let (host, to) = (question.association.host_id().0, question.to);
        let before = self.protection();
        let failures = kept.files.failures();
        let lost_power = kept.files.has_lost_power();
        self.reservations.protect(question, origin);
        let after = self.protection();
        let storage_failed = kept.files.failures() > failures || lost_power || kept.files.has_lost_power();
        let at = self.around().now.get();
        if super::prints_events() {
            println!("{at:?}: {to:?} of host {:?}: {before:?}, then {after:?}", host[0]);
        }
        let failed =
            self.around().answered.borrow().iter().any(|(of, result)| *of == origin && result.is_err());
        let stored = kept.stored_protection.entry(question.uuid).or_insert_with(|| [false].into());
        let mut change = kept.rights.last();
        if failed {
            assert_eq!(before, after, "{to:?} failed, and changed something");
            if storage_failed {
                stored.insert(to == WriteProtection::On);
            }
        } else {
            assert_eq!(after, Some(to), "{to:?} succeeded");
            *stored = [to == WriteProtection::On].into();
            if before != after {
                change = kept.rights.change(|situation| situation.protection = to);
            }
        }
        let (command, gone) = (Command::Protection(to), None);
        self.taken.push(Taken { origin, host, command, at, change, gone, abort: None });
    }

    /// Carries out a command, and compares what becomes of the reservation with the model.
    fn take_up(&mut self, question: &ReservationQuestion, origin: Origin, kept: &mut Kept) {
        let (host, command, uuid) = (question.association.host_id().0, question.command, question.uuid);
        let before = self.model();
        let (failures, lost_syncs) = (kept.files.failures(), kept.files.lost_syncs());
        let lost_power = kept.files.has_lost_power();
        let what = format!("{command:?} of host {:?} on {before:?}", host[0]);
        let is_closing = question.association.is_closing();
        self.reservations.take_up(question, origin);
        let after = self.model();
        let expected = before.apply(host, &command);
        if super::prints_events() {
            println!("{:?}: {what}: {after:?}", self.around().now.get());
        }
        let failed =
            self.around().answered.borrow().iter().any(|(of, result)| *of == origin && result.is_err());
        let at = self.around().now.get();
        let mut taken = Taken {
            origin,
            host,
            command: Command::Reservation(command),
            at,
            change: kept.rights.last(),
            gone: Some(BTreeSet::new()),
            abort: None,
        };
        if failed {
            assert_eq!(before, after, "{what} failed, and changed something");
            let storage_failed =
                kept.files.failures() > failures || lost_power || kept.files.has_lost_power();
            match expected {
                None => {}
                Some(_) if is_closing => {}
                // Which of both is on the disk is open.
                Some((new, _)) if storage_failed && kept.files.lost_syncs() > lost_syncs => {
                    kept.stored(uuid).push(self::kept(&new));
                }
                Some(_) if storage_failed => {}
                // The namespace, or the path to it, was taken away meanwhile.
                Some(_) => assert!(!self.is_reachable(uuid, question.association.port()), "{what} failed"),
            }
        } else {
            let Some((new, gone)) = expected else { panic!("{what} succeeded") };
            assert_eq!(new, after, "{what}");
            if before.persists || after.persists {
                *kept.stored(uuid) = vec![self::kept(&after)];
            }
            if before != after {
                taken.change = kept.rights.change(|situation| situation.reservation = after);
            }
            taken.abort = (!gone.is_empty()).then(|| kept.rights.abort(&gone));
            taken.gone = Some(gone);
        }
        self.taken.push(taken);
    }

    fn is_reachable(&self, uuid: [u8; 16], port: u16) -> bool {
        let group =
            self.namespace(|namespace| (namespace.uuid == uuid).then_some(namespace.access.ana_group));
        let state = |group| self.registry.lock().expect("no panic before").ana().state(port, group);
        matches!(group.flatten().map(state), Some(AnaState::OPTIMIZED | AnaState::NON_OPTIMIZED))
    }
}

/// Checks that nothing is at the disk that it was given before, of those whose operations had to be over.
pub(super) fn check_pending<T: Transport>(
    workers: &mut [Worker<T, SimulatedDevices>],
    before: Duration,
    what: &str,
    owners: Owners<'_>,
    is_gone: impl Fn(Host) -> bool,
) {
    for worker in workers {
        for given in worker.backend().pending(DeviceId(0)) {
            let owners = owners(given.range.start);
            let is_over = !owners.is_empty() && owners.iter().all(|&host| is_gone(host));
            assert!(
                !is_over || given.at > before,
                "{what} of {before:?} is done, and {given:?} of one of {owners:?} is at the disk yet"
            );
        }
    }
}
