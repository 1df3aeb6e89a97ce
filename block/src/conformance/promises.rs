//! The promises of a backend, one by one.

use super::Bench;
use crate::{Backend, BlockError, BlockOp, BlockRange, Buffer, Completion, DeviceId, RegionId, Tag};
use alloc::vec;
use alloc::vec::Vec;
use nvmf_memory::Memory;

impl<B: Backend> Bench<'_, B> {
    /// One operation of each kind that the device accepts, on `range`, with `buffer` where the operation has one.
    fn one_of_each(&self, range: BlockRange, buffer: Buffer) -> Vec<BlockOp> {
        let mut all = vec![
            BlockOp::Read { range, into: buffer },
            BlockOp::Compare { range, with: buffer },
            BlockOp::Verify { range },
        ];
        if !self.geometry.read_only {
            all.extend([
                BlockOp::Write { range, from: buffer, fua: false },
                BlockOp::Write { range, from: buffer, fua: true },
                BlockOp::WriteZeroes { range, deallocate: false, fua: false },
                BlockOp::WriteZeroes { range, deallocate: true, fua: true },
                BlockOp::Deallocate { range },
            ]);
        }
        all
    }

    pub(super) fn refusals(&mut self) {
        let end = self.geometry.blocks;
        for (start, blocks) in [(end, 1), (end - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 3)] {
            let range = BlockRange::new(start, blocks);
            for op in self.one_of_each(range, self.buffer(0, blocks as usize)) {
                assert_eq!(self.run(op), Err(BlockError::OutOfRange), "{op:?}");
            }
        }
        // Longer than any buffer.
        for (start, blocks) in [(0, end + 1), (1, u64::MAX), (u64::MAX, u64::MAX)] {
            let op = BlockOp::Verify { range: BlockRange::new(start, blocks) };
            assert_eq!(self.run(op), Err(BlockError::OutOfRange), "{op:?}");
        }
        let range = BlockRange::new(0, 2);
        let (long, short) = (self.buffer(0, 3), self.buffer(0, 1));
        let outside = Buffer { offset: self.memory.len() - self.size(), ..self.buffer(0, 2) };
        let overflowing = Buffer { offset: usize::MAX - 511, ..self.buffer(0, 2) };
        let elsewhere = Buffer { region: RegionId(u16::MAX), ..self.buffer(0, 2) };
        for buffer in [long, short, outside, overflowing, elsewhere] {
            for op in self.one_of_each(range, buffer).into_iter().filter(|op| op.buffer().is_some()) {
                assert_eq!(self.run(op), Err(BlockError::BadBuffer), "{op:?}");
            }
        }
        let (device, nowhere) = (self.device, DeviceId(u32::MAX));
        assert_eq!(self.backend.geometry(nowhere), None);
        self.device = nowhere;
        for op in self.one_of_each(range, self.buffer(0, 2)).into_iter().chain([BlockOp::Flush]) {
            assert_eq!(self.run(op), Err(BlockError::Gone), "{op:?}");
        }
        self.device = device;
        // A backend that refuses everything would pass the above.
        assert_eq!(self.run(BlockOp::Read { range, into: self.buffer(0, 2) }), Ok(()));
        assert_eq!(self.run(BlockOp::Flush), Ok(()));
    }

    pub(super) fn a_refused_operation_changes_nothing(&mut self) {
        let last = self.geometry.blocks - 1;
        let (first_bytes, last_bytes) = (self.write(0, 2, 41, false), self.write(last, 1, 42, false));
        self.fill(0, 3, 43);
        for op in self.one_of_each(BlockRange::new(last, 2), self.buffer(0, 2)) {
            assert_eq!(self.run(op), Err(BlockError::OutOfRange), "{op:?}");
        }
        for from in [self.buffer(0, 1), self.buffer(0, 3)] {
            let op = BlockOp::Write { range: BlockRange::new(0, 2), from, fua: false };
            assert_eq!(self.run(op), Err(BlockError::BadBuffer), "{op:?}");
        }
        assert_eq!(self.read(0, 2), first_bytes);
        assert_eq!(self.read(last, 1), last_bytes);
        // An empty deallocation is no error: hosts send it.
        assert_eq!(self.run(BlockOp::Deallocate { range: BlockRange::new(0, 0) }), Ok(()));
        assert_eq!(self.read(0, 2), first_bytes);
    }

    pub(super) fn a_borrowed_read_is_what_a_read_returns(&mut self) {
        let (end, size) = (self.geometry.blocks, self.size());
        for (seed, start, blocks) in [(61, 0, 1), (62, 5, 3), (63, end - 1, 1)] {
            let written = self.write(start, blocks, seed, false);
            let range = BlockRange::new(start, blocks as u64);
            if let Some(borrow) = self.backend.borrow_read(self.device, range) {
                let mut borrowed = vec![0; blocks * size];
                borrow.memory.read(borrow.offset, &mut borrowed);
                assert!(borrowed == written, "{blocks} blocks at {start} are borrowed as something else");
            }
        }
        for (start, blocks) in [(end, 1), (end - 1, 2), (u64::MAX, 1), (0, u64::MAX)] {
            assert!(self.backend.borrow_read(self.device, BlockRange::new(start, blocks)).is_none());
        }
        assert!(self.backend.borrow_read(DeviceId(u32::MAX), BlockRange::new(0, 1)).is_none());
    }

    pub(super) fn buffers_are_used_at_their_offset(&mut self) {
        let size = self.size();
        let other = Memory::alloc(2 * size).expect("memory");
        let region = self.backend.register(&other).expect("a second region");
        let range = BlockRange::new(30, 1);
        let second = Buffer { region, offset: size, len: size };
        other.fill(size, size, 0x5a);
        self.memory.fill(0, self.memory.len(), 0xa5);
        assert_eq!(self.run(BlockOp::Write { range, from: second, fua: false }), Ok(()));
        assert_eq!(self.run(BlockOp::Read { range, into: self.buffer(7, 1) }), Ok(()));
        let mut bytes = vec![0; self.memory.len()];
        self.memory.read(0, &mut bytes);
        let (inside, outside) = (7 * size..8 * size, 0xa5);
        for (at, &byte) in bytes.iter().enumerate() {
            let expected = if inside.contains(&at) { 0x5a } else { outside };
            assert_eq!(byte, expected, "byte {at} of the region");
        }
        self.memory.fill(9 * size, size, 0x77);
        assert_eq!(self.run(BlockOp::Write { range, from: self.buffer(9, 1), fua: true }), Ok(()));
        assert_eq!(self.run(BlockOp::Read { range, into: second }), Ok(()));
        assert!(other.equals(size, &self.memory, 9 * size, size), "the second region, from the first");
    }

    pub(super) fn read_only(&mut self) {
        let range = BlockRange::new(0, 1);
        let before = self.read(0, 1);
        for op in [
            BlockOp::Write { range, from: self.buffer(0, 1), fua: false },
            BlockOp::WriteZeroes { range, deallocate: true, fua: false },
            BlockOp::Deallocate { range },
        ] {
            assert_eq!(self.run(op), Err(BlockError::ReadOnly), "{op:?}");
        }
        assert_eq!(self.read(0, 1), before);
    }

    pub(super) fn reads_return_what_was_written(&mut self) {
        let last = self.geometry.blocks - 1;
        for (start, blocks, fua) in
            [(0, 1, false), (last, 1, true), (1, 17, false), (last - 31, 32, false), (5, 64 - 5, true)]
        {
            let bytes = self.write(start, blocks, (start as u8).wrapping_mul(31), fua);
            assert_eq!(self.read(start, blocks), bytes, "block {start}, {blocks} of them");
        }
        self.write(6, 4, 4, false);
        let newer = self.write(6, 4, 5, false);
        assert_eq!(self.read(6, 4), newer, "the last write counts");
        let (before, after) = (self.write(8, 1, 1, false), self.write(10, 1, 2, false));
        let between = self.write(9, 1, 3, false);
        assert_eq!(self.run(BlockOp::Flush), Ok(()));
        assert_eq!(self.read(8, 3), [before, between, after].concat(), "neighbours stay as they are");
    }

    pub(super) fn zeroes(&mut self) {
        let size = self.size();
        for (deallocate, fua) in [(false, false), (true, false), (false, true), (true, true)] {
            let bytes = self.write(0, 16, 9, false);
            assert_eq!(
                self.run(BlockOp::WriteZeroes { range: BlockRange::new(3, 10), deallocate, fua }),
                Ok(())
            );
            let after = self.read(0, 16);
            assert_eq!(after[..3 * size], bytes[..3 * size]);
            assert!(
                after[3 * size..13 * size].iter().all(|&b| b == 0),
                "not zero (deallocate {deallocate}, fua {fua})"
            );
            assert_eq!(after[13 * size..], bytes[13 * size..]);
        }
        let bytes = self.write(0, 16, 10, false);
        assert_eq!(self.run(BlockOp::Deallocate { range: BlockRange::new(4, 4) }), Ok(()));
        let after = self.read(0, 16);
        for block in 0..16 {
            let (now, then) = (&after[block * size..][..size], &bytes[block * size..][..size]);
            let zero = now.iter().all(|&b| b == 0);
            let freed = (4..8).contains(&block);
            assert!(
                now == then && !(freed && self.geometry.zero_after_deallocate) || freed && zero,
                "block {block}"
            );
        }
    }

    pub(super) fn compare_and_verify(&mut self) {
        let range = BlockRange::new(20, 12);
        self.write(20, 12, 77, false);
        let with = self.buffer(0, 12);
        assert_eq!(self.run(BlockOp::Compare { range, with }), Ok(()));
        let last = with.len - 1;
        let mut byte = [0];
        self.memory.read(last, &mut byte);
        self.memory.write(last, &[byte[0] ^ 1]);
        assert_eq!(
            self.run(BlockOp::Compare { range, with }),
            Err(BlockError::CompareFailed),
            "the last bit differs"
        );
        assert_eq!(
            self.run(BlockOp::Verify { range: BlockRange::new(0, self.geometry.blocks.min(4096)) }),
            Ok(())
        );
    }

    /// Where the backend has it: a remote disk may not.
    pub(super) fn compare_and_write(&mut self) {
        let (range, size) = (BlockRange::new(40, 1), self.size());
        let before = self.write(40, 1, 50, false);
        for (seed, fua) in [(51, false), (52, true)] {
            let old = self.read(40, 1);
            let new = self.fill(1, 1, seed);
            self.memory.write(0, &old);
            let data = self.buffer(0, 2);
            match self.run(BlockOp::CompareAndWrite { range, data, fua }) {
                Err(BlockError::Unsupported) => {
                    assert_eq!(self.read(40, 1), before);
                    return;
                }
                result => assert_eq!(result, Ok(())),
            }
            assert_eq!(self.read(40, 1), new);
        }
        let after = self.read(40, 1);
        // One bit of what is expected differs.
        self.memory.write(0, &after);
        self.memory.write(size - 1, &[after[size - 1] ^ 1]);
        let data = self.buffer(0, 2);
        let op = BlockOp::CompareAndWrite { range, data, fua: false };
        assert_eq!(self.run(op), Err(BlockError::CompareFailed));
        let short = BlockOp::CompareAndWrite { range, data: self.buffer(0, 1), fua: false };
        assert_eq!(self.run(short), Err(BlockError::BadBuffer));
        assert_eq!(self.read(40, 1), after, "what did not take place changed something");
    }

    pub(super) fn many_at_once(&mut self) {
        let mut tags = Vec::new();
        for at in 0..16_usize {
            let range = BlockRange::new(at as u64 * 2, 1);
            let buffer = self.buffer(at, 1);
            tags.push(self.submit(match at % 4 {
                0 => BlockOp::Flush,
                1 => BlockOp::Verify { range },
                _ => BlockOp::Read { range, into: buffer },
            }));
        }
        let mut completions = self.collect(16);
        completions.sort_by_key(|c| c.tag.0);
        assert!(completions.iter().map(|c| c.tag).eq(tags), "every operation completes once");
        assert!(completions.iter().all(|c| c.result == Ok(())));
    }

    /// More operations than the backend may have room for, each on its own block.
    pub(super) fn concurrent_writes_are_all_done(&mut self) {
        let bytes = self.fill(0, 64, 99);
        let mut waiting = 0;
        for at in 0..64 {
            let range = BlockRange::new(63 - at as u64, 1);
            let op = BlockOp::Write { range, from: self.buffer(at, 1), fua: at % 8 == 0 };
            self.tag += 1;
            while self.backend.submit(Tag(self.tag), self.device, op).is_err() {
                assert!(waiting > 0, "full with nothing in flight");
                assert!(self.collect(waiting).iter().all(|c| c.result == Ok(())));
                waiting = 0;
            }
            waiting += 1;
        }
        assert!(self.collect(waiting).iter().all(|c| c.result == Ok(())));
        let (size, mut after) = (self.size(), self.read(0, 64));
        let blocks: Vec<u8> = after.chunks_mut(size).rev().flat_map(|block| block.to_vec()).collect();
        assert!(blocks == bytes, "a write was lost, or landed elsewhere");
    }

    pub(super) fn poll_stays_within_capacity(&mut self) {
        for _ in 0..4 {
            self.submit(BlockOp::Flush);
        }
        self.backend.flush();
        let mut none = Vec::new();
        self.backend.poll(&mut none);
        assert_eq!((none.len(), none.capacity()), (0, 0), "there was no room");
        let before = Completion { tag: Tag(u64::MAX), result: Err(BlockError::Aborted) };
        let mut some = Vec::with_capacity(2);
        let room = some.capacity() - 1;
        some.push(before);
        self.backend.poll(&mut some);
        assert!(some[0] == before && some.len() <= 1 + room, "poll appends, and never grows");
        let taken = some.len() - 1;
        if taken < 4 {
            self.collect(4 - taken);
        }
    }

    pub(super) fn room_for(&mut self, other: DeviceId) {
        let op = BlockOp::Read { range: BlockRange::new(0, 1), into: self.buffer(0, 1) };
        let mut taken = 0;
        while taken < 100_000 {
            self.tag += 1;
            if self.backend.submit(Tag(self.tag), self.device, op).is_err() {
                break;
            }
            taken += 1;
        }
        let flush = self.backend.submit(Tag(0), other, BlockOp::Flush);
        assert_eq!(flush, Ok(()), "{taken} operations on one device leave no room for another");
        let completions = self.collect(taken + 1);
        assert!(completions.iter().any(|c| c.tag == Tag(0)), "the other device's operation is lost");
        assert!(completions.iter().all(|c| c.result == Ok(())));
    }

    /// A backend that has room for 100,000 operations passes too.
    pub(super) fn full_accepts_nothing(&mut self) {
        let mut taken = 0;
        while taken < 100_000 {
            self.tag += 1;
            if self.backend.submit(Tag(self.tag), self.device, BlockOp::Flush).is_err() {
                break;
            }
            taken += 1;
        }
        let refused = self.tag;
        let completions = self.collect(taken);
        assert!(
            taken == 100_000 || completions.iter().all(|c| c.tag.0 != refused),
            "a refused operation completed"
        );
        assert_eq!(self.run(BlockOp::Flush), Ok(()), "there is room again");
    }
}
