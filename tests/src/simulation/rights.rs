//! Who may read and write which blocks of the namespace, and since when.
//!
//! Whatever changes that (a reservation, a write protection, an ANA state, who sees the namespace, its size) makes a new [`Situation`]. From
//! then on both count, the old one and the new one, until the change is reported done: after that nothing may be given
//! to the disk that no situation since allows. A command that was refused must have been refusable at some time between
//! its begin and its end.

use super::reservation::{Host, Model};
use core::time::Duration;
use nvmf_backend::simulated::Given;
use nvmf_block::BlockError;
use nvmf_subsystem::WriteProtection;
use std::collections::BTreeSet;

/// What holds at a time.
#[derive(Debug, Clone)]
pub(super) struct Situation {
    /// The hosts' disk is there.
    pub(super) served: bool,
    /// The ANA state is one with access.
    pub(super) reachable: bool,
    /// The namespace does not exist for this host.
    pub(super) hidden_from: Option<Host>,
    /// Its size.
    pub(super) blocks: u64,
    /// The operator lets nobody write.
    pub(super) read_only: bool,
    /// Hosts let nobody write.
    pub(super) protection: WriteProtection,
    pub(super) reservation: Model,
    /// When it ceased to count.
    until: Option<Duration>,
}

impl Situation {
    fn allows(&self, host: Host, given: &Given) -> bool {
        self.is_there(host, given.range.start + given.range.blocks)
            && self.reachable
            && !(given.writes && self.is_read_only())
            && self.reservation.allows(host, given.writes)
    }

    fn is_read_only(&self) -> bool {
        self.read_only || self.protection != WriteProtection::Off
    }

    fn is_there(&self, host: Host, end: u64) -> bool {
        self.served && self.hidden_from != Some(host) && end <= self.blocks
    }
}

/// What of the namespace an operation is for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach {
    /// The block behind its last.
    pub(super) end: u64,
    pub(super) writes: bool,
}

/// All situations, in order.
pub(super) struct Rights {
    all: Vec<Situation>,
    /// The first of those that count.
    first: usize,
    /// Whose commands a Preempt and Abort ends, and until when: it is answered then.
    aborted: Vec<(BTreeSet<Host>, Option<Duration>)>,
    blocks: u64,
}

impl Rights {
    /// Everybody has every right.
    pub(super) fn new(blocks: u64) -> Self {
        let mut rights = Self { all: Vec::new(), first: 0, aborted: Vec::new(), blocks };
        rights.restart(Duration::ZERO, true, WriteProtection::Off, Model::default());
        rights
    }

    /// What a target that was started serves, with this reservation.
    pub(super) fn restart(
        &mut self,
        now: Duration,
        served: bool,
        protection: WriteProtection,
        reservation: Model,
    ) {
        let blocks = self.blocks;
        self.all.push(Situation {
            served,
            reachable: true,
            hidden_from: None,
            blocks,
            read_only: false,
            protection,
            reservation,
            until: None,
        });
        self.done(now, self.all.len() - 1);
    }

    /// The last situation.
    pub(super) fn now(&self) -> &Situation {
        &self.all[self.all.len() - 1]
    }

    /// Begins a change, and returns its number.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Situation)) -> usize {
        let mut new = self.now().clone();
        change(&mut new);
        self.all.push(new);
        self.all.len() - 1
    }

    /// The number of the last change.
    pub(super) fn last(&self) -> usize {
        self.all.len() - 1
    }

    /// A change is done: what was before does not count any more.
    pub(super) fn done(&mut self, now: Duration, change: usize) {
        for situation in self.all[..change].iter_mut().skip(self.first) {
            situation.until = Some(now);
        }
        self.first = self.first.max(change);
    }

    /// A Preempt and Abort ends what these hosts send until it is answered. Returns its number.
    pub(super) fn abort(&mut self, hosts: &BTreeSet<Host>) -> usize {
        self.aborted.push((hosts.clone(), None));
        self.aborted.len() - 1
    }

    /// A Preempt and Abort is answered.
    pub(super) fn aborted(&mut self, now: Duration, number: usize) {
        self.aborted[number].1 = Some(now);
    }

    /// Whether a host's operation may be given to the disk, or be there.
    pub(super) fn allows(&self, host: Host, given: &Given) -> bool {
        self.all[self.first..].iter().any(|situation| situation.allows(host, given))
    }

    /// Whether an operation on the other namespace may be given to its disk.
    pub(super) fn allows_other(&self) -> bool {
        self.all[self.first..].iter().any(|situation| situation.reachable)
    }

    /// Checks that an operation of a host that began then, and reaches these blocks of the namespace, may have ended so.
    pub(super) fn check_refusal(
        &self,
        host: Host,
        reaches: &[Reach],
        since: Duration,
        error: BlockError,
        what: &str,
    ) {
        let mut situations = self.all.iter().filter(|it| it.until.is_none_or(|until| until >= since));
        let may = match error {
            _ if reaches.is_empty() => false,
            BlockError::ReservationConflict => {
                situations.any(|it| reaches.iter().any(|reach| !it.reservation.allows(host, reach.writes)))
            }
            // Nor may it know yet that it can write again.
            BlockError::ReadOnly => {
                reaches.iter().any(|reach| reach.writes) && self.all.iter().any(Situation::is_read_only)
            }
            // The driver may not have found it again yet.
            BlockError::Gone => self.all.iter().any(|it| !it.is_there(host, 0)),
            BlockError::OutOfRange => situations.any(|it| reaches.iter().any(|reach| reach.end > it.blocks)),
            BlockError::Aborted => self
                .aborted
                .iter()
                .any(|(hosts, until)| hosts.contains(&host) && until.is_none_or(|until| until >= since)),
            _ => false,
        };
        assert!(may, "{what}: {error:?}, which nothing was a reason for");
    }
}

/// Whether an operation ended so because it was refused.
pub(super) fn is_refusal(error: BlockError) -> bool {
    matches!(
        error,
        BlockError::ReservationConflict
            | BlockError::Aborted
            | BlockError::Gone
            | BlockError::OutOfRange
            | BlockError::ReadOnly
    )
}
