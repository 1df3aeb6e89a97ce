//! Pools and their objects: keys that are compared and set, locks that expire, notifications. Everything here blocks.

use crate::cluster::Cluster;
use crate::error::Error;
use crate::ffi::{self, LockHolder, Notification, Renewal, WriteOp};
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Keys of an object that are read at once.
const PAGE: u64 = 256;

/// What librados takes for all namespaces of a pool together, where objects are listed.
const ALL_NAMESPACES: &str = "\u{1}";

/// A pool of a cluster, or a namespace of one.
#[derive(Clone)]
pub struct Pool {
    pub(crate) inner: Arc<ffi::Pool>,
    cluster: Arc<Cluster>,
    pool: String,
    namespace: Option<String>,
    name: String,
}

/// All keys of an object, as they were at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Keys {
    /// The object's version, another one after each change; 0: there is no such object.
    pub version: u64,
    /// Each with its value.
    pub values: BTreeMap<String, Vec<u8>>,
}

/// Keys with what they are to be, or to have been; `None`: not there.
pub type KeyChanges<'a> = &'a [(String, Option<Vec<u8>>)];

/// A watch of an object. It ends when this is dropped, which blocks.
pub struct Watch {
    inner: ffi::Watch,
    object: String,
}

impl Watch {
    /// Whether it holds, as far as this client knows. Releases differ in whether they tell of a loss
    /// ([`Notification::Lost`]): ask every few seconds.
    ///
    /// # Errors
    /// It is lost.
    pub fn check(&self) -> Result<(), Error> {
        let checked = self.inner.check();
        checked.map_err(|errno| Error::new(format!("the watch of object {} is lost", self.object), errno))
    }
}

/// What an exclusive lock is named, and by whom.
#[derive(Debug, Clone, Copy)]
pub struct LockName<'a> {
    /// The lock: an object may have several.
    pub name: &'a str,
    /// What its holder is told apart by from the same client's other attempts.
    pub cookie: &'a str,
    /// For people who list it.
    pub description: &'a str,
}

impl Pool {
    /// Opens a pool, or a namespace of one.
    ///
    /// # Errors
    /// [`Error`]: there is no such pool.
    pub fn open(cluster: &Arc<Cluster>, name: &str, namespace: Option<&str>) -> Result<Self, Error> {
        let opened = ffi::Pool::open(&cluster.connection, name, namespace);
        let inner = Arc::new(opened.map_err(|errno| {
            let advice = match errno {
                libc::ENOENT => "there is none of that name: see ceph osd pool ls",
                _ => "is the name right (ceph osd pool ls), and may the user use it?",
            };
            Error::with(format!("cannot open the pool {name}"), errno, advice)
        })?);
        let (pool, namespace) = (name.to_owned(), namespace.map(str::to_owned));
        let name = namespace.as_ref().map_or_else(|| pool.clone(), |namespace| format!("{pool}/{namespace}"));
        Ok(Self { inner, cluster: Arc::clone(cluster), pool, namespace, name })
    }

    /// The objects of the whole pool whose names are wanted, with their namespaces, as far as they are found in that time: a
    /// pool with many objects takes long. Blocks.
    ///
    /// # Errors
    /// [`Error`], such as that the user may use one namespace only.
    pub fn find(
        &self,
        is_wanted: impl Fn(&str) -> bool,
        within: Duration,
    ) -> Result<Vec<(String, String)>, Error> {
        let failed = |errno| Error::new(format!("cannot list the objects of pool {}", self.pool), errno);
        let all =
            ffi::Pool::open(&self.cluster.connection, &self.pool, Some(ALL_NAMESPACES)).map_err(failed)?;
        let (until, mut found) = (Instant::now() + within, Vec::new());
        let listed = all.each_object(|namespace, name| {
            if is_wanted(name) {
                found.push((namespace.to_owned(), name.to_owned()));
            }
            Instant::now() < until
        });
        listed.map_err(failed).map(|()| found)
    }

    /// Its cluster.
    #[must_use]
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// Its name, with the namespace.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The namespace.
    pub(crate) fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Its number, which a new pool of the same name does not have.
    #[must_use]
    pub fn id(&self) -> i64 {
        self.inner.id()
    }

    fn error(&self, doing: &str, object: &str, errno: i32) -> Error {
        if errno == libc::ESHUTDOWN {
            self.cluster.on_fenced();
        }
        self.refused(format!("cannot {doing} object {object} of pool {}", self.name), errno)
    }

    /// What failed in this pool.
    pub(crate) fn refused(&self, what: String, errno: i32) -> Error {
        if matches!(errno, libc::EPERM | libc::EACCES) {
            self.cluster.on_refused();
        }
        Error::in_pool(what, errno, (&self.pool, &self.cluster.spec().user))
    }

    /// All keys of an object.
    ///
    /// # Errors
    /// [`Error`].
    pub fn omap(&self, object: &str) -> Result<BTreeMap<String, Vec<u8>>, Error> {
        let (mut all, mut after) = (BTreeMap::new(), String::new());
        loop {
            let read = self.inner.omap_page(object, &after, PAGE);
            let (page, more) = read.map_err(|errno| self.error("read the keys of", object, errno))?;
            let last = page.last().map(|(key, _)| key.clone());
            all.extend(page);
            match last {
                Some(last) if more => after = last,
                _ => return Ok(all),
            }
        }
    }

    /// All keys of an object at one moment; `None`: it has still the version `unless`.
    ///
    /// # Errors
    /// [`Error`].
    pub fn keys(&self, object: &str, unless: Option<u64>) -> Result<Option<Keys>, Error> {
        let failed = |errno| self.error("read the keys of", object, errno);
        // The version of the last operation is kept by the handle, which others may use.
        let namespace = self.namespace.as_deref();
        let own = ffi::Pool::open(&self.cluster.connection, &self.pool, namespace).map_err(failed)?;
        if let Some(version) = unless.filter(|version| *version > 0) {
            match own.assert_version(object, version) {
                Ok(()) => return Ok(None),
                Err(libc::ERANGE | libc::EOVERFLOW | libc::ENOENT) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        loop {
            let (mut values, mut after, mut first) = (BTreeMap::new(), String::new(), None);
            loop {
                let (page, more) = match own.omap_page(object, &after, PAGE) {
                    Err(libc::ENOENT) => return Ok(Some(Keys::default())),
                    page => page.map_err(failed)?,
                };
                let version = own.last_version();
                if *first.get_or_insert(version) != version {
                    break;
                }
                let last = page.last().map(|(key, _)| key.clone());
                values.extend(page);
                match last {
                    Some(last) if more => after = last,
                    _ => return Ok(Some(Keys { version, values })),
                }
            }
        }
    }

    /// Sets and removes keys if all that are `expected` are so, all together; the object is made if it is not there.
    /// `false`: they are not, and nothing changed.
    ///
    /// # Errors
    /// [`Error`]: perhaps it was done.
    pub fn compare_and_set_all(
        &self,
        object: &str,
        expected: KeyChanges<'_>,
        changes: KeyChanges<'_>,
    ) -> Result<bool, Error> {
        let mut operation = WriteOp::new(&self.inner);
        operation.create();
        for (key, value) in expected {
            let compared = operation.omap_equals(key, value.as_deref().unwrap_or_default());
            compared.map_err(|errno| self.error("compare a key of", object, errno))?;
        }
        let set: Vec<(&str, &[u8])> =
            changes.iter().filter_map(|(key, value)| Some((key.as_str(), value.as_deref()?))).collect();
        let removed = changes.iter().filter(|(_, value)| value.is_none());
        let removed: Vec<&str> = removed.map(|(key, _)| key.as_str()).collect();
        if !set.is_empty() {
            operation.omap_set(&set);
        }
        if !removed.is_empty() {
            operation.omap_remove(&removed);
        }
        match operation.operate(&self.inner, object) {
            Ok(()) => Ok(true),
            Err(libc::ECANCELED) => Ok(false),
            Err(errno) => Err(self.error("change", object, errno)),
        }
    }

    /// Makes an object with these keys. `false`: it is there already.
    ///
    /// # Errors
    /// [`Error`].
    pub fn create(&self, object: &str, values: &[(&str, &[u8])]) -> Result<bool, Error> {
        let mut operation = WriteOp::new(&self.inner);
        operation.create_exclusive();
        operation.omap_set(values);
        match operation.operate(&self.inner, object) {
            Ok(()) => Ok(true),
            Err(libc::EEXIST) => Ok(false),
            Err(errno) => Err(self.error("create", object, errno)),
        }
    }

    /// Sets and removes keys if `(key, value)` is as expected, all together. `false`: it is not, and nothing changed.
    ///
    /// # Errors
    /// [`Error`].
    pub fn compare_and_set(
        &self,
        object: &str,
        expected: (&str, &[u8]),
        set: &[(&str, &[u8])],
        remove: &[&str],
    ) -> Result<bool, Error> {
        let mut operation = WriteOp::new(&self.inner);
        let compared = operation.omap_equals(expected.0, expected.1);
        compared.map_err(|errno| self.error("compare a key of", object, errno))?;
        if !set.is_empty() {
            operation.omap_set(set);
        }
        if !remove.is_empty() {
            operation.omap_remove(remove);
        }
        match operation.operate(&self.inner, object) {
            Ok(()) => Ok(true),
            Err(libc::ECANCELED) => Ok(false),
            Err(errno) => Err(self.error("change", object, errno)),
        }
    }

    /// Removes an object. `false`: there is none.
    ///
    /// # Errors
    /// [`Error`].
    pub fn remove(&self, object: &str) -> Result<bool, Error> {
        match self.inner.remove(object) {
            Ok(()) => Ok(true),
            Err(libc::ENOENT) => Ok(false),
            Err(errno) => Err(self.error("remove", object, errno)),
        }
    }

    /// Its first bytes, at most `most`; `None`: there is no such object.
    ///
    /// # Errors
    /// [`Error`].
    pub fn read(&self, object: &str, most: usize) -> Result<Option<Vec<u8>>, Error> {
        let mut bytes = vec![0; most];
        match self.inner.read(object, &mut bytes) {
            Ok(len) => {
                bytes.truncate(len);
                Ok(Some(bytes))
            }
            Err(libc::ENOENT) => Ok(None),
            Err(errno) => Err(self.error("read", object, errno)),
        }
    }

    /// Whether there is such an object.
    ///
    /// # Errors
    /// [`Error`].
    pub fn exists(&self, object: &str) -> Result<bool, Error> {
        match self.inner.stat(object) {
            Ok(_) => Ok(true),
            Err(libc::ENOENT) => Ok(false),
            Err(errno) => Err(self.error("look at", object, errno)),
        }
    }

    /// Takes or renews an exclusive lock that expires by itself, by the OSD's clock. `false`: somebody else has it, or,
    /// with [`Renewal::Must`], this client has it no more, or has it already, with [`Renewal::None`].
    ///
    /// # Errors
    /// [`Error`].
    pub fn lock(
        &self,
        object: &str,
        lock: LockName<'_>,
        duration: Duration,
        renewal: Renewal,
    ) -> Result<bool, Error> {
        let LockName { name, cookie, description } = lock;
        match self.inner.lock(object, [name, cookie, description], duration, renewal) {
            Ok(()) => Ok(true),
            Err(libc::EBUSY | libc::EEXIST) => Ok(false),
            Err(libc::ENOENT) if renewal == Renewal::Must => Ok(false),
            Err(errno) => Err(self.error("lock", object, errno)),
        }
    }

    /// Gives a lock back. `false`: this client does not have it.
    ///
    /// # Errors
    /// [`Error`].
    pub fn unlock(&self, object: &str, lock: LockName<'_>) -> Result<bool, Error> {
        match self.inner.unlock(object, lock.name, lock.cookie) {
            Ok(()) => Ok(true),
            Err(libc::ENOENT) => Ok(false),
            Err(errno) => Err(self.error("unlock", object, errno)),
        }
    }

    /// Takes a lock from its holder, who is not fenced by that. `false`: it does not have it.
    ///
    /// # Errors
    /// [`Error`].
    pub fn break_lock(&self, object: &str, name: &str, holder: &LockHolder) -> Result<bool, Error> {
        match self.inner.break_lock(object, name, holder) {
            Ok(()) => Ok(true),
            Err(libc::ENOENT) => Ok(false),
            Err(errno) => Err(self.error("break the lock of", object, errno)),
        }
    }

    /// Who holds a lock: nobody, once it has expired.
    ///
    /// # Errors
    /// [`Error`].
    pub fn lock_holders(&self, object: &str, name: &str) -> Result<Vec<LockHolder>, Error> {
        match self.inner.lock_holders(object, name) {
            Err(libc::ENOENT) => Ok(Vec::new()),
            other => other.map_err(|errno| self.error("list the locks of", object, errno)),
        }
    }

    /// Watches an object. `on` is called on a thread of librados: it must neither block nor call Ceph. Clients ping every
    /// five seconds, so a `timeout` below eight loses watches for nothing.
    ///
    /// # Errors
    /// [`Error`].
    pub fn watch(
        &self,
        object: &str,
        timeout: Duration,
        on: impl Fn(Notification) + Send + Sync + 'static,
    ) -> Result<Watch, Error> {
        let begun = ffi::Watch::begin(&self.inner, object, timeout, Box::new(on));
        let inner = begun.map_err(|errno| self.error("watch", object, errno))?;
        Ok(Watch { inner, object: object.to_owned() })
    }

    /// Notifies all who watch an object, and waits for them. `false`: somebody has not heard it in time.
    ///
    /// # Errors
    /// [`Error`].
    pub fn notify(&self, object: &str, payload: &[u8], timeout: Duration) -> Result<bool, Error> {
        match self.inner.notify(object, payload, timeout) {
            Ok(()) => Ok(true),
            Err(libc::ETIMEDOUT) => Ok(false),
            Err(errno) => Err(self.error("notify who watches", object, errno)),
        }
    }
}
