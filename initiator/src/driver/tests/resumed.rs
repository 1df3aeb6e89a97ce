//! A controller that another process of this host used until it was killed: nothing is issued before what that had sent is over.

use super::super::{Driver, DriverConfig, DriverEvent};
use super::rig::{BLOCK, REGION, Rig, SECOND, config, provider};
use super::target::{Disk, Target};
use crate::ConnectionState;
use crate::transport::Rdma;
use core::time::Duration;
use nvme_proto::Nsid;
use nvmf_block::BlockError;
use nvmf_host::{NamespaceIdentity, RecoveryPolicy};

/// A process that is killed with a write in flight, of which its controller does not hear, and another one that takes over and
/// is handed a newer write of the same block. `before`: what happens in between.
fn taken_over(prepare: impl FnOnce(&mut Target), before: impl FnOnce(&mut Rig)) -> Rig {
    let mut rig = Rig::ready_with(config(), prepare);
    rig.target.hold = true;
    rig.submit(1, rig.write(4, 1, 0xaa));
    rig.run();
    rig.target.hold = false;
    let association = rig.driver.association().expect("it is connected");
    let controller = association.controller();
    let namespace = association.namespace(Nsid(1)).expect("it is there");
    let identity = NamespaceIdentity::new(controller, namespace);
    let impacted = rig.driver.impacted(rig.now, Duration::MAX);
    before(&mut rig);
    let recovery = RecoveryPolicy { ctrl_loss_timeout: Some(60 * SECOND), ..config().recovery };
    let config = DriverConfig { recovery, ..config() };
    let transport = Rdma::new(provider(&rig.fabric));
    rig.driver = Driver::resume(transport, config, &impacted, rig.now).expect("resumed");
    rig.driver.register(REGION, &rig.memory).expect("registered");
    rig.driver.open(rig.now, identity);
    rig.submit(2, rig.write(4, 1, 0xbb));
    assert_eq!(rig.driver.state(), ConnectionState::Connecting);
    rig
}

/// How long it takes until the newer write has ended.
fn ended_after(rig: &mut Rig) -> Duration {
    let start = rig.now;
    while rig.result(2).is_none() {
        rig.pass(SECOND / 10);
        assert!(rig.now < start + 120 * SECOND, "{:?}", rig.events);
    }
    rig.now - start
}

#[test]
fn write_of_the_process_before_is_over_before_anything_is_issued() {
    for (resets, least, most) in [(true, 0, 2), (false, 6, 9)] {
        let mut rig = taken_over(|it| (it.late, it.resets) = (resets, resets), |_| {});
        let took = ended_after(&mut rig);
        assert!(took >= least * SECOND && took < most * SECOND, "{took:?}");
        rig.target.carry_out_late();
        assert_eq!((rig.result(2), rig.target.disks[&1].bytes[4 * BLOCK]), (Some(Ok(())), 0xbb));
        assert!(rig.events.iter().any(|event| matches!(event, DriverEvent::Ready { after: Some(_) })));
    }
}

#[test]
fn another_disk_is_not_followed() {
    let mut rig = taken_over(
        |it| it.resets = true,
        |rig| drop(rig.target.disks.insert(1, Disk::new(2, BLOCK, super::rig::BLOCKS))),
    );
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
