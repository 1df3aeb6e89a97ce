//! Operations that nobody waits for any longer.
//!
//! What of one was not sent is not sent any more: it would come late, over what its user has written since. What was sent may be
//! carried out at any time until it is answered, or its controller is lost (and what it changes is fenced then): until then nothing
//! that changes these blocks or reads them is issued, on whichever path or connection of this driver.

use super::Driver;
use super::operation::{Operation, Operations, Wait};
use crate::Effect;
use crate::transport::Transport;
use nvme_proto::Nsid;
use nvmf_block::{BlockError, BlockRange, Tag};

/// The changes among them that are in flight: mostly none.
#[derive(Debug, Default)]
pub(super) struct Withdrawn {
    changes: Vec<(u32, Nsid, BlockRange)>,
    /// Since they were looked at last.
    has_changed: bool,
}

impl Withdrawn {
    /// One of them has ended.
    pub(super) fn on_end(&mut self, index: u32) {
        let before = self.changes.len();
        self.changes.retain(|&(withdrawn, ..)| withdrawn != index);
        self.has_changed |= self.changes.len() < before;
    }
}

impl Operations {
    fn index_of(&self, tag: Tag) -> Option<u32> {
        let of_it = |operation: &Option<Operation>| operation.as_ref().is_some_and(|it| it.tag == tag);
        self.all.iter().position(of_it).map(|at| at as u32)
    }

    /// Sends nothing more of an operation that has something in flight, which ends with this error. What it may have done.
    fn withdraw(&mut self, index: u32, error: BlockError) -> Option<Effect> {
        let operation = self.get(index)?;
        if operation.withdrawn {
            return Some(operation.effect);
        }
        operation.error.get_or_insert(error);
        operation.withdrawn = true;
        operation.may_have_been_done();
        let (nsid, effect) = (operation.nsid, operation.effect);
        if let Some(range) = operation.op.range().filter(|_| operation.op.writes()) {
            self.withdrawn.changes.push((index, nsid, range));
            self.withdrawn.has_changed = true;
        }
        Some(effect)
    }
}

impl<T: Transport> Driver<T> {
    /// Nobody waits for this operation any longer: nothing more of it is sent. One that has nothing in flight ends with this error, as
    /// [`Driver::poll_ended`] tells with what it may have done; `None`. Else what it may have done: it ends when what is in flight of it
    /// has, or is lost, and the blocks that it changes are held until then.
    pub fn withdraw(&mut self, tag: Tag, error: BlockError) -> Option<Effect> {
        let index = self.operations.index_of(tag)?;
        if self.operations.get(index)?.outstanding == 0 {
            self.operations.end(index, Err(error));
            return None;
        }
        let effect = self.operations.withdraw(index, error);
        // Before anybody hears of it.
        self.hold_withdrawn();
        effect
    }

    /// Holds what is in flight of withdrawn operations, and no more.
    pub(super) fn hold_withdrawn(&mut self) {
        let withdrawn = &mut self.operations.withdrawn;
        if core::mem::take(&mut withdrawn.has_changed) {
            self.fences.hold(withdrawn.changes.iter().map(|&(_, nsid, range)| (nsid, range)).collect());
            self.operations.resume(Wait::Fence);
        }
    }
}
