//! The data buffers of a worker: allocated once, registered once with the transport and once with the backend, so that
//! data go between wire and disk without a copy.
//!
//! Buffers are shared out by who can delay their return. While a buffer waits for the host it is charged to the host, its
//! machine and its association ([`Owner`]), while it waits for a device, to the device. Each may take another buffer of a
//! class while it holds less than a part of those that are free ([`ASSOCIATION_SHARE`], [`HOST_SHARE`],
//! [`MACHINE_SHARE`], [`DEVICE_SHARE`]): one that is alone may have many, and one that stops leaves most of the rest to
//! the others.

use super::owners::{Owner, Owners};
use super::resources::SetUpError;
use super::transport::{Part, Transport};
use crate::limits::{
    ASSOCIATION_SHARE, DEVICE_SHARE, HOST_SHARE, LARGE_BUFFER_LEN, MACHINE_SHARE, RESERVED_BUFFER_LEN,
    RESERVED_BUFFERS, SMALL_BUFFER_LEN,
};
use nvmf_backend::DEVICES_MAX;
use nvmf_block::{Backend, DeviceId, RegionId};
use nvmf_memory::{BufferIndex, Memory, Pool};
use std::collections::VecDeque;

/// A class of data buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// For queues that are not connected yet: anyone may have one.
    Connect,
    /// For discovery controllers, which anyone may have, too.
    Discovery,
    /// For the Admin commands of I/O controllers: neither I/O nor a stranger delays them.
    Admin,
    /// For I/O transfers that fit.
    Small,
    /// For the chunks of the rest.
    Large,
}

impl Class {
    /// How many there are.
    pub const COUNT: usize = 5;
    /// All.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Connect, Self::Discovery, Self::Admin, Self::Small, Self::Large];
}

/// Whom a buffer waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Charge {
    /// The host of the queue that took it.
    Owner,
    /// The device in this slot.
    Device(u16),
}

/// A data buffer that was taken from [`Buffers`] and goes back there.
#[derive(Debug)]
#[must_use = "a buffer that is not given back is lost"]
pub struct Buffer {
    class: Class,
    index: BufferIndex,
    charge: Charge,
}

impl Buffer {
    /// Of which class it is.
    #[must_use]
    pub fn class(&self) -> Class {
        self.class
    }
}

/// Memory that both the transport and the backend know.
#[derive(Debug)]
pub(crate) struct Registered<K> {
    pub(crate) pool: Pool,
    pub(crate) key: K,
    region: RegionId,
}

impl<K: Copy> Registered<K> {
    /// `count` pieces of `len` bytes. `register` makes them known to the transport.
    pub(crate) fn new<B: Backend>(
        backend: &mut B,
        count: usize,
        len: usize,
        register: impl FnOnce(&Memory) -> Result<K, SetUpError>,
    ) -> Result<Self, SetUpError> {
        let pool = Pool::new(count, len)?;
        let key = register(pool.memory())?;
        let region = backend.register(pool.memory()).map_err(SetUpError::Pin)?;
        Ok(Self { pool, key, region })
    }

    pub(crate) fn block(&self, offset: usize, len: u32) -> nvmf_block::Buffer {
        nvmf_block::Buffer { region: self.region, offset, len: len as usize }
    }
}

/// The data buffers of a worker, who holds how many, and the queues that wait for them.
#[derive(Debug)]
pub struct Buffers<K> {
    classes: [Registered<K>; Class::COUNT],
    /// Queues with commands that wait, each once: they are served in turn.
    waiting: [VecDeque<u32>; Class::COUNT],
    /// One of those might get a buffer now: none was looked at since the last change.
    recheck: [bool; Class::COUNT],
    /// The hosts and associations that queues belong to.
    pub owners: Owners,
    /// Buffers of each class that wait for a device, by its slot.
    devices: Box<[[u32; Class::COUNT]]>,
}

/// How many buffers of each class, and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferPlan {
    /// (how many, bytes of each), in the order of [`Class::ALL`].
    pub classes: [(usize, usize); 3],
}

impl BufferPlan {
    /// Three quarters of `memory` for large buffers, one for small ones, and the reserve on top.
    #[must_use]
    pub fn new(memory: u64, transfer_max: u32) -> Self {
        let memory = usize::try_from(memory).unwrap_or(usize::MAX);
        let large = LARGE_BUFFER_LEN.min((transfer_max as usize).max(65536));
        let small = SMALL_BUFFER_LEN;
        let counts = ((memory / 4 / small).max(4), (memory / 4 * 3 / large).max(2));
        Self { classes: [(RESERVED_BUFFERS, RESERVED_BUFFER_LEN), (counts.0, small), (counts.1, large)] }
    }

    /// Bytes in all.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.classes.iter().map(|&(count, len)| count as u64 * len as u64).sum()
    }
}

impl<K: Copy> Buffers<K> {
    /// Allocates and registers.
    ///
    /// # Errors
    /// [`SetUpError`].
    pub fn new<T: Transport<Key = K>, B: Backend>(
        transport: &mut T,
        backend: &mut B,
        plan: &BufferPlan,
        queues: usize,
    ) -> Result<Self, SetUpError> {
        let mut make =
            |(count, len)| Registered::new(backend, count, len, |memory| transport.register(memory));
        let [(reserved, reserved_len), small, large] = plan.classes;
        let strangers = (reserved / 4).max(1);
        let admin = reserved.saturating_sub(2 * strangers).max(1);
        let classes = [
            make((strangers, reserved_len))?,
            make((strangers, reserved_len))?,
            make((admin, reserved_len))?,
            make(small)?,
            make(large)?,
        ];
        Ok(Self {
            classes,
            waiting: std::array::from_fn(|_| VecDeque::with_capacity(queues)),
            recheck: [false; Class::COUNT],
            owners: Owners::default(),
            devices: vec![[0; Class::COUNT]; DEVICES_MAX as usize].into(),
        })
    }

    fn of(&self, class: Class) -> &Registered<K> {
        &self.classes[class as usize]
    }

    /// Bytes in a buffer of the class.
    #[must_use]
    pub fn len(&self, class: Class) -> u32 {
        u32::try_from(self.of(class).pool.buffer_len()).expect("buffers are small")
    }

    /// Buffers that are out, of all classes.
    #[must_use]
    pub fn out(&self) -> usize {
        self.classes.iter().map(|class| class.pool.capacity() - class.pool.available()).sum()
    }

    /// Buffers of the class that are free.
    #[must_use]
    pub fn free(&self, class: Class) -> usize {
        self.of(class).pool.available()
    }

    /// Whether a queue of this owner may take a buffer now, for an operation of this device if it is one.
    #[must_use]
    pub fn may_take(&self, class: Class, owner: Owner, device: Option<DeviceId>) -> bool {
        let free = self.of(class).pool.available();
        let held = self.owners.held(owner, class);
        let of_device = device.map_or(0, |device| self.devices[usize::from(slot(device))][class as usize]);
        // Names are free, addresses are not. Behind one address there may be many hosts all the same: each has one
        // buffer, as long as others have as many as all of them.
        let of_machine = is_within(held.machine, free, MACHINE_SHARE)
            || held.host == 0 && is_within(held.machine, free, 1);
        of_machine
            && is_within(held.host, free, HOST_SHARE)
            && is_within(held.association, free, ASSOCIATION_SHARE)
            && is_within(of_device, free, DEVICE_SHARE)
    }

    /// A buffer, charged to the owner: [`Buffers::may_take`] said so.
    pub fn take(&mut self, class: Class, owner: Owner) -> Option<Buffer> {
        let index = self.classes[class as usize].pool.take()?;
        self.owners.charge(owner, class);
        Some(Buffer { class, index, charge: Charge::Owner })
    }

    /// From now on the buffer waits for the device.
    pub fn charge_device(&mut self, buffer: &mut Buffer, owner: Owner, device: DeviceId) {
        self.discharge(buffer, owner);
        buffer.charge = Charge::Device(slot(device));
        self.devices[usize::from(slot(device))][buffer.class as usize] += 1;
    }

    /// From now on the buffer waits for the host.
    pub fn charge_owner(&mut self, buffer: &mut Buffer, owner: Owner) {
        self.discharge(buffer, owner);
        buffer.charge = Charge::Owner;
        self.owners.charge(owner, buffer.class);
    }

    fn discharge(&mut self, buffer: &Buffer, owner: Owner) {
        match buffer.charge {
            Charge::Owner => self.owners.discharge(owner, buffer.class),
            Charge::Device(slot) => self.devices[usize::from(slot)][buffer.class as usize] -= 1,
        }
        self.recheck(buffer.class);
    }

    /// Gives a buffer back that a queue of this owner took.
    #[expect(clippy::needless_pass_by_value, reason = "whoever gives a buffer back has it no more")]
    pub fn put(&mut self, buffer: Buffer, owner: Owner) {
        self.discharge(&buffer, owner);
        self.classes[buffer.class as usize].pool.put(buffer.index);
    }

    /// A queue has a command that waits for a buffer.
    pub fn wait(&mut self, class: Class, queue: u32) {
        self.waiting[class as usize].push_back(queue);
    }

    /// Whether commands wait for buffers.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.waiting.iter().any(|waiting| !waiting.is_empty())
    }

    /// A buffer, a share or a credit came back, or a queue waits that was not looked at yet.
    pub fn recheck(&mut self, class: Class) {
        self.recheck[class as usize] |= !self.waiting[class as usize].is_empty();
    }

    /// How many queues are to be looked at: none, if nothing changed since the last time.
    pub fn take_recheck(&mut self, class: Class) -> usize {
        let queues = self.waiting[class as usize].len();
        if core::mem::take(&mut self.recheck[class as usize]) { queues } else { 0 }
    }

    /// The queue that has waited longest.
    pub fn next_waiting(&mut self, class: Class) -> Option<u32> {
        self.waiting[class as usize].pop_front()
    }

    /// A queue was removed: it waits for nothing.
    pub fn forget(&mut self, queue: u32) {
        self.waiting.iter_mut().for_each(|waiting| waiting.retain(|&other| other != queue));
    }

    fn offset(&self, buffer: &Buffer) -> usize {
        self.of(buffer.class).pool.offset(buffer.index)
    }

    /// Its memory, for the transport.
    #[must_use]
    pub fn part(&self, buffer: &Buffer) -> Part<'_, K> {
        let registered = self.of(buffer.class);
        Part { key: registered.key, memory: registered.pool.memory(), offset: self.offset(buffer) }
    }

    /// Its first `len` bytes, for the backend.
    #[must_use]
    pub fn block(&self, buffer: &Buffer, len: u32) -> nvmf_block::Buffer {
        self.of(buffer.class).block(self.offset(buffer), len)
    }

    /// Its memory and where it begins there.
    #[must_use]
    pub fn memory(&self, buffer: &Buffer) -> (&Memory, usize) {
        (self.of(buffer.class).pool.memory(), self.offset(buffer))
    }
}

/// Whether one that holds so many may have another when so many are free. One that holds none may, if there is one at
/// all.
fn is_within(held: u32, free: usize, share: usize) -> bool {
    free > 0 && held as usize * share < free + share - 1
}

/// The slot that a device has in its backend.
pub(crate) fn slot(device: DeviceId) -> u16 {
    u16::try_from(device.0 % DEVICES_MAX).expect("few slots")
}

const _: () = assert!(DEVICES_MAX <= 1 << 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plan_stays_within_what_was_granted() {
        let plan = BufferPlan::new(64 << 20, 1 << 20);
        assert_eq!(plan.classes, [(64, 4096), (1024, 16 << 10), (384, 128 << 10)]);
        assert_eq!(plan.bytes(), (64 << 20) + 64 * 4096);
        assert_eq!(BufferPlan::new(0, 4096).classes, [(64, 4096), (4, 16384), (2, 65536)]);
    }
}
