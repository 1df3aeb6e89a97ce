//! librados and librbd, found at run time.

use core::ffi::{c_char, c_int, c_void};
use libloading::Library;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use thiserror::Error;

/// A library that Ceph is used by is not on this machine.
#[derive(Debug, Clone, Error)]
#[error(
    "{library} cannot be loaded ({reason}): install it, or what it needs (Debian, Ubuntu: apt install librbd1 librados2; Fedora, RHEL: dnf install librbd1 librados2)"
)]
pub struct NoLibrary {
    /// Which.
    pub library: &'static str,
    /// The loader's error.
    pub reason: String,
}

/// A handle of the libraries: cluster, pool, image, completion, operation, iterator.
pub(super) type Handle = *mut c_void;
pub(super) type Text = *const c_char;

/// Called when an operation on an image is complete.
pub(super) type OnComplete = unsafe extern "C" fn(Handle, *mut c_void);
/// Called when an image's header changed.
pub(super) type OnUpdate = unsafe extern "C" fn(*mut c_void);
/// Called with a notification: argument, its number, the watch, the notifier, its payload.
pub(super) type OnNotify = unsafe extern "C" fn(*mut c_void, u64, u64, u64, *mut c_void, usize);
/// Called when a watch is lost: argument, the watch, a negative errno.
pub(super) type OnWatchError = unsafe extern "C" fn(*mut c_void, u64, c_int);

/// `struct timeval`.
#[repr(C)]
pub(super) struct Timeval {
    pub(super) seconds: i64,
    pub(super) microseconds: i64,
}

/// `rbd_config_option_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ConfigOption {
    pub(super) name: Text,
    pub(super) value: Text,
    pub(super) source: c_int,
}

/// `rbd_image_watcher_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ImageWatcher {
    pub(super) address: Text,
    pub(super) id: i64,
    pub(super) cookie: u64,
}

/// `rbd_encryption_luks1_format_options_t` and that of LUKS 2.
#[repr(C)]
pub(super) struct LuksOptions {
    pub(super) algorithm: c_int,
    pub(super) passphrase: Text,
    pub(super) passphrase_size: usize,
}

const _: () = assert!(size_of::<Handle>() == 8, "the layouts here are those of 64-bit machines");

macro_rules! functions {
    (
        $(#[$doc:meta])* $table:ident of $library:literal {
            $($name:ident($($argument:ty),*) $(-> $result:ty)?;)+
            @later $($later:ident($($given:ty),*) $(-> $back:ty)?;)*
        }
    ) => {
        $(#[$doc])*
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+
            $(pub(super) $later: Option<unsafe extern "C" fn($($given),*) $(-> $back)?>,)*
        }

        impl $table {
            fn load() -> Result<Self, NoLibrary> {
                let library = open($library)?;
                Ok(Self {
                    $($name: {
                        // SAFETY: the symbol is a function of that signature in every release of Ceph since Octopus; the
                        // library is never unloaded.
                        let found = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *found.map_err(|error| NoLibrary { library: $library, reason: reason(&error) })?
                    },)+
                    $($later: {
                        // SAFETY: as above.
                        let found = unsafe { library.get(concat!(stringify!($later), "\0").as_bytes()) };
                        found.ok().map(|found| *found)
                    },)*
                })
            }
        }
    };
}

functions! {
    /// The functions of librados that are called. Releases that we still work with lack some.
    Rados of "librados.so.2" {
        rados_create2(*mut Handle, Text, Text, u64) -> c_int;
        rados_conf_read_file(Handle, Text) -> c_int;
        rados_conf_set(Handle, Text, Text) -> c_int;
        rados_conf_get(Handle, Text, *mut c_char, usize) -> c_int;
        rados_connect(Handle) -> c_int;
        rados_shutdown(Handle);
        rados_version(*mut c_int, *mut c_int, *mut c_int);
        rados_cluster_fsid(Handle, *mut c_char, usize) -> c_int;
        rados_getaddrs(Handle, *mut *mut c_char) -> c_int;
        rados_buffer_free(*mut c_char);
        rados_wait_for_latest_osdmap(Handle) -> c_int;
        rados_mon_command(
            Handle, *const Text, usize, Text, usize, *mut *mut c_char, *mut usize, *mut *mut c_char, *mut usize
        ) -> c_int;
        rados_ioctx_create(Handle, Text, *mut Handle) -> c_int;
        rados_ioctx_destroy(Handle);
        rados_ioctx_set_namespace(Handle, Text);
        rados_ioctx_get_id(Handle) -> i64;
        rados_stat(Handle, Text, *mut u64, *mut i64) -> c_int;
        rados_read(Handle, Text, *mut c_char, usize, u64) -> c_int;
        rados_remove(Handle, Text) -> c_int;
        rados_create_write_op() -> Handle;
        rados_release_write_op(Handle);
        rados_write_op_create(Handle, c_int, Text);
        rados_write_op_omap_cmp2(Handle, Text, u8, Text, usize, usize, *mut c_int);
        rados_write_op_omap_set2(Handle, *const Text, *const Text, *const usize, *const usize, usize);
        rados_write_op_omap_rm_keys2(Handle, *const Text, *const usize, usize);
        rados_write_op_operate(Handle, Handle, Text, *const c_void, c_int) -> c_int;
        rados_create_read_op() -> Handle;
        rados_release_read_op(Handle);
        rados_read_op_assert_version(Handle, u64);
        rados_get_last_version(Handle) -> u64;
        rados_read_op_omap_get_vals2(Handle, Text, Text, u64, *mut Handle, *mut u8, *mut c_int);
        rados_read_op_operate(Handle, Handle, Text, c_int) -> c_int;
        rados_omap_get_next2(Handle, *mut *mut c_char, *mut *mut c_char, *mut usize, *mut usize) -> c_int;
        rados_omap_get_end(Handle);
        rados_nobjects_list_open(Handle, *mut Handle) -> c_int;
        rados_nobjects_list_next(Handle, *mut Text, *mut Text, *mut Text) -> c_int;
        rados_nobjects_list_close(Handle);
        rados_lock_exclusive(Handle, Text, Text, Text, Text, *const Timeval, u8) -> c_int;
        rados_unlock(Handle, Text, Text, Text) -> c_int;
        rados_break_lock(Handle, Text, Text, Text, Text) -> c_int;
        rados_list_lockers(
            Handle, Text, Text, *mut c_int, *mut c_char, *mut usize, *mut c_char, *mut usize, *mut c_char, *mut usize,
            *mut c_char, *mut usize
        ) -> isize;
        rados_watch3(Handle, Text, *mut u64, OnNotify, OnWatchError, u32, *mut c_void) -> c_int;
        rados_unwatch2(Handle, u64) -> c_int;
        rados_watch_check(Handle, u64) -> c_int;
        rados_watch_flush(Handle) -> c_int;
        rados_notify2(Handle, Text, Text, c_int, u64, *mut *mut c_char, *mut usize) -> c_int;
        rados_notify_ack(Handle, Text, u64, u64, Text, c_int) -> c_int;
        // Since Pacific; before that it had another name.
        @later rados_blocklist_add(Handle, Text, u32) -> c_int;
        rados_blacklist_add(Handle, Text, u32) -> c_int;
        rados_set_pool_full_try(Handle);
    }
}

functions! {
    /// The functions of librbd that are called. Releases that we still work with lack some.
    Rbd of "librbd.so.1" {
        rbd_version(*mut c_int, *mut c_int, *mut c_int);
        rbd_open(Handle, Text, *mut Handle, Text) -> c_int;
        rbd_open_read_only(Handle, Text, *mut Handle, Text) -> c_int;
        rbd_close(Handle) -> c_int;
        rbd_get_size(Handle, *mut u64) -> c_int;
        rbd_get_stripe_unit(Handle, *mut u64) -> c_int;
        rbd_get_stripe_count(Handle, *mut u64) -> c_int;
        rbd_get_features(Handle, *mut u64) -> c_int;
        rbd_get_id(Handle, *mut c_char, usize) -> c_int;
        rbd_snap_get_id(Handle, Text, *mut u64) -> c_int;
        rbd_list_lockers(
            Handle,
            *mut c_int,
            *mut c_char,
            *mut usize,
            *mut c_char,
            *mut usize,
            *mut c_char,
            *mut usize,
            *mut c_char,
            *mut usize
        ) -> isize;
        rbd_config_image_list(Handle, *mut ConfigOption, *mut c_int) -> c_int;
        rbd_config_image_list_cleanup(*mut ConfigOption, c_int);
        rbd_watchers_list(Handle, *mut ImageWatcher, *mut usize) -> c_int;
        rbd_watchers_list_cleanup(*mut ImageWatcher, usize);
        rbd_update_watch(Handle, *mut u64, OnUpdate, *mut c_void) -> c_int;
        rbd_update_unwatch(Handle, u64) -> c_int;
        rbd_aio_create_completion(*mut c_void, Option<OnComplete>, *mut Handle) -> c_int;
        rbd_aio_get_return_value(Handle) -> isize;
        rbd_aio_release(Handle);
        rbd_aio_read(Handle, u64, usize, *mut c_char, Handle) -> c_int;
        rbd_aio_write(Handle, u64, usize, *const c_char, Handle) -> c_int;
        rbd_aio_flush(Handle, Handle) -> c_int;
        rbd_aio_discard(Handle, u64, u64, Handle) -> c_int;
        rbd_aio_write_zeroes(Handle, u64, usize, Handle, c_int, c_int) -> c_int;
        rbd_aio_compare_and_write(Handle, u64, usize, *const c_char, *const c_char, Handle, *mut u64, c_int) -> isize;
        // Since Pacific.
        @later rbd_encryption_load(Handle, c_int, *const c_void, usize) -> c_int;
    }
}

/// librados, loaded once in the life of the process.
pub(super) fn rados() -> Result<&'static Rados, NoLibrary> {
    static FUNCTIONS: OnceLock<Rados> = OnceLock::new();
    kept(&FUNCTIONS, Rados::load)
}

/// librbd, likewise.
pub(super) fn rbd() -> Result<&'static Rbd, NoLibrary> {
    static FUNCTIONS: OnceLock<Rbd> = OnceLock::new();
    kept(&FUNCTIONS, Rbd::load)
}

/// What was loaded. What could not be is tried again the next time: it may have been installed since.
fn kept<T>(
    place: &'static OnceLock<T>,
    load: impl FnOnce() -> Result<T, NoLibrary>,
) -> Result<&'static T, NoLibrary> {
    if let Some(loaded) = place.get() {
        return Ok(loaded);
    }
    // Of two threads that load it at the same time, one finds that of the other: it is the same library.
    let loaded = load()?;
    Ok(place.get_or_init(|| loaded))
}

/// One of them is loaded.
static LOADED: AtomicBool = AtomicBool::new(false);

/// Ends the process with this status, if the libraries are loaded; otherwise it does nothing.
///
/// For the end of `main`: threads may be in a call of the libraries then, for long where the cluster does not answer. What
/// [`std::process::exit`] runs, static destructors of the libraries too, would take from them what they use.
pub fn end_process(status: u8) {
    if LOADED.load(Ordering::Relaxed) {
        // SAFETY: `_exit` takes any status, and runs nothing of this process.
        unsafe { libc::_exit(status.into()) }
    }
}

/// Never unloaded: the libraries have threads and static objects.
fn open(library: &'static str) -> Result<&'static Library, NoLibrary> {
    LOADED.store(true, Ordering::Relaxed);
    // SAFETY: the initialisers of these two libraries set up static objects of their own, and nothing that a Rust
    // program must fear.
    let loaded = unsafe { Library::new(library) };
    loaded.map(|it| &*Box::leak(Box::new(it))).map_err(|error| NoLibrary { library, reason: reason(&error) })
}

/// The loader's own words: a library that is installed may lack one that it needs.
fn reason(error: &libloading::Error) -> String {
    let cause = core::error::Error::source(error);
    cause.map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_library_is_named_with_its_package() {
        let error = open("libnobodyhasthis.so.9").unwrap_err().to_string();
        assert!(error.contains("libnobodyhasthis.so.9") && error.contains("apt install librbd1"), "{error}");
        assert!(error.contains("No such file or directory"), "what the loader says is left out: {error}");
    }

    #[test]
    fn library_that_is_installed_later_is_loaded_then_and_once() {
        static PLACE: OnceLock<u8> = OnceLock::new();
        let missing = || Err(NoLibrary { library: "librbd.so.1", reason: "no such file".to_owned() });
        assert!(kept(&PLACE, missing).is_err() && kept(&PLACE, missing).is_err());
        assert_eq!(kept(&PLACE, || Ok(7)).unwrap(), &7);
        assert_eq!(kept(&PLACE, missing).unwrap(), &7);
    }
}
