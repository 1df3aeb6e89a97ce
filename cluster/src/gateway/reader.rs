//! Reads of an object that is looked at again and again: one at a time, and none that could show less than is known.

use crate::OpId;
use core::time::Duration;

#[derive(Debug, Default)]
pub(super) struct Reader {
    /// The version that was used last.
    pub(super) version: Option<u64>,
    /// The read under way.
    pub(super) op: Option<OpId>,
    /// When the next one is due.
    pub(super) due: Duration,
    /// A read that was sent before this may not show what was written since.
    pub(super) floor: OpId,
    /// The read that was used last.
    pub(super) used: OpId,
}

impl Reader {
    /// Read as soon as possible.
    pub(super) fn hint(&mut self) {
        self.due = Duration::ZERO;
    }

    /// Read no later than this.
    pub(super) fn hint_at(&mut self, at: Duration) {
        self.due = self.due.min(at);
    }

    /// A read is wanted that was sent no earlier than this.
    pub(super) fn hint_for(&mut self, from: OpId) {
        if self.op.is_none_or(|op| op < from) {
            self.hint();
        }
    }

    /// What was written is known by its reply; reads that were sent before say nothing of it.
    pub(super) fn on_written(&mut self, next: OpId) {
        self.floor = next;
        self.version = None;
    }

    /// A read has ended. Gives whether what it shows may be used.
    pub(super) fn on_reply(&mut self, op: OpId, again_at: Duration) -> bool {
        if self.op != Some(op) {
            return false;
        }
        self.op = None;
        if op < self.floor {
            self.hint();
            return false;
        }
        // A hint that came while the read was under way may be of a change that it does not show.
        if self.due > Duration::ZERO {
            self.due = again_at;
        }
        self.used = op;
        true
    }

    /// A read has failed.
    pub(super) fn on_failure(&mut self, again_at: Duration) {
        self.op = None;
        self.due = again_at;
    }
}
