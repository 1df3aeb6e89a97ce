//! How many I/O queues the transport can serve, and how many of them are granted.

use core::sync::atomic::{AtomicU32, Ordering};

/// The I/O queues of all controllers of a registry. Set Features (Number of Queues) takes from it; a controller level
/// reset and the end of the association give back. Hosts give up a controller of which they cannot connect every queue
/// that they were granted, so no more is granted than the transport can serve.
#[derive(Debug)]
pub struct IoQueueBudget {
    total: AtomicU32,
    granted: AtomicU32,
}

impl Default for IoQueueBudget {
    /// No limit.
    fn default() -> Self {
        Self { total: AtomicU32::new(u32::MAX), granted: AtomicU32::new(0) }
    }
}

impl IoQueueBudget {
    /// Sets how many I/O queues of the largest size the transport can serve in all. Queues that are granted already
    /// stay granted.
    pub fn set_total(&self, queues: u32) {
        self.total.store(queues, Ordering::Relaxed);
    }

    /// I/O queues that are granted now.
    #[must_use]
    pub fn granted(&self) -> u32 {
        self.granted.load(Ordering::Relaxed)
    }

    /// Takes up to `wished` queues of those that are free, and at least one: the command cannot grant none.
    pub(crate) fn grant(&self, wished: u16) -> u16 {
        let total = self.total.load(Ordering::Relaxed);
        let share = |granted: u32| {
            let free = u16::try_from(total.saturating_sub(granted)).unwrap_or(u16::MAX);
            wished.min(free).max(1)
        };
        let take = |granted: u32| granted.checked_add(share(granted).into());
        match self.granted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(before) => share(before),
            Err(_) => 1,
        }
    }

    pub(crate) fn give_back(&self, queues: u16) {
        let rest = |granted: u32| Some(granted.saturating_sub(queues.into()));
        let _ = self.granted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grant_is_what_is_free_and_at_least_one() {
        let budget = IoQueueBudget::default();
        assert_eq!(budget.grant(u16::MAX), u16::MAX);
        budget.give_back(u16::MAX);
        budget.set_total(10);
        assert_eq!([budget.grant(6), budget.grant(6), budget.grant(6)], [6, 4, 1]);
        budget.give_back(6);
        assert_eq!((budget.granted(), budget.grant(8)), (5, 5));
    }
}
