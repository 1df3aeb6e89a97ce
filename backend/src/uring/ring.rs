//! The ring: one worker's doorbell to the kernel, and the place where the worker sleeps.

use super::error::{RingError, Unpinned, classify};
use super::operation::{self, Transfer};
use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use nix::sys::resource::{Resource, getrlimit};
use nvmf_block::{BlockError, Buffer, RegionId};
use nvmf_memory::Memory;
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::time::Duration;

/// Regions that a ring takes.
const REGIONS_MAX: usize = 64;
/// Fixed buffers that a ring takes: one for every [`FIXED_LEN_MAX`] bytes of a region.
const FIXED_MAX: u16 = 256;
/// Files that a ring takes.
pub(crate) const FILES_MAX: u32 = 1024;
/// Descriptors that a ring watches.
const WATCHES_MAX: usize = 8;
/// Bytes that the kernel takes as one fixed buffer.
const FIXED_LEN_MAX: usize = 1 << 30;
/// Operations that are pushed before the kernel is told of them, at the most, while the disk is what we wait for: one that answers many
/// at once would stand still while their successors are put together.
const EAGER: usize = 2;
/// Polls in vain from which on that is so.
const VAIN_POLLS: u8 = 4;
/// Marks the user data of a watch.
const WATCH: u64 = 1 << 63;

struct Region {
    memory: Memory,
    /// The fixed buffer of each [`FIXED_LEN_MAX`] bytes, where they could be pinned.
    fixed: Vec<Option<u16>>,
}

impl Region {
    /// The fixed buffer that holds the whole of these bytes. What crosses from one into the next has none.
    fn fixed(&self, offset: usize, len: usize) -> Option<u16> {
        let (first, last) = (offset / FIXED_LEN_MAX, (offset + len.max(1) - 1) / FIXED_LEN_MAX);
        if first == last { self.fixed.get(first).copied().flatten() } else { None }
    }
}

struct Watch {
    fd: RawFd,
    armed: bool,
    fired: bool,
}

/// What came out of the ring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    /// Which operation.
    pub(crate) index: usize,
    /// Bytes, or a negative errno.
    pub(crate) result: i32,
}

/// When the kernel does what is left to do for a completion.
#[derive(Debug, Clone, Copy)]
enum TaskWork {
    /// When we enter it, and only for the thread that made the ring: no interrupt per completion (Linux 6.1).
    Deferred,
    /// At any entry of ours (Linux 5.19).
    Cooperative,
}

pub(crate) struct Ring {
    ring: IoUring,
    regions: Vec<Region>,
    fixed_count: u16,
    unpinned: u64,
    watches: Vec<Watch>,
    /// Operations that the kernel has or is about to have.
    in_flight: usize,
    /// Entries that the kernel has not been told of.
    pending: usize,
    /// Polls of late that found nothing, though the kernel had operations: the disk is slower than we are. Halved by each that found some.
    vain_polls: u8,
    /// Completions that were taken from the kernel and not yet from us.
    reaped: VecDeque<Event>,
    /// Not `Send`: a ring with deferred work can be entered, and so be waited for when it ends, by no other thread.
    here: PhantomData<*mut ()>,
}

impl Ring {
    /// A ring for `operations` at once.
    pub(crate) fn new(operations: u32) -> Result<Self, RingError> {
        match Self::with(TaskWork::Deferred, operations) {
            Err(RingError::NotThere(_)) => Self::with(TaskWork::Cooperative, operations),
            other => other,
        }
    }

    fn with(work: TaskWork, operations: u32) -> Result<Self, RingError> {
        let watches = u32::try_from(WATCHES_MAX).expect("few");
        let entries = (operations + watches).next_power_of_two();
        let mut builder = IoUring::builder();
        builder.setup_taskrun_flag();
        match work {
            TaskWork::Deferred => builder.setup_single_issuer().setup_defer_taskrun(),
            TaskWork::Cooperative => builder.setup_coop_taskrun(),
        };
        let os = |source| classify(source, entries);
        let ring: IoUring = builder.build(entries).map_err(os)?;
        ring.submitter().register_files_sparse(FILES_MAX).map_err(os)?;
        ring.submitter().register_buffers_sparse(u32::from(FIXED_MAX)).map_err(os)?;
        Ok(Self {
            ring,
            regions: Vec::with_capacity(REGIONS_MAX),
            fixed_count: 0,
            unpinned: 0,
            watches: Vec::with_capacity(WATCHES_MAX),
            in_flight: 0,
            pending: 0,
            vain_polls: 0,
            reaped: VecDeque::with_capacity(operations as usize),
            here: PhantomData,
        })
    }

    pub(crate) fn register(&mut self, memory: &Memory) -> Result<RegionId, BlockError> {
        if self.regions.len() == REGIONS_MAX {
            return Err(BlockError::Unsupported);
        }
        let id = RegionId(u16::try_from(self.regions.len()).expect("few"));
        // The ring holds the memory before the kernel knows of it.
        self.regions.push(Region { memory: memory.clone(), fixed: Vec::new() });
        for offset in (0..memory.len()).step_by(FIXED_LEN_MAX) {
            let fixed = self.pin(memory, offset, (memory.len() - offset).min(FIXED_LEN_MAX))?;
            self.regions[usize::from(id.0)].fixed.push(fixed);
        }
        Ok(id)
    }

    /// `None` when the memlock limit is too low, or the table full: the kernel then pins for every operation, which is slower and as safe.
    fn pin(&mut self, memory: &Memory, offset: usize, len: usize) -> Result<Option<u16>, BlockError> {
        let index = self.fixed_count;
        if index == FIXED_MAX {
            return Ok(None);
        }
        match operation::register_buffer(&self.ring, index, memory, offset, len) {
            Ok(()) => {
                self.fixed_count += 1;
                Ok(Some(index))
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EPERM)) => {
                self.unpinned += len as u64;
                Ok(None)
            }
            Err(error) => Err(BlockError::Os(error.raw_os_error().unwrap_or(libc::EIO))),
        }
    }

    pub(crate) fn unpinned(&self) -> Option<Unpinned> {
        (self.unpinned > 0).then(|| Unpinned {
            bytes: self.unpinned,
            needed: self.regions.iter().map(|region| region.memory.len() as u64).sum(),
            limit: getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| soft),
        })
    }

    /// The memory of a buffer that lies in a region.
    pub(crate) fn resolve(&self, buffer: &Buffer) -> Option<&Memory> {
        let region = self.regions.get(usize::from(buffer.region.0))?;
        region.memory.contains(buffer.offset, buffer.len).then_some(&region.memory)
    }

    /// A part of a buffer that was resolved, for an entry.
    pub(crate) fn transfer(&self, region: RegionId, offset: usize, len: usize) -> Transfer<'_> {
        let region = &self.regions[usize::from(region.0)];
        Transfer {
            memory: &region.memory,
            fixed: region.fixed(offset, len),
            offset,
            len: u32::try_from(len).expect("operations are cut to fit"),
        }
    }

    pub(crate) fn set_file(&self, slot: u32, fd: RawFd) -> io::Result<()> {
        self.ring.submitter().register_files_update(slot, &[fd]).map(drop)
    }

    pub(crate) fn push(&mut self, index: usize, entry: Entry) {
        operation::push(&mut self.ring, &entry.user_data(index as u64));
        self.in_flight += 1;
        self.pending += 1;
        if self.pending >= EAGER && self.vain_polls >= VAIN_POLLS {
            self.submit();
        }
    }

    /// A poll found completions, or none.
    pub(crate) fn on_poll(&mut self, found: bool) {
        if found {
            self.vain_polls /= 2;
        } else if self.in_flight > self.pending {
            self.vain_polls = self.vain_polls.saturating_add(1);
        }
    }

    /// Tells the kernel of what was pushed.
    pub(crate) fn submit(&mut self) {
        if self.pending > 0 {
            self.enter(0, None).expect("the kernel takes what is put together here");
        }
    }

    /// Enters the kernel: it takes what was pushed, does the work that it has deferred, and waits for `want` completions.
    fn enter(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
        let timespec = timeout.map(types::Timespec::from);
        let mut arguments = types::SubmitArgs::new();
        if let Some(timespec) = &timespec {
            arguments = arguments.timespec(timespec);
        }
        let entered = self.ring.submitter().submit_with_args(want, &arguments);
        self.pending = self.ring.submission().len();
        match entered.map_err(|error| (error.raw_os_error(), error)) {
            // Out of kernel memory for now, interrupted, or time is up: what is not taken stays queued for the next turn.
            Ok(_) | Err((Some(libc::EAGAIN | libc::EBUSY | libc::EINTR | libc::ETIME), _)) => Ok(()),
            Err((_, error)) => Err(error),
        }
    }

    /// The next completion of an operation.
    pub(crate) fn pop(&mut self) -> Option<Event> {
        if self.reaped.is_empty() {
            self.reap();
        }
        // The flag says that completions wait for us to enter; without it there is nothing to be had by a system call.
        if self.reaped.is_empty() && self.in_flight > 0 && self.ring.submission().taskrun() {
            self.enter(0, None).expect("the kernel takes what is put together here");
            self.reap();
        }
        self.reaped.pop_front()
    }

    /// Takes all completions that the kernel has posted.
    fn reap(&mut self) {
        for cqe in self.ring.completion() {
            let index = usize::try_from(cqe.user_data() & !WATCH).expect("an index of ours");
            if cqe.user_data() & WATCH != 0 {
                self.watches[index].armed = false;
                self.watches[index].fired = true;
            } else {
                self.in_flight -= 1;
                self.reaped.push_back(Event { index, result: cqe.result() });
            }
        }
    }

    /// Watches a descriptor: [`Ring::wait`] ends when it becomes readable.
    pub(crate) fn watch(&mut self, fd: RawFd) -> Option<usize> {
        (self.watches.len() < WATCHES_MAX).then(|| {
            self.watches.push(Watch { fd, armed: false, fired: false });
            self.watches.len() - 1
        })
    }

    /// Whether a watched descriptor has become readable since this was last asked.
    pub(crate) fn take_fired(&mut self, watch: usize) -> bool {
        core::mem::take(&mut self.watches[watch].fired)
    }

    /// Sleeps until a completion, a watched descriptor, or the end of `timeout`.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) {
        // Watches are armed only to sleep: a busy worker polls its descriptors itself, and pays for no event.
        for index in 0..self.watches.len() {
            let Watch { fd, armed, .. } = self.watches[index];
            if !armed {
                let poll = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32)
                    .build()
                    .user_data(WATCH | index as u64);
                operation::push(&mut self.ring, &poll);
                self.watches[index].armed = true;
            }
        }
        self.enter(usize::from(self.reaped.is_empty()), timeout)
            .expect("the kernel takes what is put together here");
        self.reap();
    }
}

impl Drop for Ring {
    /// Waits for the kernel to be done with our memory. What hangs in a device hangs here too: that memory must not be freed.
    fn drop(&mut self) {
        while self.in_flight > 0 {
            if self.enter(1, Some(Duration::from_secs(1))).is_err() {
                // The kernel does not say any more when it is done. Its memory is lost, and not another's.
                core::mem::forget(core::mem::take(&mut self.regions));
                return;
            }
            self.reap();
            self.reaped.clear();
        }
        // The kernel takes a closed ring apart later, and keeps its files, with their locks, until then. A ring that refuses here loses
        // nothing but that time.
        let _ = self.ring.submitter().unregister_files();
        let _ = self.ring.submitter().unregister_buffers();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_region_is_pinned_in_parts() {
        let region = Region { memory: Memory::alloc(1).unwrap(), fixed: vec![Some(4), None, Some(5)] };
        const GIB: usize = FIXED_LEN_MAX;
        assert_eq!(region.fixed(0, GIB), Some(4));
        assert_eq!(region.fixed(GIB - 512, 1024), None, "from one into the next");
        assert_eq!(region.fixed(GIB, 512), None, "not pinned");
        assert_eq!(region.fixed(2 * GIB, 0), Some(5));
        assert_eq!(region.fixed(3 * GIB, 512), None, "outside");
    }

    #[test]
    fn a_kernel_that_cannot_defer_serves_as_well() {
        let mut ring = Ring::with(TaskWork::Cooperative, 4).unwrap();
        for index in 0..4 {
            ring.push(index, opcode::Nop::new().build());
        }
        ring.submit();
        let mut seen = Vec::new();
        while seen.len() < 4 {
            ring.wait(Some(Duration::from_secs(5)));
            seen.extend(core::iter::from_fn(|| ring.pop()).map(|event| event.index));
        }
        assert_eq!(seen, [0, 1, 2, 3]);
    }
}
