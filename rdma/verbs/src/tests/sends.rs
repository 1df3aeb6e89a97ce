//! Which sends the device tells of, and what follows for the others.

use super::*;
use nvmf_rdma::DisconnectCause;

const RETRY_EXCEEDED: u32 = crate::ffi::constants::WC_RETRY_EXC_ERR;

/// A provider that has posted SENDs 1 to `count` with one doorbell.
fn sent(is_iwarp: bool, count: u64) -> Rig {
    double::install(is_iwarp, true);
    let mut rig = Rig::connected(config());
    (1..=count).for_each(|id| rig.send(id));
    rig.provider.flush();
    rig
}

fn signaled() -> Vec<bool> {
    device().sent.iter().map(|posted| posted.signaled).collect()
}

#[test]
fn sends_of_one_doorbell_complete_with_its_last() {
    let mut rig = sent(false, 3);
    assert_eq!(signaled(), [false, false, true]);
    device().complete(2, 0);
    assert_eq!(rig.done(), []);
    device().complete(1, 0);
    assert_eq!(rig.done(), [1, 2, 3].map(|id| (id, WcStatus::Success)));
    rig.send(4);
    rig.provider.flush();
    assert_eq!(signaled(), [true], "whatever was posted, the last is told of");
}

#[test]
fn sends_on_iwarp_complete_one_by_one() {
    let mut rig = sent(true, 3);
    assert_eq!(signaled(), [true; 3]);
    device().complete(1, 0);
    assert_eq!(rig.done(), [(1, WcStatus::Success)]);
}

/// The queue has 16 places.
#[test]
fn sends_without_a_doorbell_are_told_of_before_half_of_the_queue_is_full() {
    let _rig = sent(false, 16);
    let told: Vec<_> = (1..).zip(signaled()).filter_map(|(id, signaled)| signaled.then_some(id)).collect();
    assert_eq!(told, [8, 16]);
}

#[test]
fn silent_send_that_fails_ends_the_connection() {
    let mut rig = sent(false, 4);
    device().complete(1, 0);
    device().complete(1, RETRY_EXCEEDED);
    assert_eq!(rig.done()[..2], [(1, WcStatus::Success), (2, WcStatus::RetryExceeded)]);
    let event = rig.event();
    let broken = DisconnectCause::Broken;
    assert!(matches!(&event, Some(CmEvent::Disconnected { cause, .. }) if *cause == broken), "{event:?}");
}

#[test]
fn silent_sends_are_flushed_in_order_when_the_connection_ends() {
    let mut rig = sent(false, 3);
    rig.receive(9);
    device().tell(double::DISCONNECTED, 0, 0, b"");
    let event = rig.event();
    assert!(matches!(event, Some(CmEvent::Disconnected { cause: DisconnectCause::Peer, .. })), "{event:?}");
    let done = rig.done();
    let sends: Vec<_> = done.iter().copied().filter(|&(id, _)| id < 9).collect();
    assert_eq!(sends, [1, 2, 3].map(|id| (id, WcStatus::Flushed)), "each once: {done:?}");
}

#[test]
fn silent_sends_are_done_before_a_connection_closes() {
    let mut rig = sent(false, 3);
    rig.provider.disconnect(rig.qp);
    device().complete(2, 0);
    assert!(rig.provider.poll_cm(rig.now).is_none(), "the last is under way");
    device().complete(1, 0);
    let event = rig.event();
    assert!(matches!(event, Some(CmEvent::Disconnected { cause: DisconnectCause::Local, .. })), "{event:?}");
    assert_eq!(rig.done(), [1, 2, 3].map(|id| (id, WcStatus::Success)));
}
