//! Connect: every check, with its status and the field that it names.

use crate::host::*;
use nvme_proto::fabrics::disconnect;
use nvme_proto::fabrics::property::{Configuration, Property};
use nvme_proto::nvm::ReadWrite;
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::{SglDescriptor, Sqe, Status};
use nvmf_subsystem::*;
use zerocopy::IntoBytes;

/// IATTR 1: the field is in the data.
const DATA: u32 = 1 << 16;
const OK: (u8, u8) = (0, 0);
const INVALID_PARAMETERS: (u8, u8) = (1, 0x82);
const SEQUENCE: (u8, u8) = (0, 0x0c);

fn field(text: &[u8]) -> [u8; 256] {
    let mut field = [0; 256];
    field[..text.len()].copy_from_slice(text);
    field
}

#[test]
fn connect_of_an_admin_queue_names_status_and_field() {
    let good = Hello::admin();
    let link = |link: Link| Hello { link, ..good.clone() };
    let cases = [
        ("good", good.clone(), OK, 1),
        ("RECFMT", Hello { recfmt: 1, ..good.clone() }, (1, 0x80), 0),
        ("SQSIZE 0", Hello { sqsize_z: 0, ..good.clone() }, INVALID_PARAMETERS, 44),
        ("SQSIZE at the bound", Hello { sqsize_z: 127, ..good.clone() }, OK, 2),
        ("SQSIZE over the bound", Hello { sqsize_z: 128, ..good.clone() }, INVALID_PARAMETERS, 44),
        ("SQSIZE over the link", link(Link { entries: 31, ..good.link }), INVALID_PARAMETERS, 44),
        ("SQSIZE of the link", link(Link { entries: 32, ..good.link }), OK, 3),
        ("QID of the CM", link(Link { qid: Some(1), ..good.link }), INVALID_PARAMETERS, 42),
        ("same QID", link(Link { qid: Some(0), ..good.link }), OK, 4),
        ("HOSTID zero", Hello { host_id: HostId([0; 16]), ..good.clone() }, INVALID_PARAMETERS, DATA),
        ("CNTLID static", Hello { cntlid: 0xfffe, ..good.clone() }, INVALID_PARAMETERS, DATA | 16),
        ("CNTLID of a controller", Hello { cntlid: 1, ..good.clone() }, INVALID_PARAMETERS, DATA | 16),
        (
            "SUBNQN unknown",
            Hello { subnqn: field(b"nqn.2026-11.x:y"), ..good.clone() },
            INVALID_PARAMETERS,
            DATA | 256,
        ),
        ("SUBNQN empty", Hello { subnqn: [0; 256], ..good.clone() }, INVALID_PARAMETERS, DATA | 256),
        ("SUBNQN without end", Hello { subnqn: [b'n'; 256], ..good.clone() }, INVALID_PARAMETERS, DATA | 256),
        ("HOSTNQN empty", Hello { hostnqn: [0; 256], ..good.clone() }, INVALID_PARAMETERS, DATA | 512),
        (
            "HOSTNQN without end",
            Hello { hostnqn: [b'n'; 256], ..good.clone() },
            INVALID_PARAMETERS,
            DATA | 512,
        ),
        ("HOSTNQN not allowed", Hello { hostnqn: field(b"nqn.2026-11.x:z"), ..good.clone() }, (1, 0x84), 0),
        ("port unknown", link(Link { port: 9, ..good.link }), INVALID_PARAMETERS, DATA | 256),
        ("no flow control", Hello { attributes: 4, ..good.clone() }, OK, 5),
        ("no keep alive", Hello { kato_ms: 0, ..good.clone() }, OK, 6),
    ];
    let mut registry = registry(Options::default());
    for (name, hello, status, dw0) in cases {
        let (queue, cqe, _) = hello.connect(&mut registry);
        assert_eq!((code(&cqe), cqe.dw0.get()), (status, dw0), "{name}");
        assert_eq!(queue.association().is_some(), status == OK, "{name}");
        assert_eq!(cqe.status().dnr(), status != OK, "{name}");
    }
}

#[test]
fn connect_of_an_io_queue_names_status_and_field() {
    let mut fixture = Fixture::new();
    let good = Hello::io(2, 1);
    let link = |link: Link| Hello { link, ..good.clone() };
    let cases = [
        ("good", good.clone(), OK, 1),
        ("in use", good.clone(), SEQUENCE, 0),
        ("HOSTID zero", Hello { host_id: HostId([0; 16]), ..Hello::io(4, 1) }, OK, 1),
        (
            "other address",
            link(Link { peer: [192, 0, 2, 2].into(), ..good.link }),
            INVALID_PARAMETERS,
            DATA | 16,
        ),
        ("other port", link(Link { port: 2, ..good.link }), INVALID_PARAMETERS, DATA | 16),
        ("RECFMT", Hello { recfmt: 2, ..Hello::io(3, 1) }, (1, 0x80), 0),
        ("SQSIZE 0", Hello { sqsize_z: 0, ..Hello::io(3, 1) }, INVALID_PARAMETERS, 44),
        ("SQSIZE over MQES", Hello { sqsize_z: 128, ..Hello::io(3, 1) }, INVALID_PARAMETERS, 44),
        ("QID over the queues", Hello::io(129, 1), INVALID_PARAMETERS, 42),
        ("QID at the bound", Hello::io(128, 1), OK, 1),
        ("QID of the CM", link(Link { qid: Some(3), ..good.link }), INVALID_PARAMETERS, 42),
        ("controller unknown", Hello::io(3, 2), INVALID_PARAMETERS, DATA | 16),
        ("controller dynamic", Hello::io(3, 0xffff), INVALID_PARAMETERS, DATA | 16),
        ("controller of the CM", link(Link { cntlid: Some(2), ..good.link }), INVALID_PARAMETERS, DATA | 16),
        ("other host ID", Hello { host_id: HostId([8; 16]), ..Hello::io(3, 1) }, INVALID_PARAMETERS, DATA),
        (
            "other host",
            Hello { hostnqn: field(b"nqn.2026-11.x:z"), ..Hello::io(3, 1) },
            INVALID_PARAMETERS,
            DATA | 16,
        ),
        ("discovery", Hello { subnqn: Nqn::DISCOVERY.to_field(), ..Hello::io(3, 1) }, INVALID_PARAMETERS, 42),
    ];
    for (name, hello, status, dw0) in cases {
        let (_, cqe, _) = hello.connect(&mut fixture.registry);
        assert_eq!((code(&cqe), cqe.dw0.get()), (status, dw0), "{name}");
    }
    // Older hosts send 0 as the controller ID of the connection request.
    let old = Hello { link: Link { cntlid: Some(0), ..good.link }, ..Hello::io(3, 1) };
    assert_eq!(code(&old.connect(&mut fixture.registry).1), OK);
}

#[test]
fn an_io_queue_needs_an_enabled_controller() {
    let mut registry = registry(Options::default());
    let (mut admin, ..) = Hello::admin().connect(&mut registry);
    let refused = |registry: &mut Registry| {
        let (_, cqe, _) = Hello::io(2, 1).connect(registry);
        assert_eq!((code(&cqe), cqe.dw0.get(), cqe.status().dnr()), (INVALID_PARAMETERS, DATA | 16, false));
    };
    refused(&mut registry);
    enable(&mut admin);
    assert_eq!(code(&Hello::io(1, 1).connect(&mut registry).1), OK);
    assert_eq!(set(&mut admin, Property::CC, 0, 0), OK);
    refused(&mut registry);
    let abrupt = Configuration(Configuration::ENABLE.0 | 0b10 << 14);
    assert_eq!(set(&mut admin, Property::CC, 0, abrupt.0.into()), OK);
    refused(&mut registry);
}

#[test]
fn unconnected_queue_takes_connect_only() {
    let mut queue = Queue::new(NOW, Hello::admin().link);
    let commands = [
        Sqe::new(AdminOpcode::IDENTIFY.0),
        Sqe::new(AdminOpcode::KEEP_ALIVE.0),
        ReadWrite::new(0, 1).emit(NvmOpcode::READ, Nsid(1)),
        nvme_proto::fabrics::property::PropertyGet { size: 1, property: Property::CAP }.emit(),
        disconnect(),
    ];
    for sqe in commands {
        assert_eq!(code(&ask(&mut queue, &sqe)), SEQUENCE, "{sqe:?}");
    }
    let (first, _) = parameters(capsule(&mut queue, &Hello::admin().command(), 0));
    let second = with_cid(Hello::admin().command(), 1);
    assert_eq!(code(&ask(&mut queue, &second)), SEQUENCE, "one Connect at a time");
    first.abandon();
}

#[test]
fn connect_data_in_capsule_or_keyed_has_1024_bytes() {
    let in_capsule = |offset, len| {
        let mut sqe = Hello::admin().command();
        sqe.sgl = SglDescriptor::in_capsule(offset, len);
        sqe
    };
    let cases = [
        (in_capsule(0, 1024), 1024, None),
        (in_capsule(0, 1023), 1024, Some((0, 0x0f))),
        (in_capsule(0, 1024), 1023, Some((0, 0x16))),
        (in_capsule(64, 1024), 1088, None),
        (in_capsule(u64::MAX, 1024), 4096, Some((0, 0x16))),
        (keyed(Hello::admin().command(), 1023), 0, Some((0, 0x0f))),
        (keyed(Hello::admin().command(), 4096), 0, None),
    ];
    for (sqe, len, error) in cases {
        let mut queue = Queue::new(NOW, Hello::admin().link);
        match (capsule(&mut queue, &sqe, len), error) {
            (step, None) => {
                let (ticket, transfer) = parameters(step);
                assert!(matches!(transfer, Transfer::FromHost { len: 1024, .. }));
                ticket.abandon();
            }
            (step, Some(status)) => assert_eq!(code(&responded(step)), status, "{sqe:?}"),
        }
    }
}

#[test]
fn refused_connect_may_be_repeated_on_the_connection() {
    let mut registry = registry(Options::default());
    let bad = Hello { recfmt: 1, ..Hello::admin() };
    let (mut queue, ..) = bad.connect(&mut registry);
    let (ticket, _) = parameters(capsule(&mut queue, &Hello::admin().command(), 0));
    let Step::Connect(request) = queue.on_parameters(NOW, ticket, Hello::admin().data().as_bytes()) else {
        panic!("a second Connect is judged as well");
    };
    let admission = registry.connect(NOW, &request, true);
    assert_eq!(code(&responded(queue.on_admission(NOW, request, admission))), OK);
    assert_eq!(queue.qid(), Some(Qid(0)));
}

#[test]
fn controller_ids_are_not_used_again_at_once() {
    let mut registry = registry(Options::default());
    for expected in 1..=5 {
        let (queue, cqe, _) = Hello::admin().connect(&mut registry);
        assert_eq!(cqe.dw0.get(), expected);
        let association = std::sync::Arc::clone(queue.association().unwrap());
        assert!(registry.close_queue(&association, Qid(0)).is_empty());
    }
    assert_eq!(registry.associations().count(), 0);
}

#[test]
fn subsystem_without_free_controllers_is_busy() {
    let mut registry = registry(Options { controllers_max: 2, ..Options::default() });
    let (first, ..) = Hello::admin().connect(&mut registry);
    let _second = Hello::admin().connect(&mut registry);
    let (_, cqe, _) = Hello::admin().connect(&mut registry);
    assert_eq!((code(&cqe), cqe.status().dnr()), ((1, 0x81), false));
    let association = std::sync::Arc::clone(first.association().unwrap());
    registry.close_queue(&association, Qid(0));
    assert_eq!(code(&Hello::admin().connect(&mut registry).1), OK);
}

#[test]
fn host_with_many_controllers_leaves_half_of_them_to_others() {
    let mut registry = registry(Options { controllers_max: 32, ..Options::default() });
    registry.set_hosts(&nqn(SUBSYSTEM), HostAccess::Any).unwrap();
    let greedy = |at: u8| Hello { host_id: HostId([at; 16]), kato_ms: 0, ..Hello::admin() };
    for at in 1..=17 {
        assert_eq!(code(&greedy(at).connect(&mut registry).1), OK, "controller {at}");
    }
    let (_, cqe, _) = greedy(18).connect(&mut registry);
    assert_eq!((code(&cqe), cqe.status().dnr()), ((1, 0x81), false));
    let other = |at: u8| Hello { hostnqn: nqn(&format!("{HOST}-{at}")).to_field(), ..greedy(at) };
    for at in 1..=3 {
        for path in 1..=5 {
            let hello = Hello { host_id: HostId([at; 16]), ..other(at) };
            assert_eq!(code(&hello.connect(&mut registry).1), OK, "path {path} of host {at}");
        }
    }
    let (_, cqe, _) = other(1).connect(&mut registry);
    assert_eq!((code(&cqe), cqe.status().dnr()), ((1, 0x81), false));
    assert_eq!(registry.associations().count(), 32);
}

#[test]
fn discovery_without_free_controllers_closes_one_of_the_machine_with_most() {
    let mut registry = registry(Options { controllers_max: 4, ..Options::default() });
    let at = |ms| NOW + core::time::Duration::from_millis(ms);
    let mut connect = |ms: u64, machine: u8| {
        let hello = Hello::discovery();
        let link = nvmf_subsystem::Link { machine: [192, 0, 2, machine].into(), ..hello.link };
        let (queue, cqe, _) = Hello { link, ..hello }.connect_at(at(ms), &mut registry);
        assert_eq!(code(&cqe), OK, "from machine {machine} at {ms} ms");
        queue
    };
    let queues: Vec<_> =
        [1, 2, 2, 3].into_iter().zip(0..).map(|(machine, ms)| connect(ms, machine)).collect();
    let closing = || queues.iter().map(|queue| queue.association().unwrap().is_closing()).collect::<Vec<_>>();
    let _fourth = connect(500, 4);
    assert_eq!(closing(), [false, true, false, false], "the older of machine 2");
    let _third = connect(501, 3);
    assert_eq!(closing(), [false, true, false, true], "each has one: its own");
    let _fifth = connect(502, 5);
    assert_eq!(closing(), [true, true, false, true], "each has one: the one silent for longest");
}

/// Every refusal that ends by itself (a queue closes, a host leaves, the target has started, a disk answers) lets the
/// host try again: some hosts give a disk up for good when they are told not to retry.
#[test]
fn refusals_that_time_can_cure_may_be_retried() {
    let name = nqn(SUBSYSTEM);
    let host_nqn = nqn("nqn.2026-11.com.example:other");
    let key = SecureChannel { host_nqn, subsystem_nqn: name, generated: None };
    let duplicate = DuplicateHost { host_nqn: nqn(HOST), known: HOST_ID, new: HostId([8; 16]) };
    for (refusal, time_cures) in [
        (Refusal::Starting, true),
        (Refusal::CutOff, true),
        (Refusal::Format(1), false),
        (Refusal::QueueSize { qid: Qid(1), sqsize_z: 0, max_z: 127 }, false),
        (Refusal::QueueMismatch { connect: Qid(1), connection: Qid(2) }, false),
        (Refusal::QueueId { qid: Qid(9), max: 8 }, false),
        (Refusal::HostNqn, false),
        (Refusal::HostId, false),
        (Refusal::StaticController(Cntlid(1)), false),
        (Refusal::Controller(Cntlid(1)), true),
        (Refusal::OtherHostId(Cntlid(1)), true),
        (Refusal::OtherAddress(Cntlid(1)), true),
        (Refusal::OtherChannel(Cntlid(1)), false),
        (Refusal::OtherPort { cntlid: Cntlid(1), port: 2 }, false),
        (Refusal::Subsystem { nqn: name, port: 1 }, false),
        (Refusal::SubsystemNqn, false),
        (Refusal::Host { host: nqn(HOST), subsystem: name }, false),
        (Refusal::OtherKey { host: nqn(HOST), subsystem: name, key: Box::new(key) }, false),
        (Refusal::DuplicateHostId(duplicate), true),
        (Refusal::Busy(1), true),
        (Refusal::HostBusy { host: nqn(HOST), controllers: 9, max: 16 }, true),
        (Refusal::Share, true),
        (Refusal::Orphans(Cntlid(1)), true),
        (Refusal::Ending(Cntlid(1)), true),
        (Refusal::NotEnabled(Cntlid(1)), true),
        (Refusal::QueueInUse(Qid(1)), true),
    ] {
        // A new refusal has to be put into one of the two groups.
        match &refusal {
            Refusal::Controller(_)
            | Refusal::OtherHostId(_)
            | Refusal::OtherAddress(_)
            | Refusal::DuplicateHostId(_)
            | Refusal::Starting
            | Refusal::CutOff
            | Refusal::Busy(_)
            | Refusal::HostBusy { .. }
            | Refusal::Share
            | Refusal::Orphans(_)
            | Refusal::Ending(_)
            | Refusal::NotEnabled(_)
            | Refusal::QueueInUse(_) => assert!(time_cures),
            Refusal::Format(_)
            | Refusal::QueueSize { .. }
            | Refusal::QueueMismatch { .. }
            | Refusal::QueueId { .. }
            | Refusal::HostNqn
            | Refusal::HostId
            | Refusal::StaticController(_)
            | Refusal::OtherChannel(_)
            | Refusal::OtherPort { .. }
            | Refusal::Subsystem { .. }
            | Refusal::SubsystemNqn
            | Refusal::Host { .. }
            | Refusal::OtherKey { .. }
            | Refusal::Clear { .. } => assert!(!time_cures),
        }
        assert_eq!(refusal.status().dnr(), !time_cures, "{refusal}");
        assert!(!refusal.status().is(Status::INVALID_FIELD), "Connect never answers that");
    }
}

/// A connection that a key protects is that of the host and for the subsystem that the key is of.
#[test]
fn connect_with_the_key_of_another_host_or_subsystem_is_refused() {
    let mut registry = registry(Options::default());
    let other = nqn("nqn.2026-11.com.example:other");
    let with = |host_nqn, subsystem_nqn, hello: Hello| {
        let channel = SecureChannel { host_nqn, subsystem_nqn, generated: None };
        let link = Link { secure_channel: Some(channel), ..hello.link };
        Hello { link, ..hello }
    };
    for (hello, subsystem) in [(Hello::admin(), nqn(SUBSYSTEM)), (Hello::discovery(), Nqn::DISCOVERY)] {
        for (key_host, key_subsystem) in [(other, subsystem), (nqn(HOST), other)] {
            let (_, cqe, _) = with(key_host, key_subsystem, hello.clone()).connect(&mut registry);
            assert_eq!((code(&cqe), cqe.status().dnr()), ((1, 0x84), true));
        }
        let (queue, cqe, _) = with(nqn(HOST), subsystem, hello).connect(&mut registry);
        assert_eq!(code(&cqe), OK);
        let Some(association) = queue.association() else { panic!("it is admitted") };
        let cntlid = association.key().cntlid.0;
        let (_, cqe, _) = with(other, subsystem, Hello::io(1, cntlid)).connect(&mut registry);
        assert_eq!(code(&cqe), (1, 0x84), "an I/O queue as well");
    }
}

#[test]
fn io_queue_is_protected_as_its_admin_queue_is() {
    let mut registry = registry(Options::default());
    let key = SecureChannel { host_nqn: nqn(HOST), subsystem_nqn: nqn(SUBSYSTEM), generated: None };
    let with = |secure_channel, hello: Hello| {
        let link = Link { secure_channel, ..hello.link };
        Hello { link, ..hello }
    };
    for (cntlid, ours, other) in [(1, Some(key), None), (2, None, Some(key))] {
        let (mut queue, cqe, _) = with(ours, Hello::admin()).connect(&mut registry);
        assert_eq!((code(&cqe), cqe.dw0.get()), (OK, cntlid.into()));
        enable(&mut queue);
        let (_, cqe, _) = with(other, Hello::io(1, cntlid)).connect(&mut registry);
        assert_eq!((code(&cqe), cqe.status().dnr()), (INVALID_PARAMETERS, true));
        assert_eq!(code(&with(ours, Hello::io(1, cntlid)).connect(&mut registry).1), OK);
    }
}

#[test]
fn connect_before_the_ports_are_known_is_busy_and_may_be_retried() {
    let mut registry = Registry::new(Options::default()).unwrap();
    registry.add_subsystem(definition(SUBSYSTEM, HostAccess::Any, vec![])).unwrap();
    for hello in [Hello::admin(), Hello::discovery()] {
        let (_, cqe, _) = hello.connect(&mut registry);
        assert_eq!((code(&cqe), cqe.status().dnr()), ((1, 0x81), false));
    }
    registry.set_ports(vec![port()]).unwrap();
    for hello in [Hello::admin(), Hello::discovery()] {
        assert_eq!(code(&hello.connect(&mut registry).1), OK);
    }
}

#[test]
fn connect_takes_every_psdt_that_fabrics_commands_may_have() {
    for (flags, status) in
        [(0x00, OK), (0x40, OK), (0x80, OK), (0xc0, INVALID_PARAMETERS), (0x41, INVALID_PARAMETERS)]
    {
        let mut registry = registry(Options::default());
        let mut queue = Queue::new(NOW, Hello::admin().link);
        let sqe = Sqe { flags, ..Hello::admin().command() };
        let cqe = match capsule(&mut queue, &sqe, 0) {
            Step::Respond(response) => responded(Step::Respond(response)),
            step => {
                let (ticket, _) = parameters(step);
                let step = queue.on_parameters(NOW, ticket, Hello::admin().data().as_bytes());
                let Step::Connect(request) = step else { panic!("a Connect goes to the registry") };
                let admission = registry.connect(NOW, &request, true);
                responded(queue.on_admission(NOW, request, admission))
            }
        };
        assert_eq!(code(&cqe), status, "{flags:#x}");
        assert!(status == OK || (cqe.dw0.get(), cqe.status().dnr()) == (1, true), "byte 1 of the command");
    }
    let mut fixture = Fixture::new();
    let property = nvme_proto::fabrics::property::PropertyGet { size: 0, property: Property::VS }.emit();
    assert_eq!(code(&ask(&mut fixture.admin, &Sqe { flags: 0, ..property })), OK);
    assert_eq!(code(&ask(&mut fixture.io, &Sqe { flags: 0, ..disconnect() })), OK);
}

#[test]
fn duplicate_host_id_counts_within_one_subsystem_and_not_in_discovery() {
    let other_id = HostId([8; 16]);
    let second = "nqn.2026-11.com.example:second";
    let mut registry = registry(Options { duplicate_host_id: DuplicateHostId::Refuse, ..Options::default() });
    registry.add_subsystem(definition(second, HostAccess::Any, vec![])).unwrap();
    let elsewhere = [
        Hello { host_id: other_id, ..Hello::discovery() },
        Hello { host_id: other_id, subnqn: nqn(second).to_field(), ..Hello::admin() },
    ];
    for hello in elsewhere {
        let (_queue, cqe, _) = hello.connect(&mut registry);
        assert_eq!(code(&cqe), OK);
    }
    assert_eq!(code(&Hello::admin().connect(&mut registry).1), OK, "nobody else is in this subsystem");
    let (_, cqe, duplicate) = Hello { host_id: other_id, ..Hello::admin() }.connect(&mut registry);
    assert_eq!((code(&cqe), cqe.status().dnr(), duplicate.is_some()), ((1, 0x84), false, true));
}

#[test]
fn an_admin_queue_of_128_entries_connects() {
    let mut registry = registry(Options::default());
    let (mut queue, cqe, _) = Hello { sqsize_z: 127, ..Hello::admin() }.connect(&mut registry);
    assert_eq!((code(&cqe), queue.qid()), (OK, Some(Qid(0))));
    enable(&mut queue);
}

#[test]
fn duplicate_host_id_is_reported_or_refused() {
    let other = Hello { host_id: HostId([8; 16]), ..Hello::admin() };
    for (policy, status) in [(DuplicateHostId::Report, OK), (DuplicateHostId::Refuse, (1, 0x84))] {
        let mut registry = registry(Options { duplicate_host_id: policy, ..Options::default() });
        assert_eq!(Hello::admin().connect(&mut registry).2, None);
        assert_eq!(Hello::admin().connect(&mut registry).2, None, "the same host may have two controllers");
        let (_, cqe, duplicate) = other.connect(&mut registry);
        assert_eq!(code(&cqe), status);
        let duplicate = duplicate.unwrap();
        assert_eq!((duplicate.known, duplicate.new), (HOST_ID, HostId([8; 16])));
    }
}

#[test]
fn sqhd_counts_connect_and_is_ffff_without_flow_control() {
    let mut registry = registry(Options::default());
    let (mut queue, cqe, _) = Hello { sqsize_z: 2, ..Hello::admin() }.connect(&mut registry);
    assert_eq!(cqe.sqhd.get(), 1);
    let mut heads = Vec::new();
    for _ in 0..3 {
        let sqe = nvme_proto::fabrics::property::PropertyGet { size: 0, property: Property::VS }.emit();
        heads.push(ask(&mut queue, &sqe).sqhd.get());
    }
    assert_eq!(heads, [2, 0, 1]);
    let (_, cqe, _) = Hello { attributes: 1 << 2, ..Hello::admin() }.connect(&mut registry);
    assert_eq!(cqe.sqhd.get(), 0xffff);
}

#[test]
fn connection_without_connect_times_out() {
    let new = |qid| Queue::new(NOW, nvmf_subsystem::Link { qid, ..Hello::admin().link });
    let mut queue = new(Some(0));
    let deadline = queue.poll_timeout().unwrap();
    assert_eq!(deadline, NOW + limits::CONNECT_TIMEOUT);
    // Of an I/O queue, or of one that is not known before.
    assert_eq!(new(Some(1)).poll_timeout(), Some(NOW + limits::IO_CONNECT_TIMEOUT));
    assert_eq!(new(None).poll_timeout(), Some(NOW + limits::IO_CONNECT_TIMEOUT));
    queue.on_timeout(deadline - core::time::Duration::from_millis(1));
    assert!(queue.poll_step(deadline).is_none());
    queue.on_timeout(deadline);
    let step = queue.poll_step(deadline);
    assert!(matches!(step, Some(Step::CloseAssociation(Violation::ConnectTimeout(_)))));
    assert!(queue.poll_step(deadline).is_none() && queue.poll_timeout().is_none());
}
