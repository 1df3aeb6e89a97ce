//! Cross-Controller Reset of the built target: a host that has lost a controller has it reset through another one.

use nvme_proto::Nsid;
use nvme_proto::admin::cross_controller_reset::{
    ControllerInstance, CrossControllerReset, IMMEDIATE_RESET_SUCCESSFUL,
};
use nvmf_initiator::raw::RawCommand;
use nvmf_initiator::{Connection, ConnectionState, block_on};
use nvmf_tests::site::Site;

/// The status of a reset, and whether it was over at once.
async fn reset(through: &Connection, impacted: ControllerInstance) -> ((u8, u8), bool) {
    let command = RawCommand::from_sqe(CrossControllerReset { impacted }.emit());
    let outcome = through.raw_admin(command).await.expect("an answer").outcome;
    ((outcome.status.sct(), outcome.status.sc()), outcome.dw0 & IMMEDIATE_RESET_SUCCESSFUL != 0)
}

#[test]
fn lost_controller_is_reset_through_another_one() {
    let site = Site::new("reset").expect("a site");
    site.configure(&site.subsystem(&[site.disk("disk.img", 1 << 20)])).expect("a configuration");
    let target = site.serve().expect("a target");
    block_on(async {
        let connect = |host| Connection::connect(site.options(host).expect("options"));
        let (first, second) = (connect(1).await.expect("one"), connect(1).await.expect("another"));
        let stranger = connect(2).await.expect("another host");
        let impacted = first.controller().instance.expect("Cross-Controller Reset");
        assert_eq!(reset(&stranger, impacted).await, ((0, 2), false), "a controller of another host");
        let other = ControllerInstance { random: impacted.random ^ 1, ..impacted };
        assert_eq!(reset(&second, other).await, ((0, 2), false), "another life of it");
        assert_eq!(first.state(), ConnectionState::Live);
        assert_eq!(reset(&second, impacted).await, ((0, 0), true));
        assert_ne!(first.state_after(ConnectionState::Live).await, ConnectionState::Live);
        // It comes back as another controller; the old one stays what it was.
        while first.state() != ConnectionState::Live {
            first.state_after(first.state()).await;
        }
        assert_ne!(first.controller().instance, Some(impacted));
        assert_eq!(reset(&second, impacted).await, ((0, 0), true));
        let disk = first.open(Nsid(1)).expect("namespace 1");
        disk.write_from(0, &[1; 4096]).await.expect("a write");
        for connection in [first, second, stranger] {
            connection.close().await;
        }
    });
    target.stop().expect("a clean stop");
}
