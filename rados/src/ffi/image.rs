//! An open image. All of this blocks; what is read and written goes by `completions`.

use super::LockHolder;
use super::cluster::Pool;
use super::library::{ConfigOption, Handle, ImageWatcher, LuksOptions, NoLibrary, Rbd, rbd};
use super::{Errno, c, check, into, text_of};
use core::ffi::{CStr, c_int, c_void};
use core::ptr::{null, null_mut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// How an image is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpenMode {
    /// With a watch, by which changes of its size are noticed.
    Watched,
    /// For a client that may not write: its size is that of the moment.
    ReadOnly,
}

/// The version of LUKS that an image is encrypted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Luks {
    Luks1,
    Luks2,
}

/// The tag of the lock that librbd takes and gives away by itself.
const INTERNAL: &str = "internal";

type OnChange = Box<dyn Fn() + Send + Sync>;

/// A `rbd_image_t`.
pub(crate) struct Image {
    pub(super) functions: &'static Rbd,
    pub(super) handle: Handle,
    /// What the update watch calls, made by `Box::into_raw`, and its number.
    watch: Option<(u64, *mut OnChange)>,
    /// Held until the image is closed.
    _pool: Arc<Pool>,
}

// SAFETY: librbd's images may be used by any thread, and by several at once; what the watch calls is `Send` and `Sync`.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

impl Image {
    pub(crate) fn open(
        pool: &Arc<Pool>,
        name: &str,
        snapshot: Option<&str>,
        mode: OpenMode,
    ) -> Result<Result<Self, Errno>, NoLibrary> {
        let functions = rbd()?;
        let open = || {
            let (name, snapshot, mut handle) = (c(name)?, snapshot.map(c).transpose()?, null_mut());
            let snapshot = snapshot.as_ref().map_or(null(), |name| name.as_ptr());
            let open = match mode {
                OpenMode::Watched => functions.rbd_open,
                OpenMode::ReadOnly => functions.rbd_open_read_only,
            };
            // SAFETY: the texts live until the call is over, and the handle is written if it succeeds.
            check(unsafe { open(pool.handle, name.as_ptr(), &raw mut handle, snapshot) })?;
            Ok(Self { functions, handle, watch: None, _pool: Arc::clone(pool) })
        };
        Ok(open())
    }

    /// Calls `on` on a thread of librbd when the image's header has changed: it must neither block nor call Ceph.
    pub(crate) fn watch(&mut self, on: OnChange) -> Result<(), Errno> {
        let (on, mut watch) = (Box::into_raw(Box::new(on)), 0);
        // SAFETY: what is called lives until the watch has ended.
        let watched = check(unsafe {
            (self.functions.rbd_update_watch)(self.handle, &raw mut watch, on_update, on.cast())
        });
        match watched {
            Ok(_) => self.watch = Some((watch, on)),
            // SAFETY: it came from `Box::into_raw`, and nobody has it.
            Err(_) => drop(unsafe { Box::from_raw(on) }),
        }
        watched.map(drop)
    }

    /// Decrypts what is read from now on, and encrypts what is written.
    pub(crate) fn load_encryption(&self, luks: Luks, passphrase: &[u8]) -> Result<(), Errno> {
        let load = self.functions.rbd_encryption_load.ok_or(libc::ENOSYS)?;
        let format = match luks {
            Luks::Luks1 => 0,
            Luks::Luks2 => 1,
        };
        let options = LuksOptions {
            // Read from the header; the structure has it for formatting.
            algorithm: 1,
            passphrase: passphrase.as_ptr().cast(),
            passphrase_size: passphrase.len(),
        };
        // SAFETY: the structure is that of the format, of the size that is said, and lives until the call is over.
        check(unsafe { load(self.handle, format, (&raw const options).cast(), size_of::<LuksOptions>()) })
            .map(drop)
    }

    /// Bytes, as of the last refresh of the header, or of one made now.
    pub(crate) fn size(&self) -> Result<u64, Errno> {
        self.number(self.functions.rbd_get_size)
    }

    pub(crate) fn stripe_unit(&self) -> Result<u64, Errno> {
        self.number(self.functions.rbd_get_stripe_unit)
    }

    pub(crate) fn stripe_count(&self) -> Result<u64, Errno> {
        self.number(self.functions.rbd_get_stripe_count)
    }

    pub(crate) fn features(&self) -> Result<u64, Errno> {
        self.number(self.functions.rbd_get_features)
    }

    fn number(&self, get: unsafe extern "C" fn(Handle, *mut u64) -> c_int) -> Result<u64, Errno> {
        let mut number = 0;
        // SAFETY: the image is open, and a number is written.
        check(unsafe { get(self.handle, &raw mut number) })?;
        Ok(number)
    }

    /// What the cluster knows it by, whatever its name.
    pub(crate) fn id(&self) -> Result<String, Errno> {
        let mut id = [0; 128];
        // SAFETY: the library writes no more than the buffer's length, which it is given.
        check(unsafe { (self.functions.rbd_get_id)(self.handle, into(&mut id), id.len()) })?;
        Ok(text_of(&id))
    }

    pub(crate) fn snapshot_id(&self, snapshot: &str) -> Result<u64, Errno> {
        let (snapshot, mut id) = (c(snapshot)?, 0);
        // SAFETY: the text lives until the call is over, and a number is written.
        check(unsafe { (self.functions.rbd_snap_get_id)(self.handle, snapshot.as_ptr(), &raw mut id) })?;
        Ok(id)
    }

    /// The addresses of the clients that have the image open and can write it, this one's among them if it watches.
    pub(crate) fn watchers(&self) -> Result<Vec<String>, Errno> {
        const ROOM: usize = 256;
        let mut watchers = vec![ImageWatcher { address: null(), id: 0, cookie: 0 }; ROOM];
        let mut count = ROOM;
        // SAFETY: the image is open, and the list has room for as many as is said.
        let listed =
            unsafe { (self.functions.rbd_watchers_list)(self.handle, watchers.as_mut_ptr(), &raw mut count) };
        check(listed)?;
        let count = count.min(ROOM);
        // SAFETY: the library has filled in that many, with texts that end with zero.
        let text = |text| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        let addresses = watchers[..count].iter().map(|watcher| text(watcher.address)).collect();
        // SAFETY: the list is as the library has filled it, and is used no more.
        unsafe { (self.functions.rbd_watchers_list_cleanup)(watchers.as_mut_ptr(), count) };
        Ok(addresses)
    }

    /// Who holds the image's lock, if it is one that people set (`rbd lock add`): librbd neither takes nor waits for the end
    /// of such a lock, so writes would never end. The one that librbd passes around by itself is none.
    pub(crate) fn lock_of_people(&self) -> Result<Option<LockHolder>, Errno> {
        Ok(self.lock()?.filter(|(tag, _)| tag != INTERNAL).map(|(_, holder)| holder))
    }

    /// Who holds the lock that librbd passes around by itself: the client that wrote last.
    pub(crate) fn lock_of_writer(&self) -> Result<Option<LockHolder>, Errno> {
        Ok(self.lock()?.filter(|(tag, _)| tag == INTERNAL).map(|(_, holder)| holder))
    }

    /// The lock's tag and, of several holders, the first.
    fn lock(&self) -> Result<Option<(String, LockHolder)>, Errno> {
        const ROOM: usize = 4096;
        let mut exclusive = 0;
        let [mut tag, mut clients, mut cookies, mut addresses] = [[0; ROOM]; 4];
        let [mut tag_len, mut clients_len, mut cookies_len, mut addresses_len] = [ROOM; 4];
        // SAFETY: the image is open; the library writes no more than the buffers' lengths, which it is given.
        let count = unsafe {
            (self.functions.rbd_list_lockers)(
                self.handle,
                &raw mut exclusive,
                into(&mut tag),
                &raw mut tag_len,
                into(&mut clients),
                &raw mut clients_len,
                into(&mut cookies),
                &raw mut cookies_len,
                into(&mut addresses),
                &raw mut addresses_len,
            )
        };
        match i32::try_from(-count) {
            Ok(errno) if errno > 0 => Err(errno),
            _ if count == 0 => Ok(None),
            _ => {
                let client = text_of(&clients);
                let holder = LockHolder { client, cookie: text_of(&cookies), address: text_of(&addresses) };
                Ok(Some((text_of(&tag), holder)))
            }
        }
    }

    /// The value of an option as it is in force for this image, whether the image, its pool or the client says so.
    pub(crate) fn option(&self, name: &str) -> Option<String> {
        const ROOM: usize = 512;
        let mut options = vec![ConfigOption { name: null(), value: null(), source: 0 }; ROOM];
        let mut count = c_int::try_from(ROOM).ok()?;
        // SAFETY: the list has room for as many as is said.
        let listed = unsafe {
            (self.functions.rbd_config_image_list)(self.handle, options.as_mut_ptr(), &raw mut count)
        };
        check(listed).ok()?;
        let filled = &options[..usize::try_from(count).ok()?.min(ROOM)];
        // SAFETY: the library has filled in that many, with texts that end with zero.
        let text = |text| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        let found = filled.iter().find(|option| text(option.name) == name).map(|option| text(option.value));
        // SAFETY: the list is as the library has filled it, and is used no more.
        unsafe { (self.functions.rbd_config_image_list_cleanup)(options.as_mut_ptr(), count) };
        found
    }
}

impl Drop for Image {
    /// Waits for what is in flight.
    fn drop(&mut self) {
        if let Some((watch, on)) = self.watch.take() {
            // SAFETY: the watch is the image's, and ends once; no callback is under way when this returns.
            let _ = unsafe { (self.functions.rbd_update_unwatch)(self.handle, watch) };
            // SAFETY: it came from `Box::into_raw`, and no callback can come any more.
            drop(unsafe { Box::from_raw(on) });
        }
        // SAFETY: the image is closed once; operations in flight hold it.
        let _ = unsafe { (self.functions.rbd_close)(self.handle) };
    }
}

/// # Safety
/// `argument` is that of a watch that has not ended.
unsafe extern "C" fn on_update(argument: *mut c_void) {
    // SAFETY: the watch ends only after its callbacks.
    let on = unsafe { &*argument.cast::<OnChange>() };
    // No panic goes into C.
    let _ = catch_unwind(AssertUnwindSafe(on));
}

/// The version of librbd: its minor number is Ceph's major one.
pub(crate) fn rbd_version() -> Result<(i32, i32, i32), NoLibrary> {
    let (functions, mut version) = (rbd()?, (0, 0, 0));
    // SAFETY: three numbers are written.
    unsafe { (functions.rbd_version)(&raw mut version.0, &raw mut version.1, &raw mut version.2) };
    Ok(version)
}
