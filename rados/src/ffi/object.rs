//! Keys, locks and contents of objects. All of this blocks.

use super::cluster::Pool;
use super::library::{Handle, Rados, Text, Timeval};
use super::{Errno, c, check, into, text_of};
use core::ffi::CStr;
use core::ptr::{null, null_mut};
use core::time::Duration;

/// Keys of an object with their values.
pub(crate) type Omap = Vec<(String, Vec<u8>)>;

/// `LIBRADOS_CREATE_EXCLUSIVE`.
const EXCLUSIVE: i32 = 1;
/// `LIBRADOS_CREATE_IDEMPOTENT`.
const IDEMPOTENT: i32 = 0;
/// `LIBRADOS_CMPXATTR_OP_EQ`.
const EQUAL: u8 = 1;

/// Changes of one object that are made together or not at all.
pub(crate) struct WriteOp {
    functions: &'static Rados,
    handle: Handle,
}

impl Drop for WriteOp {
    fn drop(&mut self) {
        // SAFETY: it is released once. What was added to it was copied.
        unsafe { (self.functions.rados_release_write_op)(self.handle) };
    }
}

impl WriteOp {
    pub(crate) fn new(pool: &Pool) -> Self {
        let functions = pool.connection.functions;
        // SAFETY: it takes nothing.
        Self { functions, handle: unsafe { (functions.rados_create_write_op)() } }
    }

    /// The object must not be there.
    pub(crate) fn create_exclusive(&mut self) {
        // SAFETY: the operation is there; null is no category.
        unsafe { (self.functions.rados_write_op_create)(self.handle, EXCLUSIVE, null()) };
    }

    /// The object is made if it is not there.
    pub(crate) fn create(&mut self) {
        // SAFETY: the operation is there; null is no category.
        unsafe { (self.functions.rados_write_op_create)(self.handle, IDEMPOTENT, null()) };
    }

    /// The key must have that value; one that is not there is empty.
    pub(crate) fn omap_equals(&mut self, key: &str, value: &[u8]) -> Result<(), Errno> {
        let (key_len, key, value_len, value) = (key.len(), c(key)?, value.len(), value.as_ptr().cast());
        // SAFETY: both are as long as is said, and are copied. Null: the result is that of the whole operation.
        unsafe {
            (self.functions.rados_write_op_omap_cmp2)(
                self.handle,
                key.as_ptr(),
                EQUAL,
                value,
                key_len,
                value_len,
                null_mut(),
            );
        };
        Ok(())
    }

    pub(crate) fn omap_set(&mut self, values: &[(&str, &[u8])]) {
        let keys: Vec<Text> = values.iter().map(|(key, _)| key.as_ptr().cast()).collect();
        let texts: Vec<Text> = values.iter().map(|(_, value)| value.as_ptr().cast()).collect();
        let key_lens: Vec<usize> = values.iter().map(|(key, _)| key.len()).collect();
        let lens: Vec<usize> = values.iter().map(|(_, value)| value.len()).collect();
        // SAFETY: the four lists have that many entries, each as long as is said, and are copied.
        unsafe {
            (self.functions.rados_write_op_omap_set2)(
                self.handle,
                keys.as_ptr(),
                texts.as_ptr(),
                key_lens.as_ptr(),
                lens.as_ptr(),
                values.len(),
            );
        }
    }

    pub(crate) fn omap_remove(&mut self, keys: &[&str]) {
        let lens: Vec<usize> = keys.iter().map(|key| key.len()).collect();
        let keys: Vec<Text> = keys.iter().map(|key| key.as_ptr().cast()).collect();
        // SAFETY: both lists have that many entries, each as long as is said, and are copied.
        unsafe {
            (self.functions.rados_write_op_omap_rm_keys2)(
                self.handle,
                keys.as_ptr(),
                lens.as_ptr(),
                keys.len(),
            );
        }
    }

    pub(crate) fn operate(self, pool: &Pool, object: &str) -> Result<(), Errno> {
        let object = c(object)?;
        // SAFETY: the operation is used once; the text lives until the call is over; null: now.
        check(unsafe {
            (self.functions.rados_write_op_operate)(self.handle, pool.handle, object.as_ptr(), null(), 0)
        })
        .map(drop)
    }
}

/// What becomes of a lock that this client has already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// Having it is an error.
    None,
    /// It is renewed.
    May,
    /// It is renewed, and not having it is an error.
    Must,
}

/// Who holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockHolder {
    /// `client.` and a number.
    pub client: String,
    /// What it named the lock.
    pub cookie: String,
    /// By which it can be fenced.
    pub address: String,
}

impl Pool {
    /// Keys behind `after` in their order, at most `most` of them, and whether there are more.
    pub(crate) fn omap_page(&self, object: &str, after: &str, most: u64) -> Result<(Omap, bool), Errno> {
        let functions = self.connection.functions;
        let (object, after) = (c(object)?, c(after)?);
        let (mut found, mut more, mut result) = (null_mut(), 0, 0);
        // SAFETY: it takes nothing.
        let read = unsafe { (functions.rados_create_read_op)() };
        // SAFETY: the operation is there; what it writes to lives until it is released.
        let operated = unsafe {
            (functions.rados_read_op_omap_get_vals2)(
                read,
                after.as_ptr(),
                c"".as_ptr(),
                most,
                &raw mut found,
                &raw mut more,
                &raw mut result,
            );
            let operated = (functions.rados_read_op_operate)(read, self.handle, object.as_ptr(), 0);
            (functions.rados_release_read_op)(read);
            operated
        };
        let mut page = Vec::new();
        while operated >= 0 && !found.is_null() {
            let (mut key, mut value, mut key_len, mut len) = (null_mut(), null_mut(), 0, 0);
            // SAFETY: the iterator is there; four values are written.
            let next = unsafe {
                (functions.rados_omap_get_next2)(
                    found,
                    &raw mut key,
                    &raw mut value,
                    &raw mut key_len,
                    &raw mut len,
                )
            };
            if next < 0 || key.is_null() {
                break;
            }
            // SAFETY: the iterator holds both, as long as it says, until its end.
            let (key, value) = unsafe { (bytes(key, key_len), bytes(value, len)) };
            page.push((String::from_utf8_lossy(key).into_owned(), value.to_vec()));
        }
        if !found.is_null() {
            // SAFETY: it is ended once, and nothing of it is used any more.
            unsafe { (functions.rados_omap_get_end)(found) };
        }
        check(operated)?;
        check(result)?;
        Ok((page, more != 0))
    }

    /// Fails with `ERANGE` or `EOVERFLOW` if the object has another version.
    pub(crate) fn assert_version(&self, object: &str, version: u64) -> Result<(), Errno> {
        let (functions, object) = (self.connection.functions, c(object)?);
        // SAFETY: the operation is made here, used once and released; the text lives until the call is over.
        check(unsafe {
            let read = (functions.rados_create_read_op)();
            (functions.rados_read_op_assert_version)(read, version);
            let operated = (functions.rados_read_op_operate)(read, self.handle, object.as_ptr(), 0);
            (functions.rados_release_read_op)(read);
            operated
        })
        .map(drop)
    }

    /// The version of the object that the last operation through this handle was on: so the handle is used by one thread.
    pub(crate) fn last_version(&self) -> u64 {
        // SAFETY: the handle is there.
        unsafe { (self.connection.functions.rados_get_last_version)(self.handle) }
    }

    /// Its size in bytes.
    pub(crate) fn stat(&self, object: &str) -> Result<u64, Errno> {
        let (object, mut size, mut time) = (c(object)?, 0, 0);
        // SAFETY: two numbers are written.
        check(unsafe {
            (self.connection.functions.rados_stat)(self.handle, object.as_ptr(), &raw mut size, &raw mut time)
        })?;
        Ok(size)
    }

    /// Its first bytes, as many as there is room for.
    pub(crate) fn read(&self, object: &str, bytes: &mut [u8]) -> Result<usize, Errno> {
        let object = c(object)?;
        // SAFETY: the library writes no more than the buffer's length, which it is given.
        let read = check(unsafe {
            (self.connection.functions.rados_read)(self.handle, object.as_ptr(), into(bytes), bytes.len(), 0)
        })?;
        Ok(usize::try_from(read).unwrap_or(0))
    }

    pub(crate) fn remove(&self, object: &str) -> Result<(), Errno> {
        let object = c(object)?;
        // SAFETY: the text lives until the call is over.
        check(unsafe { (self.connection.functions.rados_remove)(self.handle, object.as_ptr()) }).map(drop)
    }

    pub(crate) fn lock(
        &self,
        object: &str,
        [name, cookie, description]: [&str; 3],
        duration: Duration,
        renewal: Renewal,
    ) -> Result<(), Errno> {
        let (object, name, cookie, description) = (c(object)?, c(name)?, c(cookie)?, c(description)?);
        let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
        let duration = Timeval { seconds, microseconds: duration.subsec_micros().into() };
        let flags = match renewal {
            Renewal::None => 0,
            Renewal::May => 1,
            Renewal::Must => 2,
        };
        // SAFETY: the texts and the duration live until the call is over.
        check(unsafe {
            (self.connection.functions.rados_lock_exclusive)(
                self.handle,
                object.as_ptr(),
                name.as_ptr(),
                cookie.as_ptr(),
                description.as_ptr(),
                &raw const duration,
                flags,
            )
        })
        .map(drop)
    }

    /// Calls `on` with the namespace and the name of each object, until it does not want more: of this namespace, or of all.
    pub(crate) fn each_object(&self, mut on: impl FnMut(&str, &str) -> bool) -> Result<(), Errno> {
        let (functions, mut list) = (self.connection.functions, null_mut());
        // SAFETY: the list is written if the call succeeds.
        check(unsafe { (functions.rados_nobjects_list_open)(self.handle, &raw mut list) })?;
        let listed = loop {
            let (mut name, mut namespace) = (null(), null());
            // SAFETY: the list is open, and the texts are written if the call succeeds.
            let next = unsafe {
                (functions.rados_nobjects_list_next)(list, &raw mut name, null_mut(), &raw mut namespace)
            };
            match check(next) {
                Err(libc::ENOENT) => break Ok(()),
                Err(errno) => break Err(errno),
                Ok(_) => {}
            }
            // SAFETY: these texts end with zero, and are the list's until the next call.
            let text = |text| unsafe { CStr::from_ptr(text) }.to_string_lossy();
            if !on(&text(namespace), &text(name)) {
                break Ok(());
            }
        };
        // SAFETY: the list is open, and is used no more.
        unsafe { (functions.rados_nobjects_list_close)(list) };
        listed
    }

    pub(crate) fn unlock(&self, object: &str, name: &str, cookie: &str) -> Result<(), Errno> {
        let (object, name, cookie) = (c(object)?, c(name)?, c(cookie)?);
        // SAFETY: the texts live until the call is over.
        check(unsafe {
            (self.connection.functions.rados_unlock)(
                self.handle,
                object.as_ptr(),
                name.as_ptr(),
                cookie.as_ptr(),
            )
        })
        .map(drop)
    }

    pub(crate) fn break_lock(&self, object: &str, name: &str, holder: &LockHolder) -> Result<(), Errno> {
        let (object, name) = (c(object)?, c(name)?);
        let (client, cookie) = (c(&holder.client)?, c(&holder.cookie)?);
        // SAFETY: the texts live until the call is over.
        check(unsafe {
            (self.connection.functions.rados_break_lock)(
                self.handle,
                object.as_ptr(),
                name.as_ptr(),
                client.as_ptr(),
                cookie.as_ptr(),
            )
        })
        .map(drop)
    }

    pub(crate) fn lock_holders(&self, object: &str, name: &str) -> Result<Vec<LockHolder>, Errno> {
        let (object, name) = (c(object)?, c(name)?);
        let mut room = 1024;
        loop {
            let (mut exclusive, mut tag) = (0, vec![0; room]);
            let (mut clients, mut cookies, mut addresses) = (vec![0; room], vec![0; room], vec![0; room]);
            let mut lens = [room; 4];
            let [of_tag, of_clients, of_cookies, of_addresses] = &mut lens;
            // SAFETY: the library writes no more than each buffer's length, which it is given.
            let count = unsafe {
                (self.connection.functions.rados_list_lockers)(
                    self.handle,
                    object.as_ptr(),
                    name.as_ptr(),
                    &raw mut exclusive,
                    into(&mut tag),
                    of_tag,
                    into(&mut clients),
                    of_clients,
                    into(&mut cookies),
                    of_cookies,
                    into(&mut addresses),
                    of_addresses,
                )
            };
            let range = -isize::try_from(libc::ERANGE).unwrap_or(0);
            if count == range && room < 1 << 20 {
                room *= 4;
                continue;
            }
            let count = check(i32::try_from(count).unwrap_or(-libc::EIO))?;
            let lists = texts(&clients).zip(texts(&cookies)).zip(texts(&addresses));
            let holders = lists.map(|((client, cookie), address)| LockHolder { client, cookie, address });
            return Ok(holders.take(usize::try_from(count).unwrap_or(0)).collect());
        }
    }
}

/// The texts in a buffer, each of which ends with zero.
fn texts(bytes: &[u8]) -> impl Iterator<Item = String> {
    bytes.split_inclusive(|&byte| byte == 0).map(text_of)
}

/// # Safety
/// `len` bytes at `start`, which stay as they are for as long as they are used.
unsafe fn bytes<'a>(start: *const core::ffi::c_char, len: usize) -> &'a [u8] {
    if start.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: as the caller says.
    unsafe { core::slice::from_raw_parts(start.cast(), len) }
}
