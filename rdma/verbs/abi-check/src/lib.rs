//! Sizes, offsets and numbers of the hand-written declarations, held against rdma-core's header files.
#![cfg(test)]
#![allow(dead_code, reason = "whatever is not compared")]

#[path = "../../src/ffi/abi.rs"]
mod abi;
#[path = "../../src/ffi/constants.rs"]
mod constants;

#[allow(non_camel_case_types, non_upper_case_globals, non_snake_case, clippy::all)]
mod headers {
    include!(concat!(env!("OUT_DIR"), "/headers.rs"));
}

use std::mem::{offset_of, size_of};

/// Offsets of the fields by which a structure is used; its size, where it is made by us.
macro_rules! same {
    ($($ours:ident = $theirs:ident $(($size:tt))? {
        $($field:ident $(= $($path:ident).+)?),* $(,)?
    })+) => {
        $($(
            assert_eq!(
                offset_of!(abi::$ours, $field),
                same!(@offset $theirs, $field $(, $($path).+)?),
                concat!(stringify!($ours), ".", stringify!($field)),
            );
        )*
        $(same!(@size $size $ours, $theirs);)?)+
    };
    (@offset $theirs:ident, $field:ident) => { offset_of!(headers::$theirs, $field) };
    (@offset $theirs:ident, $field:ident, $($path:ident).+) => { offset_of!(headers::$theirs, $($path).+) };
    (@size whole $ours:ident, $theirs:ident) => {
        assert_eq!(size_of::<abi::$ours>(), size_of::<headers::$theirs>(), stringify!($ours))
    };
}

#[test]
fn structures_are_laid_out_as_the_headers_say() {
    same! {
        ContextOps = ibv_context_ops (whole) {
            alloc_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv,
        }
        Context = ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors }
        Device = ibv_device { node_type, transport_type, name }
        CompChannel = ibv_comp_channel { context, fd }
        Cq = ibv_cq { context }
        Srq = ibv_srq { context }
        Qp = ibv_qp { context, qp_num }
        Mr = ibv_mr { lkey, rkey }
        Mw = ibv_mw { context, rkey }
        Sge = ibv_sge (whole) { addr, length, lkey }
        RecvWr = ibv_recv_wr (whole) { wr_id, next, sg_list, num_sge }
        SendWr = ibv_send_wr (whole) {
            wr_id, next, sg_list, num_sge, opcode, send_flags,
            invalidate_rkey = __bindgen_anon_1.invalidate_rkey,
            remote_addr = wr.rdma.remote_addr,
            rkey = wr.rdma.rkey,
            mw = __bindgen_anon_2.bind_mw.mw,
            mw_rkey = __bindgen_anon_2.bind_mw.rkey,
            mw_mr = __bindgen_anon_2.bind_mw.bind_info.mr,
            mw_addr = __bindgen_anon_2.bind_mw.bind_info.addr,
            mw_length = __bindgen_anon_2.bind_mw.bind_info.length,
            mw_access = __bindgen_anon_2.bind_mw.bind_info.mw_access_flags,
        }
        Wc = ibv_wc (whole) {
            wr_id, status, opcode, vendor_err, byte_len, invalidated_rkey = __bindgen_anon_1.invalidated_rkey, qp_num,
            src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits,
        }
        QpCap = ibv_qp_cap (whole) {
            max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data,
        }
        QpInitAttr = ibv_qp_init_attr (whole) { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        AhAttr = ibv_ah_attr (whole) {
            sgid_index = grh.sgid_index, traffic_class = grh.traffic_class, is_global,
        }
        QpAttr = ibv_qp_attr (whole) {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap,
            ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
            max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
            rate_limit,
        }
        SrqInitAttr = ibv_srq_init_attr (whole) {
            srq_context, max_wr = attr.max_wr, max_sge = attr.max_sge, srq_limit = attr.srq_limit,
        }
        DeviceAttr = ibv_device_attr (whole) {
            max_mr_size, vendor_id, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr,
            max_qp_rd_atom, max_qp_init_rd_atom, max_mw, max_srq, max_srq_wr, phys_port_cnt,
        }
        AsyncEvent = ibv_async_event (whole) { element, event_type }
        EventChannel = rdma_event_channel (whole) { fd }
        CmId = rdma_cm_id {
            verbs, channel, src_addr = route.addr.__bindgen_anon_1.src_storage,
            dst_addr = route.addr.__bindgen_anon_2.dst_storage,
        }
        ConnParam = rdma_conn_param (whole) {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control, retry_count,
            rnr_retry_count, srq, qp_num,
        }
        CmEvent = rdma_cm_event (whole) { id, listen_id, event, status, conn = param.conn }
    }
}

macro_rules! equal {
    ($($ours:ident = $theirs:ident)+) => {
        $(assert_eq!(constants::$ours as i128, headers::$theirs as i128, stringify!($ours));)+
    };
}

#[test]
fn numbers_are_those_of_the_headers() {
    equal! {
        QPT_RC = IBV_QPT_RC
        PS_TCP = RDMA_PS_TCP
        TRANSPORT_IWARP = IBV_TRANSPORT_IWARP
        MW_TYPE_2 = IBV_MW_TYPE_2
        QPS_INIT = IBV_QPS_INIT
        QPS_RTR = IBV_QPS_RTR
        QPS_RTS = IBV_QPS_RTS
        QPS_ERR = IBV_QPS_ERR
        QP_STATE = IBV_QP_STATE
        QP_ACCESS_FLAGS = IBV_QP_ACCESS_FLAGS
        QP_PKEY_INDEX = IBV_QP_PKEY_INDEX
        QP_PORT = IBV_QP_PORT
        QP_AV = IBV_QP_AV
        QP_TIMEOUT = IBV_QP_TIMEOUT
        QP_MIN_RNR_TIMER = IBV_QP_MIN_RNR_TIMER
        ACCESS_LOCAL_WRITE = IBV_ACCESS_LOCAL_WRITE
        ACCESS_REMOTE_WRITE = IBV_ACCESS_REMOTE_WRITE
        ACCESS_REMOTE_READ = IBV_ACCESS_REMOTE_READ
        ACCESS_MW_BIND = IBV_ACCESS_MW_BIND
        ACCESS_RELAXED_ORDERING = IBV_ACCESS_RELAXED_ORDERING
        CAP_MEM_MGT_EXTENSIONS = IBV_DEVICE_MEM_MGT_EXTENSIONS
        WR_RDMA_WRITE = IBV_WR_RDMA_WRITE
        WR_SEND = IBV_WR_SEND
        WR_RDMA_READ = IBV_WR_RDMA_READ
        WR_LOCAL_INV = IBV_WR_LOCAL_INV
        WR_BIND_MW = IBV_WR_BIND_MW
        WR_SEND_WITH_INV = IBV_WR_SEND_WITH_INV
        SEND_FENCE = IBV_SEND_FENCE
        SEND_SIGNALED = IBV_SEND_SIGNALED
        SEND_SOLICITED = IBV_SEND_SOLICITED
        SEND_INLINE = IBV_SEND_INLINE
        EVENT_CQ_ERR = IBV_EVENT_CQ_ERR
        EVENT_QP_FATAL = IBV_EVENT_QP_FATAL
        EVENT_QP_REQ_ERR = IBV_EVENT_QP_REQ_ERR
        EVENT_QP_ACCESS_ERR = IBV_EVENT_QP_ACCESS_ERR
        EVENT_COMM_EST = IBV_EVENT_COMM_EST
        EVENT_DEVICE_FATAL = IBV_EVENT_DEVICE_FATAL
        EVENT_SRQ_ERR = IBV_EVENT_SRQ_ERR
        CM_ADDR_RESOLVED = RDMA_CM_EVENT_ADDR_RESOLVED
        CM_ADDR_ERROR = RDMA_CM_EVENT_ADDR_ERROR
        CM_ROUTE_RESOLVED = RDMA_CM_EVENT_ROUTE_RESOLVED
        CM_ROUTE_ERROR = RDMA_CM_EVENT_ROUTE_ERROR
        CM_CONNECT_REQUEST = RDMA_CM_EVENT_CONNECT_REQUEST
        CM_CONNECT_RESPONSE = RDMA_CM_EVENT_CONNECT_RESPONSE
        CM_CONNECT_ERROR = RDMA_CM_EVENT_CONNECT_ERROR
        CM_UNREACHABLE = RDMA_CM_EVENT_UNREACHABLE
        CM_REJECTED = RDMA_CM_EVENT_REJECTED
        CM_ESTABLISHED = RDMA_CM_EVENT_ESTABLISHED
        CM_DISCONNECTED = RDMA_CM_EVENT_DISCONNECTED
        CM_DEVICE_REMOVAL = RDMA_CM_EVENT_DEVICE_REMOVAL
        OPTION_ID = RDMA_OPTION_ID
        OPTION_ID_TOS = RDMA_OPTION_ID_TOS
        WC_SUCCESS = IBV_WC_SUCCESS
        WC_LOC_LEN_ERR = IBV_WC_LOC_LEN_ERR
        WC_LOC_PROT_ERR = IBV_WC_LOC_PROT_ERR
        WC_WR_FLUSH_ERR = IBV_WC_WR_FLUSH_ERR
        WC_LOC_ACCESS_ERR = IBV_WC_LOC_ACCESS_ERR
        WC_REM_INV_REQ_ERR = IBV_WC_REM_INV_REQ_ERR
        WC_REM_ACCESS_ERR = IBV_WC_REM_ACCESS_ERR
        WC_REM_OP_ERR = IBV_WC_REM_OP_ERR
        WC_RETRY_EXC_ERR = IBV_WC_RETRY_EXC_ERR
        WC_RNR_RETRY_EXC_ERR = IBV_WC_RNR_RETRY_EXC_ERR
        WC_REM_ABORT_ERR = IBV_WC_REM_ABORT_ERR
        WC_WITH_INV = IBV_WC_WITH_INV
    }
    let windows = headers::IBV_DEVICE_MEM_WINDOW_TYPE_2A | headers::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    assert_eq!(constants::CAP_MW_TYPE_2, windows);
}
