//! The end of a job whose disk does not answer.

use super::Worker;
use super::nanoseconds;
use crate::engine::Engine;

/// Longest wait for outstanding operations after an interrupt, in nanoseconds.
const STOP_TIMEOUT: u64 = 2_000_000_000;

impl<E: Engine, M> Worker<'_, E, M> {
    /// Whether what is outstanding has been waited for long enough: after an interrupt, and after `runtime` for
    /// `drain_timeout`. What was written is read back for as long as something comes.
    pub(super) fn waited_enough(&self, now: u64) -> bool {
        let drain = || nanoseconds(self.options.drain_timeout);
        let (since, most) = match (self.stopped_at, self.parts.source.deadline_passed(now)) {
            (Some(at), _) => (at, STOP_TIMEOUT),
            (None, Some(at)) if self.parts.source.reads_back() => (at.max(self.last_end), drain()),
            (None, Some(at)) => (at, drain()),
            (None, None) => return false,
        };
        now.saturating_sub(since) > most
    }

    /// Ends the job with what is outstanding, and returns how much that is.
    pub(super) fn give_up(&mut self, now: u64) -> u64 {
        let outstanding = self.in_flight() as u64;
        if outstanding > 0 {
            self.parts.source.stop(now);
            let mut is_free = vec![false; self.slots.len()];
            self.free.iter().for_each(|&index| is_free[index as usize] = true);
            for (slot, _) in self.slots.iter().zip(is_free).filter(|(_, is_free)| !is_free) {
                if let Some(operation) = slot.operation {
                    self.parts.record.given_up(operation.direction, slot.due, now);
                }
            }
        }
        outstanding
    }
}
