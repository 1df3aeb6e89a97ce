//! Operations on images that are in flight, of one thread.
//!
//! librbd reports the end of an operation on a thread of its own, sometimes before the call that began it has returned.
//! That thread puts the operation's number on a list of whoever submitted it, without a lock, and writes to an eventfd
//! only if the submitter sleeps. So one descriptor serves a thread with any number of images, and nobody is woken for
//! another's operations.
//!
//! The memory and the image of an operation are held until its end. A [`Completions`] that is dropped before that leaves
//! them allocated for ever.

use super::library::{Handle, rbd};
use super::{Errno, check};
use crate::image::Image;
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nvmf_memory::Memory;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;

/// The end of a list.
const NONE: u32 = u32::MAX;
/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`.
const THICK: i32 = 1;

/// Bytes of memory.
#[derive(Debug, Clone, Copy)]
pub struct Bytes<'a> {
    /// The memory.
    pub memory: &'a Memory,
    /// Where they begin in it.
    pub offset: usize,
    /// How many.
    pub len: usize,
}

/// An operation on an image, whose range begins at byte `at`.
#[derive(Debug, Clone, Copy)]
pub enum Request<'a> {
    /// Reads. The result is how many bytes there were.
    Read {
        /// From where.
        at: u64,
        /// Where to.
        into: Bytes<'a>,
    },
    /// Writes.
    Write {
        /// Where to.
        at: u64,
        /// The data.
        from: Bytes<'a>,
    },
    /// Writes the second half of the data if the range has the first half; `EILSEQ` if it has not.
    CompareAndWrite {
        /// Where.
        at: u64,
        /// The expected bytes, and behind them as many new ones.
        data: Bytes<'a>,
    },
    /// Makes the range read as zeroes.
    WriteZeroes {
        /// Where.
        at: u64,
        /// Bytes.
        len: u64,
        /// Space for it is kept.
        thick: bool,
    },
    /// Gives up the range, or as much of it as the image's granularity allows.
    Discard {
        /// Where.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// Makes durable what completed before.
    Flush,
}

/// An operation's place in [`Shared`].
struct Slot {
    number: u32,
    /// The next in the list of those that are complete.
    next: AtomicU32,
    result: AtomicI64,
    /// Where a comparison has found another byte: librbd writes it, and nobody asks.
    mismatch: AtomicU64,
    shared: *const Shared,
}

/// What librbd's threads use.
struct Shared {
    /// The operation that was completed last.
    last: AtomicU32,
    /// The thread that submits is about to sleep.
    asleep: AtomicBool,
    wakeup: EventFd,
    slots: Box<[Slot]>,
}

// SAFETY: the pointers in the slots lead to the `Shared` itself.
unsafe impl Send for Shared {}
// SAFETY: as above; everything that changes is atomic.
unsafe impl Sync for Shared {}

impl Shared {
    /// An operation is complete, with its result.
    fn put(&self, number: u32, result: i64) {
        let slot = &self.slots[number as usize];
        slot.result.store(result, Ordering::Relaxed);
        let mut last = self.last.load(Ordering::Relaxed);
        loop {
            slot.next.store(last, Ordering::Relaxed);
            // In one order with `asleep`, as in `may_sleep`: one of the two threads sees what the other did.
            match self.last.compare_exchange_weak(last, number, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => last = other,
            }
        }
        if self.asleep.load(Ordering::SeqCst) && self.asleep.swap(false, Ordering::SeqCst) {
            // It fails only when the counter is full, and then it is readable.
            let _ = self.wakeup.write(1);
        }
    }
}

/// What an operation in flight holds.
struct Held {
    _memory: Option<Memory>,
    image: Arc<Image>,
}

/// The operations on images that one thread has in flight, and their results.
pub struct Completions {
    shared: Arc<Shared>,
    held: Vec<Option<Held>>,
    in_flight: usize,
    /// The list of those that are complete, as it was taken.
    taken: u32,
}

impl Completions {
    /// For operations with numbers below `depth`.
    ///
    /// # Errors
    /// There is no eventfd left.
    pub fn new(depth: u32) -> io::Result<Self> {
        let wakeup = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let shared = Arc::new_cyclic(|shared| Shared {
            last: AtomicU32::new(NONE),
            asleep: AtomicBool::new(false),
            wakeup,
            slots: (0..depth)
                .map(|number| Slot {
                    number,
                    next: AtomicU32::new(NONE),
                    result: AtomicI64::new(0),
                    mismatch: AtomicU64::new(0),
                    shared: shared.as_ptr(),
                })
                .collect(),
        });
        Ok(Self { shared, held: (0..depth).map(|_| None).collect(), in_flight: 0, taken: NONE })
    }

    /// What becomes readable when an operation completes after [`Completions::may_sleep`].
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.shared.wakeup.as_raw_fd()
    }

    /// Operations whose results were not taken.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Begins an operation. It neither blocks nor completes in here; what cannot be begun completes with an error.
    ///
    /// # Panics
    /// An operation of that number is in flight, or the bytes are not in the memory.
    pub fn submit(&mut self, number: usize, image: &Arc<Image>, request: Request<'_>) {
        let place = &mut self.held[number];
        assert!(place.is_none(), "operation {number} is in flight");
        let memory = match request {
            Request::Read { into: bytes, .. }
            | Request::Write { from: bytes, .. }
            | Request::CompareAndWrite { data: bytes, .. } => {
                assert!(bytes.memory.contains(bytes.offset, bytes.len), "bytes outside of their memory");
                Some(bytes.memory.clone())
            }
            Request::WriteZeroes { .. } | Request::Discard { .. } | Request::Flush => None,
        };
        *place = Some(Held { _memory: memory, image: Arc::clone(image) });
        self.in_flight += 1;
        let begun = if image.cluster().is_trusted() {
            self.begin(number, image, request)
        } else {
            Err(libc::ENOTCONN)
        };
        if let Err(errno) = begun {
            self.shared.put(self.shared.slots[number].number, -i64::from(errno));
        }
    }

    fn begin(&self, number: usize, image: &Image, request: Request<'_>) -> Result<(), Errno> {
        let (image, slot, mut completion) = (image.handle(), &self.shared.slots[number], null_mut());
        let functions = image.functions;
        let argument = core::ptr::from_ref(slot).cast_mut().cast();
        // SAFETY: the slot lives until the callback has given back the count that is taken here.
        check(unsafe {
            (functions.rbd_aio_create_completion)(argument, Some(on_complete), &raw mut completion)
        })?;
        // SAFETY: it is the pointer of an `Arc` that is alive.
        unsafe { Arc::increment_strong_count(slot.shared) };
        // SAFETY: the bytes are in memory that is held until the operation's end, as `submit` has checked, and the image is
        // open for as long; the completion is used once.
        let begun = check(unsafe {
            match request {
                Request::Read { at, into } => {
                    (functions.rbd_aio_read)(image.handle, at, into.len, pointer(into, 0).cast(), completion)
                }
                Request::Write { at, from } => {
                    (functions.rbd_aio_write)(image.handle, at, from.len, pointer(from, 0).cast(), completion)
                }
                Request::CompareAndWrite { at, data } => {
                    let begun = (functions.rbd_aio_compare_and_write)(
                        image.handle,
                        at,
                        data.len / 2,
                        pointer(data, 0).cast(),
                        pointer(data, data.len / 2).cast(),
                        completion,
                        slot.mismatch.as_ptr(),
                        0,
                    );
                    i32::try_from(begun).unwrap_or(-libc::EIO)
                }
                Request::WriteZeroes { at, len, thick } => (functions.rbd_aio_write_zeroes)(
                    image.handle,
                    at,
                    usize::try_from(len).unwrap_or(usize::MAX),
                    completion,
                    if thick { THICK } else { 0 },
                    0,
                ),
                Request::Discard { at, len } => {
                    (functions.rbd_aio_discard)(image.handle, at, len, completion)
                }
                Request::Flush => (functions.rbd_aio_flush)(image.handle, completion),
            }
        });
        if let Err(errno) = begun {
            // SAFETY: nothing was begun, so nobody else releases the completion, nor gives back the count.
            unsafe {
                (functions.rbd_aio_release)(completion);
                Arc::decrement_strong_count(slot.shared);
            }
            return Err(errno);
        }
        Ok(())
    }

    /// The number of an operation that is complete, and its result: bytes or 0, or a negative errno.
    pub fn take(&mut self) -> Option<(usize, i64)> {
        if self.taken == NONE {
            // Mostly there is none, and then nothing is written that librbd's threads write, too.
            if self.shared.last.load(Ordering::Relaxed) == NONE {
                return None;
            }
            self.taken = self.shared.last.swap(NONE, Ordering::Acquire);
        }
        let slot = &self.shared.slots[self.taken as usize];
        let (number, result) = (self.taken as usize, slot.result.load(Ordering::Relaxed));
        self.taken = slot.next.load(Ordering::Relaxed);
        // After its end, whenever the answer leaves: what was right at this moment may be told later.
        let is_trusted = self.held[number].take().is_none_or(|held| held.image.cluster().is_trusted());
        self.in_flight -= 1;
        let counts = is_trusted || result == -i64::from(libc::ESHUTDOWN);
        Some((number, if counts { result } else { -i64::from(libc::ENOTCONN) }))
    }

    /// Whether the thread may sleep until the descriptor is readable: nothing is complete.
    #[must_use]
    pub fn may_sleep(&self) -> bool {
        if self.in_flight == 0 {
            return true;
        }
        self.shared.asleep.store(true, Ordering::SeqCst);
        let may = self.taken == NONE && self.shared.last.load(Ordering::SeqCst) == NONE;
        if !may {
            self.shared.asleep.store(false, Ordering::SeqCst);
        }
        may
    }

    /// Sleeps until the descriptor is readable, or `timeout` is over; [`Completions::may_sleep`] must have said so.
    pub fn wait(&self, timeout: Duration) {
        let mut readable = [PollFd::new(self.shared.wakeup.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut readable, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX));
        self.on_readable();
    }

    /// The descriptor was readable: it is not any more.
    pub fn on_readable(&self) {
        // It fails only when nothing was to be read.
        let _ = self.shared.wakeup.read();
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            // Ceph may still write to this memory, so it must not be freed, nor the images be closed here, which waits.
            core::mem::forget(core::mem::take(&mut self.held));
        }
    }
}

/// The address of bytes, `skipped` bytes behind their begin.
fn pointer(bytes: Bytes<'_>, skipped: usize) -> *mut u8 {
    // SAFETY: the bytes are in the memory, as `submit` has checked.
    unsafe { bytes.memory.as_ptr().add(bytes.offset + skipped) }
}

/// # Safety
/// `argument` is a slot whose `Shared` has one count for this call.
unsafe extern "C" fn on_complete(completion: Handle, argument: *mut c_void) {
    // SAFETY: as the caller says.
    let slot = unsafe { &*argument.cast::<Slot>() };
    // SAFETY: the pointer is that of an `Arc`, and this gives the count back.
    let shared = unsafe { Arc::from_raw(slot.shared) };
    let Ok(functions) = rbd() else { return };
    // SAFETY: the operation is complete, and its completion is released once.
    let result = unsafe {
        let result = (functions.rbd_aio_get_return_value)(completion);
        (functions.rbd_aio_release)(completion);
        result
    };
    shared.put(slot.number, result as i64);
}
