//! Copying bytes that others may change meanwhile.
//!
//! Threads that share a [`Memory`](crate::Memory) may read and write the same bytes at once, from safe code: a memory
//! disk does, when two workers use one block. Rust's own copies (`ptr::copy`, a loop) would be a data race then,
//! which is undefined behaviour even if nobody cares about the outcome. Atomic accesses are none. So what happens
//! here is, by definition, that of the loops in [`by_bytes`]: relaxed atomic loads and stores of single bytes, in any
//! order, some of them maybe more than once. Bytes of two writers may mix; nothing else can go wrong.
//!
//! Compilers make slow code of such loops. The C library's `memmove` and `memset` are machine code that has the same
//! effect, if the compiler does not know what it calls: for one that it does know, it might assume that nobody else
//! touches the bytes. It knows nothing of what inline assembly calls.
#![expect(unsafe_code, reason = "copies raw memory; see the SAFETY comments")]

#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_pointer_width = "64",
    target_os = "linux",
    not(miri)
))]
mod opaque {
    use core::arch::asm;

    /// # Safety
    /// As for [`super::copy`].
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a call by the System V ABI: the stack is aligned, and everything that it may change is named. That
        // the bytes are there is the caller's word.
        unsafe {
            asm!("call {memmove}", memmove = sym libc::memmove,
                in("rdi") to, in("rsi") from, in("rdx") len, lateout("rax") _, clobber_abi("C"));
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: the same by the AAPCS64.
        unsafe {
            asm!("bl {memmove}", memmove = sym libc::memmove,
                inlateout("x0") to => _, in("x1") from, in("x2") len, clobber_abi("C"));
        }
    }

    /// # Safety
    /// As for [`super::copy`].
    pub(super) unsafe fn read(from: *const u8, into: &mut [u8]) {
        // SAFETY: the caller's word, and a slice that is the caller's alone.
        unsafe { copy(from, into.as_mut_ptr(), into.len()) }
    }

    /// # Safety
    /// As for [`super::copy`].
    pub(super) unsafe fn write(from: &[u8], to: *mut u8) {
        // SAFETY: the caller's word, and a slice that nobody changes.
        unsafe { copy(from.as_ptr(), to, from.len()) }
    }

    /// # Safety
    /// As for [`super::fill`].
    pub(super) unsafe fn fill(to: *mut u8, len: usize, byte: u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as for `copy`.
        unsafe {
            asm!("call {memset}", memset = sym libc::memset,
                in("rdi") to, in("esi") u32::from(byte), in("rdx") len, lateout("rax") _, clobber_abi("C"));
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as for `copy`.
        unsafe {
            asm!("bl {memset}", memset = sym libc::memset,
                inlateout("x0") to => _, in("w1") u32::from(byte), in("x2") len, clobber_abi("C"));
        }
    }
}

#[cfg(any(
    miri,
    not(all(
        any(target_arch = "x86_64", target_arch = "aarch64"),
        target_pointer_width = "64",
        target_os = "linux"
    ))
))]
use by_bytes as opaque;

/// The definition, for machines without assembly here, and for Miri.
#[cfg(any(
    test,
    miri,
    not(all(
        any(target_arch = "x86_64", target_arch = "aarch64"),
        target_pointer_width = "64",
        target_os = "linux"
    ))
))]
mod by_bytes {
    use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

    /// # Safety
    /// The byte is there, for as long as this is used.
    unsafe fn shared<'a>(byte: *mut u8) -> &'a AtomicU8 {
        // SAFETY: the caller's word; and it is accessed atomically only.
        unsafe { AtomicU8::from_ptr(byte) }
    }

    /// # Safety
    /// As for [`super::copy`].
    pub(super) unsafe fn copy(from: *mut u8, to: *mut u8, len: usize) {
        let backwards = (from as usize) < to as usize;
        for at in 0..len {
            let at = if backwards { len - 1 - at } else { at };
            // SAFETY: both lie within the ranges that the caller gave.
            unsafe { shared(to.add(at)).store(shared(from.add(at)).load(Relaxed), Relaxed) };
        }
    }

    /// # Safety
    /// As for [`super::copy`].
    pub(super) unsafe fn read(from: *mut u8, into: &mut [u8]) {
        for (at, byte) in into.iter_mut().enumerate() {
            // SAFETY: it lies within the range that the caller gave.
            *byte = unsafe { shared(from.add(at)) }.load(Relaxed);
        }
    }

    /// # Safety
    /// As for [`super::copy`].
    pub(super) unsafe fn write(from: &[u8], to: *mut u8) {
        for (at, byte) in from.iter().enumerate() {
            // SAFETY: it lies within the range that the caller gave.
            unsafe { shared(to.add(at)) }.store(*byte, Relaxed);
        }
    }

    /// # Safety
    /// As for [`super::copy`].
    pub(super) unsafe fn fill(to: *mut u8, len: usize, byte: u8) {
        for at in 0..len {
            // SAFETY: it lies within the range that the caller gave.
            unsafe { shared(to.add(at)) }.store(byte, Relaxed);
        }
    }
}

/// Copies `len` bytes of shared memory, which may overlap.
///
/// # Safety
/// Both ranges are there. Whatever else accesses them meanwhile does so through this module, or is no Rust code.
pub(crate) unsafe fn copy(from: *mut u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's word.
    unsafe { opaque::copy(from, to, len) }
}

/// Copies out of shared memory.
///
/// # Safety
/// As for [`copy`], with as many bytes as there are in `into`.
pub(crate) unsafe fn read(from: *mut u8, into: &mut [u8]) {
    // SAFETY: the caller's word.
    unsafe { opaque::read(from, into) }
}

/// Copies into shared memory.
///
/// # Safety
/// As for [`copy`], with as many bytes as there are in `from`.
pub(crate) unsafe fn write(from: &[u8], to: *mut u8) {
    // SAFETY: the caller's word.
    unsafe { opaque::write(from, to) }
}

/// Sets `len` bytes of shared memory to `byte`.
///
/// # Safety
/// As for [`copy`].
pub(crate) unsafe fn fill(to: *mut u8, len: usize, byte: u8) {
    // SAFETY: the caller's word.
    unsafe { opaque::fill(to, len, byte) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at % 251) as u8).collect()
    }

    #[test]
    fn both_ways_of_copying_and_filling_agree() {
        for (from, to, len) in
            [(0, 100, 50), (0, 10, 50), (10, 0, 50), (7, 7, 50), (3, 200, 0), (0, 700, 700)]
        {
            let (mut called, mut defined) = (bytes(1400), bytes(1400));
            // SAFETY: the ranges lie within the vectors, which are ours alone.
            unsafe {
                copy(called.as_mut_ptr().add(from), called.as_mut_ptr().add(to), len);
                by_bytes::copy(defined.as_mut_ptr().add(from), defined.as_mut_ptr().add(to), len);
            }
            assert_eq!(called[to..to + len], bytes(1400)[from..from + len]);
            assert_eq!(called, defined, "{len} bytes from {from} to {to}");
            let ([mut called_out, mut defined_out], input) = ([[0; 9]; 2], [7; 13]);
            // SAFETY: as above.
            unsafe {
                fill(called.as_mut_ptr().add(1), len, 0xaa);
                by_bytes::fill(defined.as_mut_ptr().add(1), len, 0xaa);
                write(&input, called.as_mut_ptr().add(3));
                by_bytes::write(&input, defined.as_mut_ptr().add(3));
                read(called.as_mut_ptr(), &mut called_out);
                by_bytes::read(defined.as_mut_ptr(), &mut defined_out);
            }
            assert_eq!((called, called_out), (defined, defined_out));
        }
    }
}
