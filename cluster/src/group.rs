//! An ANA group as this gateway sees it, and the step at which this gateway is with it.

use crate::map::{Entry, Move};
use crate::reservations::Reservations;
use crate::{Address, AnaState, GatewayName, Handle, OpId, Process};
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

/// What this gateway does with a group. The steps of a takeover are in this order, then those of a move; each waits for
/// one reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Nothing.
    Idle,
    /// Makes a handle for a group that is to move here.
    Preparing,
    /// Looks at its images through that handle.
    Looking,
    /// Could take it at once.
    Prepared,
    /// Takes the entry.
    Claiming,
    /// Makes the handle that will carry the I/O.
    Connecting,
    /// Fences the address of the owner before.
    Fencing,
    /// That handle waits for the map that has the fence.
    WaitingForMap,
    /// Stores the handle's address: from then on it may do I/O.
    Owning,
    /// Reads the reservations.
    Loading,
    /// Opens the images.
    Opening,
    /// Says in the entry that it is still the owner, after its lease had lapsed.
    Affirming,
    /// Answers I/O.
    Serving,
    /// Lets I/O end.
    Draining,
    /// Closes the handle.
    Closing,
    /// Gives the entry away.
    Releasing,
    /// Gives the entry away with an address that has to be fenced.
    Surrendering,
}

impl Phase {
    /// Whether it waits for the store, for a bounded time. (To open many images takes its time.)
    pub(crate) fn is_bounded(self) -> bool {
        self == Self::Preparing || (Self::Connecting..=Self::Loading).contains(&self)
    }
}

/// An ANA group.
#[derive(Debug)]
pub(crate) struct Group {
    /// Its entry as it was read or written last, and the bytes. `None` if there is none.
    pub(crate) entry: Option<(Entry, Vec<u8>)>,
    /// Why the entry that is stored is not used. Nothing is done about such a group.
    pub(crate) unreadable: Option<String>,
    /// The entry that was known is not there any more.
    pub(crate) gone: bool,
    /// What is there in its place, if that is damaged.
    pub(crate) damage: Option<Vec<u8>>,
    /// When this generation was seen first.
    pub(crate) seen: Duration,
    /// What an operator wants.
    pub(crate) wanted: Option<Move>,
    /// The same as it is stored, also if that cannot be read.
    pub(crate) wish: Option<Vec<u8>>,
    /// What is wanted may have been asked for by, or of, the owner before.
    pub(crate) inherits: bool,
    /// An operator has moved it here: balance leaves it.
    pub(crate) placed: bool,
    pub(crate) phase: Phase,
    /// Before when the reply must have come, in steps that wait for the store.
    pub(crate) step_until: Duration,
    /// The reply that the phase waits for.
    pub(crate) op: Option<OpId>,
    /// What the entry becomes if the compare-and-set under way succeeds.
    pub(crate) pending: Option<Entry>,
    /// Its handle, from `Preparing` to `Prepared`, and from `Connecting` on.
    pub(crate) handle: Option<Handle>,
    /// The handle's address, from `WaitingForMap` on.
    pub(crate) address: Option<Address>,
    /// Until when the handle is trusted, as it was told.
    pub(crate) trusted: Duration,
    /// The lease has lapsed since the entry was written.
    pub(crate) lapsed: bool,
    pub(crate) reservations: Reservations,
    /// Another gateway was asked to take it since this one leaves.
    pub(crate) asked: bool,
    /// Who gets it, from `Draining` on, and until when it may drain.
    pub(crate) to: Option<GatewayName>,
    pub(crate) drain_until: Duration,
    /// What hosts are shown.
    pub(crate) ana: AnaState,
    /// Attempts that failed in a row, why the last one did, and before when there is none.
    pub(crate) failures: u32,
    /// The same before it was owned: nobody was fenced for them.
    pub(crate) vain: u32,
    /// Why it could not be taken here when that was tried last, until it is served.
    pub(crate) unable: Option<String>,
    pub(crate) trouble: Option<String>,
    pub(crate) not_before: Duration,
    /// Before this it is not given away again: the store did not write that.
    pub(crate) kept_until: Duration,
    /// Images of it could not be opened here: another gateway should take it.
    pub(crate) unable_until: Duration,
    /// Its operations ended slowly a short time ago.
    pub(crate) slow_until: Duration,
    /// Why it does not move here, before that is written down.
    pub(crate) refusal: Option<String>,
    /// That is because hosts would lose an image.
    pub(crate) loses: bool,
    /// Others refuse it for that since this gateway leaves.
    pub(crate) is_held: bool,
    /// Who is not to be asked to take it, and until when: it has refused it, or was asked because of images.
    pub(crate) spared: BTreeMap<GatewayName, Duration>,
}

impl Group {
    pub(crate) fn new(now: Duration) -> Self {
        Self {
            entry: None,
            unreadable: None,
            gone: false,
            damage: None,
            seen: now,
            wanted: None,
            wish: None,
            inherits: false,
            placed: false,
            phase: Phase::Idle,
            step_until: Duration::MAX,
            op: None,
            pending: None,
            handle: None,
            address: None,
            trusted: Duration::ZERO,
            lapsed: false,
            reservations: Reservations::default(),
            asked: false,
            to: None,
            drain_until: Duration::ZERO,
            ana: AnaState::INACCESSIBLE,
            failures: 0,
            vain: 0,
            unable: None,
            trouble: None,
            not_before: Duration::ZERO,
            kept_until: Duration::ZERO,
            unable_until: Duration::ZERO,
            slow_until: Duration::ZERO,
            refusal: None,
            loses: false,
            is_held: false,
            spared: BTreeMap::new(),
        }
    }

    /// Whether hosts' commands may go through its handle, or may have.
    pub(crate) fn carries_commands(&self) -> bool {
        // It affirms what it has served.
        self.phase >= Phase::Affirming && !self.trusted.is_zero()
    }

    pub(crate) fn entry(&self) -> Option<&Entry> {
        self.entry.as_ref().map(|(entry, _)| entry)
    }

    pub(crate) fn generation(&self) -> u64 {
        self.entry().map_or(0, |entry| entry.generation)
    }

    /// Whether somebody else has changed the entry under what this gateway does: it is too late then, whatever comes of
    /// it. A compare-and-set that is under way learns that by itself.
    pub(crate) fn is_lost(&self, me: &Process) -> bool {
        match self.phase {
            Phase::Idle
            | Phase::Preparing
            | Phase::Looking
            | Phase::Prepared
            | Phase::Claiming
            | Phase::Owning
            | Phase::Affirming
            | Phase::Releasing
            | Phase::Surrendering => false,
            Phase::Connecting | Phase::Fencing | Phase::WaitingForMap => !self.entry().is_some_and(|entry| {
                entry.holder() == Some(me) && matches!(entry.state, crate::map::State::Taking { .. })
            }),
            Phase::Loading | Phase::Opening | Phase::Serving | Phase::Draining | Phase::Closing => {
                let owned = |address| self.entry().is_some_and(|entry| entry.is_owned_through(me, address));
                !self.address.as_ref().is_some_and(owned)
            }
        }
    }

    /// What hosts should be shown.
    pub(crate) fn ana(&self, suspended: bool) -> AnaState {
        match self.phase {
            Phase::Serving if !suspended => AnaState::OPTIMIZED,
            Phase::Draining | Phase::Closing | Phase::Releasing => AnaState::CHANGE,
            _ => AnaState::INACCESSIBLE,
        }
    }
}
