//! Operations that are submitted, and their completions.

use crate::blocking::{NVMF_DEALLOCATE, NVMF_FUA, flags};
use crate::boundary::{Fault, call_int, effect, errno, nvmf_effect};
use crate::disk::{nvmf_disk, open_disk};
use core::ffi::{CStr, c_char, c_void};
use core::time::Duration;
use libc::{c_int, c_uint};
use nvmf_initiator::queue::Completion;
use nvmf_initiator::{BlockError, Buffer, Error};
use std::os::fd::AsRawFd as _;

/// An operation that has ended.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct nvmf_completion {
    /// The number that it was submitted with.
    pub cookie: u64,
    /// 0, or a negative errno.
    pub result: i32,
    /// Whether it took effect.
    pub effect: nvmf_effect,
    /// Why it failed, for nvmf_reason().
    pub reason: u32,
    /// More of that: the target's NVMe status, or an errno of its system; or 0.
    pub detail: u32,
}

/// Submits a read of len bytes from offset on into data, of nvmf_alloc(); whole blocks.
///
/// This and the functions below return at once: 0 when the operation is under way, whose end nvmf_poll() or nvmf_wait()
/// returns with its cookie, once. Operations may end in any order, and are carried out in any: what must be behind another is submitted
/// after the other has ended. There is no bound on their number; those that the connection has no room for wait in it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_submit_read(
    disk: *const nvmf_disk,
    data: *mut c_void,
    len: usize,
    offset: u64,
    cookie: u64,
) -> c_int {
    call_int(|| {
        // SAFETY: the caller passes a disk that is open.
        let disk = unsafe { open_disk(disk)? };
        disk.check("a read", offset, len as u64)?;
        disk.queue.read(cookie, offset, disk.part(data, len)?)?;
        Ok(0)
    })
}

/// Submits a write of len bytes at offset from data, of nvmf_alloc(); whole blocks. flags: NVMF_FUA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_submit_write(
    disk: *const nvmf_disk,
    data: *const c_void,
    len: usize,
    offset: u64,
    flags: c_uint,
    cookie: u64,
) -> c_int {
    call_int(|| {
        // SAFETY: the caller passes a disk that is open.
        let disk = unsafe { open_disk(disk)? };
        let fua = self::flags(flags, NVMF_FUA)? & NVMF_FUA != 0;
        disk.check("a write", offset, len as u64)?;
        disk.queue.write(cookie, offset, disk.part(data, len)?, fua)?;
        Ok(0)
    })
}

/// Submits a flush: makes durable every write whose end was returned before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_submit_flush(disk: *const nvmf_disk, cookie: u64) -> c_int {
    call_int(|| {
        // SAFETY: the caller passes a disk that is open.
        unsafe { open_disk(disk)? }.queue.flush(cookie);
        Ok(0)
    })
}

/// Submits what nvmf_write_zeroes() does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_submit_write_zeroes(
    disk: *const nvmf_disk,
    offset: u64,
    len: u64,
    flags: c_uint,
    cookie: u64,
) -> c_int {
    call_int(|| {
        // SAFETY: the caller passes a disk that is open.
        let disk = unsafe { open_disk(disk)? };
        let flags = self::flags(flags, NVMF_FUA | NVMF_DEALLOCATE)?;
        let (fua, deallocate) = (flags & NVMF_FUA != 0, flags & NVMF_DEALLOCATE != 0);
        disk.check("a write of zeroes", offset, len)?;
        disk.queue.write_zeroes(cookie, offset, len, deallocate, fua)?;
        Ok(0)
    })
}

/// Submits what nvmf_discard() does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_submit_discard(
    disk: *const nvmf_disk,
    offset: u64,
    len: u64,
    cookie: u64,
) -> c_int {
    call_int(|| {
        // SAFETY: the caller passes a disk that is open.
        let disk = unsafe { open_disk(disk)? };
        disk.check("a deallocation", offset, len)?;
        disk.queue.deallocate(cookie, offset, len)?;
        Ok(0)
    })
}

/// Submits what nvmf_compare() does, with data of nvmf_alloc().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_submit_compare(
    disk: *const nvmf_disk,
    data: *const c_void,
    len: usize,
    offset: u64,
    cookie: u64,
) -> c_int {
    call_int(|| {
        // SAFETY: the caller passes a disk that is open.
        let disk = unsafe { open_disk(disk)? };
        disk.check("a compare", offset, len as u64)?;
        disk.queue.compare(cookie, offset, disk.part(data, len)?)?;
        Ok(0)
    })
}

/// Submits what nvmf_compare_and_write() does. data is of nvmf_alloc() and has 2 * len bytes: those that are expected, and behind them those
/// that are written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_submit_compare_and_write(
    disk: *const nvmf_disk,
    data: *const c_void,
    len: usize,
    offset: u64,
    flags: c_uint,
    cookie: u64,
) -> c_int {
    call_int(|| {
        // SAFETY: the caller passes a disk that is open.
        let disk = unsafe { open_disk(disk)? };
        let fua = self::flags(flags, NVMF_FUA)? & NVMF_FUA != 0;
        disk.check("a compare and write", offset, len as u64)?;
        let both = len.checked_mul(2).ok_or_else(|| Fault::misuse("len is too large"))?;
        disk.queue.compare_and_write(cookie, offset, disk.part(data, both)?, fua)?;
        Ok(0)
    })
}

/// Submits what nvmf_copy() does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_submit_copy(
    disk: *const nvmf_disk,
    from: u64,
    to: u64,
    len: u64,
    flags: c_uint,
    cookie: u64,
) -> c_int {
    call_int(|| {
        // SAFETY: the caller passes a disk that is open.
        let disk = unsafe { open_disk(disk)? };
        let fua = self::flags(flags, NVMF_FUA)? & NVMF_FUA != 0;
        disk.check("a copy", from, len)?;
        disk.check("a copy", to, len)?;
        disk.queue.copy(cookie, from, to, len, fua)?;
        Ok(0)
    })
}

/// Stores up to max completions at *completions and returns how many; 0 when nothing has ended. It never blocks, and drives the
/// connection: a program that calls it again and again has the least latency.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_poll(
    disk: *const nvmf_disk,
    completions: *mut nvmf_completion,
    max: c_int,
) -> c_int {
    call_int(|| {
        // SAFETY: the caller passes a disk that is open, and has `max` places.
        unsafe { take(disk, completions, max, None) }
    })
}

/// The same; but while nothing has ended it waits, for at most timeout_ms milliseconds (negative: for ever). 0 when nothing ended in that
/// time, or nothing is under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_wait(
    disk: *const nvmf_disk,
    completions: *mut nvmf_completion,
    max: c_int,
    timeout_ms: c_int,
) -> c_int {
    call_int(|| {
        let most = u64::try_from(timeout_ms).map_or(Duration::MAX, Duration::from_millis);
        // SAFETY: the caller passes a disk that is open, and has `max` places.
        unsafe { take(disk, completions, max, Some(most)) }
    })
}

/// # Safety
/// The disk is null or open, and `completions` is null or has `max` places.
unsafe fn take(
    disk: *const nvmf_disk,
    completions: *mut nvmf_completion,
    max: c_int,
    wait: Option<Duration>,
) -> Result<c_int, Fault> {
    // SAFETY: the caller's promise.
    let queue = &unsafe { open_disk(disk)? }.queue;
    if completions.is_null() || max <= 0 {
        return Err(Fault::misuse("there is no place for completions"));
    }
    let mut count = 0;
    let mut next = match wait {
        Some(most) => queue.wait(most),
        None => queue.poll(),
    };
    while let Some(completion) = next {
        // SAFETY: it is one of `max` places.
        unsafe { completions.add(count).write(nvmf_completion::of(&completion)) };
        count += 1;
        next = if count < max as usize { queue.poll() } else { None };
    }
    Ok(count as c_int)
}

/// A descriptor that is readable while nvmf_poll() has something to return: for poll(), select() and epoll. Call nvmf_arm() before each
/// sleep on it. It is the library's: nobody else reads, writes or closes it. Or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_fd(disk: *const nvmf_disk) -> c_int {
    call_int(|| {
        // SAFETY: the caller passes a disk that is open.
        Ok(unsafe { open_disk(disk)? }.queue.descriptor().as_raw_fd())
    })
}

/// Has the library's own thread do what nvmf_poll() does otherwise, for a sleep on nvmf_fd(). Without it that thread takes over within two
/// milliseconds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_arm(disk: *const nvmf_disk) -> c_int {
    call_int(|| {
        // SAFETY: the caller passes a disk that is open.
        unsafe { open_disk(disk)? }.queue.arm();
        Ok(0)
    })
}

/// nvmf_completion.reason in words; never null.
#[unsafe(no_mangle)]
pub extern "C" fn nvmf_reason(reason: u32) -> *const c_char {
    REASONS.get(reason as usize).copied().unwrap_or(c"an unknown reason").as_ptr()
}

/// By nvmf_completion.reason.
const REASONS: [&CStr; 18] = [
    c"success",
    c"it failed",
    c"the range lies beyond the end of the disk",
    c"the range is not of whole blocks, or the memory does not match it",
    c"the disk is read-only",
    c"no space is left behind the disk",
    c"the medium failed",
    c"a flush of the disk failed, so acknowledged writes may be lost; the disk must be reopened",
    c"the compared data differ",
    c"the range could not be read to be compared",
    c"the disk does not support the operation",
    c"the disk is gone",
    c"the operation was aborted, or its connection lost",
    c"another host's reservation refuses it",
    c"the disk failed with the NVMe status that detail has",
    c"the disk failed with the errno that detail has",
    c"it has not ended in time",
    c"there is no memory for it",
];

/// The reason and its detail.
fn reason(error: &Error) -> (u32, u32) {
    let reason = match error {
        Error::TimedOut { .. } => 16,
        Error::Memory { .. } => 17,
        Error::Association { .. } | Error::Foreign { .. } | Error::Closed { .. } => 11,
        Error::Misaligned { .. } | Error::TooLong { .. } | Error::Overlap { .. } => 3,
        Error::Io { source, .. } => match source {
            BlockError::OutOfRange => 2,
            BlockError::BadBuffer => 3,
            BlockError::ReadOnly => 4,
            BlockError::NoSpace => 5,
            BlockError::Medium => 6,
            BlockError::CacheLost => 7,
            BlockError::CompareFailed => 8,
            BlockError::NotCompared => 9,
            BlockError::Unsupported => 10,
            BlockError::Gone | BlockError::Path => 11,
            BlockError::Aborted => 12,
            BlockError::ReservationConflict => 13,
            BlockError::Device(status) => return (14, (*status).into()),
            BlockError::Os(errno) => return (15, errno.unsigned_abs()),
        },
        _ => 1,
    };
    (reason, 0)
}

impl nvmf_completion {
    fn of(completion: &Completion) -> Self {
        let cookie = completion.cookie;
        match &completion.result {
            Ok(()) => Self { cookie, result: 0, effect: nvmf_effect::Done, reason: 0, detail: 0 },
            Err(error) => {
                let (reason, detail) = reason(error);
                Self { cookie, result: -errno(error), effect: effect(error), reason, detail }
            }
        }
    }
}

impl nvmf_disk {
    /// The bytes that the caller names.
    fn part(&self, data: *const c_void, len: usize) -> Result<Buffer, Fault> {
        self.memory.part(data.cast(), len).ok_or_else(|| {
            let message = format!("these {len} bytes are not memory of nvmf_alloc() of this disk");
            Fault::misuse(message)
        })
    }
}
