//! Registered memory: C knows it by its address.

use crate::boundary::{Fault, call};
use crate::disk::{nvmf_disk, open_disk};
use core::ffi::c_void;
use core::ptr;
use nvmf_initiator::{Buffer, SharedBuffer};
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

/// What a disk's `nvmf_alloc` gave and `nvmf_free` did not get yet, by address.
#[derive(Default)]
pub(crate) struct Registered(RwLock<BTreeMap<usize, SharedBuffer>>);

impl Registered {
    /// The part of it that these bytes are; `None` where they are other memory, or not all of one piece.
    pub(crate) fn part(&self, data: *const u8, len: usize) -> Option<Buffer> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (&start, buffer) = all.range(..=data.addr()).next_back()?;
        let offset = data.addr() - start;
        let fits = offset.checked_add(len).is_some_and(|end| end <= buffer.len());
        fits.then(|| buffer.part(offset, len))
    }
}

/// Memory of len bytes for operations on this disk, which move it without a copy; page-aligned. Null when there is none:
/// nvmf_last_error(). At most 65535 pieces at once; parts of one may be used by several operations.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_alloc(disk: *const nvmf_disk, len: usize) -> *mut c_void {
    let mut data = ptr::null_mut::<u8>();
    call(|| {
        // SAFETY: the caller passes a disk that is open.
        let disk = unsafe { open_disk(disk)? };
        if len == 0 {
            return Err(Fault::misuse("no memory has 0 bytes"));
        }
        let buffer = disk.device().buffer(len)?.share();
        data = buffer.as_ptr();
        disk.memory.0.write().unwrap_or_else(PoisonError::into_inner).insert(data.addr(), buffer);
        Ok(0)
    });
    data.cast()
}

/// Gives memory of nvmf_alloc() back. Operations that have it keep it until they end. Null does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmf_free(disk: *const nvmf_disk, data: *mut c_void) -> libc::c_int {
    crate::boundary::call_int(|| {
        // SAFETY: the caller passes a disk that is open.
        let disk = unsafe { open_disk(disk)? };
        let removed = disk.memory.0.write().unwrap_or_else(PoisonError::into_inner).remove(&data.addr());
        match removed.is_some() || data.is_null() {
            true => Ok(0),
            false => {
                Err(Fault::misuse("this memory is not of nvmf_alloc() of this disk, or was freed before"))
            }
        }
    })
}
