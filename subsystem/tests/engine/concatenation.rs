//! Secure channel concatenation: which queues may make a key for TLS, which must, and what they are good for.

use super::authentication::{random, receive, secret, send};
use crate::host::*;
use nvme_proto::fabrics::auth::SecureChannel as Wanted;
use nvme_proto::fabrics::connect::Connected;
use nvme_proto::fabrics::property::{Property, PropertyGet};
use nvmf_auth::controller::Fault;
use nvmf_auth::host::{Host, HostError, Next, Secrets};
use nvmf_auth::{GeneratedKey, Group, Hash, Names, Terms};
use nvmf_subsystem::limits::AUTHENTICATION_TIMEOUT;
use nvmf_subsystem::*;

const OK: (u8, u8) = (0, 0);
const REQUIRED: (u8, u8) = (1, 0x91);
const INVALID_HOST: (u8, u8) = (1, 0x84);

fn terms() -> Terms {
    Terms::new(&[Hash::Sha256], &[Group::Ffdhe2048]).unwrap()
}

/// A registry whose port has this, with a key for the host, which must use TLS or not.
fn registry_with(concatenation: PortConcatenation, required: bool) -> Registry {
    let mut registry = registry(Options::default());
    registry.set_ports(vec![Port { concatenation, ..port() }]).unwrap();
    registry.set_authentication(authentication(required));
    registry
}

fn authentication(required: bool) -> Authentication {
    let host = nqn(HOST);
    let concatenate = if required { [host].into() } else { Default::default() };
    Authentication { hosts: [(host, terms())].into(), concatenate, discovery: false }
}

fn in_channel(generated: Option<u64>, hello: &Hello) -> Hello {
    let channel = SecureChannel { host_nqn: nqn(HOST), subsystem_nqn: nqn(SUBSYSTEM), generated };
    Hello { link: Link { secure_channel: Some(channel), ..hello.link }, ..hello.clone() }
}

fn connect(hello: &Hello, registry: &mut Registry) -> (Queue, Connected) {
    let (queue, cqe, _) = hello.connect(registry);
    assert_eq!(code(&cqe), OK);
    (queue, Connected::parse(cqe.result() as u32))
}

/// Authenticates, and has the key that the host made.
fn authenticate(queue: &mut Queue, wanted: Wanted) -> Result<Option<GeneratedKey>, HostError> {
    let names = Names { host: nqn(HOST), subsystem: nqn(SUBSYSTEM) };
    let secrets = Secrets { host: secret(7), controller: None };
    let (mut host, mut next) = Host::start_with(names, terms(), 1, wanted);
    loop {
        next = match next {
            Next::Send(message) => {
                assert_eq!(code(&send(NOW, queue, &message, 7)), OK);
                host.on_sent()?
            }
            Next::Receive => host.on_received(&receive(queue, 4096).unwrap())?,
            Next::Compute(task) => host.on_computed(task.run(&secrets, &mut random))?,
            Next::Done => return Ok(host.take_key()),
        };
    }
}

fn property(queue: &mut Queue) -> (u8, u8) {
    let mut sqe = PropertyGet { size: 1, property: Property::CAP }.emit();
    sqe.flags = 0x40;
    code(&ask(queue, &sqe))
}

#[test]
fn queue_that_made_a_key_is_good_for_nothing_else() {
    let mut registry = registry_with(PortConcatenation::Allowed, false);
    let (mut queue, connected) = connect(&Hello::admin(), &mut registry);
    assert!(connected.authentication_required && !connected.secure_channel_required);
    assert!(authenticate(&mut queue, Wanted::NEW_TLS_PSK).unwrap().is_some());
    assert_eq!(property(&mut queue), REQUIRED);
    let association = queue.association().unwrap().clone();
    assert!(!association.is_authenticated(), "it keeps no other connection of the host out");
    let (_, cqe, _) = Hello::io(1, association.key().cntlid.0).connect(&mut registry);
    assert_ne!(code(&cqe), OK);
    // One that is left open ends.
    queue.on_timeout(NOW + AUTHENTICATION_TIMEOUT);
    assert!(matches!(queue.poll_step(NOW), Some(Step::CloseQueue)));
}

#[test]
fn host_may_authenticate_in_the_clear_where_a_channel_is_only_allowed() {
    let mut registry = registry_with(PortConcatenation::Allowed, false);
    let (mut queue, _) = connect(&Hello::admin(), &mut registry);
    assert!(authenticate(&mut queue, Wanted::NONE).unwrap().is_none());
    assert_eq!(property(&mut queue), OK);
}

#[test]
fn host_or_port_that_requires_a_channel_takes_nothing_in_the_clear() {
    for (port, host) in [(PortConcatenation::Required, false), (PortConcatenation::Allowed, true)] {
        let mut registry = registry_with(port, host);
        let (mut queue, connected) = connect(&Hello::admin(), &mut registry);
        assert!(connected.authentication_required && connected.secure_channel_required);
        let mismatch =
            HostError::Refused(nvme_proto::fabrics::auth::FailureExplanation::CONCATENATION_MISMATCH);
        assert_eq!(authenticate(&mut queue, Wanted::NONE).map(drop), Err(mismatch));
        assert_eq!(queue.authentication_fault(), Some(Fault::NoConcatenation));
        assert_eq!(property(&mut queue), REQUIRED);
        assert!(matches!(queue.poll_step(NOW), Some(Step::CloseQueue)));
        // With TLS from the first byte there is no need for one.
        let (mut queue, connected) = connect(&in_channel(None, &Hello::admin()), &mut registry);
        assert!(connected.authentication_required && !connected.secure_channel_required);
        assert!(authenticate(&mut queue, Wanted::NONE).is_ok());
        // Discovery needs none.
        let (_, connected) = connect(&Hello::discovery(), &mut registry);
        assert!(!connected.authentication_required);
    }
}

/// Nothing could make a key: there is no TLS at the port, or no secret of the host.
#[test]
fn host_that_cannot_have_its_channel_is_refused() {
    let mut registry = registry_with(PortConcatenation::No, true);
    let (_, cqe, _) = Hello::admin().connect(&mut registry);
    assert_eq!((code(&cqe), cqe.status().dnr()), (INVALID_HOST, true));
    let mut registry = registry_with(PortConcatenation::Required, false);
    registry.set_authentication(Authentication::default());
    let (_, cqe, _) = Hello::admin().connect(&mut registry);
    assert_eq!((code(&cqe), cqe.status().dnr()), (INVALID_HOST, true));
    // With a configured key it needs no secret.
    let (_, connected) = connect(&in_channel(None, &Hello::admin()), &mut registry);
    assert!(!connected.authentication_required);
}

#[test]
fn generated_key_proves_the_host_on_every_queue() {
    let mut registry = registry_with(PortConcatenation::Required, true);
    let (mut queue, connected) = connect(&in_channel(Some(3), &Hello::admin()), &mut registry);
    assert!(!connected.authentication_required && !connected.secure_channel_required);
    enable(&mut queue);
    let cntlid = queue.association().unwrap().key().cntlid.0;
    for (qid, channel) in [(1, Some(3)), (2, Some(4))] {
        let (_, connected) = connect(&in_channel(channel, &Hello::io(qid, cntlid)), &mut registry);
        assert!(!connected.authentication_required, "key {channel:?}");
    }
    for hello in [in_channel(None, &Hello::io(3, cntlid)), Hello::io(3, cntlid)] {
        assert_ne!(code(&hello.connect(&mut registry).1), OK, "a key of another kind, or none");
    }
    // It is replaced, and used on; a new one is made in the clear only.
    assert!(authenticate(&mut queue, Wanted::REPLACE_TLS_PSK).unwrap().is_some());
    assert_eq!(property(&mut queue), OK);
    assert!(authenticate(&mut queue, Wanted::NEW_TLS_PSK).is_err());
    assert_eq!(queue.authentication_fault(), Some(Fault::Concatenation(2)));
}

#[test]
fn host_without_its_secret_or_in_the_clear_where_it_may_not_be_is_closed() {
    let mut registry = registry_with(PortConcatenation::Allowed, false);
    let (clear, _) = connect(&Hello::admin(), &mut registry);
    let (secure, _) = connect(&in_channel(Some(1), &Hello::admin()), &mut registry);
    let closing = |queue: &Queue| queue.association().unwrap().is_closing();
    registry.set_authentication(authentication(false));
    assert!(!closing(&clear) && !closing(&secure));
    registry.set_authentication(authentication(true));
    assert!(closing(&clear) && !closing(&secure));
    registry.set_authentication(Authentication::default());
    assert!(closing(&secure));
}
