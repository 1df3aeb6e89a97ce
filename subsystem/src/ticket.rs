//! One ticket, one response.

use crate::admin::AdminKind;
use crate::authentication::AuthenticationKind;
use crate::io::IoKind;
use crate::step::{Transfer, Work};
use crate::{Cid, Nsid, Qid, Question};
use alloc::boxed::Box;
use nvme_proto::fabrics::connect::Connect;
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{Sqe, Status};

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
    /// `None`: of a command that the Error Information log does not name.
    pub(crate) subject: Option<Subject>,
    /// None once it is redeemed or abandoned.
    kind: Option<Kind>,
}

/// What a command is about, for the Error Information log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) nsid: Nsid,
    pub(crate) opcode: u8,
    /// The first block; 0 if it names none.
    pub(crate) slba: u64,
}

impl Subject {
    pub(crate) fn of(sqe: &Sqe, is_io: bool) -> Self {
        let has_blocks = is_io
            && matches!(
                NvmOpcode(sqe.opcode),
                NvmOpcode::READ
                    | NvmOpcode::WRITE
                    | NvmOpcode::COMPARE
                    | NvmOpcode::WRITE_ZEROES
                    | NvmOpcode::VERIFY
                    | NvmOpcode::COPY
            );
        let [low, high, ..] = sqe.dwords();
        let slba = if has_blocks { u64::from(high) << 32 | u64::from(low) } else { 0 };
        Self { nsid: sqe.nsid(), opcode: sqe.opcode, slba }
    }
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
    pub(crate) fn new(
        qid: Qid,
        cid: Cid,
        kind: Kind,
        invalidate: Option<u32>,
        subject: Option<Subject>,
    ) -> Self {
        Self { qid, cid, invalidate, subject, kind: Some(kind) }
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

    /// What the engine does when it comes back.
    pub(crate) fn kind(&self) -> Option<&Kind> {
        self.kind.as_ref()
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
        Ticket::new(Qid(1), Cid(7), Kind::Io(IoKind::Plain(crate::status::Direction::Read)), None, None)
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
