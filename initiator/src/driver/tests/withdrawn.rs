//! Operations that nobody waits for any longer: what was not sent is not sent, and what was sent holds its blocks.

use super::super::{DriverConfig, DriverEvent, Op, SharedFences};
use super::rig::{BLOCK, Rig, SECOND, config, read};
use crate::Effect;
use nvme_proto::opcode::NvmOpcode;
use nvmf_block::{BlockError, BlockRange, Tag};
use nvmf_host::AssociationConfig;

const TIMED_OUT: BlockError = BlockError::Os(110);

fn copy(from: u64, to: u64) -> Op {
    Op::Copy { range: BlockRange::new(to, 1), from, fua: false }
}

/// What changes block 4 each.
fn changes(rig: &Rig) -> [Op; 3] {
    let pair = rig.compare_and_write(4, 1, 2).into();
    [rig.write(4, 1, 0xaa).into(), copy(9, 4), pair]
}

fn withdraw(rig: &mut Rig, tag: u64) -> Option<Effect> {
    rig.driver.withdraw(Tag(tag), TIMED_OUT)
}

fn byte(rig: &Rig) -> u8 {
    rig.target.disks[&1].bytes[4 * BLOCK]
}

#[test]
fn what_was_not_sent_when_nobody_waited_any_longer_is_never_sent() {
    for number in 0..3 {
        let mut rig = Rig::ready();
        rig.target.disconnect();
        rig.pass(SECOND / 10);
        let change = changes(&rig)[number];
        rig.submit(1, change);
        rig.run();
        assert_eq!(withdraw(&mut rig, 1), None, "nothing of it goes on");
        rig.run();
        assert_eq!(rig.failure(1), Some((TIMED_OUT, Effect::Nothing)));
        rig.submit(2, read(4, 1));
        rig.pass(10 * SECOND);
        assert_eq!(rig.result(2), Some(Ok(())));
        let sent: Vec<_> = rig.target.seen.iter().map(|(opcode, ..)| *opcode).collect();
        assert_eq!((sent, byte(&rig)), (vec![NvmOpcode::READ], 1));
    }
}

#[test]
fn what_is_in_flight_when_nobody_waits_any_longer_holds_its_blocks_until_it_ends() {
    for number in 0..3 {
        let mut rig = Rig::ready();
        rig.target.hold = true;
        let change = changes(&rig)[number];
        rig.submit(1, change);
        rig.run();
        assert_eq!(withdraw(&mut rig, 1), Some(Effect::Unknown));
        assert_eq!(withdraw(&mut rig, 1), Some(Effect::Unknown), "twice is once");
        rig.target.hold = false;
        rig.submit(2, read(4, 1));
        rig.submit(3, copy(4, 20));
        rig.submit(4, copy(9, 4));
        rig.submit(5, read(5, 1));
        rig.submit(6, copy(9, 5));
        rig.pass(SECOND);
        assert_eq!((rig.result(5), rig.result(6)), (Some(Ok(())), Some(Ok(()))), "they name other blocks");
        assert_eq!([1, 2, 3, 4].map(|tag| rig.result(tag)), [None; 4]);
        while !rig.target.held.is_empty() {
            rig.target.release();
        }
        rig.run();
        assert_eq!(rig.failure(1), Some((TIMED_OUT, Effect::Unknown)));
        assert_eq!([2, 3, 4].map(|tag| rig.result(tag)), [Some(Ok(())); 3]);
        assert_eq!(byte(&rig), 1, "the retry came last");
    }
}

#[test]
fn long_operation_sends_no_more_of_its_parts() {
    let association = AssociationConfig { io_queue_entries: 4, ..config().association };
    let config = DriverConfig { association, ..config() };
    let mut rig = Rig::ready_with(config, |target| target.transfer_pages = 1);
    rig.target.hold = true;
    rig.submit(1, rig.write(0, 128, 0xaa));
    rig.run();
    let sent = rig.target.seen.len();
    assert!((1..8).contains(&sent), "{sent} of 8 parts");
    assert_eq!(withdraw(&mut rig, 1), Some(Effect::Unknown));
    rig.target.hold = false;
    while !rig.target.held.is_empty() {
        rig.target.release();
    }
    rig.pass(SECOND);
    assert_eq!(rig.failure(1), Some((TIMED_OUT, Effect::Unknown)));
    assert_eq!(rig.target.seen.len(), sent);
}

/// A write of block 4 is in flight on a connection that its controller closes without having ended it.
fn lost(rig: &mut Rig, withdrawn: bool) {
    rig.target.hold = true;
    rig.submit(1, rig.write(4, 1, 0xaa));
    rig.run();
    if withdrawn {
        assert_eq!(withdraw(rig, 1), Some(Effect::Unknown));
    }
    rig.target.disconnect_io();
    rig.target.hold = false;
    while !rig.events.iter().any(|event| matches!(event, DriverEvent::Lost(_))) {
        rig.pass(SECOND / 100);
    }
}

#[test]
fn what_was_sent_and_lost_stays_fenced_whether_it_was_withdrawn_before_or_after() {
    for before in [true, false] {
        let mut rig = Rig::ready_with(config(), |target| target.late = true);
        lost(&mut rig, before);
        if !before {
            rig.pass(SECOND / 100);
            assert_eq!(withdraw(&mut rig, 1), None, "nothing of it is in flight");
        }
        rig.submit(2, rig.write(4, 1, 0xbb));
        while !rig.events.iter().any(|event| matches!(event, DriverEvent::Ready { .. })) {
            rig.pass(SECOND / 100);
        }
        assert!(rig.driver.is_fenced(), "withdrawn before: {before}");
        assert_eq!((rig.failure(1), rig.result(2)), (Some((TIMED_OUT, Effect::Unknown)), None));
        rig.target.carry_out_late();
        while rig.driver.is_fenced() {
            assert_eq!(rig.result(2), None);
            rig.pass(SECOND / 10);
            assert!(rig.now < 60 * SECOND, "it waits for ever");
        }
        assert_eq!((rig.result(2), byte(&rig)), (Some(Ok(())), 0xbb));
    }
}

#[test]
fn what_is_in_flight_on_one_driver_holds_the_others_back() {
    let mut rigs = [(); 2].map(|()| Rig::ready());
    let shared = SharedFences::default();
    rigs.iter_mut().for_each(|rig| rig.driver.share_fences(&shared));
    let [mut first, mut second] = rigs;
    first.target.hold = true;
    first.submit(1, first.write(4, 1, 0xaa));
    first.run();
    assert_eq!(withdraw(&mut first, 1), Some(Effect::Unknown));
    second.submit(2, read(4, 1));
    second.submit(3, second.write(4, 1, 0xbb));
    second.submit(4, read(5, 1));
    second.pass(SECOND);
    assert_eq!([2, 3, 4].map(|tag| second.result(tag)), [None, None, Some(Ok(()))]);
    first.target.release();
    first.run();
    assert_eq!(first.failure(1), Some((TIMED_OUT, Effect::Unknown)));
    second.pass(SECOND / 50);
    assert_eq!([2, 3].map(|tag| second.result(tag)), [Some(Ok(())); 2]);
}
