//! NVMe/RDMA: capsules as messages, memory exposed for exactly one command.

mod queue_pair;

use super::{Arrival, Data, Event, OpenQueue, Refused, Transport, TransportError};
use core::time::Duration;
use nvme_proto::fabrics::discovery::TransportType;
use nvme_proto::tcp::{CommonHeader, PduType};
use nvme_proto::{Cid, Qid};
use nvmf_host::{Command, QueueFailure, Violation};
use nvmf_memory::Memory;
use nvmf_rdma::{
    CmEvent, Completion, CompletionQueueId, ConnectFailure, ConnectParameters, DisconnectCause, MemoryRegion,
    PrivateData, Provider, QueuePairId, WakeOn,
};
use queue_pair::{MakeError, NotSent, QueuePair, WorkRequest, local_access};
use std::os::fd::BorrowedFd;

/// Completions taken from the provider at once.
const COMPLETIONS_AT_ONCE: usize = 64;

/// One thread's access to NVMe/RDMA.
#[derive(Debug)]
pub struct Rdma<P: Provider> {
    provider: P,
    /// `None` before [`Transport::prepare`].
    cq: Option<CompletionQueueId>,
    /// By qid.
    queues: Vec<Option<QueuePair>>,
    completions: Vec<Completion>,
    /// The next of them to look at.
    next: usize,
    /// The provider failed to make a queue, or says that its device is gone.
    suspect: bool,
}

impl<P: Provider> Rdma<P> {
    /// Over this provider.
    #[must_use]
    pub fn new(provider: P) -> Self {
        Self {
            provider,
            cq: None,
            queues: Vec::new(),
            completions: Vec::with_capacity(COMPLETIONS_AT_ONCE),
            next: 0,
            suspect: false,
        }
    }

    /// The provider.
    #[must_use]
    pub fn provider(&self) -> &P {
        &self.provider
    }

    /// The same, to change.
    pub fn provider_mut(&mut self) -> &mut P {
        &mut self.provider
    }

    fn queue(&mut self, qid: Qid) -> Option<&mut QueuePair> {
        self.queues.get_mut(usize::from(qid.0))?.as_mut()
    }

    fn qid_of(&self, id: QueuePairId) -> Option<Qid> {
        self.queues.iter().flatten().find(|queue| queue.id == id).map(|queue| queue.qid)
    }

    /// A queue's queue pair.
    #[cfg(test)]
    pub(crate) fn queue_pair(&self, qid: Qid) -> Option<QueuePairId> {
        self.queues.get(usize::from(qid.0))?.as_ref().map(|queue| queue.id)
    }

    /// Whether commands hold keys, or keys are still to be invalidated.
    pub(crate) fn holds_keys(&self) -> bool {
        self.queues.iter().flatten().any(QueuePair::holds_keys)
    }

    fn access(&self) -> nvmf_rdma::Access {
        local_access(self.provider.capabilities().per_command_keys)
    }

    /// What a completion of the provider's means.
    pub(crate) fn on_completion(&mut self, completion: &Completion) -> Option<Arrival> {
        let (qid, request) = WorkRequest::parse(completion.id);
        let Some(Some(queue)) = self.queues.get_mut(usize::from(qid.0)) else { return None };
        // What failed or was flushed announces the end of its connection, whose event says why.
        if queue.id != completion.queue_pair || !completion.status.is_success() {
            return None;
        }
        queue.on_completion(&mut self.provider, request, completion)
    }

    fn event(&mut self, event: CmEvent) -> Event {
        match event {
            CmEvent::Established { queue_pair, private_data, .. } => match self.qid_of(queue_pair) {
                Some(qid) => Event::Connected { qid, private_data: private_data.as_bytes().to_vec() },
                None => Event::Other,
            },
            CmEvent::ConnectFailed { queue_pair, failure } => {
                self.qid_of(queue_pair).map_or(Event::Other, |qid| Event::Failed(qid, why(&failure)))
            }
            CmEvent::Disconnected { queue_pair, cause } => {
                self.suspect |= cause == DisconnectCause::DeviceRemoved;
                let peer_has_ended = cause.peer_has_ended();
                self.qid_of(queue_pair).map_or(Event::Other, |qid| Event::Disconnected {
                    qid,
                    cause: cause.to_string(),
                    peer_has_ended,
                })
            }
            // Its connections ended before.
            CmEvent::DeviceRemoved => {
                self.suspect = true;
                Event::Other
            }
            // We listen nowhere.
            CmEvent::ConnectRequest { request, .. } => {
                self.provider.reject(request, &PrivateData::EMPTY);
                Event::Other
            }
        }
    }
}

impl<P: Provider> Transport for Rdma<P> {
    type Region = MemoryRegion;

    fn kind(&self) -> TransportType {
        TransportType::RDMA
    }

    fn prepare(&mut self, io_queues: u16, entries: u16) -> Result<(), TransportError> {
        let admin = QueuePair::completions_max(nvmf_host::limits::ADMIN_QUEUE_ENTRIES);
        let io = QueuePair::completions_max(entries.saturating_add(1));
        let cq = self.provider.create_completion_queue(admin + io * u32::from(io_queues));
        self.cq = Some(cq.map_err(|error| TransportError(error.to_string()))?);
        Ok(())
    }

    fn register(&mut self, memory: &Memory) -> Result<MemoryRegion, TransportError> {
        let access = self.access();
        self.provider.register(memory, access).map_err(|error| TransportError(error.to_string()))
    }

    fn deregister(&mut self, region: MemoryRegion) {
        self.provider.deregister(region.local_key);
    }

    fn open(&mut self, now: Duration, queue: &OpenQueue<'_>) -> Result<(), QueueFailure> {
        let other = |reason: String| QueueFailure::Other(reason);
        let cq = self.cq.ok_or_else(|| other("the transport was not prepared".into()))?;
        let pair = QueuePair::new(&mut self.provider, cq, queue).map_err(|error| {
            // The device may be gone: the provider does not say whether it is that or a lack of resources.
            self.suspect |= !matches!(error, MakeError::Memory(_));
            other(error.to_string())
        })?;
        let parameters = ConnectParameters {
            private_data: PrivateData::new(queue.private_data).expect("32 bytes fit"),
            // The controller reads our memory, we never read its.
            responder_resources: self.provider.capabilities().max_read_depth,
            initiator_depth: 0,
            timeout: queue.timeout,
        };
        let (id, index) = (pair.id, usize::from(queue.qid.0));
        if self.queues.len() <= index {
            self.queues.resize_with(index + 1, || None);
        }
        if let Some(old) = self.queues[index].replace(pair) {
            old.destroy(&mut self.provider);
        }
        self.provider
            .connect(now, id, queue.address, queue.source, &parameters)
            .map_err(|error| QueueFailure::Unreachable(chain(&error)))
    }

    fn resize(&mut self, _qid: Qid, _entries: u16) {}

    fn disconnect(&mut self, qid: Qid, _orderly: bool) {
        if let Some(id) = self.queue(qid).map(|queue| queue.id) {
            self.provider.disconnect(id);
        }
    }

    fn destroy(&mut self, qid: Qid) {
        if let Some(queue) = self.queues.get_mut(usize::from(qid.0)).and_then(Option::take) {
            queue.destroy(&mut self.provider);
        }
    }

    fn poll_event(&mut self, now: Duration) -> Option<Event> {
        let event = self.provider.poll_cm(now)?;
        Some(self.event(event))
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.provider.poll_timeout()
    }

    fn poll(&mut self) -> bool {
        let Some(cq) = self.cq else { return false };
        self.completions.clear();
        self.next = 0;
        self.provider.poll_cq(cq, &mut self.completions);
        !self.completions.is_empty()
    }

    fn next_arrival(&mut self) -> Option<Arrival> {
        while let Some(&completion) = self.completions.get(self.next) {
            self.next += 1;
            if let Some(arrival) = self.on_completion(&completion) {
                return Some(arrival);
            }
        }
        None
    }

    fn complete(&mut self, qid: Qid, slot: u16, invalidated: Option<u32>) -> Result<bool, Violation> {
        let Some(Some(queue)) = self.queues.get_mut(usize::from(qid.0)) else { return Ok(true) };
        queue.complete(&mut self.provider, slot, invalidated)
    }

    fn send(
        &mut self,
        qid: Qid,
        slot: u16,
        cid: Cid,
        command: &Command,
        data: Data<'_, MemoryRegion>,
    ) -> Result<(), Refused> {
        let Some(Some(queue)) = self.queues.get_mut(usize::from(qid.0)) else { return Err(Refused::NoRoom) };
        match queue.send(&mut self.provider, slot, cid, command, data) {
            // Keys come with completions, like room.
            Err(NotSent::NoKey(_)) if self.holds_keys() => Err(Refused::NoRoom),
            sent => Ok(sent?),
        }
    }

    fn slot_data(&self, qid: Qid, slot: u16, into: &mut [u8]) {
        if let Some(Some(queue)) = self.queues.get(usize::from(qid.0)) {
            queue.read_data(slot, into);
        }
    }

    fn flush(&mut self) {
        for queue in self.queues.iter_mut().flatten() {
            queue.post_pending(&mut self.provider);
        }
        self.provider.flush();
    }

    fn arm(&mut self) -> bool {
        let is_awaited = self.queues.iter().flatten().any(QueuePair::awaits_sends);
        self.provider.arm(if is_awaited { WakeOn::Completions } else { WakeOn::Receives })
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.provider.fd()
    }

    fn is_suspect(&self) -> bool {
        self.suspect
    }
}

fn why(failure: &ConnectFailure) -> QueueFailure {
    match failure {
        ConnectFailure::Rejected { private_data } => QueueFailure::from_reject(private_data.as_bytes()),
        ConnectFailure::TimedOut => QueueFailure::TimedOut,
        ConnectFailure::Unreachable(error) => QueueFailure::Unreachable(error.to_string()),
        ConnectFailure::Protocol(_) => QueueFailure::Other(failure.to_string()),
        ConnectFailure::Foreign { answer, .. } => QueueFailure::Other(foreign(failure, *answer)),
    }
}

/// What a peer may be that does not speak RDMA. An NVMe/TCP controller ends a connection that does not begin with ICReq
/// by C2HTermReq, or just closes it.
fn foreign(failure: &ConnectFailure, answer: [u8; CommonHeader::LEN]) -> String {
    let header: CommonHeader = zerocopy::transmute!(answer);
    if header.kind == PduType::C2H_TERM_REQ && header.kind.header_len() == Some(header.hlen) {
        "what listens there is an NVMe/TCP controller: connect over tcp (-t tcp)".to_owned()
    } else if answer == [0; CommonHeader::LEN] {
        format!(
            "{failure}; is it NVMe/TCP (-t tcp), or an NVMe/RDMA target without room for one more connection?"
        )
    } else {
        format!("{failure}; is it an NVMe/RDMA target?")
    }
}

/// An error and its sources in one line.
fn chain(error: &dyn core::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
