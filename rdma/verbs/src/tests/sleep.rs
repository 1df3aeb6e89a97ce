//! What ends a sleep, and what it costs.

use super::*;
use crate::ffi::double::Asked;
use nvmf_rdma::DisconnectCause;

/// A provider that has a receive posted and a send outstanding.
fn busy(is_iwarp: bool) -> Rig {
    double::install(is_iwarp, true);
    let mut rig = Rig::connected(config());
    rig.receive(1);
    rig.send(2);
    rig.provider.flush();
    rig
}

#[test]
fn send_does_not_wake_who_waits_for_messages() {
    for is_iwarp in [false, true] {
        let mut rig = busy(is_iwarp);
        assert!(rig.sleeps(WakeOn::Receives));
        device().complete(1, 0);
        assert!(!rig.is_woken() && rig.sleeps(WakeOn::Receives));
        device().receive();
        assert!(rig.is_woken());
        assert!(!rig.provider.arm(WakeOn::Receives), "it is there to be polled");
        let mut done = rig.done();
        done.sort_unstable_by_key(|&(id, _)| id);
        assert_eq!(done, [(1, WcStatus::Success), (2, WcStatus::Success)]);
    }
}

#[test]
fn send_wakes_who_waits_for_it() {
    let mut rig = busy(false);
    assert!(rig.sleeps(WakeOn::Completions));
    device().complete(1, 0);
    assert!(rig.is_woken());
    assert!(!rig.provider.arm(WakeOn::Completions), "it is there to be polled");
    assert_eq!(rig.done(), [(2, WcStatus::Success)]);
}

#[test]
fn sleep_that_a_message_ends_asks_for_nothing_else() {
    let mut rig = busy(false);
    assert!(rig.sleeps(WakeOn::Receives));
    for id in 3..6 {
        let before = device().asked;
        device().receive();
        assert!(rig.is_woken());
        assert!(rig.provider.poll_cm(rig.now).is_none());
        assert_eq!(rig.done().len(), 1);
        rig.receive(id);
        assert!(rig.sleeps(WakeOn::Receives));
        let Asked { completion_events, other_events, arms } = device().asked;
        assert_eq!(completion_events - before.completion_events, 1);
        assert_eq!(arms - before.arms, 1);
        assert_eq!(other_events, before.other_events);
    }
}

/// A queue that is armed and silent is not asked for its event.
#[test]
fn events_are_asked_for_where_something_completed() {
    let mut rig = busy(false);
    assert!(rig.sleeps(WakeOn::Completions), "both queues are armed");
    for id in 3..6 {
        let before = device().asked.completion_events;
        device().receive();
        assert!(rig.is_woken());
        assert!(rig.provider.poll_cm(rig.now).is_none());
        assert_eq!(rig.done().len(), 1);
        rig.receive(id);
        assert!(rig.sleeps(WakeOn::Completions));
        assert_eq!(device().asked.completion_events - before, 1);
    }
    device().complete(1, 0);
    device().receive();
    assert!(rig.is_woken());
    assert!(rig.provider.poll_cm(rig.now).is_none());
    assert_eq!(rig.done().len(), 2);
    rig.receive(6);
    assert!(rig.sleeps(WakeOn::Completions), "the second event was taken as well");
}

#[test]
fn event_ends_a_sleep_and_is_seen_at_the_next_poll() {
    let mut rig = busy(false);
    assert!(rig.sleeps(WakeOn::Receives));
    device().tell(double::DISCONNECTED, 0, 0, b"");
    assert!(rig.is_woken());
    // The same time: what ended the sleep does not wait until events are asked for anyway.
    let event = rig.provider.poll_cm(rig.now);
    let (qp, cause) = (rig.qp, DisconnectCause::Peer);
    let ended = CmEvent::Disconnected { queue_pair: qp, cause };
    assert_eq!(format!("{event:?}"), format!("{:?}", Some(ended)));
}

#[test]
fn connection_that_closes_wakes_with_its_last_send() {
    let mut rig = busy(false);
    rig.provider.disconnect(rig.qp);
    assert!(rig.sleeps(WakeOn::Receives), "the send is not done");
    device().complete(1, 0);
    assert!(rig.is_woken());
    let event = rig.provider.poll_cm(rig.now);
    assert!(matches!(event, Some(CmEvent::Disconnected { cause: DisconnectCause::Local, .. })), "{event:?}");
    assert_eq!(rig.done(), [(2, WcStatus::Success), (1, WcStatus::Flushed)]);
}
