//! A stream of 128 KiB messages in one direction.

use crate::direct::Chunk;
use crate::side::{CURRENT, OUT, PLACE, Receive, STAGING, Send, Side, Way};
use crate::{Arenas, Shape, Variant, beside, connection};
use std::time::Instant;

/// Bytes of a segment before its payload.
const HEADER: usize = 64;
/// Bytes of a segment's payload.
const PAYLOAD: usize = 64 << 10;
const SEGMENT: usize = HEADER + PAYLOAD;
/// Segments per message.
const SEGMENTS: usize = 2;
/// Messages in flight; each has its own memory.
const SLOTS: u32 = 8;
const WARM_UP: u32 = 50;
/// Lengths as in iWARP: the staging buffer, the smallest remainder of a segment that is received in place, and the
/// staging buffer after it.
const STAGING_WHOLE: usize = 64 << 10;
const DIRECT_MIN: usize = 8 << 10;
const DIRECT_STAGING: usize = 4 << 10;

pub(crate) fn shapes() -> Vec<Shape> {
    let count = 1500;
    vec![
        Shape {
            name: "send: messages of 128 KiB in 4 chunks, the sending side",
            count,
            variants: vec![
                sender("sendmsg", Send::Sendmsg),
                sender("SENDMSG", Send::Message),
                sender("SENDMSG_ZC", Send::MessageZc { registered: false }),
                sender("SENDMSG_ZC registered", Send::MessageZc { registered: true }),
                sender("SEND_ZC", Send::RunsZc { registered: false }),
                sender("SEND_ZC registered", Send::RunsZc { registered: true }),
                sender("sendmsg MSG_ZEROCOPY", Send::Zerocopy),
            ],
        },
        Shape {
            name: "receive: messages of 128 KiB into place, the receiving side",
            count,
            variants: vec![
                receiver("readv in place", Receive::Readv),
                receiver("READV in place, at once", Receive::RingNow),
                receiver("READV in place, waits", Receive::Ring),
                receiver("RECV multishot, copied from provided buffers", Receive::Multishot),
            ],
        },
    ]
}

fn sender(name: &'static str, send: Send) -> Variant {
    let way = Way { receive: Receive::Readv, send };
    Variant { name, run: Box::new(move |arenas, count| run(arenas, way, CURRENT, count)) }
}

fn receiver(name: &'static str, receive: Receive) -> Variant {
    let way = Way { receive, send: Send::Sendmsg };
    Variant { name, run: Box::new(move |arenas, count| run(arenas, CURRENT, way, count)) }
}

/// Runs a client that sends and a server that acknowledges when it has received everything.
fn run(arenas: Arenas, sends: Way, receives: Way, count: u32) -> f64 {
    let (server_socket, client_socket) = connection();
    let receive = || {
        let mut side = Side::new(server_socket, arenas.server, receives, 0);
        for messages in [WARM_UP, count] {
            take(&mut side, receives, messages as usize * SEGMENTS * SEGMENT);
            side.send(&[(OUT, 1)]);
            side.flush();
        }
    };
    let send = || {
        let mut side = Side::new(client_socket, arenas.client, sends, SLOTS - 1);
        let mut give = |messages: u32| {
            for index in 0..messages {
                side.send(&message((index % SLOTS) as usize));
                side.flush();
            }
            side.receive(1);
            side.drain_sends(0);
        };
        give(WARM_UP);
        let begun = Instant::now();
        give(count);
        begun.elapsed().as_nanos() as f64 / f64::from(count)
    };
    beside(receive, send).1
}

fn message(slot: usize) -> [Chunk; 2 * SEGMENTS] {
    let segment = |index| OUT + (slot * SEGMENTS + index) * SEGMENT;
    [
        (segment(0), HEADER),
        (segment(0) + HEADER, PAYLOAD),
        (segment(1), HEADER),
        (segment(1) + HEADER, PAYLOAD),
    ]
}

/// Receives `len` bytes and places their payload: directly if that is worthwhile, otherwise through the staging buffer.
fn take(side: &mut Side, way: Way, len: usize) {
    let mut position = 0;
    while position < len {
        if way.receive == Receive::Multishot {
            side.receive_provided(|memory, staged| {
                place(memory, position, staged);
                position += staged.1;
            });
            continue;
        }
        let rest = SEGMENT - position % SEGMENT;
        let direct = if (DIRECT_MIN..=PAYLOAD).contains(&rest) { rest } else { 0 };
        let n = if direct > 0 {
            side.receive_some(&[(PLACE + PAYLOAD - rest, rest), (STAGING, DIRECT_STAGING)])
        } else {
            side.receive_some(&[(STAGING, STAGING_WHOLE)])
        };
        let staged = n.saturating_sub(direct);
        place(side.memory, position + n - staged, (STAGING, staged));
        position += n;
    }
    assert_eq!(position, len, "no more than was sent");
}

/// Copies payload bytes received at `position` of the stream to their destination.
fn place(memory: &nvmf_memory::Memory, mut position: usize, (mut from, mut len): Chunk) {
    while len > 0 {
        let within = position % SEGMENT;
        let n = if within < HEADER {
            len.min(HEADER - within)
        } else {
            let n = len.min(SEGMENT - within);
            memory.copy_to(from, memory, PLACE + within - HEADER, n);
            n
        };
        (position, from, len) = (position + n, from + n, len - n);
    }
}
