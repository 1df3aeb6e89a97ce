//! Hosts that must authenticate: what a queue does until they have, and when they fail to.

use crate::host::*;
use core::time::Duration;
use nvme_proto::fabrics::auth::{self, Message};
use nvme_proto::fabrics::connect::Connected;
use nvme_proto::fabrics::property::{Property, PropertyGet};
use nvme_proto::nvm::ReadWrite;
use nvme_proto::opcode::{FabricsType, NvmOpcode};
use nvme_proto::{Cqe, Sqe, fabrics};
use nvmf_auth::controller::Keys;
use nvmf_auth::host::{Host, Next, Secrets};
use nvmf_auth::{Group, Hash, MESSAGE_LEN_MAX, Names, NoRandom, Secret, Terms};
use nvmf_subsystem::limits::{AUTHENTICATION_LINGER, AUTHENTICATION_TIMEOUT, UNAUTHENTICATED_MAX};
use nvmf_subsystem::*;

const OK: (u8, u8) = (0, 0);
const REQUIRED: (u8, u8) = (1, 0x91);
const INVALID_FIELD: (u8, u8) = (0, 0x02);

fn terms() -> Terms {
    Terms::new(&[Hash::Sha256], &[Group::Null]).unwrap()
}

pub(crate) fn secret(byte: u8) -> Secret {
    Secret::new(&[byte; 32], None).unwrap()
}

fn authentication() -> Authentication {
    Authentication { hosts: [(nqn(HOST), terms())].into(), ..Authentication::default() }
}

fn registry_with_key() -> Registry {
    let mut registry = registry(Options::default());
    registry.set_authentication(authentication());
    registry
}

pub(crate) fn random(bytes: &mut [u8]) -> Result<(), NoRandom> {
    bytes.fill(7);
    Ok(())
}

fn command(fctype: FabricsType, len: u32) -> Sqe {
    let command = auth::Authentication::new(len);
    let mut sqe = fabrics::command(fctype);
    (sqe.cdw10, sqe.cdw11) = (command.cdw10().into(), command.cdw11().into());
    sqe
}

/// Authentication Send; the control plane has `byte` as the host's key.
pub(crate) fn send(now: Duration, queue: &mut Queue, message: &[u8], byte: u8) -> Cqe {
    let len = message.len() as u32;
    let sqe = keyed(command(FabricsType::AUTHENTICATION_SEND, len), len);
    let (ticket, _) = parameters(capsule(queue, &sqe, 0));
    match queue.on_parameters(now, ticket, message) {
        Step::Ask { ticket, question } => {
            let Question::Authenticate { names, task, .. } = *question else { panic!("another question") };
            assert_eq!((names.host, names.subsystem), (nqn(HOST), nqn(SUBSYSTEM)));
            let keys = Keys { host: Some(secret(byte)), controller: None };
            let computed = task.run(Some(&keys), &mut random);
            responded(queue.on_answer(now, ticket, Answer::Authenticate(computed)))
        }
        step => responded(step),
    }
}

/// Authentication Receive of so many bytes.
pub(crate) fn receive(queue: &mut Queue, len: u32) -> Result<Vec<u8>, (u8, u8)> {
    read(queue, &command(FabricsType::AUTHENTICATION_RECEIVE, len), len)
}

/// Authenticates with `own`, where the target has `theirs`; whether that succeeded.
fn authenticate(now: Duration, queue: &mut Queue, own: u8, theirs: u8) -> bool {
    let names = Names { host: nqn(HOST), subsystem: nqn(SUBSYSTEM) };
    let secrets = Secrets { host: secret(own), controller: None };
    let (mut host, mut next) = Host::start(names, terms(), 1);
    loop {
        let result = match next {
            Next::Send(message) => {
                assert_eq!(code(&send(now, queue, &message, theirs)), OK, "the command succeeds in any case");
                host.on_sent()
            }
            Next::Receive => host.on_received(&receive(queue, 4096).unwrap()),
            Next::Compute(task) => host.on_computed(task.run(&secrets, &mut random)),
            Next::Done => return true,
        };
        match result {
            Ok(following) => next = following,
            Err(_) => return false,
        }
    }
}

fn connect(hello: &Hello, registry: &mut Registry) -> (Queue, Connected) {
    let (queue, cqe, _) = hello.connect(registry);
    assert_eq!(code(&cqe), OK);
    (queue, Connected::parse(cqe.result() as u32))
}

/// An Admin queue whose host has proved itself.
fn admin(registry: &mut Registry) -> Queue {
    let (mut queue, connected) = connect(&Hello::admin(), registry);
    assert!(connected.authentication_required && !connected.secure_channel_required);
    assert!(authenticate(NOW, &mut queue, 7, 7));
    queue
}

#[test]
fn nothing_but_authentication_is_taken_before_it() {
    let mut registry = registry_with_key();
    let (mut queue, _) = connect(&Hello::admin(), &mut registry);
    let get = PropertyGet { size: 1, property: Property::CAP }.emit();
    for opcode in 0..=255u8 {
        let mut sqe = if opcode == 0x7f { get } else { Sqe::new(opcode) };
        sqe.flags = 0x40;
        let cqe = ask(&mut queue, &sqe);
        assert_eq!((code(&cqe), cqe.status().dnr()), (REQUIRED, true), "opcode {opcode:#x}");
    }
    for fctype in (0..=255u8).map(FabricsType) {
        if matches!(fctype, FabricsType::AUTHENTICATION_SEND | FabricsType::AUTHENTICATION_RECEIVE) {
            continue;
        }
        assert_eq!(code(&ask(&mut queue, &fabrics::command(fctype))), REQUIRED, "FCTYPE {fctype:?}");
    }
    assert!(!queue.association().unwrap().is_authenticated());
    assert!(authenticate(NOW, &mut queue, 7, 7));
    assert!(queue.association().unwrap().is_authenticated());
    enable(&mut queue);
}

/// Every I/O queue proves it by itself.
#[test]
fn io_queue_is_used_only_after_its_own_authentication() {
    let mut registry = registry_with_key();
    let mut queue = admin(&mut registry);
    enable(&mut queue);
    let cntlid = queue.association().unwrap().key().cntlid.0;
    let (mut io, connected) = connect(&Hello::io(1, cntlid), &mut registry);
    assert!(connected.authentication_required);
    let read = keyed(ReadWrite::new(0, 1).emit(NvmOpcode::READ, Nsid(1)), 512);
    assert_eq!(code(&ask(&mut io, &read)), REQUIRED);
    assert!(authenticate(NOW, &mut io, 7, 7));
    let Step::Execute { ticket, .. } = capsule(&mut io, &read, 0) else { panic!("a read is executed") };
    let _ = io.on_done(NOW, ticket, Ok(()));
    // One that fails ends alone: anyone could have connected it.
    let (mut other, _) = connect(&Hello::io(2, cntlid), &mut registry);
    assert!(!authenticate(NOW, &mut other, 8, 7));
    assert!(matches!(other.poll_step(NOW), Some(Step::CloseQueue)));
    assert!(io.poll_step(NOW).is_none() && queue.poll_step(NOW).is_none());
}

#[test]
fn host_that_fails_is_told_and_its_queue_closes() {
    let mut registry = registry_with_key();
    let (mut queue, _) = connect(&Hello::admin(), &mut registry);
    assert!(!authenticate(NOW, &mut queue, 8, 7));
    assert_eq!(queue.authentication_fault(), Some(nvmf_auth::controller::Fault::WrongResponse));
    assert!(matches!(queue.poll_step(NOW), Some(Step::CloseQueue)));
    // One that does not ask why is closed as well.
    let (mut queue, _) = connect(&Hello::admin(), &mut registry);
    assert_eq!(code(&send(NOW, &mut queue, &[0xff; 8], 7)), OK);
    assert!(queue.poll_step(NOW).is_none());
    assert_eq!(queue.poll_timeout(), Some(NOW + AUTHENTICATION_LINGER));
    queue.on_timeout(NOW + AUTHENTICATION_LINGER);
    assert!(matches!(queue.poll_step(NOW), Some(Step::CloseQueue)));
}

/// Bugs of others, row 2.
#[test]
fn message_that_does_not_fit_is_not_sent() {
    let mut registry = registry_with_key();
    let (mut queue, _) = connect(&Hello::admin(), &mut registry);
    let names = Names { host: nqn(HOST), subsystem: nqn(SUBSYSTEM) };
    let (_, Next::Send(negotiate)) = Host::start(names, terms(), 1) else { panic!("no message") };
    assert_eq!(code(&send(NOW, &mut queue, &negotiate, 7)), OK);
    // A challenge without a group has 16 and 32 bytes.
    for len in 1..48 {
        assert_eq!(receive(&mut queue, len), Err(INVALID_FIELD), "AL {len}");
    }
    let exact = receive(&mut queue, 48).unwrap();
    assert!(matches!(Message::parse(&exact), Ok(Message::Challenge(_))));
    let long = receive(&mut queue, 4096).unwrap();
    assert_eq!((&long[..48], &long[48..]), (&exact[..], &[0; 4048][..]));
    assert!(receive(&mut queue, MESSAGE_LEN_MAX as u32).is_ok());
    // Failure1, in 8 bytes.
    assert_eq!(code(&send(NOW, &mut queue, &[0xff; 8], 7)), OK);
    for len in 1..8 {
        assert_eq!(receive(&mut queue, len), Err(INVALID_FIELD), "AL {len}");
    }
    assert_eq!(receive(&mut queue, 8).unwrap()[1], 0xf1);
}

#[test]
fn command_that_is_not_in_band_authentication_is_invalid() {
    let mut registry = registry_with_key();
    let (mut queue, _) = connect(&Hello::admin(), &mut registry);
    for fctype in [FabricsType::AUTHENTICATION_SEND, FabricsType::AUTHENTICATION_RECEIVE] {
        let good = command(fctype, 72).cdw10.get().to_le_bytes();
        for (at, value) in [(3, 0xea), (2, 0), (1, 2)] {
            let mut cdw10 = good;
            cdw10[at] = value;
            let mut sqe = keyed(command(fctype, 72), 72);
            sqe.cdw10 = u32::from_le_bytes(cdw10).into();
            let cqe = ask(&mut queue, &sqe);
            assert_eq!((code(&cqe), cqe.status().dnr()), (INVALID_FIELD, true));
        }
        assert_eq!(code(&ask(&mut queue, &keyed(command(fctype, 0), 0))), INVALID_FIELD);
        // TL and AL are the SGL's length.
        assert_eq!(code(&ask(&mut queue, &keyed(command(fctype, 72), 71))), (0, 0x0f));
    }
    let long = keyed(command(FabricsType::AUTHENTICATION_SEND, 4097), 4097);
    assert_eq!(code(&ask(&mut queue, &long)), INVALID_FIELD);
    // Nobody asked this host.
    let mut fixture = Fixture::new();
    let sqe = keyed(command(FabricsType::AUTHENTICATION_SEND, 72), 72);
    assert_eq!(code(&ask(&mut fixture.admin, &sqe)), (0, 0x01));
    assert_eq!(code(&ask(&mut fixture.io, &sqe)), (0, 0x01));
}

/// Bugs of others, row 7: the clock at the deadline, at every step.
#[test]
fn host_that_does_not_go_on_is_closed_in_time() {
    let names = Names { host: nqn(HOST), subsystem: nqn(SUBSYSTEM) };
    for step in 0..4 {
        let mut registry = registry_with_key();
        let (mut queue, _) = connect(&Hello::admin(), &mut registry);
        let (mut host, Next::Send(negotiate)) = Host::start(names, terms(), 1) else { panic!("no message") };
        if step > 0 {
            send(NOW, &mut queue, &negotiate, 7);
        }
        if step > 1 {
            let challenge = receive(&mut queue, 4096).unwrap();
            let _ = host.on_sent();
            if step > 2 {
                let Ok(Next::Compute(task)) = host.on_received(&challenge) else { panic!("no task") };
                let secrets = Secrets { host: secret(7), controller: None };
                let Ok(Next::Send(reply)) = host.on_computed(task.run(&secrets, &mut random)) else {
                    panic!("no reply")
                };
                send(NOW, &mut queue, &reply, 7);
                // The host has proved itself.
                assert!(queue.association().unwrap().is_authenticated());
            }
        }
        // The Keep Alive timer does not run yet.
        let due = NOW + AUTHENTICATION_TIMEOUT;
        if step < 3 {
            assert_eq!(queue.poll_timeout(), Some(due));
        }
        queue.on_timeout(due - Duration::from_millis(1));
        let early = queue.poll_step(due);
        queue.on_timeout(due);
        let late = queue.poll_step(due);
        if step < 3 {
            assert!(early.is_none(), "{early:?}");
            let expired = Violation::AuthenticationTimeout(AUTHENTICATION_TIMEOUT);
            assert!(matches!(late, Some(Step::CloseAssociation(violation)) if violation == expired));
        } else {
            // It has authenticated, and has some time to enable the controller, in which it must be heard of.
            assert!(matches!(early, Some(Step::CloseAssociation(_))), "{early:?}");
        }
        let association = queue.association().unwrap().clone();
        association.on_connection_gone();
        assert!(registry.close_queue(&association, Qid(0)).is_empty());
        assert_eq!(registry.associations().count(), 0);
    }
}

/// What the target computes for does not count against the host; what it has meanwhile is a question.
#[test]
fn time_that_the_control_plane_takes_is_not_the_hosts() {
    let mut registry = registry_with_key();
    let hello = Hello { kato_ms: 0, ..Hello::admin() };
    let (mut queue, _) = connect(&hello, &mut registry);
    let names = Names { host: nqn(HOST), subsystem: nqn(SUBSYSTEM) };
    let (_, Next::Send(negotiate)) = Host::start(names, terms(), 1) else { panic!("no message") };
    let sqe = keyed(command(FabricsType::AUTHENTICATION_SEND, 72), 72);
    let (ticket, _) = parameters(capsule(&mut queue, &sqe, 0));
    let Step::Ask { ticket, question } = queue.on_parameters(NOW, ticket, &negotiate) else {
        panic!("it asks the control plane")
    };
    let hour = Duration::from_secs(3600);
    queue.on_timeout(NOW + hour);
    assert!(queue.poll_step(NOW + hour).is_none() && queue.poll_timeout().is_none());
    let Question::Authenticate { task, .. } = *question else { panic!("another question") };
    let answer = Answer::Authenticate(task.run(None, &mut random));
    assert_eq!(code(&responded(queue.on_answer(NOW + hour, ticket, answer))), OK);
    assert_eq!(queue.poll_timeout(), Some(NOW + hour + AUTHENTICATION_TIMEOUT));
}

#[test]
fn later_authentication_that_stops_half_way_costs_nothing() {
    let mut registry = registry_with_key();
    let hello = Hello { kato_ms: 0, ..Hello::admin() };
    let (mut queue, _) = connect(&hello, &mut registry);
    assert!(authenticate(NOW, &mut queue, 7, 7));
    enable(&mut queue);
    let names = Names { host: nqn(HOST), subsystem: nqn(SUBSYSTEM) };
    let (_, Next::Send(negotiate)) = Host::start(names, terms(), 1) else { panic!("no message") };
    assert_eq!(code(&send(NOW, &mut queue, &negotiate, 7)), OK);
    assert_eq!(queue.poll_timeout(), Some(NOW + AUTHENTICATION_TIMEOUT));
    queue.on_timeout(NOW + AUTHENTICATION_TIMEOUT);
    assert!(queue.poll_step(NOW).is_none() && queue.poll_timeout().is_none());
    assert!(get(&mut queue, Property::CAP, 1).is_ok());
    // A hundred more, with I/O allowed between the steps; then one with a wrong key.
    for _ in 0..100 {
        assert!(authenticate(NOW, &mut queue, 9, 9));
        assert!(get(&mut queue, Property::CAP, 1).is_ok());
    }
    assert!(!authenticate(NOW, &mut queue, 7, 9));
    assert_eq!(code(&ask(&mut queue, &PropertyGet { size: 1, property: Property::CAP }.emit())), REQUIRED);
    assert!(matches!(queue.poll_step(NOW), Some(Step::CloseQueue)));
}

#[test]
fn removed_or_added_key_ends_the_associations_of_its_host_only() {
    let mut registry = registry(Options::default());
    let (queue, connected) = connect(&Hello::admin(), &mut registry);
    assert!(!connected.authentication_required);
    registry.set_authentication(authentication());
    assert!(queue.association().unwrap().is_closing(), "it has not proved that it has the key");
    assert!(matches!(registry.take_notices()[..], [Notice::Closing(_)]));
    queue.association().unwrap().on_connection_gone();
    registry.close_queue(queue.association().unwrap(), Qid(0));
    let queue = admin(&mut registry);
    registry.set_authentication(authentication());
    assert!(!queue.association().unwrap().is_closing());
    let mut others = authentication();
    others.hosts.insert(nqn("nqn.2026-11.com.example:other"), terms());
    registry.set_authentication(others);
    assert!(!queue.association().unwrap().is_closing());
    registry.set_authentication(Authentication::default());
    assert!(queue.association().unwrap().is_closing());
}

#[test]
fn discovery_is_open_unless_it_was_asked_for() {
    let mut registry = registry_with_key();
    let (_, connected) = connect(&Hello::discovery(), &mut registry);
    assert!(!connected.authentication_required);
    registry.set_authentication(Authentication { discovery: true, ..authentication() });
    let (_, connected) = connect(&Hello::discovery(), &mut registry);
    assert!(connected.authentication_required);
}

/// Whoever says to be a host keeps it from nothing.
#[test]
fn unauthenticated_associations_are_few_and_harm_no_host() {
    let options = Options { duplicate_host_id: DuplicateHostId::Refuse, ..Options::default() };
    let mut registry = registry(options);
    registry.set_authentication(authentication());
    let impostor = Hello { host_id: HostId([9; 16]), kato_ms: 0, ..Hello::admin() };
    let mut queues: Vec<Queue> =
        (0..UNAUTHENTICATED_MAX).map(|_| connect(&impostor, &mut registry).0).collect();
    let open = |queues: &[Queue]| queues.iter().filter(|q| !q.association().unwrap().is_closing()).count();
    assert_eq!(open(&queues), UNAUTHENTICATED_MAX);
    queues.push(connect(&impostor, &mut registry).0);
    assert_eq!(open(&queues), UNAUTHENTICATED_MAX, "one made way");
    // The host itself, with its own Host Identifier.
    let queue = admin(&mut registry);
    assert!(!queue.association().unwrap().is_closing());
    // By policy, a second Host Identifier is refused from now on; and nobody who has authenticated makes way.
    assert_eq!(code(&impostor.connect(&mut registry).1), (1, 0x84));
    let impostor = Hello { kato_ms: 0, ..Hello::admin() };
    queues.push(connect(&impostor, &mut registry).0);
    assert!(!queue.association().unwrap().is_closing());
    assert_eq!(open(&queues), UNAUTHENTICATED_MAX);
}
