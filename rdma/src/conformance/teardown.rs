//! Disconnecting, flushing, destroying.

use super::Pair;
use super::rig::{LEFT, Link, RIGHT, Rig, message, pattern};
use crate::{
    Access, DisconnectCause, Opcode, Payload, PostError, PrivateData, Provider, QueuePairState,
    ReceiveRequest, SendRequest, WcStatus, WorkRequestId,
};

/// Posts receives `0..count` on one side.
fn receives<P: Provider>(rig: &mut Rig<P>, side: usize, link: Link, count: u64) {
    let sink = rig.sides[side].sink(4096);
    (0..count).for_each(|id| rig.sides[side].receive(link[side], id, sink.sge(0, 64)));
}

/// Asserts that just these receives were flushed, in order, and are all there already.
fn flushed<P: Provider>(rig: &mut Rig<P>, side: usize, link: Link, count: u64) {
    let done: Vec<_> = rig.sides[side].done.drain(..).collect();
    let of_receives = done.iter().filter(|completion| completion.opcode == Opcode::Receive);
    assert!(of_receives.clone().all(|it| it.status == WcStatus::Flushed && it.queue_pair == link[side]));
    let ids: Vec<_> = of_receives.map(|completion| completion.id.0).collect();
    assert!(ids.iter().copied().eq(0..count), "flushed {ids:?}, posted 0..{count}");
}

/// Asserts that nothing more comes, and that what is posted now is refused or flushed.
fn over<P: Provider>(rig: &mut Rig<P>, link: Link) {
    for side in [LEFT, RIGHT] {
        assert_eq!(rig.sides[side].provider.state(link[side]), QueuePairState::Error);
        let sink = rig.sides[side].sink(64);
        let request = SendRequest {
            id: WorkRequestId(77),
            operation: message(Payload::Inline(b"late")),
            signaled: false,
        };
        if rig.sides[side].provider.post_send(link[side], request).is_ok() {
            assert_eq!(rig.completion(side, 77).status, WcStatus::Flushed);
        }
        let request = ReceiveRequest { id: WorkRequestId(78), buffer: sink.sge(0, 64) };
        match rig.sides[side].provider.post_receive(link[side], request) {
            Ok(()) => assert_eq!(rig.completion(side, 78).status, WcStatus::Flushed),
            Err(error) => assert_eq!(error, PostError::NotReady),
        }
        rig.sides[side].provider.disconnect(link[side]);
    }
    rig.settle();
    for side in &rig.sides {
        assert!(side.events.is_empty(), "more than one end: {:?}", side.events);
        assert!(side.done.is_empty(), "completions after the end: {:?}", side.done);
    }
}

pub(super) fn either_side_disconnects<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    for closer in [LEFT, RIGHT] {
        let link = rig.link(16);
        [LEFT, RIGHT].into_iter().for_each(|side| receives(rig, side, link, 10));
        rig.sides[closer].provider.disconnect(link[closer]);
        let cause = rig.disconnected(closer, link[closer]);
        assert_eq!(cause, DisconnectCause::Local);
        flushed(rig, closer, link, 10);
        let cause = rig.disconnected(1 - closer, link[1 - closer]);
        assert_eq!(cause, DisconnectCause::Peer);
        flushed(rig, 1 - closer, link, 10);
        over(rig, link);
    }
}

pub(super) fn both_sides_disconnect<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(16);
    for side in [LEFT, RIGHT] {
        receives(rig, side, link, 3);
    }
    for side in [LEFT, RIGHT] {
        rig.sides[side].provider.disconnect(link[side]);
    }
    for side in [LEFT, RIGHT] {
        let cause = rig.disconnected(side, link[side]);
        assert!(matches!(cause, DisconnectCause::Local | DisconnectCause::Peer), "{cause}");
        flushed(rig, side, link, 3);
    }
    over(rig, link);
}

pub(super) fn posted_work_is_still_sent<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(16);
    let sink = rig.sides[RIGHT].sink(100_000);
    rig.sides[RIGHT].receive(link[RIGHT], 0, sink.sge(0, 100_000));
    rig.sides[RIGHT].receive(link[RIGHT], 1, sink.sge(0, 64));
    let source = rig.sides[LEFT].source(&pattern(2, 100_000));
    let gather = [source.sge(0, 100_000)];
    rig.sides[LEFT].post(link[LEFT], 5, message(Payload::Gather(&gather)));
    rig.sides[LEFT].provider.disconnect(link[LEFT]);
    assert_eq!(rig.success(RIGHT, 0, Opcode::Receive).byte_len, 100_000);
    assert!(sink.bytes(0, 100_000) == pattern(2, 100_000));
    rig.success(LEFT, 5, Opcode::Send);
    assert_eq!(rig.completion(RIGHT, 1).status, WcStatus::Flushed);
    for side in [LEFT, RIGHT] {
        rig.disconnected(side, link[side]);
    }
    over(rig, link);
}

/// The peer goes away in the middle: what it still got succeeded, the rest was flushed, nothing is missing or twice.
pub(super) fn sends_complete_once_in_order<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(32);
    let source = rig.sides[RIGHT].buffer(1 << 20, Access::LOCAL_WRITE | Access::REMOTE_READ);
    let remote = source.region.remote.expect("a region's key");
    let sink = rig.sides[LEFT].sink(1 << 20);
    (0..32).for_each(|id| rig.sides[LEFT].read(link[LEFT], id, sink.sge(0, 1 << 20), remote));
    rig.sides[LEFT].provider.flush();
    rig.sides[RIGHT].provider.destroy_queue_pair(link[RIGHT]);
    rig.disconnected(LEFT, link[LEFT]);
    let done: Vec<_> = rig.sides[LEFT].done.drain(..).collect();
    let ids: Vec<_> = done.iter().map(|completion| completion.id.0).collect();
    assert!(ids.iter().copied().eq(0..32), "{ids:?}");
    let first_bad = done.iter().position(|completion| !completion.status.is_success()).unwrap_or(32);
    assert!(done[first_bad..].iter().all(|completion| !completion.status.is_success()));
    assert!(done.iter().skip(first_bad + 1).all(|completion| completion.status == WcStatus::Flushed));
    silent(rig);
}

fn silent<P: Provider>(rig: &mut Rig<P>) {
    rig.settle();
    for side in &rig.sides {
        assert!(side.events.is_empty() && side.done.is_empty(), "{:?} {:?}", side.events, side.done);
    }
}

pub(super) fn destroyed_with_work_in_flight<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    for (destroyer, other) in [(LEFT, RIGHT), (RIGHT, LEFT)] {
        let [link, bystander] = [rig.link(16), rig.link(16)];
        receives(rig, destroyer, link, 4);
        receives(rig, other, link, 4);
        let source = rig.sides[destroyer].source(&[1; 4096]);
        let gather = [source.sge(0, 32)];
        for id in 10..14 {
            rig.sides[destroyer].post(link[destroyer], id, message(Payload::Gather(&gather)));
            rig.sides[other].post(link[other], id, message(Payload::Inline(b"hello")));
        }
        rig.sides[other].provider.flush();
        rig.sides[destroyer].provider.destroy_queue_pair(link[destroyer]);
        rig.disconnected(other, link[other]);
        let done: Vec<_> = rig.sides[other].done.drain(..).collect();
        assert_eq!(done.len(), 8, "everything outstanding completes: {done:?}");
        rig.works(bystander);
        silent(rig);
        // Destroying it twice changes nothing.
        rig.sides[destroyer].provider.destroy_queue_pair(link[destroyer]);
        let fresh = rig.link(4);
        rig.works(fresh);
    }
}

/// As many keys as there are, three times over: a queue pair that is destroyed gives its keys back.
pub(super) fn keys_come_back_with_their_queue_pair<P: Provider>(pair: Pair<P>) {
    const ENOUGH: usize = 1024;
    let rig = &mut Rig::new(pair);
    if !rig.sides[LEFT].provider.capabilities().per_command_keys {
        return;
    }
    let buffer = rig.sides[LEFT].buffer(4096, Access::LOCAL_WRITE);
    let counts = [(); 3].map(|()| {
        let link = rig.link(16);
        let mut expose =
            || rig.sides[LEFT].provider.expose(link[LEFT], buffer.sge(0, 64), Access::REMOTE_READ);
        let count = (0..ENOUGH).take_while(|_| expose().is_ok()).count();
        rig.sides[LEFT].provider.destroy_queue_pair(link[LEFT]);
        rig.sides[RIGHT].provider.destroy_queue_pair(link[RIGHT]);
        rig.settle();
        count
    });
    assert!(counts[0] > 0 && counts == [counts[0]; 3], "keys that could be made: {counts:?}");
}

pub(super) fn a_failed_set_up_flushes<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let qp = rig.sides[LEFT].queue_pair(4);
    let sink = rig.sides[LEFT].sink(64);
    (0..3).for_each(|id| rig.sides[LEFT].receive(qp, id, sink.sge(0, 64)));
    let parameters = rig.parameters(&[]);
    let request = rig.request(qp, &parameters);
    rig.sides[RIGHT].provider.reject(request, &PrivateData::EMPTY);
    assert!(!rig.until("the rejection", |rig| rig.sides[LEFT].take_outcome(qp)));
    (0..3).for_each(|id| assert_eq!(rig.completion(LEFT, id).status, WcStatus::Flushed));
    silent(rig);
}

pub(super) fn an_idle_queue_pair_is_destroyed_in_silence<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let qp = rig.sides[LEFT].queue_pair(4);
    let sink = rig.sides[LEFT].sink(64);
    (0..3).for_each(|id| rig.sides[LEFT].receive(qp, id, sink.sge(0, 64)));
    rig.sides[LEFT].provider.destroy_queue_pair(qp);
    silent(rig);
}
