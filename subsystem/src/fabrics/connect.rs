//! Connect: from a bare connection to a queue of a controller.

use crate::{Association, Link, Queue, Ticket};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;

/// A Connect command and its data, on the way from a queue to the registry and back.
#[derive(Debug)]
#[must_use = "take it to the registry, then to Queue::on_admission"]
pub struct ConnectRequest {
    pub(crate) ticket: Ticket,
    pub(crate) link: Link,
    pub(crate) data: Box<[u8; 1024]>,
}

impl ConnectRequest {
    /// The connection is gone.
    pub fn abandon(self) {
        self.ticket.abandon();
    }
}

/// The registry's answer to a Connect: for [`Queue::on_admission`], after the caller has looked into it for its log and
/// counters.
#[derive(Debug)]
#[must_use]
pub struct Admission {
    /// Yes or no.
    pub outcome: Result<Admitted, Refusal>,
    /// The host NQN is in use with another host ID: warn, and count. Present whether admitted or not.
    pub duplicate_host_id: Option<DuplicateHost>,
}

/// A queue was let in.
#[derive(Debug)]
pub struct Admitted {
    pub(crate) association: Arc<Association>,
}

/// One host NQN with two host IDs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DuplicateHost {
    /// The NQN.
    pub host_nqn: String,
    /// The Host Identifier of the association that lives.
    pub known: [u8; 16],
    /// The Host Identifier that came now.
    pub new: [u8; 16],
}

/// Why a Connect was refused, for people; the status for the host is derived from it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No such subsystem on this port.
    #[error("there is no subsystem {subsystem_nqn:?} on this port")]
    Subsystem {
        /// What the host asked for.
        subsystem_nqn: String,
    },
}

#[allow(unused)]
fn unused(_: Queue) {}
