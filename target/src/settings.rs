//! How large a worker is, and how queues spread over workers.

use crate::exec::buffers::BufferPlan;
use crate::exec::queue::slots;
use crate::limits::{IN_CAPSULE_ADMIN, IN_CAPSULE_RDMA, IN_CAPSULE_TCP, LENT_RECEIVES_MIN, OWN_RECEIVES};
use crate::message::WorkerId;
use crate::places::{Places, Queues};
use crate::transport::rdma::receives::ReceiveSlots;
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use nvmf_config::Transport;
use nvmf_subsystem::{Association, AssociationKey, Cntlid};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

/// What a worker is made with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Queues that it takes.
    pub connections: u32,
    /// Entries of an I/O queue, at the most.
    pub queue_entries: u16,
    /// I/O queues of one controller, at the most.
    pub io_queues: u16,
    /// Bytes of data that a capsule of an I/O queue may carry.
    pub in_capsule_data: u32,
    /// Receive slots of Admin queues, in all.
    pub admin_receives: usize,
    /// Receive slots that I/O queues have for themselves, in all. Over NVMe/TCP: the slots that all share.
    pub io_receives: usize,
    /// Receive slots that an I/O queue has for itself, at the most.
    pub own_receives: u16,
    /// Receive slots that I/O queues borrow beyond those, in all.
    pub lent_receives: usize,
    /// Data buffers.
    pub buffers: BufferPlan,
    /// How long a host may make no progress with what is posted for it, until its queue is closed.
    pub transfer_timeout: Duration,
}

impl Settings {
    /// From the configuration: as much memory for receives as for data, unless the connections cannot use it.
    /// `on_demand`: the provider's [`nvmf_rdma::Capabilities::receives_on_demand`].
    #[must_use]
    pub fn new(target: &nvmf_config::Target, transport: Transport, on_demand: bool) -> Self {
        let in_capsule_data = in_capsule_data(target, transport);
        let slot = ReceiveSlots::slot_len(in_capsule_data).max(64);
        let connections = target.connections as usize;
        let whole = usize::from(slots(target.queue_depth));
        let own = if on_demand { whole.min(OWN_RECEIVES.into()) } else { whole };
        let affordable = usize::try_from(target.buffer_memory).unwrap_or(usize::MAX) / slot;
        let wanted = connections * own;
        // What queues can use beyond their own, up to a fifth of all where that is more than a few queues need.
        let lent = (connections * (whole - own)).min((wanted / 4).max(LENT_RECEIVES_MIN));
        let lent = lent.min(affordable / 5);
        Self {
            connections: target.connections,
            queue_entries: target.queue_depth,
            io_queues: target.io_queues,
            in_capsule_data,
            admin_receives: connections * usize::from(slots(crate::limits::ADMIN_ENTRIES_USUAL)),
            io_receives: wanted.min(affordable - lent).max(own * 2),
            own_receives: u16::try_from(own).unwrap_or(u16::MAX),
            lent_receives: lent,
            buffers: BufferPlan::new(target.buffer_memory, target.transfer_max),
            transfer_timeout: target.transfer_timeout,
        }
    }

    /// Bytes of pinned memory.
    #[must_use]
    pub fn pinned(&self, transport: Transport) -> u64 {
        self.buffers.bytes() + self.receives(transport)
    }

    /// Bytes of pinned memory that capsules arrive in.
    #[must_use]
    pub fn receives(&self, transport: Transport) -> u64 {
        let (admin, io) = match transport {
            Transport::Rdma => (
                self.admin_receives * ReceiveSlots::slot_len(0),
                (self.io_receives + self.lent_receives) * ReceiveSlots::slot_len(self.in_capsule_data),
            ),
            Transport::Tcp => (
                self.tcp_admin_slots() * IN_CAPSULE_ADMIN as usize,
                self.io_receives * self.tcp_slot_len() as usize,
            ),
        };
        (admin + io) as u64
    }

    /// Slots for the data in capsules of Admin queues and in Connects, over NVMe/TCP.
    #[must_use]
    pub fn tcp_admin_slots(&self) -> usize {
        self.connections.max(4) as usize
    }

    /// Bytes of a slot for the data in a capsule of an I/O queue, over NVMe/TCP.
    #[must_use]
    pub fn tcp_slot_len(&self) -> u32 {
        self.in_capsule_data.max(IN_CAPSULE_ADMIN)
    }

    /// How much memory a worker has, and for what.
    #[must_use]
    pub fn memory(&self, transport: Transport) -> String {
        let mib = |bytes: u64| bytes >> 20;
        let receives = match transport {
            Transport::Rdma => {
                let lent = match self.lent_receives {
                    0 => String::new(),
                    lent => format!(", each with {} of its own; {lent} to borrow", self.own_receives),
                };
                format!(
                    "receives ({} I/O queues of {} entries{lent})",
                    self.full_queues(),
                    self.queue_entries
                )
            }
            // Queues need none of it until a command comes.
            Transport::Tcp => {
                format!(
                    "for {} commands with data in their capsules, whatever the number of queues",
                    self.io_receives
                )
            }
        };
        format!(
            "{} MiB of memory a worker: {} MiB data buffers, {} MiB {receives}",
            mib(self.pinned(transport)),
            mib(self.buffers.bytes()),
            mib(self.receives(transport)),
        )
    }

    /// I/O queues of full depth that find receives.
    #[must_use]
    pub fn full_queues(&self) -> usize {
        self.io_receives / usize::from(slots(self.queue_entries).min(self.own_receives))
    }
}

/// Bytes of data in the capsule of an I/O queue.
#[must_use]
pub fn in_capsule_data(target: &nvmf_config::Target, transport: Transport) -> u32 {
    target.in_capsule_data.unwrap_or(match transport {
        Transport::Rdma => IN_CAPSULE_RDMA,
        Transport::Tcp => IN_CAPSULE_TCP,
    })
}

/// What the workers of a group know of each other (they share a provider and hand requests to each other): who has
/// room for the next queue, and which controllers there are.
#[derive(Debug)]
pub struct Load {
    first: usize,
    queues: Box<[AtomicU32]>,
    /// I/O queues of full depth that each worker still has room for.
    io_queues_free: Box<[AtomicU32]>,
    /// Controllers with I/O queues, and the machine that each Admin queue came from.
    controllers: Mutex<Vec<(Arc<Association>, IpAddr)>>,
    /// The connections of all workers, and who has them.
    places: Mutex<Places>,
}

impl Load {
    /// So many workers from `first` on, without queues.
    #[must_use]
    pub fn new(first: WorkerId, workers: usize) -> Arc<Self> {
        let counts = || (0..workers).map(|_| AtomicU32::new(0)).collect();
        Arc::new(Self {
            first: first.0,
            queues: counts(),
            io_queues_free: counts(),
            controllers: Mutex::default(),
            places: Mutex::default(),
        })
    }

    /// Queues on all workers.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.queues.iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }

    /// The worker with the fewest.
    #[must_use]
    pub fn least(&self) -> WorkerId {
        let least = (0..self.queues.len()).min_by_key(|&at| self.queues[at].load(Ordering::Relaxed));
        WorkerId(self.first + least.unwrap_or(0))
    }

    /// The next worker in a circle that has room for an I/O queue; the next, if none has.
    #[must_use]
    pub fn after(&self, worker: WorkerId) -> WorkerId {
        let next = (worker.0 + 1).saturating_sub(self.first);
        let circle = (next..next + self.queues.len()).map(|at| at % self.queues.len());
        let with_room = circle.clone().find(|&at| self.io_queues_free[at].load(Ordering::Relaxed) > 0);
        WorkerId(self.first + with_room.unwrap_or(next % self.queues.len()))
    }

    /// A worker has room for so many I/O queues.
    pub fn set_io_queues_free(&self, worker: WorkerId, queues: usize) {
        let queues = u32::try_from(queues).unwrap_or(u32::MAX);
        self.io_queues_free[worker.0 - self.first].store(queues, Ordering::Relaxed);
    }

    /// I/O queues that all workers have room for.
    #[must_use]
    pub fn io_queues_free(&self) -> u32 {
        self.io_queues_free.iter().map(|n| n.load(Ordering::Relaxed)).fold(0, u32::saturating_add)
    }

    /// A controller with I/O queues was given to a host on this machine.
    pub fn add_controller(&self, association: Arc<Association>, peer: IpAddr) {
        self.controllers().push((association, peer.to_canonical()));
    }

    /// Its Admin queue was removed.
    pub fn remove_controller(&self, key: AssociationKey) {
        self.controllers().retain(|(association, _)| association.key() != key);
    }

    /// Whether this machine has a controller of that ID, or any if the request names none.
    #[must_use]
    pub fn has_controller(&self, cntlid: Cntlid, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.controllers().iter().any(|(association, machine)| {
            let named = cntlid.0 == 0 || cntlid == association.key().cntlid;
            named && *machine == peer && !association.is_closing()
        })
    }

    /// A worker has so many places for queues.
    pub fn add_places(&self, places: Queues) {
        self.places().add(places);
    }

    /// A queue of an I/O controller was connected from this machine.
    pub fn take_place(&self, peer: IpAddr, io: bool) {
        self.places().take(peer.to_canonical(), io);
    }

    /// It was removed.
    pub fn give_place_back(&self, peer: IpAddr, io: bool) {
        self.places().give_back(peer.to_canonical(), io);
    }

    /// Queues that this machine may still connect: others need places, too.
    #[must_use]
    pub fn places_left_for(&self, peer: IpAddr) -> Queues {
        self.places().left_for(peer.to_canonical())
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().expect("no panic happened under the lock")
    }

    fn controllers(&self) -> MutexGuard<'_, Vec<(Arc<Association>, IpAddr)>> {
        self.controllers.lock().expect("no panic happened under the lock")
    }

    /// A queue came to a worker.
    pub fn add(&self, worker: WorkerId) {
        self.queues[worker.0 - self.first].fetch_add(1, Ordering::Relaxed);
    }

    /// A queue of a worker was removed.
    pub fn remove(&self, worker: WorkerId) {
        self.queues[worker.0 - self.first].fetch_sub(1, Ordering::Relaxed);
    }
}
