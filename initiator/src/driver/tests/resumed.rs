//! Controllers that another process of this host used until it was killed: nothing is changed before what that had sent is over.

use super::super::{DriverConfig, DriverEvent, PathPolicy};
use super::losses::refuse_reset;
use super::rig::{BLOCK, BLOCKS, Rig, SECOND, buffer, config};
use super::target::{Capsule, Disk, Target};
use crate::ConnectionState;
use core::time::Duration;
use nvme_proto::Status;
use nvmf_block::{BlockError, BlockOp, BlockRange, Buffer};
use nvmf_host::RecoveryPolicy;

/// A process that is killed with a write in flight, of which its controller does not hear, and another one that takes over and
/// is handed a newer write of the same block. `before`: what happens in between.
fn taken_over(prepare: impl FnOnce(&mut Target), before: impl FnOnce(&mut Rig)) -> Rig {
    let mut rig = Rig::ready_with(config(), prepare);
    rig.target.hold = true;
    rig.submit(1, rig.write(4, 1, 0xaa));
    rig.run();
    rig.target.hold = false;
    before(&mut rig);
    rig.take_over(config());
    rig.submit(2, rig.write(4, 1, 0xbb));
    assert_eq!(rig.driver.state(), ConnectionState::Connecting);
    rig
}

/// The same with two paths, and a write in flight on each.
fn both_taken_over(prepare: impl Fn(usize, &mut Target)) -> Rig {
    let config = DriverConfig { policy: PathPolicy::RoundRobin, ..config() };
    let mut rig = Rig::pair(config.clone(), prepare);
    (rig.target.hold, rig.target_of(1).hold) = (true, true);
    for tag in [0, 1] {
        rig.submit(tag, rig.write(4 + tag, 1, 0xaa));
    }
    rig.run();
    for path in [0, 1] {
        let target = rig.target_of(path);
        assert_eq!(target.held.len(), 1);
        target.hold = false;
    }
    rig.take_over(config);
    rig
}

/// A read of block 4 that leaves the bytes alone that are written.
fn read_aside() -> BlockOp {
    BlockOp::Read { range: BlockRange::new(4, 1), into: Buffer { offset: 32 << 10, ..buffer(1) } }
}

/// How long it takes until this has ended well.
fn ended_after(rig: &mut Rig, tag: u64) -> Duration {
    let start = rig.now;
    while rig.result(tag).is_none() {
        rig.pass(SECOND / 10);
        assert!(rig.now < start + 120 * SECOND, "{:?}", rig.events);
    }
    assert_eq!(rig.result(tag), Some(Ok(())));
    rig.now - start
}

#[test]
fn write_of_the_process_before_is_over_before_anything_is_changed() {
    for (resets, least, most) in [(true, 0, 2), (false, 6, 9)] {
        let mut rig = taken_over(|it| (it.late, it.resets) = (resets, resets), |_| {});
        // Whatever it is: nobody knows what that process wrote.
        rig.submit(3, rig.write(100, 1, 0xbb));
        rig.submit(4, read_aside());
        assert!(ended_after(&mut rig, 4) < 2 * SECOND);
        for tag in [2, 3] {
            ended_after(&mut rig, tag);
            assert!(rig.now >= least * SECOND && rig.now < most * SECOND, "{:?}", rig.now);
        }
        rig.target.carry_out_late();
        assert_eq!(rig.target.disks[&1].bytes[4 * BLOCK], 0xbb);
        assert!(rig.events.iter().any(|event| matches!(event, DriverEvent::Ready { after: Some(_) })));
    }
}

#[test]
fn write_that_failed_at_the_process_before_is_over_before_its_block_is_read() {
    let recovery = RecoveryPolicy { fast_io_fail_timeout: Some(Duration::ZERO), ..config().recovery };
    let mut rig = Rig::ready_with(DriverConfig { recovery, ..config() }, |target| target.late = true);
    rig.target.hold = true;
    rig.submit(1, rig.write(4, 1, 0xaa));
    rig.run();
    rig.target.disconnect_io();
    rig.target.hold = false;
    let knows = rig.now + 6 * SECOND;
    let is_ready = |rig: &Rig| rig.driver.state() == ConnectionState::Live;
    while rig.result(1).is_none() || !is_ready(&rig) {
        rig.pass(SECOND / 100);
    }
    assert_eq!(rig.result(1), Some(Err(BlockError::Gone)));
    // Who was told that asks the next process what the block holds, and what it says is so for good.
    rig.take_over(config());
    rig.submit(2, read_aside());
    ended_after(&mut rig, 2);
    assert!(rig.now + SECOND / 5 >= knows, "{:?}", rig.now);
}

#[test]
fn write_that_failed_after_a_take_over_is_over_before_its_block_is_read() {
    let recovery = RecoveryPolicy { fast_io_fail_timeout: Some(SECOND / 10), ..config().recovery };
    let mut rig = Rig::ready_with(DriverConfig { recovery, ..config() }, |target| target.late = true);
    rig.target.hold = true;
    rig.submit(1, rig.write(4, 1, 0xaa));
    rig.run();
    (rig.target.hold, rig.target.closed) = (false, true);
    let knows = rig.now + 6 * SECOND;
    rig.take_over(DriverConfig { recovery, ..config() });
    // The same write again, as the kernel does it.
    rig.submit(2, rig.write(4, 1, 0xaa));
    rig.pass(SECOND / 2);
    assert_eq!(rig.result(2), Some(Err(BlockError::Gone)));
    rig.target.closed = false;
    while rig.driver.state() != ConnectionState::Live {
        rig.pass(SECOND / 100);
    }
    rig.submit(3, read_aside());
    ended_after(&mut rig, 3);
    assert!(rig.now + SECOND / 5 >= knows, "{:?}", rig.now);
}

#[test]
fn reset_that_is_under_way_or_one_too_many_is_asked_for_again() {
    type Refuse = fn(&Capsule, bool) -> Option<Status>;
    let in_progress: Refuse =
        |capsule, io| refuse_reset(capsule, io).map(|_| Status::CONTROLLER_RESET_IN_PROGRESS);
    let too_many: Refuse =
        |capsule, io| refuse_reset(capsule, io).map(|_| Status::CONTROLLER_RESET_LIMIT_EXCEEDED);
    for refuse in [in_progress, too_many] {
        let prepare = |it: &mut Target| (it.late, it.resets) = (true, true);
        let mut rig = taken_over(prepare, |rig| rig.target.refuse = refuse);
        rig.pass(2 * SECOND);
        assert_eq!((rig.driver.state(), rig.result(2)), (ConnectionState::Live, None));
        rig.target.refuse = |_, _| None;
        assert!(ended_after(&mut rig, 2) < SECOND, "its time is not waited for");
        rig.target.carry_out_late();
        assert_eq!(rig.target.disks[&1].bytes[4 * BLOCK], 0xbb);
    }
}

#[test]
fn writes_of_the_process_before_are_over_on_each_path() {
    for (resets, least, most) in [(true, 0, 2), (false, 6, 9)] {
        for gone in [None, Some(0), Some(1)] {
            let mut rig = both_taken_over(|_, it| (it.late, it.resets) = (resets, resets));
            if let Some(gone) = gone {
                rig.target_of(gone).closed = true;
            }
            for tag in [0, 1] {
                rig.submit(10 + tag, rig.write(4 + tag, 1, 0xbb));
            }
            rig.submit(20, read_aside());
            assert!(ended_after(&mut rig, 20) < 2 * SECOND, "what changes nothing goes on");
            for tag in [10, 11] {
                ended_after(&mut rig, tag);
            }
            assert!(rig.now >= least * SECOND && rig.now < most * SECOND, "{:?}, {gone:?}", rig.now);
            for path in [0, 1].into_iter().filter(|_| resets) {
                rig.with_target(path, Target::carry_out_late);
            }
            for tag in [0, 1] {
                assert_eq!(rig.target.disks[&1].bytes[(4 + tag) * BLOCK], 0xbb);
            }
            assert!(!rig.events.iter().any(|event| matches!(event, DriverEvent::GaveUp)));
        }
    }
}

#[test]
fn controllers_are_named_only_while_there_can_be_no_other() {
    let unknown = 100 * SECOND;
    let named = |rig: &Rig| {
        let impacted = rig.driver.impacted(rig.now, unknown);
        assert!(impacted.iter().all(|it| it.until <= rig.now + 15 * SECOND), "{impacted:?}");
        impacted.iter().map(|it| it.controller.map(|(_, it)| it.cntlid.0)).collect::<Vec<_>>()
    };
    let mut rig = Rig::pair(config(), |_, target| target.resets = true);
    let before = named(&rig);
    assert!(before.len() == 2 && before.iter().all(Option::is_some), "{before:?}");
    // One of them is lost with a write, and nobody can reset it.
    (rig.target.hold, rig.target_of(1).hold) = (true, true);
    rig.submit(1, rig.write(4, 1, 0xaa));
    rig.run();
    let lost = usize::from(rig.target.held.is_empty());
    for path in [0, 1] {
        rig.target_of(path).hold = false;
        rig.target_of(path).refuse = refuse_reset;
    }
    rig.target_of(lost).closed = true;
    rig.target_of(lost).disconnect_io();
    rig.pass(SECOND);
    let meanwhile = named(&rig);
    assert!(meanwhile.contains(&None) && meanwhile.contains(&before[lost]), "{meanwhile:?}");
    assert!(rig.driver.is_fenced());
    rig.pass(15 * SECOND);
    assert!(!rig.driver.is_fenced() && rig.result(1) == Some(Ok(())));
    assert_eq!(named(&rig).len(), 2, "what it had begun is over");
    rig.target_of(lost).closed = false;
    rig.pass(15 * SECOND);
    let after = named(&rig);
    assert!(after.len() == 2 && after[1 - lost] == before[1 - lost], "{after:?}");
    assert!(after[lost].is_some() && after[lost] != before[lost], "{after:?}");
}

#[test]
fn another_disk_is_not_followed() {
    let mut rig = Rig::ready_with(config(), |target| target.resets = true);
    rig.take_over(config());
    rig.target.disks.insert(1, Disk::new(2, BLOCK, BLOCKS));
    rig.submit(2, rig.write(4, 1, 0xbb));
    rig.pass(5 * SECOND);
    assert_eq!((rig.driver.state(), rig.result(2)), (ConnectionState::Foreign, None));
    assert!(rig.target.disks[&1].bytes.iter().all(|&byte| byte == 2), "nothing was written to it");
}

#[test]
fn target_that_does_not_come_back_is_given_up_and_tried_again_on_request() {
    let mut rig = taken_over(|it| it.resets = true, |rig| rig.target.closed = true);
    rig.pass(59 * SECOND);
    assert_eq!((rig.driver.state(), rig.result(2)), (ConnectionState::Connecting, None));
    rig.pass(2 * SECOND);
    assert_eq!((rig.driver.state(), rig.result(2)), (ConnectionState::Lost, Some(Err(BlockError::Gone))));
    rig.target.closed = false;
    rig.pass(60 * SECOND);
    assert_eq!(rig.driver.state(), ConnectionState::Lost);
    rig.driver.retry(rig.now);
    rig.submit(3, rig.write(4, 1, 0xcc));
    rig.pass(SECOND);
    assert_eq!((rig.driver.state(), rig.result(3)), (ConnectionState::Live, Some(Ok(()))));
    assert_eq!(rig.target.disks[&1].bytes[4 * BLOCK], 0xcc);
}

#[test]
fn paths_that_were_given_up_are_tried_again_on_request() {
    let mut rig = both_taken_over(|_, target| target.resets = true);
    (rig.target.closed, rig.target_of(1).closed) = (true, true);
    rig.pass(61 * SECOND);
    assert_eq!(rig.driver.state(), ConnectionState::Lost);
    let gave_up = rig.events.iter().filter(|event| matches!(event, DriverEvent::GaveUp)).count();
    assert_eq!(gave_up, 1);
    (rig.target.closed, rig.target_of(1).closed) = (false, false);
    rig.driver.retry(rig.now);
    rig.pass(SECOND);
    assert!(rig.driver.paths().iter().all(|path| path.state == ConnectionState::Live));
}
