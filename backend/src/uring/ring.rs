//! The ring of one worker: when to submit, what to poll, and where to sleep.

use super::Regions;
use super::error::{RingError, Unpinned, classify};
use super::file::Command;
use super::nvme::Namespace;
use super::queue::{Queue, Reaped, TaskWork};
use super::regions::FIXED_LEN_MAX;
use io_uring::cqueue::{self, Entry32};
use io_uring::squeue::{self, Entry, Entry128};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nvmf_block::{BlockError, Buffer, RegionId};
use nvmf_memory::Memory;
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd as _, RawFd};
use std::time::{Duration, Instant};

/// Regions that a ring takes.
const REGIONS_MAX: usize = 64;
/// Fixed buffers that a ring takes: one for every [`FIXED_LEN_MAX`] bytes of a region.
const FIXED_MAX: u16 = 256;
/// Files that a ring takes for operations.
pub(crate) const FILES_MAX: u32 = 4096;
/// Entries of its table: for each of them, another one that it only [holds](Ring::hold_file).
pub(super) const FILE_TABLE: u32 = 2 * FILES_MAX;
/// Descriptors that a ring watches.
const WATCHES_MAX: usize = 10;
/// Operations that are pushed before they are submitted, while the device is slower than we are. A device that
/// completes many at once would be idle while their successors are prepared.
const EAGER: usize = 2;
/// Polls without completions after which the device counts as slower.
const VAIN_POLLS: u8 = 4;
/// How long dropping a ring waits for the kernel, unless it was drained before.
const DROP_TIMEOUT: Duration = Duration::from_secs(10);

struct Watch {
    fd: RawFd,
    armed: bool,
    fired: bool,
}

/// A completed command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    /// The operation's index.
    pub(crate) index: usize,
    /// Bytes, or a negative errno.
    pub(crate) result: i32,
}

pub(crate) struct Ring<S: squeue::EntryMarker = Entry, C: cqueue::EntryMarker = cqueue::Entry> {
    queue: Queue<S, C>,
    /// Entries of its table of files.
    files: u32,
    fixed_count: u16,
    unpinned: u64,
    watches: Vec<Watch>,
    /// Entries that were pushed and not submitted.
    pending: usize,
    /// Recent polls that found nothing while operations were in flight; halved by each poll that found some.
    vain_polls: u8,
    /// Completions that were reaped and not polled.
    reaped: VecDeque<Event>,
    /// How long dropping the ring waits.
    drop_timeout: Duration,
    /// Not `Send`: no other thread may enter a ring with deferred work, not even to wait for its end.
    here: PhantomData<*mut ()>,
}

/// The ring of NVMe drives, whose entries are twice as large: a worker has it when it has such a drive.
pub(crate) type NvmeRing = Ring<Entry128, Entry32>;

impl Ring {
    /// A ring for up to `operations` operations in flight.
    pub(crate) fn new(operations: u32) -> Result<Self, RingError> {
        match Self::with(TaskWork::Deferred, operations) {
            Err(RingError::NotThere(_)) => Self::with(TaskWork::Cooperative, operations),
            other => other,
        }
    }
}

impl NvmeRing {
    /// A ring for up to `operations` operations in flight, with the memory of another. The other's thread finds what is
    /// complete at any system call, so it may sleep in the other while that watches this one.
    pub(crate) fn beside(other: &Ring, operations: u32) -> Result<Self, RingError> {
        let mut ring = Self::with(TaskWork::Cooperative, operations)?;
        for region in 0..other.regions().count() {
            let region = RegionId(u16::try_from(region).expect("few"));
            let _ = ring.register(other.regions().memory(region));
        }
        Ok(ring)
    }

    /// Adds operation `index` on the drive in `slot`.
    pub(crate) fn push_nvme(&mut self, index: usize, slot: u32, drive: Namespace, command: Command) {
        self.queue.push_nvme(index, file_of(slot), drive, command);
        self.on_pushed();
    }

    /// What [`Ring::watch`] of another ring takes.
    pub(crate) fn fd(&self) -> RawFd {
        self.queue.as_raw_fd()
    }
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Ring<S, C> {
    fn with(work: TaskWork, operations: u32) -> Result<Self, RingError> {
        let watches = u32::try_from(WATCHES_MAX).expect("few");
        let entries = (operations + watches).next_power_of_two();
        let files = files_allowed();
        let queue = Queue::new(work, entries, files, FIXED_MAX);
        let queue = queue.map_err(|source| classify(source, entries))?;
        Ok(Self {
            queue,
            files,
            fixed_count: 0,
            unpinned: 0,
            watches: Vec::with_capacity(WATCHES_MAX),
            pending: 0,
            vain_polls: 0,
            reaped: VecDeque::with_capacity(operations as usize),
            drop_timeout: DROP_TIMEOUT,
            here: PhantomData,
        })
    }

    pub(crate) fn register(&mut self, memory: &Memory) -> Result<RegionId, BlockError> {
        if self.queue.regions().count() == REGIONS_MAX {
            return Err(BlockError::Unsupported);
        }
        let region = self.queue.add_region(memory);
        for offset in (0..memory.len()).step_by(FIXED_LEN_MAX) {
            let len = (memory.len() - offset).min(FIXED_LEN_MAX);
            self.pin(Buffer { region, offset, len })?;
        }
        Ok(region)
    }

    /// Pins a buffer. If the memlock limit is too low, or the table is full, the kernel pins the memory for each
    /// operation instead, which is slower.
    fn pin(&mut self, buffer: Buffer) -> Result<(), BlockError> {
        if self.fixed_count == FIXED_MAX {
            return Ok(());
        }
        match self.queue.pin(buffer, self.fixed_count) {
            Ok(()) => {
                self.fixed_count += 1;
                Ok(())
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EPERM)) => {
                self.unpinned += buffer.len as u64;
                Ok(())
            }
            Err(error) => Err(BlockError::Os(error.raw_os_error().unwrap_or(libc::EIO))),
        }
    }

    pub(crate) fn unpinned(&self) -> Option<Unpinned> {
        (self.unpinned > 0).then(|| Unpinned {
            bytes: self.unpinned,
            needed: self.queue.regions().bytes(),
            limit: getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft),
        })
    }

    /// The registered memory.
    pub(crate) fn regions(&self) -> &Regions {
        self.queue.regions()
    }

    pub(crate) fn set_file(&mut self, slot: u32, fd: RawFd) -> io::Result<()> {
        self.check_slot(slot)?;
        self.queue.set_file(file_of(slot), fd)
    }

    /// Keeps the file open, by the name of a slot, until the slot holds another or none (-1) and no operation is in
    /// flight in this ring: whatever ends the process. A lock on it lasts as long.
    pub(crate) fn hold_file(&mut self, slot: u32, fd: RawFd) -> io::Result<()> {
        self.check_slot(slot)?;
        self.queue.set_file(file_of(slot) + 1, fd)
    }

    /// Lets so many commands of this thread hang in threads of the kernel.
    pub(crate) fn allow_waiting(&self, commands: u32) -> io::Result<()> {
        self.queue.allow_waiting(commands)
    }

    /// As [`Queue::push_hanging`].
    #[cfg(test)]
    pub(crate) fn push_hanging(&mut self, fifo: &std::ffi::CStr, count: usize) {
        self.queue.push_hanging(fifo, count);
    }

    fn check_slot(&self, slot: u32) -> io::Result<()> {
        if file_of(slot) + 1 < self.files {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "the limit of open files (RLIMIT_NOFILE) leaves room for {} disks: raise it (LimitNOFILE= in the unit, or \
             ulimit -n), to {FILE_TABLE} for as many as there can be",
            self.files / 2
        )))
    }

    /// Adds operation `index` on the file in `slot`. `blocking`: whoever submits it may be put to sleep.
    pub(crate) fn push(&mut self, index: usize, slot: u32, command: Command, blocking: bool) {
        self.queue.push(index, file_of(slot), command, blocking);
        self.on_pushed();
    }

    fn on_pushed(&mut self) {
        self.pending += 1;
        if self.pending >= EAGER && self.vain_polls >= VAIN_POLLS {
            self.submit();
        }
    }

    /// Tells whether a poll found completions.
    pub(crate) fn on_poll(&mut self, found: bool) {
        if found {
            self.vain_polls /= 2;
        } else if self.queue.in_flight() > self.pending {
            self.vain_polls = self.vain_polls.saturating_add(1);
        }
    }

    /// Submits what was pushed.
    pub(crate) fn submit(&mut self) {
        if self.pending > 0 {
            self.enter(0, None).expect("the kernel accepts the entries built here");
        }
    }

    fn enter(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
        self.pending = self.queue.enter(want, timeout)?;
        Ok(())
    }

    /// The next completion of an operation.
    pub(crate) fn pop(&mut self) -> Option<Event> {
        if self.reaped.is_empty() {
            self.reap();
        }
        // Without this flag a system call would bring no completions.
        if self.reaped.is_empty() && self.queue.in_flight() > 0 && self.queue.has_task_work() {
            self.enter(0, None).expect("the kernel accepts the entries built here");
            self.reap();
        }
        self.reaped.pop_front()
    }

    /// Whether there are completions that [`Ring::pop`] gives without asking the kernel.
    pub(crate) fn has_reaped(&self) -> bool {
        !self.reaped.is_empty()
    }

    fn reap(&mut self) {
        let Self { queue, watches, reaped, .. } = self;
        queue.reap(|completion| match completion {
            Reaped::Operation(index, result) => reaped.push_back(Event { index, result }),
            Reaped::Watch(index) => {
                watches[index].armed = false;
                watches[index].fired = true;
            }
        });
    }

    /// Watches a descriptor: [`Ring::wait`] ends when it becomes readable.
    pub(crate) fn watch(&mut self, fd: RawFd) -> Option<usize> {
        (self.watches.len() < WATCHES_MAX).then(|| {
            self.watches.push(Watch { fd, armed: false, fired: false });
            self.watches.len() - 1
        })
    }

    /// Whether a watched descriptor has become readable since the last call.
    pub(crate) fn take_fired(&mut self, watch: usize) -> bool {
        core::mem::take(&mut self.watches[watch].fired)
    }

    /// Sleeps until a completion, a watched descriptor, or the end of `timeout`.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) {
        // Watches are armed only to sleep: a busy worker polls its descriptors itself.
        for (index, watch) in self.watches.iter_mut().enumerate() {
            if !watch.armed {
                self.queue.push_watch(index, watch.fd);
                watch.armed = true;
            }
        }
        self.enter(usize::from(self.reaped.is_empty()), timeout)
            .expect("the kernel accepts the entries built here");
        self.reap();
    }

    /// Waits for all operations to complete, up to `timeout`. Dropping the ring does not wait again.
    pub(crate) fn drain(&mut self, timeout: Duration, mut on_event: impl FnMut(Event)) {
        self.drop_timeout = Duration::ZERO;
        let deadline = Instant::now() + timeout;
        loop {
            self.reap();
            self.reaped.drain(..).for_each(&mut on_event);
            let left = deadline.saturating_duration_since(Instant::now());
            if self.queue.in_flight() == 0 || left.is_zero() || self.enter(1, Some(left)).is_err() {
                return;
            }
        }
    }
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Drop for Ring<S, C> {
    fn drop(&mut self) {
        self.drain(self.drop_timeout, |_| ());
    }
}

/// Entries of the table of files: no more than descriptors are allowed, whose soft limit is mostly 1024 and is raised. With
/// few, there is room for fewer devices.
fn files_allowed() -> u32 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return FILE_TABLE };
    let needed = u64::from(FILE_TABLE).min(hard);
    let allowed = match soft < needed && setrlimit(Resource::RLIMIT_NOFILE, needed, hard).is_ok() {
        true => needed,
        false => soft.min(needed),
    };
    u32::try_from(allowed).unwrap_or(FILE_TABLE)
}

/// Where the file of a slot is in the table. The entry behind it is the one that only [holds](Ring::hold_file) a file.
fn file_of(slot: u32) -> u32 {
    2 * slot
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn ring_of_drives_wakes_the_one_that_sleeps() {
        let mut ring = Ring::new(4).unwrap();
        let memory = Memory::alloc(4096).unwrap();
        let region = ring.register(&memory).unwrap();
        let mut drives = NvmeRing::beside(&ring, 4).unwrap();
        let watch = ring.watch(drives.fd()).unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        drives.set_file(0, reader.as_raw_fd()).unwrap();
        for round in 0..3 {
            // Entries of twice the size hold the usual commands as well.
            drives.push(7, 0, Command::Read { at: 0, into: Buffer { region, offset: 0, len: 1 } }, false);
            drives.submit();
            assert!(drives.pop().is_none());
            let byte = std::thread::spawn(move || {
                std::io::Write::write_all(&mut writer, &[round]).unwrap();
                writer
            });
            let deadline = Instant::now() + Duration::from_secs(60);
            let event = loop {
                assert!(Instant::now() < deadline, "it did not wake");
                ring.wait(Some(Duration::from_secs(30)));
                if ring.take_fired(watch)
                    && let Some(event) = drives.pop()
                {
                    break event;
                }
            };
            assert_eq!((event.index, event.result), (7, 1));
            writer = byte.join().unwrap();
        }
    }

    #[test]
    fn a_kernel_without_deferred_work_serves_as_well() {
        let mut ring = Ring::<Entry>::with(TaskWork::Cooperative, 4).unwrap();
        let file = tempfile::tempfile().unwrap();
        ring.set_file(0, file.as_raw_fd()).unwrap();
        for index in 0..4 {
            ring.push(index, 0, Command::Fdatasync, false);
        }
        ring.submit();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut seen = Vec::new();
        while seen.len() < 4 {
            assert!(Instant::now() < deadline, "{seen:?}");
            ring.wait(Some(Duration::from_secs(1)));
            seen.extend(core::iter::from_fn(|| ring.pop()).map(|event| (event.index, event.result)));
        }
        seen.sort_unstable();
        assert_eq!(seen, [(0, 0), (1, 0), (2, 0), (3, 0)]);
    }
}
