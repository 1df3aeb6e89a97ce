//! One ticket, one response.

use crate::admin::AdminKind;
use crate::authentication::AuthenticationKind;
use crate::io::IoKind;
use crate::step::{Transfer, Work};
use crate::{Cid, Qid, Question};
use alloc::boxed::Box;
use nvme_proto::Status;
use nvme_proto::fabrics::connect::Connect;

/// A command that the transport works on. It goes back into the queue that gave it, exactly once; or it is abandoned by
/// name, with its connection.
///
/// # Panics
/// When dropped otherwise: a command would be lost, and the host would wait for ever. (With the feature `std`, not
/// while another panic is under way.)
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a command that is not completed hangs the host"]
pub struct Ticket {
    pub(crate) qid: Qid,
    pub(crate) cid: Cid,
    pub(crate) invalidate: Option<u32>,
    /// None once it is redeemed or abandoned.
    kind: Option<Kind>,
}

/// What the engine does when the ticket comes back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The data of a Connect are being transferred.
    Connect(Connect),
    /// An I/O command.
    Io(IoKind),
    /// An Admin command.
    Admin(AdminKind),
    /// Authentication Send or Receive, on any queue.
    Authentication(AuthenticationKind),
}

/// What a command handler wants, before a ticket is made of it.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The command is done, with this result in DW0 and DW1.
    Done(u64),
    /// As [`crate::Step::Execute`].
    Execute { kind: Kind, work: Work, transfer: Transfer },
    /// As [`crate::Step::Ask`].
    Ask { kind: Kind, question: Box<Question> },
    /// As [`crate::Step::Held`].
    Held,
}

/// What a command handler returns: a reply, or the status of the response.
pub(crate) type Outcome = Result<Reply, Status>;

impl Ticket {
    pub(crate) fn new(qid: Qid, cid: Cid, kind: Kind, invalidate: Option<u32>) -> Self {
        Self { qid, cid, invalidate, kind: Some(kind) }
    }

    /// The Command ID.
    #[must_use]
    pub fn cid(&self) -> Cid {
        self.cid
    }

    /// Gives the ticket up: the connection is gone, and no response can be sent.
    pub fn abandon(mut self) {
        self.kind = None;
    }

    /// The Connect that it is of, if it is of one.
    pub(crate) fn connect(&self) -> Option<&Connect> {
        match &self.kind {
            Some(Kind::Connect(connect)) => Some(connect),
            _ => None,
        }
    }

    /// Takes the ticket apart: the engine answers now.
    pub(crate) fn redeem(mut self) -> (Cid, Kind, Option<u32>) {
        let kind = self.kind.take().expect("nobody has a ticket that was redeemed");
        (self.cid, kind, self.invalidate)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // A second panic would abort, and hide the first.
        #[cfg(feature = "std")]
        if std::thread::panicking() {
            return;
        }
        assert!(self.kind.is_none(), "the ticket of command {} was dropped without a response", self.cid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket() -> Ticket {
        Ticket::new(Qid(1), Cid(7), Kind::Io(IoKind::Plain(crate::status::Direction::Read)), None)
    }

    #[test]
    #[should_panic(expected = "the ticket of command 7 was dropped without a response")]
    fn a_ticket_cannot_be_forgotten() {
        drop(ticket());
    }

    #[test]
    fn a_ticket_may_be_abandoned_by_name() {
        ticket().abandon();
    }
}
