//! NVMe/RDMA: capsules by SEND, data by RDMA READ and WRITE, over any provider.
//!
//! | module | what it holds |
//! |---|---|
//! | [`listener`] | what a connection request says, and what it is answered |
//! | [`receives`] | receive slots |
//! | `lending` | receives that I/O queues borrow beyond their own |
//! | `connections` | connections: requested, accepted or handed over, established, closed |
//! | `wire` | receives, READs, WRITEs and SENDs |
//! | `name` | what completions are called, so that they find their command |

mod connections;
mod lending;
pub mod listener;
mod name;
pub mod receives;
mod wire;

pub use connections::{Detached, Incoming};
pub use wire::Capsule;

use crate::exec::buffers::Registered;
use crate::exec::queue::slots;
use crate::exec::resources::SetUpError;
use crate::message::WorkerId;
use crate::settings::Settings;
use lending::Lending;
use nvmf_block::Backend;
use nvmf_config::AddressList;
use nvmf_memory::{BufferIndex, Memory};
use nvmf_rdma::{Access, Completion, CompletionQueueId, ListenerId, LocalKey, Provider, QueuePairId};
use receives::ReceiveSlots;
use std::collections::HashMap;

/// One thread's access to NVMe/RDMA.
pub struct Rdma<P: Provider> {
    /// The provider.
    pub provider: P,
    cq: CompletionQueueId,
    admin_receives: ReceiveSlots,
    io_receives: ReceiveSlots,
    lending: Lending,
    queues: Box<[Option<QueuePair>]>,
    by_qp: HashMap<QueuePairId, u32>,
    listeners: Vec<(ListenerId, u16)>,
    /// Of ports that do not take connections from anywhere.
    allowed: HashMap<u16, AddressList>,
    /// Where the last I/O queue went.
    last: Option<WorkerId>,
    completions: Vec<Completion>,
    /// Completions that were taken.
    taken: usize,
    sends_invalidate: bool,
}

/// What a queue has here.
struct QueuePair {
    id: QueuePairId,
    admin: bool,
    /// Its receives by their number in the queue, and the numbers that have none.
    receives: Box<[Option<BufferIndex>]>,
    vacant: Vec<u16>,
    /// Receives that it has for itself.
    own: u16,
    borrowed: u16,
    /// Receives that no capsule has filled.
    posted: u16,
    /// It waits for a receive to borrow.
    refused: bool,
    /// It was destroyed; its capsules may still be in use.
    destroyed: bool,
}

/// Completions reaped at once.
const COMPLETIONS: usize = crate::limits::COMPLETIONS_BUDGET;

impl<P: Provider> Rdma<P> {
    /// Memory for capsules, and a completion queue.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn new<B: Backend>(
        mut provider: P,
        backend: &mut B,
        settings: &Settings,
    ) -> Result<Self, SetUpError> {
        let capabilities = provider.capabilities();
        if (capabilities.max_inline as usize) < nvmf_subsystem::limits::CQE_LEN {
            return Err(SetUpError::Transport {
                what: "the RDMA provider cannot send responses inline, which need 16 bytes",
                source: format!("it takes {}", capabilities.max_inline).into(),
            });
        }
        let admin_receives = ReceiveSlots::new(&mut provider, backend, settings.admin_receives, 0)?;
        let whole = slots(settings.queue_entries);
        let (own, lent) = match capabilities.receives_on_demand {
            true => (settings.own_receives.min(whole), settings.lent_receives),
            false => (whole, 0),
        };
        let count = settings.io_receives + lent;
        let io_receives = ReceiveSlots::new(&mut provider, backend, count, settings.in_capsule_data)?;
        // As many as the queues have entries.
        let entries =
            admin_receives.capacity() + settings.io_receives * usize::from(whole) / usize::from(own);
        let cq = provider.create_completion_queue(u32::try_from(entries * 4).unwrap_or(u32::MAX));
        let cq = cq.map_err(|error| SetUpError::Transport {
            what: "no completion queue for the worker",
            source: error.into(),
        })?;
        let queues = settings.connections as usize;
        Ok(Self {
            provider,
            cq,
            admin_receives,
            io_receives,
            lending: Lending::new(own, lent, queues),
            queues: (0..queues).map(|_| None).collect(),
            by_qp: HashMap::with_capacity(queues),
            listeners: Vec::new(),
            allowed: HashMap::new(),
            last: None,
            completions: Vec::with_capacity(COMPLETIONS),
            taken: 0,
            sends_invalidate: capabilities.sends_invalidate,
        })
    }

    /// Receive slots that are posted, or hold a capsule.
    #[must_use]
    pub fn slots_out(&self) -> usize {
        [&self.admin_receives, &self.io_receives]
            .map(|slots| slots.capacity() - slots.available())
            .iter()
            .sum()
    }

    fn receives(&mut self, admin: bool) -> &mut ReceiveSlots {
        if admin { &mut self.admin_receives } else { &mut self.io_receives }
    }

    /// The queue pair of a queue that was not destroyed.
    fn queue_pair(&self, queue: u32) -> Option<&QueuePair> {
        self.queues.get(queue as usize)?.as_ref().filter(|queue_pair| !queue_pair.destroyed)
    }
}

fn register<P: Provider>(provider: &mut P, memory: &Memory) -> Result<LocalKey, SetUpError> {
    let region = provider.register(memory, Access::LOCAL_WRITE).map_err(|error| SetUpError::Transport {
        what: "the RDMA provider does not take the buffers",
        source: error.into(),
    })?;
    Ok(region.local_key)
}

/// Registered memory of a number of pieces.
fn registered<P: Provider, B: Backend>(
    provider: &mut P,
    backend: &mut B,
    count: usize,
    len: usize,
) -> Result<Registered<LocalKey>, SetUpError> {
    Registered::new(backend, count, len, |memory| register(provider, memory))
}
