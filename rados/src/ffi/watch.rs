//! Notifications of an object.

use super::cluster::Pool;
use super::library::Rados;
use super::{Errno, c, check};
use core::ffi::{c_int, c_void};
use core::ptr::{null, null_mut};
use core::time::Duration;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What a watch hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification {
    /// Somebody has notified, with this payload. It is acknowledged when the callback returns.
    Notified(Vec<u8>),
    /// The watch is lost, with this errno: make another one, and look at the object again.
    Lost(i32),
}

/// What the callbacks of a watch are given.
struct Argument {
    pool: Arc<Pool>,
    object: CString,
    on: Box<dyn Fn(Notification) + Send + Sync>,
}

/// A watch of an object. It ends when this is dropped, which blocks.
pub(crate) struct Watch {
    cookie: u64,
    /// Made by `Box::into_raw`, and given back when no callback can come any more.
    argument: *mut Argument,
    functions: &'static Rados,
}

// SAFETY: the argument is shared with callbacks of any thread, and everything in it is `Send` and `Sync`.
unsafe impl Send for Watch {}
// SAFETY: as above.
unsafe impl Sync for Watch {}

impl Watch {
    /// `on` is called on a thread of librados. It must neither block nor call Ceph.
    pub(crate) fn begin(
        pool: &Arc<Pool>,
        object: &str,
        timeout: Duration,
        on: Box<dyn Fn(Notification) + Send + Sync>,
    ) -> Result<Self, Errno> {
        let functions = pool.connection.functions;
        let object = c(object)?;
        let argument =
            Box::into_raw(Box::new(Argument { pool: Arc::clone(pool), object: object.clone(), on }));
        let mut this = Self { cookie: 0, argument, functions };
        let seconds = u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX);
        // SAFETY: the argument lives until the watch has ended; the text until the call is over.
        let watched = check(unsafe {
            (functions.rados_watch3)(
                pool.handle,
                object.as_ptr(),
                &raw mut this.cookie,
                on_notify,
                on_error,
                seconds,
                argument.cast(),
            )
        });
        watched.map(|_| this)
    }

    /// Whether the watch holds, as far as this client knows.
    pub(crate) fn check(&self) -> Result<(), Errno> {
        // SAFETY: the argument lives as long as this.
        let pool = unsafe { &(*self.argument).pool };
        // SAFETY: the watch is one of that pool's handle.
        check(unsafe { (self.functions.rados_watch_check)(pool.handle, self.cookie) }).map(drop)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // SAFETY: the argument lives until the end of this function.
        let pool = Arc::clone(unsafe { &(*self.argument).pool });
        if self.cookie != 0 {
            // SAFETY: the watch is one of that pool's handle, and ends once.
            let _ = unsafe { (self.functions.rados_unwatch2)(pool.handle, self.cookie) };
        }
        pool.connection.watch_flush();
        // SAFETY: it came from `Box::into_raw`, and no callback is under way or can come.
        drop(unsafe { Box::from_raw(self.argument) });
    }
}

impl Pool {
    /// Notifies everybody who watches the object, and waits until they have heard it. `ETIMEDOUT`: some have not.
    pub(crate) fn notify(&self, object: &str, payload: &[u8], timeout: Duration) -> Result<(), Errno> {
        let (functions, object) = (self.connection.functions, c(object)?);
        let len = c_int::try_from(payload.len()).map_err(|_| libc::EINVAL)?;
        let milliseconds = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let (mut reply, mut reply_len) = (null_mut(), 0);
        // SAFETY: the payload is as long as is said; the reply is written, and belongs to us then.
        let notified = unsafe {
            (functions.rados_notify2)(
                self.handle,
                object.as_ptr(),
                payload.as_ptr().cast(),
                len,
                milliseconds,
                &raw mut reply,
                &raw mut reply_len,
            )
        };
        // SAFETY: it came from the library, or is null, which is nothing to free.
        unsafe { (functions.rados_buffer_free)(reply) };
        check(notified).map(drop)
    }
}

/// # Safety
/// `argument` is that of a watch that has not ended; `len` bytes are at `data`.
unsafe extern "C" fn on_notify(
    argument: *mut c_void,
    notification: u64,
    cookie: u64,
    _from: u64,
    data: *mut c_void,
    len: usize,
) {
    // SAFETY: the watch ends only after its callbacks.
    let argument = unsafe { &*argument.cast::<Argument>() };
    let payload = match data.is_null() {
        true => Vec::new(),
        // SAFETY: as the library says, until this returns.
        false => unsafe { core::slice::from_raw_parts(data.cast::<u8>(), len) }.to_vec(),
    };
    tell(argument, Notification::Notified(payload));
    let pool = &argument.pool;
    // SAFETY: the notification is being delivered; no payload goes back.
    let _ = unsafe {
        (pool.connection.functions.rados_notify_ack)(
            pool.handle,
            argument.object.as_ptr(),
            notification,
            cookie,
            null(),
            0,
        )
    };
}

/// # Safety
/// `argument` is that of a watch that has not ended.
unsafe extern "C" fn on_error(argument: *mut c_void, _cookie: u64, result: c_int) {
    // SAFETY: the watch ends only after its callbacks.
    tell(unsafe { &*argument.cast::<Argument>() }, Notification::Lost(-result));
}

/// No panic goes into C: there it would end the process, and here it ends the callback.
fn tell(argument: &Argument, notification: Notification) {
    let _ = catch_unwind(AssertUnwindSafe(|| (argument.on)(notification)));
}
