//! Memory regions and windows.

use super::abi::{Mr, Mw, Sge};
use super::check;
use super::constants;
use super::device::Device;
use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use nvmf_memory::Memory;
use nvmf_rdma::Access;
use std::io;
use std::sync::Arc;

/// Memory that the device may use.
pub(crate) struct Region {
    device: Arc<Device>,
    mr: NonNull<Mr>,
    memory: Memory,
    /// The part of the memory that is registered.
    offset: usize,
    len: usize,
}

// SAFETY: see `Device`: the registration belongs to the process, and only its owner uses or ends it.
unsafe impl Send for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: registered once, deregistered once; the memory is released after this.
        let ended = check(unsafe { (self.device.functions.ibv_dereg_mr)(self.mr.as_ptr()) });
        if ended.is_err() {
            // The device may still write to it: it must never be anyone else's.
            core::mem::forget(self.memory.clone());
        }
    }
}

fn flags(access: Access) -> u32 {
    let pairs = [
        (Access::LOCAL_WRITE, constants::ACCESS_LOCAL_WRITE),
        (Access::REMOTE_READ, constants::ACCESS_REMOTE_READ),
        (Access::REMOTE_WRITE, constants::ACCESS_REMOTE_WRITE),
    ];
    pairs.into_iter().filter(|(right, _)| access.allows(*right)).map(|(_, flag)| flag).sum()
}

impl Region {
    /// Pins `memory` and lets the device use it; windows may be bound to it if `windows`.
    pub(crate) fn register(
        device: &Arc<Device>,
        memory: &Memory,
        access: Access,
        windows: bool,
    ) -> io::Result<Self> {
        Self::register_part(device, memory, 0, memory.len(), access, windows)
    }

    /// The same for a part of it.
    pub(crate) fn register_part(
        device: &Arc<Device>,
        memory: &Memory,
        offset: usize,
        len: usize,
        access: Access,
        windows: bool,
    ) -> io::Result<Self> {
        if !memory.contains(offset, len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut flags = flags(access);
        if access.allows(Access::REMOTE_WRITE) {
            flags |= constants::ACCESS_LOCAL_WRITE;
        }
        if windows {
            flags |= constants::ACCESS_MW_BIND;
        }
        // SAFETY: the memory is there as long as the region holds it, which is as long as it is registered, and the
        // part lies within it. Nobody has a reference into it (`Memory`'s contract), so the device may write it.
        let mr = unsafe {
            let address = memory.as_ptr().add(offset).cast::<c_void>();
            let pd = device.pd.as_ptr();
            match device.functions.ibv_reg_mr_iova2 {
                // The device's writes may pass each other on the bus, but none its completion, before which nobody
                // looks.
                Some(register) => {
                    let flags = flags | constants::ACCESS_RELAXED_ORDERING;
                    register(pd, address, len, address.addr() as u64, flags)
                }
                None => (device.functions.ibv_reg_mr)(pd, address, len, flags as c_int),
            }
        };
        let mr = NonNull::new(mr).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { device: Arc::clone(device), mr, memory: memory.clone(), offset, len })
    }

    /// The device's name for `len` bytes from `offset` on, if they are in the region.
    pub(crate) fn part(&self, offset: usize, len: u32) -> Option<Sge> {
        let end = offset.checked_add(len as usize)?;
        let part = || Sge { addr: self.address() + offset as u64, length: len, lkey: self.local_key() };
        (end <= self.len).then(part)
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The address by which work requests and peers name its first byte.
    pub(crate) fn address(&self) -> u64 {
        (self.memory.as_ptr().addr() + self.offset) as u64
    }

    pub(crate) fn local_key(&self) -> u32 {
        // SAFETY: the registration is alive.
        unsafe { self.mr.as_ref().lkey }
    }

    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: the registration is alive.
        unsafe { self.mr.as_ref().rkey }
    }

    pub(super) fn as_ptr(&self) -> *mut Mr {
        self.mr.as_ptr()
    }
}

/// A memory window of type 2.
pub(crate) struct Window {
    device: Arc<Device>,
    mw: NonNull<Mw>,
}

// SAFETY: see `Device`: the registration belongs to the process, and only its owner uses or ends it.
unsafe impl Send for Window {}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(dealloc) = self.device.ops().dealloc_mw {
            // SAFETY: allocated once, freed once; what it was bound to is still registered, because regions outlive
            // their windows. Where the device keeps it, it keeps the region too, whose memory is then never freed.
            unsafe { dealloc(self.mw.as_ptr()) };
        }
    }
}

impl Window {
    pub(crate) fn alloc(device: &Arc<Device>) -> io::Result<Self> {
        let alloc = device.ops().alloc_mw.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: the protection domain is alive. A driver fills in the fields of the base library in its own
        // `alloc_mw`.
        let mw = unsafe { alloc(device.pd.as_ptr(), constants::MW_TYPE_2) };
        let mw = NonNull::new(mw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { device: Arc::clone(device), mw })
    }

    /// The key that the window was made with: its low eight bits are the binder's to choose.
    pub(crate) fn key(&self) -> u32 {
        // SAFETY: the window is alive.
        unsafe { self.mw.as_ref().rkey }
    }

    pub(super) fn as_ptr(&self) -> *mut Mw {
        self.mw.as_ptr()
    }
}
