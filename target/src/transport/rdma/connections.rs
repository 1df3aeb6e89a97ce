//! Connections: requested, accepted or handed over, established, closed.

use super::listener::{Offer, private_data, rejection};
use super::wire::Capsule;
use super::{QueuePair, Rdma, register};
use crate::exec::place::Place;
use crate::exec::queue::{slots, transfers};
use crate::exec::resources::SetUpError;
use crate::exec::transport::{Arrival, Event, Fault, ListenAt, Part, Piece, Route, Terms, Transport};
use crate::limits::{ACCEPT_TIMEOUT, BACKLOG};
use crate::message::WorkerId;
use crate::settings::Settings;
use crate::transport::strangers;
use core::time::Duration;
use nvme_proto::rdma::{RejectStatus, Request};
use nvmf_block::BorrowedRead;
use nvmf_config::AddressList;
use nvmf_memory::{BufferIndex, Memory};
use nvmf_rdma::{
    CmEvent, ConnectParameters, DisconnectCause, ListenError, LocalKey, PostError, Provider,
    QueuePairAttributes, RequestId, WakeOn,
};
use nvmf_subsystem::limits::{CQE_LEN, SQE_LEN};
use nvmf_subsystem::{Qid, TransportType};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

/// A connection request, and what it says.
#[derive(Debug)]
pub struct Incoming {
    request: RequestId,
    offer: Offer,
}

/// One on its way to another worker.
#[derive(Debug)]
pub struct Detached<D> {
    request: D,
    offer: Box<Offer>,
}

impl<P: Provider> Rdma<P> {
    fn queue_of(&self, event: nvmf_rdma::QueuePairId) -> Option<u32> {
        self.by_qp.get(&event).copied()
    }

    fn on_cm_event(&mut self, event: CmEvent) -> Option<Event<Incoming>> {
        Some(match event {
            CmEvent::ConnectRequest {
                listener,
                request,
                peer,
                local,
                private_data,
                peer_responder_resources,
                ..
            } => {
                let port = self.listeners.iter().find(|(id, _)| *id == listener).map_or(0, |&(_, port)| port);
                if self.allowed.get(&port).is_some_and(|allowed| !allowed.has(peer.ip())) {
                    self.provider.reject(request, &rejection(RejectStatus::NO_RESOURCES));
                    return Some(Event::NotAllowed { peer, local });
                }
                let local = local.ip().to_canonical();
                let offer = Offer { port, peer, local, private_data, peer_responder_resources };
                Event::Incoming(Incoming { request, offer })
            }
            CmEvent::Established { queue_pair, .. } => Event::Established(self.queue_of(queue_pair)?),
            CmEvent::ConnectFailed { queue_pair, failure } => {
                Event::Failed(self.queue_of(queue_pair)?, failure.to_string())
            }
            CmEvent::Disconnected { queue_pair, cause } => Event::Disconnected {
                queue: self.queue_of(queue_pair)?,
                fault: matches!(cause, DisconnectCause::PeerViolation(_)).then_some(Fault::Violation),
                cause: cause.to_string(),
            },
            CmEvent::DeviceRemoved => Event::DeviceRemoved,
        })
    }

    /// Receives that a queue has for itself.
    fn own_receives(&self, entries: u16, admin: bool) -> u16 {
        if admin { slots(entries) } else { slots(entries).min(self.lending.own_max) }
    }

    /// Receives for I/O queues that come.
    fn io_receives_free(&self) -> usize {
        self.io_receives.available() - self.lending.left as usize
    }

    /// A queue pair with its receives posted; `None` if the provider has none left.
    fn open(&mut self, queue: u32, terms: &Terms) -> Option<()> {
        let (count, admin) = (slots(terms.entries), is_admin(terms));
        let own = self.own_receives(terms.entries, admin);
        let id = self.provider.create_queue_pair(&QueuePairAttributes {
            send_cq: self.cq,
            receive_cq: self.cq,
            shared_receive_queue: None,
            max_send: u32::from(count) + u32::from(transfers(terms.entries)),
            max_receive: count.into(),
            max_exposed: 0,
        });
        let id = id.ok()?;
        let pool = self.receives(admin);
        let mut receive = |slot| (slot < own).then(|| pool.take().expect("the queue fits"));
        self.queues[queue as usize] = Some(QueuePair {
            id,
            admin,
            receives: (0..count).map(&mut receive).collect(),
            vacant: (own..count).rev().collect(),
            own,
            borrowed: 0,
            posted: 0,
            refused: false,
            destroyed: false,
        });
        self.by_qp.insert(id, queue);
        self.lending.shares.add(queue, terms.peer.ip());
        for slot in 0..own {
            if let Err(error) = self.post_receive(queue, slot) {
                tracing::error!(%error, "the provider does not take a receive");
                self.destroy(queue);
                self.forget(queue);
                return None;
            }
        }
        Some(())
    }
}

fn is_admin(terms: &Terms) -> bool {
    terms.qid == Some(Qid(0))
}

impl<P: Provider> Transport for Rdma<P> {
    type Key = LocalKey;
    type Capsule = Capsule;
    type Incoming = Incoming;
    type Detached = Detached<P::Detached>;
    type Refusal = RejectStatus;
    type Error = PostError;

    const NO_ROOM: RejectStatus = RejectStatus::NO_RESOURCES;
    const TYPE: TransportType = TransportType::RDMA;

    fn connection_bytes(entries: u16) -> usize {
        let receive = size_of::<Option<BufferIndex>>() + size_of::<u16>();
        size_of::<QueuePair>() + usize::from(slots(entries)) * receive
    }

    fn register(&mut self, memory: &Memory) -> Result<LocalKey, SetUpError> {
        register(&mut self.provider, memory)
    }

    fn listen(&mut self, at: ListenAt, port: u16) -> Result<SocketAddr, ListenError> {
        let (listener, address) = match at {
            ListenAt::Address(address) => self.provider.listen(address, BACKLOG)?,
            ListenAt::Socket(socket) => self.provider.listen_on(socket)?,
        };
        self.listeners.push((listener, port));
        Ok(address)
    }

    fn allow(&mut self, port: u16, from: Option<AddressList>) {
        match from {
            Some(list) => self.allowed.insert(port, list),
            None => self.allowed.remove(&port),
        };
    }

    fn stop_listening_on(&mut self, port: u16) {
        for (listener, _) in self.listeners.extract_if(.., |(_, of)| *of == port) {
            self.provider.unlisten(listener);
        }
        self.allowed.remove(&port);
    }

    fn stop_listening(&mut self) {
        for (listener, _) in self.listeners.drain(..) {
            self.provider.unlisten(listener);
        }
    }

    fn poll_event(&mut self, now: Duration) -> Option<Event<Incoming>> {
        loop {
            let Some(event) = self.provider.poll_cm(now) else {
                let stranger = self.provider.next_stranger()?;
                let cause = strangers::cause(stranger.cause, &stranger.bytes, TransportType::RDMA);
                return Some(Event::Refused { peer: stranger.peer, cause, at_tls: false });
            };
            if let Some(event) = self.on_cm_event(event) {
                return Some(event);
            }
        }
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.provider.poll_timeout()
    }

    /// An Admin queue goes where the fewest queues are; I/O queues go round, so that those of one host spread out.
    fn route(&mut self, incoming: &Incoming, route: Route<'_>) -> Result<WorkerId, RejectStatus> {
        let Ok(Request { qid, cntlid, .. }) = Request::parse(incoming.offer.private_data.as_bytes()) else {
            // Rejected here.
            return Ok(route.here);
        };
        if qid.0 == 0 {
            return Ok(route.load.least());
        }
        let known = || route.load.has_controller(cntlid, incoming.offer.peer.ip());
        if qid.0 <= route.settings.io_queues && !known() {
            return Err(RejectStatus::INVALID_CNTLID);
        }
        let next = route.load.after(self.last.unwrap_or(route.here));
        self.last = Some(next);
        Ok(next)
    }

    fn terms(&self, incoming: &Incoming, settings: &Settings) -> Result<Terms, RejectStatus> {
        let read_depth = self.provider.capabilities().max_read_depth;
        incoming.offer.terms(settings.queue_entries, settings.io_queues, read_depth)
    }

    fn peer(incoming: &Incoming) -> SocketAddr {
        incoming.offer.peer
    }

    fn has_room(&self, terms: &Terms) -> bool {
        let admin = is_admin(terms);
        let free = if admin { self.admin_receives.available() } else { self.io_receives_free() };
        free >= usize::from(self.own_receives(terms.entries, admin))
    }

    fn io_queues_free(&self, entries: u16) -> usize {
        self.io_receives_free() / usize::from(self.own_receives(entries, false))
    }

    fn accept(
        &mut self,
        now: Duration,
        incoming: Incoming,
        queue: u32,
        terms: &Terms,
    ) -> Result<bool, (Incoming, RejectStatus)> {
        if self.open(queue, terms).is_none() {
            return Err((incoming, RejectStatus::NO_RESOURCES));
        }
        let parameters = ConnectParameters {
            private_data: private_data(terms),
            responder_resources: 0,
            initiator_depth: terms.pulls,
            timeout: ACCEPT_TIMEOUT,
        };
        let id = self.queue_pair(queue).expect("it was opened").id;
        let accepted = self.provider.accept(now, incoming.request, id, &parameters).is_ok();
        if !accepted {
            self.destroy(queue);
            self.forget(queue);
        }
        Ok(accepted)
    }

    fn refuse(&mut self, incoming: Incoming, refusal: RejectStatus) {
        self.provider.reject(incoming.request, &rejection(refusal));
    }

    fn detach(&mut self, incoming: Incoming) -> Option<Self::Detached> {
        let request = self.provider.detach(incoming.request)?;
        Some(Detached { request, offer: Box::new(incoming.offer) })
    }

    fn adopt(&mut self, now: Duration, detached: Self::Detached) -> Incoming {
        Incoming { request: self.provider.adopt(now, detached.request), offer: *detached.offer }
    }

    /// The connection request said it already.
    fn resize(&mut self, _queue: u32, _entries: u16, _admin: bool) {}

    fn disconnect(&mut self, queue: u32) {
        if let Some(queue_pair) = self.queue_pair(queue) {
            self.provider.disconnect(queue_pair.id);
        }
    }

    fn destroy(&mut self, queue: u32) {
        let Some(queue_pair) = self.queues.get_mut(queue as usize).and_then(Option::as_mut) else { return };
        if !core::mem::replace(&mut queue_pair.destroyed, true) {
            self.by_qp.remove(&queue_pair.id);
            self.provider.destroy_queue_pair(queue_pair.id);
        }
    }

    fn forget(&mut self, queue: u32) {
        let Some(queue_pair) = self.queues.get_mut(queue as usize).and_then(Option::take) else { return };
        let pool = self.receives(queue_pair.admin);
        queue_pair.receives.iter().flatten().for_each(|&slot| pool.put(slot));
        self.lending.forget(queue, queue_pair.borrowed);
    }

    /// Whether what it sends may wait for a receive.
    fn awaits_us(&self, queue: u32) -> bool {
        self.queue_pair(queue).is_some_and(|queue_pair| queue_pair.posted == 0)
    }

    fn poll(&mut self) {
        self.poll_completions();
    }

    fn next_arrival(&mut self) -> Option<Arrival<Capsule>> {
        self.take_completion()
    }

    fn entry(&self, capsule: &Capsule) -> [u8; SQE_LEN] {
        self.read_entry(capsule)
    }

    fn capsule_data(&self, capsule: &Capsule, offset: u32) -> (&Memory, usize) {
        self.in_capsule(capsule, offset)
    }

    fn capsule_block(&self, capsule: &Capsule, offset: u32, len: u32) -> nvmf_block::Buffer {
        self.in_capsule_block(capsule, offset, len)
    }

    fn give_back(&mut self, queue: u32, capsule: Capsule) -> Result<(), PostError> {
        self.give_receive_back(queue, &capsule)
    }

    fn pull(&mut self, place: Place, piece: Piece, into: Part<'_, LocalKey>) -> Result<(), PostError> {
        self.read(place, piece, into)
    }

    fn push(
        &mut self,
        place: Place,
        piece: Piece,
        from: Part<'_, LocalKey>,
        borrowed: Option<BorrowedRead<'_>>,
        signaled: bool,
    ) -> Result<(), PostError> {
        self.write(place, piece, from, borrowed, signaled)
    }

    fn respond(
        &mut self,
        place: Place,
        cqe: &[u8; CQE_LEN],
        invalidate: Option<u32>,
    ) -> Result<(), PostError> {
        self.send(place, cqe, invalidate)
    }

    fn flush(&mut self) {
        self.lend_again();
        self.provider.flush();
    }

    fn arm(&mut self, wake_on: WakeOn) -> bool {
        self.provider.arm(wake_on)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.provider.fd()
    }

    fn packet_len(&self) -> Option<u32> {
        self.provider.capabilities().packet_len
    }
}
