//! Commands to the ublk driver through io_uring.
//!
//! The driver reads and writes the memory that a command names until that command completes. So a ring and the memory
//! that its commands name have one owner, and an owner that is dropped while a command is in flight leaks the memory.
#![expect(unsafe_code, reason = "hands pointers to the kernel; see the SAFETY comments")]

use super::abi;
use io_uring::squeue::{Entry, Entry128};
use io_uring::{IoUring, cqueue, opcode, types};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nvmf_memory::{Memory, PAGE};
use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The driver's control device: one command at a time, each waited for.
pub(super) struct ControlRing {
    ring: IoUring<Entry128, cqueue::Entry>,
    device: File,
    /// What the command in flight names.
    memory: Memory,
    /// A failed wait left a command in flight: its memory and its completion must not be taken for another command's.
    is_dead: bool,
}

impl ControlRing {
    pub(super) fn open() -> io::Result<Self> {
        let device = OpenOptions::new().read(true).write(true).open(abi::CONTROL)?;
        let memory = Memory::alloc(PAGE).map_err(io::Error::other)?;
        Ok(Self { ring: IoUring::builder().build(1)?, device, memory, is_dead: false })
    }

    /// Has the driver carry out a command on a device, and waits for its end. `value` is the command's data, in and
    /// out.
    pub(super) fn run<T: IntoBytes + FromBytes + Immutable>(
        &mut self,
        control: abi::Control,
        device: u32,
        data: u64,
        value: &mut T,
    ) -> io::Result<()> {
        if self.is_dead {
            return Err(io::Error::other("an earlier control command did not end"));
        }
        let len = value.as_bytes().len();
        self.memory.write(0, value.as_bytes());
        let command = abi::ControlCommand {
            device,
            queue: abi::NO_QUEUE,
            len: u16::try_from(len).map_err(io::Error::other)?,
            address: self.memory.as_ptr() as u64,
            data,
            path_len: 0,
            pad: 0,
            reserved: 0,
        };
        let mut bytes = [0; 80];
        bytes[..size_of_val(&command)].copy_from_slice(command.as_bytes());
        let fd = types::Fd(self.device.as_raw_fd());
        let entry = opcode::UringCmd80::new(fd, control.code()).cmd(bytes).build();
        // SAFETY: the entry names `len` bytes of `memory`, which has a page and lives, or is left behind, until the
        // completion.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        let result = loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.is_dead = true;
                    core::mem::forget(self.memory.clone());
                    return Err(error);
                }
            }
            if let Some(completion) = self.ring.completion().next() {
                break completion.result();
            }
        };
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        let mut back = vec![0; len];
        self.memory.read(0, &mut back);
        *value = T::read_from_bytes(&back).map_err(|_| io::Error::other("a control command's length"))?;
        Ok(())
    }
}

/// A request of the driver to a device's server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    /// Its slot: this slot's part of the queue's memory holds its data.
    pub(super) tag: u16,
    pub(super) descriptor: abi::IoDescriptor,
}

/// The device's place in the ring's table of files: the kernel looks it up faster than a descriptor.
const DEVICE: types::Fixed = types::Fixed(0);
/// Descriptors that a queue watches.
pub(super) const WATCHES: usize = 2;
/// Set in the user data of a watch; the others are tags.
const WATCH: u64 = 1 << 63;

/// A device, as its queues need it: the driver lets it be opened once.
pub(super) fn open_device(number: u32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(format!("/dev/ublkc{number}"))
}

/// A queue of a device. Belongs to the thread that made it: the driver accepts no other.
pub(super) struct Queue {
    ring: IoUring,
    number: u16,
    /// Those that the kernel watches now, each with its version.
    watched: [Option<(RawFd, u32)>; WATCHES],
    /// The driver's [`abi::IoDescriptor`]s, by tag, mapped for reading.
    descriptors: NonNull<c_void>,
    descriptors_len: NonZeroUsize,
    /// One buffer of `buffer_len` bytes for each tag.
    memory: Memory,
    buffer_len: usize,
    /// Slots that are not aborted.
    alive: u16,
    /// Commands that the driver has.
    outstanding: u16,
}

/// Bytes of the descriptors of so many slots, as they are mapped.
fn descriptors_len(depth: u16) -> usize {
    (usize::from(depth) * size_of::<abi::IoDescriptor>()).next_multiple_of(PAGE)
}

impl Queue {
    /// Opens a queue of a device that was added with this depth and requests of at most `buffer_len` bytes, and offers all
    /// its slots. (The driver copies as many bytes as a request has, wherever its slot's memory ends.)
    ///
    /// # Panics
    /// When `memory` is too small.
    pub(super) fn open(
        device: &File,
        number: u16,
        depth: u16,
        memory: Memory,
        buffer_len: usize,
    ) -> io::Result<Self> {
        assert!(memory.contains(0, usize::from(depth) * buffer_len), "the slots' memory is too small");
        let len = descriptors_len(depth);
        // Each queue's descriptors have room for the deepest queue.
        let offset = i64::from(number) * descriptors_len(abi::QUEUE_DEPTH_MAX as u16) as i64;
        let descriptors_len = NonZeroUsize::new(len).ok_or(io::ErrorKind::InvalidInput)?;
        let (protection, flags) = (ProtFlags::PROT_READ, MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of ours; it is read only through
        // `descriptor`.
        let descriptors = unsafe { mmap(None, descriptors_len, protection, flags, device, offset) }?;
        let ring = match Self::ring(u32::from(depth), device) {
            Ok(ring) => ring,
            Err(error) => {
                // SAFETY: the mapping was made above and nothing refers to it.
                let _ = unsafe { munmap(descriptors, len) };
                return Err(error);
            }
        };
        let mut queue = Self {
            ring,
            number,
            watched: [None; WATCHES],
            descriptors,
            descriptors_len,
            memory,
            buffer_len,
            alive: depth,
            outstanding: 0,
        };
        (0..depth).for_each(|tag| queue.push(abi::fetch(), tag, 0));
        queue.submit()?;
        Ok(queue)
    }

    /// A ring with an entry for each of `depth` slots and each watch. The driver hands requests over when this thread
    /// enters it, without interrupting the thread.
    fn ring(depth: u32, device: &File) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        let ring: IoUring = builder.build((depth + WATCHES as u32).next_power_of_two())?;
        ring.submitter().register_files(&[device.as_raw_fd()])?;
        Ok(ring)
    }

    /// Whether requests may still come.
    pub(super) fn is_alive(&self) -> bool {
        self.alive > 0
    }

    /// The next request, if there is one.
    pub(super) fn poll(&mut self) -> Option<Request> {
        loop {
            let completion = self.ring.completion().next()?;
            if completion.user_data() & WATCH != 0 {
                self.watched[(completion.user_data() & !WATCH) as usize] = None;
                continue;
            }
            self.outstanding -= 1;
            if completion.result() != 0 {
                // The device is being stopped: nothing more comes in this slot. A request that is completed after that
                // fails once more, so the count may be zero already.
                self.alive = self.alive.saturating_sub(1);
                continue;
            }
            let tag = completion.user_data() as u16;
            return Some(Request { tag, descriptor: self.descriptor(tag) });
        }
    }

    /// Ends a request: bytes moved, or a negative errno. Goes out with [`Queue::submit`], as does the offer of its
    /// slot.
    pub(super) fn complete(&mut self, tag: u16, result: i32) {
        self.push(abi::commit_and_fetch(), tag, result);
    }

    /// Tells the driver what was completed, and has it hand over what it has; `false` when it has not taken all, and is to
    /// be told again.
    pub(super) fn submit(&mut self) -> io::Result<bool> {
        let submission = self.ring.submission();
        if submission.is_empty() && !submission.taskrun() {
            return Ok(true);
        }
        drop(submission);
        self.enter(0, Duration::ZERO)?;
        Ok(self.ring.submission().is_empty())
    }

    /// Sleeps until there is something to poll, one of these descriptors is readable, or `most` is over; at once if
    /// there is something already. `u32`: a descriptor's version, which tells it from another of the same number.
    pub(super) fn sleep(
        &mut self,
        most: Duration,
        descriptors: [Option<(BorrowedFd<'_>, u32)>; WATCHES],
    ) -> io::Result<()> {
        for (at, descriptor) in descriptors.into_iter().enumerate() {
            let watch = descriptor.map(|(fd, version)| (fd.as_raw_fd(), version));
            if let Some((fd, _)) = watch
                && self.watched[at] != watch
            {
                self.watched[at] = watch;
                let poll = opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).build();
                // SAFETY: the entry names no memory.
                let pushed = unsafe { self.ring.submission().push(&poll.user_data(WATCH | at as u64)) };
                pushed.expect("an entry for each watch");
            }
        }
        self.enter(1, most)
    }

    /// Enters the kernel, which takes what was pushed, and waits for `want` completions, up to `most`.
    fn enter(&mut self, want: usize, most: Duration) -> io::Result<()> {
        let most = types::Timespec::from(most);
        let entered = self.ring.submitter().submit_with_args(want, &types::SubmitArgs::new().timespec(&most));
        match entered.map_err(|error| (error.raw_os_error(), error)) {
            // Interrupted, timed out, or out of memory for now: entries that were not taken stay where they are.
            Ok(_) | Err((Some(libc::EINTR | libc::ETIME | libc::EAGAIN | libc::EBUSY), _)) => Ok(()),
            Err((_, error)) => Err(error),
        }
    }

    fn descriptor(&self, tag: u16) -> abi::IoDescriptor {
        let index = usize::from(tag);
        assert!((index + 1) * size_of::<abi::IoDescriptor>() <= self.descriptors_len.get());
        // SAFETY: the index lies inside the mapping, which is page-aligned and lives as long as `self`. The driver does
        // not write a slot's descriptor from its completion to the next fetch; and if it did, any bytes are a
        // descriptor.
        unsafe { self.descriptors.cast::<abi::IoDescriptor>().add(index).read_volatile() }
    }

    fn push(&mut self, code: u32, tag: u16, result: i32) {
        let offset = usize::from(tag) * self.buffer_len;
        assert!(self.memory.contains(offset, self.buffer_len), "a slot that is not there");
        let address = self.memory.as_ptr() as u64 + offset as u64;
        let mut bytes = [0; 16];
        bytes.copy_from_slice(abi::IoCommand { queue: self.number, tag, result, address }.as_bytes());
        let entry: Entry = opcode::UringCmd16::new(DEVICE, code).cmd(bytes).build().user_data(u64::from(tag));
        // SAFETY: the driver copies between a request, of at most `buffer_len` bytes, and the slot's buffer, which lies inside
        // `memory`; `memory` lives, or is left behind, until every command is completed.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // Each slot has at most one command, and the ring an entry for each.
        pushed.expect("an entry for each slot");
        self.outstanding += 1;
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.outstanding > 0 {
            core::mem::forget(self.memory.clone());
        }
        // SAFETY: made by `open` with this length; nothing refers to it any more.
        let _ = unsafe { munmap(self.descriptors, self.descriptors_len.get()) };
    }
}
