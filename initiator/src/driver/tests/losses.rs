//! Lost connections: what the controller may still carry out, and when it is safe to write on.

use super::super::{DriverConfig, DriverEvent, Op, QueueKind, Recipient};
use super::rig::{BLOCK, Rig, SECOND, config, read};
use super::target::{Capsule, Target};
use crate::Effect;
use core::time::Duration;
use nvme_proto::admin::log_page::LogPageId;
use nvme_proto::opcode::AdminOpcode;
use nvme_proto::{Nsid, Status};
use nvmf_block::{BlockError, BlockOp, BlockRange};
use nvmf_host::{RecoveryPolicy, admin};

/// The Keep Alive Timeout of the rig's driver, and its controller's granularity.
const KATO: Duration = Duration::from_secs(5);
const KAS: Duration = Duration::from_secs(1);

/// When an operation has ended.
fn ended_at(rig: &mut Rig, tag: u64) -> Duration {
    for _ in 0..600 {
        if let Some(result) = rig.result(tag) {
            assert_eq!(result, Ok(()));
            return rig.now;
        }
        rig.pass(SECOND / 10);
    }
    panic!("not ended after a minute: {:?}", rig.events);
}

/// A driver that gave its controller up because it does not answer, with an operation in flight; the controller does not
/// know of it. Gives the time at which it was given up: until then something may have reached the controller.
fn given_up(traffic_based: bool, submit: impl FnOnce(&mut Rig)) -> (Rig, Duration) {
    let mut rig = Rig::ready_with(config(), |target| target.traffic_based_keep_alive = traffic_based);
    (rig.target.hold, rig.target.hold_admin) = (true, Some(AdminOpcode::KEEP_ALIVE));
    rig.pass(SECOND);
    submit(&mut rig);
    while !rig.events.iter().any(|event| matches!(event, DriverEvent::Lost(_))) {
        rig.pass(SECOND / 10);
        assert!(rig.now < 60 * SECOND, "it waits for ever");
    }
    (rig.target.hold, rig.target.hold_admin) = (false, None);
    let now = rig.now;
    (rig, now)
}

#[test]
fn write_in_flight_is_held_until_the_controller_must_know_of_the_loss() {
    for (traffic_based, intervals) in [(false, 1), (true, 2)] {
        let (mut rig, last) = given_up(traffic_based, |rig| rig.submit(1, rig.write(4, 1, 0xaa)));
        let knows = last + intervals * (KATO + KAS);
        let ended = ended_at(&mut rig, 1);
        assert!(ended + SECOND / 5 >= knows, "{ended:?}, {knows:?}, traffic-based: {traffic_based}");
        assert!(ended < knows + 2 * SECOND, "{ended:?}, {knows:?}, traffic-based: {traffic_based}");
        assert_eq!(rig.target.disks[&1].bytes[4 * BLOCK], 0xaa);
    }
}

#[test]
fn what_is_fenced_holds_only_the_same_blocks_back() {
    let (mut rig, last) = given_up(false, |rig| rig.submit(1, rig.write(4, 4, 0xaa)));
    let knows = last + KATO + KAS;
    rig.submit(2, read(8, 4));
    rig.submit(3, rig.write(8, 1, 0xaa));
    rig.submit(4, rig.write(3, 1, 0xaa));
    rig.submit(5, BlockOp::Flush);
    // Who copies a block reads it.
    rig.submit(10, Op::Copy { range: BlockRange::new(40, 4), from: 7, fua: false });
    rig.submit(11, Op::Copy { range: BlockRange::new(50, 4), from: 8, fua: false });
    let overlapping = [(6, 7, 1), (7, 3, 2), (8, 0, 16)];
    for (tag, start, blocks) in overlapping {
        rig.submit(
            tag,
            BlockOp::WriteZeroes { range: BlockRange::new(start, blocks), deallocate: true, fua: false },
        );
    }
    // Whoever was told that nobody knows what became of it finds it as it stays.
    rig.submit(9, read(7, 2));
    for tag in [2, 3, 4, 5, 11] {
        assert!(ended_at(&mut rig, tag) < last + 2 * SECOND, "{tag} waits");
    }
    for tag in 6..=10 {
        assert_eq!(rig.result(tag), None, "{tag} does not wait");
    }
    for (tag, ..) in overlapping.into_iter().chain([(9, 7, 2), (10, 7, 4)]) {
        assert!(ended_at(&mut rig, tag) + SECOND / 5 >= knows, "{tag} does not wait");
    }
}

#[test]
fn write_that_failed_while_it_was_fenced_holds_the_next_one_back() {
    let recovery = RecoveryPolicy { fast_io_fail_timeout: Some(Duration::ZERO), ..config().recovery };
    let mut rig = Rig::ready_with(DriverConfig { recovery, ..config() }, |target| target.late = true);
    rig.target.hold = true;
    rig.submit(1, rig.write(4, 1, 0xaa));
    rig.run();
    rig.target.disconnect_io();
    rig.target.hold = false;
    let knows = rig.now + KATO + KAS;
    while rig.result(1).is_none() {
        rig.pass(SECOND / 100);
    }
    assert_eq!(rig.result(1), Some(Err(BlockError::Gone)));
    // Connected again, and the user writes the block anew.
    while !rig.events.iter().any(|event| matches!(event, DriverEvent::Ready { .. })) {
        rig.pass(SECOND / 100);
    }
    assert!(rig.now < knows);
    rig.submit(2, rig.write(4, 1, 0xbb));
    rig.pass(SECOND);
    rig.target.carry_out_late();
    assert!(ended_at(&mut rig, 2) + SECOND / 5 >= knows);
    assert_eq!(rig.target.disks[&1].bytes[4 * BLOCK], 0xbb);
}

/// A read that is in flight each time that its connection is lost, so often.
fn lost_again_and_again(losses: usize) -> Rig {
    let mut rig = Rig::ready();
    rig.target.hold = true;
    rig.submit(1, read(4, 1));
    rig.run();
    for loss in 1..=losses {
        rig.target.disconnect();
        rig.pass(3 * SECOND);
        assert_eq!((rig.result(1), rig.target.held.len()), (None, 1), "loss {loss}");
    }
    rig.target.hold = false;
    rig
}

#[test]
fn operation_outlasts_any_number_of_losses_in_the_time_for_which_io_waits() {
    let mut rig = lost_again_and_again(18);
    rig.target.release();
    rig.run();
    assert_eq!(rig.result(1), Some(Ok(())));
}

#[test]
fn operation_that_is_lost_for_as_long_as_io_waits_is_aborted() {
    // The first loss was 57 seconds ago, and a lost connection is waited for a minute.
    let mut rig = lost_again_and_again(19);
    rig.pass(5 * SECOND);
    assert_eq!(rig.result(1), None);
    rig.target.disconnect();
    rig.run();
    assert_eq!(rig.result(1), Some(Err(BlockError::Aborted)));
    rig.submit(2, read(4, 1));
    rig.pass(3 * SECOND);
    assert_eq!(rig.result(2), Some(Ok(())), "the disk is there");
}

#[test]
fn losses_leave_an_operation_the_tries_that_it_has_where_the_controller_fails_it() {
    let mut rig = lost_again_and_again(8);
    rig.target.refuse = |_, io| io.then_some(Status::INTERNAL_ERROR);
    rig.target.disconnect();
    let lost = rig.target.seen.len();
    while rig.target.seen.len() < lost + 2 {
        rig.pass(SECOND / 20);
        assert_eq!(rig.result(1), None, "it was failed for the first time");
    }
    rig.target.refuse = |_, _| None;
    rig.pass(SECOND);
    assert_eq!(rig.result(1), Some(Ok(())));
}

/// A host that comes back finds its namespace not ready while the disk still has what it left there.
#[test]
fn status_after_a_loss_is_waited_for_from_then_on() {
    let recovery = RecoveryPolicy { fast_io_fail_timeout: Some(5 * SECOND), ..config().recovery };
    let mut rig = Rig::ready_with(DriverConfig { recovery, ..config() }, |_| {});
    let not_ready = |_: &Capsule, io: bool| io.then_some(Status::NAMESPACE_NOT_READY);
    rig.target.refuse = not_ready;
    rig.submit(1, read(4, 1));
    rig.submit(2, read(5, 1));
    rig.run();
    rig.target.refuse = |_, _| None;
    rig.target.hold = true;
    rig.pass(20 * SECOND);
    assert_eq!((rig.result(1), rig.target.held.len()), (None, 2), "they are under way");
    rig.target.refuse = not_ready;
    rig.target.hold = false;
    rig.target.disconnect();
    rig.pass(5 * SECOND);
    assert_eq!((rig.result(1), rig.result(2)), (None, None), "not ready for fewer than 5 seconds");
    let of_second = |capsule: &Capsule, io: bool| {
        (io && capsule.first_block() == 5).then_some(Status::NAMESPACE_NOT_READY)
    };
    rig.target.refuse = of_second;
    rig.pass(4 * SECOND);
    assert_eq!(rig.result(1), Some(Ok(())));
    assert!(matches!(rig.result(2), Some(Err(_))), "it is waited for as long, and no longer");
}

/// What it waited for, and a connection that was lost, cost it none of its tries.
#[test]
fn only_failures_count_as_tries() {
    let recovery = RecoveryPolicy { retries_max: 3, ctrl_loss_timeout: None, ..config().recovery };
    let mut rig = Rig::ready_with(DriverConfig { recovery, ..config() }, |_| {});
    rig.target.refuse = |_, io| io.then_some(Status::NAMESPACE_NOT_READY);
    rig.submit(1, read(4, 1));
    rig.pass(20 * SECOND);
    rig.target.hold = true;
    rig.target.refuse = |_, _| None;
    let is_sent = |rig: &mut Rig| {
        while rig.target.held.is_empty() {
            assert_eq!(rig.result(1), None);
            rig.pass(SECOND);
        }
    };
    is_sent(&mut rig);
    rig.target.disconnect();
    rig.target.held.clear();
    for _ in 0..3 {
        is_sent(&mut rig);
        rig.target.answer(0, Status::TRANSIENT_TRANSPORT_ERROR);
    }
    is_sent(&mut rig);
    rig.target.answer(0, Status::TRANSIENT_TRANSPORT_ERROR);
    rig.run();
    assert!(matches!(rig.result(1), Some(Err(_))), "four times are too many");
}

/// A path whose command is not answered in time is given up, and with it everybody's connection.
#[test]
fn operation_that_ends_its_own_association_each_time_is_aborted_after_its_tries() {
    let recovery = RecoveryPolicy { ctrl_loss_timeout: None, ..config().recovery };
    let mut rig = Rig::ready_with(DriverConfig { recovery, ..config() }, |_| {});
    rig.target.hold = true;
    rig.submit(1, read(4, 1));
    rig.pass(SECOND);
    // One that is in flight at the first two of the losses is not to blame.
    rig.submit(2, read(5, 1));
    let losses = |rig: &Rig| rig.events.iter().filter(|event| matches!(event, DriverEvent::Lost(_))).count();
    while losses(&rig) < 2 {
        rig.pass(SECOND);
        assert!(rig.now < 120 * SECOND, "{:?}", rig.events);
    }
    rig.pass(5 * SECOND);
    let of_second = rig.target.held.iter().position(|held| held.first_block() == 5).expect("sent again");
    rig.target.answer(of_second, Status::SUCCESS);
    rig.pass(180 * SECOND);
    assert_eq!(rig.result(2), Some(Ok(())));
    assert_eq!((rig.result(1), losses(&rig)), (Some(Err(BlockError::Aborted)), 4));
}

#[test]
fn read_in_flight_holds_nothing_back() {
    let (mut rig, _) = given_up(true, |rig| rig.submit(1, read(4, 1)));
    let lost = rig.now;
    assert!(ended_at(&mut rig, 1) < lost + 2 * SECOND);
    rig.submit(2, rig.write(4, 1, 0xaa));
    assert!(ended_at(&mut rig, 2) < lost + 2 * SECOND);
}

#[test]
fn write_in_flight_is_issued_soon_when_the_controller_closed_the_connection() {
    let mut rig = Rig::ready_with(config(), |target| target.traffic_based_keep_alive = true);
    rig.target.hold = true;
    rig.submit(1, rig.write(4, 1, 0xaa));
    rig.run();
    rig.target.disconnect();
    rig.target.hold = false;
    let lost = rig.now;
    assert!(ended_at(&mut rig, 1) < lost + 2 * SECOND);
    assert_eq!(rig.target.disks[&1].bytes[4 * BLOCK], 0xaa);
}

#[test]
fn write_in_flight_is_held_when_the_controller_closed_an_io_queue_only() {
    let mut rig = Rig::ready_with(config(), |target| target.traffic_based_keep_alive = true);
    rig.target.hold = true;
    rig.submit(1, rig.write(4, 1, 0xaa));
    rig.run();
    rig.target.disconnect_io();
    rig.target.hold = false;
    // Its other queues may be served on, if it does not hear that the host closed them.
    let knows = rig.now + 2 * (KATO + KAS);
    let ended = ended_at(&mut rig, 1);
    assert!(ended >= knows && ended < knows + 2 * SECOND, "{ended:?}, {knows:?}");
}

#[test]
fn admin_command_in_flight_holds_every_change_back() {
    let mut rig = Rig::ready_with(config(), |target| target.traffic_based_keep_alive = true);
    rig.target.hold_admin = Some(AdminOpcode::GET_LOG_PAGE);
    let command = admin::get_log_page(LogPageId::SMART, Nsid::ALL, 0, 512);
    rig.driver.submit_command(3, QueueKind::Admin, Recipient::Controller, command);
    rig.run();
    rig.target.disconnect_io();
    rig.target.hold_admin = None;
    let (lost, knows) = (rig.now, rig.now + 2 * (KATO + KAS));
    rig.submit(1, read(4, 1));
    rig.submit(2, rig.write(4, 1, 0xaa));
    assert!(ended_at(&mut rig, 1) < lost + 2 * SECOND);
    let ended = ended_at(&mut rig, 2);
    assert!(ended >= knows && ended < knows + 2 * SECOND, "{ended:?}, {knows:?}");
}

pub(super) fn refuse_reset(capsule: &Capsule, io: bool) -> Option<Status> {
    let reset = !io && capsule.sqe.opcode == AdminOpcode::CROSS_CONTROLLER_RESET.0;
    reset.then_some(Status::INVALID_FIELD)
}

/// A host that loses an I/O queue with a write in flight, comes back, and writes the block anew; its controller is not told
/// of the loss. Gives how long the first write took.
fn written_again(prepare: impl FnOnce(&mut Target)) -> (Rig, Duration) {
    let mut rig = Rig::ready_with(config(), prepare);
    rig.target.hold = true;
    rig.submit(1, rig.write(4, 1, 0xaa));
    rig.run();
    rig.target.disconnect_io();
    rig.target.hold = false;
    let lost = rig.now;
    let took = ended_at(&mut rig, 1) - lost;
    rig.submit(2, rig.write(4, 1, 0xbb));
    rig.pass(SECOND);
    assert_eq!((rig.result(2), rig.target.disks[&1].bytes[4 * BLOCK]), (Some(Ok(())), 0xbb));
    rig.target.carry_out_late();
    (rig, took)
}

#[test]
fn late_write_overwrites_newer_data_unless_the_controller_was_reset() {
    // It takes longer than it says, and cannot be reset.
    let (rig, took) = written_again(|target| target.late = true);
    assert!(took >= KATO + KAS, "{took:?}");
    assert_eq!(rig.target.disks[&1].bytes[4 * BLOCK], 0xaa, "the stale write");
    // The same, and it can.
    for reset_takes in [0, 3] {
        let (rig, took) =
            written_again(|it| (it.late, it.resets, it.reset_takes) = (true, true, reset_takes));
        assert!(took < 2 * SECOND, "{took:?}");
        assert_eq!(rig.target.disks[&1].bytes[4 * BLOCK], 0xbb);
    }
}

#[test]
fn write_in_flight_is_held_for_its_time_when_the_reset_is_refused() {
    let (_, took) = written_again(|target| {
        target.resets = true;
        target.refuse = refuse_reset;
    });
    assert!(took >= KATO + KAS && took < KATO + KAS + 2 * SECOND, "{took:?}");
}

/// What became of it is not known: the error says so, and the fence stays for whoever comes when the disk is back.
#[test]
fn operation_that_waits_for_a_fence_fails_at_once_when_its_disk_is_taken_away() {
    let mut rig = Rig::ready();
    rig.target.hold = true;
    rig.target.late = true;
    rig.submit(1, rig.write(0, 1, 0xaa));
    rig.run();
    rig.target.disconnect_io();
    rig.pass(3 * SECOND);
    assert_eq!((rig.driver.is_fenced(), rig.result(1)), (true, None));
    rig.submit(2, rig.write(0, 1, 0xbb));
    let disk = rig.target.disks.remove(&1).expect("it is there");
    rig.target.announce();
    rig.run();
    assert_eq!(rig.failure(1), Some((BlockError::Gone, Effect::Unknown)));
    assert_eq!(rig.failure(2), Some((BlockError::Gone, Effect::Nothing)), "it was never sent");
    rig.target.hold = false;
    rig.target.disks.insert(1, disk);
    rig.target.announce();
    rig.run();
    rig.submit(3, read(0, 1));
    rig.run();
    assert_eq!((rig.driver.is_fenced(), rig.result(3)), (true, None), "nobody knows what it would read");
    rig.target.carry_out_late();
    rig.pass(20 * SECOND);
    assert_eq!((rig.driver.is_fenced(), rig.result(3)), (false, Some(Ok(()))));
    let mut first = [0];
    rig.memory.read(0, &mut first);
    assert_eq!(first, [0xaa], "what was carried out late");
}
