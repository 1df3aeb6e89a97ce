//! Two providers under one clock, and the operations that the checks consist of.

use super::Pair;
use crate::{
    Access, CmEvent, Completion, CompletionQueueId, ConnectParameters, Opcode, Payload, PrivateData,
    Provider, QueuePairAttributes, QueuePairId, QueuePairState, ReceiveRequest, RemoteMemory, RequestId,
    SendOperation, SendRequest, Sge, WcStatus, WorkRequestId,
};
use core::time::Duration;
use nvmf_memory::Memory;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// The side that connects, as an index of [`Rig::sides`].
pub(super) const LEFT: usize = 0;
/// The side that listens.
pub(super) const RIGHT: usize = 1;

/// What no wait exceeds, on the pair's clock.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Turns after which nothing more is expected.
const QUIET: usize = 50;

/// Registered memory.
pub(super) struct Buffer {
    pub(super) memory: Memory,
    pub(super) region: crate::MemoryRegion,
}

impl Buffer {
    pub(super) fn sge(&self, offset: usize, len: u32) -> Sge {
        Sge { local_key: self.region.local_key, offset, len }
    }

    pub(super) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes);
        bytes
    }
}

/// Bytes that depend on their place and a seed, so that misplaced ones are found.
pub(super) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| seed.wrapping_add((at % 251) as u8) ^ ((at >> 8) as u8)).collect()
}

pub(super) fn message(payload: Payload<'_>) -> SendOperation<'_> {
    SendOperation::Send { payload, invalidate: None, solicited: false }
}

/// One provider, and what it has reported so far.
pub(super) struct Side<P> {
    pub(super) provider: P,
    pub(super) cq: CompletionQueueId,
    pub(super) done: VecDeque<Completion>,
    pub(super) events: VecDeque<CmEvent>,
    polled: Vec<Completion>,
}

impl<P: Provider> Side<P> {
    fn new(mut provider: P) -> Self {
        let cq = provider.create_completion_queue(4096).expect("a completion queue");
        let (done, events) = (VecDeque::new(), VecDeque::new());
        Self { provider, cq, done, events, polled: Vec::with_capacity(32) }
    }

    fn reap(&mut self) {
        loop {
            self.provider.poll_cq(self.cq, &mut self.polled);
            assert!(self.polled.capacity() == 32, "poll_cq grew what it was given");
            if self.polled.is_empty() {
                break;
            }
            self.done.extend(self.polled.drain(..));
        }
    }

    pub(super) fn poll(&mut self, now: Duration) {
        self.reap();
        while let Some(event) = self.provider.poll_cm(now) {
            let ended = matches!(event, CmEvent::Disconnected { .. });
            self.events.push_back(event);
            if ended {
                // By the contract all that was flushed is there now.
                self.reap();
            }
        }
    }

    pub(super) fn buffer(&mut self, len: usize, access: Access) -> Buffer {
        let memory = Memory::alloc(len).expect("memory for a test");
        let region = self.provider.register(&memory, access).expect("a registration");
        Buffer { memory, region }
    }

    /// Memory for receives and for the data of our own READs.
    pub(super) fn sink(&mut self, len: usize) -> Buffer {
        self.buffer(len, Access::LOCAL_WRITE)
    }

    /// Memory with these bytes in it.
    pub(super) fn source(&mut self, bytes: &[u8]) -> Buffer {
        let buffer = self.buffer(bytes.len(), Access::LOCAL_READ);
        buffer.memory.write(0, bytes);
        buffer
    }

    pub(super) fn queue_pair(&mut self, depth: u32) -> QueuePairId {
        let attributes = QueuePairAttributes {
            send_cq: self.cq,
            receive_cq: self.cq,
            shared_receive_queue: None,
            max_send: depth,
            max_receive: depth,
            max_exposed: depth,
        };
        self.provider.create_queue_pair(&attributes).expect("a queue pair")
    }

    /// Posts, signalled.
    pub(super) fn post(&mut self, qp: QueuePairId, id: u64, operation: SendOperation<'_>) {
        let request = SendRequest { id: WorkRequestId(id), operation, signaled: true };
        self.provider.post_send(qp, request).expect("a post to a queue with room");
    }

    pub(super) fn write(&mut self, qp: QueuePairId, id: u64, from: &[Sge], remote: RemoteMemory) {
        self.post(qp, id, SendOperation::Write { payload: Payload::Gather(from), remote });
    }

    pub(super) fn read(&mut self, qp: QueuePairId, id: u64, into: Sge, remote: RemoteMemory) {
        self.post(qp, id, SendOperation::Read { into, remote });
    }

    pub(super) fn receive(&mut self, qp: QueuePairId, id: u64, buffer: Sge) {
        let request = ReceiveRequest { id: WorkRequestId(id), buffer };
        self.provider.post_receive(qp, request).expect("a receive on a queue with room");
    }

    /// Takes the oldest completion of that name.
    pub(super) fn take(&mut self, id: u64) -> Option<Completion> {
        let at = self.done.iter().position(|completion| completion.id == WorkRequestId(id))?;
        self.done.remove(at)
    }

    /// Takes the first event that `wanted` makes something of.
    pub(super) fn take_event<T>(&mut self, wanted: impl Fn(&CmEvent) -> Option<T>) -> Option<T> {
        let (at, found) =
            self.events.iter().enumerate().find_map(|(at, event)| wanted(event).map(|found| (at, found)))?;
        self.events.remove(at);
        Some(found)
    }

    pub(super) fn take_disconnected(&mut self, qp: QueuePairId) -> Option<crate::DisconnectCause> {
        self.take_event(|event| match event {
            CmEvent::Disconnected { queue_pair, cause } if *queue_pair == qp => Some(*cause),
            _ => None,
        })
    }

    pub(super) fn take_request(&mut self) -> Option<RequestId> {
        self.take_event(|event| match event {
            CmEvent::ConnectRequest { request, .. } => Some(*request),
            _ => None,
        })
    }

    /// Takes the end of a set-up: whether it was established.
    pub(super) fn take_outcome(&mut self, qp: QueuePairId) -> Option<bool> {
        self.take_event(|event| match event {
            CmEvent::Established { queue_pair, .. } if *queue_pair == qp => Some(true),
            CmEvent::ConnectFailed { queue_pair, .. } if *queue_pair == qp => Some(false),
            _ => None,
        })
    }
}

/// A connection: the queue pair on each side.
pub(super) type Link = [QueuePairId; 2];

/// The two sides and their clock.
pub(super) struct Rig<P> {
    pub(super) sides: [Side<P>; 2],
    pub(super) now: Duration,
    tick: Box<dyn FnMut() -> Duration>,
    address: SocketAddr,
    listening: Option<SocketAddr>,
}

impl<P: Provider> Rig<P> {
    pub(super) fn new(pair: Pair<P>) -> Self {
        let Pair { left, right, address, mut tick } = pair;
        let now = tick();
        Self { sides: [Side::new(left), Side::new(right)], now, tick, address, listening: None }
    }

    /// Where a listener may be, with port 0.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn turn(&mut self) {
        self.now = (self.tick)();
        for side in &mut self.sides {
            side.provider.flush();
            side.poll(self.now);
        }
    }

    /// Turns until `found` finds something; bounded.
    pub(super) fn until<T>(&mut self, what: &str, mut found: impl FnMut(&mut Self) -> Option<T>) -> T {
        let deadline = self.now + TIMEOUT;
        loop {
            if let Some(it) = found(self) {
                return it;
            }
            assert!(self.now < deadline, "waited in vain for {what}");
            self.turn();
        }
    }

    /// Turns long enough for whatever might still come.
    pub(super) fn settle(&mut self) {
        (0..QUIET).for_each(|_| self.turn());
    }

    /// Lets only one side move.
    pub(super) fn settle_one(&mut self, side: usize) {
        for _ in 0..QUIET {
            self.now = (self.tick)();
            self.sides[side].provider.flush();
            self.sides[side].poll(self.now);
        }
    }

    pub(super) fn completion(&mut self, side: usize, id: u64) -> Completion {
        self.until(&format!("completion {id}"), |rig| rig.sides[side].take(id))
    }

    pub(super) fn success(&mut self, side: usize, id: u64, opcode: Opcode) -> Completion {
        let completion = self.completion(side, id);
        assert_eq!(completion.status, WcStatus::Success, "{opcode:?} {id}");
        assert_eq!(completion.opcode, opcode);
        completion
    }

    pub(super) fn disconnected(&mut self, side: usize, qp: QueuePairId) -> crate::DisconnectCause {
        self.until("a disconnection", |rig| rig.sides[side].take_disconnected(qp))
    }

    /// Where `RIGHT` listens.
    pub(super) fn listening(&mut self) -> SocketAddr {
        if let Some(address) = self.listening {
            return address;
        }
        let (_, address) = self.sides[RIGHT].provider.listen(self.address, 64).expect("a free port");
        self.listening = Some(address);
        address
    }

    pub(super) fn parameters(&self, private_data: &[u8]) -> ConnectParameters {
        let depth = self.sides.iter().map(|side| side.provider.capabilities().max_read_depth).min();
        let depth = depth.unwrap_or(1).min(8);
        ConnectParameters {
            private_data: PrivateData::new(private_data).expect("private data of a legal length"),
            responder_resources: depth,
            initiator_depth: depth,
            timeout: Duration::from_secs(3),
        }
    }

    /// Starts to connect; the request has arrived when this returns.
    pub(super) fn request(&mut self, qp: QueuePairId, parameters: &ConnectParameters) -> RequestId {
        let address = self.listening();
        let now = self.now;
        self.sides[LEFT].provider.connect(now, qp, address, None, parameters).expect("a start");
        self.until("a connection request", |rig| rig.sides[RIGHT].take_request())
    }

    /// Connects two given idle queue pairs.
    pub(super) fn join(&mut self, link: Link) {
        let parameters = self.parameters(&[]);
        let request = self.request(link[LEFT], &parameters);
        let now = self.now;
        self.sides[RIGHT].provider.accept(now, request, link[RIGHT], &parameters).expect("an acceptance");
        for side in [LEFT, RIGHT] {
            let outcome = self.until("the set-up", |rig| rig.sides[side].take_outcome(link[side]));
            assert!(outcome, "the set-up failed");
            assert_eq!(self.sides[side].provider.state(link[side]), QueuePairState::Ready);
        }
    }

    /// A connection with queues of that depth.
    pub(super) fn link(&mut self, depth: u32) -> Link {
        let link = [self.sides[LEFT].queue_pair(depth), self.sides[RIGHT].queue_pair(depth)];
        self.join(link);
        link
    }

    /// Asserts that a connection works both ways.
    pub(super) fn works(&mut self, link: Link) {
        for from in [LEFT, RIGHT] {
            self.says(from, link);
        }
    }

    /// One side sends a message, and the other receives it.
    pub(super) fn says(&mut self, from: usize, link: Link) {
        let to = 1 - from;
        let buffer = self.sides[to].sink(64);
        self.sides[to].receive(link[to], 9_000_001, buffer.sge(0, 64));
        self.sides[from].post(link[from], 9_000_002, message(Payload::Inline(b"alive")));
        self.success(from, 9_000_002, Opcode::Send);
        let completion = self.success(to, 9_000_001, Opcode::Receive);
        assert_eq!((completion.byte_len, buffer.bytes(0, 5)), (5, b"alive".to_vec()));
        self.sides[to].provider.deregister(buffer.region.local_key);
    }
}
