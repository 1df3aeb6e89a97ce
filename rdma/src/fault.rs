//! Any provider, with seeded faults that the contract allows.

use crate::rng::Rng;
use crate::{
    Access, Capabilities, CmEvent, Completion, CompletionQueueId, ConnectError, ConnectParameters,
    DisconnectCause, ListenError, ListenerId, LocalKey, MemoryRegion, PostError, PrivateData, Provider,
    QueuePairAttributes, QueuePairId, QueuePairState, ReceiveRequest, RegisterError, RemoteMemory, RequestId,
    ResourceError, SendRequest, Sge, SharedReceiveQueueId, Stranger, WakeOn,
};
use core::time::Duration;
use nvmf_memory::Memory;
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;

/// How often each fault happens, in a million occasions. All zero: no fault, and nothing is changed.
///
/// A reliable transport loses, repeats and reorders nothing, so none of that is here: to a connection the worst that
/// can happen is to be slow, and to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultOptions {
    /// Of all that follows.
    pub seed: u64,
    /// A flush ends one of the established connections, as if it broke.
    pub drop_connection: u32,
    /// A poll of a completion queue returns nothing, for up to `hold_polls_max` polls.
    pub hold_completions: u32,
    /// An event is seen only after up to `hold_polls_max` more polls.
    pub hold_event: u32,
    /// Polls that the two above last at most.
    pub hold_polls_max: u32,
    /// `connect` is refused on the spot.
    pub refuse_connect: u32,
    /// `register` and `expose` find no key left.
    pub refuse_register: u32,
    /// `post_receive` finds the queue full, on a queue pair without a connection.
    pub refuse_receive: u32,
    /// `post_send` finds the queue full; only while a signalled request is outstanding on it, so that one who waits for
    /// a completion gets one.
    pub refuse_post: u32,
}

/// What is known of a queue pair.
#[derive(Debug, Default)]
struct Known {
    established: bool,
    /// Ended by this decorator: the event must not name the caller as the cause.
    dropped: bool,
    /// Signalled sends whose completion was not seen.
    outstanding: u32,
}

/// A provider that fails as its options demand. It refuses before it calls the inner provider.
#[derive(Debug)]
pub struct Faulty<P> {
    inner: P,
    options: FaultOptions,
    rng: Rng,
    queue_pairs: BTreeMap<QueuePairId, Known>,
    /// Completion queues that return nothing, and for how many polls.
    silent: BTreeMap<CompletionQueueId, u32>,
    held_event: Option<(u32, CmEvent)>,
    /// The device goes away at the next poll.
    removed: bool,
    now: Duration,
}

fn queue_pair_of(event: &CmEvent) -> Option<QueuePairId> {
    match event {
        CmEvent::Established { queue_pair, .. }
        | CmEvent::ConnectFailed { queue_pair, .. }
        | CmEvent::Disconnected { queue_pair, .. } => Some(*queue_pair),
        CmEvent::ConnectRequest { .. } | CmEvent::DeviceRemoved => None,
    }
}

impl<P: Provider> Faulty<P> {
    /// Wraps a provider.
    #[must_use]
    pub fn new(inner: P, options: FaultOptions) -> Self {
        let rng = Rng::new(options.seed);
        let (queue_pairs, silent) = (BTreeMap::new(), BTreeMap::new());
        Self {
            inner,
            options,
            rng,
            queue_pairs,
            silent,
            held_event: None,
            removed: false,
            now: Duration::ZERO,
        }
    }

    /// Changes how often faults strike, from now on; the seed is not taken anew.
    pub fn set_options(&mut self, options: FaultOptions) {
        self.options = options;
    }

    /// The provider within.
    pub fn inner(&mut self) -> &mut P {
        &mut self.inner
    }

    /// The connections that are established, and that no fault has ended.
    pub fn established(&self) -> impl Iterator<Item = QueuePairId> {
        let alive = |known: &Known| known.established && !known.dropped;
        self.queue_pairs.iter().filter(move |(_, known)| alive(known)).map(|(&id, _)| id)
    }

    /// Takes the device away: the next event reports it.
    pub fn remove_device(&mut self) {
        self.removed = true;
    }

    fn refuses_register(&mut self) -> Result<(), RegisterError> {
        let refused = self.rng.hits(self.options.refuse_register);
        if refused { Err(RegisterError::NoKey { limit: 0 }) } else { Ok(()) }
    }

    fn hold(&mut self) -> u32 {
        let most = u64::from(self.options.hold_polls_max.max(1));
        u32::try_from(self.rng.between(1, most)).unwrap_or(1)
    }

    fn drop_one(&mut self) {
        let candidates: Vec<_> = self.established().collect();
        let Some(last) = candidates.len().checked_sub(1) else { return };
        let chosen = candidates[usize::try_from(self.rng.between(0, last as u64)).unwrap_or(0)];
        if let Some(known) = self.queue_pairs.get_mut(&chosen) {
            known.dropped = true;
            self.inner.disconnect(chosen);
        }
    }

    /// Records what an event means, just before the caller gets it.
    fn deliver(&mut self, mut event: CmEvent) -> CmEvent {
        match &mut event {
            CmEvent::Established { queue_pair, .. } => {
                self.queue_pairs.entry(*queue_pair).or_default().established = true;
            }
            CmEvent::Disconnected { queue_pair, cause } => {
                // The flushed completions are there to be polled after this event: no queue holds them back.
                self.silent.clear();
                let known = self.queue_pairs.entry(*queue_pair).or_default();
                known.established = false;
                if known.dropped && *cause == DisconnectCause::Local {
                    *cause = DisconnectCause::Broken;
                }
            }
            CmEvent::ConnectFailed { .. } => self.silent.clear(),
            CmEvent::ConnectRequest { .. } | CmEvent::DeviceRemoved => {}
        }
        event
    }
}

impl<P: Provider> Provider for Faulty<P> {
    type Detached = P::Detached;

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn register(&mut self, memory: &Memory, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.refuses_register()?;
        self.inner.register(memory, access)
    }

    fn deregister(&mut self, key: LocalKey) {
        self.inner.deregister(key);
    }

    fn expose(&mut self, qp: QueuePairId, range: Sge, access: Access) -> Result<RemoteMemory, RegisterError> {
        self.refuses_register()?;
        self.inner.expose(qp, range, access)
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
        self.queue_pairs.remove(&queue_pair);
        self.held_event.take_if(|(_, event)| queue_pair_of(event) == Some(queue_pair));
        self.inner.destroy_queue_pair(queue_pair);
    }

    fn state(&self, queue_pair: QueuePairId) -> QueuePairState {
        self.inner.state(queue_pair)
    }

    fn listen(&mut self, address: SocketAddr, backlog: u32) -> Result<(ListenerId, SocketAddr), ListenError> {
        self.inner.listen(address, backlog)
    }

    fn listen_on(&mut self, socket: TcpListener) -> Result<(ListenerId, SocketAddr), ListenError> {
        self.inner.listen_on(socket)
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.held_event.take_if(
            |(_, event)| matches!(event, CmEvent::ConnectRequest { listener: l, .. } if *l == listener),
        );
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
        if self.rng.hits(self.options.refuse_connect) {
            return Err(ConnectError::Os { address, source: io::ErrorKind::ConnectionRefused.into() });
        }
        self.inner.connect(now, queue_pair, address, source, parameters)
    }

    fn accept(
        &mut self,
        now: Duration,
        request: RequestId,
        queue_pair: QueuePairId,
        parameters: &ConnectParameters,
    ) -> Result<(), ConnectError> {
        self.inner.accept(now, request, queue_pair, parameters)
    }

    fn reject(&mut self, request: RequestId, private_data: &PrivateData) {
        self.inner.reject(request, private_data);
    }

    fn detach(&mut self, request: RequestId) -> Option<Self::Detached> {
        self.inner.detach(request)
    }

    fn adopt(&mut self, now: Duration, detached: Self::Detached) -> RequestId {
        self.inner.adopt(now, detached)
    }

    fn disconnect(&mut self, queue_pair: QueuePairId) {
        self.inner.disconnect(queue_pair);
    }

    fn post_receive(&mut self, queue_pair: QueuePairId, request: ReceiveRequest) -> Result<(), PostError> {
        let established = self.queue_pairs.get(&queue_pair).is_some_and(|known| known.established);
        if !established && self.rng.hits(self.options.refuse_receive) {
            return Err(PostError::Full);
        }
        self.inner.post_receive(queue_pair, request)
    }

    fn post_shared_receive(
        &mut self,
        queue: SharedReceiveQueueId,
        request: ReceiveRequest,
    ) -> Result<(), PostError> {
        self.inner.post_shared_receive(queue, request)
    }

    fn post_send(&mut self, queue_pair: QueuePairId, request: SendRequest<'_>) -> Result<(), PostError> {
        let known = self.queue_pairs.entry(queue_pair).or_default();
        if known.outstanding > 0 && self.rng.hits(self.options.refuse_post) {
            return Err(PostError::Full);
        }
        self.inner.post_send(queue_pair, request)?;
        known.outstanding += u32::from(request.signaled);
        Ok(())
    }

    fn flush(&mut self) {
        self.inner.flush();
        if self.rng.hits(self.options.drop_connection) {
            self.drop_one();
        }
    }

    fn poll_cq(&mut self, queue: CompletionQueueId, completions: &mut Vec<Completion>) {
        if !self.silent.contains_key(&queue) && self.rng.hits(self.options.hold_completions) {
            let polls = self.hold();
            self.silent.insert(queue, polls);
        }
        if let Some(polls) = self.silent.get_mut(&queue) {
            *polls -= 1;
            if *polls == 0 {
                self.silent.remove(&queue);
            }
            // Progress without room for completions: they stay where they are, in order.
            return self.inner.poll_cq(queue, &mut Vec::new());
        }
        let before = completions.len();
        self.inner.poll_cq(queue, completions);
        for completion in &completions[before..] {
            if let Some(known) = self.queue_pairs.get_mut(&completion.queue_pair)
                && completion.opcode != crate::Opcode::Receive
            {
                // A failed request completes even if it was not signalled, so this may be one too many.
                known.outstanding = known.outstanding.saturating_sub(1);
            }
        }
    }

    fn poll_cm(&mut self, now: Duration) -> Option<CmEvent> {
        self.now = now;
        if core::mem::take(&mut self.removed) {
            return Some(CmEvent::DeviceRemoved);
        }
        match self.held_event.take() {
            Some((0 | 1, event)) => Some(self.deliver(event)),
            Some((polls, event)) => {
                self.held_event = Some((polls - 1, event));
                None
            }
            None => {
                let event = self.inner.poll_cm(now)?;
                if self.rng.hits(self.options.hold_event) {
                    self.held_event = Some((self.hold(), event));
                    return None;
                }
                Some(self.deliver(event))
            }
        }
    }

    fn next_stranger(&mut self) -> Option<Stranger> {
        self.inner.next_stranger()
    }

    fn poll_timeout(&self) -> Option<Duration> {
        let held = self.held_event.is_some() || !self.silent.is_empty();
        if held { Some(self.now) } else { self.inner.poll_timeout() }
    }

    fn arm(&mut self, wake_on: WakeOn) -> bool {
        !self.removed && self.held_event.is_none() && self.silent.is_empty() && self.inner.arm(wake_on)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }
}
