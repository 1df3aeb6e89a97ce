//! The syncs of a device, one at a time.

/// The operations of one worker on one device that wait for an `fdatasync`.
///
/// The kernel reports a failed writeback once per open file: of two syncs that overlap, one may be told of success
/// although the other's loss is also its own. So one sync at a time is in flight. What comes meanwhile shares the next
/// one, because a sync covers only what was completed before it began.
#[derive(Debug, Default)]
pub(super) struct Syncs {
    /// Those that the sync in flight is for. It was pushed under the first.
    running: Vec<usize>,
    waiting: Vec<usize>,
}

impl Syncs {
    /// An operation needs a sync. `true`: one is to be pushed for it now.
    pub(super) fn join(&mut self, index: usize) -> bool {
        let first = self.running.is_empty();
        if first { &mut self.running } else { &mut self.waiting }.push(index);
        first
    }

    /// The sync in flight has ended: takes the operations that it was for, one by one.
    pub(super) fn take(&mut self) -> Option<usize> {
        self.running.pop()
    }

    /// Begins the next sync, once all of the last are taken. Gives the operation that it is to be pushed under.
    pub(super) fn begin(&mut self) -> Option<usize> {
        debug_assert!(self.running.is_empty(), "the last sync is not settled");
        core::mem::swap(&mut self.running, &mut self.waiting);
        self.running.first().copied()
    }

    /// The operations that have nothing in the ring.
    pub(super) fn unpushed(&self) -> impl Iterator<Item = usize> {
        self.running.iter().skip(1).chain(&self.waiting).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(syncs: &mut Syncs) -> Vec<usize> {
        let mut taken: Vec<_> = core::iter::from_fn(|| syncs.take()).collect();
        taken.sort_unstable();
        taken
    }

    #[test]
    fn sync_covers_only_those_that_came_before_it_began() {
        let mut syncs = Syncs::default();
        assert!(syncs.join(3));
        assert!(!syncs.join(5) && !syncs.join(1), "one at a time");
        assert_eq!(syncs.unpushed().collect::<Vec<_>>(), [5, 1]);
        assert_eq!(taken(&mut syncs), [3]);
        assert_eq!(syncs.begin(), Some(5));
        assert!(!syncs.join(3));
        assert_eq!(syncs.unpushed().collect::<Vec<_>>(), [1, 3]);
        assert_eq!(taken(&mut syncs), [1, 5]);
        assert_eq!(syncs.begin(), Some(3));
        assert_eq!(taken(&mut syncs), [3]);
        assert_eq!(syncs.begin(), None);
        assert!(syncs.join(7));
    }
}
