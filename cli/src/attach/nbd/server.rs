//! The clients' sockets, and what a turn of the disk's thread does for them.

use super::client::Client;
use super::disk::DiskInfo;
use super::listener::Listener;
use super::requests::Requests;
use super::session::Session;
use core::time::Duration;
use nvmf_block::{Backend, Completion, DeviceId};
use nvmf_stream::{Interest, Poller, ReadSchedule, SendSchedule, Stream};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

/// How long a client may take to negotiate.
const NEGOTIATION_TIME_MAX: Duration = Duration::from_secs(30);
/// Clients at once. A poller reports all of them at a time.
const CLIENTS_MAX: usize = 64;
/// How long accepting rests when the process has no descriptor left.
const REST: Duration = Duration::from_millis(100);
/// Completions that are taken at once.
const COMPLETIONS: usize = 256;
/// The listener's token: no client's number.
const LISTENER: u64 = u64::MAX;

/// A disk for NBD clients. Its thread calls [`Server::turn`], and sleeps on [`Server::arm`].
pub(crate) struct Server {
    poller: Poller,
    listener: Option<Listener>,
    /// Accepting rests until then.
    rests_until: Option<Duration>,
    /// The log says that nobody can be accepted.
    is_logged: bool,
    clients: Vec<Option<Client>>,
    count: usize,
    requests: Requests,
    reads: ReadSchedule,
    sends: SendSchedule,
    /// Clients whose input is looked at in this turn; those whose input is, in the next.
    due: Vec<u32>,
    heard: Vec<u32>,
    /// Clients that were found to have closed their sockets.
    hung_up: Vec<u32>,
    completions: Vec<Completion>,
}

impl Server {
    /// Serves a device of a backend.
    ///
    /// # Errors
    /// When the system gives no epoll descriptor.
    pub(crate) fn new(disk: DiskInfo, device: DeviceId) -> io::Result<Self> {
        Ok(Self {
            poller: Poller::new()?,
            listener: None,
            rests_until: None,
            is_logged: false,
            clients: Vec::new(),
            count: 0,
            requests: Requests::new(disk, device),
            reads: ReadSchedule::default(),
            sends: SendSchedule::default(),
            due: Vec::new(),
            heard: Vec::new(),
            hung_up: Vec::new(),
            completions: Vec::with_capacity(COMPLETIONS),
        })
    }

    /// The disk is so now: whoever connects from now on is told, and what is asked for is held against it.
    pub(crate) fn change(&mut self, bytes: u64, read_only: bool) {
        self.requests.change(bytes, read_only);
    }

    /// Takes clients from a listener.
    ///
    /// # Errors
    /// When the system's limit of epoll watches is reached.
    pub(crate) fn listen(&mut self, listener: Listener) -> io::Result<()> {
        self.poller.add(&listener, LISTENER, Interest::Read)?;
        self.listener = Some(listener);
        Ok(())
    }

    /// Takes a client that needs no negotiation.
    ///
    /// # Errors
    /// When the system's limit of epoll watches is reached.
    pub(crate) fn add(&mut self, client: UnixStream) -> io::Result<()> {
        self.add_session(client, Session::agreed, Duration::MAX)
    }

    /// The descriptor to sleep on: readable when there is something to do.
    pub(crate) fn arm(&mut self) -> BorrowedFd<'_> {
        self.reads.on_sleep();
        self.poller.fd()
    }

    /// When [`Server::turn`] must be called again even if nothing arrives.
    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        let negotiating = self.clients.iter().flatten().filter(|client| client.session.is_negotiating());
        let deadlines = negotiating.map(|client| client.deadline);
        deadlines.chain(self.rests_until).chain(self.requests.pool.poll_timeout()).min()
    }

    /// Whether nothing more is heard of any client.
    pub(crate) fn is_deserted(&self) -> bool {
        self.clients.iter().flatten().all(|client| client.session.has_ended())
    }

    /// How many clients there are.
    pub(crate) fn clients(&self) -> usize {
        self.count
    }

    /// Whether there are no clients.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Takes no more clients and no more requests. What is under way is answered in the next turns.
    pub(crate) fn close(&mut self) {
        if let Some(listener) = self.listener.take() {
            self.poller.remove(&listener);
        }
        self.rests_until = None;
        for key in 0..self.clients.len() as u32 {
            if let Some(client) = &mut self.clients[key as usize] {
                client.session.close(&mut self.requests);
                self.list(key);
            }
        }
    }

    /// Does everything that there is to do now; `false` when that is nothing.
    ///
    /// Requests of several clients begin in the turn after the one that received them, when it is known which clients had
    /// gone before they were sent: nothing overtakes what those have begun.
    pub(crate) fn turn(&mut self, now: Duration, backend: &mut impl Backend) -> bool {
        let mut worked = self.read(now, backend);
        worked |= self.advance(backend);
        self.requests.flush(backend);
        worked |= self.complete(backend);
        self.requests.flush(backend);
        worked |= self.send();
        self.expire(now);
        self.requests.pool.give_back(now, backend);
        worked | !self.due.is_empty()
    }

    fn client(&mut self, key: u32) -> Option<&mut Client> {
        self.clients.get_mut(key as usize)?.as_mut()
    }

    /// Reads the sockets, and accepts clients.
    fn read(&mut self, now: Duration, backend: &mut impl Backend) -> bool {
        let mut worked = self.release();
        self.reads.start_turn();
        if !self.due.is_empty() && self.count > 1 {
            self.reads.poll_next_turn();
        }
        while let Some(key) = self.reads.next() {
            worked |= self.receive(key);
        }
        if self.reads.asks_poller() {
            for index in 0..self.poller.poll() {
                let (token, writable) = self.poller.ready(index);
                let has_hung_up = self.poller.has_hung_up(index);
                worked |= match u32::try_from(token) {
                    Ok(key) => self.on_ready(key, writable, has_hung_up),
                    Err(_) => self.accept(now),
                };
            }
        }
        while let Some(key) = self.hung_up.pop() {
            self.hear_out(key, backend);
            worked = true;
        }
        if self.count <= 1 {
            self.release();
        }
        worked
    }

    /// Lets the input be looked at that was received before; whether there is any.
    fn release(&mut self) -> bool {
        let any = !self.heard.is_empty();
        while let Some(key) = self.heard.pop() {
            if let Some(client) = self.client(key) {
                client.session.release_input();
            }
            self.list(key);
        }
        any
    }

    /// Lists a client whose input is to be looked at.
    fn list(&mut self, key: u32) {
        let Some(client) = &mut self.clients[key as usize] else { return };
        if !core::mem::replace(&mut client.is_due, true) {
            self.due.push(key);
        }
    }

    fn on_ready(&mut self, key: u32, writable: bool, has_hung_up: bool) -> bool {
        let Some(client) = &mut self.clients[key as usize] else { return false };
        if has_hung_up {
            self.hung_up.push(key);
            return true;
        }
        if writable && client.stream.on_writable(&self.poller, key) {
            self.sends.add(key, &mut client.is_sending);
        }
        self.reads.is_due(key) && self.receive(key)
    }

    /// Receives what a client sent; whether there was anything.
    fn receive(&mut self, key: u32) -> bool {
        let Some(client) = &mut self.clients[key as usize] else { return false };
        let had_bytes = client.receive(&self.requests, self.reads.budget());
        self.reads.on_read(key, had_bytes);
        if had_bytes {
            self.heard.push(key);
        }
        had_bytes
    }

    /// A client has closed its socket: whatever it sent was sent before anything that is received from now on, and begins
    /// before that, unless it must wait.
    fn hear_out(&mut self, key: u32, backend: &mut impl Backend) {
        loop {
            let Some(client) = &mut self.clients[key as usize] else { return };
            client.session.release_input();
            client.advance(&mut self.requests, backend);
            if !client.session.wants_bytes() || !self.receive(key) {
                break;
            }
        }
        let Some(client) = &mut self.clients[key as usize] else { return };
        client.session.end(&mut self.requests);
        client.session.on_deaf(&mut self.requests);
        self.poller.remove(&client.stream);
        self.list(key);
    }

    /// Begins what was received.
    fn advance(&mut self, backend: &mut impl Backend) -> bool {
        // Of those who leave in order, too, nothing is overtaken.
        for at in 0..self.heard.len() {
            let key = self.heard[at];
            if let Some(client) = self.client(key)
                && client.session.seems_to_leave()
            {
                client.session.release_input();
                self.advance_client(key, backend);
            }
        }
        let worked = !self.due.is_empty();
        while let Some(key) = self.due.pop() {
            self.advance_client(key, backend);
        }
        worked
    }

    fn advance_client(&mut self, key: u32, backend: &mut impl Backend) {
        let Some(client) = &mut self.clients[key as usize] else { return };
        client.is_due = false;
        client.advance(&mut self.requests, backend);
        client.stream.pause(!client.session.wants_bytes(), &self.poller, key);
        if client.session.is_over() {
            return self.remove(key);
        }
        if client.session.has_replies() {
            self.sends.add(key, &mut client.is_sending);
        }
    }

    /// Takes the operations that have ended, answers requests, and begins those that waited for others.
    fn complete(&mut self, backend: &mut impl Backend) -> bool {
        backend.poll(&mut self.completions);
        let mut worked = !self.completions.is_empty();
        for completion in self.completions.drain(..) {
            self.requests.on_completion(completion, backend);
        }
        loop {
            while let Some(index) = self.requests.next(backend) {
                let key = self.requests.get(index).client;
                if let Some(client) = &mut self.clients[key as usize] {
                    client.session.on_begun(&self.requests, index);
                    self.list(key);
                }
            }
            // A request may end as soon as it begins, and let others begin.
            let Some(index) = self.requests.next_ended() else { break };
            worked = true;
            let key = self.requests.get(index).client;
            if let Some(client) = &mut self.clients[key as usize] {
                client.session.reply(&mut self.requests, index);
                if client.session.has_replies() {
                    self.sends.add(key, &mut client.is_sending);
                } else {
                    self.list(key);
                }
            }
        }
        worked
    }

    /// Sends replies; whether there are more that the sockets would take.
    fn send(&mut self) -> bool {
        let mut any = false;
        self.sends.start_turn();
        while let Some(key) = self.sends.next() {
            let more = self.send_to(key);
            self.sends.on_sent(more);
            any |= more;
            if !more && let Some(client) = self.client(key) {
                client.is_sending = false;
            }
        }
        any
    }

    /// Sends what a client's socket takes; whether it would take more.
    fn send_to(&mut self, key: u32) -> bool {
        let Some(client) = &mut self.clients[key as usize] else { return false };
        let was_waiting = !client.session.wants_bytes();
        let any = client.send(&mut self.requests, &self.poller, key, self.sends.budget());
        let more = !client.stream.is_blocked() && client.session.has_replies();
        // There may be room for its next request, or nothing be left of it.
        if was_waiting && any {
            self.list(key);
        }
        more
    }

    fn accept(&mut self, now: Duration) -> bool {
        let Some(listener) = &self.listener else { return false };
        let added = match listener.accept() {
            Ok(Some(stream)) => self.add_session(stream, Session::new, now + NEGOTIATION_TIME_MAX),
            Ok(None) => return false,
            Err(error) => Err(error),
        };
        let was_logged = core::mem::replace(&mut self.is_logged, added.is_err());
        if let Err(error) = &added {
            if !was_logged {
                tracing::warn!(%error, "cannot accept an NBD client, and tries again until it can");
            }
            self.rests_until = Some(now + REST);
        }
        if let Some(listener) = &self.listener
            && (added.is_err() || self.count == CLIENTS_MAX)
        {
            self.poller.change(listener, LISTENER, Interest::Nothing);
        }
        true
    }

    fn add_session(
        &mut self,
        stream: UnixStream,
        session: impl FnOnce(u32) -> Session,
        deadline: Duration,
    ) -> io::Result<()> {
        let stream = Stream::local(stream)?;
        let free = self.clients.iter().position(Option::is_none);
        let key = free.unwrap_or_else(|| {
            self.clients.push(None);
            self.clients.len() - 1
        });
        let number = key as u32;
        self.poller.add(&stream, number, Interest::Read)?;
        let session = session(number);
        self.clients[key] = Some(Client::new(stream, session, deadline));
        self.count += 1;
        self.list(number);
        Ok(())
    }

    fn remove(&mut self, key: u32) {
        let Some(client) = self.clients[key as usize].take() else { return };
        self.poller.remove(&client.stream);
        self.reads.remove(key);
        self.count -= 1;
        if let Some(listener) = self.listener.as_ref().filter(|_| self.rests_until.is_none()) {
            self.poller.change(listener, LISTENER, Interest::Read);
        }
    }

    /// Ends what takes too long.
    fn expire(&mut self, now: Duration) {
        if self.poll_timeout().is_none_or(|at| at > now) {
            return;
        }
        if self.rests_until.take_if(|until| *until <= now).is_some()
            && self.count < CLIENTS_MAX
            && let Some(listener) = &self.listener
        {
            self.poller.change(listener, LISTENER, Interest::Read);
        }
        for key in 0..self.clients.len() as u32 {
            if let Some(client) = &mut self.clients[key as usize]
                && client.session.is_negotiating()
                && client.deadline <= now
            {
                tracing::warn!("an NBD client was dropped: negotiation took too long");
                client.session.end(&mut self.requests);
                client.session.on_deaf(&mut self.requests);
                self.list(key);
            }
        }
    }
}
