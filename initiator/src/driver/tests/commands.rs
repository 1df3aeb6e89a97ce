//! Admin commands and raw commands for a disk that was opened: no other gets them.

use super::super::{DriverConfig, DriverEvent, QueueKind, Recipient, Unanswered};
use super::rig::{BLOCK, BLOCKS, Rig, SECOND, config, read};
use super::target::{Capsule, Disk};
use core::time::Duration;
use nvme_proto::admin::identify::IdentifyNamespace;
use nvme_proto::admin::log_page::AnaState;
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::{Nsid, Sqe, Status};
use nvmf_host::admin::{self, AdminCommand};
use nvmf_host::{AdminData, Command, RecoveryPolicy};
use zerocopy::FromBytes;

/// The numbers of what [`submit`] submits.
const RAW: u32 = 7;
const IDENTIFY: u32 = 8;

fn reservation_report() -> AdminCommand {
    let sqe = Sqe::new(NvmOpcode::RESERVATION_REPORT.0).with_nsid(Nsid(1));
    AdminCommand { command: Command::new(sqe), data: AdminData::None }
}

/// A raw command and an Admin command for the disk.
fn submit(rig: &mut Rig) {
    let identify = admin::identify_namespace(Nsid(1));
    rig.driver.submit_command(RAW, QueueKind::Io, Recipient::OpenedDisk, reservation_report());
    rig.driver.submit_command(IDENTIFY, QueueKind::Admin, Recipient::OpenedDisk, identify);
}

/// What ended so far: with the blocks that Identify told of, or without having been sent.
fn ended(rig: &Rig) -> Vec<(u32, Result<u64, Unanswered>)> {
    let blocks = |data: &[u8]| IdentifyNamespace::read_from_bytes(data).map_or(0, |it| it.nsze.get());
    let ended = |event: &DriverEvent| match event {
        DriverEvent::Admin(number, reply) => {
            Some((*number, reply.as_ref().map(|reply| blocks(&reply.data)).map_err(|it| *it)))
        }
        _ => None,
    };
    rig.events.iter().filter_map(ended).collect()
}

fn opened() -> Rig {
    let mut rig = Rig::ready();
    rig.submit(1, read(0, 1));
    rig.run();
    rig.target.seen.clear();
    rig
}

fn another() -> Disk {
    Disk::new(9, BLOCK, 2 * BLOCKS)
}

#[test]
fn commands_that_waited_for_a_connection_go_to_no_other_disk() {
    let mut rig = opened();
    rig.target.closed = true;
    rig.target.disconnect();
    rig.run();
    submit(&mut rig);
    rig.target.disks.insert(1, another());
    rig.target.closed = false;
    rig.pass(20 * SECOND);
    assert_eq!(rig.driver.foreign().count(), 1);
    assert_eq!((rig.target.seen.len(), ended(&rig)), (0, vec![]), "they wait");
    rig.target.disks.insert(1, Disk::new(1, BLOCK, BLOCKS));
    rig.target.announce();
    rig.run();
    assert_eq!(rig.target.seen.len(), 1, "the disk that was opened is back");
    assert_eq!(ended(&rig), [(RAW, Ok(0)), (IDENTIFY, Ok(BLOCKS as u64))]);
}

#[test]
fn commands_for_a_disk_that_does_not_come_back_fail_when_its_operations_do() {
    let mut rig = opened();
    rig.target.disconnect();
    rig.target.disks.insert(1, another());
    rig.submit(2, read(0, 1));
    submit(&mut rig);
    rig.pass(50 * SECOND);
    assert_eq!((rig.result(2), ended(&rig)), (None, vec![]));
    rig.pass(20 * SECOND);
    assert!(rig.result(2).is_some());
    let unsent = Err(Unanswered::NotSent);
    assert_eq!((rig.target.seen.len(), ended(&rig)), (0, vec![(RAW, unsent), (IDENTIFY, unsent)]));
}

#[test]
fn commands_for_a_disk_that_was_taken_away_fail_at_once() {
    for other in [Some(another()), None] {
        let mut rig = opened();
        rig.target.disks.remove(&1);
        rig.target.disks.extend(other.map(|other| (1, other)));
        rig.target.announce();
        rig.run();
        submit(&mut rig);
        rig.run();
        let unsent = Err(Unanswered::NotSent);
        assert_eq!((rig.target.seen.len(), ended(&rig)), (0, vec![(RAW, unsent), (IDENTIFY, unsent)]));
    }
}

#[test]
fn commands_for_a_disk_wait_while_a_change_is_looked_into() {
    let mut rig = opened();
    rig.target.hold_admin = Some(AdminOpcode::IDENTIFY);
    rig.target.announce();
    rig.run();
    submit(&mut rig);
    rig.run();
    assert_eq!((rig.target.seen.len(), ended(&rig)), (0, vec![]));
    rig.target.hold_admin = None;
    rig.target.release();
    rig.run();
    assert_eq!(rig.target.seen.len(), 1);
    assert_eq!(ended(&rig), [(RAW, Ok(0)), (IDENTIFY, Ok(BLOCKS as u64))]);
}

#[test]
fn commands_for_a_disk_go_over_the_path_that_shows_it() {
    let mut rig = Rig::pair(config(), |_, _| {});
    rig.submit(1, read(0, 1));
    rig.run();
    rig.with_target(1, |other| other.disks.clear());
    rig.target.disconnect();
    // The first path, which is preferred, shows another disk from now on.
    let other = rig.other.as_mut().expect("there are two");
    other.disks.insert(1, Disk::new(1, BLOCK, BLOCKS));
    rig.target.disks.insert(1, another());
    rig.pass(20 * SECOND);
    (0..2).for_each(|path| rig.target_of(path).seen.clear());
    submit(&mut rig);
    rig.run();
    assert_eq!((rig.target_of(0).seen.len(), rig.target_of(1).seen.len()), (0, 1));
    assert_eq!(ended(&rig), [(RAW, Ok(0)), (IDENTIFY, Ok(BLOCKS as u64))]);
}

/// As an operation does: what was refused for want of access is not sent there again before there is some.
#[test]
fn command_that_a_path_gives_no_access_for_goes_elsewhere_and_so_does_the_next() {
    let mut rig = Rig::pair(config(), |_, target| target.set_access(AnaState::OPTIMIZED));
    rig.submit(1, read(0, 1));
    rig.run();
    let transition = |_: &Capsule, io: bool| io.then_some(Status::ANA_TRANSITION);
    rig.target.refuse = transition;
    rig.target.hold_admin = Some(AdminOpcode::GET_LOG_PAGE);
    (0..2).for_each(|path| rig.target_of(path).seen.clear());
    for (number, seen) in [(1, (1, 1)), (2, (1, 2))] {
        rig.driver.submit_command(number, QueueKind::Io, Recipient::OpenedDisk, reservation_report());
        rig.run();
        assert_eq!((rig.target_of(0).seen.len(), rig.target_of(1).seen.len()), seen, "{:?}", ended(&rig));
    }
}

#[test]
fn command_for_no_disk_is_answered_by_who_has_none_and_reaches_none_that_appears() {
    let absent = || {
        let sqe = Sqe::new(NvmOpcode::WRITE_ZEROES.0).with_nsid(Nsid(2));
        AdminCommand { command: Command::new(sqe), data: AdminData::None }
    };
    let mut rig = opened();
    rig.driver.submit_command(RAW, QueueKind::Io, Recipient::NoDisk, absent());
    rig.run();
    assert_eq!((rig.target.seen.len(), ended(&rig).len()), (1, 1), "the controller answers");
    // It appears while the command waits for a connection.
    rig.target.closed = true;
    rig.target.disconnect();
    rig.run();
    rig.driver.submit_command(IDENTIFY, QueueKind::Io, Recipient::NoDisk, absent());
    rig.target.disks.insert(2, another());
    rig.target.closed = false;
    rig.target.seen.clear();
    rig.pass(15 * SECOND);
    assert_eq!(ended(&rig)[1..], [(IDENTIFY, Err(Unanswered::NotSent))]);
    assert_eq!(rig.target.seen, []);
}

#[test]
fn command_for_no_disk_goes_to_the_path_without_one() {
    let mut rig = Rig::pair(config(), |path, target| {
        // Each has disks of its own.
        target.disks.insert(1 + u32::from(path == 0), Disk::new(1, BLOCK, BLOCKS));
    });
    (0..2).for_each(|path| rig.target_of(path).seen.clear());
    let sqe = Sqe::new(NvmOpcode::FLUSH.0).with_nsid(Nsid(2));
    let command = AdminCommand { command: Command::new(sqe), data: AdminData::None };
    rig.driver.submit_command(RAW, QueueKind::Io, Recipient::NoDisk, command);
    rig.run();
    assert_eq!((rig.target_of(0).seen.len(), rig.target_of(1).seen.len()), (0, 1), "{:?}", ended(&rig));
}

fn not_ready(_: &Capsule, io: bool) -> Option<Status> {
    io.then_some(Status::NAMESPACE_NOT_READY)
}

/// The statuses of commands that ended.
fn statuses(rig: &Rig) -> Vec<(u32, Status)> {
    let status = |event: &DriverEvent| match event {
        DriverEvent::Admin(number, Ok(reply)) => Some((*number, reply.outcome.status)),
        _ => None,
    };
    rig.events.iter().filter_map(status).collect()
}

#[test]
fn command_for_a_disk_that_is_not_ready_waits_until_it_is() {
    let mut rig = opened();
    rig.target.refuse = not_ready;
    rig.driver.submit_command(RAW, QueueKind::Io, Recipient::OpenedDisk, reservation_report());
    rig.driver.submit_command(IDENTIFY, QueueKind::Io, Recipient::Controller, reservation_report());
    rig.pass(5 * SECOND);
    assert_eq!(
        statuses(&rig),
        [(IDENTIFY, Status::NAMESPACE_NOT_READY)],
        "what is for the controller is sent once"
    );
    rig.target.refuse = |_, _| None;
    rig.pass(15 * SECOND);
    assert_eq!(statuses(&rig)[1..], [(RAW, Status::SUCCESS)]);
}

#[test]
fn command_for_a_disk_that_does_not_become_ready_ends_when_operations_do() {
    let mut rig = opened();
    rig.target.refuse = not_ready;
    rig.driver.submit_command(RAW, QueueKind::Io, Recipient::OpenedDisk, reservation_report());
    rig.submit(2, read(0, 1));
    rig.pass(59 * SECOND);
    assert_eq!((rig.result(2), statuses(&rig)), (None, vec![]));
    rig.pass(12 * SECOND);
    assert!(rig.result(2).is_some());
    assert_eq!(statuses(&rig), [(RAW, Status::NAMESPACE_NOT_READY)]);
}

#[test]
fn command_that_is_withdrawn_while_it_is_sent_is_not_sent_again() {
    let mut rig = opened();
    rig.target.hold = true;
    rig.driver.submit_command(RAW, QueueKind::Io, Recipient::OpenedDisk, reservation_report());
    rig.run();
    rig.driver.withdraw_command(RAW);
    rig.target.answer(0, Status::NAMESPACE_NOT_READY);
    rig.pass(20 * SECOND);
    assert_eq!(rig.target.seen.len(), 1);
}

#[test]
fn commands_that_wait_for_a_connection_fail_when_operations_do() {
    let fast_io_fail_timeout = Some(2 * SECOND);
    let recovery = RecoveryPolicy { fast_io_fail_timeout, ..config().recovery };
    let mut rig = Rig::ready_with(DriverConfig { recovery, ..config() }, |_| {});
    rig.target.closed = true;
    rig.target.disconnect();
    rig.run();
    rig.submit(1, read(0, 1));
    submit(&mut rig);
    let identify = admin::identify_controller();
    rig.driver.submit_command(9, QueueKind::Admin, Recipient::Controller, identify);
    rig.pass(SECOND);
    assert_eq!((rig.result(1), ended(&rig)), (None, vec![]));
    rig.pass(2 * SECOND);
    assert!(rig.result(1).is_some());
    let unsent = Err(Unanswered::NotSent);
    assert_eq!(ended(&rig), [(RAW, unsent), (IDENTIFY, unsent), (9, unsent)]);
}

/// Submits a raw command for the disk that waits for a path for so long.
fn submit_bounded(rig: &mut Rig, most: Duration) {
    rig.driver.submit_command(RAW, QueueKind::Io, Recipient::OpenedDisk, reservation_report());
    rig.driver.bound_command(RAW, Some(rig.now + most));
}

#[test]
fn command_waits_for_a_path_as_long_as_it_may_and_is_sent_then_if_one_is_there() {
    let mut rig = opened();
    rig.target.set_access(AnaState::INACCESSIBLE);
    rig.run();
    submit_bounded(&mut rig, 5 * SECOND);
    rig.pass(4 * SECOND);
    assert_eq!(ended(&rig), []);
    rig.pass(SECOND);
    assert_eq!((rig.target.seen.len(), ended(&rig)), (0, vec![(RAW, Err(Unanswered::NotSent))]));
    // No time is left, as after a try that took all of it.
    rig.target.set_access(AnaState::OPTIMIZED);
    rig.run();
    rig.events.clear();
    submit_bounded(&mut rig, Duration::ZERO);
    rig.run();
    assert_eq!((rig.target.seen.len(), ended(&rig)), (1, vec![(RAW, Ok(0))]));
}

#[test]
fn namespace_that_is_not_ready_is_waited_for_by_a_command_as_long_as_a_path() {
    let mut rig = opened();
    rig.target.refuse = not_ready;
    submit_bounded(&mut rig, 5 * SECOND);
    rig.pass(5 * SECOND - SECOND / 10);
    assert_eq!(statuses(&rig), []);
    rig.pass(SECOND / 10);
    assert_eq!(statuses(&rig), [(RAW, Status::NAMESPACE_NOT_READY)]);
}

/// A driver that has lost a write: it is fenced for longer than commands wait for a path here, as its controller may not know.
fn fenced() -> Rig {
    let mut rig = Rig::ready();
    rig.target.hold = true;
    rig.submit(1, rig.write(4, 1, 0xaa));
    rig.run();
    rig.target.disconnect_io();
    rig.target.hold = false;
    rig
}

#[test]
fn fence_is_waited_for_by_a_command_that_has_a_path_and_not_without_one() {
    let mut rig = fenced();
    rig.target.closed = true;
    submit_bounded(&mut rig, 3 * SECOND);
    rig.pass(3 * SECOND);
    assert_eq!((rig.driver.is_fenced(), ended(&rig)), (true, vec![(RAW, Err(Unanswered::NotSent))]));
    let mut rig = fenced();
    submit_bounded(&mut rig, 3 * SECOND);
    rig.pass(4 * SECOND);
    assert_eq!((rig.driver.is_fenced(), ended(&rig)), (true, vec![]));
    rig.pass(20 * SECOND);
    assert_eq!((rig.driver.is_fenced(), ended(&rig)), (false, vec![(RAW, Ok(0))]));
}

#[test]
fn command_that_is_withdrawn_before_it_is_sent_is_not_sent() {
    let mut rig = opened();
    rig.target.disconnect();
    submit(&mut rig);
    rig.driver.withdraw_command(RAW);
    rig.pass(20 * SECOND);
    assert_eq!((rig.target.seen.len(), ended(&rig)), (0, vec![(IDENTIFY, Ok(BLOCKS as u64))]));
}
