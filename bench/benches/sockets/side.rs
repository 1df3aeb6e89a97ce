//! One end of a connection, with the ways in which it can receive and send.

use crate::direct::{self, Chunk};
use crate::ring::{Event, Provided, Ring};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nvmf_memory::Memory;
use std::net::TcpStream;

/// Offset of data to send in a side's memory.
pub(crate) const OUT: usize = 0;
/// Offset of the staging buffer for received bytes.
pub(crate) const STAGING: usize = 2 << 20;
pub(crate) const STAGING_LEN: usize = 256 << 10;
/// Offset of the final destination of payload.
pub(crate) const PLACE: usize = STAGING + STAGING_LEN;
/// Buffers for multishot receives.
const PROVIDED: Provided = Provided { offset: 3 << 20, len: 64 << 10, count: 16 };

const SOCKET: u32 = 0;
const RECEIVE: u64 = 0;
const SEND: u64 = 1;

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Receive {
    /// readv in a loop.
    Readv,
    /// recv in a loop.
    Recv,
    /// epoll_wait in a loop, and readv when the socket is readable.
    Epoll,
    /// Multishot POLL_ADD, and readv when the socket is readable.
    RingPoll,
    /// Non-blocking RECV or READV in a loop.
    RingNow,
    /// RECV or READV that stays pending until bytes arrive.
    Ring,
    /// Multishot RECV into provided buffers.
    Multishot,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Send {
    /// sendmsg.
    Sendmsg,
    /// sendmsg with `MSG_ZEROCOPY`.
    Zerocopy,
    /// SENDMSG.
    Message,
    /// SENDMSG_ZC.
    MessageZc { registered: bool },
    /// SEND_ZC for each contiguous run of chunks.
    RunsZc { registered: bool },
}

#[derive(Clone, Copy)]
pub(crate) struct Way {
    pub(crate) receive: Receive,
    pub(crate) send: Send,
}

/// What iWARP uses.
pub(crate) const CURRENT: Way = Way { receive: Receive::Readv, send: Send::Sendmsg };

pub(crate) struct Side {
    pub(crate) memory: &'static Memory,
    way: Way,
    ring: Option<Ring>,
    epoll: Epoll,
    socket: TcpStream,
    is_armed: bool,
    /// Requests whose bytes have not all been accepted by the socket.
    sends: u32,
    /// Requests, or system calls with `MSG_ZEROCOPY`, whose memory the kernel still uses.
    notices: u32,
    /// Most outstanding zero-copy sends when another one starts.
    notices_max: u32,
}

impl Side {
    /// A side for the calling thread.
    pub(crate) fn new(socket: TcpStream, memory: &'static Memory, way: Way, notices_max: u32) -> Self {
        let receives_direct = matches!(way.receive, Receive::Readv | Receive::Recv | Receive::Epoll);
        let uses_ring = !receives_direct || !matches!(way.send, Send::Sendmsg | Send::Zerocopy);
        // Requests on a non-blocking socket would not wait.
        socket.set_nonblocking(!uses_ring).expect("a mode");
        let epoll = Epoll::new(EpollCreateFlags::empty()).expect("epoll");
        epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, 0)).expect("watched");
        if way.send == Send::Zerocopy {
            direct::allow_zerocopy(&socket);
        }
        let provided = (way.receive == Receive::Multishot).then_some(PROVIDED);
        let ring = uses_ring.then(|| Ring::new(core::slice::from_ref(&socket), memory, provided));
        Self { memory, way, ring, epoll, socket, is_armed: false, sends: 0, notices: 0, notices_max }
    }

    fn ring(&mut self) -> &mut Ring {
        self.ring.as_mut().expect("a way with a ring")
    }

    /// Sends all chunks; ring requests are submitted with the next receive or [`Side::flush`].
    pub(crate) fn send(&mut self, chunks: &[Chunk]) {
        self.drain_sends(self.notices_max);
        match self.way.send {
            Send::Sendmsg => self.send_direct(chunks, 0),
            Send::Zerocopy => self.send_direct(chunks, libc::MSG_ZEROCOPY),
            Send::Message => self.ring().send_message(SEND, SOCKET, chunks),
            Send::MessageZc { registered } => self.ring().send_message_zc(SEND, SOCKET, chunks, registered),
            Send::RunsZc { registered } => {
                let mut rest = chunks;
                while let Some((run, after)) = split_run(rest) {
                    self.ring().send_zc(SEND, SOCKET, run, registered, !after.is_empty());
                    // The last one is counted below.
                    self.sends += u32::from(!after.is_empty());
                    rest = after;
                }
            }
        }
        if !matches!(self.way.send, Send::Sendmsg | Send::Zerocopy) {
            self.sends += 1;
            if matches!(self.way.receive, Receive::Readv) {
                self.flush();
            }
        }
    }

    fn send_direct(&mut self, chunks: &[Chunk], flags: i32) {
        let whole: usize = chunks.iter().map(|chunk| chunk.1).sum();
        let mut sent = 0;
        while sent < whole {
            if let Some(n) = direct::send(&self.socket, self.memory, chunks, sent, flags) {
                sent += n;
                self.notices += u32::from(flags != 0);
            }
        }
    }

    /// Submits sends and waits until the socket has accepted all bytes.
    pub(crate) fn flush(&mut self) {
        if self.sends > 0 {
            self.ring().enter();
            self.drain_sends(u32::MAX);
        }
    }

    /// Waits until all bytes are accepted and the kernel uses the memory of at most `notices_max` sends.
    pub(crate) fn drain_sends(&mut self, notices_max: u32) {
        while self.sends > 0 || self.notices > notices_max {
            if self.way.send == Send::Zerocopy {
                self.notices -= direct::zerocopy_done(&self.socket);
            } else {
                let event = self.ring().wait();
                assert_eq!(event.tag, SEND, "no receive completes before the reply is sent");
                self.on_send(event);
            }
        }
    }

    fn on_send(&mut self, event: Event) {
        if event.is_notice {
            self.notices -= 1;
        } else {
            self.sends -= 1;
            self.notices += u32::from(event.more);
        }
    }

    /// Receives `len` bytes, all of which the other side sends before it waits for this one.
    pub(crate) fn receive(&mut self, len: usize) {
        let mut taken = 0;
        while taken < len {
            taken += match self.way.receive {
                Receive::Multishot => self.receive_provided(|_, _| {}),
                _ => self.receive_some(&[(STAGING, STAGING_LEN)]),
            };
        }
        assert_eq!(taken, len, "no more than was requested");
    }

    /// Receives some bytes into the chunks.
    pub(crate) fn receive_some(&mut self, chunks: &[Chunk]) -> usize {
        match self.way.receive {
            Receive::Readv => loop {
                let now = if self.ring.is_some() { libc::RWF_NOWAIT } else { 0 };
                if let Some(n) = direct::receive(&self.socket, self.memory, chunks, now) {
                    return n;
                }
                core::hint::spin_loop();
            },
            Receive::Recv => loop {
                if let Some(n) = direct::receive_one(&self.socket, self.memory, chunks[0]) {
                    return n;
                }
                core::hint::spin_loop();
            },
            Receive::Epoll => {
                let mut ready = [EpollEvent::empty()];
                while self.epoll.wait(&mut ready, EpollTimeout::ZERO) == Ok(0) {
                    core::hint::spin_loop();
                }
                direct::receive(&self.socket, self.memory, chunks, 0).expect("the socket is readable")
            }
            Receive::RingPoll => loop {
                if !self.is_armed {
                    self.ring().watch(RECEIVE, SOCKET);
                }
                self.is_armed = self.received().more;
                // The poll may report the same bytes twice.
                if let Some(n) = direct::receive(&self.socket, self.memory, chunks, libc::RWF_NOWAIT) {
                    return n;
                }
            },
            Receive::RingNow => loop {
                self.ring().receive(RECEIVE, SOCKET, chunks, libc::MSG_DONTWAIT);
                self.ring().enter();
                if let Some(n) = self.received().bytes {
                    return n;
                }
            },
            Receive::Ring => {
                self.ring().receive(RECEIVE, SOCKET, chunks, 0);
                self.ring().enter();
                self.received().bytes.expect("a pending receive returns bytes")
            }
            Receive::Multishot => unreachable!("multishot receives use provided buffers"),
        }
    }

    /// Receives some bytes into a provided buffer and passes its location to `look`.
    pub(crate) fn receive_provided(&mut self, look: impl FnOnce(&'static Memory, Chunk)) -> usize {
        loop {
            if !self.is_armed {
                self.ring().receive_multishot(RECEIVE, SOCKET);
            }
            let event = self.received();
            self.is_armed = event.more;
            if let (Some(n), Some(buffer)) = (event.bytes, event.buffer) {
                look(self.memory, (self.ring().buffer_offset(buffer), n));
                self.ring().give_back(buffer);
                return n;
            }
        }
    }

    fn received(&mut self) -> Event {
        loop {
            let event = self.ring().wait();
            if event.tag == RECEIVE {
                assert_ne!(event.bytes, Some(0), "the other side ended");
                return event;
            }
            self.on_send(event);
        }
    }
}

/// Merges the first contiguous chunks into one; returns it and the rest.
fn split_run(chunks: &[Chunk]) -> Option<(Chunk, &[Chunk])> {
    let (&(offset, mut len), mut rest) = chunks.split_first()?;
    while let Some((&next, after)) = rest.split_first()
        && next.0 == offset + len
    {
        (len, rest) = (len + next.1, after);
    }
    Some(((offset, len), rest))
}
