//! The operations that a disk has, by when it got them: how many, and how old the oldest is, without a list.
//!
//! Time is cut into pieces of about half a second. An operation is counted in the piece in which it began. The pieces
//! stand in a ring; one that is reused while operations are counted in it keeps its first time until they have ended,
//! so an operation may outlast the ring.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

/// Pieces in the ring.
const PIECES: usize = 32;
/// The length of a piece: 2^19 µs.
const SHIFT: u32 = 19;

/// Operations of one device that one worker has begun. Only that worker may change it; anyone reads.
#[derive(Debug, Default)]
pub struct Pending {
    counts: [AtomicU32; PIECES],
    /// Since when the count of a piece is not zero, in pieces.
    since: [AtomicU32; PIECES],
}

/// What a disk has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InFlight {
    /// Operations.
    pub operations: u64,
    /// How old the oldest is, at least; it is up to half a second older.
    pub oldest: Duration,
}

#[expect(clippy::cast_possible_truncation, reason = "32 bits of pieces are seventy years")]
fn piece(us: u64) -> u32 {
    (us >> SHIFT) as u32
}

fn place(piece: u32) -> usize {
    piece as usize % PIECES
}

impl Pending {
    /// An operation begins, at that time in microseconds.
    pub fn begin(&self, now_us: u64) {
        let piece = piece(now_us);
        let at = place(piece);
        let count = self.counts[at].load(Ordering::Relaxed);
        if count == 0 {
            self.since[at].store(piece, Ordering::Relaxed);
        }
        self.counts[at].store(count.wrapping_add(1), Ordering::Relaxed);
    }

    /// An operation that began at that time ends.
    pub fn end(&self, begun_us: u64) {
        let count = &self.counts[place(piece(begun_us))];
        count.store(count.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
    }

    /// What there is now.
    #[must_use]
    pub fn read(&self, now_us: u64) -> InFlight {
        let mut all = InFlight::default();
        for (count, since) in self.counts.iter().zip(&self.since) {
            let count = count.load(Ordering::Relaxed);
            if count == 0 {
                continue;
            }
            let until_us = (u64::from(since.load(Ordering::Relaxed)) + 1) << SHIFT;
            all.operations += u64::from(count);
            all.oldest = all.oldest.max(Duration::from_micros(now_us.saturating_sub(until_us)));
        }
        all
    }
}

impl InFlight {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { operations: self.operations + other.operations, oldest: self.oldest.max(other.oldest) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn oldest_operation_outlasts_the_ring_under_load() {
        let pending = Pending::default();
        let stuck = SECOND;
        pending.begin(stuck);
        for at in 1..600 {
            pending.begin(at * SECOND / 10);
            pending.begin(at * SECOND / 10 + 7);
            let read = pending.read(at * SECOND / 10);
            assert_eq!(read.operations, 3);
            pending.end(at * SECOND / 10);
            pending.end(at * SECOND / 10 + 7);
        }
        let read = pending.read(60 * SECOND);
        assert_eq!(read.operations, 1);
        assert!((58.0..=59.0).contains(&read.oldest.as_secs_f64()), "{read:?}");
        pending.end(stuck);
        assert_eq!(pending.read(60 * SECOND), InFlight::default());
    }
}
