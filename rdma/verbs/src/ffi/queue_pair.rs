//! Queue pairs and shared receive queues.

use super::abi::{Qp, QpAttr, QpCap, QpInitAttr, Sge, Srq, SrqInitAttr};
use super::constants;
use super::device::{CompletionQueue, Device};
use super::work::{PostFailure, Receives, Sends, WorkRequest};
use super::{CmId, check};
use core::ffi::c_int;
use core::ptr::{NonNull, null_mut};
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

/// What the administrator chose for the path to the peer, in place of the connection manager's choice.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PathChoice {
    pub(crate) port: u8,
    pub(crate) pkey_index: Option<u16>,
    pub(crate) gid_index: Option<u8>,
    pub(crate) traffic_class: Option<u8>,
    /// As the verbs write it.
    pub(crate) min_rnr_timer: Option<u8>,
    /// As the verbs write it.
    pub(crate) ack_timeout: Option<u8>,
}

/// A shared receive queue of the device, held by the queue pairs that receive from it.
struct SharedHandle {
    device: Arc<Device>,
    srq: NonNull<Srq>,
}

// SAFETY: see `Device`: the queue belongs to the process.
unsafe impl Send for SharedHandle {}
// SAFETY: as above; posting takes the queue's own lock.
unsafe impl Sync for SharedHandle {}

impl Drop for SharedHandle {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once, after the queue pairs, which hold it.
        unsafe { (self.device.functions.ibv_destroy_srq)(self.srq.as_ptr()) };
    }
}

/// A shared receive queue, and the receives that wait for its doorbell.
pub(crate) struct SharedReceiveQueue {
    handle: Arc<SharedHandle>,
    receives: Receives,
}

// SAFETY: the requests collected for it point into its own vectors, as set when it rings.
unsafe impl Send for SharedReceiveQueue {}

impl SharedReceiveQueue {
    pub(crate) fn new(device: &Arc<Device>, capacity: u32) -> io::Result<Self> {
        let mut attributes =
            SrqInitAttr { srq_context: null_mut(), max_wr: capacity, max_sge: 1, srq_limit: 0 };
        // SAFETY: the protection domain is alive, the structure whole.
        let srq = unsafe { (device.functions.ibv_create_srq)(device.pd.as_ptr(), &raw mut attributes) };
        let srq = NonNull::new(srq).ok_or_else(io::Error::last_os_error)?;
        let handle = Arc::new(SharedHandle { device: Arc::clone(device), srq });
        Ok(Self { handle, receives: Receives::new(capacity) })
    }

    pub(crate) fn push(&mut self, id: u64, buffer: Sge) {
        self.receives.push(id, buffer);
    }

    /// Posts what was pushed.
    pub(crate) fn ring(&mut self) -> Result<(), PostFailure> {
        let refused = self.receives.len();
        let post = self.handle.device.ops().post_srq_recv.ok_or(PostFailure { refused })?;
        let srq = self.handle.srq.as_ptr();
        // SAFETY: the queue is alive, the chain well formed, its elements name memory registered in this domain.
        self.receives.ring(|first, bad| unsafe { post(srq, first, bad) })
    }
}

/// A queue pair of the device, and the work that waits for its doorbell.
pub(crate) struct QueuePair {
    device: Arc<Device>,
    qp: NonNull<Qp>,
    is_destroyed: bool,
    sends: Sends,
    receives: Receives,
    _completion_queues: [Arc<CompletionQueue>; 2],
    _shared: Option<Arc<SharedHandle>>,
}

// SAFETY: see `Device`: the queue belongs to the process. The requests collected for it point into
// its own vectors, as set when it rings, and to windows and regions of the provider that holds it and moves with it.
unsafe impl Send for QueuePair {}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // `destroy` is for callers that need the result.
        let _ = self.end();
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
        let shared = srq.map(|srq| Arc::clone(&srq.handle));
        let (qp, inline) = Self::create(device, send_cq, receive_cq, shared.as_deref(), sizes)?;
        let sends = Sends::new(device, sizes.sends, inline).inspect_err(|_| {
            // SAFETY: just made, and ours alone.
            unsafe { (device.functions.ibv_destroy_qp)(qp.as_ptr()) };
        })?;
        Ok(Self {
            device: Arc::clone(device),
            qp,
            is_destroyed: false,
            sends,
            receives: Receives::new(sizes.receives),
            _completion_queues: [Arc::clone(send_cq), Arc::clone(receive_cq)],
            _shared: shared,
        })
    }

    /// Destroys it.
    ///
    /// # Errors
    /// The device keeps it: it may still read and write the memory that its work names.
    pub(crate) fn destroy(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        if core::mem::replace(&mut self.is_destroyed, true) {
            return Ok(());
        }
        self.fail();
        // SAFETY: made once, destroyed once; its completion queues are destroyed later.
        check(unsafe { (self.device.functions.ibv_destroy_qp)(self.qp.as_ptr()) })
    }

    /// With as much room for inline data as the device gives, at most what is asked for.
    fn create(
        device: &Arc<Device>,
        send_cq: &Arc<CompletionQueue>,
        receive_cq: &Arc<CompletionQueue>,
        srq: Option<&SharedHandle>,
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
                qp_type: constants::QPT_RC,
                sq_sig_all: 0,
            };
            // SAFETY: domain, queues and shared queue are alive and of this device.
            let qp = unsafe { (device.functions.ibv_create_qp)(device.pd.as_ptr(), &raw mut attributes) };
            if let Some(qp) = NonNull::new(qp) {
                // What the device reports; 0 is taken for no inline data.
                let given = attributes.cap.max_inline_data;
                return Ok((qp, if given == 0 { 0 } else { given.min(sizes.inline) }));
            }
            refused = Some(io::Error::last_os_error());
        }
        Err(refused.unwrap_or_else(|| io::ErrorKind::Other.into()))
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the queue pair is alive.
        unsafe { self.qp.as_ref().qp_num }
    }

    pub(crate) fn push_receive(&mut self, id: u64, buffer: Sge) {
        self.receives.push(id, buffer);
    }

    /// Collects a send of `inline` bytes, if there are any, or else of what `gather` names.
    pub(crate) fn push_send(
        &mut self,
        request: &WorkRequest<'_>,
        inline: &[u8],
        gather: impl IntoIterator<Item = Sge>,
    ) {
        self.sends.push(request, inline, gather);
    }

    /// Posts what was pushed.
    pub(crate) fn ring_receives(&mut self) -> Result<(), PostFailure> {
        let (qp, post) = (self.qp.as_ptr(), self.device.ops().post_recv);
        // SAFETY: the queue pair is alive, the chain well formed, its elements name memory registered in this domain.
        self.receives.ring(|first, bad| unsafe { post(qp, first, bad) })
    }

    /// Posts what was pushed. The last of it completes visibly.
    pub(crate) fn ring_sends(&mut self) -> Result<(), PostFailure> {
        let (qp, post) = (self.qp.as_ptr(), self.device.ops().post_send);
        // SAFETY: the queue pair is alive and the chain well formed; elements name memory registered in this domain,
        // inline ones staging memory; windows and regions named in it are held by the provider's tables.
        self.sends.ring(|first, bad| unsafe { post(qp, first, bad) })
    }

    fn modify(&self, attributes: &mut QpAttr, mask: c_int) -> io::Result<()> {
        // SAFETY: the queue pair is alive, the structure whole.
        check(unsafe { (self.device.functions.ibv_modify_qp)(self.qp.as_ptr(), &raw mut *attributes, mask) })
    }

    /// RESET → INIT before there is a connection: receives may be posted from now on (InfiniBand and RoCE).
    pub(crate) fn initialise(&self, path: PathChoice) -> io::Result<()> {
        let mut attributes = QpAttr {
            qp_state: constants::QPS_INIT,
            pkey_index: path.pkey_index.unwrap_or(0),
            port_num: path.port,
            qp_access_flags: REMOTE_ACCESS,
            ..QpAttr::default()
        };
        self.modify(
            &mut attributes,
            constants::QP_STATE | constants::QP_PKEY_INDEX | constants::QP_PORT | constants::QP_ACCESS_FLAGS,
        )
    }

    /// INIT → RTR → RTS, with the connection manager's attributes of the path.
    pub(crate) fn connect(&self, id: &CmId, path: PathChoice) -> io::Result<()> {
        for state in [constants::QPS_INIT, constants::QPS_RTR, constants::QPS_RTS] {
            let mut attributes = QpAttr { qp_state: state, ..QpAttr::default() };
            let mut mask = id.queue_pair_attributes(&mut attributes)?;
            if mask & constants::QP_ACCESS_FLAGS != 0 {
                attributes.qp_access_flags |= REMOTE_ACCESS;
            }
            if mask & constants::QP_PKEY_INDEX != 0 {
                attributes.pkey_index = path.pkey_index.unwrap_or(attributes.pkey_index);
            }
            if mask & constants::QP_TIMEOUT != 0 {
                attributes.timeout = path.ack_timeout.unwrap_or(attributes.timeout);
            }
            if mask & constants::QP_AV != 0 && attributes.ah_attr.is_global != 0 {
                attributes.ah_attr.sgid_index = path.gid_index.unwrap_or(attributes.ah_attr.sgid_index);
                attributes.ah_attr.traffic_class =
                    path.traffic_class.unwrap_or(attributes.ah_attr.traffic_class);
            }
            if let Some(timer) = path.min_rnr_timer.filter(|_| state == constants::QPS_RTR) {
                (attributes.min_rnr_timer, mask) = (timer, mask | constants::QP_MIN_RNR_TIMER);
            }
            self.modify(&mut attributes, mask)?;
        }
        Ok(())
    }

    /// Into the error state: the device flushes what is outstanding.
    pub(crate) fn fail(&self) {
        let mut attributes = QpAttr { qp_state: constants::QPS_ERR, ..QpAttr::default() };
        // Fails where it is in error already or was never connected, which does not matter.
        let _ = self.modify(&mut attributes, constants::QP_STATE);
    }
}

const REMOTE_ACCESS: u32 =
    constants::ACCESS_LOCAL_WRITE | constants::ACCESS_REMOTE_READ | constants::ACCESS_REMOTE_WRITE;
