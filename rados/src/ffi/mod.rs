//! The only files with C types and `unsafe`: pointers never leave them. Each C object is an owned handle here, which
//! holds what it was made from, so that everything is destroyed in the order that Ceph demands. Errors are errnos;
//! the modules above say what failed, on what.
//!
//! | file | what it holds |
//! |---|---|
//! | `library` | librados and librbd, loaded at run time |
//! | `cluster` | the connection to a cluster, and a pool of it |
//! | `object` | keys, locks and contents of objects |
//! | `watch` | notifications of an object |
//! | `image` | an open image |
//! | `completions` | operations on images that are in flight, of one thread |
#![expect(unsafe_code, reason = "calls C libraries, through pointers that they gave")]

mod cluster;
mod completions;
mod image;
mod library;
mod object;
mod watch;

pub(crate) use cluster::{Connection, Pool, Setting, Unconnected, version};
pub use completions::{Bytes, Completions, Request};
pub(crate) use image::{Image, Luks, OpenMode, rbd_version};
pub use library::{NoLibrary, end_process};
pub(crate) use object::WriteOp;
pub use object::{LockHolder, Renewal};
pub use watch::Notification;
pub(crate) use watch::Watch;

use core::ffi::{CStr, c_char, c_int};
use std::ffi::CString;

/// An errno, positive.
pub(crate) type Errno = i32;

/// The result of a function that returns a negative errno.
fn check(result: c_int) -> Result<c_int, Errno> {
    if result < 0 { Err(-result) } else { Ok(result) }
}

/// A text for C. One with a zero byte in it names nothing that there is.
fn c(text: &str) -> Result<CString, Errno> {
    CString::new(text).map_err(|_| libc::EINVAL)
}

/// The text that a C function wrote into a buffer.
fn text_of(bytes: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(bytes).map_or(bytes, CStr::to_bytes);
    String::from_utf8_lossy(text).into_owned()
}

/// Where a C function writes text.
fn into(bytes: &mut [u8]) -> *mut c_char {
    bytes.as_mut_ptr().cast()
}
