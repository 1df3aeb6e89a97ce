//! What all queues of a worker share.

use super::buffers::{Buffers, ReceiveSlots, SetUpError};
use crate::limits::{ANSWER_FRAMING, ANSWERS_MIN};
use crate::settings::Settings;
use crate::telemetry::{Counters, LogLimit};
use nvmf_block::{Backend, BlockOp, DeviceId, Tag};
use nvmf_rdma::{CompletionQueueId, Provider};
use nvmf_subsystem::{AssociationKey, Registry};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// What all queues of a worker share: both ends of the way, the memory between them, and what is to be done beyond
/// the queue at hand.
pub struct Resources<P: Provider, B> {
    /// The provider.
    pub provider: P,
    /// The backend.
    pub backend: B,
    /// Where everything completes.
    pub cq: CompletionQueueId,
    /// Data buffers.
    pub buffers: Buffers,
    /// Receive slots of Admin queues.
    pub admin_receives: ReceiveSlots,
    /// Receive slots of I/O queues.
    pub io_receives: ReceiveSlots,
    /// Queues with capsules to take up, each once: they are served in turn.
    pub ready_list: VecDeque<u32>,
    /// Queues that were not in that line when a capsule came for them, each once.
    pub newly_ready: VecDeque<u32>,
    /// Operations that the backend had no room for.
    pub backend_queue: VecDeque<(Tag, DeviceId, BlockOp)>,
    /// What devices borrowed since the doorbells were rung.
    pub borrowed: Borrowed,
    /// What queues want done to other queues.
    pub deferred: VecDeque<DeferredAction>,
    /// What is counted.
    pub counters: Arc<Counters>,
    /// How often may be logged what a peer can trigger.
    pub log: LogLimit,
    /// Who may connect to what.
    pub registry: Arc<Mutex<Registry>>,
    /// No further commands are taken.
    pub draining: bool,
    /// The peer's keys can be invalidated with a response.
    pub remote_invalidate: bool,
    /// What the provider sends at once.
    pub packet_len: Option<u32>,
}

/// Answers that leave from where a device borrows them.
#[derive(Debug, Default)]
pub struct Borrowed {
    answers: u32,
    bytes: u32,
    last: u32,
}

impl Borrowed {
    /// One more, with so many bytes of data.
    pub fn add(&mut self, len: u32) {
        self.answers += 1;
        self.last = len.saturating_add(ANSWER_FRAMING);
        self.bytes = self.bytes.saturating_add(self.last);
    }

    /// Whether they are enough, and one like the last would begin another packet.
    fn is_full(&self, packet_len: u32) -> bool {
        let next = self.bytes.saturating_add(self.last);
        self.answers >= ANSWERS_MIN && next / packet_len > self.bytes / packet_len
    }
}

/// What a queue wants done to queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeferredAction {
    /// The I/O queues of an association, on all workers.
    CloseIoQueues(AssociationKey),
    /// All queues of an association, on all workers, at once.
    CloseAssociation(AssociationKey),
    /// This queue of this worker, at once.
    Remove(u32),
}

impl<P: Provider, B: Backend> Resources<P, B> {
    /// Submits to the backend, or stands in line for it.
    pub fn submit(&mut self, tag: Tag, device: DeviceId, op: BlockOp) {
        if self.backend_queue.is_empty() && self.backend.submit(tag, device, op).is_ok() {
            return;
        }
        self.counters.waits_backend.add(1);
        self.backend_queue.push_back((tag, device, op));
    }

    /// Whether the turn should end with the answers that it has. Not while others are in line: theirs go into packets of their own.
    #[must_use]
    pub fn packet_is_full(&self) -> bool {
        self.ready_list.is_empty() && self.packet_len.is_some_and(|len| self.borrowed.is_full(len))
    }

    /// Submits what stood in line.
    pub fn submit_waiting(&mut self) {
        while let Some(&(tag, device, op)) = self.backend_queue.front() {
            if self.backend.submit(tag, device, op).is_err() {
                break;
            }
            self.backend_queue.pop_front();
        }
    }

    /// The receive slots of a kind of queue.
    pub fn receives(&mut self, admin: bool) -> &mut ReceiveSlots {
        if admin { &mut self.admin_receives } else { &mut self.io_receives }
    }

    /// Two resources, and the memory between them.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn new(
        mut provider: P,
        mut backend: B,
        registry: Arc<Mutex<Registry>>,
        settings: &Settings,
    ) -> Result<Self, SetUpError> {
        let capabilities = provider.capabilities();
        if (capabilities.max_inline as usize) < nvmf_subsystem::limits::CQE_LEN {
            return Err(SetUpError::Inline(capabilities.max_inline));
        }
        let queues = settings.connections as usize;
        let buffers = Buffers::new(&mut provider, &mut backend, &settings.buffers, queues)?;
        let admin_receives = ReceiveSlots::new(&mut provider, &mut backend, settings.admin_receives, 0)?;
        let io_receives =
            ReceiveSlots::new(&mut provider, &mut backend, settings.io_receives, settings.in_capsule_data)?;
        let receives = admin_receives.capacity() + io_receives.capacity();
        let cq = provider.create_completion_queue(u32::try_from(receives * 4).unwrap_or(u32::MAX))?;
        Ok(Self {
            provider,
            backend,
            cq,
            buffers,
            admin_receives,
            io_receives,
            ready_list: VecDeque::with_capacity(queues),
            newly_ready: VecDeque::with_capacity(queues),
            backend_queue: VecDeque::with_capacity(1024),
            borrowed: Borrowed::default(),
            deferred: VecDeque::with_capacity(64),
            counters: Arc::default(),
            log: LogLimit::new(),
            registry,
            draining: false,
            remote_invalidate: capabilities.remote_invalidate,
            packet_len: capabilities.packet_len.filter(|&len| len > 0),
        })
    }
}
