use super::*;
use nvmf_block::{BlockRange, RegionId};
use nvmf_memory::Memory;

const START: u64 = 1 << 20;
const LEN: usize = 8192;
const RANGE: BlockRange = BlockRange { start: 256, blocks: 2 };

/// A user's region of [`LEN`] bytes, and one with a bounce buffer of half of that.
fn regions() -> (Regions, Buffer, Buffer) {
    let mut regions = Regions::default();
    let buffer = |region, len| Buffer { region, offset: 0, len };
    let user = buffer(regions.add(&Memory::alloc(LEN).unwrap()), LEN);
    let bounce = buffer(regions.add(&Memory::alloc(LEN).unwrap()), LEN / 2);
    (regions, user, bounce)
}

fn write(fua: bool) -> BlockOp {
    BlockOp::Write { range: RANGE, from: Buffer { region: RegionId(0), offset: 0, len: LEN }, fua }
}

fn zeroes(deallocate: bool, fua: bool) -> BlockOp {
    BlockOp::WriteZeroes { range: RANGE, deallocate, fua }
}

fn begin(op: BlockOp) -> (FileOperation, Next) {
    FileOperation::new(op, START, LEN, true, true)
}

/// An operation that goes on at once.
fn begun(op: BlockOp) -> FileOperation {
    let (operation, next) = begin(op);
    assert_eq!(next, Next::Continue);
    operation
}

fn all_operations() -> Vec<BlockOp> {
    let buffer = Buffer { region: RegionId(0), offset: 0, len: LEN };
    let deallocate = BlockOp::Deallocate { range: RANGE };
    let read = BlockOp::Read { range: RANGE, into: buffer };
    let mut all = vec![read, BlockOp::Flush, deallocate];
    all.extend([BlockOp::Compare { range: RANGE, with: buffer }, BlockOp::Verify { range: RANGE }]);
    for fua in [false, true] {
        all.extend([write(fua), zeroes(false, fua), zeroes(true, fua)]);
    }
    all
}

#[test]
fn flush_is_fdatasync() {
    let (regions, ..) = regions();
    let mut flush = begun(BlockOp::Flush);
    assert_eq!(flush.command(), Command::Fdatasync);
    assert_eq!(flush.on_result(0, &regions), Next::Done(Ok(())));
}

#[test]
fn write_is_durable_with_fua_only() {
    let from = Buffer { region: RegionId(0), offset: 0, len: LEN };
    for fua in [false, true] {
        assert_eq!(begun(write(fua)).command(), Command::Write { at: START, from, dsync: fua });
    }
    let read = begun(BlockOp::Read { range: RANGE, into: from });
    assert_eq!(read.command(), Command::Read { at: START, into: from });
}

#[test]
fn zeroes_free_blocks_only_when_allowed() {
    let fallocate = |mode| Command::Fallocate { at: START, len: LEN as u64, mode };
    for fua in [false, true] {
        assert_eq!(begun(zeroes(false, fua)).command(), fallocate(ZERO_RANGE));
        assert_eq!(begun(zeroes(true, fua)).command(), fallocate(PUNCH_HOLE));
    }
    assert_eq!(begun(BlockOp::Deallocate { range: RANGE }).command(), fallocate(PUNCH_HOLE));
    let keep_size = libc::FALLOC_FL_KEEP_SIZE;
    assert_eq!(ZERO_RANGE, libc::FALLOC_FL_ZERO_RANGE | keep_size);
    assert_eq!(PUNCH_HOLE, libc::FALLOC_FL_PUNCH_HOLE | keep_size);
}

#[test]
fn zeroes_with_fua_sync_what_was_allocated() {
    let (regions, ..) = regions();
    for deallocate in [false, true] {
        let mut operation = begun(zeroes(deallocate, true));
        assert_eq!(operation.on_result(0, &regions), Next::Continue);
        assert_eq!(operation.command(), Command::Fdatasync);
        assert_eq!(operation.on_result(-libc::EIO, &regions), Next::Done(Err(BlockError::Medium)));
        assert_eq!(begun(zeroes(deallocate, false)).on_result(0, &regions), Next::Done(Ok(())));
    }
    let deallocate = BlockOp::Deallocate { range: RANGE };
    assert_eq!(begun(deallocate).on_result(0, &regions), Next::Done(Ok(())));
}

#[test]
fn errors_of_every_stage_reach_the_result() {
    let table = [
        (libc::EIO, BlockError::Medium),
        (libc::EUCLEAN, BlockError::Medium),
        (libc::ENODATA, BlockError::Medium),
        (libc::EILSEQ, BlockError::Medium),
        (libc::ENOSPC, BlockError::NoSpace),
        (libc::EDQUOT, BlockError::NoSpace),
        (libc::EFBIG, BlockError::NoSpace),
        (libc::EROFS, BlockError::ReadOnly),
        (libc::EPERM, BlockError::ReadOnly),
        (libc::EBADF, BlockError::ReadOnly),
        (libc::ENXIO, BlockError::Gone),
        (libc::ECANCELED, BlockError::Aborted),
        (libc::EBADE, BlockError::ReservationConflict),
        (libc::ENOMEM, BlockError::Os(libc::ENOMEM)),
    ];
    let (regions, _, bounce) = regions();
    for (errno, error) in table {
        for op in all_operations() {
            let (mut operation, next) = begin(op);
            if next == Next::NeedBounce {
                operation.give_bounce(bounce, &regions);
            }
            assert_eq!(operation.on_result(-errno, &regions), Next::Done(Err(error)), "{op:?} with {errno}");
        }
    }
    for (errno, error) in [(libc::EOPNOTSUPP, BlockError::Unsupported), (libc::ENODEV, BlockError::Gone)] {
        for op in [write(false), BlockOp::Flush] {
            assert_eq!(begun(op).on_result(-errno, &regions), Next::Done(Err(error)), "{op:?} with {errno}");
        }
    }
}

const DRIVE: Namespace =
    Namespace { nsid: 1, lbads: 9, transfer_max: 1024, zeroes_max: LEN, deallocate_max: 1 << 20 };

#[test]
fn command_to_a_drive_moves_no_more_than_it_takes() {
    let (regions, data, _) = regions();
    let op = BlockOp::Write { range: BlockRange::new(0, 1), from: Buffer { len: LEN, ..data }, fua: true };
    let (mut operation, next) = FileOperation::on_nvme(op, START, LEN, true, DRIVE);
    assert_eq!(next, Next::Continue);
    for done in (0..LEN).step_by(1024) {
        let Command::Write { at, from, dsync: true } = operation.command() else {
            panic!("a write with FUA")
        };
        assert_eq!((at, from.offset, from.len), (START + done as u64, data.offset + done, 1024));
        let next = operation.on_result(1024, &regions);
        assert_eq!(next == Next::Done(Ok(())), done + 1024 == LEN);
    }
}

#[test]
fn status_of_a_drive_is_the_operations() {
    let (regions, data, _) = regions();
    let read = BlockOp::Read { range: BlockRange::new(0, 1), into: Buffer { len: LEN, ..data } };
    // Unrecovered Read Error with Do Not Retry, More and a retry delay; the last two are between it and us.
    let (mut operation, _) = FileOperation::on_nvme(read, START, LEN, true, DRIVE);
    let next = operation.on_result(-(STATUS + 0x6a81), &regions);
    assert_eq!(next, Next::Done(Err(BlockError::Device(0x4281))));
}

#[test]
fn drive_is_told_of_a_range_that_is_no_longer_needed() {
    let (regions, _, bounce) = regions();
    let op = BlockOp::Deallocate { range: BlockRange::new(0, 1) };
    let (mut operation, next) = FileOperation::on_nvme(op, START, LEN, true, DRIVE);
    assert_eq!(next, Next::NeedBounce);
    operation.give_bounce(bounce, &regions);
    let Command::Deallocate { list } = operation.command() else { panic!("Dataset Management") };
    let mut range = [0; 16];
    regions.memory(list.region).read(list.offset, &mut range);
    assert_eq!((list.len, u128::from_le_bytes(range)), (4096, (START as u128 >> 9) << 64 | 16 << 32));
    assert_eq!(operation.on_result(0, &regions), Next::Done(Ok(())));
    let without = Namespace { deallocate_max: 0, ..DRIVE };
    assert_eq!(FileOperation::on_nvme(op, START, LEN, true, without).1, Next::Done(Ok(())), "it is a hint");
}

#[test]
fn zeroes_that_a_drive_does_not_write_are_written() {
    let (regions, _, bounce) = regions();
    let zeroes = BlockOp::WriteZeroes { range: BlockRange::new(0, 1), deallocate: true, fua: false };
    let without = Namespace { zeroes_max: 0, ..DRIVE };
    let (mut operation, next) = FileOperation::on_nvme(zeroes, START, LEN, true, without);
    assert_eq!(next, Next::NeedBounce);
    operation.give_bounce(bounce, &regions);
    assert!(matches!(operation.command(), Command::Write { .. }));
    for status in [1, 0x4002] {
        let (mut operation, next) = FileOperation::on_nvme(zeroes, START, LEN, true, DRIVE);
        assert!(next == Next::Continue && matches!(operation.command(), Command::Fallocate { .. }));
        assert_eq!(operation.on_result(-(STATUS + status), &regions), Next::NeedBounce, "{status:#x}");
    }
}

#[test]
fn an_interrupted_command_is_issued_again() {
    let (regions, _, bounce) = regions();
    for op in all_operations() {
        for errno in [libc::EINTR, libc::EAGAIN] {
            let (mut operation, next) = begin(op);
            if next == Next::NeedBounce {
                operation.give_bounce(bounce, &regions);
            }
            let before = operation.command();
            assert_eq!(operation.on_result(-errno, &regions), Next::Continue, "{op:?}");
            assert_eq!(operation.command(), before, "nothing was done");
        }
    }
}

#[test]
fn a_short_transfer_goes_on_where_it_ended() {
    let (regions, ..) = regions();
    let half = LEN / 2;
    let second = Buffer { region: RegionId(0), offset: half, len: half };
    for (op, command) in [
        (write(true), Command::Write { at: START + half as u64, from: second, dsync: true }),
        (
            BlockOp::Read { range: RANGE, into: Buffer { offset: 0, len: LEN, ..second } },
            Command::Read { at: START + half as u64, into: second },
        ),
    ] {
        let mut operation = begun(op);
        assert_eq!(operation.on_result(half as i32, &regions), Next::Continue);
        assert_eq!(operation.command(), command);
        assert_eq!(operation.on_result(half as i32, &regions), Next::Done(Ok(())));
    }
}

#[test]
fn a_device_that_ends_too_early_is_a_medium_error() {
    let (regions, ..) = regions();
    let mut operation = begun(write(false));
    operation.on_result(4096, &regions);
    let failure = Failure { operation: FailedOperation::Write, byte: START + 4096, errno: 0 };
    assert_eq!(operation.failure(0), failure);
    assert_eq!(operation.on_result(0, &regions), Next::Done(Err(BlockError::Medium)));
}

#[test]
fn an_unsupported_range_of_zeroes_is_written_by_hand() {
    let (regions, _, bounce) = regions();
    for errno in [libc::EOPNOTSUPP, libc::ENOSYS, libc::EINVAL, libc::ENODEV] {
        for fua in [false, true] {
            let mut operation = begun(zeroes(false, fua));
            assert_eq!(operation.on_result(-errno, &regions), Next::NeedBounce);
            regions.memory(bounce.region).fill(0, bounce.len, 0xff);
            operation.give_bounce(bounce, &regions);
            let mut bytes = vec![1; bounce.len];
            regions.memory(bounce.region).read(0, &mut bytes);
            assert!(bytes.iter().all(|&byte| byte == 0));
            let part = |at| Command::Write { at, from: bounce, dsync: fua };
            assert_eq!(operation.command(), part(START));
            assert_eq!(operation.on_result(bounce.len as i32, &regions), Next::Continue);
            assert_eq!(operation.command(), part(START + bounce.len as u64));
            assert_eq!(operation.on_result(bounce.len as i32, &regions), Next::Done(Ok(())));
        }
        let deallocate = BlockOp::Deallocate { range: RANGE };
        assert_eq!(begun(deallocate).on_result(-errno, &regions), Next::Done(Ok(())), "a hint");
    }
}

/// Fills a buffer with a pattern, and gives it.
fn pattern(regions: &Regions, buffer: Buffer, seed: u8) -> Vec<u8> {
    let bytes: Vec<u8> = (0..buffer.len).map(|at| (at / 512) as u8 ^ seed).collect();
    regions.memory(buffer.region).write(buffer.offset, &bytes);
    bytes
}

fn content(regions: &Regions, buffer: Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len];
    regions.memory(buffer.region).read(buffer.offset, &mut bytes);
    bytes
}

#[test]
fn an_unaligned_buffer_is_copied() {
    let (regions, user, bounce) = regions();
    let expected = pattern(&regions, user, 0x30);
    let (mut operation, next) = FileOperation::new(write(true), START, LEN, false, true);
    assert_eq!(next, Next::NeedBounce);
    operation.give_bounce(bounce, &regions);
    let mut written = Vec::new();
    while written.len() < LEN {
        let at = START + written.len() as u64;
        assert_eq!(operation.command(), Command::Write { at, from: bounce, dsync: true });
        written.extend(content(&regions, bounce));
        let next = operation.on_result(bounce.len as i32, &regions);
        // Another operation had the bounce buffer in between.
        operation.take_bounce();
        pattern(&regions, bounce, 0xee);
        if next == Next::Continue {
            operation.give_bounce(bounce, &regions);
        }
    }
    assert_eq!(written, expected);

    let read = BlockOp::Read { range: RANGE, into: user };
    let (mut operation, next) = FileOperation::new(read, START, LEN, false, true);
    assert_eq!(next, Next::NeedBounce);
    operation.give_bounce(bounce, &regions);
    let first = pattern(&regions, bounce, 0x51);
    assert_eq!(operation.command(), Command::Read { at: START, into: bounce });
    assert_eq!(operation.on_result(bounce.len as i32, &regions), Next::Continue);
    let second = pattern(&regions, bounce, 0x62);
    assert_eq!(operation.on_result(bounce.len as i32, &regions), Next::Done(Ok(())));
    assert_eq!(content(&regions, user), [first, second].concat());
}

#[test]
fn a_difference_in_the_last_byte_is_found() {
    let (regions, user, bounce) = regions();
    let compare = BlockOp::Compare { range: RANGE, with: user };
    for differs in [false, true] {
        let expected = pattern(&regions, user, 0x77);
        let (mut operation, _) = begin(compare);
        operation.give_bounce(bounce, &regions);
        let memory = regions.memory(bounce.region);
        memory.write(bounce.offset, &expected[..bounce.len]);
        assert_eq!(operation.on_result(bounce.len as i32, &regions), Next::Continue);
        memory.write(bounce.offset, &expected[bounce.len..]);
        if differs {
            memory.write(bounce.offset + bounce.len - 1, &[!expected[LEN - 1]]);
        }
        let result = if differs { Err(BlockError::CompareFailed) } else { Ok(()) };
        assert_eq!(operation.on_result(bounce.len as i32, &regions), Next::Done(result));
    }
}

#[test]
fn the_cache_may_be_lost_by_what_syncs() {
    use BlockError::{Aborted, Medium, NoSpace};
    let loses = |op, error| begun(op).may_lose_cache(error);
    assert!(loses(BlockOp::Flush, Medium) && loses(BlockOp::Flush, NoSpace));
    assert!(!loses(BlockOp::Flush, Aborted) && !loses(write(true), Aborted), "not tried");
    assert!(loses(write(true), Medium));
    assert!(!loses(write(true), NoSpace), "that comes from the write itself");
    for op in [write(false), zeroes(false, true), BlockOp::Deallocate { range: RANGE }] {
        assert!(!loses(op, Medium), "{op:?}");
    }
    let (regions, ..) = regions();
    let mut operation = begun(zeroes(false, true));
    operation.on_result(0, &regions);
    assert!(operation.may_lose_cache(Medium));
}

#[test]
fn write_with_fua_through_the_page_cache_is_followed_by_a_sync() {
    let (regions, user, _) = regions();
    for fua in [false, true] {
        let (mut operation, _) = FileOperation::new(write(fua), START, LEN, true, false);
        let half = LEN / 2;
        for done in [0, half] {
            let from = Buffer { offset: done, len: LEN - done, ..user };
            assert_eq!(operation.command(), Command::Write { at: START + done as u64, from, dsync: false });
            assert!(!operation.may_lose_cache(BlockError::Medium));
            let next = if done == 0 || fua { Next::Continue } else { Next::Done(Ok(())) };
            assert_eq!(operation.on_result(half as i32, &regions), next);
        }
        if fua {
            assert_eq!(operation.command(), Command::Fdatasync);
            assert!(operation.may_lose_cache(BlockError::NoSpace));
            assert_eq!(operation.on_result(0, &regions), Next::Done(Ok(())));
        }
    }
}
