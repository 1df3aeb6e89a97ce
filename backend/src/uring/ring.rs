//! The ring of one worker: when to submit, what to poll, and where to sleep.

use super::Regions;
use super::error::{RingError, Unpinned, classify};
use super::file::Command;
use super::queue::{Queue, Reaped, TaskWork};
use super::regions::FIXED_LEN_MAX;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nvmf_block::{BlockError, Buffer, RegionId};
use nvmf_memory::Memory;
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// Regions that a ring takes.
const REGIONS_MAX: usize = 64;
/// Fixed buffers that a ring takes: one for every [`FIXED_LEN_MAX`] bytes of a region.
const FIXED_MAX: u16 = 256;
/// Files that a ring takes for operations.
pub(crate) const FILES_MAX: u32 = 1024;
/// Entries of its table: behind those files, as many that it only [holds](Ring::hold_file).
pub(super) const FILE_TABLE: u32 = 2 * FILES_MAX;
/// Descriptors that a ring watches.
const WATCHES_MAX: usize = 9;
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

pub(crate) struct Ring {
    queue: Queue,
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

impl Ring {
    /// A ring for up to `operations` operations in flight.
    pub(crate) fn new(operations: u32) -> Result<Self, RingError> {
        match Self::with(TaskWork::Deferred, operations) {
            Err(RingError::NotThere(_)) => Self::with(TaskWork::Cooperative, operations),
            other => other,
        }
    }

    fn with(work: TaskWork, operations: u32) -> Result<Self, RingError> {
        let watches = u32::try_from(WATCHES_MAX).expect("few");
        let entries = (operations + watches).next_power_of_two();
        let make = || Queue::new(work, entries, FILE_TABLE, FIXED_MAX);
        let queue = make().or_else(|error| if raise_files_limit(&error) { make() } else { Err(error) });
        let queue = queue.map_err(|source| classify(source, entries))?;
        Ok(Self {
            queue,
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
        self.queue.set_file(slot, fd)
    }

    /// Keeps the file open, by the name of a slot, until the slot holds another or none (-1) and no operation is in
    /// flight in this ring: whatever ends the process. A lock on it lasts as long.
    pub(crate) fn hold_file(&mut self, slot: u32, fd: RawFd) -> io::Result<()> {
        self.queue.set_file(FILES_MAX + slot, fd)
    }

    /// Adds operation `index` on the file in `slot`.
    pub(crate) fn push(&mut self, index: usize, slot: u32, command: Command) {
        self.queue.push(index, slot, command);
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

impl Drop for Ring {
    fn drop(&mut self) {
        self.drain(self.drop_timeout, |_| ());
    }
}

/// A table of files may be no longer than the limit of open files, whose soft value is mostly 1024. Says whether it was
/// that, and is raised now.
fn raise_files_limit(error: &io::Error) -> bool {
    let needed = u64::from(FILE_TABLE);
    error.raw_os_error() == Some(libc::EMFILE)
        && getrlimit(Resource::RLIMIT_NOFILE).is_ok_and(|(soft, hard)| {
            soft < needed && hard >= needed && setrlimit(Resource::RLIMIT_NOFILE, needed, hard).is_ok()
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_kernel_without_deferred_work_serves_as_well() {
        let mut ring = Ring::with(TaskWork::Cooperative, 4).unwrap();
        let file = tempfile::tempfile().unwrap();
        ring.set_file(0, file.as_raw_fd()).unwrap();
        for index in 0..4 {
            ring.push(index, 0, Command::Fdatasync);
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
