//! Bounds of the queues, unsignalled requests, early messages, shared receive queues.

use super::Pair;
use super::rig::{LEFT, RIGHT, Rig, message};
use crate::{
    Access, Opcode, Payload, PostError, Provider, QueuePairAttributes, QueuePairState, ReceiveRequest,
    SendRequest, WcStatus, WorkRequestId,
};
use nvmf_memory::Memory;

pub(super) fn a_full_queue_says_so<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(4);
    let sink = rig.sides[RIGHT].sink(64);
    let receive = |id| ReceiveRequest { id: WorkRequestId(id), buffer: sink.sge(0, 64) };
    let send =
        |id| SendRequest { id: WorkRequestId(id), operation: message(Payload::Inline(b"x")), signaled: true };
    for id in 0..4 {
        rig.sides[RIGHT].provider.post_receive(link[RIGHT], receive(id)).unwrap();
        rig.sides[LEFT].provider.post_send(link[LEFT], send(id)).unwrap();
    }
    assert_eq!(rig.sides[RIGHT].provider.post_receive(link[RIGHT], receive(4)), Err(PostError::Full));
    assert_eq!(rig.sides[LEFT].provider.post_send(link[LEFT], send(4)), Err(PostError::Full));
    for id in 0..4 {
        rig.success(RIGHT, id, Opcode::Receive);
        rig.success(LEFT, id, Opcode::Send);
    }
    rig.sides[RIGHT].provider.post_receive(link[RIGHT], receive(5)).unwrap();
    rig.sides[LEFT].provider.post_send(link[LEFT], send(5)).unwrap();
    rig.success(RIGHT, 5, Opcode::Receive);
}

pub(super) fn slots_come_back<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(2);
    let sink = rig.sides[RIGHT].sink(64);
    for round in 0..20 {
        for id in [2 * round, 2 * round + 1] {
            rig.sides[RIGHT].receive(link[RIGHT], id, sink.sge(0, 64));
            rig.sides[LEFT].post(link[LEFT], id, message(Payload::Inline(b"again")));
        }
        for id in [2 * round, 2 * round + 1] {
            rig.success(RIGHT, id, Opcode::Receive);
            rig.success(LEFT, id, Opcode::Send);
        }
    }
}

pub(super) fn malformed_requests_are_refused<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(4);
    let left = &mut rig.sides[LEFT];
    let limits = left.provider.capabilities();
    let source = left.source(&[7; 4096]);
    let id = WorkRequestId(1);
    let bytes = vec![0; limits.max_inline as usize + 1];
    let many = vec![source.sge(0, 1); limits.max_sge as usize + 1];
    let beyond = [source.sge(4096, 1)];
    let wraps = [source.sge(usize::MAX, 2)];
    let payloads = [&many, &beyond[..], &wraps].map(Payload::Gather).into_iter();
    let borrowed = Memory::alloc(4096).expect("memory");
    let (spare, room) = (left.sink(4096), left.sink(8192));
    let borrowed = [
        Payload::Borrowed { from: &borrowed, offset: 1, spare: &spare.sge(0, 4096) },
        Payload::Borrowed { from: &borrowed, offset: usize::MAX, spare: &spare.sge(0, 2) },
        Payload::Borrowed { from: &borrowed, offset: 0, spare: &spare.sge(4096, 1) },
        Payload::Borrowed { from: &borrowed, offset: 0, spare: &source.sge(0, 1) },
        Payload::Borrowed { from: &borrowed, offset: 0, spare: &room.sge(0, 8192) },
    ];
    for payload in payloads.chain([Payload::Inline(&bytes)]).chain(borrowed) {
        let request = SendRequest { id, operation: message(payload), signaled: true };
        assert_eq!(left.provider.post_send(link[LEFT], request), Err(PostError::Invalid));
    }
    let read_only = ReceiveRequest { id, buffer: source.sge(0, 64) };
    assert_eq!(left.provider.post_receive(link[LEFT], read_only), Err(PostError::Invalid));
    rig.works(link);
    assert_eq!(rig.sides[LEFT].provider.state(link[LEFT]), QueuePairState::Ready);
}

pub(super) fn unsignaled_success_is_silent<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let link = rig.link(8);
    let sink = rig.sides[RIGHT].sink(64);
    for round in 0..3 {
        for n in 0..8 {
            let id = WorkRequestId(8 * round + n);
            rig.sides[RIGHT].receive(link[RIGHT], id.0, sink.sge(0, 64));
            let operation = message(Payload::Inline(b"hush"));
            // The last makes the slots of all before it free.
            let request = SendRequest { id, operation, signaled: n == 7 };
            rig.sides[LEFT].provider.post_send(link[LEFT], request).expect("slots come back in silence");
        }
        rig.success(LEFT, 8 * round + 7, Opcode::Send);
        (0..8).for_each(|n| {
            rig.success(RIGHT, 8 * round + n, Opcode::Receive);
        });
        assert!(rig.sides[LEFT].done.is_empty(), "an unsignalled success was heard");
    }
}

pub(super) fn early_messages_wait<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    if !rig.sides[RIGHT].provider.capabilities().early_messages_wait {
        return;
    }
    let link = rig.link(8);
    for n in 0..3u8 {
        rig.sides[LEFT].post(link[LEFT], n.into(), message(Payload::Inline(&[n; 10])));
    }
    rig.settle();
    let sink = rig.sides[RIGHT].sink(64);
    let slot = |n: u64| sink.sge(16 * n as usize, 16);
    // A message that finds this receive posted must not overtake those that wait.
    rig.sides[RIGHT].receive(link[RIGHT], 0, slot(0));
    rig.sides[LEFT].post(link[LEFT], 3, message(Payload::Inline(&[3; 10])));
    rig.settle_one(LEFT);
    (1..4).for_each(|n| rig.sides[RIGHT].receive(link[RIGHT], n, slot(n)));
    for n in 0..4 {
        assert_eq!(rig.success(RIGHT, n, Opcode::Receive).byte_len, 10);
        assert_eq!(sink.bytes(16 * n as usize, 10), [n as u8; 10]);
        rig.success(LEFT, n, Opcode::Send);
    }
    rig.works(link);
}

/// Each as long as a receive and more of them than a socket is read at once; what is behind them waits, too.
pub(super) fn any_number_of_messages_waits<P: Provider>(pair: Pair<P>) {
    const MESSAGES: u64 = 200;
    const LEN: usize = 1024;
    let rig = &mut Rig::new(pair);
    if !rig.sides[RIGHT].provider.capabilities().receives_on_demand {
        return;
    }
    let link = rig.link(MESSAGES as u32);
    let messages: Vec<u8> = (0..MESSAGES).flat_map(|n| [n as u8; LEN]).collect();
    let source = rig.sides[LEFT].source(&messages);
    for n in 0..MESSAGES {
        let piece = [source.sge(LEN * n as usize, LEN as u32)];
        rig.sides[LEFT].post(link[LEFT], n, message(Payload::Gather(&piece)));
    }
    rig.settle();
    let (sink, read) = (rig.sides[RIGHT].sink(LEN), rig.sides[RIGHT].sink(16));
    let secret = rig.sides[LEFT].source(&[7; 16]);
    let exposed = rig.sides[LEFT].provider.expose(link[LEFT], secret.sge(0, 16), Access::REMOTE_READ);
    rig.sides[RIGHT].read(link[RIGHT], MESSAGES, read.sge(0, 16), exposed.expect("a key"));
    rig.settle();
    assert!(rig.sides[RIGHT].done.is_empty(), "an answer overtook messages");
    for n in 0..MESSAGES {
        rig.sides[RIGHT].receive(link[RIGHT], n, sink.sge(0, LEN as u32));
        assert_eq!(rig.success(RIGHT, n, Opcode::Receive).byte_len as usize, LEN);
        assert_eq!(sink.bytes(0, LEN), [n as u8; LEN]);
        rig.success(LEFT, n, Opcode::Send);
    }
    rig.success(RIGHT, MESSAGES, Opcode::Read);
    assert_eq!(read.bytes(0, 16), [7; 16]);
    rig.works(link);
}

pub(super) fn a_shared_queue_serves_two<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let right = &mut rig.sides[RIGHT];
    let shared = right.provider.create_shared_receive_queue(4).expect("a shared receive queue");
    let attributes = QueuePairAttributes {
        send_cq: right.cq,
        receive_cq: right.cq,
        shared_receive_queue: Some(shared),
        max_send: 4,
        max_receive: 0,
        max_exposed: 0,
    };
    let [one, two] = [(); 2].map(|()| {
        let queue_pair = rig.sides[RIGHT].provider.create_queue_pair(&attributes).expect("a queue pair");
        let link = [rig.sides[LEFT].queue_pair(4), queue_pair];
        rig.join(link);
        link
    });
    let sink = rig.sides[RIGHT].sink(64);
    let receive = |id: u64| ReceiveRequest { id: WorkRequestId(id), buffer: sink.sge(16 * id as usize, 16) };
    (0..4).for_each(|id| rig.sides[RIGHT].provider.post_shared_receive(shared, receive(id)).unwrap());
    let full = rig.sides[RIGHT].provider.post_shared_receive(shared, receive(0));
    assert_eq!(full, Err(PostError::Full));
    for (id, link, text) in [(10, one, b"one"), (11, two, b"two"), (12, one, b"ONE"), (13, two, b"TWO")] {
        rig.sides[LEFT].post(link[LEFT], id, message(Payload::Inline(text)));
    }
    let mut heard = [Vec::new(), Vec::new()];
    for id in 0..4 {
        let received = rig.success(RIGHT, id, Opcode::Receive);
        let from = usize::from(received.queue_pair == two[RIGHT]);
        assert!(from == 1 || received.queue_pair == one[RIGHT]);
        heard[from].push(sink.bytes(16 * id as usize, 3));
    }
    assert_eq!(heard, [[b"one", b"ONE"], [b"two", b"TWO"]]);
    // One connection's end leaves the shared receives to the other.
    rig.sides[RIGHT].provider.post_shared_receive(shared, receive(0)).unwrap();
    rig.sides[LEFT].provider.disconnect(one[LEFT]);
    rig.disconnected(RIGHT, one[RIGHT]);
    rig.settle();
    assert!(rig.sides[RIGHT].done.is_empty(), "a shared receive was flushed with one connection");
    rig.sides[LEFT].post(two[LEFT], 14, message(Payload::Inline(b"end")));
    assert_eq!(rig.success(RIGHT, 0, Opcode::Receive).queue_pair, two[RIGHT]);
}

pub(super) fn a_message_too_long<P: Provider>(pair: Pair<P>) {
    let rig = &mut Rig::new(pair);
    let [link, bystander] = [rig.link(4), rig.link(4)];
    let sink = rig.sides[RIGHT].buffer(4096, Access::LOCAL_WRITE);
    rig.sides[RIGHT].receive(link[RIGHT], 1, sink.sge(0, 16));
    rig.sides[RIGHT].receive(link[RIGHT], 2, sink.sge(1024, 64));
    rig.sides[LEFT].post(link[LEFT], 3, message(Payload::Inline(&[1; 17])));
    // Soft-RoCE calls it an error of the local queue pair.
    let status = rig.completion(RIGHT, 1).status;
    assert!(matches!(status, WcStatus::LocalLength | WcStatus::Other(_)), "{status}");
    assert_eq!(rig.completion(RIGHT, 2).status, WcStatus::Flushed);
    for side in [LEFT, RIGHT] {
        rig.disconnected(side, link[side]);
        assert_eq!(rig.sides[side].provider.state(link[side]), QueuePairState::Error);
    }
    // Whether the sender's own request succeeded is the transport's business, but it completes.
    rig.completion(LEFT, 3);
    assert!(sink.bytes(16, 4080) == [0; 4080], "bytes fell behind the receive buffer");
    rig.works(bystander);
}
