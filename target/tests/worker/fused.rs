//! Compare and Write through a worker.

use super::host::*;
use super::{pattern, read_write};
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{SglDescriptor, Sqe, Status};

const LBA: u64 = 77;

fn fused(flags: u8, opcode: NvmOpcode, sgl: SglDescriptor) -> Sqe {
    Sqe { flags, ..read_write(opcode, LBA, BLOCK, sgl) }
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
