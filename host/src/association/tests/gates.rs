use super::*;
use alloc::boxed::Box;
use alloc::string::ToString;

fn fail(controller: &mut Controller, config: AssociationConfig) -> AssociationError {
    let mut association = start(config);
    let told = controller.serve(&mut association, Duration::ZERO);
    assert_eq!(association.state(), State::Closed);
    failure(&told).clone()
}

#[test]
fn unusable_controller_is_refused_with_its_reason() {
    type Spoil = Box<dyn Fn(&mut IdentifyController)>;
    let gates: Vec<(Spoil, Gate)> = vec![
        (
            Box::new(|identify| identify.cntlid = 8.into()),
            Gate::ControllerId { identify: Cntlid(8), connect: Cntlid(CNTLID) },
        ),
        (Box::new(|identify| identify.kas = 0.into()), Gate::KeepAlive),
        (Box::new(|identify| identify.ioccsz = 3.into()), Gate::CommandCapsule(3)),
        (Box::new(|identify| identify.iorcsz = 0.into()), Gate::ResponseCapsule(0)),
        (Box::new(|identify| identify.icdoff = 1.into()), Gate::InCapsuleOffset(1)),
        (Box::new(|identify| identify.sgls = 1.into()), Gate::Sgls(1)),
        (Box::new(|identify| identify.cntrltype = 2), Gate::ControllerType(2)),
    ];
    for (spoil, gate) in gates {
        let mut controller = Controller::new();
        spoil(&mut controller.identify);
        let error = fail(&mut controller, config());
        assert_eq!(error, AssociationError::Gate(gate));
        assert!(error.is_permanent());
    }
    for (capabilities, gate) in
        [(127, Gate::CommandSet(127)), (Capabilities::new(128, 1).0 | 1 << 48, Gate::PageSize(1))]
    {
        let mut controller = Controller::new();
        controller.capabilities = capabilities;
        assert_eq!(fail(&mut controller, config()), AssociationError::Gate(gate));
    }
}

#[test]
fn refused_command_is_named_unless_optional() {
    for (command, text) in [
        ("connect", "Connect of queue 0 failed: Internal Error"),
        ("CAP", "Property Get (CAP) failed"),
        ("VS", "Property Get (VS) failed"),
        ("CC", "Property Set (CC.EN) failed"),
        ("CSTS", "Property Get (CSTS) failed"),
        ("controller", "Identify Controller failed"),
        ("queues", "Set Features (Number of Queues) failed"),
        ("active", "Identify (active namespaces) failed"),
    ] {
        let mut controller = Controller::new();
        controller.refuse.insert(command, Status::INTERNAL_ERROR);
        let error = fail(&mut controller, config());
        assert!(error.to_string().starts_with(text), "{command}: {error}");
        assert!(!error.is_permanent());
    }
    for optional in ["nvm controller", "events", "descriptors", "namespace", "independent"] {
        let mut controller = Controller::new();
        controller.refuse.insert(optional, Status::INVALID_FIELD.with_dnr());
        let association = ready(&mut controller, config());
        assert_eq!(association.namespaces().is_empty(), optional == "namespace");
    }
}

#[test]
fn connect_names_the_invalid_parameter() {
    for (dw0, text) in [
        (0x0001_0100, "SUBNQN (byte 256 of the Connect data)"),
        (
            0x0001_0200,
            "HOSTNQN (byte 512 of the Connect data): the subsystem does not know or allow this host",
        ),
        (0x0000_002c, "SQSIZE (byte 44 of the Connect command): ask for a smaller queue size"),
        (0x0000_0009, "an unnamed field (byte 9 of the Connect command)"),
    ] {
        let mut controller = Controller::new();
        controller.refuse.insert("connect", Status::CONNECT_INVALID_PARAMETERS.with_dnr());
        controller.connect_dw0 = dw0;
        let error = fail(&mut controller, config());
        let said = error.to_string();
        assert!(said.ends_with(text), "{error}");
        assert!(said.contains("Connect Invalid Parameters") && !said.contains("Read Only Range"), "{error}");
        assert_eq!(said.starts_with("there is no such subsystem"), text.starts_with("SUBNQN"), "{error}");
        assert!(error.is_permanent());
    }
}

#[test]
fn authentication_demand_is_recognised() {
    let mut controller = Controller::new();
    controller.connect_dw0 |= 1 << 17;
    assert_eq!(fail(&mut controller, config()), AssociationError::AuthenticationRequired);
    let mut controller = Controller::new();
    controller.refuse.insert("connect", Status::AUTHENTICATION_REQUIRED);
    assert_eq!(fail(&mut controller, config()), AssociationError::AuthenticationRequired);
}

#[test]
fn fatal_controller_fails_the_association() {
    let mut controller = Controller::new();
    controller.status = vec![0b10];
    assert_eq!(fail(&mut controller, config()), AssociationError::ControllerFatal);
}

#[test]
fn rejected_connection_says_why() {
    for (failure_, text) in [
        (
            QueueFailure::from_reject(&[0, 0, 6, 0]),
            "queue 0: the controller rejected the connection: no resources",
        ),
        (QueueFailure::from_reject(&[1, 0, 6, 0]), "it gave no NVMe/RDMA reason; is it an NVMe/RDMA target?"),
        (QueueFailure::from_reject(&[]), "it gave no NVMe/RDMA reason"),
        (QueueFailure::Unreachable("connection refused".into()), "connection refused"),
        (QueueFailure::TimedOut, "no answer to the connection request"),
    ] {
        let mut association = start(config());
        assert!(matches!(association.poll_action(), Some(Action::OpenQueue { .. })));
        association.on_queue_failed(SECOND, Qid(0), failure_);
        let told = Controller::new().serve(&mut association, SECOND);
        assert!(failure(&told).to_string().contains(text), "{told:?}");
    }
    for private_data in [
        &[0; 31][..],
        &[1; 32],
        &[0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ] {
        let mut association = start(config());
        association.poll_action();
        assert_eq!(association.on_queue_connected(SECOND, Qid(0), private_data), None);
        let told = Controller::new().serve(&mut association, SECOND);
        assert!(matches!(failure(&told), AssociationError::Queue { .. }));
    }
}

#[test]
fn impossible_configuration_is_refused() {
    for config in [
        AssociationConfig { host_id: HostId([0; 16]), ..config() },
        AssociationConfig { io_queues: 0, ..config() },
        AssociationConfig { io_queue_entries: 1, ..config() },
        AssociationConfig { keep_alive: Duration::ZERO, ..config() },
        AssociationConfig { keep_alive: Duration::from_secs(1 << 40), ..config() },
    ] {
        assert!(matches!(Association::new(config, SECOND), Err(AssociationError::Config(_))));
    }
}

/// What a controller says nothing to, and what the association is doing then.
const WAITS: [(&str, State); 14] = [
    ("open", State::Connecting(Qid(0))),
    ("connect", State::Connecting(Qid(0))),
    ("CAP", State::Enabling),
    ("VS", State::Enabling),
    ("CC", State::Enabling),
    ("CSTS", State::Enabling),
    ("controller", State::Identifying),
    ("nvm controller", State::Identifying),
    ("queues", State::Identifying),
    ("events", State::Identifying),
    ("active", State::Identifying),
    ("namespace", State::Identifying),
    ("descriptors", State::Identifying),
    ("independent", State::Identifying),
];

/// Nobody is to wait longer for a controller that answers half than for one that does not answer at all.
#[test]
fn set_up_takes_no_longer_than_it_may() {
    let half = SECOND / 2;
    let each = AssociationConfig { connect_timeout: half, setup_command_timeout: half, ..config() };
    let in_all = AssociationConfig { setup_timeout: Some(half), ..config() };
    for (config, (command, state)) in [each, in_all].iter().flat_map(|it| WAITS.map(|wait| (it, wait))) {
        let mut controller = Controller::new();
        controller.silent = Some(command);
        let mut association = start(config.clone());
        assert!(controller.serve(&mut association, Duration::ZERO).is_empty());
        let mut now = Duration::ZERO;
        // The controller itself says how long it may take to be ready (CAP.TO).
        let most = if command == "CSTS" && config.setup_timeout.is_none() { 100 * SECOND } else { half };
        let told = pass(&mut controller, &mut association, &mut now, most);
        assert_eq!(failure(&told), &AssociationError::TimedOut { state }, "{command}");
    }
    // Of what comes afterwards these say nothing.
    let mut controller = Controller::new();
    let hasty = AssociationConfig { setup_command_timeout: half, setup_timeout: Some(half), ..config() };
    let mut association = ready(&mut controller, hasty);
    let mut now = Duration::ZERO;
    assert!(pass(&mut controller, &mut association, &mut now, 10 * SECOND).is_empty());
    controller.silent = Some("active");
    association.scan(now);
    assert!(controller.serve(&mut association, now).is_empty());
    let end = now + 3 * SECOND;
    assert!(pass(&mut controller, &mut association, &mut now, end).is_empty(), "it has its time");
}

#[test]
fn every_wait_times_out() {
    for (command, state) in WAITS {
        let mut controller = Controller::new();
        controller.silent = Some(command);
        let mut association = start(config());
        let mut told = controller.serve(&mut association, Duration::ZERO);
        assert!(told.is_empty());
        let mut now = Duration::ZERO;
        told.extend(pass(&mut controller, &mut association, &mut now, 100 * SECOND));
        assert_eq!(failure(&told), &AssociationError::TimedOut { state }, "{command}");
        for late in core::mem::take(&mut controller.unanswered) {
            let outcome = Outcome { dw0: 0, dw1: 0, sqhd: 0, status: Status::SUCCESS };
            association.on_completion(now, late, Reply { outcome, data: &[] });
        }
        assert!(association.poll_action().is_none(), "too late");
    }
}

#[test]
fn data_of_wrong_length_fail_the_association() {
    for (command, what) in
        [("controller", "Identify Controller"), ("active", "the list of active namespaces")]
    {
        let mut controller = Controller::new();
        controller.silent = Some(command);
        let mut association = start(config());
        controller.serve(&mut association, Duration::ZERO);
        let id = controller.unanswered[0];
        let outcome = Outcome { dw0: 0, dw1: 0, sqhd: 0, status: Status::SUCCESS };
        association.on_completion(SECOND, id, Reply { outcome, data: &[0; 17] });
        let told = controller.serve(&mut association, SECOND);
        assert!(matches!(failure(&told), AssociationError::Malformed { what: named, .. } if *named == what));
    }
}
