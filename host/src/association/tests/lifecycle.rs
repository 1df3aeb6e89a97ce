use super::*;
use crate::Cid;
use nvme_proto::admin::async_event::AsyncEvent;
use nvme_proto::fabrics::discovery::{
    AddressFamily, DiscoveryEntry, DiscoveryHeader, SubsystemType, TransportType,
};
use proptest::prelude::*;

fn discovery(persistent: bool) -> AssociationConfig {
    AssociationConfig::discovery(config().host_nqn, HostId([1; 16]), persistent)
}

fn log(generation: u64, entries: u16) -> Vec<u8> {
    let mut log = DiscoveryHeader::new(generation, entries.into()).as_bytes().to_vec();
    for port in 0..entries {
        let nqn = config().subsystem_nqn;
        let entry = DiscoveryEntry::new(
            TransportType::RDMA,
            SubsystemType::NVM_SUBSYSTEM,
            AddressFamily::IPV4,
            "192.0.2.1",
            "4420",
            port,
            &nqn,
        );
        log.extend_from_slice(entry.as_bytes());
    }
    log
}

#[test]
fn keep_alive_is_sent_at_half_the_timeout() {
    let mut controller = Controller::new();
    let mut association = ready(&mut controller, config());
    controller.seen.clear();
    assert_eq!(pass(&mut controller, &mut association, &mut Duration::ZERO.clone(), 10 * SECOND), []);
    assert_eq!(controller.seen, ["keep alive"; 4]);
}

#[test]
fn traffic_postpones_keep_alive_with_tbkas() {
    let mut controller = Controller::new();
    controller.identify.ctratt = ctratt::TRAFFIC_BASED_KEEP_ALIVE.into();
    let mut association = ready(&mut controller, config());
    controller.seen.clear();
    let mut now = Duration::ZERO;
    for second in 1..20 {
        pass(&mut controller, &mut association, &mut now, second * SECOND);
        association.on_traffic(now);
        association.on_answer(now);
    }
    assert_eq!(controller.seen, [""; 0]);
    pass(&mut controller, &mut association, &mut now, 22 * SECOND);
    assert_eq!(controller.seen, ["keep alive"]);
}

#[test]
fn traffic_without_answers_does_not_postpone_keep_alive() {
    let mut controller = Controller::new();
    controller.identify.ctratt = ctratt::TRAFFIC_BASED_KEEP_ALIVE.into();
    let mut association = ready(&mut controller, config());
    (controller.silent, controller.seen) = (Some("keep alive"), Vec::new());
    let mut now = Duration::ZERO;
    for tenth in 1..80 {
        pass(&mut controller, &mut association, &mut now, SECOND / 10 * tenth);
        association.on_traffic(now);
    }
    assert_eq!(controller.seen, ["keep alive"]);
    assert_ne!(association.state(), State::Ready, "it is found out in one and a half times the timeout");
}

#[test]
fn traffic_does_not_postpone_keep_alive_without_tbkas() {
    let mut controller = Controller::new();
    // Every other bit is set.
    controller.identify.ctratt = (!ctratt::TRAFFIC_BASED_KEEP_ALIVE).into();
    let mut association = ready(&mut controller, config());
    controller.seen.clear();
    let mut now = Duration::ZERO;
    for second in 1..=10 {
        pass(&mut controller, &mut association, &mut now, second * SECOND);
        association.on_traffic(now);
    }
    assert_eq!(controller.seen, ["keep alive"; 4]);
}

#[test]
fn keep_alive_unanswered_or_refused_fails_the_association() {
    let mut controller = Controller::new();
    let mut association = ready(&mut controller, config());
    controller.silent = Some("keep alive");
    let told = pass(&mut controller, &mut association, &mut Duration::ZERO.clone(), 10 * SECOND);
    assert_eq!(failure(&told), &AssociationError::KeepAlive { timeout: 5 * SECOND });
    let mut controller = Controller::new();
    let mut association = ready(&mut controller, config());
    controller.refuse.insert("keep alive", Status::KEEP_ALIVE_EXPIRED);
    let told = pass(&mut controller, &mut association, &mut Duration::ZERO.clone(), 10 * SECOND);
    assert!(matches!(failure(&told), AssociationError::Command { command: "Keep Alive", .. }));
}

#[test]
fn new_namespace_is_found_after_its_event() {
    let mut controller = Controller::new();
    let mut association = ready(&mut controller, config());
    controller.namespaces.insert(9, namespace(64));
    let event = AsyncEvent::ATTACHED_NAMESPACE_ATTRIBUTE_CHANGED.emit();
    controller.announce(&mut association, SECOND, event);
    assert_eq!(controller.serve(&mut association, SECOND), [Told::NamespacesChanged]);
    assert_eq!((association.namespaces().len(), controller.event_requests.len()), (3, 4));
    assert!(controller.seen.contains(&"changed list"), "else the controller announces nothing more");
    controller.announce(&mut association, SECOND, event);
    assert_eq!(controller.serve(&mut association, SECOND), [], "nothing changed");
    controller.announce(&mut association, SECOND, 0x0002_0001);
    assert_eq!(controller.serve(&mut association, SECOND), [Told::Event(0x0002_0001)]);
}

#[test]
fn change_during_a_scan_causes_another() {
    let mut controller = Controller::new();
    let mut association = ready(&mut controller, config());
    controller.silent = Some("active");
    let event = AsyncEvent::ATTACHED_NAMESPACE_ATTRIBUTE_CHANGED.emit();
    controller.announce(&mut association, SECOND, event);
    controller.serve(&mut association, SECOND);
    controller.announce(&mut association, SECOND, event);
    controller.serve(&mut association, SECOND);
    controller.silent = None;
    controller.namespaces.remove(&5);
    let list = IdList::new([1, 5]);
    let outcome = Outcome { dw0: 0, dw1: 0, sqhd: 0, status: Status::SUCCESS };
    let id = controller.unanswered.remove(0);
    controller.namespaces.insert(5, namespace(0));
    association.on_completion(SECOND, id, Reply { outcome, data: list.as_bytes() });
    assert_eq!(controller.serve(&mut association, SECOND), [Told::NamespacesChanged]);
    assert_eq!(controller.seen.iter().filter(|name| **name == "changed list").count(), 2);
    assert_eq!(association.namespaces().len(), 1);
}

#[test]
fn namespaces_are_looked_at_when_all_queues_are_connected_and_changes_are_announced() {
    let mut controller = Controller::new();
    let mut association = start(AssociationConfig { io_queues: 3, ..config() });
    assert_eq!(controller.serve(&mut association, Duration::ZERO), [Told::Ready]);
    let last = |name| controller.seen.iter().rposition(|seen| *seen == name);
    let first = |name| controller.seen.iter().position(|seen| *seen == name);
    assert!(last("connect") < first("event request") && last("event request") < first("active"));
    // One that changes during the look is looked at again before anything is issued.
    let mut controller = Controller { silent: Some("active"), ..Controller::new() };
    let mut association = start(config());
    assert_eq!(controller.serve(&mut association, SECOND), []);
    controller.announce(&mut association, SECOND, AsyncEvent::ATTACHED_NAMESPACE_ATTRIBUTE_CHANGED.emit());
    let (list, id) = (IdList::new([1, 5]), controller.unanswered.remove(0));
    let outcome = Outcome { dw0: 0, dw1: 0, sqhd: 0, status: Status::SUCCESS };
    association.on_completion(SECOND, id, Reply { outcome, data: list.as_bytes() });
    controller.namespaces.remove(&5);
    controller.namespaces.insert(6, namespace(64));
    controller.namespaces.insert(5, namespace(64));
    assert_eq!(controller.serve(&mut association, SECOND), [Told::Ready]);
    assert!(association.is_scanning());
    controller.silent = None;
    let id = controller.unanswered.remove(0);
    let list = IdList::new([1, 5, 6]);
    association.on_completion(SECOND, id, Reply { outcome, data: list.as_bytes() });
    assert_eq!(controller.serve(&mut association, SECOND), [Told::NamespacesChanged]);
    assert_eq!((association.namespaces().len(), association.is_scanning()), (3, false));
}

#[test]
fn which_disk_is_where_is_not_known_until_a_refused_scan_succeeds() {
    let mut controller = Controller::new();
    let mut association = ready(&mut controller, config());
    controller.refuse.insert("active", Status::INTERNAL_ERROR);
    controller.announce(&mut association, SECOND, AsyncEvent::ATTACHED_NAMESPACE_ATTRIBUTE_CHANGED.emit());
    assert_eq!(controller.serve(&mut association, SECOND), []);
    assert_eq!((association.namespaces().len(), association.state()), (2, State::Ready));
    assert!(association.is_scanning());
    controller.refuse.clear();
    controller.namespaces.insert(9, namespace(64));
    let told = pass(&mut controller, &mut association, &mut SECOND.clone(), 2 * SECOND);
    assert_eq!(
        (told, association.namespaces().len()),
        (vec![Told::NamespacesChanged], 3),
        "without an event"
    );
    assert!(!association.is_scanning());
    // One that is refused for good is never known.
    controller.refuse.insert("active", Status::INVALID_FIELD);
    controller.announce(
        &mut association,
        2 * SECOND,
        AsyncEvent::ATTACHED_NAMESPACE_ATTRIBUTE_CHANGED.emit(),
    );
    let told = controller.serve(&mut association, 2 * SECOND);
    assert!(matches!(failure(&told), AssociationError::Command { .. }), "{told:?}");
}

#[test]
fn namespace_not_described_is_unknown_until_a_rescan() {
    for (command, status) in [
        ("namespace", Status::INTERNAL_ERROR),
        ("namespace", Status::ABORTED_BY_REQUEST),
        ("descriptors", Status::INTERNAL_ERROR),
        ("descriptors", Status::ABORTED_BY_REQUEST.with_dnr()),
        ("descriptors", Status::INVALID_FIELD.with_dnr()),
        ("independent", Status::INTERNAL_ERROR),
    ] {
        let mut controller = Controller::new();
        let mut association = ready(&mut controller, config());
        controller.refuse.insert(command, status);
        controller.announce(
            &mut association,
            SECOND,
            AsyncEvent::ATTACHED_NAMESPACE_ATTRIBUTE_CHANGED.emit(),
        );
        assert_eq!(controller.serve(&mut association, SECOND), [Told::NamespacesChanged]);
        assert!(association.is_unknown(Nsid(1)) && association.namespace(Nsid(1)).is_none());
        assert_eq!((association.state(), association.is_scanning()), (State::Ready, false));
        let mut now = SECOND;
        assert_eq!(pass(&mut controller, &mut association, &mut now, 2 * SECOND), [], "it is asked again");
        controller.refuse.clear();
        let told = pass(&mut controller, &mut association, &mut now, 4 * SECOND);
        assert_eq!(told, [Told::NamespacesChanged]);
        assert!(!association.is_unknown(Nsid(1)) && association.namespaces().len() == 2);
    }
}

#[test]
fn discovery_reads_the_log_once_or_stays_for_changes() {
    let mut controller = Controller::new();
    controller.identify.kas = 0.into();
    controller.identify.ioccsz = 0.into();
    controller.log = log(3, 6);
    let association = ready(&mut controller, discovery(false));
    assert_eq!(controller.seen[6..], ["controller", "log", "log", "log", "log"]);
    assert_eq!((association.discovery_log().generation, association.discovery_log().entries.len()), (3, 6));
    assert_eq!(association.discovery_log().entries[5].portid.get(), 5);
    assert_eq!(association.poll_timeout(), None, "no keep-alive");

    let mut association = ready(&mut controller, discovery(true));
    assert_eq!(controller.connects[1].0.kato_ms, 30_000);
    controller.log = log(4, 0);
    controller.announce(&mut association, SECOND, AsyncEvent::DISCOVERY_LOG_CHANGED.emit());
    assert_eq!(controller.serve(&mut association, SECOND), [Told::LogChanged]);
    assert_eq!(association.discovery_log().entries.len(), 0);
    let namespaces = AsyncEvent::ATTACHED_NAMESPACE_ATTRIBUTE_CHANGED.emit();
    controller.announce(&mut association, SECOND, namespaces);
    assert_eq!(controller.serve(&mut association, SECOND), [Told::Event(namespaces)], "not scanned for");
}

#[test]
fn shutdown_waits_for_the_controller() {
    let mut controller = Controller::new();
    let mut association = ready(&mut controller, config());
    controller.status = vec![0b0101, 0b1001];
    association.shutdown(SECOND);
    assert_eq!(controller.serve(&mut association, SECOND), []);
    assert_eq!((controller.configuration, association.state()), (0x0046_4001, State::ShuttingDown));
    let told = pass(&mut controller, &mut association, &mut SECOND.clone(), 2 * SECOND);
    assert_eq!(told, [Told::CloseQueues, Told::Closed]);
    association.shutdown(SECOND);
    assert!(association.poll_action().is_none());
}

#[test]
fn shutdown_that_hangs_ends() {
    for silent in ["CC", "CSTS"] {
        let mut controller = Controller::new();
        let mut association = ready(&mut controller, config());
        controller.silent = Some(silent);
        association.shutdown(SECOND);
        controller.serve(&mut association, SECOND);
        let told = pass(&mut controller, &mut association, &mut SECOND.clone(), 10 * SECOND);
        assert_eq!(told, [Told::CloseQueues, Told::Closed]);
    }
    let mut controller = Controller::new();
    let mut association = ready(&mut controller, config());
    association.shutdown(SECOND);
    association.on_disconnected(SECOND, Qid(0), "closed by the peer");
    let told = controller.serve(&mut association, SECOND);
    assert!(told.ends_with(&[Told::CloseQueues, Told::Closed]), "{told:?}");
    let mut association = start(config());
    association.shutdown(SECOND);
    let told = Controller::new().serve(&mut association, SECOND);
    assert!(told.ends_with(&[Told::CloseQueues, Told::Closed]), "before there was a connection: {told:?}");
}

#[test]
fn only_the_first_failure_is_reported() {
    let mut controller = Controller::new();
    let mut association = ready(&mut controller, config());
    association.on_violation(SECOND, crate::Violation::StaleCompletion { qid: Qid(1), cid: Cid(9) });
    association.on_disconnected(SECOND, Qid(1), "gone too");
    association.on_command_timeout(SECOND, Qid(1));
    let told = controller.serve(&mut association, SECOND);
    assert!(matches!(failure(&told), AssociationError::Violation(_)));
}

#[test]
fn lost_connection_names_queue_and_state() {
    let mut controller = Controller::new();
    let mut association = ready(&mut controller, config());
    association.on_disconnected(SECOND, Qid(1), "the connection broke");
    let told = controller.serve(&mut association, SECOND);
    let error = alloc::format!("{}", failure(&told));
    assert_eq!(error, "the connection of queue 1 was lost while in use: the connection broke");
}

/// Anything that can happen to an association.
#[derive(Debug, Clone)]
enum Happening {
    Serve,
    ServeOne,
    Timeout,
    Completion { id: u32, dw0: u32, dw1: u32, status: u16, len: usize, fill: u8 },
    Connected { qid: u16, private_data: Vec<u8> },
    Failed(u16),
    Disconnected(u16),
    Announce(u32),
    Traffic,
    Shutdown,
    Closed,
}

fn happening() -> impl Strategy<Value = Happening> {
    use Happening as H;
    let completion =
        (0u32..40, any::<u32>(), any::<u32>(), prop_oneof![Just(0u16), any::<u16>()], any::<u8>());
    let private_data = prop_oneof![
        any::<u16>().prop_map(|crqsize| AcceptData::new(crqsize).as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..40),
    ];
    prop_oneof![
        6 => Just(H::Serve),
        6 => Just(H::ServeOne),
        3 => Just(H::Timeout),
        3 => (completion, prop_oneof![Just(4096usize), Just(1024), 0usize..5000])
            .prop_map(|((id, dw0, dw1, status, fill), len)| H::Completion { id, dw0, dw1, status, len, fill }),
        2 => (0u16..3, private_data).prop_map(|(qid, private_data)| H::Connected { qid, private_data }),
        1 => (0u16..3).prop_map(H::Failed),
        1 => (0u16..3).prop_map(H::Disconnected),
        2 => prop_oneof![Just(2u32), Just(0x0070_f002), any::<u32>()].prop_map(H::Announce),
        1 => Just(H::Traffic),
        1 => Just(H::Shutdown),
        1 => Just(H::Closed),
    ]
}

proptest! {
    #[test]
    fn arbitrary_events_never_panic(
        purpose in 0u8..3,
        mut disk in prop::collection::vec(any::<u8>(), 192),
        happenings in prop::collection::vec(happening(), 0..60),
    ) {
        let config = match purpose {
            0 => AssociationConfig { io_queues: 2, ..config() },
            other => discovery(other == 1),
        };
        let mut association = start(config);
        let mut controller = Controller::new();
        controller.log = log(1, 3);
        disk.resize(4096, 0);
        controller.namespaces.insert(2, IdentifyNamespace::read_from_bytes(&disk).unwrap());
        let mut now = Duration::ZERO;
        for happening in happenings {
            match happening {
                Happening::Serve => drop(controller.serve(&mut association, now)),
                Happening::ServeOne => drop(association.poll_action()),
                Happening::Timeout => {
                    now = association.poll_timeout().unwrap_or(now).max(now);
                    association.on_timeout(now);
                }
                Happening::Completion { id, dw0, dw1, status, len, fill } => {
                    let outcome = Outcome { dw0, dw1, sqhd: 0, status: Status::from_field(status) };
                    let data = vec![fill; len];
                    association.on_completion(now, CommandId(id), Reply { outcome, data: &data });
                }
                Happening::Connected { qid, private_data } => {
                    association.on_queue_connected(now, Qid(qid), &private_data);
                }
                Happening::Failed(qid) => association.on_queue_failed(now, Qid(qid), QueueFailure::TimedOut),
                Happening::Disconnected(qid) => association.on_disconnected(now, Qid(qid), "gone"),
                Happening::Announce(event) if !controller.event_requests.is_empty() => {
                    controller.announce(&mut association, now, event);
                }
                Happening::Announce(_) => {}
                Happening::Traffic => association.on_traffic(now),
                Happening::Shutdown => association.shutdown(now),
                Happening::Closed => association.on_closed(now),
            }
            prop_assert!(association.pending.len() <= usize::from(crate::limits::ASSOCIATION_COMMANDS_MAX));
        }
        // And it always comes to an end.
        association.shutdown(now);
        controller.serve(&mut association, now);
        pass(&mut controller, &mut association, &mut now, Duration::from_secs(1 << 20));
        // For when its wish to close was among what was polled and not done.
        association.on_closed(now);
        prop_assert_eq!(association.state(), State::Closed);
    }
}
