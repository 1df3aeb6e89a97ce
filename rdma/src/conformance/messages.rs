//! SEND and RECV.

use super::Pair;
use super::rig::{LEFT, RIGHT, Rig, message, pattern};
use crate::{Access, Opcode, Payload, Provider, SendOperation};

pub(super) fn all_sizes_both_ways<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(8);
    for (from, to) in [(LEFT, RIGHT), (RIGHT, LEFT)] {
        for (id, len) in [(1, 0usize), (2, 1), (3, 64), (4, 4096), (5, 65_537), (6, 300_001)] {
            let bytes = pattern(id as u8, len);
            let source = rig.sides[from].source(&bytes);
            let sink = rig.sides[to].sink(len + 1);
            rig.sides[to].receive(link[to], id, sink.sge(0, len as u32 + 1));
            let gather = [source.sge(0, len as u32)];
            rig.sides[from].post(link[from], 100 + id, message(Payload::Gather(&gather)));
            let received = rig.success(to, id, Opcode::Receive);
            assert_eq!((received.byte_len as usize, received.queue_pair), (len, link[to]));
            assert_eq!(received.invalidated, None);
            assert!(sink.bytes(0, len) == bytes, "a message of {len} bytes arrived changed");
            assert_eq!(sink.bytes(len, 1), [0], "a message of {len} bytes spilled over");
            assert_eq!(rig.success(from, 100 + id, Opcode::Send).queue_pair, link[from]);
        }
    }
}

pub(super) fn a_thousand_in_order<P: Provider>(pair: Pair<P>) {
    const TOTAL: u64 = 1000;
    const DEPTH: u64 = 16;
    let rig = &mut Rig::new(pair);
    let link = rig.link(DEPTH as u32);
    let sink = rig.sides[RIGHT].sink(8 * DEPTH as usize);
    let slot = |n: u64| sink.sge(8 * (n % DEPTH) as usize, 8);
    (0..DEPTH).for_each(|n| rig.sides[RIGHT].receive(link[RIGHT], n, slot(n)));
    let (mut sent, mut confirmed, mut received) = (0, 0, 0);
    rig.until("a thousand messages", |rig| {
        let [left, right] = &mut rig.sides;
        while let Some(completion) = right.done.pop_front() {
            assert_eq!((completion.id.0, completion.status.is_success()), (received, true));
            let bytes = sink.bytes(8 * (received % DEPTH) as usize, 8);
            assert_eq!(bytes, received.to_le_bytes(), "message {received} overtook or was overtaken");
            right.receive(link[RIGHT], received + DEPTH, slot(received + DEPTH));
            received += 1;
        }
        while let Some(completion) = left.done.pop_front() {
            assert_eq!((completion.id.0, completion.status.is_success()), (confirmed, true));
            confirmed += 1;
        }
        // The sender stays within the receives that are posted: beyond them it would depend on the provider's spill.
        while sent < TOTAL && sent < confirmed + DEPTH && sent < received + DEPTH {
            left.post(link[LEFT], sent, message(Payload::Inline(&sent.to_le_bytes())));
            sent += 1;
        }
        (received == TOTAL && confirmed == TOTAL).then_some(())
    });
}

pub(super) fn inline_bytes_are_copied_when_posted<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(4);
    let most = rig.sides[LEFT].provider.capabilities().max_inline as usize;
    let sink = rig.sides[RIGHT].sink(most.max(1));
    rig.sides[RIGHT].receive(link[RIGHT], 1, sink.sge(0, most as u32));
    let mut bytes = pattern(3, most);
    rig.sides[LEFT].post(link[LEFT], 2, message(Payload::Inline(&bytes)));
    bytes.fill(0xff);
    rig.success(RIGHT, 1, Opcode::Receive);
    assert!(sink.bytes(0, most) == pattern(3, most));
}

pub(super) fn gathered_in_order<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(4);
    let count = rig.sides[LEFT].provider.capabilities().max_sge.min(64) as usize;
    let source = rig.sides[LEFT].source(&pattern(5, 1000 * count));
    // From the last to the first, with an empty one among them, and of different lengths.
    let len = |n: usize| if n == 1 { 0 } else { 1 + 37 * n };
    let elements: Vec<_> = (0..count).rev().map(|n| source.sge(1000 * n, len(n) as u32)).collect();
    let expected: Vec<u8> = (0..count).rev().flat_map(|n| source.bytes(1000 * n, len(n))).collect();
    let sink = rig.sides[RIGHT].sink(expected.len());
    rig.sides[RIGHT].receive(link[RIGHT], 1, sink.sge(0, expected.len() as u32));
    rig.sides[LEFT].post(link[LEFT], 2, message(Payload::Gather(&elements)));
    assert_eq!(rig.success(RIGHT, 1, Opcode::Receive).byte_len as usize, expected.len());
    assert!(sink.bytes(0, expected.len()) == expected);
}

pub(super) fn invalidation_is_reported<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let capabilities = rig.sides[LEFT].provider.capabilities();
    if !capabilities.per_command_keys || !rig.sides[RIGHT].provider.capabilities().sends_invalidate {
        return;
    }
    let link = rig.link(4);
    let data = rig.sides[LEFT].buffer(4096, Access::LOCAL_WRITE);
    let range = data.sge(0, 4096);
    let exposed = rig.sides[LEFT].provider.expose(link[LEFT], range, Access::REMOTE_WRITE).unwrap();
    rig.says(LEFT, link);
    let sink = rig.sides[LEFT].sink(64);
    rig.sides[LEFT].receive(link[LEFT], 1, sink.sge(0, 64));
    let payload = Payload::Inline(b"done");
    let operation = SendOperation::Send { payload, invalidate: Some(exposed.key), solicited: true };
    rig.sides[RIGHT].post(link[RIGHT], 2, operation);
    let received = rig.success(LEFT, 1, Opcode::Receive);
    assert_eq!((received.byte_len, received.invalidated), (4, Some(exposed.key)));
    rig.success(RIGHT, 2, Opcode::Send);
    rig.works(link);
}

pub(super) fn solicited_is_delivered<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(4);
    let sink = rig.sides[RIGHT].sink(64);
    rig.sides[RIGHT].receive(link[RIGHT], 1, sink.sge(0, 64));
    let payload = Payload::Inline(b"hello");
    rig.sides[LEFT].post(link[LEFT], 2, SendOperation::Send { payload, invalidate: None, solicited: true });
    assert_eq!(rig.success(RIGHT, 1, Opcode::Receive).byte_len, 5);
}

pub(super) fn posting_does_not_ring<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(4);
    let sink = rig.sides[RIGHT].sink(64);
    rig.sides[RIGHT].receive(link[RIGHT], 1, sink.sge(0, 64));
    rig.sides[LEFT].post(link[LEFT], 2, message(Payload::Inline(b"later")));
    rig.settle_one(RIGHT);
    assert!(rig.sides[RIGHT].done.is_empty(), "a message left before the doorbell rang");
    rig.success(RIGHT, 1, Opcode::Receive);
    rig.success(LEFT, 2, Opcode::Send);
}
