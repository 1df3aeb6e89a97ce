//! Queue pairs, shared receive queues, and the work requests collected for them: one doorbell for many.

use super::abi::{self, Qp, QpAttr, QpCap, QpInitAttr, RecvWr, SendWr, Sge, Srq, SrqInitAttr};
use super::device::{CompletionQueue, Device};
use super::memory::{Region, Window};
use super::{CmId, check};
use core::ffi::c_int;
use core::ptr::{NonNull, null_mut};
use nvmf_rdma::Access;
use std::io;
use std::sync::Arc;

/// How large the queues of a queue pair are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueSizes {
    pub(crate) sends: u32,
    pub(crate) receives: u32,
    pub(crate) gather: u32,
    pub(crate) inline: u32,
}

/// What the administrator chose for the way to the peer, where the connection manager would choose otherwise.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PathChoice {
    pub(crate) port: u8,
    pub(crate) pkey_index: Option<u16>,
    pub(crate) gid_index: Option<u8>,
    pub(crate) traffic_class: Option<u8>,
    /// As the verbs write it: 1 is 256 bytes, 5 is 4096.
    pub(crate) mtu: Option<u8>,
    /// As the verbs write it.
    pub(crate) min_rnr_timer: Option<u8>,
}

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
    /// The device copies the bytes when the doorbell rings.
    pub(crate) inline: bool,
}

/// The device did not take all of what was posted.
#[derive(Debug)]
pub(crate) struct PostFailure {
    /// So many at the end were not taken.
    pub(crate) refused: usize,
}

/// A shared receive queue of the device.
pub(crate) struct SharedReceiveQueue {
    device: Arc<Device>,
    srq: NonNull<Srq>,
    receives: Receives,
}

// SAFETY: see `Device`: the queue belongs to the process. The requests collected for it point into
// its own vectors, as set when it rings, and to windows and regions of the provider that holds it and moves with it.
unsafe impl Send for SharedReceiveQueue {}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once, after the queue pairs that hold it.
        unsafe { (self.device.functions.ibv_destroy_srq)(self.srq.as_ptr()) };
    }
}

impl SharedReceiveQueue {
    pub(crate) fn new(device: &Arc<Device>, capacity: u32) -> io::Result<Self> {
        let mut attributes =
            SrqInitAttr { srq_context: null_mut(), max_wr: capacity, max_sge: 1, srq_limit: 0 };
        // SAFETY: the protection domain is alive, the structure whole.
        let srq = unsafe { (device.functions.ibv_create_srq)(device.pd.as_ptr(), &raw mut attributes) };
        let srq = NonNull::new(srq).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { device: Arc::clone(device), srq, receives: Receives::new(capacity) })
    }

    pub(crate) fn push(&mut self, id: u64, buffer: Sge) {
        self.receives.push(id, buffer);
    }

    /// Posts what was pushed.
    pub(crate) fn ring(&mut self) -> Result<(), PostFailure> {
        let refused = self.receives.requests.len();
        let post = self.device.ops().post_srq_recv.ok_or(PostFailure { refused })?;
        let srq = self.srq.as_ptr();
        // SAFETY: the queue is alive, the chain well formed, its elements name memory registered in this domain.
        self.receives.ring(|first, bad| unsafe { post(srq, first, bad) })
    }
}

/// Work requests that there is room for from the start between two doorbells. Who collects more has it grow once, up to the size of
/// the queue.
const COLLECTED: u32 = 32;

/// Receives that wait for the doorbell.
struct Receives {
    requests: Vec<RecvWr>,
    buffers: Vec<Sge>,
}

impl Receives {
    fn new(capacity: u32) -> Self {
        let capacity = capacity.min(COLLECTED) as usize;
        Self { requests: Vec::with_capacity(capacity), buffers: Vec::with_capacity(capacity) }
    }

    fn push(&mut self, id: u64, buffer: Sge) {
        self.buffers.push(buffer);
        self.requests.push(RecvWr { wr_id: id, next: null_mut(), sg_list: null_mut(), num_sge: 1 });
    }

    fn ring(&mut self, post: impl FnOnce(*mut RecvWr, *mut *mut RecvWr) -> c_int) -> Result<(), PostFailure> {
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
    let taken = if bad.is_null() { 0 } else { bad.addr().saturating_sub(first.addr()) / size_of::<T>() };
    Err(PostFailure { refused: len.saturating_sub(taken) })
}

/// A queue pair of the device, and the work that waits for its doorbell.
pub(crate) struct QueuePair {
    device: Arc<Device>,
    qp: NonNull<Qp>,
    /// Bytes that the device takes inline.
    inline: u32,
    sends: Vec<SendWr>,
    /// Where each send's elements begin in `gather`.
    first: Vec<usize>,
    gather: Vec<Sge>,
    receives: Receives,
    _completion_queues: [Arc<CompletionQueue>; 2],
}

// SAFETY: see `Device`: the queue belongs to the process. The requests collected for it point into
// its own vectors, as set when it rings, and to windows and regions of the provider that holds it and moves with it.
unsafe impl Send for QueuePair {}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once; its completion queues are destroyed later.
        unsafe { (self.device.functions.ibv_destroy_qp)(self.qp.as_ptr()) };
    }
}

impl QueuePair {
    pub(crate) fn new(
        device: &Arc<Device>,
        send_cq: &Arc<CompletionQueue>,
        receive_cq: &Arc<CompletionQueue>,
        srq: Option<&SharedReceiveQueue>,
        sizes: QueueSizes,
    ) -> io::Result<Self> {
        let (qp, inline) = Self::create(device, send_cq, receive_cq, srq, sizes)?;
        let sends = sizes.sends.min(COLLECTED) as usize;
        Ok(Self {
            device: Arc::clone(device),
            qp,
            inline,
            sends: Vec::with_capacity(sends),
            first: Vec::with_capacity(sends),
            gather: Vec::with_capacity(sends),
            receives: Receives::new(sizes.receives),
            _completion_queues: [Arc::clone(send_cq), Arc::clone(receive_cq)],
        })
    }

    /// With as much room for inline data as the device gives, up to what is asked for.
    fn create(
        device: &Arc<Device>,
        send_cq: &Arc<CompletionQueue>,
        receive_cq: &Arc<CompletionQueue>,
        srq: Option<&SharedReceiveQueue>,
        sizes: QueueSizes,
    ) -> io::Result<(NonNull<Qp>, u32)> {
        let mut refused = None;
        for inline in [sizes.inline, sizes.inline / 4, 0] {
            let mut attributes = QpInitAttr {
                qp_context: null_mut(),
                send_cq: send_cq.as_ptr(),
                recv_cq: receive_cq.as_ptr(),
                srq: srq.map_or(null_mut(), |srq| srq.srq.as_ptr()),
                cap: QpCap {
                    max_send_wr: sizes.sends,
                    max_recv_wr: sizes.receives,
                    max_send_sge: sizes.gather,
                    max_recv_sge: 1,
                    max_inline_data: inline,
                },
                qp_type: abi::QPT_RC,
                sq_sig_all: 0,
            };
            // SAFETY: domain, queues and shared queue are alive and of this device.
            let qp = unsafe { (device.functions.ibv_create_qp)(device.pd.as_ptr(), &raw mut attributes) };
            if let Some(qp) = NonNull::new(qp) {
                // What the device says that it gives; some say nothing, and give what was asked for.
                let given = attributes.cap.max_inline_data;
                return Ok((qp, if given == 0 { 0 } else { given.min(sizes.inline) }));
            }
            refused = Some(io::Error::last_os_error());
        }
        Err(refused.unwrap_or_else(|| io::ErrorKind::Other.into()))
    }

    /// Bytes that may be posted inline.
    pub(crate) fn inline_max(&self) -> u32 {
        self.inline
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive.
        unsafe { self.qp.as_ref().qp_num }
    }

    pub(crate) fn push_receive(&mut self, id: u64, buffer: Sge) {
        self.receives.push(id, buffer);
    }

    pub(crate) fn push_send(&mut self, request: &WorkRequest<'_>, gather: impl IntoIterator<Item = Sge>) {
        let first = self.gather.len();
        self.gather.extend(gather);
        let mut wr =
            SendWr { wr_id: request.id, num_sge: (self.gather.len() - first) as c_int, ..SendWr::EMPTY };
        if request.signaled {
            wr.send_flags |= abi::SEND_SIGNALED;
        }
        if request.inline {
            wr.send_flags |= abi::SEND_INLINE;
        }
        match request.operation {
            WorkOperation::Send { invalidate, solicited } => {
                wr.opcode = if invalidate.is_some() { abi::WR_SEND_WITH_INV } else { abi::WR_SEND };
                wr.invalidate_rkey = invalidate.unwrap_or(0);
                wr.send_flags |= if solicited { abi::SEND_SOLICITED } else { 0 };
            }
            WorkOperation::Write { address, key } => {
                (wr.opcode, wr.remote_addr, wr.rkey) = (abi::WR_RDMA_WRITE, address, key);
            }
            WorkOperation::Read { address, key } => {
                (wr.opcode, wr.remote_addr, wr.rkey) = (abi::WR_RDMA_READ, address, key);
            }
            WorkOperation::LocalInvalidate { key } => {
                // Not before earlier READs are over.
                (wr.opcode, wr.invalidate_rkey) = (abi::WR_LOCAL_INV, key);
                wr.send_flags |= abi::SEND_FENCE;
            }
            WorkOperation::Bind { window, key, region, address, len, access } => {
                (wr.opcode, wr.mw, wr.mw_rkey) = (abi::WR_BIND_MW, window.as_ptr(), key);
                (wr.mw_mr, wr.mw_addr, wr.mw_length) = (region.as_ptr(), address, u64::from(len));
                for (right, flag) in [
                    (Access::REMOTE_READ, abi::ACCESS_REMOTE_READ),
                    (Access::REMOTE_WRITE, abi::ACCESS_REMOTE_WRITE),
                ] {
                    wr.mw_access |= if access.allows(right) { flag } else { 0 };
                }
            }
        }
        self.first.push(first);
        self.sends.push(wr);
    }

    /// Posts what was pushed.
    pub(crate) fn ring_receives(&mut self) -> Result<(), PostFailure> {
        let (qp, post) = (self.qp.as_ptr(), self.device.ops().post_recv);
        // SAFETY: the queue pair is alive, the chain well formed, its elements name memory registered in this domain.
        self.receives.ring(|first, bad| unsafe { post(qp, first, bad) })
    }

    /// Posts what was pushed. The last of it completes visibly, so that of nothing it stays unknown for long whether it is done.
    pub(crate) fn ring_sends(&mut self) -> Result<(), PostFailure> {
        let Some(last) = self.sends.last_mut() else { return Ok(()) };
        last.send_flags |= abi::SEND_SIGNALED;
        let (sends, gather) = (self.sends.as_mut_ptr(), self.gather.as_mut_ptr());
        for at in 0..self.sends.len() {
            // SAFETY: within the vectors, which are not resized until the call is over.
            unsafe {
                (*sends.add(at)).sg_list = gather.add(self.first[at]);
                (*sends.add(at)).next =
                    if at + 1 < self.sends.len() { sends.add(at + 1) } else { null_mut() };
            }
        }
        let mut bad = null_mut();
        // SAFETY: the queue pair is alive and the chain well formed; elements name memory registered in this domain, inline
        // ones memory that is there now; windows and regions named in it are held by the provider's tables.
        let result = unsafe { (self.device.ops().post_send)(self.qp.as_ptr(), sends, &raw mut bad) };
        for wr in self.sends.iter().filter(|wr| wr.opcode == abi::WR_BIND_MW) {
            // SAFETY: windows outlive the doorbell that they wait for. The next binding starts from this key.
            unsafe { (*wr.mw).rkey = wr.mw_rkey };
        }
        let taken = taken(result, sends, bad, self.sends.len());
        self.sends.clear();
        self.first.clear();
        self.gather.clear();
        taken
    }

    fn modify(&self, attributes: &mut QpAttr, mask: c_int) -> io::Result<()> {
        // SAFETY: the queue pair is alive, the structure whole.
        check(unsafe { (self.device.functions.ibv_modify_qp)(self.qp.as_ptr(), &raw mut *attributes, mask) })
    }

    /// RESET → INIT before there is a connection: receives may be posted from now on (InfiniBand and RoCE).
    pub(crate) fn initialise(&self, path: PathChoice) -> io::Result<()> {
        let mut attributes = QpAttr {
            qp_state: abi::QPS_INIT,
            pkey_index: path.pkey_index.unwrap_or(0),
            port_num: path.port,
            qp_access_flags: REMOTE_ACCESS,
            ..QpAttr::default()
        };
        self.modify(&mut attributes, abi::QP_STATE | abi::QP_PKEY_INDEX | abi::QP_PORT | abi::QP_ACCESS_FLAGS)
    }

    /// INIT → RTR → RTS, with what the connection manager knows of the way to the peer.
    pub(crate) fn connect(&self, id: &CmId, path: PathChoice) -> io::Result<()> {
        for state in [abi::QPS_INIT, abi::QPS_RTR, abi::QPS_RTS] {
            let mut attributes = QpAttr { qp_state: state, ..QpAttr::default() };
            let mut mask = id.queue_pair_attributes(&mut attributes)?;
            if mask & abi::QP_ACCESS_FLAGS != 0 {
                attributes.qp_access_flags |= REMOTE_ACCESS;
            }
            if mask & abi::QP_PKEY_INDEX != 0 {
                attributes.pkey_index = path.pkey_index.unwrap_or(attributes.pkey_index);
            }
            if mask & abi::QP_PATH_MTU != 0 {
                attributes.path_mtu =
                    path.mtu.map_or(attributes.path_mtu, |mtu| attributes.path_mtu.min(mtu.into()));
            }
            if mask & abi::QP_AV != 0 && attributes.ah_attr.is_global != 0 {
                attributes.ah_attr.sgid_index = path.gid_index.unwrap_or(attributes.ah_attr.sgid_index);
                attributes.ah_attr.traffic_class =
                    path.traffic_class.unwrap_or(attributes.ah_attr.traffic_class);
            }
            if let Some(timer) = path.min_rnr_timer.filter(|_| state == abi::QPS_RTR) {
                (attributes.min_rnr_timer, mask) = (timer, mask | abi::QP_MIN_RNR_TIMER);
            }
            self.modify(&mut attributes, mask)?;
        }
        Ok(())
    }

    /// Into the error state: the device flushes what is outstanding.
    pub(crate) fn fail(&self) {
        let mut attributes = QpAttr { qp_state: abi::QPS_ERR, ..QpAttr::default() };
        // One that is in error already, or was never connected, says so: it makes no difference.
        let _ = self.modify(&mut attributes, abi::QP_STATE);
    }
}

const REMOTE_ACCESS: u32 = abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_READ | abi::ACCESS_REMOTE_WRITE;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_chain_is_taken_up_to_the_bad_one() {
        let mut chain = [SendWr::EMPTY; 4];
        let first = chain.as_mut_ptr();
        assert!(taken(0, first, null_mut(), 4).is_ok());
        for (bad, refused) in [(first, 4), (first.wrapping_add(3), 1), (null_mut(), 4)] {
            assert_eq!(taken(12, first, bad, 4).map_err(|failure| failure.refused), Err(refused));
        }
    }
}
