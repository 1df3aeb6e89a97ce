//! Compare and Write through a worker.

use super::copy::{cloneable, content, send_copy};
use super::host::*;
use super::{pattern, read_write};
use nvme_proto::nvm::CopyCommand;
use nvme_proto::nvm::copy::SourceRange;
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{SglDescriptor, Sqe, Status};

const LBA: u64 = 77;

fn fused(flags: u8, opcode: NvmOpcode, sgl: SglDescriptor) -> Sqe {
    Sqe { flags, ..read_write(opcode, LBA, BLOCK, sgl) }
}

/// Sends a pair for any block.
fn send_pair(io: &mut HostQueue, lba: u64, expected: &[u8], new: &[u8]) -> [u16; 2] {
    [(0x41, NvmOpcode::COMPARE, expected), (0x42, NvmOpcode::WRITE, new)].map(|(flags, opcode, data)| {
        let sgl = SglDescriptor::in_capsule(0, BLOCK);
        io.send(&Sqe { flags, ..read_write(opcode, lba, BLOCK, sgl) }, data)
    })
}

/// Sends a pair, and returns both statuses, in the order in which they came.
fn pair(world: &mut World, io: &mut HostQueue, expected: &[u8], new: &[u8], in_capsule: bool) -> [Status; 2] {
    io.data.write(0, expected);
    io.data.write(4096, new);
    let mut cids = Vec::new();
    for (flags, opcode, offset, data) in
        [(0x41, NvmOpcode::COMPARE, 0, expected), (0x42, NvmOpcode::WRITE, 4096, new)]
    {
        cids.push(if in_capsule {
            io.send(&fused(flags, opcode, SglDescriptor::in_capsule(0, BLOCK)), data)
        } else {
            let sgl = io.expose(offset, BLOCK);
            io.send(&fused(flags, opcode, sgl), &[])
        });
    }
    [cids[0], cids[1]].map(|cid| io.response(world, cid).0.status())
}

#[test]
fn compare_and_write_writes_only_what_it_was_told_to_expect() {
    for in_capsule in [false, true] {
        let mut world = World::new(1, &settings());
        let (_admin, cntlid) = admin(&mut world);
        let mut io = io(&mut world, 1, cntlid);
        let zero = vec![0; BLOCK as usize];
        let (one, two) = (pattern(1, BLOCK as usize), pattern(2, BLOCK as usize));
        assert!(pair(&mut world, &mut io, &zero, &one, in_capsule).into_iter().all(Status::is_success));
        assert!(*world.disk.borrow().block(LBA) == one[..]);
        let [first, second] = pair(&mut world, &mut io, &zero, &two, in_capsule);
        assert!(first.is(Status::COMPARE_FAILURE) && second.is(Status::ABORTED_FAILED_FUSED));
        assert!(*world.disk.borrow().block(LBA) == one[..], "what was not expected was overwritten");
        assert!(pair(&mut world, &mut io, &one, &two, in_capsule).into_iter().all(Status::is_success));
        assert!(*world.disk.borrow().block(LBA) == two[..]);
        world.check_credits();
    }
}

#[test]
fn compare_that_waits_for_its_write_ends_with_its_connection() {
    let mut world = World::new(1, &settings());
    let (mut admin, cntlid) = admin(&mut world);
    let mut one = io(&mut world, 1, cntlid);
    let sgl = one.expose(0, BLOCK);
    one.send(&fused(0x41, NvmOpcode::COMPARE, sgl), &[]);
    for _ in 0..100 {
        world.tick();
    }
    one.drop_connection();
    admin.drop_connection();
    world.until_clean();
}

/// A Copy shares blocks, all of them or only the first; meanwhile, on another worker, blocks of its source and of its
/// destination are compared and written.
#[test]
fn compare_and_write_and_a_copy_that_shares_do_not_tear_each_other() {
    const FROM: u64 = 8;
    const TO: u64 = 9000;
    const BLOCKS: u32 = 1600;
    // Of the Copy: where it shares from the start, and where it only does if it may share everything.
    const PLACES: [u64; 2] = [100, 1500];
    let mut won = [0; 3];
    for round in 0..36 {
        let mut world = World::new(2, &settings());
        let (_admin, cntlid) = admin(&mut world);
        let mut copies = io(&mut world, 1, cntlid);
        let mut pairs = io(&mut world, 2, cntlid);
        cloneable(&world, 8, [4000, 900, 0][round % 3]);
        let block = |seed: u32| pattern(seed, BLOCK as usize);
        let old = block(70_000);
        (TO..TO + u64::from(BLOCKS)).for_each(|lba| world.disk.borrow_mut().preset(lba, old[..].into()));
        let source = content(&world.disk, FROM, BLOCKS);
        let of_source = |at: u64| &source[at as usize * BLOCK as usize..][..BLOCK as usize];
        let copy = send_copy(&mut copies, CopyCommand::new(TO, 1), &[SourceRange::new(FROM, BLOCKS)]);
        for _ in 0..round * 3 {
            world.tick();
            copies.poll(world.now);
        }
        // What the destination had, what it gets, and what the source has.
        let of = |place: usize| PLACES[(round + place) % 2] + place as u64;
        let tried: Vec<_> = [(TO, 0, &old[..]), (TO, 1, of_source(of(1))), (FROM, 2, of_source(of(2)))]
            .map(|(base, place, expected)| {
                send_pair(&mut pairs, base + of(place), expected, &block(80_000 + place as u32))
            })
            .into();
        assert!(copies.response(&mut world, copy).0.status().is_success());
        let has_won: Vec<bool> = tried
            .into_iter()
            .map(|cids| {
                let [compare, write] = cids.map(|cid| pairs.response(&mut world, cid).0.status());
                let differed = compare.is(Status::COMPARE_FAILURE) && write.is(Status::ABORTED_FAILED_FUSED);
                assert!(differed || compare.is_success() && write.is_success(), "{compare}, {write}");
                !differed
            })
            .collect();
        for (count, has_won) in won.iter_mut().zip(&has_won) {
            *count += u32::from(*has_won);
        }
        let mut copied = source.clone();
        let mut put = |at: u64, block: &[u8]| {
            copied[at as usize * BLOCK as usize..][..BLOCK as usize].copy_from_slice(block);
        };
        let there = |at: u64| content(&world.disk, TO + at, 1);
        // The Copy may be first or last, where both change the block; what it has not copied yet may have changed.
        for place in [1, 2] {
            let new = block(80_000 + place as u32);
            if has_won[place] && there(of(place)) == new {
                put(of(place), &new);
            }
        }
        assert!(content(&world.disk, TO, BLOCKS) == copied, "round {round}: a block is neither's");
        assert!(has_won[2], "nobody else changes the source");
        assert!(content(&world.disk, FROM + of(2), 1) == block(80_002));
        world.check_credits();
    }
    assert!(won[0] > 0 && won[0] < 36 && won[1] > 0 && won[1] < 36, "no race: {won:?}");
}
