//! How often what a controller announces is looked into.

use crate::limits;
use core::time::Duration;

/// I/O waits while an announced change of namespaces is looked into. A controller that announces without end would keep it waiting
/// for ever, so after many looks in a row there is a pause. What I/O meets in a pause nobody has looked at, it may be another disk: so
/// nothing else brings one about, however slowly the controller answers.
#[derive(Debug, Default)]
pub(super) struct Pace {
    in_a_row: u32,
    is_looking: bool,
    /// When the last look was over.
    over: Duration,
}

impl Pace {
    /// Begins a look.
    ///
    /// # Errors
    /// When it may begin instead.
    pub(super) fn begin(&mut self, now: Duration) -> Result<(), Duration> {
        let pause_ends = self.over.saturating_add(limits::RESCAN_DELAY);
        let is_pause = self.in_a_row == limits::LOOKS_IN_A_ROW_MAX;
        let row_ends = if is_pause { pause_ends } else { self.over.saturating_add(limits::LOOKS_APART) };
        if row_ends <= now {
            self.in_a_row = 0;
        } else if is_pause {
            return Err(pause_ends);
        }
        self.in_a_row += 1;
        self.is_looking = true;
        Ok(())
    }

    /// The look under way is over, if one is.
    pub(super) fn end(&mut self, now: Duration) {
        if core::mem::take(&mut self.is_looking) {
            self.over = now;
        }
    }
}
