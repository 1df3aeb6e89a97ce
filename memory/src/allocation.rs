//! Page-aligned memory, shared by handles.
#![expect(unsafe_code, reason = "owns raw memory that devices write to; see the SAFETY comments")]

use crate::copy;
use alloc::alloc::{alloc_zeroed, dealloc};
use alloc::sync::Arc;
use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;

/// Alignment and granularity of every [`Memory`], in bytes.
pub const PAGE: usize = 4096;

/// Bytes in a cache line.
#[cfg(target_arch = "x86_64")]
const CACHE_LINE: usize = 64;
/// Bytes that are prefetched at a time. A core fetches ten to sixteen lines at once, and waits with the next prefetch until
/// one of them has arrived: with all 64 lines of 4 KiB, a memory disk served a tenth fewer reads.
#[cfg(target_arch = "x86_64")]
const PREFETCH_MAX: usize = 10 * CACHE_LINE;

/// Allocations of at least this size ask for huge pages.
const HUGE_PAGE: usize = 2 << 20;

/// A zeroed, page-aligned allocation that devices may read and write while any handle to it lives.
///
/// A clone is another handle to the same bytes. A provider or ring with work in flight on them holds a handle, so
/// they cannot be freed while a device uses them: this makes the safe interface sound.
#[derive(Clone)]
pub struct Memory(Arc<Share>);

/// What the clones of a handle share: their reference count, and the location of the bytes.
struct Share {
    /// The first page boundary in the allocation.
    base: NonNull<u8>,
    /// Usable bytes from there.
    len: usize,
    allocation: Arc<Allocation>,
}

/// Where the bytes come from.
enum Allocation {
    /// The allocator's block: a page larger than is used, so that a page-aligned part of it is large enough.
    Block { start: NonNull<u8>, layout: Layout },
    /// A shared mapping of a file.
    #[cfg(feature = "std")]
    Mapping { start: NonNull<u8>, len: usize },
}

// SAFETY: the allocation is plain bytes, and belongs to no thread.
unsafe impl Send for Allocation {}
// SAFETY: it is used only to be freed, by its last holder.
unsafe impl Sync for Allocation {}
// SAFETY: as for the allocation, which it keeps alive.
unsafe impl Send for Share {}
// SAFETY: the bytes are accessed through `copy` only, whose accesses count as atomic, so those of two threads are no
// data race. No reference to them is ever made.
unsafe impl Sync for Share {}

impl Drop for Allocation {
    fn drop(&mut self) {
        let (start, layout) = match *self {
            Self::Block { start, layout } => (start, layout),
            #[cfg(feature = "std")]
            Self::Mapping { start, len } => {
                // SAFETY: `start` came from `mmap` with this very length, and this is the last holder.
                unsafe { libc::munmap(start.as_ptr().cast(), len) };
                return;
            }
        };
        if layout.size() - PAGE >= HUGE_PAGE {
            // The allocator may keep the block for later; the system gets the pages now.
            let (offset, len) = whole_pages(start.as_ptr().addr(), layout.size(), system_page());
            // SAFETY: whole pages of the system that lie in this allocation; nobody uses their content any more: this is the
            // last holder.
            unsafe { libc::madvise(start.as_ptr().add(offset).cast(), len, libc::MADV_DONTNEED) };
        }
        // SAFETY: `start` came from `alloc_zeroed` with this very layout, and this is the last holder.
        unsafe { dealloc(start.as_ptr(), layout) }
    }
}

/// Bytes of the system's pages: more than [`PAGE`] on some machines.
fn system_page() -> usize {
    // SAFETY: it asks for a number.
    let len = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(len).unwrap_or(PAGE).max(PAGE)
}

/// Where the first whole page of `page` bytes begins behind `start`, and the bytes of all that lie in the `len` bytes from
/// there. `madvise` takes no other start, and rounds a length up: over memory of somebody else.
fn whole_pages(start: usize, len: usize, page: usize) -> (usize, usize) {
    let offset = (start.wrapping_neg() % page).min(len);
    (offset, (len - offset) / page * page)
}

/// The allocation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub len: usize,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no memory left for a buffer of {} bytes: lower the queue depths or the pool size",
            self.len
        )
    }
}

impl core::error::Error for OutOfMemory {}

impl Memory {
    /// `len` zeroed bytes, rounded up to whole pages.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the allocator fails, or `len` exceeds the address space.
    pub fn alloc(len: usize) -> Result<Self, OutOfMemory> {
        let error = OutOfMemory { len };
        let len = len.max(1).checked_next_multiple_of(PAGE).ok_or(error)?;
        // Aligned by hand: for an aligned allocation the allocator zeroes, and so touches, every page. For others it
        // takes zero pages from the kernel.
        let layout = Layout::from_size_align(len.checked_add(PAGE).ok_or(error)?, 16).map_err(|_| error)?;
        // SAFETY: the layout has a non-zero size (at least two pages).
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(error)?;
        let padding = start.as_ptr().align_offset(PAGE);
        // SAFETY: the padding is less than the page that was asked for in excess, so `len` bytes follow it.
        let base = unsafe { start.add(padding) };
        if len >= HUGE_PAGE {
            // Only advice: the memory works without huge pages.
            let (offset, len) = whole_pages(base.as_ptr().addr(), len, system_page());
            // SAFETY: whole pages of the system that lie in this allocation, which nobody uses yet; the advice does not change
            // their content.
            unsafe { libc::madvise(base.as_ptr().add(offset).cast(), len, libc::MADV_HUGEPAGE) };
        }
        Ok(Self(Arc::new(Share { base, len, allocation: Arc::new(Allocation::Block { start, layout }) })))
    }

    /// Memory that is another process's as well: `len` bytes of a file from `offset` on, both whole pages. A file that is made
    /// shorter later takes the pages away, and the kernel kills whoever touches them (SIGBUS).
    ///
    /// # Errors
    /// The kernel's; `InvalidInput` when the range is empty, not whole pages, or not in the file.
    #[cfg(feature = "std")]
    pub fn map(file: &std::fs::File, offset: u64, len: usize) -> std::io::Result<Self> {
        use std::io::{Error, ErrorKind};
        use std::os::fd::AsRawFd;
        let pages = len > 0 && len.is_multiple_of(PAGE) && offset.is_multiple_of(PAGE as u64);
        let end = offset.checked_add(len as u64);
        let from = libc::off_t::try_from(offset).map_err(|_| ErrorKind::InvalidInput)?;
        // More than that no pointer may move within.
        let can_be = isize::try_from(len).is_ok();
        if !pages || !can_be || end.is_none() || end > Some(file.metadata()?.len()) {
            return Err(Error::new(ErrorKind::InvalidInput, "not whole pages of the file"));
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory that is there.
        let start = unsafe {
            libc::mmap(core::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), from)
        };
        if start == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or(ErrorKind::InvalidInput)?;
        Ok(Self(Arc::new(Share {
            base: start,
            len,
            allocation: Arc::new(Allocation::Mapping { start, len }),
        })))
    }

    /// A handle to the same memory with its own reference count, for another thread: threads that clone the same
    /// handle contend for its count.
    #[must_use]
    pub fn share(&self) -> Self {
        let Share { base, len, ref allocation } = *self.0;
        Self(Arc::new(Share { base, len, allocation: Arc::clone(allocation) }))
    }

    /// Bytes in it: a multiple of [`PAGE`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Always false: there is at least one page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The address of the first byte. Who dereferences it holds a handle meanwhile, stays within [`Memory::len`], makes no
    /// reference out of it, and neither loads nor stores through it while another may use the bytes: [`Memory::read`] and
    /// [`Memory::write`] do that without a data race.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.base.as_ptr()
    }

    /// Whether `[offset, offset + len)` is within the memory.
    #[must_use]
    pub fn contains(&self, offset: usize, len: usize) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len())
    }

    /// Copies bytes at `offset` into a slice.
    ///
    /// # Panics
    /// When the range is not within the memory. Offsets that come from a peer are checked before.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(self.contains(offset, into.len()), "read of {} at {offset} in {}", into.len(), self.len());
        // SAFETY: the range was checked; `into` is the caller's alone.
        unsafe { copy::read(self.as_ptr().add(offset), into) }
    }

    /// Copies a slice to `offset`.
    ///
    /// # Panics
    /// As [`Memory::read`].
    pub fn write(&self, offset: usize, from: &[u8]) {
        assert!(self.contains(offset, from.len()), "write of {} at {offset} in {}", from.len(), self.len());
        // SAFETY: the range was checked; nobody changes `from` while it is borrowed.
        unsafe { copy::write(from, self.as_ptr().add(offset)) }
    }

    /// Sets `len` bytes at `offset` to `byte`.
    ///
    /// # Panics
    /// As [`Memory::read`].
    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        assert!(self.contains(offset, len), "fill of {len} at {offset} in {}", self.len());
        // SAFETY: the range was checked.
        unsafe { copy::fill(self.as_ptr().add(offset), len, byte) }
    }

    /// Copies `len` bytes at `offset` to `to_offset` of `to`. The ranges may overlap.
    ///
    /// # Panics
    /// As [`Memory::read`].
    pub fn copy_to(&self, offset: usize, to: &Memory, to_offset: usize, len: usize) {
        assert!(self.contains(offset, len) && to.contains(to_offset, len), "copy of {len} out of bounds");
        // SAFETY: both ranges were checked.
        unsafe { copy::copy(self.as_ptr().add(offset), to.as_ptr().add(to_offset), len) }
    }

    /// Has the processor fetch the beginning of `len` bytes at `offset` into its cache, for a copy that follows soon. The
    /// copy reads in order, which the processor sees, and fetches the rest ahead of it by itself.
    ///
    /// # Panics
    /// As [`Memory::read`].
    pub fn prefetch(&self, offset: usize, len: usize) {
        assert!(self.contains(offset, len), "prefetch of {len} at {offset} in {}", self.len());
        #[cfg(target_arch = "x86_64")]
        for line in (offset..offset + len.min(PREFETCH_MAX)).step_by(CACHE_LINE) {
            use core::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            // SAFETY: the range was checked, and a prefetch reads nothing that the program sees.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.as_ptr().add(line).cast()) }
        }
    }

    /// Whether `len` bytes at `offset` equal `len` bytes at `other_offset` of `other`.
    ///
    /// # Panics
    /// As [`Memory::read`].
    #[must_use]
    pub fn equals(&self, offset: usize, other: &Memory, other_offset: usize, len: usize) -> bool {
        let (mut a, mut b) = ([0; 512], [0; 512]);
        (0..len).step_by(512).all(|at| {
            let n = (len - at).min(512);
            self.read(offset + at, &mut a[..n]);
            other.read(other_offset + at, &mut b[..n]);
            a[..n] == b[..n]
        })
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("len", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_as_written_within_bounds() {
        let memory = Memory::alloc(5000).unwrap();
        assert_eq!(memory.len(), 2 * PAGE);
        assert_eq!(memory.as_ptr() as usize % PAGE, 0);
        memory.write(8187, b"tail!");
        let mut out = [0; 5];
        memory.read(8187, &mut out);
        assert_eq!(&out, b"tail!");
        assert!(memory.contains(8192, 0) && !memory.contains(8192, 1) && !memory.contains(usize::MAX, 2));
        memory.copy_to(8187, &memory, 0, 5);
        assert!(memory.equals(0, &memory, 8187, 5) && !memory.equals(1, &memory, 8187, 5));
    }

    #[test]
    #[should_panic(expected = "write of 2")]
    fn a_write_past_the_end_is_refused() {
        Memory::alloc(1).unwrap().write(PAGE - 1, b"ab");
    }

    /// Miri checks that there is no data race. Without it, this checks that every byte is one that was written.
    #[test]
    fn threads_may_copy_the_same_bytes_at_once() {
        const LEN: usize = if cfg!(miri) { 64 } else { 2 * PAGE };
        let memory = Memory::alloc(LEN).unwrap();
        std::thread::scope(|scope| {
            for byte in [1, 2] {
                let memory = memory.clone();
                scope.spawn(move || {
                    for _ in 0..if cfg!(miri) { 4 } else { 1000 } {
                        memory.fill(0, LEN, byte);
                        memory.write(0, &[byte; LEN]);
                        memory.copy_to(0, &memory, LEN / 2, LEN / 2);
                        let mut seen = [0; LEN];
                        memory.read(0, &mut seen);
                        assert!(seen.iter().all(|seen| [1, 2].contains(seen)));
                        let _ = memory.equals(0, &memory, LEN / 2, LEN / 2);
                    }
                });
            }
        });
    }

    /// What lies around an allocation is the allocator's, also where the system's pages are larger than ours.
    #[test]
    fn pages_that_go_back_lie_in_the_allocation() {
        for page in [4096, 16 << 10, 64 << 10] {
            for start in [0, 16, page - 16, page, page + 4096, 3 * page + 16] {
                for len in [0, 16, page - 16, page, page + 16, HUGE_PAGE + 4096, HUGE_PAGE + 3 * page + 16] {
                    let (offset, whole) = whole_pages(start, len, page);
                    assert!((start + offset).is_multiple_of(page) || whole == 0, "{start} {len} {page}");
                    assert!(whole.is_multiple_of(page) && offset + whole <= len, "{start} {len} {page}");
                    assert!(whole + 2 * page > len, "{start} {len} {page}: {whole} is too little");
                }
            }
        }
    }

    /// Also those of blocks that the allocator keeps: it does once it has freed one of that size.
    #[test]
    #[cfg_attr(miri, ignore = "asks the system for its pages")]
    fn pages_of_large_memory_go_back_to_the_system() {
        const LEN: usize = 2 * HUGE_PAGE;
        let resident = || {
            let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
            pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * system_page()
        };
        drop(Memory::alloc(LEN).unwrap());
        let mut all = [(); 12].map(|()| {
            let memory = Memory::alloc(LEN).unwrap();
            memory.fill(0, LEN, 1);
            Some(memory)
        });
        let full = resident();
        // The last lies behind the others.
        all[..11].fill(None);
        assert!(resident() + 8 * LEN < full, "{} of {full} bytes", resident());
    }

    #[test]
    #[cfg(feature = "std")]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn mapped_memory_is_the_files() {
        use std::os::unix::fs::FileExt;
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 * PAGE as u64).unwrap();
        let memory = Memory::map(&file, PAGE as u64, 2 * PAGE).unwrap();
        memory.write(PAGE, b"here");
        let mut read = [0; 4];
        file.read_exact_at(&mut read, 2 * PAGE as u64).unwrap();
        assert_eq!(&read, b"here");
        file.write_all_at(b"there", PAGE as u64).unwrap();
        let mut read = [0; 5];
        memory.share().read(0, &mut read);
        assert_eq!(&read, b"there");
        for (offset, len) in [(0, 0), (1, PAGE), (0, 100), (PAGE as u64, 3 * PAGE), (u64::MAX - 4095, PAGE)] {
            assert!(Memory::map(&file, offset, len).is_err(), "{len} at {offset}");
        }
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        assert_eq!(Memory::alloc(usize::MAX).unwrap_err(), OutOfMemory { len: usize::MAX });
    }
}
