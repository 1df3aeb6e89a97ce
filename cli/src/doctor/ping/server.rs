//! The listening end: carries out what the measuring end asks for, within bounds.

use super::line::{CHUNK, ENTRIES, EXPOSED, Line, Work, parameters};
use super::message::{GREETING, LEN, Message};
use crate::print::line;
use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmf_rdma::{
    CmEvent, Completion, CompletionQueueId, PrivateData, Provider, QueuePairId, RequestId, WakeOn, WcStatus,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Connections at once; more are rejected.
const SESSIONS: usize = 4;
/// A connection without a message for this time is ended.
const SILENCE: Duration = Duration::from_secs(30);
/// Limit of a connection's set-up.
const SET_UP: Duration = Duration::from_secs(5);
/// Time of polling before it sleeps, so that the scheduler's wake-up time is not measured.
const SPIN: Duration = Duration::from_millis(20);
/// The longest sleep.
const SLEEP: Duration = Duration::from_secs(1);
/// The longest bandwidth measurement that a peer may ask for.
pub(super) const BULK_MS: u32 = 60_000;

/// What a connection is doing.
#[derive(Debug, Clone, Copy)]
enum Doing {
    /// Waits for a message.
    Listening,
    /// Answers RDMA WRITEs; the next one ends with this mark.
    EchoWrites { size: usize, mark: u8 },
    /// Writes or reads until this time.
    Bulk { read: bool, until: Duration, bytes: u64 },
}

struct Session {
    line: Line,
    doing: Doing,
    established: bool,
    /// Receives that hold a message, and its length; never more than were posted.
    inbox: VecDeque<(usize, u32)>,
    heard: Duration,
}

/// The peer broke the protocol: its connection ends.
struct Malformed;

/// Serves until it is killed.
pub(super) fn serve<P: Provider>(provider: P, name: &str, address: SocketAddr) -> Result<()> {
    let (mut server, address) = Server::new(provider, address)?;
    line(format_args!(
        "listening on {address} over {name}; on the other machine: nvmf doctor --ping {address}"
    ))?;
    let mut worked = Duration::ZERO;
    loop {
        let now = server.start.elapsed();
        if server.turn(now) {
            worked = now;
        } else if server.must_watch() || now.saturating_sub(worked) < SPIN {
            std::thread::yield_now();
        } else {
            server.sleep(now)?;
        }
    }
}

/// All connections of one provider.
pub(super) struct Server<P: Provider> {
    provider: P,
    cq: CompletionQueueId,
    sessions: Vec<Session>,
    completions: Vec<Completion>,
    start: Instant,
}

impl<P: Provider> Server<P> {
    /// Listens; returns the address with the actual port.
    pub(super) fn new(mut provider: P, address: SocketAddr) -> Result<(Self, SocketAddr)> {
        let (_, address) = provider.listen(address, 16).context("the other end of --ping cannot start")?;
        let entries = ENTRIES * SESSIONS as u32;
        let cq = provider.create_completion_queue(entries).context("no completion queue")?;
        let (sessions, completions) = (Vec::with_capacity(SESSIONS), Vec::with_capacity(32));
        Ok((Self { provider, cq, sessions, completions, start: Instant::now() }, address))
    }

    /// Makes progress on everything; `false` when there was nothing to do.
    pub(super) fn turn(&mut self, now: Duration) -> bool {
        let mut worked = self.reap(now);
        while let Some(event) = self.provider.poll_cm(now) {
            worked = true;
            self.on_event(now, &event);
        }
        for at in (0..self.sessions.len()).rev() {
            let session = &mut self.sessions[at];
            let stepped = session.step(&mut self.provider, now);
            worked |= matches!(stepped, Ok(true));
            if stepped.is_err() || now.saturating_sub(session.heard) > SILENCE {
                self.remove(at);
            }
        }
        self.provider.flush();
        worked
    }

    /// Whether to poll memory: an RDMA WRITE from the peer gives no completion on this side, and no wake-up.
    fn must_watch(&self) -> bool {
        self.sessions.iter().any(|session| !matches!(session.doing, Doing::Listening))
    }

    fn reap(&mut self, now: Duration) -> bool {
        self.provider.poll_cq(self.cq, &mut self.completions);
        let worked = !self.completions.is_empty();
        for completion in self.completions.drain(..) {
            let found = self.sessions.iter_mut().find(|session| session.line.qp == completion.queue_pair);
            if let Some(session) = found {
                session.on_completion(now, &completion);
            }
        }
        worked
    }

    fn on_event(&mut self, now: Duration, event: &CmEvent) {
        match event {
            CmEvent::ConnectRequest { request, private_data, .. } => {
                self.on_request(now, *request, private_data)
            }
            CmEvent::Established { queue_pair, .. } => {
                if let Some(at) = self.find(*queue_pair) {
                    self.sessions[at].established = true;
                }
            }
            CmEvent::ConnectFailed { queue_pair, .. } | CmEvent::Disconnected { queue_pair, .. } => {
                if let Some(at) = self.find(*queue_pair) {
                    self.remove(at);
                }
            }
            // Its connections ended before.
            CmEvent::DeviceRemoved => {}
        }
    }

    fn on_request(&mut self, now: Duration, request: RequestId, private_data: &PrivateData) {
        let refusal = PrivateData::new(GREETING).unwrap_or(PrivateData::EMPTY);
        // Some cards hand over more bytes than were sent, padded with zeroes.
        if !private_data.as_bytes().starts_with(GREETING) || self.sessions.len() >= SESSIONS {
            return self.provider.reject(request, &refusal);
        }
        let mut line = match Line::new(&mut self.provider, self.cq) {
            Ok(line) => line,
            Err(error) => {
                crate::print::error_line(format_args!(
                    "a connection was rejected: {}",
                    crate::print::chain(&error)
                ));
                return self.provider.reject(request, &refusal);
            }
        };
        let parameters = parameters(&self.provider, SET_UP);
        if self.provider.accept(now, request, line.qp, &parameters).is_err() {
            // The peer is gone.
            return line.end(&mut self.provider);
        }
        let (doing, inbox) = (Doing::Listening, VecDeque::new());
        self.sessions.push(Session { line, doing, established: false, inbox, heard: now });
    }

    fn find(&self, queue_pair: QueuePairId) -> Option<usize> {
        self.sessions.iter().position(|session| session.line.qp == queue_pair)
    }

    fn remove(&mut self, at: usize) {
        let mut session = self.sessions.swap_remove(at);
        session.line.end(&mut self.provider);
    }

    fn sleep(&mut self, now: Duration) -> Result<()> {
        if !self.provider.arm(WakeOn::Completions) {
            return Ok(());
        }
        let until = self.provider.poll_timeout().map_or(SLEEP, |at| at.saturating_sub(now)).min(SLEEP);
        let timeout = PollTimeout::try_from(until + Duration::from_millis(1)).unwrap_or(PollTimeout::ZERO);
        let mut watched: Vec<_> =
            self.provider.fd().into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut watched, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno).context("cannot wait for the network"),
        }
    }
}

impl Session {
    fn on_completion(&mut self, now: Duration, completion: &Completion) {
        let success = completion.status == WcStatus::Success;
        match Work::of(completion.id) {
            // Flushed work is followed by the event that the connection has ended.
            Work::Receive(slot) if success => {
                self.heard = now;
                self.inbox.push_back((slot, completion.byte_len));
            }
            Work::Receive(_) => {}
            Work::Send => self.line.sending = self.line.sending.saturating_sub(1),
            Work::Bulk => {
                self.line.bulk = self.line.bulk.saturating_sub(1);
                if let Doing::Bulk { bytes, .. } = &mut self.doing
                    && success
                {
                    *bytes = bytes.saturating_add(CHUNK as u64);
                }
            }
        }
    }

    /// Continues with what it is doing; `false` when there was nothing to do.
    fn step<P: Provider>(&mut self, provider: &mut P, now: Duration) -> Result<bool, Malformed> {
        if !self.established || self.line.sending > 0 {
            return Ok(false);
        }
        match self.doing {
            Doing::Bulk { read, until, .. } if now < until => {
                self.heard = now;
                let before = self.line.bulk;
                self.line.fill(provider, read).map_err(|_| Malformed)?;
                return Ok(self.line.bulk > before);
            }
            Doing::Bulk { .. } if self.line.bulk > 0 => return Ok(false),
            Doing::Bulk { bytes, .. } => {
                self.doing = Doing::Listening;
                self.say(provider, Message::Done { bytes })?;
                return Ok(true);
            }
            Doing::EchoWrites { size, mark } if self.line.mark(size) == mark && self.line.bulk == 0 => {
                self.heard = now;
                self.line.write_mark(provider, size, mark).map_err(|_| Malformed)?;
                self.doing = Doing::EchoWrites { size, mark: next_mark(mark) };
                return Ok(true);
            }
            _ => {}
        }
        let Some((slot, len)) = self.inbox.pop_front() else { return Ok(false) };
        let message = Message::parse(&self.line.received(slot)).ok_or(Malformed)?;
        self.line.post_receive(provider, slot).map_err(|_| Malformed)?;
        let len = usize::try_from(len).map_err(|_| Malformed)?;
        if len < LEN {
            return Err(Malformed);
        }
        self.on_message(provider, now, message, len)?;
        Ok(true)
    }

    fn on_message<P: Provider>(
        &mut self,
        provider: &mut P,
        now: Duration,
        message: Message,
        len: usize,
    ) -> Result<(), Malformed> {
        self.doing = Doing::Listening;
        let until = |ms: u32| now + Duration::from_millis(ms.into());
        match message {
            Message::Hello(memory) => {
                if self.line.peer.is_some() || (memory.len as usize) < EXPOSED {
                    return Err(Malformed);
                }
                self.line.peer = Some(memory);
                let own = self.line.expose(provider).map_err(|_| Malformed)?;
                self.say(provider, Message::Ready(own))
            }
            Message::Echo => self.line.send(provider, Message::Echo, len).map_err(|_| Malformed),
            Message::EchoWrites { size } => {
                let size = usize::try_from(size).map_err(|_| Malformed)?;
                if size == 0 || size > CHUNK {
                    return Err(Malformed);
                }
                self.line.clear(size);
                self.doing = Doing::EchoWrites { size, mark: FIRST_MARK };
                self.say(provider, Message::Done { bytes: 0 })
            }
            Message::Write { ms } | Message::Read { ms } if ms <= BULK_MS => {
                let read = matches!(message, Message::Read { .. });
                self.doing = Doing::Bulk { read, until: until(ms), bytes: 0 };
                Ok(())
            }
            Message::Sync => self.say(provider, Message::Done { bytes: 0 }),
            Message::Write { .. } | Message::Read { .. } | Message::Ready(_) | Message::Done { .. } => {
                Err(Malformed)
            }
        }
    }

    fn say<P: Provider>(&mut self, provider: &mut P, message: Message) -> Result<(), Malformed> {
        self.line.send(provider, message, LEN).map_err(|_| Malformed)
    }
}

/// The mark of the first write. Memory is cleared to zero, which is no mark.
pub(super) const FIRST_MARK: u8 = 1;

/// The mark after this one: 1, 2, … 255, 1, …
pub(super) fn next_mark(mark: u8) -> u8 {
    mark.checked_add(1).unwrap_or(FIRST_MARK)
}
