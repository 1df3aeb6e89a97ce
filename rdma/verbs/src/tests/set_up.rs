//! Queues and connections as they are made.

use super::*;
use nvmf_rdma::{ConnectError, ListenerId, RequestId};

#[test]
fn completion_queue_interrupts_on_the_vector_that_was_chosen() {
    for (chosen, expected) in [(0, 0), (3, 3), (6, 2)] {
        double::install(false, true);
        drop(Rig::new(VerbsConfig { completion_vector: chosen, ..config() }));
        assert_eq!(device().vectors, [expected; 2], "of 4");
    }
}

#[test]
fn queue_pair_is_sized_by_what_it_exposes() {
    for (has_windows, max_exposed, sends) in [(true, 16, 32), (true, 0, 16), (false, 16, 16)] {
        double::install(false, has_windows);
        let mut rig = Rig::new(config());
        rig.provider.create_queue_pair(&attributes(rig.cq, max_exposed)).expect("a queue pair");
        assert_eq!(device().sizes.last(), Some(&(sends, 16)));
    }
}

#[test]
fn queue_pair_gets_the_timers_that_were_chosen() {
    let timers = |config| {
        double::install(false, true);
        drop(Rig::connected(config));
        let device = device();
        (device.rnr_timers.clone(), device.ack_timeouts.clone())
    };
    assert_eq!(timers(config()), (vec![12], vec![18]), "the connection manager's is 18");
    let chosen = VerbsConfig { min_rnr_timer: 3, ack_timeout: Some(14), ..config() };
    assert_eq!(timers(chosen), (vec![3], vec![14]));
}

/// A provider that listens.
fn listening(is_iwarp: bool, config: VerbsConfig) -> (Rig, ListenerId) {
    double::install(is_iwarp, true);
    let mut rig = Rig::new(config);
    let (listener, _) = rig.provider.listen("0.0.0.0:4420".parse().unwrap(), 8).expect("a listener");
    (rig, listener)
}

fn request(rig: &mut Rig) -> RequestId {
    device().ask(0, false);
    match rig.event() {
        Some(CmEvent::ConnectRequest { request, .. }) => request,
        other => panic!("{other:?}"),
    }
}

#[test]
fn rejection_by_the_provider_carries_the_callers_private_data() {
    let rejection = b"no room".to_vec();
    let (mut rig, _) = listening(false, VerbsConfig { rejection, ..config() });
    device().ask(0, true);
    assert!(rig.event().is_none(), "it is for another device");
    assert_eq!(device().rejections, [b"no room"]);
}

#[test]
fn silent_peer_holds_a_bounded_number_of_queue_pairs() {
    let (mut rig, _) = listening(true, config());
    for accepted in 0..129 {
        let (request, qp) = (request(&mut rig), rig.provider.create_queue_pair(&attributes(rig.cq, 0)));
        let outcome = rig.provider.accept(rig.now, request, qp.expect("a queue pair"), &PARAMETERS);
        match accepted {
            128 => assert!(matches!(outcome, Err(ConnectError::RequestGone)), "{outcome:?}"),
            _ => outcome.expect("an acceptance"),
        }
    }
    assert_eq!(device().rejections.len(), 1);
    // A message on one of them makes room.
    device().tell(double::ESTABLISHED, 0, 1, b"");
    let event = rig.event();
    assert!(matches!(event, Some(CmEvent::Established { .. })), "{event:?}");
    let (request, qp) = (request(&mut rig), rig.provider.create_queue_pair(&attributes(rig.cq, 0)));
    rig.provider.accept(rig.now, request, qp.expect("a queue pair"), &PARAMETERS).expect("an acceptance");
}
