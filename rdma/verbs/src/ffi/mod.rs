//! The only files with C types and `unsafe`: pointers never leave them. Each C object is an owned handle here, which
//! holds what it was made from, so that everything is destroyed in the order that verbs demands.
//!
//! | file | what it holds |
//! |---|---|
//! | `abi` | the C structures, with their layout asserted |
//! | `constants` | the numbers of the header files |
//! | `library` | libibverbs and librdmacm, loaded at run time |
//! | `device` | the device, protection domain, completion queues |
//! | `memory` | memory regions and windows |
//! | `queue_pair` | queue pairs and shared receive queues |
//! | `work` | the work requests collected for them: one doorbell for many |
//! | `cm` | the RDMA connection manager: event channel, ids, events |
#![expect(unsafe_code, reason = "calls C libraries, through pointers that they gave")]

mod abi;
mod cm;
pub(crate) mod constants;
mod device;
#[cfg(test)]
pub(crate) mod double;
mod library;
mod memory;
mod queue_pair;
mod work;

pub(crate) use abi::{Sge, Wc};
pub(crate) use cm::{Channel, CmId, CmNotice, ConnectionParameters, IdKey, NoticeKind};
pub(crate) use device::{
    AsyncNotice, CompletionChannel, CompletionQueue, CqKey, Device, DeviceLimits, Transport, device_names,
};
pub use library::NoLibrary;
pub(crate) use memory::{Region, Window};
pub(crate) use queue_pair::{PathChoice, QueuePair, QueueSizes, SharedReceiveQueue};
pub(crate) use work::{INLINE_MAX, PostFailure, WorkOperation, WorkRequest};

use std::io;

/// The result of a function that returns an errno, or sets it.
fn check(result: core::ffi::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        errno => Err(io::Error::from_raw_os_error(errno.abs())),
    }
}

/// The name in a C array.
fn name(bytes: &[u8]) -> String {
    let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}
