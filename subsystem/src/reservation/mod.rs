//! Reservations of a namespace (NVMe Base, "Reservations"): who is registered, who holds one, and what a command makes
//! of that.
//!
//! Registrants are hosts, by their Host Identifier: all controllers of a host are one registrant, because a multipath
//! host sends its commands over any of them.
//!
//! A [`Reservation`] never changes. A command makes a new one of it ([`Reservation::apply`]), which is first stored,
//! then put in force: a command that cannot be stored has changed nothing.

mod apply;
mod command;
mod notification;
#[cfg(test)]
mod tests;

pub use apply::Change;
pub use command::ReservationCommand;
pub(crate) use command::{Pulled, pull, report};
pub(crate) use notification::Notifications;
pub use notification::ReservationNotice;

use crate::access::Need;
use crate::limits::REGISTRANTS_MAX;
use crate::{Cntlid, HostId};
use alloc::vec::Vec;
use nvme_proto::nvm::reservation::{ExtendedRegistrant, ReservationStatus};
use zerocopy::IntoBytes;

pub use nvme_proto::nvm::reservation::ReservationType;

/// RESCAP: every type, and keys that are ignored on request as version 1.3 has it.
pub(crate) const RESCAP_TYPES: u8 = 0b1111_1110;
/// RESCAP bit 0: reservations persist through a loss of power.
pub(crate) const RESCAP_PERSISTS: u8 = 1;

/// The reservation and the registrants of a namespace, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reservation {
    generation: u32,
    persists: bool,
    held: Option<Held>,
    /// By rising host.
    registrants: Vec<(HostId, u64)>,
}

/// A reservation that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    kind: ReservationType,
    /// Who acquired it. Of the types for all registrants, every registrant is a holder.
    holder: HostId,
}

/// What was kept of a reservation is none that can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// More registrants than [`REGISTRANTS_MAX`].
    #[error("it has {0} registrants: at most 1024 are possible")]
    TooMany(usize),
    /// A host that is registered twice, has no identifier or no key.
    #[error("a registrant is there twice, or without host identifier or key")]
    Registrant,
    /// A type that the standard does not have.
    #[error("there is no reservation of type {0}")]
    Type(u8),
    /// Held by a host that is not registered.
    #[error("its holder is not registered")]
    Holder,
}

impl Reservation {
    /// As it was before a loss of power, where it persists.
    ///
    /// # Errors
    /// No sequence of commands leads there.
    pub fn restored(
        generation: u32,
        held: Option<(ReservationType, HostId)>,
        registrants: impl IntoIterator<Item = (HostId, u64)>,
    ) -> Result<Self, RestoreError> {
        let mut registrants: Vec<_> = registrants.into_iter().collect();
        if registrants.len() > REGISTRANTS_MAX {
            return Err(RestoreError::TooMany(registrants.len()));
        }
        registrants.sort_unstable();
        let is_twice = registrants.windows(2).any(|pair| pair[0].0 == pair[1].0);
        if is_twice || registrants.iter().any(|(host, key)| host.is_zero() || *key == 0) {
            return Err(RestoreError::Registrant);
        }
        let held = held.map(|(kind, holder)| Held { kind, holder });
        let new = Self { generation, persists: true, held, registrants };
        match held {
            Some(Held { kind, .. }) if !is_type(kind) => Err(RestoreError::Type(kind.0)),
            Some(Held { holder, .. }) if new.key(holder).is_none() => Err(RestoreError::Holder),
            _ => Ok(new),
        }
    }

    /// The same, whether it persists or not.
    #[must_use]
    pub fn with_persistence(self, persists: bool) -> Self {
        Self { persists, ..self }
    }

    /// Counts registrations, preemptions and clears.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether it is there after a loss of power (PTPL).
    #[must_use]
    pub fn persists(&self) -> bool {
        self.persists
    }

    /// The type of the reservation that is held, and who acquired it.
    #[must_use]
    pub fn held(&self) -> Option<(ReservationType, HostId)> {
        self.held.map(|held| (held.kind, held.holder))
    }

    /// The registrants with their keys, by rising Host Identifier.
    pub fn registrants(&self) -> impl Iterator<Item = (HostId, u64)> {
        self.registrants.iter().copied()
    }

    /// Whether a host may do this with the namespace (NVMe Base, "Command Behavior in the Presence of a Reservation").
    #[must_use]
    pub fn allows(&self, host: HostId, need: Need) -> bool {
        let Some(held) = self.held else { return true };
        let reads_are_free = match need {
            Need::Reservation => return true,
            Need::Write => false,
            Need::Read => is_write_exclusive(held.kind),
        };
        reads_are_free || held.holder == host || !is_for_one(held.kind) && self.key(host).is_some()
    }

    /// The key that a host has registered.
    #[must_use]
    pub fn key(&self, host: HostId) -> Option<u64> {
        self.position(host).ok().map(|at| self.registrants[at].1)
    }

    fn position(&self, host: HostId) -> Result<usize, usize> {
        self.registrants.binary_search_by_key(&host, |(host, _)| *host)
    }

    fn holds(&self, host: HostId) -> bool {
        self.held.is_some_and(|held| held.holder == host || is_for_all(held.kind) && self.key(host).is_some())
    }

    /// What Reservation Report returns, whole. A registrant stands for all controllers of its host, so none is named.
    pub(crate) fn report(&self) -> Vec<u8> {
        let kind = self.held.map_or(ReservationType::NONE, |held| held.kind);
        let count = u16::try_from(self.registrants.len()).expect("registrants are bounded");
        let status = ReservationStatus::new(self.generation, kind, count, self.persists);
        let mut report = Vec::with_capacity(status.report_len(true));
        report.extend_from_slice(status.as_bytes());
        report.resize(ReservationStatus::EXTENDED_LEN, 0);
        for &(host, key) in &self.registrants {
            let entry = ExtendedRegistrant::new(Cntlid::DYNAMIC, self.holds(host), host.0, key);
            report.extend_from_slice(entry.as_bytes());
        }
        report
    }
}

/// Whether this is a type that can be held.
fn is_type(kind: ReservationType) -> bool {
    (ReservationType::WRITE_EXCLUSIVE..=ReservationType::EXCLUSIVE_ACCESS_ALL_REGISTRANTS).contains(&kind)
}

fn is_write_exclusive(kind: ReservationType) -> bool {
    matches!(
        kind,
        ReservationType::WRITE_EXCLUSIVE
            | ReservationType::WRITE_EXCLUSIVE_REGISTRANTS_ONLY
            | ReservationType::WRITE_EXCLUSIVE_ALL_REGISTRANTS
    )
}

/// Whether only the holder has what the reservation reserves.
fn is_for_one(kind: ReservationType) -> bool {
    matches!(kind, ReservationType::WRITE_EXCLUSIVE | ReservationType::EXCLUSIVE_ACCESS)
}

/// Whether every registrant is a holder.
fn is_for_all(kind: ReservationType) -> bool {
    matches!(
        kind,
        ReservationType::WRITE_EXCLUSIVE_ALL_REGISTRANTS | ReservationType::EXCLUSIVE_ACCESS_ALL_REGISTRANTS
    )
}
