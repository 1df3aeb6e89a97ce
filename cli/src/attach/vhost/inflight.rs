//! Which requests of a virtqueue are under way, in memory that the frontend keeps: whoever serves the queue next goes on with
//! them (vhost-user, "Inflight I/O tracking", split virtqueues).
//!
//! A server is killed between any two of its steps, so their order counts. A request is marked before anything is done for it.
//! When it is over it is first put at the head of the list of used ones, then into the used ring, and unmarked last: if the
//! ring is ahead of what is written here, the head of the list is over.

use anyhow::{Context, Result, ensure};
use nvmf_memory::{Memory, PAGE};
use std::fs::File;
use std::sync::Arc;

/// Offsets in a queue's part, and bytes of its header and of an entry.
const VERSION: usize = 8;
const ENTRIES: usize = 10;
const LAST_BATCH_HEAD: usize = 12;
const USED_IDX: usize = 14;
const HEADER_LEN: usize = 16;
const ENTRY_LEN: usize = 16;
const NEXT: usize = 6;
const COUNTER: usize = 8;
/// Parts begin at multiples of this.
const ALIGNMENT: usize = 64;
/// The version of the format.
const SPLIT_VERSION: u16 = 1;

/// Bytes for a queue of this many entries.
fn part_len(entries: u16) -> usize {
    (HEADER_LEN + usize::from(entries) * ENTRY_LEN).next_multiple_of(ALIGNMENT)
}

/// Bytes for so many queues: whole pages.
pub(super) fn len(queues: u16, entries: u16) -> usize {
    (usize::from(queues) * part_len(entries)).next_multiple_of(PAGE)
}

/// The memory of all queues.
#[derive(Debug, Clone)]
pub(super) struct Area {
    memory: Memory,
    queues: u16,
    entries: u16,
}

impl Area {
    pub(super) fn map(file: &File, offset: u64, queues: u16, entries: u16) -> Result<Self> {
        ensure!(queues > 0 && entries > 0, "in-flight memory for no queue");
        let memory =
            Memory::map(file, offset, len(queues, entries)).context("cannot map the in-flight memory")?;
        Ok(Self { memory, queues, entries })
    }

    /// The part of a queue with this many entries; `None` where there is none.
    pub(super) fn queue(&self, index: u16, size: u16) -> Option<Inflight> {
        (index < self.queues && size <= self.entries).then(|| Inflight {
            memory: Arc::new(self.memory.clone()),
            start: usize::from(index) * part_len(self.entries),
            entries: self.entries,
            counter: 0,
        })
    }
}

/// The part of one queue.
#[derive(Debug)]
pub(super) struct Inflight {
    memory: Arc<Memory>,
    start: usize,
    entries: u16,
    /// The number of the last request, by which they are ordered.
    counter: u64,
}

impl Inflight {
    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        self.memory.read(self.start + at, &mut bytes);
        bytes
    }

    fn word(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.get(at))
    }

    fn set_word(&self, at: usize, value: u16) {
        self.memory.write(self.start + at, &value.to_le_bytes());
    }

    fn entry(head: u16) -> usize {
        HEADER_LEN + usize::from(head) * ENTRY_LEN
    }

    fn mark(&self, head: u16, is_inflight: bool) {
        self.memory.write(self.start + Self::entry(head), &[is_inflight.into()]);
    }

    /// What the server before left under way, in the order in which it was taken; `used_idx` is that of the used ring. `None`
    /// when no server has had the queue.
    pub(super) fn resume(&mut self, used_idx: u16) -> Option<Vec<u16>> {
        if self.word(VERSION) != SPLIT_VERSION {
            self.set_word(ENTRIES, self.entries);
            self.set_word(USED_IDX, used_idx);
            self.set_word(VERSION, SPLIT_VERSION);
            return None;
        }
        // Those that were put into the ring and not unmarked.
        let ahead = used_idx.wrapping_sub(self.word(USED_IDX));
        let mut head = self.word(LAST_BATCH_HEAD);
        for _ in 0..ahead.min(self.entries) {
            if head >= self.entries {
                break;
            }
            self.mark(head, false);
            head = self.word(Self::entry(head) + NEXT);
        }
        self.set_word(USED_IDX, used_idx);
        let counter = |head: u16| u64::from_le_bytes(self.get(Self::entry(head) + COUNTER));
        let is_inflight = |head: &u16| self.get(Self::entry(*head)) == [1_u8];
        let mut left: Vec<_> = (0..self.entries).filter(is_inflight).collect();
        left.sort_by_key(|head| counter(*head));
        self.counter = left.last().map_or(0, |head| counter(*head));
        Some(left)
    }

    /// A request was taken from the available ring.
    pub(super) fn begin(&mut self, head: u16) {
        self.counter = self.counter.wrapping_add(1);
        self.memory.write(self.start + Self::entry(head) + COUNTER, &self.counter.to_le_bytes());
        self.mark(head, true);
    }

    /// A request is about to be put into the used ring.
    pub(super) fn ending(&self, head: u16) {
        self.set_word(Self::entry(head) + NEXT, self.word(LAST_BATCH_HEAD));
        self.set_word(LAST_BATCH_HEAD, head);
    }

    /// It is there, and the ring's index is this one now.
    pub(super) fn ended(&self, head: u16, used_idx: u16) {
        self.mark(head, false);
        self.set_word(USED_IDX, used_idx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area() -> Area {
        Area { memory: Memory::alloc(len(2, 128)).unwrap(), queues: 2, entries: 128 }
    }

    #[test]
    fn next_server_goes_on_with_what_was_under_way() {
        let area = area();
        let mut first = area.queue(1, 128).unwrap();
        assert_eq!(first.resume(7), None, "no server has had it");
        for head in [9, 3, 5, 127] {
            first.begin(head);
        }
        first.ending(3);
        first.ended(3, 8);
        drop(first);
        let mut second = area.queue(1, 128).unwrap();
        assert_eq!(second.resume(8), Some(vec![9, 5, 127]), "in their order");
        second.begin(3);
        drop(second);
        assert_eq!(area.queue(1, 128).unwrap().resume(8), Some(vec![9, 5, 127, 3]));
        assert_eq!(area.queue(0, 128).unwrap().resume(0), None, "the other queue has its own part");
        assert!(area.queue(2, 128).is_none() && area.queue(0, 256).is_none());
    }

    #[test]
    fn server_that_dies_at_any_step_of_an_end_completes_once() {
        for steps in 0..3 {
            let area = area();
            let mut first = area.queue(0, 64).unwrap();
            first.resume(0);
            first.begin(10);
            first.begin(11);
            let mut used_idx = 0;
            if steps > 0 {
                first.ending(10);
            }
            if steps > 1 {
                used_idx = 1;
            }
            drop(first);
            let left = area.queue(0, 64).unwrap().resume(used_idx);
            let expected = if steps > 1 { vec![11] } else { vec![10, 11] };
            assert_eq!(left, Some(expected), "killed after {steps} steps");
        }
    }

    #[test]
    fn garbage_is_no_panic() {
        let area = area();
        area.memory.fill(0, area.memory.len(), 0xff);
        let mut queue = area.queue(0, 128).unwrap();
        assert_eq!(queue.resume(0), None, "another version");
        queue.set_word(LAST_BATCH_HEAD, 0xffff);
        assert!(queue.resume(99).is_some());
    }
}
