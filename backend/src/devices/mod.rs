//! One worker's devices.

mod at_once;
mod attach;
mod drives;
mod images;
mod locking;
mod operation;
mod sharing;
mod syncs;

use crate::disk::sharing::Sharers;
use crate::disk::{Disk, Inner, Kind, LockId, Mail, MemberId};
use crate::uring::file::{FileOperation, Next};
use crate::uring::nvme::Namespace;
use crate::uring::{FILES_MAX, NvmeRing, Ring, RingError, Unpinned};
use at_once::AtOnce;
pub use attach::OpenedDisk;
use images::Images;
use locking::{AwaitsLock, LockedRange};
use nvmf_block::{
    Backend, BlockError, BlockOp, BlockRange, BorrowedRead, Completion, DeviceId, Full, Geometry, RegionId,
    Tag,
};
use nvmf_memory::{Memory, OutOfMemory, Pool};
use operation::Operation;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use syncs::Syncs;
use thiserror::Error;

/// Bounce buffers: for Compare, Verify, zeroes that are written, and buffers that a device cannot use.
const BOUNCE_BUFFERS: usize = 8;
/// Bytes in each.
const BOUNCE_LEN: usize = 128 << 10;

/// Approximate number of bytes that are copied or zeroed in one poll, which takes about 100 µs. The rest is left to
/// the next poll.
const AT_ONCE_BUDGET: usize = 1 << 20;

/// Completions of the ring in one poll. Many disks complete dozens at once: the first of them are answered, and what
/// the host asks for next is begun, while the others are still on their way.
const RING_BUDGET: usize = 8;

/// The largest range that is borrowed, in bytes. A larger one is copied: our copy from memory that is not cached is
/// faster than the kernel's, which finds the copy in the cache.
const BORROW_MAX: usize = 8 << 10;

/// How many operations a worker's devices have in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevicesOptions {
    /// Operations in flight, 1 to 16384.
    pub depth: u32,
}

impl Default for DevicesOptions {
    fn default() -> Self {
        Self { depth: 1024 }
    }
}

/// The devices could not be set up, or a disk not attached.
#[derive(Debug, Error)]
pub enum DevicesError {
    /// The ring could not be made.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// No memory.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// Too many devices, or the id is taken.
    #[error("device {0:?} cannot be attached: its slot is in use, and a worker takes {DEVICES_MAX} devices")]
    Device(DeviceId),
    /// The file could not be opened once more.
    #[error("cannot open the disk's file once more for a worker, through /proc/self/fd")]
    OpenAgain(#[source] io::Error),
    /// The kernel refused the file.
    #[error("the ring refused a file")]
    File(#[source] io::Error),
    /// No descriptor is left for the worker to be woken through.
    #[error("cannot make an eventfd for a worker's devices")]
    Wakeup(#[source] io::Error),
}

/// A descriptor that [`Devices::wait`] watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchId(usize);

/// Devices that one worker can have. A device's slot is its id modulo this number.
///
/// Ids that share a slot are different devices: an operation for a detached one never reaches its successor.
pub const DEVICES_MAX: u32 = FILES_MAX;

fn slot(id: DeviceId) -> u32 {
    id.0 % DEVICES_MAX
}

struct Device {
    id: DeviceId,
    disk: Arc<Inner>,
    /// The memory of a memory disk, for borrowed reads.
    memory: Option<Memory>,
    /// The namespace of an NVMe drive.
    drive: Option<Namespace>,
    in_flight: u32,
    /// Bounce buffers that its operations hold.
    bounces: usize,
    syncs: Syncs,
    /// Ranges that are locked, by whichever worker; mostly none.
    locked: Vec<LockedRange>,
    /// As what it takes part in the locks of its disk.
    member: MemberId,
    /// Devices whose blocks it cannot share: one attempt has shown that.
    unshared: Vec<DeviceId>,
    closing: bool,
}

impl Device {
    /// Whether it takes operations.
    fn is_there(&self) -> bool {
        !self.closing && self.image().is_none_or(|disk| !disk.image.is_removed())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.disk.locks.leave(self.member);
    }
}

/// Devices that did not complete their operations in time.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{operations} operations are still in flight on {devices:?}: their memory stays allocated until the process ends"
)]
pub struct Hung {
    /// Operations in flight.
    pub operations: usize,
    /// Their devices.
    pub devices: Vec<DeviceId>,
}

/// One worker's devices: files and block devices through one `io_uring`, and memory and null disks.
///
/// While several devices are attached, a device may have at most as many operations in flight as there is room left.
/// So one device that hangs takes half of the depth, and a second one half of the rest. Bounce buffers are shared by
/// the same rule.
///
/// A disk that several workers have attached needs all of them to poll: a [`BlockOp::CompareAndWrite`] waits until each
/// has said that it changes nothing of the range. [`Devices::wait`] ends when there is something to say.
///
/// It is not `Send`: only the thread that made a ring with deferred work may enter it.
///
/// ```compile_fail
/// fn send<T: Send>() {}
/// send::<nvmf_backend::Devices>();
/// ```
///
/// Dropping it waits up to ten seconds for operations in flight ([`Devices::close`] takes another limit), and
/// discards the completions. Memory that a device may still write to is never freed: if a device does not answer in
/// time, all registered memory stays allocated until the process ends, and the device's file stays locked until it
/// answers.
pub struct Devices {
    /// Declared first, so that it is dropped before the disks.
    ring: Ring,
    /// Likewise; it is made for the first NVMe drive.
    drives: Option<Box<NvmeRing>>,
    /// Likewise, for the first image.
    images: Option<Box<Images>>,
    devices: Vec<Option<Device>>,
    /// Those that are to be attached; the disk, where it has got another length meanwhile.
    expected: BTreeMap<DeviceId, Option<Disk>>,
    /// The number of devices, including closing ones.
    attached: usize,
    operations: Vec<Option<Operation>>,
    free: Vec<usize>,
    /// Operations on memory and null disks, carried out by `poll`.
    at_once: VecDeque<AtOnce>,
    /// Completions that did not come from the ring one by one: of operations that failed when they were submitted, and
    /// of those that shared a sync.
    ready: VecDeque<Completion>,
    bounce: Pool,
    bounce_region: RegionId,
    /// Operations that wait for a bounce buffer, first come first.
    awaiting_bounce: VecDeque<usize>,
    /// Operations that wait for their locks.
    awaiting_lock: Vec<AwaitsLock>,
    /// Locks that are being answered; empty in between.
    quieted: Vec<LockId>,
    /// What is said of locks, and of shared blocks.
    mail: Arc<Mail>,
    sharers: Sharers,
    depth: usize,
}

impl Devices {
    /// A ring, without devices.
    ///
    /// # Errors
    /// [`DevicesError`].
    pub fn new(options: DevicesOptions) -> Result<Self, DevicesError> {
        let depth = options.depth.clamp(1, 16384);
        let bounce = Pool::new(BOUNCE_BUFFERS, BOUNCE_LEN)?;
        let mut ring = Ring::new(depth)?;
        let mail = Mail::new().map_err(DevicesError::Wakeup)?;
        ring.watch(mail.fd()).expect("it is the first");
        let bounce_region =
            ring.register(bounce.memory()).map_err(|_| OutOfMemory { len: bounce.memory().len() })?;
        let depth = depth as usize;
        Ok(Self {
            ring,
            drives: None,
            images: None,
            devices: Vec::new(),
            expected: BTreeMap::new(),
            attached: 0,
            operations: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            at_once: VecDeque::with_capacity(depth),
            ready: VecDeque::with_capacity(depth),
            bounce,
            bounce_region,
            awaiting_bounce: VecDeque::with_capacity(depth),
            awaiting_lock: Vec::new(),
            quieted: Vec::new(),
            sharers: Sharers::new(&mail),
            mail,
            depth,
        })
    }

    /// Gives a device the new length of its disk ([`Disk::grown`]). It is the same open file, so operations in flight
    /// stay valid. One that is to be attached has it then; one that is not there, or is closing, stays as it is.
    pub fn resize(&mut self, id: DeviceId, disk: &Disk) {
        if let Some(latest) = self.expected.get_mut(&id) {
            *latest = Some(disk.clone());
        }
        if let Some(device) = self.device_mut(id).filter(|device| !device.closing) {
            let before = core::mem::replace(&mut device.disk, Arc::clone(&disk.0));
            attach::let_go(before, None);
        }
    }

    /// Detaches a device: operations in flight complete; later ones fail with [`BlockError::Gone`].
    pub fn detach(&mut self, id: DeviceId) {
        self.expected.remove(&id);
        if let Some(device) = self.device_mut(id) {
            device.closing = true;
            self.close_if_idle(slot(id));
        }
    }

    /// Waits up to `timeout` for operations in flight, discards their completions, and closes the ring.
    ///
    /// # Errors
    /// [`Hung`]: operations did not complete in time. Registered memory stays allocated.
    pub fn close(mut self, timeout: Duration) -> Result<(), Hung> {
        let deadline = Instant::now() + timeout;
        self.awaiting_lock.clear();
        for index in core::mem::take(&mut self.awaiting_bounce) {
            self.operations[index] = None;
        }
        for index in self.devices.iter().flatten().flat_map(|device| device.syncs.unpushed()) {
            self.operations[index] = None;
        }
        let Self { ring, drives, operations, .. } = &mut self;
        ring.drain(timeout, |event| operations[event.index] = None);
        if let Some(drives) = drives {
            drives.drain(timeout, |event| operations[event.index] = None);
        }
        self.drain_sharers(deadline);
        self.drain_images(deadline);
        let left: Vec<_> = self.operations.iter().flatten().map(|operation| operation.device).collect();
        if left.is_empty() {
            return Ok(());
        }
        let hung = self.devices.iter().enumerate().filter(|(at, _)| left.contains(&(*at as u32)));
        let devices = hung.filter_map(|(_, device)| device.as_ref()).map(|device| device.id).collect();
        Err(Hung { operations: left.len(), devices })
    }

    fn device(&self, id: DeviceId) -> Option<&Device> {
        self.devices.get(slot(id) as usize)?.as_ref().filter(|device| device.id == id)
    }

    fn device_mut(&mut self, id: DeviceId) -> Option<&mut Device> {
        self.devices.get_mut(slot(id) as usize)?.as_mut().filter(|device| device.id == id)
    }

    fn close_if_idle(&mut self, slot: u32) {
        let device = &mut self.devices[slot as usize];
        let Some(device) = device.take_if(|d| d.closing && d.in_flight == 0) else { return };
        self.attached -= 1;
        self.forget_unshared(device.id);
        if matches!(device.disk.kind, Kind::File(_)) {
            self.clear_files(slot);
            if let (Some(_), Some(drives)) = (device.drive, &mut self.drives) {
                let _ = drives.set_file(slot, -1);
            }
        }
    }

    /// Whether some registered memory could not be pinned because of the memlock limit. I/O works, slower.
    #[must_use]
    pub fn unpinned(&self) -> bool {
        self.unpinned_memory().is_some()
    }

    /// The memory that could not be pinned, for the log; complete once all memory is registered.
    #[must_use]
    pub fn unpinned_memory(&self) -> Option<Unpinned> {
        self.ring.unpinned()
    }

    /// Has [`Devices::wait`] watch a descriptor, which must stay open; `None` when too many are watched.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "takes a plain number as well as a borrowed descriptor"
    )]
    pub fn watch(&mut self, fd: impl AsRawFd) -> Option<WatchId> {
        self.ring.watch(fd.as_raw_fd()).map(WatchId)
    }

    /// Whether a watched descriptor has become readable since the last call.
    pub fn take_fired(&mut self, watch: WatchId) -> bool {
        self.ring.take_fired(watch.0)
    }

    /// Operations whose completions have not been polled.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.depth - self.free.len() + self.at_once.len() + self.ready.len() + self.awaiting_lock.len()
    }

    /// Starts what was submitted, and sleeps until there may be completions to poll, a watched descriptor is
    /// readable, or `timeout` is over. Without a timeout, something must be in flight or watched. A descriptor that
    /// stays readable ends every wait.
    pub fn wait(&mut self, timeout: Option<Duration>) {
        let of_drives = self.drives.as_ref().is_some_and(|drives| drives.has_reaped());
        let is_idle = self.ready.is_empty() && self.at_once.is_empty() && !self.mail.any() && !of_drives;
        if is_idle && self.may_sleep_for_images() {
            if let Some(drives) = &mut self.drives {
                drives.submit();
            }
            self.ring.wait(timeout);
        } else {
            self.submit_all();
        }
    }

    /// Checks an operation against its device's geometry. Returns the range's first byte and its length.
    fn check(&self, device: &Device, op: &BlockOp) -> Result<(u64, usize), BlockError> {
        let geometry = &device.disk.geometry;
        if op.writes() && geometry.read_only {
            return Err(BlockError::ReadOnly);
        }
        let Some(range) = op.range() else { return Ok((0, 0)) };
        let len = geometry.bytes_in(range).ok_or(BlockError::OutOfRange)?;
        let start = geometry.byte_offset(range).ok_or(BlockError::OutOfRange)?;
        if let Some(buffer) = op.buffer()
            && (!op.fits(len)
                || u32::try_from(len).is_err()
                || self.ring.regions().resolve(&buffer).is_none())
        {
            return Err(BlockError::BadBuffer);
        }
        Ok((start, len))
    }

    /// Starts an operation. `Some`: it is complete already.
    fn start(&mut self, tag: Tag, id: DeviceId, op: BlockOp) -> Option<Result<(), BlockError>> {
        let Some(device) = self.device(id).filter(|device| device.is_there()) else {
            let is_expected = self.expected.contains_key(&id);
            return Some(Err(if is_expected { BlockError::Path } else { BlockError::Gone }));
        };
        let (start, len) = match self.check(device, &op) {
            Ok(place) => place,
            Err(error) => return Some(Err(error)),
        };
        if matches!(op, BlockOp::CompareAndWrite { .. }) && len == 0 {
            return Some(Ok(()));
        }
        if let BlockOp::Share { source, range, from, .. } = op
            && !self.may_share(source, id, BlockRange::new(from, range.blocks))
        {
            return Some(Err(BlockError::Unsupported));
        }
        if device.locks(&op) || device.keeps_out(&op) {
            self.await_lock(tag, id, op, start, len);
            return None;
        }
        self.begin(tag, id, op, start, len, None)
    }

    /// Starts an operation whose range and buffer were checked. `Some`: it is complete already.
    fn begin(
        &mut self,
        tag: Tag,
        id: DeviceId,
        op: BlockOp,
        start: u64,
        len: usize,
        lock: Option<LockId>,
    ) -> Option<Result<(), BlockError>> {
        let slot = slot(id);
        let device = self.devices[slot as usize].as_mut().expect("the caller has seen it");
        match &device.disk.kind {
            Kind::Ram(disk) => {
                disk.prefetch(start, len);
                self.at_once.push_back(AtOnce::new(tag, slot, op, start, len, lock));
            }
            Kind::Null => self.at_once.push_back(AtOnce::new(tag, slot, op, start, len, lock)),
            kind @ (Kind::File(_) | Kind::Image(_)) => {
                let (file, next) = match kind {
                    Kind::File(file) => {
                        let aligned =
                            op.buffer().is_none_or(|b| b.offset.is_multiple_of(file.memory_alignment));
                        match device.drive {
                            None => FileOperation::new(op, start, len, aligned, file.write_through),
                            Some(drive) => FileOperation::on_nvme(op, start, len, aligned, drive),
                        }
                    }
                    Kind::Image(image) => {
                        let native = device.compares_and_writes(&op);
                        FileOperation::on_image(op, start, len, native, image.direct)
                    }
                    Kind::Ram(_) | Kind::Null => unreachable!("they are above"),
                };
                if let Next::Done(result) = next {
                    return Some(result);
                }
                let index = self.free.pop().expect("submit has seen that there is room");
                device.in_flight += 1;
                if let BlockOp::Share { source, .. } = op {
                    self.device_mut(source).into_iter().for_each(|source| source.in_flight += 1);
                }
                self.operations[index] = Some(Operation { tag, device: slot, file, bounce: None, lock });
                self.go_on(index, next);
                return None;
            }
        }
        device.in_flight += 1;
        None
    }

    /// An operation on the device in `slot` is over; `lock` is what it held.
    fn on_over(&mut self, slot: u32, lock: Option<LockId>) {
        let device = self.devices[slot as usize].as_mut();
        let device = device.expect("a device stays until its last operation completed");
        device.in_flight -= 1;
        // Mostly there are none.
        if !device.locked.is_empty() {
            if let Some(lock) = lock {
                device.disk.locks.release(lock);
            }
            self.settle_locks(slot);
        }
        self.close_if_idle(slot);
    }
}

impl Backend for Devices {
    fn register(&mut self, memory: &Memory) -> Result<RegionId, BlockError> {
        let region = self.ring.register(memory)?;
        if let Some(drives) = &mut self.drives {
            let same = drives.register(memory)?;
            debug_assert_eq!(same, region);
        }
        Ok(region)
    }

    fn geometry(&self, device: DeviceId) -> Option<Geometry> {
        let device = self.device(device)?;
        (!device.closing).then_some(device.disk.geometry)
    }

    fn submit(&mut self, tag: Tag, device: DeviceId, op: BlockOp) -> Result<(), Full> {
        let room = self.depth - self.in_flight();
        if room == 0 {
            return Err(Full);
        }
        if let Some(device) = self.device(device).filter(|device| !device.closing)
            && (self.attached > 1 && device.in_flight as usize >= room || self.is_held_up(device, &op))
        {
            return Err(Full);
        }
        if let Some(result) = self.start(tag, device, op) {
            self.ready.push_back(Completion { tag, result });
        }
        Ok(())
    }

    fn sharing_unit(&self, source: DeviceId, to: DeviceId) -> Option<u32> {
        self.unit_of_pair(source, to)
    }

    fn borrow_read(&mut self, device: DeviceId, range: BlockRange) -> Option<BorrowedRead<'_>> {
        let device = self.device(device).filter(|device| !device.closing)?;
        let memory = device.memory.as_ref()?;
        let geometry = &device.disk.geometry;
        let len = geometry.bytes_in(range).filter(|&len| len <= BORROW_MAX)?;
        let offset = usize::try_from(geometry.byte_offset(range)?).ok()?;
        memory.prefetch(offset, len);
        Some(BorrowedRead { memory, offset })
    }

    fn flush(&mut self) {
        self.submit_all();
    }

    /// Alternates between failed operations, memory and null disks, and the ring, so that none starves the others.
    fn poll(&mut self, completions: &mut Vec<Completion>) {
        if self.mail.any() {
            self.read_mail();
        }
        let room = completions.capacity();
        let (mut budget, mut of_ring) = (AT_ONCE_BUDGET, RING_BUDGET);
        let (mut asked, mut found, mut empty, mut more) = (false, false, false, true);
        while core::mem::take(&mut more) {
            if completions.len() < room
                && let Some(completion) = self.ready.pop_front()
            {
                completions.push(completion);
                more = true;
            }
            if completions.len() < room
                && budget > 0
                && let Some(operation) = self.at_once.pop_front()
            {
                budget = budget.saturating_sub(operation.next_bytes());
                completions.extend(self.carry_out(operation));
                more = true;
            }
            // A ring that had nothing is not asked again: that costs as much as a small operation.
            if completions.len() < room && of_ring > 0 && !empty {
                asked = true;
                if let Some(event) = self.ring.pop() {
                    completions.extend(self.on_event(event));
                    of_ring -= 1;
                    (found, more) = (true, true);
                } else {
                    empty = true;
                }
            }
        }
        if asked {
            self.ring.on_poll(found);
        }
        if self.drives.is_some() {
            self.poll_all_drives(completions);
        }
        self.poll_images(completions);
        // Operations of several steps have pushed new entries.
        self.submit_all();
    }
}

#[cfg(test)]
pub(crate) mod tests;
