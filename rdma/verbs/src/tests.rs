//! The provider over a double of the libraries.

mod device;
mod keys;
mod sends;
mod set_up;
mod sleep;

use crate::ffi::double::{self, device};
use crate::{VerbsConfig, VerbsProvider};
use core::time::Duration;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmf_memory::Memory;
use nvmf_rdma::{
    Access, CmEvent, Completion, CompletionQueueId, ConnectParameters, MemoryRegion, Payload, PrivateData,
    Provider, QueuePairAttributes, QueuePairId, ReceiveRequest, SendOperation, SendRequest, Sge, WakeOn,
    WcStatus, WorkRequestId,
};

const LEN: usize = 65_536;

/// A provider over the double, and one queue pair of it.
struct Rig {
    provider: VerbsProvider,
    cq: CompletionQueueId,
    qp: QueuePairId,
    memory: Memory,
    region: MemoryRegion,
    now: Duration,
}

const PARAMETERS: ConnectParameters = ConnectParameters {
    private_data: PrivateData::EMPTY,
    responder_resources: 4,
    initiator_depth: 4,
    timeout: Duration::from_secs(3),
};

fn config() -> VerbsConfig {
    VerbsConfig::new("double0")
}

fn attributes(cq: CompletionQueueId, max_exposed: u32) -> QueuePairAttributes {
    QueuePairAttributes {
        send_cq: cq,
        receive_cq: cq,
        shared_receive_queue: None,
        max_send: 16,
        max_receive: 16,
        max_exposed,
    }
}

impl Rig {
    /// On the device that is installed; the queue pair is idle.
    fn new(config: VerbsConfig) -> Self {
        let mut provider = VerbsProvider::new(config).expect("the double opens");
        let cq = provider.create_completion_queue(64).expect("a completion queue");
        let qp = provider.create_queue_pair(&attributes(cq, 16)).expect("a queue pair");
        let memory = Memory::alloc(LEN).expect("memory");
        let region = provider.register(&memory, Access::LOCAL_WRITE).expect("a region");
        Self { provider, cq, qp, memory, region, now: Duration::from_secs(1) }
    }

    /// With the queue pair connected.
    fn connected(config: VerbsConfig) -> Self {
        let mut rig = Self::new(config);
        let address = "192.0.2.2:4420".parse().expect("an address");
        rig.provider.connect(rig.now, rig.qp, address, None, &PARAMETERS).expect("a start");
        let event = rig.event();
        assert!(matches!(event, Some(CmEvent::Established { .. })), "{event:?}");
        rig
    }

    fn sge(&self, offset: usize, len: u32) -> Sge {
        Sge { local_key: self.region.local_key, offset, len }
    }

    /// The next event, if one comes within a few seconds of the provider's clock.
    fn event(&mut self) -> Option<CmEvent> {
        (0..5000).find_map(|_| {
            self.now += Duration::from_millis(1);
            self.provider.poll_cm(self.now)
        })
    }

    fn post(&mut self, id: u64, operation: SendOperation<'_>) {
        let request = SendRequest { id: WorkRequestId(id), operation, signaled: true };
        self.provider.post_send(self.qp, request).expect("a post to a queue with room");
    }

    fn send(&mut self, id: u64) {
        let payload = Payload::Inline(b"hello");
        self.post(id, SendOperation::Send { payload, invalidate: None, solicited: false });
    }

    fn receive(&mut self, id: u64) {
        let request = ReceiveRequest { id: WorkRequestId(id), buffer: self.sge(0, 64) };
        self.provider.post_receive(self.qp, request).expect("a receive on a queue with room");
    }

    /// Whether a caller that arms would sleep now.
    fn sleeps(&mut self, wake_on: WakeOn) -> bool {
        self.provider.arm(wake_on) && !self.is_woken()
    }

    fn is_woken(&self) -> bool {
        let fd = self.provider.fd().expect("a descriptor");
        poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO).expect("poll works") > 0
    }

    fn completions(&mut self) -> Vec<Completion> {
        let mut completions = Vec::with_capacity(64);
        self.provider.poll_cq(self.cq, &mut completions);
        completions
    }

    /// Names and statuses of what completed.
    fn done(&mut self) -> Vec<(u64, WcStatus)> {
        self.completions().iter().map(|it| (it.id.0, it.status)).collect()
    }
}
