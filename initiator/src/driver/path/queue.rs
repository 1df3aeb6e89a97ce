//! One queue: its commands in flight, whatever carries them.
//!
//! A command is done when its response came and the transport has released its memory, in whatever order. Only then is
//! its memory given back.

use crate::driver::Op;
use crate::transport::{Data, Refused, Transport};
use core::time::Duration;
use nvme_proto::{Cqe, Qid};
use nvmf_host::io::Part;
use nvmf_host::{Command, CommandId, FlowControl, Outcome, Violation};

/// Whose a command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::driver) enum Owner {
    /// The association's own.
    Association(CommandId),
    /// The user's admin command of this number.
    Admin(u32),
    /// A part of this operation.
    Operation(u32),
}

/// A command that is done with its memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Finished {
    pub(super) owner: Owner,
    pub(super) outcome: Outcome,
    /// Where its data are, until the next command is sent.
    pub(super) slot: u16,
}

/// The state of a queue's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkState {
    Connecting,
    Connected,
    Closed,
}

#[derive(Debug)]
struct Request {
    owner: Owner,
    outcome: Option<Outcome>,
}

/// A queue.
#[derive(Debug)]
pub(in crate::driver) struct Queue {
    pub(super) qid: Qid,
    pub(super) link: LinkState,
    commands: nvmf_host::Queue<u16>,
    /// By slot. A slot is in use for longer than its CID: until the memory is released.
    requests: Vec<Option<Request>>,
    free: Vec<u16>,
    /// The second command of a pair whose first was sent: nothing may come between.
    pub(super) second: Option<Second>,
}

/// The second command of a pair.
#[derive(Debug)]
pub(super) struct Second {
    pub(super) index: u32,
    pub(super) op: Op,
    pub(super) part: Part,
}

impl Queue {
    /// A queue that is being connected.
    pub(super) fn new(qid: Qid, entries: u16) -> Self {
        Self {
            qid,
            link: LinkState::Connecting,
            commands: nvmf_host::Queue::new(qid, entries, FlowControl::Sqhd),
            requests: (0..entries).map(|_| None).collect(),
            free: (0..entries).rev().collect(),
            second: None,
        }
    }

    /// What Connect agreed on.
    pub(super) fn agree(&mut self, entries: u16, flow_control: FlowControl) {
        self.commands.agree(entries, flow_control);
    }

    /// Commands that can be sent now.
    pub(super) fn room(&self) -> usize {
        match self.link == LinkState::Connected && self.second.is_none() {
            true => self.commands.room().min(self.free.len()),
            false => 0,
        }
    }

    /// Commands that it can have in flight.
    pub(super) fn capacity(&self) -> usize {
        self.commands.capacity()
    }

    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        self.commands.poll_timeout()
    }

    /// Whose command is overdue, if one is; named once.
    pub(super) fn expired(&mut self, now: Duration) -> Option<Owner> {
        let cid = self.commands.pop_expired(now)?;
        let slot = *self.commands.get(cid)?;
        self.requests[usize::from(slot)].as_ref().map(|request| request.owner)
    }

    /// Sends a command.
    ///
    /// # Errors
    /// [`Refused`]: nothing was sent, nothing is held.
    pub(super) fn send<T: Transport>(
        &mut self,
        transport: &mut T,
        owner: Owner,
        command: &Command,
        data: Data<'_, T::Region>,
        deadline: Option<Duration>,
    ) -> Result<(), Refused> {
        if self.room() == 0 {
            return Err(Refused::NoRoom);
        }
        let slot = self.free.pop().ok_or(Refused::NoRoom)?;
        let Ok(cid) = self.commands.submit(slot, deadline) else {
            self.free.push(slot);
            return Err(Refused::NoRoom);
        };
        if let Err(refused) = transport.send(self.qid, slot, cid, command, data) {
            self.commands.cancel(cid);
            self.free.push(slot);
            return Err(refused);
        }
        self.requests[usize::from(slot)] = Some(Request { owner, outcome: None });
        Ok(())
    }

    /// A response came.
    ///
    /// # Errors
    /// [`Violation`]: the association must end.
    pub(super) fn on_response<T: Transport>(
        &mut self,
        transport: &mut T,
        response: &[u8; Cqe::LEN],
        invalidated: Option<u32>,
    ) -> Result<Option<Finished>, Violation> {
        let (slot, outcome) = self.commands.on_completion(response)?;
        if let Some(request) = &mut self.requests[usize::from(slot)] {
            request.outcome = Some(outcome);
        }
        let released = transport.complete(self.qid, slot, invalidated)?;
        Ok(if released { self.on_released(slot) } else { None })
    }

    /// The memory of a command that is complete is released.
    pub(super) fn on_released(&mut self, slot: u16) -> Option<Finished> {
        let request = self.requests[usize::from(slot)].take_if(|request| request.outcome.is_some())?;
        self.free.push(slot);
        Some(Finished { owner: request.owner, outcome: request.outcome?, slot })
    }

    /// The owners of the commands in flight: their fate is unknown.
    pub(super) fn into_owners(self) -> impl Iterator<Item = Owner> {
        self.requests.into_iter().flatten().map(|request| request.owner)
    }
}
