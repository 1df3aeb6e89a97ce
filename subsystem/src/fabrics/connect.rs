//! Connect: what a queue asks the registry, and the registry's answer.

use crate::authentication::Demand;
use crate::controller::Controller;
use crate::io::Io;
use crate::{Association, AssociationKey, HostId, Link, Nqn, Qid, Refusal, Ticket};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use nvme_proto::fabrics::connect::{Connect, ConnectData};

/// Bytes of Connect data.
pub(crate) const CONNECT_LEN: u32 = ConnectData::LEN as u32;

/// A Connect command and its data: passed from a queue to the registry and back.
#[must_use = "take it to the registry, then to Queue::on_admission"]
pub struct ConnectRequest {
    pub(crate) ticket: Ticket,
    pub(crate) link: Link,
    pub(crate) data: ConnectData,
}

impl ConnectRequest {
    pub(crate) fn command(&self) -> Connect {
        *self.ticket.connect().expect("a Connect request holds the ticket of a Connect")
    }

    /// The queue that it asks for.
    #[must_use]
    pub fn qid(&self) -> Qid {
        self.command().qid
    }

    /// Whether it turns flow control of the submission queue off (CATTR).
    #[must_use]
    pub fn disables_sq_flow_control(&self) -> bool {
        self.command().attributes.disables_sq_flow_control()
    }

    /// The connection is gone.
    pub fn abandon(self) {
        self.ticket.abandon();
    }
}

impl fmt::Debug for ConnectRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectRequest")
            .field("command", &self.command())
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}

/// The registry's answer to a Connect: for [`crate::Queue::on_admission`], after the caller has looked into it for its
/// log and counters.
#[derive(Debug)]
#[must_use]
pub struct Admission {
    /// Yes or no.
    pub outcome: Result<Admitted, Refusal>,
    /// The host NQN is in use with another Host Identifier: warn, and count. Present whether admitted or not.
    pub duplicate_host_id: Option<DuplicateHost>,
    /// A discovery controller that was closed to make room for this one: poll its queue, on whichever worker it
    /// lives, or disconnect it.
    pub closed: Option<AssociationKey>,
    /// Associations that the host has lost, and that end: destroy the queue pairs of all their queues at once, on
    /// whichever worker they live. Until then the host is refused ([`Refusal::Ending`]).
    pub lost: Vec<AssociationKey>,
}

impl Admission {
    /// No, for a reason of the caller's: the registry was not asked.
    pub fn refused(refusal: Refusal) -> Self {
        Self { outcome: Err(refusal), duplicate_host_id: None, closed: None, lost: Vec::new() }
    }
}

/// A queue that was admitted.
#[derive(Debug)]
pub struct Admitted {
    pub(crate) association: Arc<Association>,
    pub(crate) qid: Qid,
    pub(crate) entries: u16,
    pub(crate) role: Role,
    /// How the queue is authenticated, if it has to be or may be.
    pub(crate) authentication: Option<Demand>,
}

/// What the queue becomes.
#[derive(Debug)]
pub(crate) enum Role {
    Admin(Box<Controller>),
    Io { io: Io, epoch: u32 },
}

impl Admitted {
    /// The association, new if this is an Admin queue.
    #[must_use]
    pub fn association(&self) -> &Arc<Association> {
        &self.association
    }

    /// Entries of the queue.
    #[must_use]
    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// Whether its host must authenticate before it is used.
    #[must_use]
    pub fn must_authenticate(&self) -> bool {
        self.authentication.is_some_and(|demand| demand.is_due())
    }

    /// Whether that must make a key for TLS, over which the host comes back.
    #[must_use]
    pub fn must_concatenate(&self) -> bool {
        self.authentication.is_some_and(|demand| demand.is_for_channel())
    }

    /// Which queue of it.
    #[must_use]
    pub fn qid(&self) -> Qid {
        self.qid
    }
}

/// One host NQN with two Host Identifiers: mostly two machines made from one image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "host {host_nqn} connects with host ID {new}, but is connected with host ID {known}: two machines must not share a host NQN"
)]
pub struct DuplicateHost {
    /// The NQN.
    pub host_nqn: Nqn,
    /// The Host Identifier of an existing association.
    pub known: HostId,
    /// The Host Identifier of this Connect.
    pub new: HostId,
}
