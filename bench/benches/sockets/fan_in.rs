//! One turn over many sockets.

use crate::direct::{self, Chunk};
use crate::ring::{Provided, Ring};
use crate::side::{OUT, STAGING};
use crate::{Arenas, Shape, Variant, beside, connection};
use core::sync::atomic::{AtomicU32, Ordering};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nvmf_memory::Memory;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const SOCKETS_MAX: usize = 16;
/// Bytes on each active socket.
const LEN: usize = 84;
/// Bytes of each socket's staging buffer.
const STRIDE: usize = 4096;
const PROVIDED: Provided = Provided { offset: 3 << 20, len: STRIDE, count: 2 * SOCKETS_MAX as u16 };
const WARM_UP: u32 = 20;
/// Tag of a send.
const SEND: u64 = 1 << 32;

/// How a turn finds readable sockets and receives.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// readv on each socket.
    Readv,
    /// epoll_wait, readv on those that are ready.
    Epoll,
    /// Multishot POLL_ADD on each socket, readv on those that are ready.
    Watch,
    /// One enter with a non-blocking RECV for each socket.
    Now,
    /// One enter with a RECV for each socket that has none pending in the kernel.
    Waiting,
    /// Multishot RECV on each socket, into provided buffers.
    Multishot,
}

/// The work of a turn.
#[derive(Clone, Copy)]
struct Turn {
    /// Number of sockets.
    sockets: usize,
    /// Number of sockets with data.
    active: usize,
    /// Whether each active socket gets a reply of the same length.
    answers: bool,
}

pub(crate) fn shapes() -> Vec<Shape> {
    let turn = |sockets, active| Turn { sockets, active, answers: false };
    let answered = |sockets, active| Turn { sockets, active, answers: true };
    vec![
        shape("fan-in: nothing on 16 sockets, the empty turn", turn(16, 0)),
        shape("fan-in: 84 bytes on each of 16 sockets, the receiving turn", turn(16, 16)),
        shape("fan-in: 84 bytes on each of 16 sockets, answered", answered(16, 16)),
        shape("fan-in: 84 bytes on 2 of 16 sockets, answered", answered(16, 2)),
        shape("fan-in: 84 bytes on each of 4 sockets, answered", answered(4, 4)),
        shape("fan-in: 84 bytes on 1 of 4 sockets, answered", answered(4, 1)),
        shape("fan-in: 84 bytes on 1 of 2 sockets, answered", answered(2, 1)),
        shape("fan-in: 84 bytes on the only socket, answered", answered(1, 1)),
    ]
}

fn shape(name: &'static str, turn: Turn) -> Shape {
    let variant =
        |name, way| Variant { name, run: Box::new(move |arenas, count| run(arenas, turn, way, count)) };
    let variants = vec![
        variant("readv on each", Way::Readv),
        variant("epoll_wait, readv on the ready", Way::Epoll),
        variant("POLL_ADD, readv on the ready", Way::Watch),
        variant("one enter: RECV on each, at once", Way::Now),
        variant("one enter: RECV that waits", Way::Waiting),
        variant("one enter: RECV multishot", Way::Multishot),
    ];
    Shape { name, count: 1000, variants }
}

/// Nanoseconds of the server's turns alone; the bytes have arrived before a turn begins.
fn run(arenas: Arenas, turn: Turn, way: Way, count: u32) -> f64 {
    let (servers, clients): (Vec<_>, Vec<_>) = (0..turn.sockets).map(|_| connection()).unzip();
    let (asked, answered) = (AtomicU32::new(0), AtomicU32::new(0));
    let serve = || {
        let mut server = Server::new(servers, arenas.server, way, turn);
        let mut time = Duration::ZERO;
        for index in 1..=WARM_UP + count {
            wait(&asked, index);
            let begun = Instant::now();
            server.turn();
            if index > WARM_UP {
                time += begun.elapsed();
            }
            answered.store(index, Ordering::Release);
        }
        time.as_nanos() as f64 / f64::from(count)
    };
    let ask = || {
        for index in 1..=WARM_UP + count {
            // The active sockets change from turn to turn and are not adjacent.
            let active = (0..turn.active).map(|n| &clients[(index as usize + n * 7) % turn.sockets]);
            for socket in active.clone() {
                direct::send(socket, arenas.client, &[(OUT, LEN)], 0, 0)
                    .expect("the socket accepts the bytes");
            }
            asked.store(index, Ordering::Release);
            wait(&answered, index);
            for socket in active.filter(|_| turn.answers) {
                let n = direct::receive(socket, arenas.client, &[(STAGING, STRIDE)], libc::RWF_NOWAIT);
                assert_eq!(n, Some(LEN), "an answer");
            }
        }
    };
    beside(serve, ask).0
}

fn wait(counter: &AtomicU32, value: u32) {
    while counter.load(Ordering::Acquire) != value {
        core::hint::spin_loop();
    }
}

struct Server {
    ring: Option<Ring>,
    epoll: Option<Epoll>,
    sockets: Vec<TcpStream>,
    memory: &'static Memory,
    way: Way,
    turn: Turn,
    /// Sockets whose RECV must be submitted.
    idle: Vec<usize>,
    /// Sockets that the poll reported as readable.
    ready: Vec<usize>,
    /// Sockets that bytes were received from.
    received: Vec<usize>,
}

impl Server {
    fn new(sockets: Vec<TcpStream>, memory: &'static Memory, way: Way, turn: Turn) -> Self {
        let direct = matches!(way, Way::Readv | Way::Epoll);
        sockets.iter().for_each(|socket| socket.set_nonblocking(direct).expect("a mode"));
        let ring =
            (!direct).then(|| Ring::new(&sockets, memory, (way == Way::Multishot).then_some(PROVIDED)));
        let epoll = (way == Way::Epoll).then(|| {
            let epoll = Epoll::new(EpollCreateFlags::empty()).expect("epoll");
            for (index, socket) in sockets.iter().enumerate() {
                epoll.add(socket, EpollEvent::new(EpollFlags::EPOLLIN, index as u64)).expect("watched");
            }
            epoll
        });
        let (idle, ready, received) =
            ((0..turn.sockets).collect(), Vec::with_capacity(SOCKETS_MAX), Vec::with_capacity(SOCKETS_MAX));
        Self { ring, epoll, sockets, memory, way, turn, idle, ready, received }
    }

    fn turn(&mut self) {
        self.received.clear();
        match self.way {
            Way::Readv => (0..self.turn.sockets).for_each(|index| self.readv(index)),
            Way::Epoll => {
                let mut ready = [EpollEvent::empty(); SOCKETS_MAX];
                let epoll = self.epoll.as_ref().expect("this way has it");
                let count = epoll.wait(&mut ready, EpollTimeout::ZERO).expect("a poll");
                ready[..count].iter().for_each(|event| self.readv(event.data() as usize));
            }
            Way::Watch | Way::Now | Way::Waiting | Way::Multishot => self.enter(),
        }
        assert_eq!(self.received.len(), self.turn.active, "every active socket was received from");
        if self.turn.answers {
            self.answer();
        }
    }

    fn readv(&mut self, index: usize) {
        // With a ring the sockets are blocking, because requests on non-blocking sockets would not wait.
        let now = if self.ring.is_some() { libc::RWF_NOWAIT } else { 0 };
        if let Some(n) = direct::receive(&self.sockets[index], self.memory, &[staging(index)], now) {
            assert_eq!(n, LEN, "all that was sent");
            self.received.push(index);
        }
    }

    fn enter(&mut self) {
        let ring = self.ring.as_mut().expect("this way has it");
        for index in self.idle.drain(..) {
            let (tag, socket) = (index as u64, index as u32);
            match self.way {
                Way::Now => ring.receive(tag, socket, &[staging(index)], libc::MSG_DONTWAIT),
                Way::Waiting => ring.receive(tag, socket, &[staging(index)], 0),
                Way::Watch => ring.watch(tag, socket),
                _ => ring.receive_multishot(tag, socket),
            }
        }
        ring.enter_if_due();
        while let Some(event) = ring.pop() {
            let index = event.tag as usize;
            if let Some(buffer) = event.buffer {
                ring.give_back(buffer);
            }
            if !event.more {
                self.idle.push(index);
            }
            if self.way == Way::Watch {
                self.ready.push(index);
            } else if let Some(n) = event.bytes {
                assert_eq!(n, LEN, "all that was sent");
                self.received.push(index);
            }
        }
        if self.way == Way::Watch {
            // Moved out during the loop and put back, so that a turn does not allocate.
            let mut ready = core::mem::take(&mut self.ready);
            ready.drain(..).for_each(|index| self.readv(index));
            self.ready = ready;
        }
    }

    fn answer(&mut self) {
        let Some(ring) = self.ring.as_mut().filter(|_| self.way != Way::Watch) else {
            for &index in &self.received {
                direct::send(&self.sockets[index], self.memory, &[(OUT, LEN)], 0, 0)
                    .expect("the socket accepts the bytes");
            }
            return;
        };
        self.received.iter().for_each(|&index| ring.send(SEND, index as u32, (OUT, LEN)));
        ring.enter();
        for _ in &self.received {
            assert_eq!(ring.pop().map(|event| event.tag), Some(SEND), "a short reply is sent at once");
        }
    }
}

fn staging(index: usize) -> Chunk {
    (STAGING + index * STRIDE, STRIDE)
}
