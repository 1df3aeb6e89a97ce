//! The test suite that every backend passes: files, memory, decorators, and the remote disk.
//!
//! It asserts only what [`Backend`] promises. Call it from a test, with a device of at least [`BLOCKS_MIN`] blocks
//! whose content may be overwritten.

mod promises;

use crate::{
    Backend, BlockError, BlockOp, BlockRange, Buffer, Completion, DeviceId, Geometry, RegionId, Tag,
};
use alloc::vec;
use alloc::vec::Vec;
use nvmf_memory::Memory;

/// Blocks that a device needs for the suite.
pub const BLOCKS_MIN: u64 = 64;
/// How often the suite waits for completions before it fails.
const WAITS_MAX: usize = 100_000;

/// The backend under test, a device of it, and how to wait.
struct Bench<'a, B: Backend> {
    backend: &'a mut B,
    device: DeviceId,
    geometry: Geometry,
    memory: Memory,
    region: RegionId,
    /// Called when nothing completed: blocks briefly, or advances a virtual clock. The suite has no clock of its own:
    /// a function that blocks must panic when the test takes too long.
    wait: &'a mut dyn FnMut(&mut B),
    tag: u64,
}

/// Runs the whole suite.
///
/// # Panics
/// At the first promise that the backend breaks.
pub fn check<B: Backend>(backend: &mut B, device: DeviceId, wait: &mut dyn FnMut(&mut B)) {
    let geometry = backend.geometry(device).expect("the device is there");
    assert!(geometry.blocks >= BLOCKS_MIN, "the suite needs {BLOCKS_MIN} blocks");
    let memory = Memory::alloc(64 * geometry.block_size as usize).expect("memory");
    let region = backend.register(&memory).expect("a region");
    let mut bench = Bench { backend, device, geometry, memory, region, wait, tag: 0 };
    bench.refusals();
    if geometry.read_only {
        bench.read_only();
        bench.many_at_once();
        bench.poll_stays_within_capacity();
        bench.quiet();
        return;
    }
    bench.a_refused_operation_changes_nothing();
    bench.reads_return_what_was_written();
    bench.a_borrowed_read_is_what_a_read_returns();
    bench.buffers_are_used_at_their_offset();
    bench.zeroes();
    bench.compare_and_verify();
    bench.compare_and_write();
    bench.many_at_once();
    bench.concurrent_writes_are_all_done();
    bench.poll_stays_within_capacity();
    bench.full_accepts_nothing();
    bench.quiet();
}

/// The suite for a device that does not store what is written.
///
/// # Panics
/// As [`check`].
pub fn check_forgetful<B: Backend>(backend: &mut B, device: DeviceId, wait: &mut dyn FnMut(&mut B)) {
    let geometry = backend.geometry(device).expect("the device is there");
    let memory = Memory::alloc(64 * geometry.block_size as usize).expect("memory");
    let region = backend.register(&memory).expect("a region");
    let mut bench = Bench { backend, device, geometry, memory, region, wait, tag: 0 };
    bench.refusals();
    bench.many_at_once();
    bench.poll_stays_within_capacity();
    bench.full_accepts_nothing();
    bench.quiet();
}

/// Checks with two devices of one backend that operations on one of them leave room for the other.
///
/// # Panics
/// As [`check`].
pub fn check_room_for_others<B: Backend>(
    backend: &mut B,
    devices: [DeviceId; 2],
    wait: &mut dyn FnMut(&mut B),
) {
    let [first, second] = devices;
    for (busy, other) in [(first, second), (second, first)] {
        let geometry = backend.geometry(busy).expect("the device is there");
        let memory = Memory::alloc(geometry.block_size as usize).expect("memory");
        let region = backend.register(&memory).expect("a region");
        let mut bench = Bench { backend, device: busy, geometry, memory, region, wait, tag: 0 };
        bench.room_for(other);
        bench.quiet();
    }
}

impl<B: Backend> Bench<'_, B> {
    fn size(&self) -> usize {
        self.geometry.block_size as usize
    }

    /// `blocks` blocks of the test's memory, starting at block `at`.
    fn buffer(&self, at: usize, blocks: usize) -> Buffer {
        Buffer { region: self.region, offset: at * self.size(), len: blocks * self.size() }
    }

    fn submit(&mut self, op: BlockOp) -> Tag {
        self.tag += 1;
        let tag = Tag(self.tag);
        self.backend.submit(tag, self.device, op).expect("room for an operation");
        tag
    }

    /// Waits for `count` completions, and checks that there are no more.
    fn collect(&mut self, count: usize) -> Vec<Completion> {
        let mut all = Vec::with_capacity(count);
        let mut some = Vec::with_capacity(4);
        self.backend.flush();
        for _ in 0..WAITS_MAX {
            let room = some.capacity();
            self.backend.poll(&mut some);
            assert!(some.len() <= room && some.capacity() == room, "poll grew the vector");
            if some.is_empty() {
                (self.wait)(self.backend);
            }
            all.append(&mut some);
            if all.len() >= count {
                assert_eq!(all.len(), count, "more completions than operations");
                return all;
            }
        }
        panic!("{} of {count} operations completed", all.len());
    }

    fn run(&mut self, op: BlockOp) -> Result<(), BlockError> {
        let tag = self.submit(op);
        let [completion] = self.collect(1)[..] else { unreachable!("one was waited for") };
        assert_eq!(completion.tag, tag, "the completion bears another tag");
        completion.result
    }

    fn fill(&mut self, at: usize, blocks: usize, seed: u8) -> Vec<u8> {
        let len = blocks * self.size();
        let bytes: Vec<u8> = (0..len).map(|i| seed.wrapping_add((i / 7) as u8) ^ i as u8).collect();
        self.memory.write(at * self.size(), &bytes);
        bytes
    }

    fn read(&mut self, start: u64, blocks: usize) -> Vec<u8> {
        self.memory.fill(0, self.memory.len(), 0xee);
        let op = BlockOp::Read { range: BlockRange::new(start, blocks as u64), into: self.buffer(0, blocks) };
        assert_eq!(self.run(op), Ok(()));
        let mut bytes = vec![0; blocks * self.size()];
        self.memory.read(0, &mut bytes);
        let mut behind = vec![0; self.memory.len() - bytes.len()];
        self.memory.read(bytes.len(), &mut behind);
        assert!(behind.iter().all(|&b| b == 0xee), "a read wrote behind its buffer");
        bytes
    }

    fn write(&mut self, start: u64, blocks: usize, seed: u8, fua: bool) -> Vec<u8> {
        let bytes = self.fill(0, blocks, seed);
        let op = BlockOp::Write {
            range: BlockRange::new(start, blocks as u64),
            from: self.buffer(0, blocks),
            fua,
        };
        assert_eq!(self.run(op), Ok(()));
        bytes
    }

    /// Checks that nothing completes that was not submitted.
    fn quiet(&mut self) {
        let mut some = Vec::with_capacity(4);
        for _ in 0..8 {
            self.backend.flush();
            self.backend.poll(&mut some);
        }
        assert_eq!(some, [], "completions that nobody waits for");
    }
}
