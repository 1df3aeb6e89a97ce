//! Numbers of the libraries' header files. `abi-check`, a crate of its own, holds them against these.

use core::ffi::c_int;

pub(super) const QPT_RC: u32 = 2;
pub(super) const PS_TCP: u32 = 0x0106;
pub(super) const TRANSPORT_IWARP: i32 = 1;
pub(super) const MW_TYPE_2: u32 = 2;

pub(super) const QPS_INIT: u32 = 1;
pub(super) const QPS_RTR: u32 = 2;
pub(super) const QPS_RTS: u32 = 3;
pub(super) const QPS_ERR: u32 = 6;

pub(super) const QP_STATE: c_int = 1;
pub(super) const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const QP_PORT: c_int = 1 << 5;
pub(super) const QP_AV: c_int = 1 << 7;
pub(super) const QP_TIMEOUT: c_int = 1 << 9;
pub(super) const QP_MIN_RNR_TIMER: c_int = 1 << 15;

pub(super) const ACCESS_LOCAL_WRITE: u32 = 1;
pub(super) const ACCESS_REMOTE_WRITE: u32 = 2;
pub(super) const ACCESS_REMOTE_READ: u32 = 4;
pub(super) const ACCESS_MW_BIND: u32 = 16;
/// Optional: the library drops it for a kernel or a device that does not know it.
pub(super) const ACCESS_RELAXED_ORDERING: u32 = 1 << 20;

pub(super) const CAP_MEM_MGT_EXTENSIONS: u32 = 1 << 21;
pub(super) const CAP_MW_TYPE_2: u32 = 1 << 23 | 1 << 24;

pub(super) const WR_RDMA_WRITE: u32 = 0;
pub(super) const WR_SEND: u32 = 2;
pub(super) const WR_RDMA_READ: u32 = 4;
pub(super) const WR_LOCAL_INV: u32 = 7;
pub(super) const WR_BIND_MW: u32 = 8;
pub(super) const WR_SEND_WITH_INV: u32 = 9;

pub(super) const SEND_FENCE: u32 = 1;
pub(super) const SEND_SIGNALED: u32 = 2;
pub(super) const SEND_SOLICITED: u32 = 4;
pub(super) const SEND_INLINE: u32 = 8;

// `enum ibv_event_type`, the values that are told apart here.
pub(super) const EVENT_CQ_ERR: i32 = 0;
pub(super) const EVENT_QP_FATAL: i32 = 1;
pub(super) const EVENT_QP_REQ_ERR: i32 = 2;
pub(super) const EVENT_QP_ACCESS_ERR: i32 = 3;
pub(super) const EVENT_COMM_EST: i32 = 4;
pub(super) const EVENT_DEVICE_FATAL: i32 = 8;
pub(super) const EVENT_SRQ_ERR: i32 = 14;

// `enum rdma_cm_event_type`.
pub(super) const CM_ADDR_RESOLVED: i32 = 0;
pub(super) const CM_ADDR_ERROR: i32 = 1;
pub(super) const CM_ROUTE_RESOLVED: i32 = 2;
pub(super) const CM_ROUTE_ERROR: i32 = 3;
pub(super) const CM_CONNECT_REQUEST: i32 = 4;
pub(super) const CM_CONNECT_RESPONSE: i32 = 5;
pub(super) const CM_CONNECT_ERROR: i32 = 6;
pub(super) const CM_UNREACHABLE: i32 = 7;
pub(super) const CM_REJECTED: i32 = 8;
pub(super) const CM_ESTABLISHED: i32 = 9;
pub(super) const CM_DISCONNECTED: i32 = 10;
pub(super) const CM_DEVICE_REMOVAL: i32 = 11;

// `rdma_set_option`.
pub(super) const OPTION_ID: c_int = 0;
pub(super) const OPTION_ID_TOS: c_int = 0;

// `enum ibv_wc_status`.
pub(crate) const WC_SUCCESS: u32 = 0;
pub(crate) const WC_LOC_LEN_ERR: u32 = 1;
pub(crate) const WC_LOC_PROT_ERR: u32 = 4;
pub(crate) const WC_WR_FLUSH_ERR: u32 = 5;
pub(crate) const WC_LOC_ACCESS_ERR: u32 = 8;
pub(crate) const WC_REM_INV_REQ_ERR: u32 = 9;
pub(crate) const WC_REM_ACCESS_ERR: u32 = 10;
pub(crate) const WC_REM_OP_ERR: u32 = 11;
pub(crate) const WC_RETRY_EXC_ERR: u32 = 12;
pub(crate) const WC_RNR_RETRY_EXC_ERR: u32 = 13;
pub(crate) const WC_REM_ABORT_ERR: u32 = 16;

/// `IBV_WC_WITH_INV`: a receive that invalidated a key.
pub(crate) const WC_WITH_INV: u32 = 1 << 3;
