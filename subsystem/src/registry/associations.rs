//! The associations of one subsystem, and their Controller IDs.

use crate::{Association, Cntlid, Qid};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::RangeInclusive;

#[derive(Debug, Default)]
pub(super) struct Associations {
    by_cntlid: BTreeMap<Cntlid, Entry>,
    /// The Controller ID that was assigned last: they are assigned in a circle, so that a free one is not used again
    /// soon.
    last: u16,
}

#[derive(Debug)]
struct Entry {
    association: Arc<Association>,
    connected: BTreeSet<Qid>,
}

impl Associations {
    pub(super) fn len(&self) -> usize {
        self.by_cntlid.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_cntlid.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Association>> {
        self.by_cntlid.values().map(|entry| &entry.association)
    }

    pub(super) fn get(&self, cntlid: Cntlid) -> Option<&Arc<Association>> {
        self.by_cntlid.get(&cntlid).map(|entry| &entry.association)
    }

    /// A Controller ID of this range that is free, and was not used for as long as possible.
    pub(super) fn next_cntlid(&mut self, range: RangeInclusive<u16>) -> Option<Cntlid> {
        for _ in range.clone() {
            let next = self.last.saturating_add(1);
            self.last = if range.contains(&next) { next } else { *range.start() };
            if !self.by_cntlid.contains_key(&Cntlid(self.last)) {
                return Some(Cntlid(self.last));
            }
        }
        None
    }

    /// A new association, with its Admin queue.
    pub(super) fn insert(&mut self, association: Arc<Association>) {
        let connected = BTreeSet::from([Qid(0)]);
        let before = self.by_cntlid.insert(association.key.cntlid, Entry { association, connected });
        assert!(before.is_none(), "a controller ID was given out twice");
    }

    /// Whether the queue was free, and is now taken.
    pub(super) fn connect_queue(&mut self, cntlid: Cntlid, qid: Qid) -> bool {
        self.by_cntlid.get_mut(&cntlid).is_some_and(|entry| entry.connected.insert(qid))
    }

    /// A queue is gone; returns those that must go with it.
    pub(super) fn close_queue(&mut self, association: &Association, qid: Qid) -> Vec<Qid> {
        let cntlid = association.key.cntlid;
        let Some(entry) = self.by_cntlid.get_mut(&cntlid) else { return Vec::new() };
        if !entry.connected.remove(&qid) {
            return Vec::new();
        }
        let mut others = Vec::new();
        if qid == Qid(0) {
            entry.association.set_enabled(false);
            entry.association.close();
            others.extend(entry.connected.iter().copied());
        } else {
            entry.association.on_io_queue_closed();
        }
        if entry.connected.is_empty() {
            self.by_cntlid.remove(&cntlid);
        }
        others
    }
}
