//! The ring: one worker's doorbell to the kernel, and the place where the worker sleeps.

use super::operation::{self, Transfer};
use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use nvmf_block::{BlockError, Buffer, RegionId};
use nvmf_memory::Memory;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;
use thiserror::Error;

/// Regions that a ring takes.
const REGIONS_MAX: u16 = 64;
/// Files that a ring takes.
pub(crate) const FILES_MAX: u32 = 1024;
/// Descriptors that a ring watches.
const WATCHES_MAX: usize = 8;
/// Bytes that the kernel takes as one fixed buffer.
const FIXED_LEN_MAX: usize = 1 << 30;
/// Marks the user data of a watch.
const WATCH: u64 = 1 << 63;

/// The ring could not be made.
#[derive(Debug, Error)]
pub enum RingError {
    /// io_uring is switched off.
    #[error(
        "io_uring is not allowed here: {0}; check `sysctl kernel.io_uring_disabled` (0 allows it) and the seccomp filter of the \
         container or unit (SystemCallFilter= must allow io_uring_setup, io_uring_enter, io_uring_register)"
    )]
    NotAllowed(#[source] io::Error),
    /// The kernel has none, or too old a one.
    #[error("this kernel has no usable io_uring: {0}; Linux 5.19 or later is needed")]
    NotThere(#[source] io::Error),
    /// Anything else.
    #[error("cannot make an io_uring with {entries} entries: {source}")]
    Os {
        /// Entries asked for.
        entries: u32,
        /// What the kernel said.
        source: io::Error,
    },
}

struct Region {
    memory: Memory,
    fixed: Option<u16>,
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

pub(crate) struct Ring {
    ring: IoUring,
    regions: Vec<Region>,
    watches: Vec<Watch>,
    /// Operations that the kernel has or is about to have.
    in_flight: usize,
    /// Entries that the kernel has not been told of.
    pending: bool,
    /// Completions appear only when we enter the kernel; it says when that is due.
    deferred: bool,
    /// A buffer could not be pinned for want of memlock, and is used unpinned.
    pub(crate) unpinned: bool,
}

impl Ring {
    /// A ring for `operations` at once. To be used by the thread that made it alone.
    pub(crate) fn new(operations: u32) -> Result<Self, RingError> {
        let entries = (operations + u32::try_from(WATCHES_MAX).expect("few")).next_power_of_two();
        // One issuer with deferred work saves an interrupt a completion (Linux 6.1); without it everything works the same.
        let modern = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_clamp()
            .build(entries);
        let (ring, deferred) = match modern {
            Ok(ring) => (ring, true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                (IoUring::builder().setup_clamp().build(entries).map_err(|e| classify(e, entries))?, false)
            }
            Err(error) => return Err(classify(error, entries)),
        };
        let os = |source| classify(source, entries);
        ring.submitter().register_files_sparse(FILES_MAX).map_err(os)?;
        ring.submitter().register_buffers_sparse(u32::from(REGIONS_MAX)).map_err(os)?;
        Ok(Self {
            ring,
            regions: Vec::new(),
            watches: Vec::new(),
            in_flight: 0,
            pending: false,
            deferred,
            unpinned: false,
        })
    }

    pub(crate) fn register(&mut self, memory: &Memory) -> Result<RegionId, BlockError> {
        let index = u16::try_from(self.regions.len())
            .ok()
            .filter(|&i| i < REGIONS_MAX)
            .ok_or(BlockError::Unsupported)?;
        let fixed = if memory.len() > FIXED_LEN_MAX { None } else { self.pin(index, memory)? };
        self.unpinned |= fixed.is_none();
        self.regions.push(Region { memory: memory.clone(), fixed });
        Ok(RegionId(index))
    }

    /// `None` when the memlock limit is too low: the kernel then pins for every operation, which is slower and as safe.
    fn pin(&self, index: u16, memory: &Memory) -> Result<Option<u16>, BlockError> {
        match operation::register_buffer(&self.ring, index, memory) {
            Ok(()) => Ok(Some(index)),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EPERM)) => Ok(None),
            Err(error) => Err(BlockError::Os(error.raw_os_error().unwrap_or(libc::EIO))),
        }
    }

    /// The memory of a buffer that lies in a region.
    pub(crate) fn resolve(&self, buffer: &Buffer) -> Option<&Memory> {
        let region = self.regions.get(usize::from(buffer.region.0))?;
        region.memory.contains(buffer.offset, buffer.len).then_some(&region.memory)
    }

    /// A part of a buffer that was resolved, for an entry.
    pub(crate) fn transfer(&self, region: RegionId, offset: usize, len: usize) -> Transfer<'_> {
        let Region { memory, fixed } = &self.regions[usize::from(region.0)];
        Transfer {
            memory,
            fixed: *fixed,
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
        self.pending = true;
    }

    /// Tells the kernel of what was pushed.
    pub(crate) fn submit(&mut self) {
        if !self.pending {
            return;
        }
        match self.ring.submit() {
            Ok(_) => self.pending = !self.ring.submission().is_empty(),
            // Out of kernel memory, or its completion queue overflowed: what is not taken stays queued for the next turn.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::EINTR)) => {}
            Err(error) => panic!("io_uring_enter: {error}"),
        }
    }

    /// The next completion of an operation.
    pub(crate) fn pop(&mut self) -> Option<Event> {
        loop {
            let Some(cqe) = self.ring.completion().next() else {
                if !self.deferred || self.in_flight == 0 || !self.ring.submission().taskrun() {
                    return None;
                }
                self.run_deferred();
                if self.ring.completion().is_empty() {
                    return None;
                }
                continue;
            };
            if cqe.user_data() & WATCH != 0 {
                self.on_watch(cqe.user_data() ^ WATCH);
                continue;
            }
            self.in_flight -= 1;
            let index = usize::try_from(cqe.user_data()).expect("an index of ours");
            return Some(Event { index, result: cqe.result() });
        }
    }

    fn run_deferred(&mut self) {
        // "Get events" without waiting for any: the kernel posts what is due.
        match self.ring.submitter().submit_with_args(0, &types::SubmitArgs::new()) {
            Ok(_) => self.pending = !self.ring.submission().is_empty(),
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EAGAIN | libc::EBUSY | libc::EINTR | libc::ETIME)
                ) => {}
            Err(error) => panic!("io_uring_enter: {error}"),
        }
    }

    /// Watches a descriptor: [`Ring::wait`] ends when it becomes readable.
    pub(crate) fn watch(&mut self, fd: RawFd) -> Option<usize> {
        (self.watches.len() < WATCHES_MAX).then(|| {
            self.watches.push(Watch { fd, armed: false, fired: false });
            self.watches.len() - 1
        })
    }

    fn on_watch(&mut self, index: u64) {
        if let Some(watch) = usize::try_from(index).ok().and_then(|index| self.watches.get_mut(index)) {
            watch.armed = false;
            watch.fired = true;
        }
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
        let timespec = timeout.map(types::Timespec::from);
        let mut arguments = types::SubmitArgs::new();
        if let Some(timespec) = &timespec {
            arguments = arguments.timespec(timespec);
        }
        match self.ring.submitter().submit_with_args(1, &arguments) {
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY)
                ) => {}
            Err(error) => panic!("io_uring_enter: {error}"),
        }
        self.pending = !self.ring.submission().is_empty();
    }
}

fn classify(source: io::Error, entries: u32) -> RingError {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => RingError::NotAllowed(source),
        Some(libc::ENOSYS | libc::EINVAL) => RingError::NotThere(source),
        _ => RingError::Os { entries, source },
    }
}

impl Drop for Ring {
    /// Waits for the kernel to be done with our memory. What hangs in a device hangs here too: that memory must not be freed.
    fn drop(&mut self) {
        while self.in_flight > 0 {
            self.submit();
            while self.pop().is_some() {}
            if self.in_flight > 0 {
                self.wait(Some(Duration::from_secs(1)));
            }
        }
    }
}

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}
