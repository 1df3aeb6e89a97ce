//! A queue pair: from its first capsule, which must be a Connect, to its end.

use crate::{Admission, Association, ConnectRequest, Notice, Qid, Step, Ticket};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::time::Duration;
use nvmf_block::BlockError;

/// What the transport knows of a connection before its first capsule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// The port that it came in through ([`crate::Port::id`]).
    pub port: u16,
    /// Queue ID that the connection request named (RDMA CM private data), where the transport has such.
    pub qid: Option<u16>,
    /// Controller ID that the connection request named; 0 (older hosts) says nothing.
    pub cntlid: Option<u16>,
    /// Capsules that the transport has room for: a Connect may not ask for a larger queue.
    pub entries: u16,
}

/// One queue: what it is becomes known with its Connect. It lives on one worker, with its connection.
///
/// After every `on_*`, and after [`Queue::on_timeout`], drain [`Queue::poll_step`] before the next.
#[derive(Debug)]
pub struct Queue {}

impl Queue {
    /// A connection without a Connect yet. It must come within [`crate::limits::CONNECT_TIMEOUT`].
    #[must_use]
    pub fn new(_now: Duration, _link: Link) -> Self {
        unimplemented!()
    }

    /// A capsule came in: the 64 bytes of the submission queue entry, and how many bytes of data follow it in the capsule.
    /// (A capsule with fewer bytes is [`crate::Violation::ShortCapsule`], which the transport finds itself.)
    pub fn on_capsule(&mut self, _now: Duration, _sqe: &[u8; 64], _in_capsule_len: usize) -> Step {
        unimplemented!()
    }

    /// The parameters of [`crate::Work::Parameters`] are there: exactly the bytes of the transfer.
    pub fn on_parameters(&mut self, _now: Duration, _ticket: Ticket, _parameters: &[u8]) -> Step {
        unimplemented!()
    }

    /// The registry's answer to [`Step::Connect`].
    pub fn on_admission(
        &mut self,
        _now: Duration,
        _request: Box<ConnectRequest>,
        _admission: Admission,
    ) -> Step {
        unimplemented!()
    }

    /// The work and the transfer of a command are done, or failed on the device.
    pub fn on_done(&mut self, _now: Duration, _ticket: Ticket, _result: Result<(), BlockError>) -> Step {
        unimplemented!()
    }

    /// The registry has news.
    pub fn on_notice(&mut self, _now: Duration, _notice: &Notice) {
        unimplemented!()
    }

    /// What the queue wants done that no capsule asked for: event completions, closes. `None` when there is nothing.
    pub fn poll_step(&mut self, _now: Duration) -> Option<Step> {
        unimplemented!()
    }

    /// When [`Queue::on_timeout`] is to be called, on the clock of `now`. May move with every call.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        unimplemented!()
    }

    /// A time came. Too early does no harm.
    pub fn on_timeout(&mut self, _now: Duration) {
        unimplemented!()
    }

    /// The association, once connected.
    #[must_use]
    pub fn association(&self) -> Option<&Arc<Association>> {
        unimplemented!()
    }

    /// The Queue ID, once connected; 0 is the Admin queue.
    #[must_use]
    pub fn qid(&self) -> Option<Qid> {
        unimplemented!()
    }

    /// Commands that have a ticket out, or are held.
    #[must_use]
    pub fn in_flight(&self) -> u16 {
        unimplemented!()
    }
}
