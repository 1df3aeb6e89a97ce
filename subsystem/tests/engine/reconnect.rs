//! Hosts that come back: what their last association left must not overwrite what they write next.

use crate::host::*;
use core::time::Duration;
use nvme_proto::Status;
use nvme_proto::admin::features::{FeatureId, SetFeatures};
use nvme_proto::nvm::ReadWrite;
use nvme_proto::opcode::NvmOpcode;
use nvmf_block::DeviceId;
use nvmf_subsystem::*;
use std::sync::Arc;
use zerocopy::IntoBytes;

const OK: (u8, u8) = (0, 0);

/// A Connect of another Admin queue of the same host at `now`: its status, and what was ended for it.
fn connect_again(
    now: Duration,
    registry: &mut Registry,
    hello: &Hello,
) -> (Queue, Status, Vec<AssociationKey>) {
    connect_after(now, registry, hello, true)
}

/// The same where silence may be the target's fault.
fn connect_after(
    now: Duration,
    registry: &mut Registry,
    hello: &Hello,
    silence_counts: bool,
) -> (Queue, Status, Vec<AssociationKey>) {
    let mut queue = Queue::new(now, hello.link);
    let (ticket, _) = parameters(capsule(&mut queue, &hello.command(), 0));
    let Step::Connect(request) = queue.on_parameters(now, ticket, hello.data().as_bytes()) else {
        panic!("a Connect goes to the registry");
    };
    let admission = registry.connect(now, &request, silence_counts);
    let lost = admission.lost.clone();
    let status = responded(queue.on_admission(now, request, admission)).status();
    (queue, status, lost)
}

#[test]
fn silent_association_ends_before_its_host_connects_again() {
    let mut fixture = Fixture::new();
    let (association, kato) = (fixture.association(), Duration::from_secs(5));
    // Whatever came last counts, on any queue.
    let read = with_cid(ReadWrite::new(0, 1).emit(NvmOpcode::READ, Nsid(1)), 1);
    let Step::Execute { ticket, .. } =
        fixture.io.on_capsule(NOW + kato, keyed(read, 512).as_bytes().try_into().unwrap(), 0)
    else {
        panic!("a read is executed")
    };
    let lost_at = NOW + kato + kato;
    for now in [lost_at, lost_at + kato] {
        let (_, status, lost) = connect_again(now, &mut fixture.registry, &Hello::admin());
        assert!(status.is(Status::CONNECT_CONTROLLER_BUSY) && !status.dnr(), "{status}");
        assert_eq!(lost, [association.key()]);
        assert!(matches!(fixture.io.poll_step(now), Some(Step::CloseQueue) | None));
    }
    assert!(association.is_closing());
    association.on_connection_gone();
    let refused = connect_again(lost_at, &mut fixture.registry, &Hello::admin());
    assert!(refused.1.is(Status::CONNECT_CONTROLLER_BUSY), "one connection is left");
    // The device has the read still: that holds the host back for some time only.
    association.on_operation_orphaned(DeviceId(101));
    association.on_connection_gone();
    ticket.abandon();
    let (_, status, lost) = connect_again(lost_at, &mut fixture.registry, &Hello::admin());
    assert!(status.is(Status::CONNECT_CONTROLLER_BUSY) && lost.is_empty(), "{status}, {lost:?}");
    association.on_orphan_done(DeviceId(101));
    assert!(connect_again(lost_at, &mut fixture.registry, &Hello::admin()).1.is_success());
}

#[test]
fn silence_that_may_be_the_targets_fault_holds_back_and_ends_nothing() {
    let mut fixture = Fixture::new();
    let (association, lost_at) = (fixture.association(), NOW + Duration::from_secs(20));
    let (_, status, lost) = connect_after(lost_at, &mut fixture.registry, &Hello::admin(), false);
    assert!(status.is(Status::CONNECT_CONTROLLER_BUSY) && !status.dnr() && lost.is_empty(), "{status}");
    assert!(!association.is_closing());
    // It had sent something.
    let read = with_cid(ReadWrite::new(0, 1).emit(NvmOpcode::READ, Nsid(1)), 1);
    let step = fixture.io.on_capsule(lost_at, keyed(read, 512).as_bytes().try_into().unwrap(), 0);
    assert!(connect_again(lost_at, &mut fixture.registry, &Hello::admin()).1.is_success());
    let Step::Execute { ticket, .. } = step else { panic!("a read is executed") };
    ticket.abandon();
}

#[test]
fn second_association_ends_no_association_that_its_host_may_still_have() {
    let kato = Duration::from_secs(5);
    let (almost, long) = (NOW + kato - Duration::from_millis(1), NOW + 10 * kato);
    let other_id = Hello { host_id: HostId([8; 16]), ..Hello::admin() };
    let no_timer = Hello { kato_ms: 0, ..Hello::admin() };
    let cases = [
        ("a live one on another path", Hello::admin(), Hello::admin(), almost),
        ("another host ID", Hello::admin(), other_id, long),
        ("no Keep Alive Timeout", no_timer, Hello::admin(), long),
    ];
    for (name, first, second, now) in cases {
        let mut registry = registry(Options::default());
        let (queue, cqe, _) = first.connect(&mut registry);
        assert_eq!(code(&cqe), OK);
        let (_second, status, lost) = connect_again(now, &mut registry, &second);
        assert!(status.is_success() && lost.is_empty(), "{name}: {status}");
        assert!(!queue.association().unwrap().is_closing(), "{name}");
    }
}

#[test]
fn closing_association_holds_its_host_back_until_its_connections_are_gone() {
    let mut fixture = Fixture::new();
    let association = fixture.association();
    association.on_connection_gone();
    assert_eq!(fixture.registry.close_queue(&association, Qid(0)), [Qid(1)]);
    let (_, status, lost) = connect_again(NOW, &mut fixture.registry, &Hello::admin());
    assert!(status.is(Status::CONNECT_CONTROLLER_BUSY) && !status.dnr(), "{status}");
    assert_eq!(lost, [association.key()]);
    association.on_connection_gone();
    assert!(connect_again(NOW, &mut fixture.registry, &Hello::admin()).1.is_success());
}

#[test]
fn connect_of_a_host_with_orphaned_operations_is_busy() {
    let mut registry = registry(Options::default());
    let (left, ..) = Hello::admin().connect(&mut registry);
    let association = Arc::clone(left.association().unwrap());
    association.on_operation_orphaned(DeviceId(101));
    association.on_connection_gone();
    let (_, cqe, _) = Hello::admin().connect(&mut registry);
    assert_eq!((code(&cqe), cqe.status().dnr()), ((1, 0x81), false));
    let other = Hello { host_id: HostId([8; 16]), ..Hello::admin() };
    assert_eq!(code(&other.connect(&mut registry).1), OK, "others need not wait");
    association.on_orphan_done(DeviceId(101));
    assert_eq!(code(&Hello::admin().connect(&mut registry).1), OK);
}

/// A disk that hangs keeps its operations for ever: the host has to get at its other disks.
#[test]
fn orphaned_operations_of_a_hung_disk_hold_back_its_namespace_only() {
    let mut registry = registry(Options::default());
    registry.add_namespace(&nqn(SUBSYSTEM), namespace(2, disk())).unwrap();
    let (left, ..) = Hello::admin().connect(&mut registry);
    let association = Arc::clone(left.association().unwrap());
    association.on_operation_orphaned(DeviceId(101));
    association.on_connection_gone();
    let busy = |registry: &mut Registry, seconds| {
        let now = NOW + Duration::from_secs(seconds);
        Hello::admin().connect_at(now, registry).1.status().is(Status::CONNECT_CONTROLLER_BUSY)
    };
    assert!(busy(&mut registry, 0) && busy(&mut registry, 4));
    let late = NOW + Duration::from_secs(5);
    let (mut admin, cqe, _) = Hello::admin().connect_at(late, &mut registry);
    assert_eq!(code(&cqe), OK);
    enable(&mut admin);
    let cntlid = admin.association().unwrap().key().cntlid.0;
    let (mut io, ..) = Hello::io(1, cntlid).connect(&mut registry);
    let read = |nsid| keyed(ReadWrite::new(0, 1).emit(NvmOpcode::READ, Nsid(nsid)), 512);
    let flush = |nsid| keyed(nvme_proto::nvm::rw::flush(Nsid(nsid)), 0);
    for sqe in [read(1), flush(1)] {
        let cqe = ask(&mut io, &sqe);
        assert_eq!((code(&cqe), cqe.status().dnr(), cqe.status().crd()), ((0, 0x82), false, 0));
    }
    let Step::Execute { ticket, .. } = capsule(&mut io, &read(2), 0) else { panic!("another disk") };
    ticket.abandon();
    // A host that set ACRE gets a retry delay.
    let behavior = keyed(SetFeatures::new(FeatureId::HOST_BEHAVIOR_SUPPORT, 0).emit(), 512);
    let (ticket, _) = parameters(capsule(&mut admin, &behavior, 0));
    let mut data = [0; 512];
    data[0] = 1;
    let _ = responded(admin.on_parameters(NOW, ticket, &data));
    assert_eq!(ask(&mut io, &with_cid(read(1), 5)).status().crd(), 1);
    association.on_orphan_done(DeviceId(101));
    let Step::Execute { ticket, .. } = capsule(&mut io, &with_cid(read(1), 6), 0) else { panic!("a read") };
    ticket.abandon();
}

#[test]
#[should_panic(expected = "an operation completed that was not counted as orphaned")]
fn orphan_done_without_an_orphan_panics() {
    let fixture = Fixture::new();
    fixture.association().on_orphan_done(DeviceId(101));
}

#[test]
fn host_that_comes_after_the_time_of_admission_is_told_to_try_again() {
    let mut registry = registry(Options::default());
    let connect = |registry: &mut Registry, at| {
        let (_, cqe, _) = Hello::admin().connect_at(at, registry);
        cqe.status()
    };
    registry.admit_until(NOW);
    let refused = connect(&mut registry, NOW);
    assert!(refused.is(Status::CONNECT_CONTROLLER_BUSY) && !refused.dnr(), "{refused}");
    let said = nvmf_subsystem::Refusal::CutOff.to_string();
    assert!(said.contains("cut off from its group"), "{said}");
    registry.admit_until(NOW + Duration::from_secs(1));
    assert!(connect(&mut registry, NOW).is_success());
}
