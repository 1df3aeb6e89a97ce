//! Any provider, with the last posts, completions and events on record.

use crate::{
    Access, Capabilities, CmEvent, Completion, CompletionQueueId, ConnectError, ConnectParameters,
    ListenError, ListenerId, LocalKey, MemoryRegion, Payload, PostError, PrivateData, Provider,
    QueuePairAttributes, QueuePairId, QueuePairState, ReceiveRequest, RegisterError, RemoteKey, RemoteMemory,
    RequestId, ResourceError, SendOperation, SendRequest, Sge, SharedReceiveQueueId, Stranger, WakeOn,
    WorkRequestId,
};
use core::fmt;
use core::time::Duration;
use nvmf_memory::Memory;
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happening {
    /// A receive was posted, or refused.
    PostReceive {
        /// To its own queue; `None` for a shared one.
        queue_pair: Option<QueuePairId>,
        /// Its name.
        id: WorkRequestId,
        /// Bytes of room.
        len: u32,
        /// What the provider returned.
        result: Result<(), PostError>,
    },
    /// A send work request was posted, or refused.
    PostSend {
        /// Where.
        queue_pair: QueuePairId,
        /// Its name.
        id: WorkRequestId,
        /// The operation, as the standards name it.
        operation: &'static str,
        /// Bytes.
        len: u64,
        /// The key of the peer's, or of ours for an invalidation.
        key: Option<RemoteKey>,
        /// What the provider returned.
        result: Result<(), PostError>,
    },
    /// The doorbell rang.
    Flush,
    /// A completion was polled.
    Completion(Completion),
    /// A connection event was polled, a call about connections was made, or memory was exposed; as text.
    Connection(String),
}

impl fmt::Display for Happening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PostReceive { queue_pair, id, len, result } => {
                write!(f, "post RECV {id:?} of {len} B on {queue_pair:?}: {result:?}")
            }
            Self::PostSend { queue_pair, id, operation, len, key, result } => {
                write!(f, "post {operation} {id:?} of {len} B on {queue_pair:?}, key {key:x?}: {result:?}")
            }
            Self::Flush => f.write_str("flush"),
            Self::Completion(it) => {
                write!(f, "done {:?} {:?} on {:?}: ", it.opcode, it.id, it.queue_pair)?;
                write!(f, "{}, {} B, invalidated {:x?}", it.status, it.byte_len, it.invalidated)
            }
            Self::Connection(text) => f.write_str(text),
        }
    }
}

/// A provider with a memory of what went through it, for the dump of a failed test.
#[derive(Debug)]
pub struct Trace<P> {
    inner: P,
    now: Duration,
    bound: usize,
    forgotten: u64,
    happenings: VecDeque<(Duration, Happening)>,
}

impl<P: Provider> Trace<P> {
    /// Wraps a provider; remembers the last `bound` happenings.
    #[must_use]
    pub fn new(inner: P, bound: usize) -> Self {
        Self { inner, now: Duration::ZERO, bound, forgotten: 0, happenings: VecDeque::with_capacity(bound) }
    }

    /// What is remembered, oldest first, with the last known time at each.
    pub fn happenings(&self) -> impl Iterator<Item = &(Duration, Happening)> {
        self.happenings.iter()
    }

    /// The provider within.
    pub fn inner(&mut self) -> &mut P {
        &mut self.inner
    }

    fn note(&mut self, happening: Happening) {
        if self.happenings.len() >= self.bound {
            self.happenings.pop_front();
            self.forgotten += 1;
        }
        if self.bound > 0 {
            self.happenings.push_back((self.now, happening));
        }
    }

    fn tell(&mut self, text: String) {
        self.note(Happening::Connection(text));
    }
}

/// One line for each happening.
impl<P> fmt::Display for Trace<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.forgotten > 0 {
            writeln!(f, "({} earlier happenings forgotten)", self.forgotten)?;
        }
        self.happenings.iter().try_for_each(|(at, happening)| writeln!(f, "{at:?} {happening}"))
    }
}

fn payload_len(payload: &Payload<'_>) -> u64 {
    match payload {
        Payload::Inline(bytes) => bytes.len() as u64,
        Payload::Gather(elements) => elements.iter().map(|sge| u64::from(sge.len)).sum(),
        Payload::Borrowed { spare, .. } => spare.len.into(),
    }
}

fn describe(operation: &SendOperation<'_>) -> (&'static str, u64, Option<RemoteKey>) {
    match operation {
        SendOperation::Send { payload, invalidate, .. } => {
            let name = if invalidate.is_some() { "SEND with invalidate" } else { "SEND" };
            (name, payload_len(payload), *invalidate)
        }
        SendOperation::Write { payload, remote } => ("WRITE", payload_len(payload), Some(remote.key)),
        SendOperation::Read { into, remote } => ("READ", into.len.into(), Some(remote.key)),
        SendOperation::LocalInvalidate { key } => ("local invalidate", 0, Some(*key)),
    }
}

impl<P: Provider> Provider for Trace<P> {
    type Detached = P::Detached;

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn register(&mut self, memory: &Memory, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.inner.register(memory, access)
    }

    fn deregister(&mut self, key: LocalKey) {
        self.inner.deregister(key);
    }

    fn expose(&mut self, qp: QueuePairId, range: Sge, access: Access) -> Result<RemoteMemory, RegisterError> {
        let result = self.inner.expose(qp, range, access);
        self.tell(format!("expose {} B of {:?} on {qp:?}: {result:?}", range.len, range.local_key));
        result
    }

    fn create_completion_queue(&mut self, capacity: u32) -> Result<CompletionQueueId, ResourceError> {
        self.inner.create_completion_queue(capacity)
    }

    fn create_shared_receive_queue(&mut self, capacity: u32) -> Result<SharedReceiveQueueId, ResourceError> {
        self.inner.create_shared_receive_queue(capacity)
    }

    fn create_queue_pair(&mut self, attributes: &QueuePairAttributes) -> Result<QueuePairId, ResourceError> {
        self.inner.create_queue_pair(attributes)
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) {
        self.tell(format!("destroy {queue_pair:?}"));
        self.inner.destroy_queue_pair(queue_pair);
    }

    fn state(&self, queue_pair: QueuePairId) -> QueuePairState {
        self.inner.state(queue_pair)
    }

    fn listen(&mut self, address: SocketAddr, backlog: u32) -> Result<(ListenerId, SocketAddr), ListenError> {
        let result = self.inner.listen(address, backlog);
        self.tell(format!("listen on {address}: {result:?}"));
        result
    }

    fn listen_on(&mut self, socket: TcpListener) -> Result<(ListenerId, SocketAddr), ListenError> {
        let result = self.inner.listen_on(socket);
        self.tell(format!("listen on a socket: {result:?}"));
        result
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.tell(format!("unlisten {listener:?}"));
        self.inner.unlisten(listener);
    }

    fn connect(
        &mut self,
        now: Duration,
        queue_pair: QueuePairId,
        address: SocketAddr,
        source: Option<SocketAddr>,
        parameters: &ConnectParameters,
    ) -> Result<(), ConnectError> {
        self.now = now;
        let result = self.inner.connect(now, queue_pair, address, source, parameters);
        self.tell(format!("connect {queue_pair:?} to {address}: {result:?}"));
        result
    }

    fn accept(
        &mut self,
        now: Duration,
        request: RequestId,
        queue_pair: QueuePairId,
        parameters: &ConnectParameters,
    ) -> Result<(), ConnectError> {
        self.now = now;
        let result = self.inner.accept(now, request, queue_pair, parameters);
        self.tell(format!("accept {request:?} on {queue_pair:?}: {result:?}"));
        result
    }

    fn reject(&mut self, request: RequestId, private_data: &PrivateData) {
        self.tell(format!("reject {request:?}"));
        self.inner.reject(request, private_data);
    }

    fn detach(&mut self, request: RequestId) -> Option<Self::Detached> {
        self.tell(format!("detach {request:?}"));
        self.inner.detach(request)
    }

    fn adopt(&mut self, now: Duration, detached: Self::Detached) -> RequestId {
        self.now = now;
        let request = self.inner.adopt(now, detached);
        self.tell(format!("adopt {request:?}"));
        request
    }

    fn disconnect(&mut self, queue_pair: QueuePairId) {
        self.tell(format!("disconnect {queue_pair:?}"));
        self.inner.disconnect(queue_pair);
    }

    fn post_receive(&mut self, queue_pair: QueuePairId, request: ReceiveRequest) -> Result<(), PostError> {
        let result = self.inner.post_receive(queue_pair, request);
        let (id, len) = (request.id, request.buffer.len);
        self.note(Happening::PostReceive { queue_pair: Some(queue_pair), id, len, result });
        result
    }

    fn post_shared_receive(
        &mut self,
        queue: SharedReceiveQueueId,
        request: ReceiveRequest,
    ) -> Result<(), PostError> {
        let result = self.inner.post_shared_receive(queue, request);
        let (id, len) = (request.id, request.buffer.len);
        self.note(Happening::PostReceive { queue_pair: None, id, len, result });
        result
    }

    fn post_send(&mut self, queue_pair: QueuePairId, request: SendRequest<'_>) -> Result<(), PostError> {
        let (operation, len, key) = describe(&request.operation);
        let id = request.id;
        let result = self.inner.post_send(queue_pair, request);
        self.note(Happening::PostSend { queue_pair, id, operation, len, key, result });
        result
    }

    fn flush(&mut self) {
        // Idle doorbells would push out what matters.
        if !matches!(self.happenings.back(), Some((_, Happening::Flush))) {
            self.note(Happening::Flush);
        }
        self.inner.flush();
    }

    fn poll_cq(&mut self, queue: CompletionQueueId, completions: &mut Vec<Completion>) {
        let before = completions.len();
        self.inner.poll_cq(queue, completions);
        completions[before..].iter().for_each(|&completion| self.note(Happening::Completion(completion)));
    }

    fn poll_cm(&mut self, now: Duration) -> Option<CmEvent> {
        self.now = now;
        let event = self.inner.poll_cm(now)?;
        self.tell(format!("event {event:?}"));
        Some(event)
    }

    fn next_stranger(&mut self) -> Option<Stranger> {
        self.inner.next_stranger()
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.inner.poll_timeout()
    }

    fn arm(&mut self, wake_on: WakeOn) -> bool {
        self.inner.arm(wake_on)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }
}
