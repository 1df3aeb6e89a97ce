//! How often what a controller announces is looked into.

use crate::limits;
use core::time::Duration;

/// I/O waits while an announced change is looked into. A controller that announces without end would keep it waiting for ever,
/// so after some looks in a row, or some time that they took, there is a pause.
#[derive(Debug, Default)]
pub(super) struct Pace {
    in_a_row: u32,
    /// How long those took, all together.
    taken: Duration,
    /// When the one under way was begun.
    begun: Option<Duration>,
    /// When the last one was over.
    over: Duration,
}

impl Pace {
    /// Begins a look.
    ///
    /// # Errors
    /// When it may begin instead.
    pub(super) fn begin(&mut self, now: Duration) -> Result<(), Duration> {
        let pause_ends = self.over.saturating_add(limits::RESCAN_DELAY);
        if pause_ends <= now {
            (self.in_a_row, self.taken) = (0, Duration::ZERO);
        }
        if self.in_a_row == limits::LOOKS_IN_A_ROW_MAX || self.taken >= limits::LOOKS_TIME_MAX {
            return Err(pause_ends);
        }
        self.in_a_row += 1;
        self.begun = Some(now);
        Ok(())
    }

    pub(super) fn end(&mut self, now: Duration) {
        if let Some(begun) = self.begun.take() {
            self.taken = self.taken.saturating_add(now.saturating_sub(begun));
        }
        self.over = now;
    }
}
