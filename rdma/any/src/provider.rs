//! One provider or the other, by the contract.

use core::time::Duration;
use nvmf_iwarp::IwarpProvider;
use nvmf_memory::Memory;
use nvmf_rdma::{
    Access, Capabilities, CmEvent, Completion, CompletionQueueId, ConnectError, ConnectParameters,
    ListenError, ListenerId, LocalKey, MemoryRegion, PostError, PrivateData, Provider, QueuePairAttributes,
    QueuePairId, QueuePairState, ReceiveRequest, RegisterError, RemoteMemory, RequestId, ResourceError,
    SendRequest, Sge, SharedReceiveQueueId, Stranger, WakeOn,
};
use nvmf_verbs::VerbsProvider;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;

/// One provider or the other.
#[expect(clippy::large_enum_variant, reason = "one a thread, and never moved")]
pub enum AnyProvider {
    /// Userspace iWARP over TCP.
    Iwarp(IwarpProvider),
    /// A device.
    Verbs(VerbsProvider),
}

impl From<IwarpProvider> for AnyProvider {
    fn from(provider: IwarpProvider) -> Self {
        Self::Iwarp(provider)
    }
}

impl From<VerbsProvider> for AnyProvider {
    fn from(provider: VerbsProvider) -> Self {
        Self::Verbs(provider)
    }
}

/// A connection request between two threads of one selection.
#[expect(clippy::large_enum_variant, reason = "once per connection: no reason to allocate")]
pub enum Detached {
    /// Over userspace iWARP.
    Iwarp(<IwarpProvider as Provider>::Detached),
    /// Over a device.
    Verbs(<VerbsProvider as Provider>::Detached),
}

macro_rules! either {
    ($self:ident, $it:ident => $call:expr) => {
        match $self {
            Self::Iwarp($it) => $call,
            Self::Verbs($it) => $call,
        }
    };
}

impl Provider for AnyProvider {
    type Detached = Detached;

    fn capabilities(&self) -> Capabilities {
        either!(self, it => it.capabilities())
    }

    fn register(&mut self, memory: &Memory, access: Access) -> Result<MemoryRegion, RegisterError> {
        either!(self, it => it.register(memory, access))
    }

    fn deregister(&mut self, key: LocalKey) {
        either!(self, it => it.deregister(key))
    }

    fn expose(
        &mut self,
        queue_pair: QueuePairId,
        range: Sge,
        access: Access,
    ) -> Result<RemoteMemory, RegisterError> {
        either!(self, it => it.expose(queue_pair, range, access))
    }

    fn create_completion_queue(&mut self, capacity: u32) -> Result<CompletionQueueId, ResourceError> {
        either!(self, it => it.create_completion_queue(capacity))
    }

    fn create_shared_receive_queue(&mut self, capacity: u32) -> Result<SharedReceiveQueueId, ResourceError> {
        either!(self, it => it.create_shared_receive_queue(capacity))
    }

    fn create_queue_pair(&mut self, attributes: &QueuePairAttributes) -> Result<QueuePairId, ResourceError> {
        either!(self, it => it.create_queue_pair(attributes))
    }

    fn destroy_queue_pair(&mut self, queue_pair: QueuePairId) {
        either!(self, it => it.destroy_queue_pair(queue_pair))
    }

    fn state(&self, queue_pair: QueuePairId) -> QueuePairState {
        either!(self, it => it.state(queue_pair))
    }

    fn listen(&mut self, address: SocketAddr, backlog: u32) -> Result<(ListenerId, SocketAddr), ListenError> {
        either!(self, it => it.listen(address, backlog))
    }

    fn listen_on(&mut self, socket: TcpListener) -> Result<(ListenerId, SocketAddr), ListenError> {
        either!(self, it => it.listen_on(socket))
    }

    fn unlisten(&mut self, listener: ListenerId) {
        either!(self, it => it.unlisten(listener))
    }

    fn connect(
        &mut self,
        now: Duration,
        queue_pair: QueuePairId,
        address: SocketAddr,
        source: Option<SocketAddr>,
        parameters: &ConnectParameters,
    ) -> Result<(), ConnectError> {
        either!(self, it => it.connect(now, queue_pair, address, source, parameters))
    }

    fn accept(
        &mut self,
        now: Duration,
        request: RequestId,
        queue_pair: QueuePairId,
        parameters: &ConnectParameters,
    ) -> Result<(), ConnectError> {
        either!(self, it => it.accept(now, request, queue_pair, parameters))
    }

    fn reject(&mut self, request: RequestId, private_data: &PrivateData) {
        either!(self, it => it.reject(request, private_data))
    }

    fn detach(&mut self, request: RequestId) -> Option<Detached> {
        match self {
            Self::Iwarp(it) => it.detach(request).map(Detached::Iwarp),
            Self::Verbs(it) => it.detach(request).map(Detached::Verbs),
        }
    }

    fn adopt(&mut self, now: Duration, detached: Detached) -> RequestId {
        match (self, detached) {
            (Self::Iwarp(it), Detached::Iwarp(detached)) => it.adopt(now, detached),
            (Self::Verbs(it), Detached::Verbs(detached)) => it.adopt(now, detached),
            // Only threads of one selection hand requests to each other: any other request is dropped.
            _ => RequestId(u32::MAX),
        }
    }

    fn disconnect(&mut self, queue_pair: QueuePairId) {
        either!(self, it => it.disconnect(queue_pair))
    }

    fn post_receive(&mut self, queue_pair: QueuePairId, request: ReceiveRequest) -> Result<(), PostError> {
        either!(self, it => it.post_receive(queue_pair, request))
    }

    fn post_shared_receive(
        &mut self,
        queue: SharedReceiveQueueId,
        request: ReceiveRequest,
    ) -> Result<(), PostError> {
        either!(self, it => it.post_shared_receive(queue, request))
    }

    fn post_send(&mut self, queue_pair: QueuePairId, request: SendRequest<'_>) -> Result<(), PostError> {
        either!(self, it => it.post_send(queue_pair, request))
    }

    fn flush(&mut self) {
        either!(self, it => it.flush())
    }

    fn poll_cq(&mut self, queue: CompletionQueueId, completions: &mut Vec<Completion>) {
        either!(self, it => it.poll_cq(queue, completions))
    }

    fn poll_cm(&mut self, now: Duration) -> Option<CmEvent> {
        either!(self, it => it.poll_cm(now))
    }

    fn next_stranger(&mut self) -> Option<Stranger> {
        either!(self, it => it.next_stranger())
    }

    fn poll_timeout(&self) -> Option<Duration> {
        either!(self, it => it.poll_timeout())
    }

    fn arm(&mut self, wake_on: WakeOn) -> bool {
        either!(self, it => it.arm(wake_on))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        either!(self, it => it.fd())
    }
}

/// A thread that waits for a connection may drive its provider: providers move between threads, under a lock.
const _: () = {
    const fn moves_between_threads<T: Send>() {}
    moves_between_threads::<AnyProvider>();
    moves_between_threads::<nvmf_rdma::fault::Faulty<nvmf_rdma::trace::Trace<nvmf_rdma::loopback::Loopback>>>(
    );
};
