//! What an operation that failed may have done, in all its attempts and parts.

use super::super::DriverConfig;
use super::rig::{BLOCK, Rig, SECOND, buffer, config, read};
use super::target::Capsule;
use crate::Effect;
use nvme_proto::Status;
use nvme_proto::opcode::NvmOpcode;
use nvmf_block::{BlockError, BlockOp, BlockRange};
use nvmf_host::RecoveryPolicy;

/// Another host has taken the disk.
fn conflict(capsule: &Capsule, io: bool) -> Option<Status> {
    (io && capsule.sqe.opcode == NvmOpcode::WRITE.0).then_some(Status::RESERVATION_CONFLICT)
}

#[test]
fn write_that_was_refused_has_done_nothing() {
    let mut rig = Rig::ready();
    rig.target.refuse = conflict;
    rig.submit(1, rig.write(4, 1, 0xaa));
    rig.run();
    assert_eq!(rig.failure(1), Some((BlockError::ReservationConflict, Effect::Nothing)));
}

/// The first copy was carried out, and the second one is refused.
#[test]
fn write_that_was_lost_and_refused_when_it_was_sent_again_may_have_been_done() {
    let mut rig = Rig::ready_with(config(), |target| target.late = true);
    rig.target.hold = true;
    rig.submit(1, rig.write(4, 1, 0xaa));
    rig.run();
    rig.target.disconnect();
    (rig.target.hold, rig.target.refuse) = (false, conflict);
    rig.target.carry_out_late();
    rig.pass(5 * SECOND);
    assert_eq!(rig.target.disks[&1].bytes[4 * BLOCK], 0xaa);
    assert_eq!(rig.failure(1), Some((BlockError::ReservationConflict, Effect::Unknown)));
}

#[test]
fn write_of_which_a_part_was_refused_may_have_been_done_in_part() {
    let behind = |capsule: &Capsule, io: bool| {
        let slba = capsule.sqe.cdw10.get();
        (io && capsule.sqe.opcode == NvmOpcode::WRITE.0 && slba >= 16)
            .then_some(Status::NAMESPACE_WRITE_PROTECTED)
    };
    // Commands of 16 blocks.
    let mut rig = Rig::ready_with(config(), |target| (target.transfer_pages, target.refuse) = (1, behind));
    rig.submit(1, rig.write(0, 64, 0xaa));
    rig.pass(SECOND);
    assert_eq!(rig.target.disks[&1].bytes[0], 0xaa);
    assert_eq!(rig.failure(1), Some((BlockError::ReadOnly, Effect::Unknown)));
}

#[test]
fn write_that_was_never_sent_has_done_nothing() {
    let recovery = RecoveryPolicy { ctrl_loss_timeout: Some(SECOND), ..config().recovery };
    let mut rig = Rig::ready_with(DriverConfig { recovery, ..config() }, |_| {});
    rig.target.closed = true;
    rig.target.disconnect();
    rig.pass(SECOND / 10);
    rig.submit(1, rig.write(4, 1, 0xaa));
    rig.pass(5 * SECOND);
    assert_eq!(rig.failure(1), Some((BlockError::Gone, Effect::Nothing)));
}

#[test]
fn operation_that_changes_nothing_has_done_nothing() {
    let recovery = RecoveryPolicy { ctrl_loss_timeout: Some(SECOND), ..config().recovery };
    let mut rig = Rig::ready_with(DriverConfig { recovery, ..config() }, |_| {});
    rig.target.hold = true;
    rig.submit(1, read(4, 1));
    rig.submit(2, BlockOp::Compare { range: BlockRange::new(4, 1), with: buffer(1) });
    rig.submit(3, BlockOp::Flush);
    rig.run();
    rig.target.closed = true;
    rig.target.disconnect();
    rig.pass(5 * SECOND);
    for (tag, effect) in [(1, Effect::Nothing), (2, Effect::Nothing), (3, Effect::Unknown)] {
        assert_eq!(rig.failure(tag), Some((BlockError::Gone, effect)), "{tag}");
    }
}
