//! One worker's devices.

use crate::disk::{Disk, Inner, Kind};
use crate::ram;
use crate::uring::file::{FileOperation, Next};
use crate::uring::{Event, FILES_MAX, Ring, RingError, Unpinned};
use nvmf_block::{
    Backend, BlockError, BlockOp, BlockRange, BorrowedRead, Buffer, Completion, DeviceId, Full, Geometry,
    RegionId, Tag,
};
use nvmf_memory::{BufferIndex, Memory, OutOfMemory, Pool};
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Buffers for what compares, verifies, or writes zeroes by hand.
const BOUNCE_BUFFERS: usize = 8;
/// Bytes in each.
const BOUNCE_LEN: usize = 128 << 10;

/// Bytes up to which a range is borrowed. More is copied: our copy out of memory that is not in the cache is faster than the kernel's,
/// which then finds them there.
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
    /// The kernel refused the file.
    #[error("the ring refused a file: {0}")]
    File(#[source] io::Error),
}

/// A descriptor that [`Devices::wait`] watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchId(usize);

/// Devices that one worker takes. An id has the slot that remains when it is divided by this.
///
/// Two ids of one slot are two devices: an operation for one that went never reaches another that came.
pub const DEVICES_MAX: u32 = FILES_MAX;

fn slot(id: DeviceId) -> u32 {
    id.0 % DEVICES_MAX
}

struct Device {
    id: DeviceId,
    disk: Arc<Inner>,
    /// What can be borrowed.
    memory: Option<Memory>,
    in_flight: u32,
    closing: bool,
}

struct Operation {
    tag: Tag,
    device: usize,
    file: FileOperation,
    bounce: Option<BufferIndex>,
}

/// One worker's devices: files and block devices through one `io_uring`, memory and null at once.
///
/// Belongs to the thread that made it: it is not `Send`, as only that thread may enter a ring with deferred work.
///
/// ```compile_fail
/// fn send<T: Send>() {}
/// send::<nvmf_backend::Devices>();
/// ```
///
/// Ending it waits for what the kernel still has in hand, without bound, and throws the completions away: memory that a device may
/// still write to is never freed.
pub struct Devices {
    /// Declared first, and so ended before the disks: nothing in the kernel outlives its file.
    ring: Ring,
    devices: Vec<Option<Device>>,
    operations: Vec<Option<Operation>>,
    free: Vec<usize>,
    /// Operations on devices without a medium, carried out when they are polled.
    at_once: VecDeque<(Tag, usize, BlockOp)>,
    /// Operations that failed before they began.
    ready: VecDeque<Completion>,
    bounce: Pool,
    bounce_region: RegionId,
    /// Operations that wait for a bounce buffer, in order; `true` wants zeroes.
    awaiting_bounce: VecDeque<(usize, bool)>,
    depth: usize,
}

impl Devices {
    /// No devices yet.
    ///
    /// # Errors
    /// [`DevicesError`].
    pub fn new(options: DevicesOptions) -> Result<Self, DevicesError> {
        let depth = options.depth.clamp(1, 16384);
        let bounce = Pool::new(BOUNCE_BUFFERS, BOUNCE_LEN)?;
        let mut ring = Ring::new(depth)?;
        let bounce_region =
            ring.register(bounce.memory()).map_err(|_| OutOfMemory { len: bounce.memory().len() })?;
        let depth = depth as usize;
        Ok(Self {
            ring,
            devices: Vec::new(),
            operations: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            at_once: VecDeque::with_capacity(depth),
            ready: VecDeque::with_capacity(depth),
            bounce,
            bounce_region,
            awaiting_bounce: VecDeque::with_capacity(depth),
            depth,
        })
    }

    /// Makes a disk this worker's device `id`.
    ///
    /// # Errors
    /// [`DevicesError::Device`], [`DevicesError::File`].
    pub fn attach(&mut self, id: DeviceId, disk: &Disk) -> Result<(), DevicesError> {
        let slot = slot(id);
        let index = slot as usize;
        if self.devices.get(index).is_some_and(Option::is_some) {
            return Err(DevicesError::Device(id));
        }
        if let Kind::File(file) = &disk.0.kind {
            self.ring.set_file(slot, file.file.as_raw_fd()).map_err(DevicesError::File)?;
        }
        if self.devices.len() <= index {
            self.devices.resize_with(index + 1, || None);
        }
        let memory = match &disk.0.kind {
            // Its borrowers count their holds: each worker has a count of its own.
            Kind::Ram(disk) => Some(disk.memory().share()),
            Kind::File(_) | Kind::Null => None,
        };
        let disk = Arc::clone(&disk.0);
        self.devices[index] = Some(Device { id, disk, memory, in_flight: 0, closing: false });
        Ok(())
    }

    /// Lets a device go: what is in flight completes, what is submitted from now on fails with [`BlockError::Gone`].
    pub fn detach(&mut self, id: DeviceId) {
        if let Some(device) = self.device_mut(id) {
            device.closing = true;
            self.close_if_idle(slot(id) as usize);
        }
    }

    fn device(&self, id: DeviceId) -> Option<&Device> {
        self.devices.get(slot(id) as usize)?.as_ref().filter(|device| device.id == id)
    }

    fn device_mut(&mut self, id: DeviceId) -> Option<&mut Device> {
        self.devices.get_mut(slot(id) as usize)?.as_mut().filter(|device| device.id == id)
    }

    fn close_if_idle(&mut self, index: usize) {
        let Some(device) = self.devices[index].take_if(|d| d.closing && d.in_flight == 0) else { return };
        if matches!(device.disk.kind, Kind::File(_)) {
            // The slot is emptied so that the kernel lets go of the file; if it will not, the next attach replaces it.
            let _ = self.ring.set_file(u32::try_from(index).expect("a device id"), -1);
        }
    }

    /// Whether some registered memory could not be pinned because of the memlock limit: everything works, slower.
    #[must_use]
    pub fn unpinned(&self) -> bool {
        self.unpinned_memory().is_some()
    }

    /// What could not be pinned, and what to do about it: for one line of the log, once all memory is registered.
    #[must_use]
    pub fn unpinned_memory(&self) -> Option<Unpinned> {
        self.ring.unpinned()
    }

    /// Watches a descriptor while waiting; `None` past the few that can be watched. It stays open for as long as this does.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "takes a plain number as well as a borrowed descriptor"
    )]
    pub fn watch(&mut self, fd: impl AsRawFd) -> Option<WatchId> {
        self.ring.watch(fd.as_raw_fd()).map(WatchId)
    }

    /// Whether a watched descriptor has become readable since this was last asked.
    pub fn take_fired(&mut self, watch: WatchId) -> bool {
        self.ring.take_fired(watch.0)
    }

    /// Operations that have not been polled yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.depth - self.free.len() + self.at_once.len() + self.ready.len()
    }

    /// Rings the doorbell and sleeps until there may be something to poll, a watched descriptor is readable, or `timeout` is over.
    /// Without a timeout, something must be in flight or watched. A descriptor that is still readable ends the next wait too.
    pub fn wait(&mut self, timeout: Option<Duration>) {
        if self.ready.is_empty() && self.at_once.is_empty() {
            self.ring.wait(timeout);
        } else {
            self.ring.submit();
        }
    }

    /// Checks an operation against its device: its place in the file and its bytes.
    fn check(&self, device: &Device, op: &BlockOp) -> Result<(u64, usize), BlockError> {
        let geometry = &device.disk.geometry;
        if op.writes() && geometry.read_only {
            return Err(BlockError::ReadOnly);
        }
        let Some(range) = op.range() else { return Ok((0, 0)) };
        let len = geometry.bytes_in(range).ok_or(BlockError::OutOfRange)?;
        let start = geometry.byte_offset(range).ok_or(BlockError::OutOfRange)?;
        if let Some(buffer) = op.buffer() {
            let aligned = match &device.disk.kind {
                Kind::File(file) => buffer.offset.is_multiple_of(file.memory_alignment),
                Kind::Ram(_) | Kind::Null => true,
            };
            if buffer.len != len
                || !aligned
                || self.ring.resolve(&buffer).is_none()
                || u32::try_from(len).is_err()
            {
                return Err(BlockError::BadBuffer);
            }
        }
        Ok((start, len))
    }

    /// Starts an operation: `Some` when it is over already.
    fn start(&mut self, tag: Tag, id: DeviceId, op: BlockOp) -> Option<Result<(), BlockError>> {
        let Some(device) = self.device(id) else { return Some(Err(BlockError::Gone)) };
        if device.closing {
            return Some(Err(BlockError::Gone));
        }
        let (start, len) = match self.check(device, &op) {
            Ok(place) => place,
            Err(error) => return Some(Err(error)),
        };
        let is_file = matches!(device.disk.kind, Kind::File(_));
        if let Kind::Ram(disk) = &device.disk.kind {
            disk.prefetch(start, len);
        }
        if !is_file {
            self.at_once.push_back((tag, slot(id) as usize, op));
            if let Some(device) = self.device_mut(id) {
                device.in_flight += 1;
            }
            return None;
        }
        let (file, next) = FileOperation::new(op, slot(id), start, len);
        if let Next::Done(result) = next {
            return Some(result);
        }
        let index = self.free.pop().expect("submit has seen that there is room");
        self.operations[index] = Some(Operation { tag, device: slot(id) as usize, file, bounce: None });
        if let Some(device) = self.device_mut(id) {
            device.in_flight += 1;
        }
        self.go_on(index, next);
        None
    }

    /// Does what an operation needs next; `Some` when it is over, and its place free.
    fn go_on(&mut self, index: usize, next: Next) -> Option<Completion> {
        match next {
            Next::Continue => {
                let file = self.operation(index).file;
                let entry = file.entry(&self.ring);
                self.ring.push(index, entry);
                None
            }
            Next::NeedBounce(zeroes) => {
                self.awaiting_bounce.push_back((index, zeroes));
                self.hand_out_bounce();
                None
            }
            Next::Done(result) => Some(self.finish(index, result)),
        }
    }

    fn operation(&mut self, index: usize) -> &mut Operation {
        self.operations[index].as_mut().expect("the kernel completes what is in flight, once")
    }

    fn hand_out_bounce(&mut self) {
        while !self.awaiting_bounce.is_empty()
            && let Some(bounce) = self.bounce.take()
        {
            let (index, zeroes) = self.awaiting_bounce.pop_front().expect("it is not empty");
            let buffer =
                Buffer { region: self.bounce_region, offset: self.bounce.offset(bounce), len: BOUNCE_LEN };
            if zeroes {
                self.bounce.memory().fill(buffer.offset, buffer.len, 0);
            }
            let operation = self.operation(index);
            operation.bounce = Some(bounce);
            operation.file.give_bounce(buffer);
            self.go_on(index, Next::Continue);
        }
    }

    /// Carries out an operation that needs no kernel.
    fn carry_out(&mut self, tag: Tag, device: usize, op: &BlockOp) -> Completion {
        let here = self.devices[device].as_mut().expect("a device stays until its last operation completed");
        here.in_flight -= 1;
        let buffer = op.buffer().and_then(|b| Some((self.ring.resolve(&b)?, b.offset)));
        let geometry = &here.disk.geometry;
        let result = match &here.disk.kind {
            Kind::Ram(disk) => disk.carry_out(op, geometry, buffer),
            _ => ram::carry_out_on_null(op, op.buffer().map_or(0, |buffer| buffer.len), buffer),
        };
        self.close_if_idle(device);
        Completion { tag, result }
    }

    fn finish(&mut self, index: usize, result: Result<(), BlockError>) -> Completion {
        let operation = self.operations[index].take().expect("it is in flight");
        self.free.push(index);
        if let Some(bounce) = operation.bounce {
            debug_assert!(operation.file.bounce().is_some());
            self.bounce.put(bounce);
            self.hand_out_bounce();
        }
        if let Some(Some(device)) = self.devices.get_mut(operation.device) {
            device.in_flight -= 1;
            self.close_if_idle(operation.device);
        }
        Completion { tag: operation.tag, result }
    }

    fn on_event(&mut self, event: Event) -> Option<Completion> {
        let mut file = self.operation(event.index).file;
        let next = file.on_result(event.result, &self.ring);
        self.operation(event.index).file = file;
        self.go_on(event.index, next)
    }
}

impl Backend for Devices {
    fn register(&mut self, memory: &Memory) -> Result<RegionId, BlockError> {
        self.ring.register(memory)
    }

    fn geometry(&self, device: DeviceId) -> Option<Geometry> {
        let device = self.device(device)?;
        (!device.closing).then_some(device.disk.geometry)
    }

    fn submit(&mut self, tag: Tag, device: DeviceId, op: BlockOp) -> Result<(), Full> {
        if self.in_flight() >= self.depth {
            return Err(Full);
        }
        if let Some(result) = self.start(tag, device, op) {
            self.ready.push_back(Completion { tag, result });
        }
        Ok(())
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
        self.ring.submit();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let room = completions.capacity();
        while completions.len() < room
            && let Some(completion) = self.ready.pop_front()
        {
            completions.push(completion);
        }
        while completions.len() < room
            && let Some((tag, device, op)) = self.at_once.pop_front()
        {
            completions.push(self.carry_out(tag, device, &op));
        }
        let asked = completions.len() < room;
        let mut found = false;
        while completions.len() < room
            && let Some(event) = self.ring.pop()
        {
            found = true;
            if let Some(completion) = self.on_event(event) {
                completions.push(completion);
            }
        }
        if asked {
            self.ring.on_poll(found);
        }
        // An operation that goes on has a new entry in the queue.
        self.ring.submit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_through_the_page_cache_conforms() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let disk = Disk::open_buffered(&path, None, false).unwrap();
        assert!(!disk.direct());
        let mut devices = Devices::new(DevicesOptions { depth: 64 }).unwrap();
        devices.attach(DeviceId(0), &disk).unwrap();
        nvmf_block::conformance::check(&mut devices, DeviceId(0), &mut |devices| {
            devices.wait(Some(Duration::from_secs(5)));
        });
    }
}
