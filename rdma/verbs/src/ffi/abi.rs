//! The C structures of libibverbs and librdmacm, as their ABI has had them since rdma-core 15 (2017): natural
//! alignment, host byte order.
//!
//! Structures that the libraries allocate are declared up to the last field that is read here; those that are passed in
//! are declared whole. Sizes and offsets are asserted below; `abi-check`, a crate of its own, holds them against the
//! header files.

use core::ffi::{c_int, c_void};
use core::mem::{offset_of, size_of};

/// `struct ibv_context_ops`: only what is called through it.
#[repr(C)]
pub(super) struct ContextOps {
    _compat: [usize; 7],
    pub(super) alloc_mw: Option<unsafe extern "C" fn(*mut c_void, u32) -> *mut Mw>,
    _bind_mw: usize,
    pub(super) dealloc_mw: Option<unsafe extern "C" fn(*mut Mw) -> c_int>,
    _create_cq: usize,
    pub(super) poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int,
    pub(super) req_notify_cq: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
    _cq_and_srq: [usize; 7],
    pub(super) post_srq_recv: Option<unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    _qp: [usize; 4],
    pub(super) post_send: unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int,
    pub(super) post_recv: unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int,
    _rest: [usize; 5],
}

#[repr(C)]
pub(super) struct Context {
    pub(super) device: *mut Device,
    pub(super) ops: ContextOps,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
    pub(super) num_comp_vectors: c_int,
}

#[repr(C)]
pub(super) struct Device {
    _ops: [usize; 2],
    pub(super) node_type: i32,
    pub(super) transport_type: i32,
    pub(super) name: [u8; 64],
}

#[repr(C)]
pub(super) struct CompChannel {
    pub(super) context: *mut Context,
    pub(super) fd: c_int,
}

#[repr(C)]
pub(super) struct Cq {
    pub(super) context: *mut Context,
}

#[repr(C)]
pub(super) struct Srq {
    pub(super) context: *mut Context,
}

#[repr(C)]
pub(super) struct Qp {
    pub(super) context: *mut Context,
    _pointers: [usize; 5],
    _handle: u32,
    pub(super) qp_num: u32,
}

#[repr(C)]
pub(super) struct Mr {
    _context: usize,
    _pd: usize,
    _addr: usize,
    _length: usize,
    _handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

#[repr(C)]
pub(super) struct Mw {
    pub(super) context: *mut Context,
    _pd: usize,
    pub(super) rkey: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

#[repr(C)]
pub(super) struct RecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut RecvWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: u32,
    pub(super) send_flags: u32,
    pub(super) invalidate_rkey: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    pub(super) _atomic: [u32; 5],
    pub(super) _xrc: u64,
    pub(super) mw: *mut Mw,
    pub(super) mw_rkey: u32,
    pub(super) mw_mr: *mut Mr,
    pub(super) mw_addr: u64,
    pub(super) mw_length: u64,
    pub(super) mw_access: u32,
}

impl SendWr {
    pub(super) const EMPTY: Self = Self {
        wr_id: 0,
        next: core::ptr::null_mut(),
        sg_list: core::ptr::null_mut(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        invalidate_rkey: 0,
        remote_addr: 0,
        rkey: 0,
        _atomic: [0; 5],
        _xrc: 0,
        mw: core::ptr::null_mut(),
        mw_rkey: 0,
        mw_mr: core::ptr::null_mut(),
        mw_addr: 0,
        mw_length: 0,
        mw_access: 0,
    };
}

/// `struct ibv_wc`: a work completion.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Wc {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    pub(crate) invalidated_rkey: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: u32,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

#[repr(C)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut Srq,
    pub(super) cap: QpCap,
    pub(super) qp_type: u32,
    pub(super) sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct AhAttr {
    dgid: [u64; 2],
    flow_label: u32,
    pub(super) sgid_index: u8,
    hop_limit: u8,
    pub(super) traffic_class: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    pub(super) is_global: u8,
    port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QpAttr {
    pub(super) qp_state: u32,
    pub(super) cur_qp_state: u32,
    pub(super) path_mtu: u32,
    pub(super) path_mig_state: u32,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: u32,
    pub(super) cap: QpCap,
    pub(super) ah_attr: AhAttr,
    pub(super) alt_ah_attr: AhAttr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

#[repr(C)]
pub(super) struct SrqInitAttr {
    pub(super) srq_context: *mut c_void,
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) srq_limit: u32,
}

#[repr(C)]
pub(super) struct DeviceAttr {
    fw_ver: [u8; 64],
    _guids: [u64; 2],
    pub(super) max_mr_size: u64,
    _page_size_cap: u64,
    pub(super) vendor_id: u32,
    _vendor: [u32; 2],
    pub(super) max_qp: i32,
    pub(super) max_qp_wr: i32,
    pub(super) device_cap_flags: u32,
    pub(super) max_sge: i32,
    pub(super) max_sge_rd: i32,
    pub(super) max_cq: i32,
    pub(super) max_cqe: i32,
    pub(super) max_mr: i32,
    _max_pd: i32,
    pub(super) max_qp_rd_atom: i32,
    _max_ee_rd_atom: i32,
    _max_res_rd_atom: i32,
    pub(super) max_qp_init_rd_atom: i32,
    _max_ee_init_rd_atom: i32,
    _atomic_cap: i32,
    _max_ee: i32,
    _max_rdd: i32,
    pub(super) max_mw: i32,
    _raw_and_mcast: [i32; 5],
    _max_ah: i32,
    _max_fmr: i32,
    _max_map_per_fmr: i32,
    pub(super) max_srq: i32,
    pub(super) max_srq_wr: i32,
    _max_srq_sge: i32,
    _max_pkeys: u16,
    _local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

impl DeviceAttr {
    pub(super) const EMPTY: Self = {
        // SAFETY: integers and arrays of integers only, for which zero is a value.
        unsafe { core::mem::zeroed() }
    };
}

#[repr(C)]
pub(super) struct AsyncEvent {
    pub(super) element: usize,
    pub(super) event_type: i32,
}

#[repr(C)]
pub(super) struct EventChannel {
    pub(super) fd: c_int,
}

#[repr(C)]
pub(super) struct CmId {
    pub(super) verbs: *mut Context,
    pub(super) channel: *mut EventChannel,
    _context: usize,
    _qp: usize,
    pub(super) src_addr: [u64; 16],
    pub(super) dst_addr: [u64; 16],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ConnParam {
    pub(super) private_data: *const c_void,
    pub(super) private_data_len: u8,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) flow_control: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) srq: u8,
    pub(super) qp_num: u32,
}

#[repr(C)]
pub(super) struct CmEvent {
    pub(super) id: *mut CmId,
    pub(super) listen_id: *mut CmId,
    pub(super) event: i32,
    pub(super) status: c_int,
    pub(super) conn: ConnParam,
    _rest_of_union: [u64; 4],
}

const _: () = {
    assert!(size_of::<ContextOps>() == 256);
    assert!(offset_of!(ContextOps, alloc_mw) == 56 && offset_of!(ContextOps, dealloc_mw) == 72);
    assert!(offset_of!(ContextOps, poll_cq) == 88 && offset_of!(ContextOps, req_notify_cq) == 96);
    assert!(offset_of!(ContextOps, post_srq_recv) == 160);
    assert!(offset_of!(ContextOps, post_send) == 200 && offset_of!(ContextOps, post_recv) == 208);
    assert!(offset_of!(Context, ops) == 8 && offset_of!(Context, async_fd) == 268);
    assert!(offset_of!(Context, num_comp_vectors) == 272);
    assert!(offset_of!(Device, transport_type) == 20 && offset_of!(Device, name) == 24);
    assert!(offset_of!(CompChannel, fd) == 8 && offset_of!(Qp, qp_num) == 52);
    assert!(offset_of!(Mr, lkey) == 36 && offset_of!(Mr, rkey) == 40 && offset_of!(Mw, rkey) == 16);
    assert!(size_of::<Sge>() == 16 && size_of::<RecvWr>() == 32);
    assert!(size_of::<SendWr>() == 128 && offset_of!(SendWr, invalidate_rkey) == 36);
    assert!(offset_of!(SendWr, remote_addr) == 40 && offset_of!(SendWr, mw) == 80);
    assert!(offset_of!(SendWr, mw_mr) == 96);
    assert!(size_of::<Wc>() == 48 && size_of::<QpInitAttr>() == 64 && size_of::<SrqInitAttr>() == 24);
    assert!(size_of::<AhAttr>() == 32 && size_of::<QpAttr>() == 144);
    assert!(offset_of!(QpAttr, ah_attr) == 56 && offset_of!(QpAttr, pkey_index) == 120);
    assert!(offset_of!(QpAttr, rate_limit) == 136);
    assert!(size_of::<DeviceAttr>() == 232 && offset_of!(DeviceAttr, max_mr_size) == 80);
    assert!(offset_of!(DeviceAttr, max_qp_wr) == 112 && offset_of!(DeviceAttr, _max_res_rd_atom) == 152);
    assert!(offset_of!(DeviceAttr, max_srq_wr) == 216 && offset_of!(DeviceAttr, phys_port_cnt) == 227);
    assert!(size_of::<AsyncEvent>() == 16 && size_of::<EventChannel>() == 4);
    assert!(offset_of!(CmId, src_addr) == 32 && offset_of!(CmId, dst_addr) == 32 + 128);
    assert!(size_of::<ConnParam>() == 24 && offset_of!(ConnParam, qp_num) == 16);
    assert!(size_of::<CmEvent>() == 80 && offset_of!(CmEvent, conn) == 24);
};
