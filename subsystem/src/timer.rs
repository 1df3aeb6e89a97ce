//! The Keep Alive timer, fed by traffic: whatever the host sends on any queue counts (TBKAS).

use crate::association::Association;
use crate::limits::KEEP_ALIVE_GRANULARITY_100MS;
use crate::step::Violation;
use core::time::Duration;

/// One step of the timeout (KAS), in milliseconds.
const GRANULARITY_MS: u32 = KEEP_ALIVE_GRANULARITY_100MS as u32 * 100;

/// The timer of one controller.
#[derive(Debug)]
pub(crate) struct KeepAlive {
    /// Rounded up to the granularity; 0 is off.
    timeout_ms: u32,
    expired: Option<Violation>,
}

impl KeepAlive {
    /// With KATO as the host gave it.
    pub(crate) fn new(kato_ms: u32) -> Self {
        let mut timer = Self { timeout_ms: 0, expired: None };
        timer.set(kato_ms);
        timer
    }

    pub(crate) fn set(&mut self, kato_ms: u32) {
        self.timeout_ms = kato_ms.checked_next_multiple_of(GRANULARITY_MS).unwrap_or(u32::MAX);
    }

    pub(crate) fn timeout_ms(&self) -> u32 {
        self.timeout_ms
    }

    fn timeout(&self) -> Option<Duration> {
        (self.timeout_ms > 0).then(|| Duration::from_millis(self.timeout_ms.into()))
    }

    /// When it runs out if nothing more comes.
    pub(crate) fn deadline(&self, association: &Association) -> Option<Duration> {
        if self.expired.is_some() {
            return None;
        }
        Some(association.last_activity().saturating_add(self.timeout()?))
    }

    pub(crate) fn on_timeout(&mut self, now: Duration, association: &Association) {
        let (Some(timeout), Some(deadline)) = (self.timeout(), self.deadline(association)) else { return };
        if now >= deadline {
            let silent = now.saturating_sub(association.last_activity());
            self.expired = Some(Violation::KeepAliveExpired { silent, timeout });
        }
    }

    pub(crate) fn expired(&self) -> Option<Violation> {
        self.expired
    }
}
