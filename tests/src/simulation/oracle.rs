//! What each block may hold.
//!
//! A block's past is a list of entries, each a set of the contents of which it left one: the first is where we came in, each other one a write. At
//! most one write of a block is under way at any time; it is the last entry then. Content 0 is zeroes.

use core::fmt::Display;
use std::collections::BTreeSet;

#[derive(Debug, Clone)]
struct Block {
    past: Vec<BTreeSet<u64>>,
    /// The last entry is under way.
    writing: bool,
    /// A power cut leaves one of the entries from here on.
    durable_from: usize,
}

/// The blocks of one host.
#[derive(Debug, Clone)]
pub(super) struct Oracle {
    blocks: Vec<Block>,
    crashes: u32,
}

/// What a flush that begins now proves when it ends.
#[derive(Debug, Clone)]
pub(super) struct FlushPoint {
    crashes: u32,
    /// By block: the last entry that had ended.
    ended: Vec<usize>,
}

impl Oracle {
    /// Blocks of zeroes.
    pub(super) fn new(blocks: usize) -> Self {
        let block = Block { past: vec![BTreeSet::from([0])], writing: false, durable_from: 0 };
        Self { blocks: vec![block; blocks], crashes: 0 }
    }

    /// A write of this content begins; a deallocation, with content 0, may leave what was there, too.
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

    /// It ended well. If it began before the last power cut (`begun` counts those before it), its answer may have been on its way when
    /// the power was cut, and the cut may have taken it, unless it was forced.
    pub(super) fn end(&mut self, block: usize, fua: bool, begun: u32) {
        let block = &mut self.blocks[block];
        block.writing = false;
        if fua {
            block.durable_from = block.past.len() - 1;
        } else if begun != self.crashes {
            // Twice: what is there now, which a read may tell, and what is durable, which it may not.
            let any: BTreeSet<u64> = block.past.iter().flatten().copied().collect();
            block.past = vec![any.clone(), any];
            block.durable_from = 0;
        }
    }

    /// A read gave this content, while no write was under way. One that began before the last power cut may tell of the time before.
    pub(super) fn read(&mut self, block: usize, content: u64, begun: u32, what: &dyn Display) {
        let past = &mut self.blocks[block].past;
        let Some(now) = past.last_mut() else { return };
        assert!(now.contains(&content), "{what}: block {block} holds {content}, and may hold {now:?}");
        if begun != self.crashes {
            return;
        }
        // It holds this until it is written, or the power is cut.
        *now = BTreeSet::from([content]);
    }

    /// A compare with these contents, by block, found them equal or not, while no write of the blocks was under way.
    pub(super) fn compared(&mut self, with: &[(usize, u64)], equal: bool, begun: u32, what: &dyn Display) {
        if equal {
            with.iter().for_each(|&(block, content)| self.read(block, content, begun, what));
        } else if begun == self.crashes {
            let certain = |&(block, content): &(usize, u64)| {
                self.blocks[block].past.last().is_some_and(|now| *now == BTreeSet::from([content]))
            };
            assert!(!with.iter().all(certain), "{what}: every block holds what it was compared with");
        }
    }

    /// The power is cut: of every block one of the entries that a cut may leave is there. A write under way will be carried out again.
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

    /// A flush begins.
    pub(super) fn flush_begins(&self) -> FlushPoint {
        let ended =
            self.blocks.iter().map(|block| block.past.len() - 1 - usize::from(block.writing)).collect();
        FlushPoint { crashes: self.crashes, ended }
    }

    /// It ended well: what had ended when it began is durable. After a power cut in between it proves nothing of what was before
    /// (SEMANTICS.md, "Connection loss").
    pub(super) fn flushed(&mut self, point: &FlushPoint) {
        if point.crashes == self.crashes {
            for (block, &ended) in self.blocks.iter_mut().zip(&point.ended) {
                block.durable_from = block.durable_from.max(ended);
            }
        }
    }
}
