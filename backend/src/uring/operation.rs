//! Filling submission queue entries, and asking about a file what no safe call asks: the only unsafe code of this crate.
//!
//! One idea proves all of it. The kernel reads and writes memory that an entry names, until its completion. [`Ring`](super::Ring) keeps
//! every registered [`Memory`] for as long as it lives, and does not end before the last completion; so no entry outlives its memory.
#![expect(unsafe_code, reason = "hands pointers to the kernel; see the SAFETY comments")]

use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use nvmf_memory::Memory;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

/// Bytes of one region that the kernel is to read or write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transfer<'a> {
    /// The region's memory, which the ring holds.
    pub(crate) memory: &'a Memory,
    /// The region's place in the ring's table of fixed buffers, if it has one.
    pub(crate) fixed: Option<u16>,
    /// Bytes from its start.
    pub(crate) offset: usize,
    /// Bytes.
    pub(crate) len: u32,
}

impl Transfer<'_> {
    fn pointer(&self) -> *mut u8 {
        assert!(self.memory.contains(self.offset, self.len as usize), "a transfer outside of its region");
        // SAFETY: the range lies inside of the allocation, as was just checked.
        unsafe { self.memory.as_ptr().add(self.offset) }
    }

    /// From the file at `at` into memory.
    pub(crate) fn read(&self, file: types::Fixed, at: u64) -> Entry {
        match self.fixed {
            Some(index) => opcode::ReadFixed::new(file, self.pointer(), self.len, index).offset(at).build(),
            None => opcode::Read::new(file, self.pointer(), self.len).offset(at).build(),
        }
    }

    /// From memory into the file at `at`.
    pub(crate) fn write(&self, file: types::Fixed, at: u64, rw_flags: i32) -> Entry {
        let pointer = self.pointer().cast_const();
        match self.fixed {
            Some(index) => {
                opcode::WriteFixed::new(file, pointer, self.len, index).offset(at).rw_flags(rw_flags).build()
            }
            None => opcode::Write::new(file, pointer, self.len).offset(at).rw_flags(rw_flags).build(),
        }
    }
}

/// Puts an entry into the submission queue.
///
/// # Panics
/// When the queue is full: it has room for every operation that can be in flight.
pub(crate) fn push(ring: &mut IoUring, entry: &Entry) {
    // SAFETY: entries are made here and in `file`, and name only memory of regions that the ring holds (see the module's comment).
    unsafe { ring.submission().push(entry) }.expect("the submission queue has room for every operation");
}

/// Pins `len` bytes at `offset` of `memory` as fixed buffer `index`.
pub(crate) fn register_buffer(
    ring: &IoUring,
    index: u16,
    memory: &Memory,
    offset: usize,
    len: usize,
) -> io::Result<()> {
    let whole = Transfer { memory, fixed: None, offset, len: u32::try_from(len).map_err(io::Error::other)? };
    let iovec = libc::iovec { iov_base: whole.pointer().cast(), iov_len: len };
    // SAFETY: the iovec lies within one allocation, which the ring holds for as long as it lives.
    unsafe { ring.submitter().register_buffers_update(u32::from(index), &[iovec], None) }.map(drop)
}

/// What direct I/O on `file` asks for, in bytes: the alignment of memory, and that of offsets and lengths (0: there is no
/// direct I/O). `None` when the kernel does not tell (before Linux 6.1, and on some file systems).
pub(crate) fn direct_alignment(file: &File) -> Option<(u32, u32)> {
    let mut statx = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path is an empty C string, which names the open file itself; the kernel writes one `statx`, which is ours.
    let result = unsafe {
        libc::statx(
            file.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            libc::STATX_DIOALIGN,
            statx.as_mut_ptr(),
        )
    };
    // SAFETY: it is made of integers, for which zeroes are a value; what the kernel wrote is one too.
    let statx = unsafe { statx.assume_init() };
    (result == 0 && statx.stx_mask & libc::STATX_DIOALIGN != 0)
        .then_some((statx.stx_dio_mem_align, statx.stx_dio_offset_align))
}
