//! The contents that each block may have.
//!
//! The history of a block is a list of entries. Each entry is the set of contents that the block may have had: the
//! first is the initial state, each other one is a write. At most one write of a block is in flight at a time; it is
//! the last entry. Content 0 is zeroes.

use core::fmt::Display;
use core::ops::Range;
use std::collections::BTreeSet;

#[derive(Debug, Clone)]
struct Block {
    past: Vec<BTreeSet<u64>>,
    /// Whether the write of the last entry is in flight.
    writing: bool,
    /// First entry that the block may have after a power cut.
    durable_from: usize,
}

/// The state of the blocks of one host.
#[derive(Debug, Clone)]
pub(super) struct Oracle {
    blocks: Vec<Block>,
    crashes: u32,
}

/// The writes that a flush makes durable when it completes.
#[derive(Debug, Clone)]
pub(super) struct FlushPoint {
    crashes: u32,
    /// The first block of its namespace.
    first: usize,
    /// By block: the last completed entry.
    ended: Vec<usize>,
}

impl Oracle {
    /// An oracle for blocks of zeroes.
    pub(super) fn new(blocks: usize) -> Self {
        let block = Block { past: vec![BTreeSet::from([0])], writing: false, durable_from: 0 };
        Self { blocks: vec![block; blocks], crashes: 0 }
    }

    /// Starts a write of this content; a deallocation, with content 0, may also leave the previous contents.
    pub(super) fn begin(&mut self, block: usize, content: u64, hint: bool) {
        let block = &mut self.blocks[block];
        assert!(!block.writing, "one write of a block at a time");
        let mut contents = BTreeSet::from([content]);
        if hint && let Some(last) = block.past.last() {
            contents.extend(last);
        }
        block.past.push(contents);
        block.writing = true;
    }

    /// Starts a Copy of what this block has now to another one.
    pub(super) fn begin_copy(&mut self, block: usize, source: usize) {
        let contents = self.blocks[source].past.last().cloned().unwrap_or_default();
        let block = &mut self.blocks[block];
        assert!(!block.writing, "one write of a block at a time");
        block.past.push(contents);
        block.writing = true;
    }

    /// A Copy is under way, which may not have begun before the power was cut: it copies what the source has now.
    pub(super) fn copies_again(&mut self, block: usize, source: usize) {
        let contents = self.blocks[source].past.last().cloned().unwrap_or_default();
        if let Some(written) = self.blocks[block].past.last_mut() {
            written.extend(contents);
        }
    }

    /// Completes a write that succeeded. `begun` is the number of power cuts before its start. If there has been one
    /// since, the response may have been in flight at the cut, and the write may be lost unless it had FUA.
    pub(super) fn end(&mut self, block: usize, fua: bool, begun: u32) {
        let block = &mut self.blocks[block];
        block.writing = false;
        if fua {
            block.durable_from = block.past.len() - 1;
        } else if begun != self.crashes {
            // Two entries: the current contents, which a read may narrow down, and the durable ones, which it may not.
            let any: BTreeSet<u64> = block.past.iter().flatten().copied().collect();
            block.past = vec![any.clone(), any];
            block.durable_from = 0;
        }
    }

    /// The write under way failed: the block holds what it held before or what was written, and nothing is durable.
    pub(super) fn fail(&mut self, block: usize) {
        let block = &mut self.blocks[block];
        block.writing = false;
        if let [.., before, written] = &mut block.past[..] {
            written.extend(before.iter());
        }
    }

    /// Checks the content of a read without concurrent writes. A read that started before the last power cut may return
    /// earlier contents.
    pub(super) fn read(&mut self, block: usize, content: u64, begun: u32, what: &dyn Display) {
        let past = &mut self.blocks[block].past;
        let Some(now) = past.last_mut() else { return };
        assert!(
            now.contains(&content),
            "{what}: block {block} has content {content}, expected one of {now:?}"
        );
        if begun != self.crashes {
            return;
        }
        // The block has this content until the next write or power cut.
        *now = BTreeSet::from([content]);
    }

    /// Checks the result of a compare with these contents, by block, without concurrent writes.
    pub(super) fn compared(&mut self, with: &[(usize, u64)], equal: bool, begun: u32, what: &dyn Display) {
        if equal {
            with.iter().for_each(|&(block, content)| self.read(block, content, begun, what));
        } else if begun == self.crashes {
            let certain = |&(block, content): &(usize, u64)| {
                self.blocks[block].past.last().is_some_and(|now| *now == BTreeSet::from([content]))
            };
            assert!(!with.iter().all(certain), "{what}: all blocks are equal to the compared contents");
        }
    }

    /// Cuts the power: each block has the contents of any entry since the last durable one. Writes in flight will be
    /// repeated.
    pub(super) fn crash(&mut self) {
        self.crashes += 1;
        for block in &mut self.blocks {
            let left = block.past[block.durable_from..].iter().flatten().copied().collect();
            let again = block.past.pop().filter(|_| block.writing);
            block.past = vec![left];
            block.past.extend(again);
            block.durable_from = 0;
        }
    }

    /// Power cuts so far.
    pub(super) fn crashes(&self) -> u32 {
        self.crashes
    }

    /// Starts a flush of these blocks.
    pub(super) fn flush_begins(&self, blocks: Range<usize>) -> FlushPoint {
        let first = blocks.start;
        let ended = |block: &Block| block.past.len() - 1 - usize::from(block.writing);
        FlushPoint { crashes: self.crashes, first, ended: self.blocks[blocks].iter().map(ended).collect() }
    }

    /// Completes a flush that succeeded: writes that were complete at its start are durable. If the power was cut in
    /// between, it guarantees nothing about earlier writes (SEMANTICS.md, "Connection loss").
    pub(super) fn flushed(&mut self, point: &FlushPoint) {
        if point.crashes == self.crashes {
            for (block, &ended) in self.blocks[point.first..].iter_mut().zip(&point.ended) {
                block.durable_from = block.durable_from.max(ended);
            }
        }
    }
}
