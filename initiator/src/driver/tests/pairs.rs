//! What needs two commands at once or must not be done twice, and copies within the disk.

use super::super::{DriverConfig, Op};
use super::rig::{BLOCK, Rig, SECOND, config, read};
use super::target::{COPY_BLOCKS, Capsule};
use crate::Effect;
use nvme_proto::Status;
use nvme_proto::opcode::NvmOpcode;
use nvmf_block::{BlockError, BlockRange};
use nvmf_host::AssociationConfig;

fn byte(rig: &Rig, block: usize) -> u8 {
    rig.target.disks[&1].bytes[block * BLOCK]
}

/// How many of these the target has seen.
fn seen(rig: &Rig, opcode: NvmOpcode) -> usize {
    rig.target.seen.iter().filter(|(seen, ..)| *seen == opcode).count()
}

#[test]
fn block_is_written_if_it_holds_what_is_expected() {
    let mut rig = Rig::ready();
    rig.submit(1, rig.compare_and_write(4, 1, 2));
    rig.run();
    assert_eq!((rig.result(1), byte(&rig, 4)), (Some(Ok(())), 2));
    rig.submit(2, rig.compare_and_write(4, 1, 3));
    rig.run();
    assert_eq!((rig.result(2), byte(&rig, 4)), (Some(Err(BlockError::CompareFailed)), 2));
}

/// The target panics when anything comes between the two.
#[test]
fn nothing_comes_between_the_two_commands_of_a_pair() {
    // Queues with room for three commands.
    let association = AssociationConfig { io_queue_entries: 4, ..config().association };
    let mut rig = Rig::ready_with(DriverConfig { association, ..config() }, |_| {});
    let pair = rig.compare_and_write(4, 1, 1);
    for tag in 0..20 {
        rig.submit(2 * tag, read(tag, 2));
        rig.submit(2 * tag + 1, pair);
    }
    rig.run();
    assert!((0..40).all(|tag| rig.result(tag) == Some(Ok(()))), "{:?}", rig.ended);
}

#[test]
fn pair_finds_no_room_in_the_smallest_queue() {
    let association = AssociationConfig { io_queue_entries: 2, ..config().association };
    let mut rig = Rig::ready_with(DriverConfig { association, ..config() }, |_| {});
    rig.submit(1, rig.compare_and_write(4, 1, 2));
    rig.submit(2, read(4, 1));
    rig.run();
    assert_eq!((rig.result(1), rig.result(2)), (Some(Err(BlockError::Unsupported)), Some(Ok(()))));
}

#[test]
fn pair_that_was_in_flight_when_its_connection_was_lost_is_not_sent_again() {
    for written in [false, true] {
        let mut rig = Rig::ready_with(config(), |target| target.late = written);
        rig.target.hold = true;
        rig.submit(1, rig.compare_and_write(4, 1, 2));
        rig.submit(2, read(4, 1));
        rig.run();
        rig.target.disconnect();
        rig.target.hold = false;
        if written {
            rig.target.carry_out_late();
        }
        rig.pass(5 * SECOND);
        // Whether it was done is not known; a second time it would have failed where it was.
        assert_eq!((rig.result(1), rig.result(2)), (Some(Err(BlockError::Aborted)), Some(Ok(()))));
        assert_eq!(seen(&rig, NvmOpcode::WRITE), 1);
        assert_eq!(byte(&rig, 4), if written { 2 } else { 1 });
    }
}

#[test]
fn pair_waits_for_a_connection() {
    let mut rig = Rig::ready();
    rig.target.disconnect();
    rig.pass(SECOND / 10);
    rig.submit(1, rig.compare_and_write(4, 1, 2));
    rig.pass(5 * SECOND);
    assert_eq!((rig.result(1), byte(&rig, 4)), (Some(Ok(())), 2));
}

#[test]
fn pair_is_sent_again_only_when_nothing_of_it_was_done() {
    let not_ready = |capsule: &Capsule, io: bool| {
        (io && capsule.sqe.opcode == NvmOpcode::COMPARE.0).then_some(Status::NAMESPACE_NOT_READY)
    };
    let mut rig = Rig::ready_with(config(), |target| target.refuse = not_ready);
    rig.submit(1, rig.compare_and_write(4, 1, 2));
    rig.pass(SECOND / 100);
    assert_eq!(rig.result(1), None);
    rig.target.refuse = |_, _| None;
    rig.pass(5 * SECOND);
    assert_eq!((rig.result(1), byte(&rig, 4)), (Some(Ok(())), 2));
    assert!(seen(&rig, NvmOpcode::WRITE) > 1);

    let failed = |capsule: &Capsule, io: bool| {
        (io && capsule.sqe.opcode == NvmOpcode::COMPARE.0).then_some(Status::INTERNAL_ERROR)
    };
    let mut rig = Rig::ready_with(config(), |target| target.refuse = failed);
    rig.submit(1, rig.compare_and_write(4, 1, 2));
    rig.pass(5 * SECOND);
    assert_eq!((rig.result(1), seen(&rig, NvmOpcode::WRITE)), (Some(Err(BlockError::Os(5))), 1));
}

/// The gateway of a group that it met was fenced, say: the disk is there.
#[test]
fn pair_that_met_a_failure_on_the_way_was_aborted_and_its_disk_is_not_gone() {
    fn is_first(capsule: &Capsule, io: bool) -> bool {
        io && capsule.sqe.opcode == NvmOpcode::COMPARE.0
    }
    let cases: [fn(&Capsule, bool) -> Option<Status>; 3] = [
        |capsule, io| is_first(capsule, io).then_some(Status::INTERNAL_PATH_ERROR),
        |capsule, io| is_first(capsule, io).then_some(Status::INTERNAL_PATH_ERROR.with_dnr()),
        |capsule, io| is_first(capsule, io).then_some(Status::KEEP_ALIVE_EXPIRED),
    ];
    for refuse in cases {
        let mut rig = Rig::ready_with(config(), |target| target.refuse = refuse);
        rig.submit(1, rig.compare_and_write(4, 1, 2));
        rig.pass(5 * SECOND);
        assert_eq!(rig.failure(1), Some((BlockError::Aborted, Effect::Unknown)));
        assert_eq!(seen(&rig, NvmOpcode::WRITE), 1, "it was sent again");
    }
}

fn copy(from: u64, to: u64, blocks: u64) -> Op {
    Op::Copy { range: BlockRange::new(to, blocks), from, fua: false }
}

#[test]
fn copy_goes_in_pieces_that_the_controller_takes() {
    let mut rig = Rig::ready();
    let blocks = 3 * u64::from(COPY_BLOCKS) + 7;
    for block in 0..blocks as usize {
        rig.target.disks.get_mut(&1).unwrap().bytes[block * BLOCK..][..BLOCK].fill(block as u8);
    }
    rig.submit(1, copy(0, 400, blocks));
    rig.run();
    assert_eq!((rig.result(1), seen(&rig, NvmOpcode::COPY)), (Some(Ok(())), 4));
    for block in 0..blocks as usize {
        assert_eq!(byte(&rig, 400 + block), block as u8, "block {block}");
    }
    assert_eq!(byte(&rig, 399), 1);
    for (tag, (from, to)) in [(2, (1023, 0)), (3, (0, 1023)), (4, (u64::MAX, 0))] {
        rig.submit(tag, copy(from, to, 2));
        rig.run();
        assert_eq!(rig.result(tag), Some(Err(BlockError::OutOfRange)));
    }
}

#[test]
fn copy_in_flight_is_issued_again_after_a_loss() {
    let mut rig = Rig::ready();
    rig.target.hold = true;
    rig.submit(1, copy(0, 500, 1));
    rig.run();
    rig.target.disconnect();
    rig.target.hold = false;
    rig.target.disks.get_mut(&1).unwrap().bytes[0] = 9;
    rig.pass(5 * SECOND);
    assert_eq!((rig.result(1), byte(&rig, 500)), (Some(Ok(())), 9));
    assert_eq!(seen(&rig, NvmOpcode::COPY), 2);
}
