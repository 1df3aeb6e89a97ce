//! The submission and completion queue, and the memory that entries refer to. This, `disk/nvme/admin.rs` and
//! `disk/sharing.rs` are the only unsafe code of this crate.
//!
//! The kernel reads and writes the memory of an entry until its completion. A [`Queue`] builds every entry itself,
//! from regions that it holds while it exists. A queue that is dropped before the last completion leaves its regions
//! allocated for ever. So no entry outlives its memory, whatever the rest of the crate does. A drive transfers what its command
//! says in blocks, whatever length the entry says: their size is that of the format that the namespace had when it was
//! opened. A namespace in use must not be formatted.
#![expect(unsafe_code, reason = "hands pointers to the kernel; see the SAFETY comments")]

use super::Regions;
use super::file::Command;
use super::nvme::{Namespace, passed_through};
use io_uring::cqueue::{self, Entry32};
use io_uring::squeue::{self, Entry, Entry128};
use io_uring::{IoUring, opcode, types};
use nvmf_block::{Buffer, RegionId};
use nvmf_memory::Memory;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

/// Set in the user data of a watch.
const WATCH: u64 = 1 << 63;
/// `NVME_URING_CMD_IO`: `_IOWR('N', 0x80, struct nvme_uring_cmd)`, whose size is 72.
const NVME_COMMAND: u32 = 3 << 30 | 72 << 16 | (b'N' as u32) << 8 | 0x80;

/// When the kernel does the work that posts a completion.
#[derive(Debug, Clone, Copy)]
pub(super) enum TaskWork {
    /// When the thread that made the ring enters it, without interrupts (Linux 6.1).
    Deferred,
    /// At any system call (Linux 5.19).
    Cooperative,
}

/// A completion.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reaped {
    /// An operation: its number, and bytes or a negative errno.
    Operation(usize, i32),
    /// A watched descriptor became readable.
    Watch(usize),
}

/// An `io_uring`, and the memory that its entries may refer to. Commands to NVMe drives need entries of twice the size.
pub(super) struct Queue<S: squeue::EntryMarker, C: cqueue::EntryMarker> {
    ring: IoUring<S, C>,
    regions: Regions,
    /// Operations that were pushed and have not completed.
    in_flight: usize,
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Queue<S, C> {
    /// A queue of `entries` entries, a table of `files` files and one of `buffers` fixed buffers, both empty.
    pub(super) fn new(work: TaskWork, entries: u32, files: u32, buffers: u16) -> io::Result<Self> {
        let mut builder = IoUring::<S, C>::builder();
        builder.setup_taskrun_flag();
        match work {
            TaskWork::Deferred => builder.setup_single_issuer().setup_defer_taskrun(),
            TaskWork::Cooperative => builder.setup_coop_taskrun(),
        };
        let ring = builder.build(entries)?;
        ring.submitter().register_files_sparse(files)?;
        ring.submitter().register_buffers_sparse(u32::from(buffers))?;
        Ok(Self { ring, regions: Regions::default(), in_flight: 0 })
    }

    pub(super) fn regions(&self) -> &Regions {
        &self.regions
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Adds a region for use in commands.
    pub(super) fn add_region(&mut self, memory: &Memory) -> RegionId {
        self.regions.add(memory)
    }

    /// Pins `len` bytes of a region as fixed buffer `index`.
    pub(super) fn pin(&mut self, buffer: Buffer, index: u16) -> io::Result<()> {
        let iovec = libc::iovec { iov_base: self.pointer(buffer).cast(), iov_len: buffer.len };
        // SAFETY: the bytes lie in a region that this queue holds (see the module's comment).
        unsafe { self.ring.submitter().register_buffers_update(u32::from(index), &[iovec], None) }?;
        self.regions.pinned(buffer, index);
        Ok(())
    }

    /// Places an open file in the table; -1 empties the slot.
    pub(super) fn set_file(&self, slot: u32, fd: RawFd) -> io::Result<()> {
        self.ring.submitter().register_files_update(slot, &[fd]).map(drop)
    }

    /// The address of a buffer.
    fn pointer(&self, buffer: Buffer) -> *mut u8 {
        let memory = self.regions.resolve(&buffer).expect("a buffer outside of its region");
        // SAFETY: the range lies inside of the allocation, as was just checked.
        unsafe { memory.as_ptr().add(buffer.offset) }
    }

    fn entry(&self, slot: u32, command: Command) -> Entry {
        let file = types::Fixed(slot);
        match command {
            Command::Read { at, into } => {
                let (pointer, len) = (self.pointer(into), length(into));
                match self.regions.fixed(into) {
                    Some(index) => opcode::ReadFixed::new(file, pointer, len, index).offset(at).build(),
                    None => opcode::Read::new(file, pointer, len).offset(at).build(),
                }
            }
            Command::Write { at, from, dsync } => {
                let (pointer, len) = (self.pointer(from).cast_const(), length(from));
                let flags = if dsync { libc::RWF_DSYNC } else { 0 };
                match self.regions.fixed(from) {
                    Some(index) => {
                        opcode::WriteFixed::new(file, pointer, len, index).offset(at).rw_flags(flags).build()
                    }
                    None => opcode::Write::new(file, pointer, len).offset(at).rw_flags(flags).build(),
                }
            }
            Command::Fallocate { at, len, mode } => {
                opcode::Fallocate::new(file, len).offset(at).mode(mode).build()
            }
            Command::Deallocate { .. } => unreachable!("a file has Fallocate"),
            Command::CompareAndWrite { .. } => unreachable!("a file has a read and a write"),
            Command::Fdatasync => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
        }
    }

    /// Lets the kernel have so many threads for syncs and `fallocate`, instead of a few for each processor: those that
    /// hang leave others for the rest.
    pub(super) fn allow_waiting(&self, commands: u32) -> io::Result<()> {
        // 0: the others stay as they are. What is given to a thread at once is one of those, and has no bound.
        self.ring.submitter().register_iowq_max_workers(&mut [commands, 0])
    }

    /// Adds operation `index` on the file in `slot`. `blocking`: the kernel gives it to a thread of its own at once,
    /// because whoever carries it out may be put to sleep.
    pub(super) fn push(&mut self, index: usize, slot: u32, command: Command, blocking: bool) {
        let flags = if blocking { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        let entry = self.entry(slot, command).flags(flags).user_data(index as u64);
        self.push_entry(entry.into());
        self.in_flight += 1;
    }

    /// Adds a watch: it completes once, when the descriptor is readable.
    pub(super) fn push_watch(&mut self, index: usize, fd: RawFd) {
        let poll = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).build();
        self.push_entry(poll.user_data(WATCH | index as u64).into());
    }

    #[expect(clippy::needless_pass_by_value, reason = "entries are made to be pushed")]
    fn push_entry(&mut self, entry: S) {
        // SAFETY: the entry is built above, from regions that this queue holds (see the module's comment).
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the submission queue has room for every operation");
    }

    /// Has threads of the kernel open a FIFO that nobody writes to: each hangs until the queue is gone, as one would that
    /// waits for a disk.
    #[cfg(test)]
    pub(super) fn push_hanging(&mut self, fifo: &std::ffi::CStr, count: usize) {
        for _ in 0..count {
            let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), fifo.as_ptr()).flags(libc::O_RDONLY);
            let entry = open.build().flags(squeue::Flags::ASYNC).user_data(WATCH);
            self.push_entry(entry.into());
        }
        // The kernel has copied the name when it has taken the entries.
        assert_eq!(self.enter(0, None).unwrap(), 0);
    }

    /// Enters the kernel, which takes the pushed entries, does its deferred work, and waits for `want` completions.
    /// Returns the number of entries that it has not taken.
    pub(super) fn enter(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<usize> {
        let timespec = timeout.map(types::Timespec::from);
        let mut arguments = types::SubmitArgs::new();
        if let Some(timespec) = &timespec {
            arguments = arguments.timespec(timespec);
        }
        let entered = self.ring.submitter().submit_with_args(want, &arguments);
        let left = self.ring.submission().len();
        match entered.map_err(|error| (error.raw_os_error(), error)) {
            // Temporarily out of memory, interrupted, or timed out: entries that were not taken stay queued.
            Ok(_) | Err((Some(libc::EAGAIN | libc::EBUSY | libc::EINTR | libc::ETIME), _)) => Ok(left),
            Err((_, error)) => Err(error),
        }
    }

    /// Whether the kernel has completions that it posts only when it is entered.
    pub(super) fn has_task_work(&mut self) -> bool {
        self.ring.submission().taskrun()
    }

    /// Takes all posted completions.
    pub(super) fn reap(&mut self, mut take: impl FnMut(Reaped)) {
        for cqe in self.ring.completion() {
            let cqe: cqueue::Entry = cqe.into();
            let index = usize::try_from(cqe.user_data() & !WATCH).expect("an index of ours");
            if cqe.user_data() & WATCH != 0 {
                take(Reaped::Watch(index));
            } else {
                self.in_flight -= 1;
                take(Reaped::Operation(index, cqe.result()));
            }
        }
    }
}

impl Queue<Entry128, Entry32> {
    /// Adds operation `index` on the drive in `slot`.
    pub(super) fn push_nvme(&mut self, index: usize, slot: u32, drive: Namespace, command: Command) {
        let (sqe, data) = drive.command(command);
        let (address, len) = data.map_or((0, 0), |data| (self.pointer(data) as u64, length(data)));
        let mut entry = opcode::UringCmd80::new(types::Fixed(slot), NVME_COMMAND);
        entry = entry.cmd(passed_through(&sqe, address, len));
        if let Some(fixed) = data.and_then(|data| self.regions.fixed(data)) {
            entry = entry.buf_index(Some(fixed));
        }
        self.push_entry(entry.build().user_data(index as u64));
        self.in_flight += 1;
    }
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> AsRawFd for Queue<S, C> {
    /// Readable while there are completions.
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}

fn length(buffer: Buffer) -> u32 {
    u32::try_from(buffer.len).expect("operations are cut to fit")
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Drop for Queue<S, C> {
    /// Releases the files now: the kernel destroys a closed ring some time later, and would keep their locks until
    /// then.
    fn drop(&mut self) {
        if self.in_flight > 0 {
            // A device may still write to this memory, so it must not be freed.
            core::mem::forget(core::mem::take(&mut self.regions));
            return;
        }
        // On an error the kernel releases them when it destroys the ring.
        let _ = self.ring.submitter().unregister_files();
        let _ = self.ring.submitter().unregister_buffers();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields of an entry: opcode, offset, address or `fallocate` length, length or `fallocate` mode, flags,
    /// buffer index.
    fn fields(entry: &Entry) -> (u8, u64, u64, u32, u32, u16) {
        // SAFETY: an entry is 64 bytes of integers.
        let bytes: [u8; 64] = unsafe { std::ptr::from_ref(entry).cast::<[u8; 64]>().read() };
        fn part<const N: usize>(bytes: &[u8; 64], at: usize) -> [u8; N] {
            bytes[at..at + N].try_into().unwrap()
        }
        (
            bytes[0],
            u64::from_ne_bytes(part(&bytes, 8)),
            u64::from_ne_bytes(part(&bytes, 16)),
            u32::from_ne_bytes(part(&bytes, 24)),
            u32::from_ne_bytes(part(&bytes, 28)),
            u16::from_ne_bytes(part(&bytes, 40)),
        )
    }

    #[test]
    fn entries_have_the_kernels_flags() {
        let mut queue = Queue::<Entry, cqueue::Entry>::new(TaskWork::Cooperative, 4, 4, 4).unwrap();
        let memory = Memory::alloc(8192).unwrap();
        let region = queue.add_region(&memory);
        let buffer = Buffer { region, offset: 4096, len: 512 };
        let address = memory.as_ptr() as u64 + 4096;
        let entry = |command| fields(&queue.entry(3, command));
        assert_eq!(entry(Command::Read { at: 7, into: buffer }), (opcode::Read::CODE, 7, address, 512, 0, 0));
        let write = |dsync| entry(Command::Write { at: 7, from: buffer, dsync });
        assert_eq!(write(false), (opcode::Write::CODE, 7, address, 512, 0, 0));
        assert_eq!(write(true), (opcode::Write::CODE, 7, address, 512, libc::RWF_DSYNC as u32, 0));
        assert_eq!(
            entry(Command::Fdatasync),
            (opcode::Fsync::CODE, 0, 0, 0, 1, 0),
            "1: IORING_FSYNC_DATASYNC"
        );
        let fallocate = Command::Fallocate { at: 7, len: 9, mode: 3 };
        assert_eq!(entry(fallocate), (opcode::Fallocate::CODE, 7, 9, 3, 0, 0));

        queue.pin(Buffer { region, offset: 0, len: 8192 }, 2).unwrap();
        let fixed = fields(&queue.entry(3, Command::Write { at: 7, from: buffer, dsync: true }));
        assert_eq!(fixed, (opcode::WriteFixed::CODE, 7, address, 512, libc::RWF_DSYNC as u32, 2));
        let fixed = fields(&queue.entry(3, Command::Read { at: 7, into: buffer }));
        assert_eq!(fixed, (opcode::ReadFixed::CODE, 7, address, 512, 0, 2));
    }
}
