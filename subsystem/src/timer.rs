//! The Keep Alive timer, restarted by traffic: whatever the host sends on any queue counts (TBKAS).

use crate::association::{Association, ControllerType};
use crate::limits::{KEEP_ALIVE_DEFAULT_MS, KEEP_ALIVE_GRANULARITY_MS};
use crate::step::Violation;
use core::time::Duration;

/// A check that comes later than this after the deadline says nothing about the host: this side was stalled, and what
/// the host sent in that time may not have been read yet.
const LATE: Duration = Duration::from_millis(KEEP_ALIVE_GRANULARITY_MS as u64);

/// The Keep Alive Timeout that a controller has when its host asks for `kato_ms`. 0 turns the timer of an I/O
/// controller off: the standard lets a controller refuse it, but hosts use it (`nvme connect -k 0`).
pub(crate) fn keep_alive_ms(controller_type: ControllerType, kato_ms: u32) -> u32 {
    match (controller_type, kato_ms) {
        (ControllerType::Discovery, 0) => KEEP_ALIVE_DEFAULT_MS,
        (_, kato_ms) => kato_ms,
    }
}

/// The timer of one controller; its association holds the timeout. The standard starts it again whenever it runs out
/// after an interval with a command in it, so that it expires one to two timeouts after the last command. Here it is
/// always two: a host that relies on its traffic may leave nearly a whole timeout between two commands, and the second
/// is delayed on its way.
#[derive(Debug, Default)]
pub(crate) struct KeepAlive {
    /// The timer does not expire before this time.
    not_before: Duration,
    expired: Option<Violation>,
}

impl KeepAlive {
    /// When it expires if no command follows.
    pub(crate) fn deadline(&self, association: &Association) -> Option<Duration> {
        if self.expired.is_some() {
            return None;
        }
        let silence = association.keep_alive()?.saturating_mul(2);
        Some(association.last_activity().saturating_add(silence).max(self.not_before))
    }

    pub(crate) fn on_timeout(&mut self, now: Duration, association: &Association) {
        let (Some(timeout), Some(deadline)) = (association.keep_alive(), self.deadline(association)) else {
            return;
        };
        if now < deadline {
            return;
        }
        if now > deadline.saturating_add(LATE) {
            self.not_before = now.saturating_add(timeout);
        } else {
            let silent = now.saturating_sub(association.last_activity());
            self.expired = Some(Violation::KeepAliveExpired { silent, timeout });
        }
    }

    pub(crate) fn expired(&self) -> Option<Violation> {
        self.expired
    }
}
