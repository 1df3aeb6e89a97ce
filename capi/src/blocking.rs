//! Operations that are waited for.

use crate::boundary::{Fault, call, call_int};
use crate::disk::{nvmf_disk, open_disk};
use core::ffi::c_void;
use core::slice;
use libc::{c_int, c_uint, ssize_t};
use nvmf_initiator::block_on;

/// Flag: what is written is durable when the operation ends (force unit access).
pub const NVMF_FUA: c_uint = 1;
/// Flag of nvmf_write_zeroes(): the space of the range may be given back.
pub const NVMF_DEALLOCATE: c_uint = 2;

pub(crate) fn flags(flags: c_uint, known: c_uint) -> Result<c_uint, Fault> {
    match flags & !known {
        0 => Ok(flags),
        unknown => Err(Fault::misuse(format!("there is no flag {unknown:#x} for this operation"))),
    }
}

/// Memory of the caller's for a call that blocks.
fn check_memory(data: *const c_void, len: usize) -> Result<(), Fault> {
    match (data.is_null(), isize::try_from(len)) {
        (true, _) if len > 0 => Err(Fault::misuse("data is null")),
        (_, Err(_)) => Err(Fault::misuse(format!("no memory has {len} bytes"))),
        _ => Ok(()),
    }
}

/// Reads len bytes from offset on into data, of any memory; none needs to be a multiple of the block size. Without a copy
/// where they are, data is of nvmf_alloc(), and the disk has no option timeout. Returns len: all of it was read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_pread(
    disk: *const nvmf_disk,
    data: *mut c_void,
    len: usize,
    offset: u64,
) -> ssize_t {
    call(|| {
        // SAFETY: the caller passes a disk that is open.
        let disk = unsafe { open_disk(disk)? };
        check_memory(data, len)?;
        disk.check("a read", offset, len as u64)?;
        match disk.part_for_call(data.cast(), len, offset) {
            Some(part) => drop(block_on(disk.device().read(offset, part))?),
            None if len == 0 => {}
            None => {
                // SAFETY: the caller has `len` bytes there, which nobody else touches until this returns.
                let into = unsafe { slice::from_raw_parts_mut(data.cast::<u8>(), len) };
                block_on(disk.device().read_exact_at(offset, into))?;
            }
        }
        Ok(len)
    })
}

/// Writes len bytes at offset from data, of any memory; as nvmf_pread(). A block that is written in part is read before and
/// written whole: of two that write to the same block at once, one may lose what it wrote. flags: NVMF_FUA. Returns len: all
/// of it was written. After a failure any part may be.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_pwrite(
    disk: *const nvmf_disk,
    data: *const c_void,
    len: usize,
    offset: u64,
    flags: c_uint,
) -> ssize_t {
    call(|| {
        // SAFETY: the caller passes a disk that is open.
        let disk = unsafe { open_disk(disk)? };
        let fua = self::flags(flags, NVMF_FUA)? & NVMF_FUA != 0;
        check_memory(data, len)?;
        disk.check("a write", offset, len as u64)?;
        let device = disk.device();
        match disk.part_for_call(data.cast(), len, offset) {
            Some(part) if fua => drop(block_on(device.write_fua(offset, part))?),
            Some(part) => drop(block_on(device.write(offset, part))?),
            None if len == 0 => {}
            None => {
                // SAFETY: the caller has `len` bytes there, which nobody changes until this returns.
                let from = unsafe { slice::from_raw_parts(data.cast::<u8>(), len) };
                match fua {
                    true => block_on(device.write_all_at_fua(offset, from))?,
                    false => block_on(device.write_all_at(offset, from))?,
                }
            }
        }
        Ok(len)
    })
}

/// Makes durable every write that ended before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_flush(disk: *const nvmf_disk) -> c_int {
    call_int(|| {
        // SAFETY: the caller passes a disk that is open.
        let disk = unsafe { open_disk(disk)? };
        block_on(disk.device().flush())?;
        Ok(0)
    })
}

/// Makes len bytes from offset on read as zeroes, whole blocks. flags: NVMF_FUA, NVMF_DEALLOCATE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_write_zeroes(
    disk: *const nvmf_disk,
    offset: u64,
    len: u64,
    flags: c_uint,
) -> c_int {
    call_int(|| {
        // SAFETY: the caller passes a disk that is open.
        let disk = unsafe { open_disk(disk)? };
        let flags = self::flags(flags, NVMF_FUA | NVMF_DEALLOCATE)?;
        let (fua, deallocate) = (flags & NVMF_FUA != 0, flags & NVMF_DEALLOCATE != 0);
        disk.check("a write of zeroes", offset, len)?;
        block_on(disk.device().write_zeroes(offset, len, deallocate, fua))?;
        Ok(0)
    })
}

/// Says that len bytes from offset on are not needed any more, whole blocks. They read as before or as zeroes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_discard(disk: *const nvmf_disk, offset: u64, len: u64) -> c_int {
    call_int(|| {
        // SAFETY: the caller passes a disk that is open.
        let disk = unsafe { open_disk(disk)? };
        disk.check("a deallocation", offset, len)?;
        block_on(disk.device().deallocate(offset, len))?;
        Ok(0)
    })
}

/// Compares len bytes at offset with data, of any memory, whole blocks: 0 when they are the same, -EILSEQ when not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_compare(
    disk: *const nvmf_disk,
    data: *const c_void,
    len: usize,
    offset: u64,
) -> c_int {
    call_int(|| {
        // SAFETY: the caller passes a disk that is open.
        let disk = unsafe { open_disk(disk)? };
        check_memory(data, len)?;
        disk.check("a compare", offset, len as u64)?;
        // SAFETY: the caller has `len` bytes there, which nobody changes until this returns.
        let buffer = unsafe { disk.copied(&[(data, len)])? };
        block_on(disk.device().compare(offset, buffer))?;
        Ok(0)
    })
}

/// Writes len bytes from data at offset if expected is what is there; -EILSEQ when not. No write of whatever host comes in between. Whole
/// blocks, at most nvmf_info.max_compare_and_write bytes, of any memory. flags: NVMF_FUA. It is never sent twice: when its
/// connection is lost meanwhile, nvmf_last_effect() is NVMF_EFFECT_MAY_HAVE, and a read of the place tells.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_compare_and_write(
    disk: *const nvmf_disk,
    expected: *const c_void,
    data: *const c_void,
    len: usize,
    offset: u64,
    flags: c_uint,
) -> c_int {
    call_int(|| {
        // SAFETY: the caller passes a disk that is open.
        let disk = unsafe { open_disk(disk)? };
        let fua = self::flags(flags, NVMF_FUA)? & NVMF_FUA != 0;
        check_memory(expected, len)?;
        check_memory(data, len)?;
        disk.check("a compare and write", offset, len as u64)?;
        // SAFETY: the caller has `len` bytes in both places, which nobody changes until this returns.
        let buffer = unsafe { disk.copied(&[(expected, len), (data, len)])? };
        block_on(disk.device().compare_and_write(offset, buffer, fua))?;
        Ok(0)
    })
}

/// Has the target copy len bytes from the byte from to the byte to, whole blocks that do not overlap. -EOPNOTSUPP where it does not
/// copy: nothing was done then, and reading and writing does the same. flags: NVMF_FUA.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_copy(
    disk: *const nvmf_disk,
    from: u64,
    to: u64,
    len: u64,
    flags: c_uint,
) -> c_int {
    call_int(|| {
        // SAFETY: the caller passes a disk that is open.
        let disk = unsafe { open_disk(disk)? };
        let fua = self::flags(flags, NVMF_FUA)? & NVMF_FUA != 0;
        disk.check("a copy", from, len)?;
        disk.check("a copy", to, len)?;
        block_on(disk.device().copy(from, to, len, fua))?;
        Ok(0)
    })
}

impl nvmf_disk {
    /// The caller's memory itself, where an operation can have it: it has whole blocks, and gives the memory back before its call
    /// returns.
    fn part_for_call(&self, data: *const u8, len: usize, offset: u64) -> Option<nvmf_initiator::Buffer> {
        let size = u64::from(self.device().geometry().block_size);
        let whole_blocks = offset.is_multiple_of(size) && (len as u64).is_multiple_of(size);
        self.memory.part(data, len).filter(|_| whole_blocks && !self.has_timeout)
    }

    /// A buffer with what lies in these places, one behind the other.
    ///
    /// # Safety
    /// The caller has so many bytes in each, which nobody changes meanwhile.
    unsafe fn copied(&self, places: &[(*const c_void, usize)]) -> Result<nvmf_initiator::Buffer, Fault> {
        let len = places.iter().map(|(_, len)| len).sum();
        let mut buffer = self.device().buffer(len)?;
        let mut at = 0;
        for &(data, len) in places.iter().filter(|(_, len)| *len > 0) {
            // SAFETY: the caller's promise; it is not null, as it has bytes.
            buffer.write_at(at, unsafe { slice::from_raw_parts(data.cast::<u8>(), len) });
            at += len;
        }
        Ok(buffer)
    }
}
