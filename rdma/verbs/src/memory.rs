//! Registered regions, and the windows through which peers see parts of them.

use crate::ffi::{self, Device, DeviceLimits, Region, Window};
use crate::provider::VerbsProvider;
use nvmf_memory::Memory;
use nvmf_rdma::slots::Slots;
use nvmf_rdma::{Access, LocalKey, MemoryRegion, QueuePairId, RegisterError, RemoteKey, RemoteMemory, Sge};
use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::sync::Arc;

/// A registered region and what may be done with it.
pub(crate) struct Registered {
    pub(crate) region: Region,
    pub(crate) access: Access,
}

impl Registered {
    /// The device's name for a part of it.
    fn element(&self, sge: Sge) -> Option<ffi::Sge> {
        self.region.part(sge.offset, sge.len)
    }
}

/// Everything that is registered.
pub(crate) struct Regions {
    table: Slots<Registered>,
    max_len: u64,
}

/// How many regions there can be.
const REGIONS_MAX: u16 = u16::MAX;

impl Regions {
    pub(crate) fn new(limits: &DeviceLimits) -> Self {
        Self { table: Slots::new(REGIONS_MAX), max_len: limits.max_mr_size }
    }

    pub(crate) fn register(
        &mut self,
        device: &Arc<Device>,
        memory: &Memory,
        access: Access,
        windows: bool,
    ) -> Result<MemoryRegion, RegisterError> {
        let len = memory.len();
        let refused = |errno| RegisterError::Os { len, errno };
        if len as u64 > self.max_len {
            return Err(refused(libc::EMSGSIZE));
        }
        // A window through which a peer writes needs local write of its region, and nothing else.
        let region = Region::register(device, memory, access, windows)
            .map_err(|error| refused(error.raw_os_error().unwrap_or(libc::EIO)))?;
        let (key, address) = (region.remote_key(), region.address());
        let standing = access.allows(Access::REMOTE_READ) || access.allows(Access::REMOTE_WRITE);
        let remote = standing.then(|| RemoteMemory {
            key: RemoteKey(key),
            address,
            len: u32::try_from(len).unwrap_or(u32::MAX),
        });
        let no_key = RegisterError::NoKey { limit: usize::from(REGIONS_MAX) };
        let local_key = self.table.insert(|_| Registered { region, access }).ok_or(no_key)?;
        Ok(MemoryRegion { local_key: LocalKey(local_key), remote, len })
    }

    pub(crate) fn get(&self, key: LocalKey) -> Option<&Registered> {
        self.table.get(key.0)
    }

    pub(crate) fn remove(&mut self, key: LocalKey) -> Option<Registered> {
        self.table.remove(key.0)
    }

    /// The device's name for memory that is read.
    pub(crate) fn source(&self, sge: Sge) -> Option<ffi::Sge> {
        self.get(sge.local_key)?.element(sge)
    }

    /// The device's name for memory that is written.
    pub(crate) fn sink(&self, sge: Sge) -> Option<ffi::Sge> {
        let registered = self.get(sge.local_key)?;
        registered.element(sge).filter(|_| registered.access.allows(Access::LOCAL_WRITE))
    }

    /// A registration of these bytes alone, for one RDMA READ over iWARP, which sends the peer the key of its sink.
    pub(crate) fn register_sink(&self, device: &Arc<Device>, sge: Sge) -> Option<Region> {
        self.sink(sge)?;
        let memory = self.get(sge.local_key)?.region.memory();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        Region::register_part(device, memory, sge.offset, sge.len as usize, access, false).ok()
    }

    /// Copies bytes of any memory into a part; `None` when either does not hold as many.
    pub(crate) fn copy(&self, from: &Memory, offset: usize, to: Sge) -> Option<()> {
        self.sink(to)?;
        let len = to.len as usize;
        let memory = self.get(to.local_key)?.region.memory();
        from.contains(offset, len).then(|| from.copy_to(offset, memory, to.offset, len))
    }

    /// A part that is about to be exposed to a peer.
    ///
    /// # Errors
    /// See [`RegisterError`].
    pub(crate) fn exposable(&self, sge: Sge, access: Access) -> Result<&Registered, RegisterError> {
        let registered = self.get(sge.local_key).ok_or(RegisterError::OutOfBounds)?;
        registered.element(sge).ok_or(RegisterError::OutOfBounds)?;
        if access.allows(Access::REMOTE_WRITE) && !registered.access.allows(Access::LOCAL_WRITE) {
            return Err(RegisterError::Access);
        }
        Ok(registered)
    }
}

/// A window and its last key.
struct Entry {
    window: Window,
    key: u32,
    /// What it exposes a part of, and to which queue pair.
    exposed: Option<(LocalKey, QueuePairId)>,
}

/// Memory windows: as many as commands can be under way at once; none is made or freed for a command.
#[derive(Default)]
pub(crate) struct Windows {
    /// By the upper 24 bits of the key, which never change.
    all: HashMap<u32, Entry, BuildHasherDefault<KeyHasher>>,
    /// Those that expose nothing.
    free: Vec<u32>,
}

/// Spreads keys. They are the device's choice, never a peer's.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u32(byte.into()));
    }

    fn write_u32(&mut self, key: u32) {
        self.0 = (self.0 ^ u64::from(key)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }
}

impl Windows {
    /// Sees to it that there are so many in all, as far as the device makes them.
    pub(crate) fn reserve(&mut self, device: &Arc<Device>, count: usize) {
        while self.all.len() < count && self.add(device).is_ok() {}
    }

    fn add(&mut self, device: &Arc<Device>) -> io::Result<()> {
        let window = Window::alloc(device)?;
        let key = window.key();
        // Devices give no two windows the same upper 24 bits. Of one that does, the first may be waiting for the doorbell.
        match self.all.entry(key >> 8) {
            Occupied(_) => return Err(io::ErrorKind::AlreadyExists.into()),
            Vacant(place) => _ = place.insert(Entry { window, key, exposed: None }),
        }
        self.free.push(key >> 8);
        Ok(())
    }

    /// A window for a part of `region` that is exposed to `queue_pair`, and its new key.
    pub(crate) fn expose(
        &mut self,
        device: &Arc<Device>,
        region: LocalKey,
        queue_pair: QueuePairId,
    ) -> Result<(u32, &Window), RegisterError> {
        if self.free.is_empty() {
            self.add(device).map_err(|error| match self.all.len() {
                0 => RegisterError::Window(error.raw_os_error().unwrap_or(libc::EIO)),
                limit => RegisterError::NoKey { limit },
            })?;
        }
        let limit = self.all.len();
        let free = self.free.pop().and_then(|free| self.all.get_mut(&free));
        let entry = free.ok_or(RegisterError::NoKey { limit })?;
        entry.exposed = Some((region, queue_pair));
        // The low eight bits are ours: a key is not the same again for 256 rounds.
        entry.key = entry.key & 0xffff_ff00 | entry.key.wrapping_add(1) & 0xff;
        Ok((entry.key, &entry.window))
    }

    /// Whether the key is one of a queue pair's.
    pub(crate) fn is_exposed(&self, key: RemoteKey, queue_pair: QueuePairId) -> bool {
        self.all.get(&(key.0 >> 8)).is_some_and(|entry| entry.is_exposed(key, queue_pair))
    }

    /// A key was invalidated on its queue pair: the window can expose something else. Another queue pair's key (rxe
    /// lets a peer end those too) stays where it is, because work that waits for the doorbell may name its window.
    pub(crate) fn invalidated(&mut self, key: RemoteKey, queue_pair: QueuePairId) {
        if let Some(entry) = self.all.get_mut(&(key.0 >> 8)).filter(|it| it.is_exposed(key, queue_pair)) {
            entry.exposed = None;
            self.free.push(key.0 >> 8);
        }
    }

    /// Frees the windows of a region that goes.
    pub(crate) fn forget_region(&mut self, region: LocalKey) {
        self.all.retain(|_, entry| entry.exposed.is_none_or(|(of, _)| of != region));
    }

    /// Frees the windows that a queue pair has bound when it goes: only their owner could have invalidated them.
    pub(crate) fn forget_queue_pair(&mut self, queue_pair: QueuePairId) {
        self.all.retain(|_, entry| entry.exposed.is_none_or(|(_, to)| to != queue_pair));
    }
}

impl Entry {
    fn is_exposed(&self, key: RemoteKey, queue_pair: QueuePairId) -> bool {
        self.key == key.0 && self.exposed.is_some_and(|(_, to)| to == queue_pair)
    }
}

/// A region whose registration ended while work was under way.
pub(crate) struct Retired {
    _registered: Registered,
    /// Its name, which is nothing's any more.
    key: LocalKey,
    /// How far each queue pair must come: its sends, and the receives that land here.
    queue_pairs: Vec<(QueuePairId, u32, Option<u32>)>,
}

impl VerbsProvider {
    /// Ends a registration: at once where peers had a standing key, else when no work names it any more.
    pub(crate) fn retire(&mut self, key: LocalKey) {
        // Work that waits for the doorbell names regions and windows: the device must have seen it before they go.
        self.ring_all();
        self.windows.forget_region(key);
        let Some(registered) = self.regions.remove(key) else { return };
        // A region's own key must be invalid at once. Work of ours that still names the region fails then; it touches
        // nothing.
        let standing =
            registered.access.allows(Access::REMOTE_READ) || registered.access.allows(Access::REMOTE_WRITE);
        let queue_pairs: Vec<_> = self
            .queue_pairs
            .keys()
            .filter_map(|key| self.queue_pairs.get(key))
            .map(|qp| (qp, qp.receives.end_of(key)))
            .filter(|(qp, receives)| receives.is_some() || !qp.sends.is_empty())
            .map(|(qp, receives)| (qp.name, qp.sends.end(), receives))
            .collect();
        let retired = Retired { _registered: registered, key, queue_pairs };
        if !standing {
            self.retired.push(retired);
            self.release_retired();
        }
    }

    /// Releases regions that no work names any more.
    pub(crate) fn release_retired(&mut self) {
        let (queue_pairs, shared_queues) = (&self.queue_pairs, &self.shared_queues);
        self.retired.retain_mut(|it| {
            it.queue_pairs.retain(|&(name, sends, receives)| {
                queue_pairs.get(name.0).is_some_and(|qp| {
                    !qp.sends.has_reached(sends)
                        || receives.is_some_and(|receives| !qp.receives.has_reached(receives))
                })
            });
            !it.queue_pairs.is_empty() || shared_queues.iter().any(|queue| queue.names(it.key))
        });
    }
}
