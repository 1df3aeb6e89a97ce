//! What the caller is asked to do, and what it replies. Actions are named after what does them in RADOS.

use crate::{Address, AnaState, BootId, GatewayName, GroupId, RequestError, RequestId};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;
use core::time::Duration;

/// Names an action, for its reply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpId(pub u64);

/// One client of the store (a `rados_t`) that carries the I/O of one ANA group. Never used twice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Handle(pub u64);

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "handle {}", self.0)
    }
}

/// Which client of the store an operation goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// The one of the control plane, which carries no host's data and is never fenced by another gateway.
    Control,
    /// The one of an ANA group, so that the operation is fenced together with the group's I/O.
    Handle(Handle),
}

/// An object of the group in the store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Object {
    /// Who owns which ANA group.
    Map,
    /// The configuration.
    Configuration,
    /// Records of gateways, and their ranges of Controller IDs.
    Gateways,
    /// The lease of a gateway: nothing but a lock.
    Lease(GatewayName),
    /// The reservations of the namespaces of an ANA group.
    Reservations(GroupId),
}

impl Object {
    /// The object's name in the pool of the group that is named so.
    #[must_use]
    pub fn name(&self, group: &str) -> String {
        match self {
            Self::Map => format!("nvmf.{group}.map"),
            Self::Configuration => format!("nvmf.{group}.configuration"),
            Self::Gateways => format!("nvmf.{group}.gateways"),
            Self::Lease(name) => format!("nvmf.{group}.lease.{name}"),
            Self::Reservations(id) => format!("nvmf.{group}.reservations.{id}"),
        }
    }
}

/// Namespaces whose images cannot be opened.
pub type Unopened = Vec<Lack>;

/// A namespace whose image cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// Its item in the configuration.
    pub namespace: String,
    /// Why.
    pub reason: String,
    /// There is no image of this name, or another disk has it. Only who has the right one open from before can serve it.
    pub is_gone: bool,
}

/// Keys and their values; `None` removes a key, or expects it to be absent.
pub type Keys = Vec<(String, Option<Vec<u8>>)>;

/// What the caller is asked to do. Those without an [`OpId`] have no reply. They are carried out in order, but none waits
/// for the reply of another.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Read all keys of an object, as they were at one moment. Pages (`rados_read_op_omap_get_vals2`) are read again until
    /// the object's version is the same before and after. An object that does not exist is empty, with version 0.
    /// Reply: [`Reply::Snapshot`], or [`Reply::Unchanged`].
    Read {
        /// For the reply.
        op: OpId,
        /// Through which client.
        via: Via,
        /// The object.
        object: Object,
        /// If it has still this version (`rados_read_op_assert_version`), the reply is [`Reply::Unchanged`].
        unless: Option<u64>,
    },
    /// One write operation: compare these keys (`rados_write_op_omap_cmp2`; an absent key compares as empty), then set and
    /// remove those. Reply: [`Reply::Done`], or [`Reply::Conflict`] (-125).
    CompareAndSet {
        /// For the reply.
        op: OpId,
        /// Through which client.
        via: Via,
        /// The object.
        object: Object,
        /// What the keys must be.
        compare: Keys,
        /// What they, and others, become.
        set: Keys,
    },
    /// Take or renew the own lease (`rados_lock_exclusive`, `LOCK_FLAG_MAY_RENEW`). Reply: [`Reply::Done`], or
    /// [`Reply::Held`] by somebody else (-16, then `rados_list_lockers`).
    Lock {
        /// For the reply.
        op: OpId,
        /// The lease.
        object: Object,
        /// The cookie.
        cookie: BootId,
        /// How long it holds.
        duration: Duration,
    },
    /// See who has a lease (`rados_list_lockers`). Reply: [`Reply::Held`] or [`Reply::Free`].
    ListLockers {
        /// For the reply.
        op: OpId,
        /// The lease.
        object: Object,
    },
    /// Give the own lease back (`rados_unlock`). No reply.
    Unlock {
        /// The lease.
        object: Object,
        /// The cookie.
        cookie: BootId,
    },
    /// Tell those who watch an object that it has changed (`rados_aio_notify`). It may be lost. No reply.
    Notify {
        /// The object.
        object: Object,
    },
    /// Fence an address (`rados_blocklist_add`), through the group's new client: that of the control plane may have
    /// been there for so long that the monitors do not know its key any more. Fencing it again does no harm. Reply:
    /// [`Reply::Done`], or [`Reply::FencedUntil`]: the monitors keep the end of an address that is fenced already.
    Blocklist {
        /// For the reply.
        op: OpId,
        /// Through which client.
        handle: Handle,
        /// The address.
        address: Address,
        /// For how long.
        duration: Duration,
    },
    /// Make a new client of the store for an ANA group (`rados_connect`, `rados_getaddrs`). Nothing else goes through it
    /// yet. Reply: [`Reply::Connected`].
    Connect {
        /// For the reply.
        op: OpId,
        /// Its name from now on.
        handle: Handle,
        /// The ANA group.
        group: GroupId,
    },
    /// `rados_wait_for_latest_osdmap` on that client, so that every OSD which hears of it hears of the fences as well.
    /// Reply: [`Reply::Done`].
    WaitForLatestOsdmap {
        /// For the reply.
        op: OpId,
        /// The client.
        handle: Handle,
    },
    /// See whether the images of the group can be opened here, read-only, through a client that carries no I/O yet.
    /// Reply: [`Reply::Done`], or [`Reply::Unopened`].
    LookAtImages {
        /// For the reply.
        op: OpId,
        /// Through which client.
        handle: Handle,
        /// The ANA group.
        group: GroupId,
    },
    /// Open the images of the group. Which of them cannot be opened is told by
    /// [`Gateway::set_unopened`](crate::Gateway::set_unopened). Reply: [`Reply::Done`] once commands can be answered,
    /// [`Reply::Failed`] if none of its images can be opened.
    OpenImages {
        /// For the reply.
        op: OpId,
        /// Through which client.
        handle: Handle,
        /// The ANA group.
        group: GroupId,
    },
    /// What this client has of the group by itself, without asking the store, is right until then and no longer: no
    /// answer that is given to a host later may rest on it. The time is that of [`Gateway`](crate::Gateway)'s own
    /// clock, which must go on while the machine sleeps. A client that was never named here is not trusted at all. No
    /// reply.
    Trust {
        /// The client.
        handle: Handle,
        /// Until when; zero: not any more.
        until: Duration,
    },
    /// Show the group so at this gateway from now on, with an ANA event if that is a change. A group that was never set is
    /// inaccessible. No reply.
    SetAna {
        /// The ANA group.
        group: GroupId,
        /// Its state.
        state: AnaState,
    },
    /// Let the group's commands end, reservation commands included, flush its images, release their locks, close them. Reply: [`Reply::Done`] only if
    /// all of that succeeded and nothing is in flight.
    Drain {
        /// For the reply.
        op: OpId,
        /// The client.
        handle: Handle,
        /// The ANA group.
        group: GroupId,
    },
    /// End that client (`rados_shutdown`), whatever it has under way; the group's commands fail with a path error.
    /// Reply: [`Reply::Done`].
    Shutdown {
        /// For the reply.
        op: OpId,
        /// The client.
        handle: Handle,
    },
    /// Make what is served the same as [`Gateway::configuration`](crate::Gateway::configuration) says: by state, not by
    /// replay. Reply: [`Reply::Converged`].
    Converge {
        /// For the reply.
        op: OpId,
    },
    /// The client of the control plane is blocklisted, which no gateway does: make another one. Reply: [`Reply::Done`].
    ReconnectControl {
        /// For the reply.
        op: OpId,
    },
    /// Give new controllers IDs of this range only. `None`: this process has none (any more), and no associations.
    UseControllerIds {
        /// The range.
        range: Option<RangeInclusive<u16>>,
    },
    /// Admit hosts until then and no longer, by the clock of [`Action::Trust`]: what this process knows of who may connect
    /// is not older than its lease. Never named: nobody is admitted. No reply.
    Admit {
        /// Until when.
        until: Duration,
    },
    /// An operator's request is done: the version that the configuration has now, or 0.
    Answer {
        /// The request.
        request: RequestId,
        /// What came of it.
        result: Result<u64, RequestError>,
    },
    /// After [`Gateway::stop`](crate::Gateway::stop): nothing is owned here any more.
    Stopped,
}

impl Action {
    /// What its reply is for; `None`: it has none.
    #[must_use]
    pub fn op(&self) -> Option<OpId> {
        match self {
            Self::Read { op, .. }
            | Self::CompareAndSet { op, .. }
            | Self::Lock { op, .. }
            | Self::ListLockers { op, .. }
            | Self::Blocklist { op, .. }
            | Self::Connect { op, .. }
            | Self::WaitForLatestOsdmap { op, .. }
            | Self::LookAtImages { op, .. }
            | Self::OpenImages { op, .. }
            | Self::Drain { op, .. }
            | Self::Shutdown { op, .. }
            | Self::Converge { op }
            | Self::ReconnectControl { op } => Some(*op),
            Self::Unlock { .. }
            | Self::Notify { .. }
            | Self::Trust { .. }
            | Self::SetAna { .. }
            | Self::UseControllerIds { .. }
            | Self::Admit { .. }
            | Self::Answer { .. }
            | Self::Stopped => None,
        }
    }
}

/// All keys of an object at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// The object's version (`rados_get_last_version`), another one after each change.
    pub version: u64,
    /// Its keys.
    pub keys: BTreeMap<String, Vec<u8>>,
}

/// Who has a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locker {
    /// With which cookie.
    pub cookie: BootId,
    /// From where.
    pub address: Address,
}

/// The result of an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// It is done.
    Done,
    /// A comparison failed; nothing was changed (-125).
    Conflict,
    /// The object's keys.
    Snapshot(Snapshot),
    /// The object has the version that was named.
    Unchanged,
    /// The lock is held, by somebody else if it was to be taken.
    Held(Locker),
    /// Nobody has the lock.
    Free,
    /// The address is fenced until then only, by the gateway's own clock.
    FencedUntil(Duration),
    /// The new client's address.
    Connected(Address),
    /// What is served is what was asked for, except these items, each with its reason.
    Converged(Vec<(String, String)>),
    /// These images cannot be opened, each with its reason. Those that are gone from the pool are none of them.
    Unopened(Unopened),
    /// The client is blocklisted (-108).
    Blocklisted,
    /// The client may not do that, for this reason, and was made a while ago: a new one may, if the user's capabilities were
    /// changed since. All clients that are as old are refused, or will be.
    Outdated(String),
    /// Another error. Whether a write took effect is not known.
    Failed(String),
}

impl Reply {
    /// Why an action came to nothing, if it did.
    pub(crate) fn failure(self) -> Option<String> {
        match self {
            Self::Failed(reason) | Self::Outdated(reason) => Some(reason),
            Self::Blocklisted => Some("this client is blocklisted".to_string()),
            Self::Conflict => Some("somebody else was first".to_string()),
            _ => None,
        }
    }
}
