//! Fences that the drivers of one disk hold for each other.
//!
//! Each driver publishes what its fences hold up before anybody can hear of the end of an operation without a result, and looks at
//! what the others have published before it issues anything. So whoever acts on such an end, on another driver, comes after it.

use core::time::Duration;
use nvme_proto::Nsid;
use nvmf_block::BlockRange;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How often a driver that is held up by another's fences looks whether they have fallen.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// What a fence holds up.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) ranges: Vec<(Nsid, BlockRange)>,
    /// Nobody knows what was in flight: a command of the user's, or those of another process.
    pub(super) everything: bool,
    /// Somebody may have been told that nobody knows what became of a command: reads wait, too.
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
/// must not overtake either. And whether one of them has heard of a volatile write cache, which the others then flush as well.
#[derive(Debug, Clone, Default)]
pub struct SharedFences(Arc<Board>);

#[derive(Debug, Default)]
struct Board {
    /// Grows with each change.
    version: AtomicU64,
    published: Mutex<Published>,
    /// A driver has heard of a volatile write cache of the disk: a flush over any of them is one of what all have written.
    cached: AtomicBool,
}

#[derive(Debug, Default)]
struct Published {
    /// What each driver's fences hold up.
    drivers: Vec<Vec<Held>>,
    /// Operations of one of them have failed while it was not known what is fenced: reads wait for all such fences.
    failed: bool,
}

impl Published {
    fn is_anything_fenced(&self) -> bool {
        self.drivers.iter().flatten().any(|held| held.everything)
    }
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
    /// Reads wait for whatever is fenced without its blocks being known.
    pub(super) failed: bool,
    /// When to look at them again.
    pub(super) next_look: Option<Duration>,
}

impl Share {
    pub(super) fn join(with: &SharedFences) -> Self {
        let board = Arc::clone(&with.0);
        let mut published = board.published.lock().unwrap_or_else(PoisonError::into_inner);
        published.drivers.push(Vec::new());
        let own = published.drivers.len() - 1;
        drop(published);
        // Whatever the board holds already is seen at the first look.
        Self { board, own, seen: u64::MAX, others: Vec::new(), failed: false, next_look: None }
    }

    pub(super) fn on_cache(&self) {
        self.board.cached.store(true, Ordering::Release);
    }

    pub(super) fn has_cache(&self) -> bool {
        self.board.cached.load(Ordering::Acquire)
    }

    pub(super) fn publish(&self, held: Vec<Held>) {
        let mut published = self.board.published.lock().unwrap_or_else(PoisonError::into_inner);
        published.drivers[self.own] = held;
        published.failed &= published.is_anything_fenced();
        self.board.version.fetch_add(1, Ordering::Release);
    }

    /// Operations of this driver that waited have failed: whoever was told reads to learn what became of them, on any driver.
    pub(super) fn on_operations_failed(&mut self) {
        let mut published = self.board.published.lock().unwrap_or_else(PoisonError::into_inner);
        published.failed = published.is_anything_fenced();
        self.failed = published.failed;
        self.board.version.fetch_add(1, Ordering::Release);
    }

    /// Looks at what the others hold up; whether that has changed since the last look.
    pub(super) fn look(&mut self, now: Duration) -> bool {
        let has_changed = self.board.version.load(Ordering::Acquire) != self.seen;
        if has_changed {
            let published = self.board.published.lock().unwrap_or_else(PoisonError::into_inner);
            self.seen = self.board.version.load(Ordering::Acquire);
            self.failed = published.failed;
            let others = published.drivers.iter().enumerate().filter(|(driver, _)| *driver != self.own);
            self.others = others.flat_map(|(_, held)| held.iter().cloned()).collect();
        }
        self.next_look = (!self.others.is_empty()).then(|| now.saturating_add(LOOK_INTERVAL));
        has_changed
    }
}
