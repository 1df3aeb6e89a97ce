//! Connections to clusters: one for all images that are served with the same configuration, user and keyring, or one of
//! one's own, to be fenced by itself.

use crate::error::Error;
use crate::ffi::{self, Connection, Setting, Unconnected};
use crate::files::Files;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use nix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::available_parallelism;
use std::time::Instant;

/// How long a cluster may take to answer when it is connected to.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// With no more processors than this, a connection has one thread of each kind.
const PROCESSORS_FEW: usize = 3;
/// The OSDs go by the capabilities that a user had when they were connected to. What they refused a connection that is older is asked
/// for again on a new one.
const CAPABILITIES_AGE: Duration = Duration::from_secs(30);
/// Who waited for a connection that failed is told of that failure, rather than waiting for one more.
const SAME_FAILURE: Duration = Duration::from_secs(1);

/// An address that no client has (RFC 5737).
const NOBODY: &str = "192.0.2.255:0/1";

/// How a cluster is reached.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClusterSpec {
    /// Its configuration file, if it is not at the usual place (`CEPH_CONF`, or `/etc/ceph/ceph.conf`).
    pub conf: Option<PathBuf>,
    /// The user, without `client.`.
    pub user: String,
    /// The file with the user's key, if the configuration does not name it.
    pub keyring: Option<PathBuf>,
}

/// A connection to a cluster: a dozen threads, and an address by which it can be fenced, with everything on it.
pub struct Cluster {
    pub(crate) connection: Arc<Connection>,
    spec: ClusterSpec,
    fsid: String,
    fenced: AtomicBool,
    refused: AtomicBool,
    made: Instant,
    /// In nanoseconds of [`boottime`].
    trusted: AtomicU64,
}

/// A clock that goes on while the machine sleeps.
#[must_use]
pub fn boottime() -> Duration {
    // It is there on every kernel that is supported.
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}

impl Cluster {
    /// Makes a connection that nobody else has. Blocks, for up to some ten seconds.
    ///
    /// # Errors
    /// [`Error`].
    pub fn connect(spec: &ClusterSpec) -> Result<Arc<Self>, Error> {
        let files = Files::of(spec);
        files.check()?;
        let conf = files.conf();
        let connection = Unconnected::new(&spec.user, spec.conf.as_deref())?.map_err(|errno| {
            let what = format!("cannot read Ceph's configuration {conf}");
            match errno {
                libc::EINVAL => Error::with(what, errno, "a line of it is not as Ceph's are"),
                _ => Error::new(what, errno),
            }
        })?;
        for setting in settings(spec) {
            let set = connection.set(&setting);
            set.map_err(|errno| Error::new(format!("cannot set Ceph's option {}", setting.name), errno))?;
        }
        let connection = connection.connect().map_err(|errno| files.refused(errno))?;
        let fsid = connection.fsid().map_err(|errno| Error::new("cannot read the cluster's fsid", errno))?;
        let (connection, spec) = (Arc::new(connection), spec.clone());
        Ok(Arc::new(Self {
            connection,
            spec,
            fsid,
            fenced: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            made: Instant::now(),
            trusted: AtomicU64::new(u64::MAX),
        }))
    }

    /// The connection of this process with that specification; it is made if there is none, or if that was fenced, or
    /// is to be renewed. Blocks, as [`Cluster::connect`].
    ///
    /// # Errors
    /// [`Error`].
    pub fn shared(spec: &ClusterSpec) -> Result<Arc<Self>, Error> {
        #[derive(Default)]
        struct Place {
            cluster: Weak<Cluster>,
            failed: Option<(Instant, Error)>,
        }
        static PLACES: Mutex<Option<HashMap<ClusterSpec, Arc<Mutex<Place>>>>> = Mutex::new(None);
        let place = {
            let mut places = locked(&PLACES);
            Arc::clone(places.get_or_insert_default().entry(spec.clone()).or_default())
        };
        let mut place = locked(&place);
        if let Some(cluster) = place.cluster.upgrade().filter(|it| !(it.is_fenced() || it.is_to_be_renewed()))
        {
            return Ok(cluster);
        }
        if let Some((_, error)) = place.failed.as_ref().filter(|(at, _)| at.elapsed() < SAME_FAILURE) {
            return Err(error.clone());
        }
        let connected = Self::connect(spec);
        place.failed = connected.as_ref().err().map(|error| (Instant::now(), error.clone()));
        place.cluster = connected.as_ref().map(Arc::downgrade).unwrap_or_default();
        connected
    }

    /// How it is reached.
    #[must_use]
    pub fn spec(&self) -> &ClusterSpec {
        &self.spec
    }

    /// The cluster's own identity.
    #[must_use]
    pub fn fsid(&self) -> &str {
        &self.fsid
    }

    /// By which the cluster knows this connection, and by which it can be fenced.
    ///
    /// # Errors
    /// [`Error`].
    pub fn address(&self) -> Result<String, Error> {
        self.connection.address().map_err(|errno| Error::new("cannot read this client's address", errno))
    }

    /// Fences another client by its address: whatever it still has under way is refused by every OSD that knows of it.
    /// See [`Cluster::wait_for_latest_osdmap`]. Blocks until the monitors have it.
    ///
    /// # Errors
    /// [`Error`].
    pub fn blocklist_add(&self, address: &str, duration: Duration) -> Result<(), Error> {
        let seconds = u32::try_from(duration.as_secs()).unwrap_or(u32::MAX);
        let added = self.connection.blocklist_add(address, seconds);
        added.map_err(|errno| self.refused(format!("cannot put {address} on the cluster's blocklist"), errno))
    }

    /// Who is fenced, and until when, as the monitors print it: JSON. They keep the end that an address has already, also when it
    /// is fenced again for longer.
    ///
    /// # Errors
    /// [`Error`].
    pub fn blocklist(&self) -> Result<Vec<u8>, Error> {
        let list =
            |prefix| self.connection.mon_command(&format!(r#"{{"prefix":"{prefix}","format":"json"}}"#));
        // Before Pacific it had another name.
        let listed = list("osd blocklist ls").or_else(|errno| match errno {
            libc::EINVAL => list("osd blacklist ls"),
            _ => Err(errno),
        });
        listed.map_err(|errno| self.refused("cannot read the cluster's blocklist", errno))
    }

    /// Whether this client may fence others: it fences, for a second, an address that is nobody's.
    ///
    /// # Errors
    /// [`Error`]; other errors than a refusal too.
    pub fn may_fence(&self) -> Result<(), Error> {
        let may = self.connection.blocklist_add(NOBODY, 1);
        may.map_err(|errno| self.refused("this client may not fence others (osd blocklist)", errno))
    }

    /// By the monitors.
    fn refused(&self, what: impl Into<String>, errno: i32) -> Error {
        Error::of_monitors(what, errno, &self.spec().user)
    }

    /// Waits until this connection has the newest map of OSDs. From then on an OSD that has a request of this connection
    /// knows of everything that was fenced before.
    ///
    /// # Errors
    /// [`Error`].
    pub fn wait_for_latest_osdmap(&self) -> Result<(), Error> {
        let waited = self.connection.wait_for_latest_osdmap();
        waited.map_err(|errno| Error::new("cannot have the newest map of OSDs", errno))
    }

    /// What its images answer is right until then, by [`boottime`], and for ever if this was never called. The cluster
    /// refuses the writes of a connection that it has fenced, but librbd answers some requests without asking: it knows
    /// which objects exist. So nothing is begun later, and nothing that completes later counts: `ENOTCONN`.
    pub fn trust(&self, until: Duration) {
        let nanoseconds = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.trusted.store(nanoseconds, Ordering::Release);
    }

    /// Whether that time is still to come.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        let until = self.trusted.load(Ordering::Acquire);
        until == u64::MAX || boottime() < Duration::from_nanos(until)
    }

    /// An operation failed because the cluster has fenced this connection, which is of no use any more.
    pub fn on_fenced(&self) {
        self.fenced.store(true, Ordering::Relaxed);
    }

    /// Whether that has happened.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Relaxed)
    }

    /// The user's capabilities did not allow something.
    pub(crate) fn on_refused(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    /// Whether something was refused that a new connection may be allowed, if the user's capabilities were changed since this one was
    /// made. What is open goes on with it.
    #[must_use]
    pub fn is_to_be_renewed(&self) -> bool {
        self.refused.load(Ordering::Relaxed) && self.made.elapsed() >= CAPABILITIES_AGE
    }
}

impl core::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Cluster").field("spec", &self.spec).field("fsid", &self.fsid).finish_non_exhaustive()
    }
}

/// The versions of librados and librbd, for people.
///
/// # Errors
/// They are not installed.
pub fn versions() -> Result<String, Error> {
    let ((a, b, c), (d, e, f)) = (ffi::version()?, ffi::rbd_version()?);
    Ok(format!("librados {a}.{b}.{c}, librbd {d}.{e}.{f}"))
}

fn settings(spec: &ClusterSpec) -> Vec<Setting> {
    let is =
        |name, value: &str, optional| Setting { name, value: value.to_owned(), optional, in_place_of: None };
    let only = |name, usual| Setting { in_place_of: Some(usual), ..is(name, "1", true) };
    let mut settings = vec![
        // A write that completed is on all replicas, and a read shows what others have written.
        is("rbd_cache", "false", false),
        is("rbd_persistent_cache_mode", "disabled", true),
        is("client_mount_timeout", &CONNECT_TIMEOUT.as_secs().to_string(), false),
        // Submitting would block where too much is under way, for all images. Our own depth is the limit.
        is("objecter_inflight_ops", "0", false),
        is("objecter_inflight_op_bytes", "0", false),
        // Without librbd's copy of what is written, a write that it refuses never completes (seen with 16.2.15).
        is("rbd_disable_zero_copy_writes", "true", true),
        // Not `rbd_blocklist_expire_seconds`, for a longer fence where librbd breaks a lock: it tells the monitors that number as a
        // text, which they refuse, and the write that needs the lock fails (seen with 16.2.15).
    ];
    // More threads than processors only take turns: with one of each, an operation takes a tenth less of two processors.
    if available_parallelism().is_ok_and(|processors| processors.get() <= PROCESSORS_FEW) {
        settings.extend([only("ms_async_op_threads", "3"), only("librados_thread_count", "2")]);
    }
    if let Some(keyring) = &spec.keyring {
        settings.push(is("keyring", &keyring.to_string_lossy(), false));
    }
    settings
}

/// What stands in these mutexes is whole between two statements.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
