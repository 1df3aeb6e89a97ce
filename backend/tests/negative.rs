//! Negative tests of the conformance suite: each of these backends breaks one promise, and the suite must notice.

use nvmf_backend::{Devices, DevicesOptions, Disk, DiskSpec};
use nvmf_block::{
    Backend, BlockError, BlockOp, BlockRange, BorrowedRead, Buffer, Completion, DeviceId, Full, Geometry,
    RegionId, Tag, conformance,
};
use nvmf_memory::Memory;
use std::panic::{AssertUnwindSafe, catch_unwind};

const DEVICE: DeviceId = DeviceId(0);
const SECOND: DeviceId = DeviceId(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defect {
    None,
    /// Truncates writes that go past the end.
    CutsWrites,
    /// Accepts a write whose buffer has the wrong length.
    TakesShortBuffers,
    /// Takes unknown devices for the first one.
    KnowsEveryDevice,
    /// Completes every tenth operation twice.
    CompletesTwice,
    /// Never completes every tenth operation.
    ForgetsOperations,
    /// Completes operations for which there was no room.
    FullTakes,
    /// Reallocates the vector of completions.
    PollGrows,
    /// Takes all buffers from one region.
    OneRegion,
    /// Compare always succeeds.
    AlwaysEqual,
    /// Write Zeroes writes nothing.
    NoZeroes,
    /// Writes one block too early.
    OffByOne,
    /// An empty deallocation is an error.
    RefusesNothing,
    /// A borrowed read begins one byte late.
    BorrowsElsewhere,
    /// One device may take all the room.
    SharesNothing,
}

struct Broken {
    inner: Devices,
    defect: Defect,
    count: u64,
    more: Vec<Completion>,
}

impl Broken {
    fn changed(&self, op: BlockOp) -> BlockOp {
        let blocks = self.inner.geometry(DEVICE).expect("it is there").blocks;
        let one_region = |buffer: Buffer| Buffer { region: RegionId(1), ..buffer };
        match (self.defect, op) {
            (Defect::CutsWrites, BlockOp::Write { range, from, fua })
                if range.start < blocks && range.end().is_some_and(|end| end > blocks) =>
            {
                let range = BlockRange::new(range.start, blocks - range.start);
                let len = range.blocks as usize * (from.len / 2);
                BlockOp::Write { range, from: Buffer { len, ..from }, fua }
            }
            (Defect::TakesShortBuffers, BlockOp::Write { range, from, fua }) => {
                let size = self.inner.geometry(DEVICE).expect("it is there").block_size as usize;
                BlockOp::Write { range: BlockRange::new(range.start, (from.len / size) as u64), from, fua }
            }
            (Defect::OneRegion, BlockOp::Write { range, from, fua }) if from.region.0 < 3 => {
                BlockOp::Write { range, from: one_region(from), fua }
            }
            (Defect::OneRegion, BlockOp::Read { range, into }) if into.region.0 < 3 => {
                BlockOp::Read { range, into: one_region(into) }
            }
            (Defect::AlwaysEqual, BlockOp::Compare { range, with }) => BlockOp::Read { range, into: with },
            (Defect::NoZeroes, BlockOp::WriteZeroes { range, .. }) => BlockOp::Verify { range },
            (Defect::OffByOne, BlockOp::Write { range, from, fua }) if range.start > 0 => {
                BlockOp::Write { range: BlockRange::new(range.start - 1, range.blocks), from, fua }
            }
            (Defect::RefusesNothing, BlockOp::Deallocate { range }) if range.blocks == 0 => {
                BlockOp::Deallocate { range: BlockRange::new(blocks, 1) }
            }
            (_, op) => op,
        }
    }
}

impl Backend for Broken {
    fn register(&mut self, memory: &Memory) -> Result<RegionId, BlockError> {
        self.inner.register(memory)
    }

    fn geometry(&self, device: DeviceId) -> Option<Geometry> {
        self.inner.geometry(device)
    }

    fn submit(&mut self, tag: Tag, device: DeviceId, op: BlockOp) -> Result<(), Full> {
        self.count += 1;
        let tenth = self.count.is_multiple_of(10);
        let device = match self.defect {
            Defect::KnowsEveryDevice | Defect::SharesNothing => DEVICE,
            _ => device,
        };
        if self.defect == Defect::ForgetsOperations && tenth {
            return Ok(());
        }
        let taken = self.inner.submit(tag, device, self.changed(op));
        if self.defect == Defect::FullTakes && taken.is_err()
            || self.defect == Defect::CompletesTwice && tenth
        {
            self.more.push(Completion { tag, result: Ok(()) });
        }
        taken
    }

    fn borrow_read(&mut self, device: DeviceId, range: BlockRange) -> Option<BorrowedRead<'_>> {
        let read = self.inner.borrow_read(device, range)?;
        let late = usize::from(self.defect == Defect::BorrowsElsewhere);
        Some(BorrowedRead { offset: read.offset + late, ..read })
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        if self.defect == Defect::PollGrows {
            completions.reserve(64);
        }
        while completions.len() < completions.capacity()
            && let Some(completion) = self.more.pop()
        {
            completions.push(completion);
        }
        self.inner.poll(completions);
    }
}

fn passes(defect: Defect, check: fn(&mut Broken)) -> bool {
    let disk = Disk::open(&DiskSpec::Memory { size: 1 << 20 }, None, false).unwrap();
    let mut inner = Devices::new(DevicesOptions { depth: 64 }).unwrap();
    for device in [DEVICE, SECOND] {
        inner.attach(device, &disk).unwrap();
    }
    let mut broken = Broken { inner, defect, count: 0, more: Vec::new() };
    catch_unwind(AssertUnwindSafe(|| check(&mut broken))).is_ok()
}

fn conforms(broken: &mut Broken) {
    conformance::check(broken, DEVICE, &mut |_| {});
}

fn leaves_room(broken: &mut Broken) {
    conformance::check_room_for_others(broken, [DEVICE, SECOND], &mut |_| {});
}

#[test]
fn the_suite_finds_every_defect() {
    use Defect::*;
    assert!(passes(None, conforms) && passes(None, leaves_room), "the backend without a defect passes");
    for defect in [
        CutsWrites,
        TakesShortBuffers,
        KnowsEveryDevice,
        CompletesTwice,
        ForgetsOperations,
        FullTakes,
        PollGrows,
        OneRegion,
        AlwaysEqual,
        NoZeroes,
        OffByOne,
        RefusesNothing,
        BorrowsElsewhere,
    ] {
        assert!(!passes(defect, conforms), "{defect:?} goes unnoticed");
    }
    assert!(!passes(SharesNothing, leaves_room), "a device that takes all the room goes unnoticed");
}
