//! Fences that the drivers of one disk hold for each other.
//!
//! Each driver publishes what its fences hold up before anybody can hear of the end of an operation without a result, and looks at
//! what the others have published before it issues anything. So whoever acts on such an end, on another driver, comes after it.

use core::time::Duration;
use nvme_proto::Nsid;
use nvmf_block::BlockRange;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How often a driver that is held up by another's fences looks whether they have fallen.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// What a fence holds up.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) ranges: Vec<(Nsid, BlockRange)>,
    /// Nobody knows what was in flight: a command of the user's, or those of another process.
    pub(super) everything: bool,
    /// A raw command of the user's was among it: reads wait, too.
    pub(super) reads: bool,
}

impl Held {
    pub(super) fn holds(&self, nsid: Nsid, range: BlockRange, changes: bool) -> bool {
        let overlaps = |&(other, fenced): &(Nsid, BlockRange)| {
            let end = |range: BlockRange| range.start.saturating_add(range.blocks);
            other == nsid && fenced.start < end(range) && range.start < end(fenced)
        };
        self.everything && (changes || self.reads) || self.ranges.iter().any(overlaps)
    }
}

/// The fences of drivers that serve one disk together, each over associations of its own: what one of them has lost, the others
/// must not overtake either.
#[derive(Debug, Clone, Default)]
pub struct SharedFences(Arc<Board>);

#[derive(Debug, Default)]
struct Board {
    /// Grows with each change.
    version: AtomicU64,
    /// What each driver's fences hold up.
    drivers: Mutex<Vec<Vec<Held>>>,
}

/// A driver's place among those that share their fences.
#[derive(Debug)]
pub(super) struct Share {
    board: Arc<Board>,
    own: usize,
    /// The version that `others` is of.
    seen: u64,
    /// What the fences of the other drivers hold up.
    pub(super) others: Vec<Held>,
    /// When to look at them again.
    pub(super) next_look: Option<Duration>,
}

impl Share {
    pub(super) fn join(with: &SharedFences) -> Self {
        let board = Arc::clone(&with.0);
        let mut drivers = board.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        drivers.push(Vec::new());
        let own = drivers.len() - 1;
        drop(drivers);
        // Whatever the board holds already is seen at the first look.
        Self { board, own, seen: u64::MAX, others: Vec::new(), next_look: None }
    }

    pub(super) fn publish(&self, held: Vec<Held>) {
        let mut drivers = self.board.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        drivers[self.own] = held;
        self.board.version.fetch_add(1, Ordering::Release);
    }

    /// Looks at what the others hold up; whether that has changed since the last look.
    pub(super) fn look(&mut self, now: Duration) -> bool {
        let has_changed = self.board.version.load(Ordering::Acquire) != self.seen;
        if has_changed {
            let drivers = self.board.drivers.lock().unwrap_or_else(PoisonError::into_inner);
            self.seen = self.board.version.load(Ordering::Acquire);
            let others = drivers.iter().enumerate().filter(|(driver, _)| *driver != self.own);
            self.others = others.flat_map(|(_, held)| held.iter().cloned()).collect();
        }
        self.next_look = (!self.others.is_empty()).then(|| now.saturating_add(LOOK_INTERVAL));
        has_changed
    }
}
