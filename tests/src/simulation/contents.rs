//! A host's memory, and what its blocks hold: whose they are, and a content number, over and over.

use super::contest::NOBODYS;
use super::host::{BLOCK, Host, REGION, SLOT_LEN, SLOTS};
use super::network::Network;
use core::ops::Range;
use nvmf_block::Buffer;

/// Byte that fills the rest of a slot after an operation's buffer.
const GUARD: u8 = 0x6b;
/// Places that a content number tells apart.
const PLACES: u64 = 128;

/// A content of a block: zeroes, or one that is written nowhere else and at no other time.
pub(super) fn content(number: u64, block: usize) -> u64 {
    if number == 0 { 0 } else { number * PLACES + block as u64 }
}

/// A content that is never written.
pub(super) fn another(content: u64) -> u64 {
    content + 1_000_000 * PLACES
}

impl<N: Network> Host<N> {
    /// The memory of an operation on so many blocks, and the bytes behind it, which must not change.
    pub(super) fn buffer(&self, slot: usize, blocks: usize) -> Buffer {
        let buffer = Buffer { region: REGION, offset: slot * SLOT_LEN, len: blocks * BLOCK };
        self.memory.fill(buffer.offset + buffer.len, SLOT_LEN - buffer.len, GUARD);
        buffer
    }

    /// Checks those bytes.
    pub(super) fn check_guard(&self, slot: usize, blocks: usize, what: &str) {
        let mut guard = vec![0; SLOT_LEN - blocks * BLOCK];
        self.memory.read(slot * SLOT_LEN + blocks * BLOCK, &mut guard);
        assert!(guard.iter().all(|&byte| byte == GUARD), "{what}: bytes after its buffer changed");
    }

    /// Makes the buffer something that no block holds.
    pub(super) fn spoil(&self, buffer: Buffer) {
        self.memory.fill(buffer.offset, buffer.len, 0xee);
    }

    /// Fills a slot's memory with these contents.
    pub(super) fn fill(&self, slot: usize, contents: &[u64]) {
        for (at, &content) in contents.iter().enumerate() {
            let offset = slot * SLOT_LEN + at * BLOCK;
            match content {
                0 => self.memory.fill(offset, BLOCK, 0),
                _ => self.memory.write(offset, &bytes(self.number, content)),
            }
        }
    }

    /// The content numbers in a slot's memory.
    pub(super) fn contents_of(&self, slot: usize, blocks: Range<usize>) -> Vec<u64> {
        let content = |block| {
            let offset = slot * SLOT_LEN + (block - blocks.start) * BLOCK;
            self.parse(offset, self.number, &format!("block {block}"))
        };
        blocks.clone().map(content).collect()
    }

    /// Where a path reads contested blocks.
    pub(super) fn contest_buffer(&self, path: usize) -> Buffer {
        let buffer = self.buffer(SLOTS + path, 1);
        self.spoil(buffer);
        buffer
    }

    /// What it has read there.
    pub(super) fn contest_content(&self, path: usize) -> u64 {
        self.check_guard(SLOTS + path, 1, "a contested block");
        self.parse((SLOTS + path) * SLOT_LEN, NOBODYS, "a contested block")
    }

    fn parse(&self, offset: usize, owner: u64, what: &str) -> u64 {
        let mut block = [0; BLOCK];
        self.memory.read(offset, &mut block);
        let content = u64::from_le_bytes(block[8..16].try_into().expect("8 bytes"));
        let expected = if content == 0 { vec![0; BLOCK] } else { bytes(owner, content) };
        assert!(
            block == expected[..],
            "host {}: {what} is torn or another host's: {:?}",
            self.number,
            &block[..32]
        );
        content
    }
}

/// The bytes of a block with a content that is not zeroes.
pub(super) fn bytes(owner: u64, content: u64) -> Vec<u8> {
    [owner, content].map(u64::to_le_bytes).concat().repeat(BLOCK / 16)
}
