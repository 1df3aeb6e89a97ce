//! NVMe/TCP as a worker uses it.

use super::Tcp;
use super::capsules::Capsule;
use super::connection::Connection;
use super::establish::{Detached, Incoming, Refusal};
use crate::exec::place::Place;
use crate::exec::resources::SetUpError;
use crate::exec::transport::{Arrival, Event, ListenAt, Part, Piece, Route, Terms, Transport};
use crate::limits::{ADMIN_ENTRIES_MAX, BACKLOG};
use crate::message::WorkerId;
use crate::settings::Settings;
use core::time::Duration;
use nvmf_block::BorrowedRead;
use nvmf_config::AddressList;
use nvmf_memory::Memory;
use nvmf_rdma::{ListenError, WakeOn};
use nvmf_subsystem::TransportType;
use nvmf_subsystem::limits::{CQE_LEN, SQE_LEN};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use thiserror::Error;

/// A transfer that NVMe/TCP cannot do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("data of {len} bytes at {offset}: NVMe/TCP moves whole dwords")]
pub struct NotDwords {
    offset: u32,
    len: u32,
}

impl NotDwords {
    fn unless(done: bool, piece: Piece) -> Result<(), Self> {
        if done { Ok(()) } else { Err(Self { offset: piece.offset, len: piece.len }) }
    }
}

impl Transport for Tcp {
    type Key = ();
    type Capsule = Capsule;
    type Incoming = Incoming;
    type Detached = Detached;
    type Refusal = Refusal;
    type Error = NotDwords;

    const NO_ROOM: Refusal = Refusal::NoRoom;
    const TYPE: TransportType = TransportType::TCP;

    fn connection_bytes(entries: u16) -> usize {
        Connection::bytes(entries)
    }

    fn register(&mut self, _memory: &Memory) -> Result<(), SetUpError> {
        Ok(())
    }

    fn listen(&mut self, at: ListenAt, port: u16) -> Result<SocketAddr, ListenError> {
        let address = at.address();
        let socket = match at {
            ListenAt::Address(address) => nvmf_stream::listen(address, BACKLOG),
            ListenAt::Socket(socket) => Ok(socket),
        };
        socket.and_then(|it| self.open_listener(it, port)).map_err(|source| ListenError { address, source })
    }

    fn allow(&mut self, port: u16, from: Option<AddressList>) {
        match from {
            Some(list) => self.allowed.insert(port, list),
            None => self.allowed.remove(&port),
        };
    }

    fn stop_listening_on(&mut self, port: u16) {
        self.close_listeners(Some(port));
    }

    fn stop_listening(&mut self) {
        self.close_listeners(None);
    }

    fn poll_event(&mut self, now: Duration) -> Option<Event<Incoming>> {
        self.expire(now);
        self.check_capsules(now);
        self.events.pop_front()
    }

    fn poll_timeout(&self) -> Option<Duration> {
        let capsules = (self.capsules.out() > 0).then(|| self.capsule_check.at());
        self.deadlines.next().into_iter().chain(capsules).min()
    }

    /// Which queue it is, only its Connect says.
    fn route(&mut self, _incoming: &Incoming, route: Route<'_>) -> Result<WorkerId, Refusal> {
        Ok(route.load.least())
    }

    fn peer(incoming: &Incoming) -> SocketAddr {
        incoming.peer()
    }

    fn terms(&self, incoming: &Incoming, settings: &Settings) -> Result<Terms, Refusal> {
        Ok(incoming.terms(settings.queue_entries.max(ADMIN_ENTRIES_MAX)))
    }

    fn has_room(&self, _terms: &Terms) -> bool {
        true
    }

    fn io_queues_free(&self, _entries: u16) -> usize {
        usize::MAX
    }

    fn accept(
        &mut self,
        _now: Duration,
        incoming: Incoming,
        queue: u32,
        _terms: &Terms,
    ) -> Result<bool, (Incoming, Refusal)> {
        Ok(self.open_queue(&incoming, queue))
    }

    fn refuse(&mut self, incoming: Incoming, _refusal: Refusal) {
        self.refuse_incoming(&incoming);
    }

    fn detach(&mut self, incoming: Incoming) -> Option<Detached> {
        self.detach_incoming(&incoming)
    }

    fn adopt(&mut self, _now: Duration, detached: Detached) -> Incoming {
        self.adopt_detached(detached)
    }

    fn resize(&mut self, queue: u32, entries: u16, admin: bool) {
        let in_capsule_len = (!admin).then_some(self.in_capsule_len);
        if let Some(connection) = self.connection(queue) {
            connection.resize(entries, in_capsule_len);
        }
    }

    fn disconnect(&mut self, queue: u32) {
        self.start_disconnect(queue);
    }

    fn destroy(&mut self, queue: u32) {
        if let Some(connection) = self.take_connection(queue) {
            self.poller.remove(&connection.stream);
        }
        self.arrivals.retain(|&(of, _)| of != queue);
        self.events.retain(|event| match event {
            Event::Established(of) | Event::Failed(of, _) | Event::Disconnected { queue: of, .. } => {
                *of != queue
            }
            Event::Incoming(_)
            | Event::Refused { .. }
            | Event::NotAllowed { .. }
            | Event::Shortage(_)
            | Event::Yielded { .. }
            | Event::DeviceRemoved => true,
        });
    }

    fn forget(&mut self, queue: u32) {
        self.capsules.forget(queue);
    }

    fn awaits_us(&self, queue: u32) -> bool {
        let connection = self.connections.get(queue as usize).and_then(Option::as_ref);
        connection.is_some_and(|connection| connection.awaits_slot())
    }

    fn poll(&mut self) {
        self.progress();
    }

    fn next_arrival(&mut self) -> Option<Arrival<Capsule>> {
        self.arrivals.pop_front().map(|(_, arrival)| arrival)
    }

    fn entry(&self, capsule: &Capsule) -> [u8; SQE_LEN] {
        capsule.sqe
    }

    fn capsule_data(&self, capsule: &Capsule, offset: u32) -> (&Memory, usize) {
        let slot = capsule.slot.expect("it has data");
        let (memory, at) = self.capsules.memory(slot);
        (memory, at + offset as usize)
    }

    fn capsule_block(&self, capsule: &Capsule, offset: u32, len: u32) -> nvmf_block::Buffer {
        self.capsules.block(capsule.slot.expect("it has data"), offset, len)
    }

    fn give_back(&mut self, _queue: u32, capsule: Capsule) -> Result<(), NotDwords> {
        if let Some(slot) = capsule.slot {
            self.capsules.put(slot);
        }
        Ok(())
    }

    fn pull(&mut self, place: Place, piece: Piece, into: Part<'_, ()>) -> Result<(), NotDwords> {
        let Some(connection) = self.connection(place.queue()) else { return Ok(()) };
        let begun = connection.pull(place, piece, into.memory, into.offset);
        self.list_to_send(place.queue());
        NotDwords::unless(begun, piece)
    }

    fn push(
        &mut self,
        place: Place,
        piece: Piece,
        from: Part<'_, ()>,
        borrowed: Option<BorrowedRead<'_>>,
        signaled: bool,
    ) -> Result<(), NotDwords> {
        let Some(connection) = self.connection(place.queue()) else { return Ok(()) };
        let borrowed = borrowed.map(|borrowed| (borrowed.memory, borrowed.offset));
        let begun = connection.push(place, piece, (from.memory, from.offset), borrowed, signaled);
        self.list_to_send(place.queue());
        NotDwords::unless(begun, piece)
    }

    fn respond(
        &mut self,
        place: Place,
        cqe: &[u8; CQE_LEN],
        _invalidate: Option<u32>,
    ) -> Result<(), NotDwords> {
        if let Some(connection) = self.connection(place.queue()) {
            connection.respond(place, cqe);
            self.list_to_send(place.queue());
        }
        Ok(())
    }

    fn flush(&mut self) {
        self.send_listed();
    }

    fn expect_nothing(&mut self) {
        self.reads.skip_next_turn();
    }

    fn arm(&mut self, _: WakeOn) -> bool {
        self.reads.on_sleep();
        let sendable = self.sends.keys().any(|queue| self.can_send(queue));
        self.events.is_empty() && self.arrivals.is_empty() && !sendable && !self.can_resume()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.poller.fd())
    }

    fn packet_len(&self) -> Option<u32> {
        Some(crate::limits::TCP_PACKET_LEN)
    }
}
