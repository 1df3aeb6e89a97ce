//! Several drivers of one disk, each with a controller of its own: what one of them has lost, no other overtakes.

use super::super::{DriverConfig, DriverEvent, SharedFences};
use super::rig::{BLOCK, Rig, SECOND, config, read};
use nvme_proto::Nsid;
use nvmf_block::{BlockError, BlockOp};
use nvmf_host::{NamespaceIdentity, RecoveryPolicy};

/// Two drivers, the first of which fails operations that wait instead of waiting with them.
fn two() -> (Rig, Rig) {
    let recovery = RecoveryPolicy { fast_io_fail_timeout: Some(SECOND / 10), ..config().recovery };
    let config = DriverConfig { recovery, ..config() };
    let mut rigs = [(); 2].map(|()| Rig::ready_with(config.clone(), |target| target.late = true));
    let shared = SharedFences::default();
    rigs.iter_mut().for_each(|rig| rig.driver.share_fences(&shared));
    let [first, second] = rigs;
    (first, second)
}

/// The first has lost a write of block 4 and its user has been told that nobody knows what became of it.
fn write_lost(first: &mut Rig) {
    first.target.hold = true;
    first.submit(1, first.write(4, 1, 0xaa));
    first.run();
    first.target.disconnect_io();
    first.target.hold = false;
    while first.result(1).is_none() {
        first.pass(SECOND / 100);
    }
    assert_eq!(first.result(1), Some(Err(BlockError::Gone)));
    assert!(first.driver.is_fenced());
}

#[test]
fn write_on_another_driver_waits_for_the_fence_of_the_first() {
    let (mut first, mut second) = two();
    write_lost(&mut first);
    second.pass(first.now);
    second.submit(1, second.write(4, 1, 0xbb));
    second.submit(2, read(3, 2));
    second.submit(3, second.write(5, 1, 0xbb));
    second.submit(4, BlockOp::Flush);
    second.run();
    assert_eq!((second.result(3), second.result(4)), (Some(Ok(())), Some(Ok(()))), "they name other blocks");
    assert!(!second.driver.is_fenced(), "its own controller is there");
    while first.driver.is_fenced() {
        assert_eq!((second.result(1), second.result(2)), (None, None));
        for rig in [&mut first, &mut second] {
            rig.pass(SECOND / 10);
            assert!(rig.now < 60 * SECOND, "it waits for ever");
        }
    }
    // It hears of it soon.
    second.pass(SECOND / 50);
    assert_eq!((second.result(1), second.result(2)), (Some(Ok(())), Some(Ok(()))));
    assert_eq!(second.target.disks[&1].bytes[4 * BLOCK], 0xbb);
    assert!(second.events.iter().all(|event| !matches!(event, DriverEvent::Lost(_))));
}

#[test]
fn flush_over_a_driver_that_knows_of_no_cache_is_sent_once_another_has_heard_of_one() {
    let shared = SharedFences::default();
    let [mut first, mut second] = [(); 2].map(|()| {
        let mut rig = Rig::ready_with(config(), |target| target.write_cache = false);
        let (association, now) = (rig.driver.association().unwrap(), rig.now);
        let seen = NamespaceIdentity::new(association.controller(), association.namespace(Nsid(1)).unwrap());
        rig.driver.open(now, NamespaceIdentity { is_flushed: true, ..seen });
        rig.driver.share_fences(&shared);
        rig
    });
    let flushed = |second: &mut Rig, tag| {
        second.target.seen.clear();
        second.submit(tag, BlockOp::Flush);
        second.run();
        assert_eq!(second.result(tag), Some(Ok(())));
        second.target.seen.len()
    };
    assert_eq!(flushed(&mut second, 1), 0);
    first.target.write_cache = true;
    first.target.disconnect();
    first.pass(10 * SECOND);
    assert_eq!(flushed(&mut second, 2), 1, "what the first has written is in the cache");
}

#[test]
fn what_another_process_had_under_way_holds_every_driver_back() {
    let (mut first, mut second) = two();
    first.take_over(config());
    first.driver.share_fences(&{
        let shared = SharedFences::default();
        second.driver.share_fences(&shared);
        shared
    });
    second.submit(1, second.write(100, 1, 0xbb));
    second.submit(2, read(100, 1));
    second.run();
    assert_eq!((second.result(1), second.result(2)), (None, Some(Ok(()))), "nobody knows what it wrote");
    while first.driver.is_fenced() {
        first.pass(SECOND / 10);
        assert!(first.now < 60 * SECOND, "it waits for ever");
    }
    second.pass(SECOND / 50);
    assert_eq!(second.result(1), Some(Ok(())));
}

#[test]
fn read_waits_on_every_driver_after_operations_of_one_have_failed() {
    let (mut first, mut second) = two();
    first.take_over(config());
    let shared = SharedFences::default();
    for rig in [&mut first, &mut second] {
        rig.driver.share_fences(&shared);
    }
    // The first knows of the process before; it is the second whose users are told that nobody knows what became of a write.
    second.target.closed = true;
    second.target.disconnect();
    second.submit(1, second.write(100, 1, 0xbb));
    while second.result(1).is_none() {
        second.pass(SECOND / 100);
    }
    assert_eq!(second.result(1), Some(Err(BlockError::Gone)));
    first.submit(2, read(100, 1));
    first.run();
    assert!(first.driver.is_fenced() && first.result(2).is_none(), "it may still change");
    while first.driver.is_fenced() {
        first.pass(SECOND / 10);
        assert!(first.now < 60 * SECOND, "it waits for ever");
    }
    assert_eq!(first.result(2), Some(Ok(())));
}
