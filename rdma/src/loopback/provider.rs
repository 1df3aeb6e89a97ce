//! The contract, each call passed on to the fabric's tables.

use super::queue::{MAX_INLINE, MAX_QUEUE_DEPTH, MAX_READ_DEPTH, MAX_SGE};
use super::{DetachedRequest, Loopback};
use crate::{
    Access, Capabilities, CmEvent, Completion, CompletionQueueId, ConnectError, ConnectParameters,
    ListenError, ListenerId, LocalKey, MemoryRegion, PostError, PrivateData, Provider, QueuePairAttributes,
    QueuePairId, QueuePairState, ReceiveRequest, RegisterError, RemoteMemory, RequestId, ResourceError,
    SendRequest, Sge, SharedReceiveQueueId, WakeOn,
};
use core::time::Duration;
use nvmf_memory::Memory;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

impl Provider for Loopback {
    type Detached = DetachedRequest;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_sge: MAX_SGE as u32,
            max_inline: MAX_INLINE as u32,
            max_read_depth: MAX_READ_DEPTH,
            max_queue_depth: MAX_QUEUE_DEPTH,
            per_command_keys: true,
            strict_keys: true,
            early_messages_wait: true,
            receives_on_demand: self.fabric.lock().options.spill.is_none(),
            sends_invalidate: true,
            packet_len: None,
            completion_is_ack: true,
        }
    }

    fn register(&mut self, memory: &Memory, access: Access) -> Result<MemoryRegion, RegisterError> {
        Ok(self.fabric.lock().register(self.member, memory, access))
    }

    fn deregister(&mut self, key: LocalKey) {
        self.fabric.lock().deregister(self.member, key);
    }

    fn expose(&mut self, qp: QueuePairId, range: Sge, access: Access) -> Result<RemoteMemory, RegisterError> {
        self.fabric.lock().expose(self.member, qp, range, access)
    }

    fn create_completion_queue(&mut self, capacity: u32) -> Result<CompletionQueueId, ResourceError> {
        self.fabric.lock().create_completion_queue(self.member, capacity)
    }

    fn create_shared_receive_queue(&mut self, capacity: u32) -> Result<SharedReceiveQueueId, ResourceError> {
        self.fabric.lock().create_shared_receive_queue(self.member, capacity)
    }

    fn create_queue_pair(&mut self, attributes: &QueuePairAttributes) -> Result<QueuePairId, ResourceError> {
        self.fabric.lock().create_queue_pair(self.member, attributes)
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) {
        self.fabric.lock().destroy_queue_pair(self.member, queue_pair);
    }

    fn state(&self, queue_pair: QueuePairId) -> QueuePairState {
        let state = self.fabric.lock();
        let qp = state.queue_pairs.get(&queue_pair).filter(|qp| qp.owner == self.member);
        qp.map_or(QueuePairState::Error, |qp| qp.state)
    }

    fn listen(&mut self, address: SocketAddr, backlog: u32) -> Result<(ListenerId, SocketAddr), ListenError> {
        self.fabric.lock().listen(self.member, address, backlog)
    }

    fn unlisten(&mut self, listener: ListenerId) {
        self.fabric.lock().unlisten(self.member, listener);
    }

    fn connect(
        &mut self,
        now: Duration,
        queue_pair: QueuePairId,
        address: SocketAddr,
        source: Option<SocketAddr>,
        parameters: &ConnectParameters,
    ) -> Result<(), ConnectError> {
        let mut state = self.fabric.lock();
        state.on_time(now);
        state.connect(self.member, queue_pair, address, source, *parameters)
    }

    fn accept(
        &mut self,
        now: Duration,
        request: RequestId,
        queue_pair: QueuePairId,
        parameters: &ConnectParameters,
    ) -> Result<(), ConnectError> {
        let mut state = self.fabric.lock();
        state.on_time(now);
        state.accept(self.member, request, queue_pair, *parameters)
    }

    fn reject(&mut self, request: RequestId, private_data: &PrivateData) {
        self.fabric.lock().reject(self.member, request, *private_data);
    }

    fn detach(&mut self, request: RequestId) -> Option<DetachedRequest> {
        self.fabric.lock().detach(self.member, request).map(DetachedRequest)
    }

    fn adopt(&mut self, now: Duration, detached: DetachedRequest) -> RequestId {
        let mut state = self.fabric.lock();
        state.on_time(now);
        state.adopt(self.member, detached.0);
        detached.0
    }

    fn disconnect(&mut self, queue_pair: QueuePairId) {
        self.fabric.lock().disconnect(self.member, queue_pair);
    }

    fn post_receive(&mut self, queue_pair: QueuePairId, request: ReceiveRequest) -> Result<(), PostError> {
        self.fabric.lock().post_receive(self.member, queue_pair, request)
    }

    fn post_shared_receive(
        &mut self,
        queue: SharedReceiveQueueId,
        request: ReceiveRequest,
    ) -> Result<(), PostError> {
        self.fabric.lock().post_shared_receive(self.member, queue, request)
    }

    fn post_send(&mut self, queue_pair: QueuePairId, request: SendRequest<'_>) -> Result<(), PostError> {
        self.fabric.lock().post_send(self.member, queue_pair, &request)
    }

    fn flush(&mut self) {
        let mut state = self.fabric.lock();
        state.ring(self.member);
        state.progress();
    }

    fn poll_cq(&mut self, queue: CompletionQueueId, completions: &mut Vec<Completion>) {
        let mut state = self.fabric.lock();
        state.ring(self.member);
        state.progress();
        state.poll_cq(self.member, queue, completions);
    }

    fn poll_cm(&mut self, now: Duration) -> Option<CmEvent> {
        let mut state = self.fabric.lock();
        state.on_time(now);
        state.ring(self.member);
        state.progress();
        state.members.get_mut(&self.member).and_then(|member| member.events.pop_front())
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.fabric.next_due()
    }

    fn arm(&mut self, wake_on: WakeOn) -> bool {
        let mut state = self.fabric.lock();
        state.ring(self.member);
        state.progress();
        state.arm(self.member, wake_on)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.event.as_ref().map(|event| event.as_fd())
    }
}
