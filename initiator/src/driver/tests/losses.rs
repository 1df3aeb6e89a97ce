//! Lost connections: what the controller may still carry out, and when it is safe to write on.

use super::super::DriverEvent;
use super::rig::{BLOCK, Rig, SECOND, config, read};
use super::target::Target;
use core::time::Duration;
use nvme_proto::admin::log_page::LogPageId;
use nvme_proto::opcode::AdminOpcode;
use nvme_proto::{Nsid, Status};
use nvmf_host::{AssociationError, admin};

/// The Keep Alive Timeout of the rig's driver, and its controller's granularity.
const KATO: Duration = Duration::from_secs(5);
const KAS: Duration = Duration::from_secs(1);

/// When the driver is ready again.
fn ready_at(rig: &mut Rig) -> Duration {
    for _ in 0..600 {
        if rig.events.iter().any(|event| matches!(event, DriverEvent::Ready { .. })) {
            return rig.now;
        }
        rig.pass(SECOND / 10);
    }
    panic!("not ready after a minute: {:?}", rig.events);
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
        let ready = ready_at(&mut rig);
        assert!(ready + SECOND / 5 >= knows, "{ready:?}, {knows:?}, traffic-based: {traffic_based}");
        assert!(ready < knows + 2 * SECOND, "{ready:?}, {knows:?}, traffic-based: {traffic_based}");
        rig.pass(SECOND);
        assert_eq!((rig.result(1), rig.target.disks[&1].bytes[4 * BLOCK]), (Some(Ok(())), 0xaa));
    }
}

#[test]
fn read_in_flight_holds_nothing_back() {
    let (mut rig, _) = given_up(true, |rig| rig.submit(1, read(4, 1)));
    let lost = rig.now;
    assert!(ready_at(&mut rig) < lost + 2 * SECOND);
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
    assert!(ready_at(&mut rig) < lost + 2 * SECOND);
    rig.run();
    assert_eq!((rig.result(1), rig.target.disks[&1].bytes[4 * BLOCK]), (Some(Ok(())), 0xaa));
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
    let ready = ready_at(&mut rig);
    assert!(ready >= knows && ready < knows + 2 * SECOND, "{ready:?}, {knows:?}");
}

#[test]
fn admin_command_in_flight_holds_the_reconnect_back_as_a_write_does() {
    let mut rig = Rig::ready_with(config(), |target| target.traffic_based_keep_alive = true);
    rig.target.hold_admin = Some(AdminOpcode::GET_LOG_PAGE);
    rig.driver.submit_admin(3, admin::get_log_page(LogPageId::SMART, Nsid::ALL, 0, 512));
    rig.run();
    rig.target.disconnect_io();
    rig.target.hold_admin = None;
    let knows = rig.now + 2 * (KATO + KAS);
    let ready = ready_at(&mut rig);
    assert!(ready >= knows && ready < knows + 2 * SECOND, "{ready:?}, {knows:?}");
}

/// A host that loses an I/O queue with a write in flight, comes back, and writes the block anew; its controller is not told
/// of the loss. Gives how long it was away.
fn written_again(prepare: impl FnOnce(&mut Target)) -> (Rig, Duration) {
    let mut rig = Rig::ready_with(config(), prepare);
    rig.target.hold = true;
    rig.submit(1, rig.write(4, 1, 0xaa));
    rig.run();
    rig.target.disconnect_io();
    rig.target.hold = false;
    let lost = rig.now;
    let away = ready_at(&mut rig) - lost;
    rig.pass(SECOND);
    assert_eq!(rig.result(1), Some(Ok(())));
    rig.submit(2, rig.write(4, 1, 0xbb));
    rig.pass(SECOND);
    assert_eq!((rig.result(2), rig.target.disks[&1].bytes[4 * BLOCK]), (Some(Ok(())), 0xbb));
    rig.target.carry_out_late();
    (rig, away)
}

#[test]
fn late_write_overwrites_newer_data_unless_the_controller_was_reset() {
    // It takes longer than it says, and cannot be reset.
    let (rig, away) = written_again(|target| target.late = true);
    assert!(away >= KATO + KAS, "{away:?}");
    assert_eq!(rig.target.disks[&1].bytes[4 * BLOCK], 0xaa, "the stale write");
    // The same, and it can.
    for reset_takes in [0, 3] {
        let (rig, away) =
            written_again(|it| (it.late, it.resets, it.reset_takes) = (true, true, reset_takes));
        assert!(away < 2 * SECOND, "{away:?}");
        assert_eq!(rig.target.disks[&1].bytes[4 * BLOCK], 0xbb);
    }
}

#[test]
fn write_in_flight_is_held_for_its_time_when_the_reset_is_refused() {
    let (rig, away) = written_again(|target| {
        target.resets = true;
        target.refuse = |capsule, io| {
            let reset = !io && capsule.sqe.opcode == AdminOpcode::CROSS_CONTROLLER_RESET.0;
            reset.then_some(Status::INVALID_FIELD)
        };
    });
    assert!(away >= KATO + KAS && away < KATO + KAS + 2 * SECOND, "{away:?}");
    let refused =
        |event: &DriverEvent| matches!(event, DriverEvent::AttemptFailed(AssociationError::NotReset { .. }));
    assert!(rig.events.iter().any(refused));
}
