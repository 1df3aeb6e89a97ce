//! What a command makes of a reservation.

use super::{
    Held, Reservation, ReservationCommand, ReservationNotice, ReservationType, is_for_all, is_for_one,
};
use crate::limits::REGISTRANTS_MAX;
use crate::{HostId, status};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use nvme_proto::Status;
use nvme_proto::nvm::reservation::PersistChange;

/// What a command does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The reservation from then on.
    pub reservation: Reservation,
    /// Who is told what.
    pub notices: Vec<(HostId, ReservationNotice)>,
    /// The hosts whose commands must be over before this one is.
    pub aborted: BTreeSet<HostId>,
}

impl Reservation {
    /// What `command` of `host` makes of it. `may_persist`: there is a place where it can be kept; without one nothing
    /// persists, whatever the host asks for.
    ///
    /// # Errors
    /// The status of the command, which changes nothing: Reservation Conflict, or Invalid Field.
    pub fn apply(
        &self,
        host: HostId,
        command: &ReservationCommand,
        may_persist: bool,
    ) -> Result<Change, Status> {
        let mut change = Change { reservation: self.clone(), notices: Vec::new(), aborted: BTreeSet::new() };
        match *command {
            ReservationCommand::Register { new, ignore_key, persist } => {
                change.register(host, new, ignore_key)?;
                change.persist(persist, may_persist);
            }
            ReservationCommand::Unregister { current, persist } => {
                change.unregister(host, current)?;
                change.persist(persist, may_persist);
            }
            ReservationCommand::Replace { current, new, persist } => {
                change.replace(host, current, new)?;
                change.persist(persist, may_persist);
            }
            ReservationCommand::Acquire { key, kind } => change.acquire(host, key, kind)?,
            ReservationCommand::Preempt { key, kind, preempted, abort } => {
                let gone = change.preempt(host, key, kind, preempted)?;
                if abort {
                    change.aborted = gone;
                }
            }
            ReservationCommand::Release { key, kind } => change.release(host, key, kind)?,
            ReservationCommand::Clear { key } => change.clear(host, key)?,
            ReservationCommand::SetPersistence { persists: true } if !may_persist => {
                return Err(status::FEATURE_NOT_CHANGEABLE);
            }
            ReservationCommand::SetPersistence { persists } => change.reservation.persists = persists,
        }
        Ok(change)
    }
}

impl Change {
    fn register(&mut self, host: HostId, new: u64, ignore_key: bool) -> Result<(), Status> {
        match self.reservation.key(host) {
            Some(key) if key == new => Ok(()),
            Some(_) if !ignore_key => Err(status::RESERVATION_CONFLICT),
            _ => self.set_key(host, new),
        }
    }

    fn replace(&mut self, host: HostId, current: Option<u64>, new: u64) -> Result<(), Status> {
        if current.is_some() && self.reservation.key(host) != current {
            return Err(status::RESERVATION_CONFLICT);
        }
        self.set_key(host, new)
    }

    fn set_key(&mut self, host: HostId, key: u64) -> Result<(), Status> {
        let this = &mut self.reservation;
        match this.position(host) {
            Ok(at) => this.registrants[at].1 = key,
            Err(_) if this.registrants.len() >= REGISTRANTS_MAX => return Err(status::OPERATION_DENIED),
            Err(at) => this.registrants.insert(at, (host, key)),
        }
        self.count();
        Ok(())
    }

    fn unregister(&mut self, host: HostId, current: Option<u64>) -> Result<(), Status> {
        match (self.reservation.key(host), current) {
            (None, None) => return Ok(()),
            (Some(_), None) => {}
            (key, current) if key == current => {}
            _ => return Err(status::RESERVATION_CONFLICT),
        }
        let held = self.reservation.held;
        self.remove(host);
        if let Some(held) = held.filter(|_| self.reservation.held.is_none())
            && !is_for_one(held.kind)
        {
            self.notify_others(host, ReservationNotice::ReservationReleased);
        }
        self.count();
        Ok(())
    }

    fn acquire(&mut self, host: HostId, key: u64, kind: ReservationType) -> Result<(), Status> {
        self.check_key(host, key)?;
        match self.reservation.held {
            Some(held) if self.reservation.holds(host) && held.kind == kind => Ok(()),
            Some(_) => Err(status::RESERVATION_CONFLICT),
            None => {
                self.reservation.held = Some(Held { kind, holder: host });
                Ok(())
            }
        }
    }

    /// Returns the hosts whose registration went.
    ///
    /// A holder that names a key of others takes their registration and keeps its reservation as it is: that is how it
    /// fences them. One that names its own key, or none, changes the type of its reservation.
    fn preempt(
        &mut self,
        host: HostId,
        key: u64,
        kind: ReservationType,
        preempted: u64,
    ) -> Result<BTreeSet<HostId>, Status> {
        self.check_key(host, key)?;
        let before = self.reservation.clone();
        let has_key = |&(_, key): &(HostId, u64)| key == preempted;
        let takes_reservation = match before.held {
            None => false,
            Some(held) if is_for_all(held.kind) => preempted == 0,
            Some(held) if held.holder == host && preempted == 0 => true,
            Some(held) => before.key(held.holder) == Some(preempted),
        };
        let everyone = takes_reservation && before.held.is_some_and(|held| is_for_all(held.kind));
        let go: Vec<HostId> = before
            .registrants
            .iter()
            .filter(|it| everyone || has_key(it))
            .map(|(host, _)| *host)
            .filter(|&it| !takes_reservation || it != host)
            .collect();
        if !takes_reservation {
            if preempted == 0 && before.held.is_some() {
                return Err(status::INVALID_FIELD);
            }
            if go.is_empty() {
                return Err(status::RESERVATION_CONFLICT);
            }
        }
        if takes_reservation {
            // The new holder is there before the old one goes, so that the reservation is not released in between.
            self.reservation.held = Some(Held { kind, holder: host });
        }
        go.iter().for_each(|&gone| self.remove(gone));
        let own = before.held.is_some_and(|held| held.holder == host);
        if takes_reservation && own && before.held.is_some_and(|held| held.kind != kind) {
            self.notify_others(host, ReservationNotice::ReservationReleased);
        } else if takes_reservation && !own {
            self.notify_others(host, ReservationNotice::ReservationPreempted);
        }
        let gone: BTreeSet<HostId> = go.into_iter().filter(|&gone| gone != host).collect();
        self.notices.extend(gone.iter().map(|&gone| (gone, ReservationNotice::RegistrationPreempted)));
        self.count();
        Ok(gone)
    }

    fn release(&mut self, host: HostId, key: u64, kind: ReservationType) -> Result<(), Status> {
        self.check_key(host, key)?;
        let Some(held) = self.reservation.held.filter(|_| self.reservation.holds(host)) else {
            return Ok(());
        };
        if held.kind != kind {
            return Err(status::RESERVATION_CONFLICT);
        }
        self.reservation.held = None;
        if !is_for_one(kind) {
            self.notify_others(host, ReservationNotice::ReservationReleased);
        }
        Ok(())
    }

    fn clear(&mut self, host: HostId, key: u64) -> Result<(), Status> {
        self.check_key(host, key)?;
        self.notify_others(host, ReservationNotice::ReservationPreempted);
        self.reservation.held = None;
        self.reservation.registrants.clear();
        self.count();
        Ok(())
    }

    fn check_key(&self, host: HostId, key: u64) -> Result<(), Status> {
        if self.reservation.key(host) == Some(key) { Ok(()) } else { Err(status::RESERVATION_CONFLICT) }
    }

    /// A registration goes, and the reservation with its last holder.
    fn remove(&mut self, host: HostId) {
        let this = &mut self.reservation;
        if let Ok(at) = this.position(host) {
            this.registrants.remove(at);
        }
        if let Some(held) = &mut this.held
            && held.holder == host
        {
            // Of those for all registrants, another one is the holder.
            match this.registrants.first() {
                Some(&(next, _)) if is_for_all(held.kind) => held.holder = next,
                _ => this.held = None,
            }
        }
    }

    fn persist(&mut self, change: PersistChange, may_persist: bool) {
        match change {
            PersistChange::PERSIST => self.reservation.persists = may_persist,
            PersistChange::CLEAR => self.reservation.persists = false,
            _ => {}
        }
    }

    fn notify_others(&mut self, host: HostId, notice: ReservationNotice) {
        let others =
            self.reservation.registrants.iter().map(|(host, _)| *host).filter(|&other| other != host);
        self.notices.extend(others.map(|other| (other, notice)));
    }

    fn count(&mut self) {
        self.reservation.generation = self.reservation.generation.wrapping_add(1);
    }
}
