//! A connection to a cluster, and a pool of it.

use super::library::{Handle, NoLibrary, Rados, rados};
use super::{Errno, c, check, into, text_of};
use core::ffi::{CStr, c_int};
use core::ptr::{null, null_mut};
use std::path::Path;
use std::sync::Arc;

/// An option, and what it is to be.
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    /// Releases without the option need none.
    pub(crate) optional: bool,
    /// It is set only in place of this value, Ceph's own: what the configuration says otherwise stays.
    pub(crate) in_place_of: Option<&'static str>,
}

/// A `rados_t` that is not connected. What asks the cluster must not be called with it: some of it would end the process.
pub(crate) struct Unconnected(Connection);

/// A `rados_t`: threads of its own, an address of its own, by which it can be fenced. It is connected.
pub(crate) struct Connection {
    pub(super) functions: &'static Rados,
    handle: Handle,
}

// SAFETY: librados' handles may be used by any thread, and by several at once.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

impl Unconnected {
    /// A handle for `user`. It has read `conf`, or the file at the usual place.
    pub(crate) fn new(user: &str, conf: Option<&Path>) -> Result<Result<Self, Errno>, NoLibrary> {
        let functions = rados()?;
        let make = || {
            let (name, mut handle) = (c(&format!("client.{user}"))?, null_mut());
            // SAFETY: the texts live until the call is over, and the handle is written if it succeeds.
            check(unsafe { (functions.rados_create2)(&raw mut handle, c"ceph".as_ptr(), name.as_ptr(), 0) })?;
            let this = Self(Connection { functions, handle });
            let conf = conf.map(|path| c(&path.to_string_lossy())).transpose()?;
            let path = conf.as_ref().map_or(null(), |path| path.as_ptr());
            // SAFETY: the handle is not connected; the path is null, or lives until the call is over.
            check(unsafe { (functions.rados_conf_read_file)(handle, path) })?;
            Ok(this)
        };
        Ok(make())
    }

    pub(crate) fn set(&self, setting: &Setting) -> Result<(), Errno> {
        let (name, value, Connection { functions, handle }) = (c(setting.name)?, c(&setting.value)?, &self.0);
        if setting.in_place_of.is_some_and(|usual| self.option(&name).as_deref() != Some(usual)) {
            return Ok(());
        }
        // SAFETY: the texts live until the call is over.
        let set = check(unsafe { (functions.rados_conf_set)(*handle, name.as_ptr(), value.as_ptr()) });
        match set {
            Err(libc::ENOENT) if setting.optional => Ok(()),
            set => set.map(drop),
        }
    }

    fn option(&self, name: &CStr) -> Option<String> {
        let (mut value, Connection { functions, handle }) = ([0; 64], &self.0);
        let (room, len) = (into(&mut value), value.len());
        // SAFETY: the name lives until the call is over, which writes no more than the buffer's length, which it is given.
        check(unsafe { (functions.rados_conf_get)(*handle, name.as_ptr(), room, len) }).ok()?;
        Some(text_of(&value))
    }

    /// Blocks for up to `client_mount_timeout`.
    pub(crate) fn connect(self) -> Result<Connection, Errno> {
        // SAFETY: the handle is there.
        connected(unsafe { (self.0.functions.rados_connect)(self.0.handle) })?;
        Ok(self.0)
    }
}

impl Connection {
    pub(crate) fn fsid(&self) -> Result<String, Errno> {
        let mut fsid = [0; 64];
        // SAFETY: the library writes no more than the buffer's length, which it is given.
        check(unsafe { (self.functions.rados_cluster_fsid)(self.handle, into(&mut fsid), fsid.len()) })?;
        Ok(text_of(&fsid))
    }

    /// The address by which the cluster knows this handle.
    pub(crate) fn address(&self) -> Result<String, Errno> {
        let mut address = null_mut();
        // SAFETY: the handle is connected; the address is written if the call succeeds, and belongs to us then.
        check(unsafe { (self.functions.rados_getaddrs)(self.handle, &raw mut address) })?;
        if address.is_null() {
            return Err(libc::ENOMEM);
        }
        // SAFETY: it is a text that ends with zero.
        let text = unsafe { core::ffi::CStr::from_ptr(address) }.to_string_lossy().into_owned();
        // SAFETY: it came from the library, and is used no more.
        unsafe { (self.functions.rados_buffer_free)(address) };
        Ok(text)
    }

    pub(crate) fn blocklist_add(&self, address: &str, seconds: u32) -> Result<(), Errno> {
        let address = c(address)?;
        let Rados { rados_blocklist_add: new, rados_blacklist_add: old, .. } = self.functions;
        let add = new.or(*old).ok_or(libc::ENOSYS)?;
        // SAFETY: the text lives until the call is over.
        check(unsafe { add(self.handle, address.as_ptr(), seconds) }).map(drop)
    }

    /// What the monitors print for a command, which is JSON.
    pub(crate) fn mon_command(&self, command: &str) -> Result<Vec<u8>, Errno> {
        let (command, mut out, mut len) = (c(command)?, null_mut(), 0);
        let commands = [command.as_ptr()];
        // SAFETY: the texts live until the call is over; where the output goes, and how long it is, is written if there is any,
        // and belongs to us then. What is said beside it is not asked for.
        let result = unsafe {
            (self.functions.rados_mon_command)(
                self.handle,
                commands.as_ptr(),
                commands.len(),
                null(),
                0,
                &raw mut out,
                &raw mut len,
                null_mut(),
                null_mut(),
            )
        };
        let mut text = Vec::new();
        if !out.is_null() {
            // SAFETY: the library has written so many bytes there.
            text.extend_from_slice(unsafe { core::slice::from_raw_parts(out.cast::<u8>(), len) });
            // SAFETY: it came from the library, and is used no more.
            unsafe { (self.functions.rados_buffer_free)(out) };
        }
        check(result).map(|_| text)
    }

    pub(crate) fn wait_for_latest_osdmap(&self) -> Result<(), Errno> {
        // SAFETY: the handle is connected.
        check(unsafe { (self.functions.rados_wait_for_latest_osdmap)(self.handle) }).map(drop)
    }

    /// Waits until no callback of a watch is under way.
    pub(super) fn watch_flush(&self) {
        // SAFETY: the handle is connected, and so this does not fail.
        let _ = unsafe { (self.functions.rados_watch_flush)(self.handle) };
    }
}

/// What `rados_connect` has returned. Only 0 is success: where the session comes up as the time for it is over, it is a positive
/// number, of a client that is taken apart already, and must not be used.
fn connected(result: c_int) -> Result<(), Errno> {
    match check(result)? {
        0 => Ok(()),
        _ => Err(libc::ETIMEDOUT),
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: pools and images hold the connection, so nothing of it is left.
        unsafe { (self.functions.rados_shutdown)(self.handle) };
    }
}

/// A `rados_ioctx_t`: a pool, or a namespace of one.
pub(crate) struct Pool {
    pub(super) handle: Handle,
    pub(super) connection: Arc<Connection>,
}

// SAFETY: librados' handles may be used by any thread, and by several at once; what belongs to the handle (its namespace, and
// what it does when the pool is full) is set only where it is made.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// Writes through it fail when the pool is full: librados would have them wait until it is not.
    pub(crate) fn open(
        connection: &Arc<Connection>,
        name: &str,
        namespace: Option<&str>,
    ) -> Result<Self, Errno> {
        let (name, mut handle, functions) = (c(name)?, null_mut(), connection.functions);
        let namespace = namespace.map(c).transpose()?;
        // SAFETY: the text lives until the call is over, and the handle is written if it succeeds.
        check(unsafe { (functions.rados_ioctx_create)(connection.handle, name.as_ptr(), &raw mut handle) })?;
        if let Some(namespace) = namespace {
            // SAFETY: the text lives until the call is over, which copies it.
            unsafe { (functions.rados_ioctx_set_namespace)(handle, namespace.as_ptr()) };
        }
        if let Some(set) = functions.rados_set_pool_full_try {
            // SAFETY: the handle is there, and nobody else's yet.
            unsafe { set(handle) };
        }
        Ok(Self { handle, connection: Arc::clone(connection) })
    }

    pub(crate) fn id(&self) -> i64 {
        // SAFETY: the handle is there.
        unsafe { (self.connection.functions.rados_ioctx_get_id)(self.handle) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: images and watches hold the pool, so nothing uses it any more.
        unsafe { (self.connection.functions.rados_ioctx_destroy)(self.handle) };
    }
}

/// The version of librados.
pub(crate) fn version() -> Result<(i32, i32, i32), NoLibrary> {
    let (functions, mut version) = (rados()?, (0, 0, 0));
    // SAFETY: three numbers are written.
    unsafe { (functions.rados_version)(&raw mut version.0, &raw mut version.1, &raw mut version.2) };
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_that_was_taken_apart_as_its_time_was_over_is_not_connected() {
        assert_eq!(connected(0), Ok(()));
        assert_eq!(connected(-libc::ENOENT), Err(libc::ENOENT));
        assert_eq!(connected(1), Err(libc::ETIMEDOUT));
    }
}
