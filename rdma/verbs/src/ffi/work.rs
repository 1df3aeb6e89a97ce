//! Work requests that are collected until the doorbell rings, as C wants them.

use super::abi::{RecvWr, SendWr, Sge};
use super::constants;
use super::device::Device;
use super::memory::{Region, Window};
use core::ffi::c_int;
use core::ptr::null_mut;
use nvmf_memory::Memory;
use nvmf_rdma::Access;
use std::io;
use std::sync::Arc;

/// Bytes that may be posted inline: a command capsule without data. The device copies them itself up to its own limit,
/// and fetches the rest from the queue pair's staging memory.
pub(crate) const INLINE_MAX: usize = 64;

/// What a send work request does.
pub(crate) enum WorkOperation<'a> {
    Send { invalidate: Option<u32>, solicited: bool },
    Write { address: u64, key: u32 },
    Read { address: u64, key: u32 },
    LocalInvalidate { key: u32 },
    Bind { window: &'a Window, key: u32, region: &'a Region, address: u64, len: u32, access: Access },
}

/// A send work request.
pub(crate) struct WorkRequest<'a> {
    pub(crate) id: u64,
    pub(crate) operation: WorkOperation<'a>,
    pub(crate) signaled: bool,
}

/// The device did not take all of what was posted.
#[derive(Debug)]
pub(crate) struct PostFailure {
    /// So many at the end were not taken.
    pub(crate) refused: usize,
}

/// Work requests that there is room for from the start between two doorbells. Who collects more has it grow once, up to
/// the size of the queue.
const COLLECTED: u32 = 32;

/// Receives that wait for the doorbell.
pub(super) struct Receives {
    requests: Vec<RecvWr>,
    buffers: Vec<Sge>,
}

impl Receives {
    pub(super) fn new(capacity: u32) -> Self {
        let capacity = capacity.min(COLLECTED) as usize;
        Self { requests: Vec::with_capacity(capacity), buffers: Vec::with_capacity(capacity) }
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn push(&mut self, id: u64, buffer: Sge) {
        self.buffers.push(buffer);
        self.requests.push(RecvWr { wr_id: id, next: null_mut(), sg_list: null_mut(), num_sge: 1 });
    }

    pub(super) fn ring(
        &mut self,
        post: impl FnOnce(*mut RecvWr, *mut *mut RecvWr) -> c_int,
    ) -> Result<(), PostFailure> {
        if self.requests.is_empty() {
            return Ok(());
        }
        let (requests, buffers) = (self.requests.as_mut_ptr(), self.buffers.as_mut_ptr());
        for at in 0..self.requests.len() {
            // SAFETY: `at` is within both vectors, which are not resized until the call is over.
            unsafe {
                (*requests.add(at)).sg_list = buffers.add(at);
                (*requests.add(at)).next =
                    if at + 1 < self.requests.len() { requests.add(at + 1) } else { null_mut() };
            }
        }
        let mut bad = null_mut();
        let result = post(requests, &raw mut bad);
        let taken = taken(result, requests, bad, self.requests.len());
        self.requests.clear();
        self.buffers.clear();
        taken
    }
}

/// How much of a chain of `len` that lies in one array was taken.
fn taken<T>(result: c_int, first: *mut T, bad: *mut T, len: usize) -> Result<(), PostFailure> {
    if result == 0 {
        return Ok(());
    }
    // No name: libsiw fails so when the doorbell fails and all is in its ring. Whatever may have been taken counts as
    // taken.
    let taken = if bad.is_null() { len } else { bad.addr().saturating_sub(first.addr()) / size_of::<T>() };
    Err(PostFailure { refused: len.saturating_sub(taken) })
}

/// Sends that wait for the doorbell.
pub(super) struct Sends {
    requests: Vec<SendWr>,
    /// Where each one's elements begin in `gather`.
    first: Vec<usize>,
    gather: Vec<Sge>,
    staging: Staging,
    /// Bytes that the device copies itself when the doorbell rings.
    inline_max: u32,
}

/// What the list of elements of a request without any points to: some libraries look at it all the same.
static NO_ELEMENT: Sge = Sge { addr: 0, length: 0, lkey: 0 };

impl Sends {
    pub(super) fn new(device: &Arc<Device>, capacity: u32, inline_max: u32) -> io::Result<Self> {
        let collected = capacity.min(COLLECTED) as usize;
        Ok(Self {
            requests: Vec::with_capacity(collected),
            first: Vec::with_capacity(collected),
            gather: Vec::with_capacity(collected),
            staging: Staging::new(device, capacity, inline_max)?,
            inline_max,
        })
    }

    /// Collects a request for `inline` bytes, if there are any, or else for what `gather` names.
    pub(super) fn push(
        &mut self,
        request: &WorkRequest<'_>,
        inline: &[u8],
        gather: impl IntoIterator<Item = Sge>,
    ) {
        let first = self.gather.len();
        let mut wr = SendWr { wr_id: request.id, ..SendWr::EMPTY };
        if inline.is_empty() {
            self.gather.extend(gather);
        } else {
            self.gather.push(self.staging.stage(inline));
            wr.send_flags |=
                if inline.len() <= self.inline_max as usize { constants::SEND_INLINE } else { 0 };
        }
        wr.num_sge = (self.gather.len() - first) as c_int;
        wr.send_flags |= if request.signaled { constants::SEND_SIGNALED } else { 0 };
        request.operation.describe(&mut wr);
        self.first.push(first);
        self.requests.push(wr);
    }

    /// Posts what was pushed. The last of it completes visibly, so that of nothing it stays unknown for long whether it
    /// is done.
    pub(super) fn ring(
        &mut self,
        post: impl FnOnce(*mut SendWr, *mut *mut SendWr) -> c_int,
    ) -> Result<(), PostFailure> {
        let Some(last) = self.requests.last_mut() else { return Ok(()) };
        last.send_flags |= constants::SEND_SIGNALED;
        let len = self.requests.len();
        let (requests, gather) = (self.requests.as_mut_ptr(), self.gather.as_mut_ptr());
        for at in 0..len {
            // SAFETY: within the vectors, which are not resized until the call is over.
            unsafe {
                let wr = &mut *requests.add(at);
                wr.sg_list = match wr.num_sge {
                    0 => (&raw const NO_ELEMENT).cast_mut(),
                    _ => gather.add(self.first[at]),
                };
                wr.next = if at + 1 < len { requests.add(at + 1) } else { null_mut() };
            }
        }
        let mut bad = null_mut();
        let result = post(requests, &raw mut bad);
        for wr in self.requests.iter().filter(|wr| wr.opcode == constants::WR_BIND_MW) {
            // SAFETY: windows outlive the doorbell that they wait for: who retires a region rings first, and whose queue pair ends
            // waits for none. The next binding starts from this key.
            unsafe { (*wr.mw).rkey = wr.mw_rkey };
        }
        let taken = taken(result, requests, bad, len);
        self.requests.clear();
        self.first.clear();
        self.gather.clear();
        taken
    }
}

impl WorkOperation<'_> {
    /// Fills in the operation's fields.
    fn describe(&self, wr: &mut SendWr) {
        match *self {
            WorkOperation::Send { invalidate, solicited } => {
                wr.opcode =
                    if invalidate.is_some() { constants::WR_SEND_WITH_INV } else { constants::WR_SEND };
                wr.invalidate_rkey = invalidate.unwrap_or(0);
                wr.send_flags |= if solicited { constants::SEND_SOLICITED } else { 0 };
            }
            WorkOperation::Write { address, key } => {
                (wr.opcode, wr.remote_addr, wr.rkey) = (constants::WR_RDMA_WRITE, address, key);
            }
            WorkOperation::Read { address, key } => {
                (wr.opcode, wr.remote_addr, wr.rkey) = (constants::WR_RDMA_READ, address, key);
            }
            WorkOperation::LocalInvalidate { key } => {
                // Not before earlier READs have completed.
                (wr.opcode, wr.invalidate_rkey) = (constants::WR_LOCAL_INV, key);
                wr.send_flags |= constants::SEND_FENCE;
            }
            WorkOperation::Bind { window, key, region, address, len, access } => {
                (wr.opcode, wr.mw, wr.mw_rkey) = (constants::WR_BIND_MW, window.as_ptr(), key);
                (wr.mw_mr, wr.mw_addr, wr.mw_length) = (region.as_ptr(), address, u64::from(len));
                for (right, flag) in [
                    (Access::REMOTE_READ, constants::ACCESS_REMOTE_READ),
                    (Access::REMOTE_WRITE, constants::ACCESS_REMOTE_WRITE),
                ] {
                    wr.mw_access |= if access.allows(right) { flag } else { 0 };
                }
            }
        }
    }
}

/// Where inline payloads stay until they were sent: as many places as there can be sends, used in turn.
struct Staging {
    memory: Memory,
    /// Where the device fetches from it. One that copies all that is inline when the doorbell rings never does.
    region: Option<Region>,
    next: usize,
}

impl Staging {
    /// For `sends` payloads, of which the device copies up to `inline_max` bytes itself.
    fn new(device: &Arc<Device>, sends: u32, inline_max: u32) -> io::Result<Self> {
        let memory =
            Memory::alloc(sends.max(1) as usize * INLINE_MAX).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let copies = inline_max as usize >= INLINE_MAX;
        let register = || Region::register(device, &memory, Access::LOCAL_READ, false);
        let region = if copies { None } else { Some(register()?) };
        Ok(Self { memory, region, next: 0 })
    }

    /// Copies a payload to the next place.
    fn stage(&mut self, bytes: &[u8]) -> Sge {
        let places = self.memory.len() / INLINE_MAX;
        let at = self.next * INLINE_MAX;
        self.next = (self.next + 1) % places;
        self.memory.write(at, bytes);
        Sge {
            addr: self.memory.as_ptr().addr() as u64 + at as u64,
            length: bytes.len() as u32,
            lkey: self.region.as_ref().map_or(0, Region::local_key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_chain_is_taken_up_to_the_bad_one() {
        let mut chain = [SendWr::EMPTY; 4];
        let first = chain.as_mut_ptr();
        assert!(taken(0, first, null_mut(), 4).is_ok());
        for (bad, refused) in [(first, 4), (first.wrapping_add(3), 1), (null_mut(), 0)] {
            assert_eq!(taken(12, first, bad, 4).map_err(|failure| failure.refused), Err(refused));
        }
    }
}
