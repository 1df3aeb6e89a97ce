//! Requests and replies: one at a time, and many per call.

use crate::direct::Chunk;
use crate::side::{CURRENT, OUT, Receive, Send, Side, Way};
use crate::{Arenas, Shape, Variant, beside, connection};
use std::time::Instant;

/// Bytes of a command's FPDU.
const REQUEST: usize = 84;
/// Bytes of a reply besides its data: the header of a WRITE, and a SEND with the response.
const HEADER: usize = 60;
const DATA: usize = 4096;
/// Distance between replies in memory.
const STRIDE: usize = 4224;
const WARM_UP: u32 = 20;

pub(crate) fn shapes() -> Vec<Shape> {
    vec![
        Shape {
            name: "round trip: 84 bytes there, 4 KiB + 60 back, depth 1, both sides",
            count: 3000,
            variants: vec![
                both("readv, sendmsg", CURRENT),
                both("recv, sendmsg", direct(Receive::Recv)),
                both("epoll_wait and readv, sendmsg", direct(Receive::Epoll)),
                both("POLL_ADD and readv, sendmsg", direct(Receive::RingPoll)),
                both("one enter: SENDMSG, RECV at once", ring(Receive::RingNow)),
                both("one enter: SENDMSG, RECV that waits", ring(Receive::Ring)),
                both("one enter: SENDMSG; RECV multishot", ring(Receive::Multishot)),
            ],
        },
        Shape {
            name: "batch: 32 requests there, 32 answers of 4 KiB + 60 back as 64 chunks, the answering side",
            count: 400,
            variants: vec![
                batch("readv, sendmsg", CURRENT),
                batch("readv, SENDMSG", Way { receive: Receive::Readv, send: Send::Message }),
                batch("RECV that waits, SENDMSG", ring(Receive::Ring)),
                batch("readv, SENDMSG_ZC", zc(Send::MessageZc { registered: false })),
                batch("readv, SENDMSG_ZC registered", zc(Send::MessageZc { registered: true })),
                batch("readv, SEND_ZC an answer, registered", zc(Send::RunsZc { registered: true })),
                batch("readv, sendmsg MSG_ZEROCOPY", zc(Send::Zerocopy)),
            ],
        },
    ]
}

fn ring(receive: Receive) -> Way {
    Way { receive, send: Send::Message }
}

fn direct(receive: Receive) -> Way {
    Way { receive, send: Send::Sendmsg }
}

fn zc(send: Send) -> Way {
    Way { receive: Receive::Readv, send }
}

fn both(name: &'static str, way: Way) -> Variant {
    Variant { name, run: Box::new(move |arenas, count| run(arenas, way, way, 1, count)) }
}

fn batch(name: &'static str, way: Way) -> Variant {
    Variant { name, run: Box::new(move |arenas, count| run(arenas, way, CURRENT, 32, count)) }
}

fn run(arenas: Arenas, server: Way, client: Way, depth: usize, count: u32) -> f64 {
    let (server_socket, client_socket) = connection();
    let requests: Vec<Chunk> = vec![(OUT, depth * REQUEST)];
    let begin = |index| OUT + index * STRIDE;
    let answers: Vec<Chunk> =
        (0..depth).flat_map(|index| [(begin(index), HEADER), (begin(index) + HEADER, DATA)]).collect();
    let serve = || {
        let mut side = Side::new(server_socket, arenas.server, server, 0);
        for _ in 0..WARM_UP + count {
            side.receive(depth * REQUEST);
            side.send(&answers);
        }
        side.flush();
        side.drain_sends(0);
        // The socket stays open until the other side has received everything.
        side
    };
    let ask = || {
        let mut side = Side::new(client_socket, arenas.client, client, 0);
        let mut exchange = || {
            side.send(&requests);
            side.receive(depth * (HEADER + DATA));
        };
        (0..WARM_UP).for_each(|_| exchange());
        let begun = Instant::now();
        (0..count).for_each(|_| exchange());
        begun.elapsed().as_nanos() as f64 / f64::from(count)
    };
    beside(|| drop(serve()), ask).1
}
