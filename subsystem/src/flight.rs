//! The commands of one queue that are in flight, and its submission queue head.

use crate::status;
use crate::step::{Response, Violation};
use crate::{Cid, Qid};
use alloc::boxed::Box;
use alloc::vec;
use nvme_proto::{Cqe, Status};
use zerocopy::IntoBytes;

/// Which Command IDs are in use on a queue. Fixed size: one bit for each of the 65536 that a host may use.
#[derive(Debug)]
pub(crate) struct Flight {
    qid: Qid,
    entries: u16,
    in_flight: u16,
    used: Box<[u64]>,
    /// `None` when the host disabled submission queue flow control.
    head: Option<u16>,
}

/// A command that cannot begin.
#[derive(Debug)]
pub(crate) enum Unfit {
    /// Its Command ID is in flight: this is the answer.
    Conflict(Response),
    /// The queue is full.
    Overrun(Violation),
}

impl Flight {
    /// Bytes that it takes beside itself: a bit of each Command ID.
    pub(crate) const BYTES: usize = (u16::MAX as usize + 1) / 8;

    /// An empty queue of so many entries.
    pub(crate) fn new(qid: Qid, entries: u16, flow_control: bool) -> Self {
        assert!(entries > 1, "a queue of {entries} entries");
        let used = vec![0; (usize::from(u16::MAX) + 1) / 64].into_boxed_slice();
        Self { qid, entries, in_flight: 0, used, head: flow_control.then_some(0) }
    }

    /// Takes over what the Connect of the queue says; that Connect is the first command in flight.
    pub(crate) fn connect(&mut self, qid: Qid, entries: u16, flow_control: bool) {
        assert!(entries > 1, "a queue of {entries} entries");
        (self.qid, self.entries) = (qid, entries);
        self.head = flow_control.then_some(0);
    }

    pub(crate) fn qid(&self) -> Qid {
        self.qid
    }

    pub(crate) fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// Begins a command.
    ///
    /// # Errors
    /// [`Unfit`].
    pub(crate) fn begin(&mut self, cid: Cid) -> Result<(), Unfit> {
        if self.in_flight >= self.entries {
            let (qid, entries) = (self.qid.0, self.entries);
            return Err(Unfit::Overrun(Violation::QueueOverrun { qid, entries }));
        }
        if self.is_used(cid) {
            return Err(Unfit::Conflict(self.response(cid, status::COMMAND_ID_CONFLICT, 0, None)));
        }
        self.used[usize::from(cid.0 / 64)] |= bit(cid);
        self.in_flight += 1;
        Ok(())
    }

    /// Ends a command.
    pub(crate) fn end(&mut self, cid: Cid, status: Status, result: u64, invalidate: Option<u32>) -> Response {
        assert!(self.is_used(cid), "command {cid} of queue {} was not in flight", self.qid);
        self.used[usize::from(cid.0 / 64)] &= !bit(cid);
        self.in_flight -= 1;
        self.response(cid, status, result, invalidate)
    }

    /// Every response moves the submission queue head by one entry.
    fn response(&mut self, cid: Cid, status: Status, result: u64, invalidate: Option<u32>) -> Response {
        let mut cqe = Cqe::new(cid, status, 0).with_result(result);
        let head = self.head.as_mut().map_or(Cqe::SQHD_NONE, |head| {
            *head = if *head + 1 == self.entries { 0 } else { *head + 1 };
            *head
        });
        cqe.sqhd = head.into();
        response(&cqe, invalidate)
    }

    fn is_used(&self, cid: Cid) -> bool {
        self.used[usize::from(cid.0 / 64)] & bit(cid) != 0
    }
}

fn bit(cid: Cid) -> u64 {
    1 << (cid.0 % 64)
}

/// The response with this completion.
pub(crate) fn response(cqe: &Cqe, invalidate: Option<u32>) -> Response {
    let mut bytes = [0; Cqe::LEN];
    bytes.copy_from_slice(cqe.as_bytes());
    Response { cqe: bytes, invalidate }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cqe(response: Response) -> Cqe {
        zerocopy::FromBytes::read_from_bytes(&response.cqe).unwrap()
    }

    #[test]
    fn the_submission_queue_head_wraps_at_the_queue_size() {
        let mut flight = Flight::new(Qid(1), 3, true);
        let heads = [0; 5].map(|_| {
            flight.begin(Cid(9)).unwrap();
            cqe(flight.end(Cid(9), Status::SUCCESS, 0, None)).sqhd.get()
        });
        assert_eq!(heads, [1, 2, 0, 1, 2]);
    }

    #[test]
    fn the_submission_queue_head_is_ffff_without_flow_control() {
        let mut flight = Flight::new(Qid(1), 3, false);
        flight.begin(Cid(0xffff)).unwrap();
        assert_eq!(cqe(flight.end(Cid(0xffff), Status::SUCCESS, 0, None)).sqhd.get(), 0xffff);
    }

    #[test]
    fn a_command_id_in_flight_conflicts_until_its_response() {
        let mut flight = Flight::new(Qid(1), 4, true);
        flight.begin(Cid(7)).unwrap();
        let Err(Unfit::Conflict(conflict)) = flight.begin(Cid(7)) else { panic!("no conflict") };
        assert!(cqe(conflict).status().is(Status::COMMAND_ID_CONFLICT));
        assert_eq!(flight.in_flight(), 1);
        let _ = flight.end(Cid(7), Status::SUCCESS, 0, None);
        assert!(flight.begin(Cid(7)).is_ok());
    }

    #[test]
    fn more_commands_than_entries_violate_the_protocol() {
        let mut flight = Flight::new(Qid(5), 2, true);
        flight.begin(Cid(0)).unwrap();
        flight.begin(Cid(1)).unwrap();
        let over = flight.begin(Cid(2));
        assert!(matches!(over, Err(Unfit::Overrun(Violation::QueueOverrun { qid: 5, entries: 2 }))));
    }
}
