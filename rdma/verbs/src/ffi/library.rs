//! libibverbs and librdmacm, found at run time.

use super::abi::{
    AsyncEvent, CmEvent, CmId, CompChannel, ConnParam, Context, Cq, Device, DeviceAttr, EventChannel, Mr, Qp,
    QpAttr, QpInitAttr, Srq, SrqInitAttr,
};
use core::ffi::{c_char, c_int, c_uint, c_void};
use libloading::Library;
use std::sync::OnceLock;
use thiserror::Error;

/// A library that RDMA devices are used by is not on this machine.
#[derive(Debug, Clone, Error)]
#[error(
    "{library} cannot be loaded ({reason}): install it (Debian, Ubuntu: apt install libibverbs1 librdmacm1 ibverbs-providers; Fedora: dnf install libibverbs librdmacm)"
)]
pub struct NoLibrary {
    /// Which.
    pub library: &'static str,
    /// The loader's error.
    pub reason: String,
}

macro_rules! functions {
    (
        $($library:ident { $($name:ident($($argument:ty),*) $(-> $result:ty)?;)+ })+
        @later $($of:ident: $later:ident($($given:ty),*) -> $back:ty;)+
    ) => {
        /// The functions that are called by name, each with its signature in C. Releases of rdma-core that we still
        /// work with lack some.
        pub(super) struct Functions {
            $($(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+)+
            $(pub(super) $later: Option<unsafe extern "C" fn($($given),*) -> $back>,)+
        }

        impl Functions {
            fn load($($library: &'static Library),+) -> Result<Self, NoLibrary> {
                Ok(Self {
                    $($($name: {
                        // SAFETY: the symbol is a function of that signature in every release of rdma-core's ABI; the
                        // library is never unloaded.
                        let found = unsafe { $library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *found.map_err(|error| NoLibrary {
                            library: concat!(stringify!($library), ".so.1"),
                            reason: error.to_string(),
                        })?
                    },)+)+
                    $($later: {
                        // SAFETY: as above.
                        let found = unsafe { $of.get(concat!(stringify!($later), "\0").as_bytes()) };
                        found.ok().map(|found| *found)
                    },)+
                })
            }
        }
    };
}

functions! {
    libibverbs {
        ibv_get_device_list(*mut c_int) -> *mut *mut Device;
        ibv_free_device_list(*mut *mut Device);
        ibv_open_device(*mut Device) -> *mut Context;
        ibv_close_device(*mut Context) -> c_int;
        ibv_query_device(*mut Context, *mut DeviceAttr) -> c_int;
        ibv_get_async_event(*mut Context, *mut AsyncEvent) -> c_int;
        ibv_ack_async_event(*mut AsyncEvent);
        ibv_alloc_pd(*mut Context) -> *mut c_void;
        ibv_dealloc_pd(*mut c_void) -> c_int;
        ibv_reg_mr(*mut c_void, *mut c_void, usize, c_int) -> *mut Mr;
        ibv_dereg_mr(*mut Mr) -> c_int;
        ibv_create_comp_channel(*mut Context) -> *mut CompChannel;
        ibv_destroy_comp_channel(*mut CompChannel) -> c_int;
        ibv_get_cq_event(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events(*mut Cq, u32);
        ibv_create_cq(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
        ibv_destroy_cq(*mut Cq) -> c_int;
        ibv_create_srq(*mut c_void, *mut SrqInitAttr) -> *mut Srq;
        ibv_destroy_srq(*mut Srq) -> c_int;
        ibv_create_qp(*mut c_void, *mut QpInitAttr) -> *mut Qp;
        ibv_modify_qp(*mut Qp, *mut QpAttr, c_int) -> c_int;
        ibv_destroy_qp(*mut Qp) -> c_int;
    }
    librdmacm {
        rdma_create_event_channel() -> *mut EventChannel;
        rdma_destroy_event_channel(*mut EventChannel);
        rdma_create_id(*mut EventChannel, *mut *mut CmId, *mut c_void, u32) -> c_int;
        rdma_destroy_id(*mut CmId) -> c_int;
        rdma_migrate_id(*mut CmId, *mut EventChannel) -> c_int;
        rdma_set_option(*mut CmId, c_int, c_int, *mut c_void, usize) -> c_int;
        rdma_bind_addr(*mut CmId, *mut c_void) -> c_int;
        rdma_listen(*mut CmId, c_int) -> c_int;
        rdma_resolve_addr(*mut CmId, *mut c_void, *mut c_void, c_int) -> c_int;
        rdma_resolve_route(*mut CmId, c_int) -> c_int;
        rdma_connect(*mut CmId, *mut ConnParam) -> c_int;
        rdma_accept(*mut CmId, *mut ConnParam) -> c_int;
        rdma_reject(*mut CmId, *const c_void, u8) -> c_int;
        rdma_notify(*mut CmId, u32) -> c_int;
        rdma_establish(*mut CmId) -> c_int;
        rdma_disconnect(*mut CmId) -> c_int;
        rdma_init_qp_attr(*mut CmId, *mut QpAttr, *mut c_int) -> c_int;
        rdma_get_cm_event(*mut EventChannel, *mut *mut CmEvent) -> c_int;
        rdma_ack_cm_event(*mut CmEvent) -> c_int;
    }
    // Since 2020.
    @later libibverbs: ibv_reg_mr_iova2(*mut c_void, *mut c_void, usize, u64, c_uint) -> *mut Mr;
}

const _: () = assert!(size_of::<*const c_char>() == 8, "the layouts in `abi` are those of 64-bit machines");

/// The libraries, loaded once in the life of the process.
pub(super) fn functions() -> Result<&'static Functions, NoLibrary> {
    #[cfg(test)]
    if let Some(double) = super::double::installed() {
        return Ok(double);
    }
    static FUNCTIONS: OnceLock<Result<Functions, NoLibrary>> = OnceLock::new();
    FUNCTIONS
        .get_or_init(|| Functions::load(open("libibverbs.so.1")?, open("librdmacm.so.1")?))
        .as_ref()
        .map_err(Clone::clone)
}

/// Never unloaded: providers' plug-ins of libibverbs start threads and keep state of their own.
fn open(library: &'static str) -> Result<&'static Library, NoLibrary> {
    // SAFETY: the initialisers of these two libraries do nothing that a Rust program must fear: they register drivers.
    let loaded = unsafe { Library::new(library) };
    loaded
        .map(|it| &*Box::leak(Box::new(it)))
        .map_err(|error| NoLibrary { library, reason: error.to_string() })
}
