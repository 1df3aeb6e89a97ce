//! Listening, connecting, accepting, rejecting, handing over.

use super::Pair;
use super::rig::{LEFT, RIGHT, Rig, message};
use crate::{
    CmEvent, ConnectError, ConnectFailure, Opcode, Payload, PostError, PrivateData, Provider, QueuePairState,
    RequestId, SendRequest, WorkRequestId,
};
use core::time::Duration;
use std::io;

/// Some transports pad private data with zeros to their fixed size.
fn same(received: &PrivateData, sent: &[u8]) -> bool {
    let rest = received.as_bytes().strip_prefix(sent);
    rest.is_some_and(|rest| rest.iter().all(|&byte| byte == 0))
}

pub(super) fn private_data_travels_both_ways<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let [asked, answered] = [[0x5a; 32], [0xa5; 32]];
    let address = rig.listening();
    let link = [rig.sides[LEFT].queue_pair(4), rig.sides[RIGHT].queue_pair(4)];
    let (now, parameters) = (rig.now, rig.parameters(&asked));
    rig.sides[LEFT].provider.connect(now, link[LEFT], address, None, &parameters).unwrap();
    let request = rig.until("a request", |rig| {
        rig.sides[RIGHT].take_event(|event| match event {
            CmEvent::ConnectRequest { request, private_data, local, peer, .. } => {
                assert!(same(private_data, &asked));
                assert_eq!((*local, peer.is_ipv4()), (address, address.is_ipv4()));
                Some(*request)
            }
            _ => None,
        })
    });
    let (now, parameters) = (rig.now, rig.parameters(&answered));
    rig.sides[RIGHT].provider.accept(now, request, link[RIGHT], &parameters).unwrap();
    for (side, said) in [(LEFT, &answered[..]), (RIGHT, &[])] {
        rig.until("the connection", |rig| {
            rig.sides[side].take_event(|event| match event {
                CmEvent::Established { queue_pair, private_data, .. } if *queue_pair == link[side] => {
                    assert!(same(private_data, said));
                    Some(())
                }
                _ => None,
            })
        });
    }
    rig.works(link);
}

pub(super) fn read_depths_are_negotiated<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let address = rig.listening();
    let link = [rig.sides[LEFT].queue_pair(4), rig.sides[RIGHT].queue_pair(4)];
    let most = rig.parameters(&[]).initiator_depth;
    let (few, many) = (1.min(most), 4.min(most));
    let mut offer = [rig.parameters(&[]); 2];
    (offer[LEFT].initiator_depth, offer[LEFT].responder_resources) = (many, few);
    (offer[RIGHT].initiator_depth, offer[RIGHT].responder_resources) = (many, many);
    let now = rig.now;
    rig.sides[LEFT].provider.connect(now, link[LEFT], address, None, &offer[LEFT]).unwrap();
    let request = rig.until("a request", |rig| {
        rig.sides[RIGHT].take_event(|event| match event {
            CmEvent::ConnectRequest { request, peer_responder_resources, peer_initiator_depth, .. } => {
                assert_eq!((*peer_responder_resources, *peer_initiator_depth), (few, many));
                Some(*request)
            }
            _ => None,
        })
    });
    let now = rig.now;
    rig.sides[RIGHT].provider.accept(now, request, link[RIGHT], &offer[RIGHT]).unwrap();
    for (side, depth, served) in [(LEFT, many, few), (RIGHT, few, many)] {
        rig.until("the connection", |rig| {
            rig.sides[side].take_event(|event| match event {
                CmEvent::Established { initiator_depth, responder_resources, .. } => {
                    assert_eq!(*initiator_depth, depth, "the lesser of what one wants and the other serves");
                    assert!(*responder_resources <= served.max(few));
                    Some(())
                }
                _ => None,
            })
        });
    }
}

pub(super) fn a_rejection_says_why<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let qp = rig.sides[LEFT].queue_pair(4);
    let parameters = rig.parameters(b"please");
    let request = rig.request(qp, &parameters);
    rig.sides[RIGHT].provider.reject(request, &PrivateData::new(b"no room").unwrap());
    rig.until("the rejection", |rig| {
        rig.sides[LEFT].take_event(|event| match event {
            CmEvent::ConnectFailed { queue_pair, failure: ConnectFailure::Rejected { private_data } } => {
                assert_eq!(*queue_pair, qp);
                assert!(same(private_data, b"no room"));
                Some(())
            }
            other => panic!("expected a rejection, got {other:?}"),
        })
    });
    assert_eq!(rig.sides[LEFT].provider.state(qp), QueuePairState::Error);
    let fresh = rig.link(4);
    rig.works(fresh);
}

pub(super) fn nobody_listens<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let at = rig.address();
    let right = &mut rig.sides[RIGHT].provider;
    let (listener, address) = right.listen(at, 1).unwrap();
    right.unlisten(listener);
    let qp = rig.sides[LEFT].queue_pair(4);
    let (now, parameters) = (rig.now, rig.parameters(&[]));
    match rig.sides[LEFT].provider.connect(now, qp, address, None, &parameters) {
        Err(ConnectError::Os { .. }) => {}
        Err(other) => panic!("expected a refusal by the system, got {other:?}"),
        Ok(()) => rig.until("the refusal", |rig| {
            rig.sides[LEFT].take_event(|event| match event {
                CmEvent::ConnectFailed { failure: ConnectFailure::Unreachable(_), .. } => Some(()),
                other => panic!("expected that nobody is there, got {other:?}"),
            })
        }),
    }
}

pub(super) fn nobody_answers_in_time<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = [rig.sides[LEFT].queue_pair(4), rig.sides[RIGHT].queue_pair(4)];
    let mut parameters = rig.parameters(&[]);
    parameters.timeout = Duration::from_millis(100);
    let started = rig.now;
    let request = rig.request(link[LEFT], &parameters);
    assert!(rig.sides[LEFT].provider.poll_timeout().is_some(), "a deadline runs, so there is a time to poll");
    rig.until("the timeout", |rig| {
        rig.sides[LEFT].take_event(|event| match event {
            CmEvent::ConnectFailed { failure: ConnectFailure::TimedOut, .. } => Some(()),
            other => panic!("expected a timeout, got {other:?}"),
        })
    });
    assert!(rig.now >= started + parameters.timeout, "it came too early");
    rig.settle();
    let now = rig.now;
    match rig.sides[RIGHT].provider.accept(now, request, link[RIGHT], &parameters) {
        Err(ConnectError::RequestGone) => {}
        Err(other) => panic!("expected that the request is gone, got {other:?}"),
        // A provider that notices it only now reports it by event.
        Ok(()) => {
            let outcome = rig.until("an outcome", |rig| rig.sides[RIGHT].take_outcome(link[RIGHT]));
            assert!(!outcome, "a connection with nobody at the other end");
        }
    }
}

pub(super) fn an_unlistened_request_fails<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let at = rig.address();
    let (listener, address) = rig.sides[RIGHT].provider.listen(at, 4).unwrap();
    let link = [rig.sides[LEFT].queue_pair(4), rig.sides[RIGHT].queue_pair(4)];
    let (now, parameters) = (rig.now, rig.parameters(&[]));
    rig.sides[LEFT].provider.connect(now, link[LEFT], address, None, &parameters).unwrap();
    let request = rig.until("a request", |rig| rig.sides[RIGHT].take_request());
    rig.sides[RIGHT].provider.unlisten(listener);
    let outcome = rig.until("the failure", |rig| rig.sides[LEFT].take_outcome(link[LEFT]));
    assert!(!outcome, "connected to one who stopped listening");
    let now = rig.now;
    let late = rig.sides[RIGHT].provider.accept(now, request, link[RIGHT], &parameters);
    assert!(matches!(late, Err(ConnectError::RequestGone)), "{late:?}");
    assert_eq!(rig.sides[RIGHT].provider.state(link[RIGHT]), QueuePairState::Idle);
}

pub(super) fn ports_are_exclusive<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let at = rig.address();
    let (_, first) = rig.sides[RIGHT].provider.listen(at, 4).unwrap();
    let (_, second) = rig.sides[RIGHT].provider.listen(at, 4).unwrap();
    assert!(first.port() != 0 && second.port() != 0 && first != second, "{first} {second}");
    assert_eq!(first.ip(), at.ip());
    let error = rig.sides[RIGHT].provider.listen(first, 4).expect_err("the port is taken");
    assert_eq!((error.address, error.source.kind()), (first, io::ErrorKind::AddrInUse));
}

pub(super) fn wrong_calls_are_refused<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(4);
    let address = rig.listening();
    let parameters = rig.parameters(&[]);
    let (now, idle) = (rig.now, rig.sides[RIGHT].queue_pair(4));
    let gone = rig.sides[RIGHT].provider.accept(now, RequestId(u32::MAX), idle, &parameters);
    assert!(matches!(gone, Err(ConnectError::RequestGone)), "{gone:?}");
    assert_eq!(rig.sides[RIGHT].provider.state(idle), QueuePairState::Idle);
    let twice = rig.sides[LEFT].provider.connect(now, link[LEFT], address, None, &parameters);
    assert!(matches!(twice, Err(ConnectError::NotIdle)), "{twice:?}");
    assert!(rig.sides[RIGHT].provider.detach(RequestId(u32::MAX)).is_none());
    rig.works(link);
}

pub(super) fn states_follow_the_life<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = [rig.sides[LEFT].queue_pair(4), rig.sides[RIGHT].queue_pair(4)];
    let state = |rig: &Rig<P>, side: usize| rig.sides[side].provider.state(link[side]);
    let refuses = |rig: &mut Rig<P>, side: usize| {
        let operation = message(Payload::Inline(b"early"));
        let request = SendRequest { id: WorkRequestId(7), operation, signaled: true };
        assert_eq!(rig.sides[side].provider.post_send(link[side], request), Err(PostError::NotReady));
    };
    assert_eq!([state(rig, LEFT), state(rig, RIGHT)], [QueuePairState::Idle; 2]);
    refuses(rig, LEFT);
    let parameters = rig.parameters(&[]);
    let request = rig.request(link[LEFT], &parameters);
    assert_eq!([state(rig, LEFT), state(rig, RIGHT)], [QueuePairState::Connecting, QueuePairState::Idle]);
    refuses(rig, LEFT);
    let now = rig.now;
    rig.sides[RIGHT].provider.accept(now, request, link[RIGHT], &parameters).unwrap();
    for side in [LEFT, RIGHT] {
        assert!(rig.until("the set-up", |rig| rig.sides[side].take_outcome(link[side])));
    }
    assert_eq!([state(rig, LEFT), state(rig, RIGHT)], [QueuePairState::Ready; 2]);
    rig.sides[LEFT].provider.disconnect(link[LEFT]);
    for side in [LEFT, RIGHT] {
        rig.disconnected(side, link[side]);
    }
    assert_eq!([state(rig, LEFT), state(rig, RIGHT)], [QueuePairState::Error; 2]);
    rig.sides[LEFT].provider.destroy_queue_pair(link[LEFT]);
    assert_eq!(state(rig, LEFT), QueuePairState::Error, "there is none of that name");
}

/// There are two providers only, so the connecting side adopts its own request: the way is the same.
pub(super) fn requests_move_between_providers<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let [asker, answerer] = [rig.sides[LEFT].queue_pair(4), rig.sides[LEFT].queue_pair(4)];
    let parameters = rig.parameters(&[]);
    let request = rig.request(asker, &parameters);
    let detached = rig.sides[RIGHT].provider.detach(request).expect("the request is there");
    assert!(rig.sides[RIGHT].provider.detach(request).is_none(), "it was taken out");
    let now = rig.now;
    let request = rig.sides[LEFT].provider.adopt(now, detached);
    rig.sides[LEFT].provider.accept(now, request, answerer, &parameters).expect("adopted, then accepted");
    for qp in [asker, answerer] {
        assert!(rig.until("the set-up", |rig| rig.sides[LEFT].take_outcome(qp)));
    }
    let sink = rig.sides[LEFT].sink(64);
    rig.sides[LEFT].receive(answerer, 1, sink.sge(0, 64));
    rig.sides[LEFT].post(asker, 2, message(Payload::Inline(b"moved")));
    assert_eq!(rig.success(LEFT, 1, Opcode::Receive).queue_pair, answerer);
    assert_eq!(sink.bytes(0, 5), b"moved");
}

pub(super) fn fifty_connections<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let links: Vec<_> = (0..50).map(|_| rig.link(4)).collect();
    for (from, to) in [(LEFT, RIGHT), (RIGHT, LEFT)] {
        let sink = rig.sides[to].sink(50 * 16);
        for (n, link) in links.iter().enumerate() {
            rig.sides[to].receive(link[to], n as u64, sink.sge(16 * n, 16));
            let text = [n as u8; 16];
            rig.sides[from].post(link[from], 100 + n as u64, message(Payload::Inline(&text)));
        }
        for (n, link) in links.iter().enumerate() {
            assert_eq!(rig.success(to, n as u64, Opcode::Receive).queue_pair, link[to]);
            assert_eq!(sink.bytes(16 * n, 16), [n as u8; 16]);
            rig.success(from, 100 + n as u64, Opcode::Send);
        }
    }
}
