//! One ticket, one response.

use crate::Cid;
use crate::io::IoKind;

/// A command that the transport works on. It goes back into the queue that gave it, exactly once; or it is abandoned by
/// name, with its connection.
///
/// # Panics
/// When dropped otherwise: a command would be lost, and the host would wait for ever.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a command that is not completed hangs the host"]
pub struct Ticket {
    pub(crate) cid: Cid,
    pub(crate) kind: Kind,
    pub(crate) invalidate: Option<u32>,
    armed: bool,
}

/// What the engine does when the ticket comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An I/O command.
    Io(IoKind),
}

impl Ticket {
    pub(crate) fn new(cid: Cid, kind: Kind, invalidate: Option<u32>) -> Self {
        Self { cid, kind, invalidate, armed: true }
    }

    /// The host's name for the command.
    #[must_use]
    pub fn cid(&self) -> Cid {
        self.cid
    }

    /// The connection is gone: nobody waits for a response any more.
    pub fn abandon(mut self) {
        self.armed = false;
    }

    /// Takes the ticket apart: the engine responds now.
    pub(crate) fn redeem(mut self) -> (Cid, Kind, Option<u32>) {
        self.armed = false;
        (self.cid, self.kind, self.invalidate)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        assert!(!self.armed, "the ticket of command {:?} was dropped without a response", self.cid);
    }
}
