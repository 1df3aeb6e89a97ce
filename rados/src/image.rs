//! Images: what they are, opened and watched. Everything here blocks; I/O goes by [`crate::Completions`].

use crate::cluster::Cluster;
use crate::error::Error;
use crate::ffi::{self, LockHolder, Luks, OpenMode};
use crate::object::Pool;
use core::sync::atomic::{AtomicBool, Ordering};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// The bytes of a compare-and-write that releases before Reef take: one sector.
const SECTOR: u64 = 512;
/// The minor version of librbd in Reef.
const REEF: i32 = 18;

/// A mirrored image that is not the primary one, of mirroring by snapshots (`RBD_FEATURE_NON_PRIMARY`; since Pacific).
const NON_PRIMARY: u64 = 1 << 10;

/// How an image is encrypted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Encryption {
    /// The version of LUKS, 1 or 2.
    pub luks: u8,
    /// The file with the passphrase. A newline at its end may be part of it or not.
    pub passphrase_file: PathBuf,
}

/// What to open.
#[derive(Debug, Clone, Copy)]
pub struct ImageSpec<'a> {
    /// Its name in the pool.
    pub name: &'a str,
    /// A snapshot of it, which cannot be written.
    pub snapshot: Option<&'a str>,
    /// It is not to be written.
    pub read_only: bool,
    /// If it is encrypted, and not to be served as it lies.
    pub encryption: Option<&'a Encryption>,
}

/// Whether an image is where it was opened, and can be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// It is.
    There,
    /// It has another name, or another image has its name.
    Renamed,
    /// It was removed.
    Removed,
    /// It is there, and somebody has set a lock on it (`rbd lock add`): writes do not end before that is released. Who only
    /// reads need not care.
    Locked(LockHolder),
    /// It is there, and another cluster has the primary image of its mirror: every write fails.
    NotPrimary,
}

/// A client that has an image open, and could write it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Opener {
    /// Its address, as `rbd status` has it.
    pub address: String,
    /// It holds the exclusive lock: it has written last.
    pub has_lock: bool,
}

/// What becomes of changes of an image's header.
#[derive(Default)]
struct Changes {
    any: AtomicBool,
    tell: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// An open image. Closing it, by dropping the last handle, waits for what is in flight.
pub struct Image {
    inner: ffi::Image,
    pool: Pool,
    name: String,
    id: String,
    snapshot: Option<u64>,
    changes: Arc<Changes>,
    /// It was found to be removed: what is read would be zeroes.
    removed: AtomicBool,
    encrypted: bool,
    stripe_unit: u64,
    cached: bool,
    discard_granularity: u64,
}

impl Image {
    /// Opens an image.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(pool: &Pool, spec: &ImageSpec<'_>) -> Result<Self, Error> {
        let ImageSpec { name, snapshot, read_only, encryption } = *spec;
        let at = snapshot.map(|snapshot| format!("@{snapshot}")).unwrap_or_default();
        let named = format!("{}/{name}{at}", pool.name());
        let failed = |doing: &str, errno| {
            if errno == libc::ESHUTDOWN {
                pool.cluster().on_fenced();
            }
            pool.refused(format!("cannot {doing} the image {named}"), errno)
        };
        let open = |mode| ffi::Image::open(&pool.inner, name, snapshot, mode);
        // Who may only read cannot watch: a watch is a write.
        let (mut opened, mut watched) = (open(OpenMode::Watched)?, true);
        if read_only && matches!(opened, Err(libc::EPERM | libc::EACCES | libc::EROFS)) {
            (opened, watched) = (open(OpenMode::ReadOnly)?, false);
        }
        let mut inner = opened.map_err(|errno| match errno {
            libc::ENOENT => {
                let of = pool.namespace().map(|namespace| format!(", or no namespace {namespace} in its pool (rbd namespace ls)"));
                let advice = format!(
                    "there is none of that name{}, or its snapshot or parent is missing: see rbd ls, rbd snap ls",
                    of.unwrap_or_default()
                );
                Error::with(format!("cannot open the image {named}"), errno, advice)
            }
            errno => failed("open", errno),
        })?;
        if let Some(encryption) = encryption {
            load(&inner, encryption, &named)?;
        }
        let changes = Arc::new(Changes::default());
        if watched {
            let changes = Arc::clone(&changes);
            let on_change = move || {
                changes.any.store(true, Ordering::Release);
                if let Some(tell) = changes.tell.get() {
                    tell();
                }
            };
            inner.watch(Box::new(on_change)).map_err(|errno| failed("watch", errno))?;
        }
        let of = |errno| failed("ask", errno);
        let snapshot = snapshot.map(|snapshot| inner.snapshot_id(snapshot)).transpose().map_err(of)?;
        let id = inner.id().map_err(of)?;
        let stripe_unit = inner.stripe_unit().map_err(of)?;
        let option = |name| inner.option(name);
        let in_memory = option("rbd_cache").is_some_and(|value| value == "true");
        let on_a_disk_here = option("rbd_persistent_cache_mode").is_some_and(|value| value != "disabled");
        let cached = in_memory || on_a_disk_here;
        let granularity = option("rbd_discard_granularity_bytes").and_then(|value| value.parse().ok());
        let image = Self {
            pool: pool.clone(),
            name: name.to_owned(),
            id,
            snapshot,
            changes,
            removed: AtomicBool::new(false),
            encrypted: encryption.is_some(),
            stripe_unit,
            cached,
            discard_granularity: granularity.unwrap_or(0),
            inner,
        };
        if !read_only {
            image.check_writable()?;
        }
        Ok(image)
    }

    /// Whether writes end, and do not all fail: nobody has locked it, and it is the primary one if it is mirrored.
    ///
    /// # Errors
    /// What is so, or the cluster's error.
    pub fn check_writable(&self) -> Result<(), Error> {
        if !self.is_primary()? {
            let what = format!("cannot write the image {}/{}", self.pool.name(), self.name);
            let advice = "it is not the primary one of its mirror: see rbd mirror image status; rbd mirror image promote makes it that";
            return Err(Error::with(what, libc::EROFS, advice));
        }
        let Some(LockHolder { client, cookie, .. }) = self.lock()? else { return Ok(()) };
        let advice = format!(
            "{client} has locked it ({cookie:?}), and no write would end: see rbd lock ls, and release it by rbd lock rm"
        );
        let what = format!("cannot write the image {}/{}", self.pool.name(), self.name);
        Err(Error::with(what, libc::EBUSY, advice))
    }

    fn lock(&self) -> Result<Option<LockHolder>, Error> {
        let what = || format!("cannot read the locks of the image {}", self.name);
        self.inner.lock_of_people().map_err(|errno| Error::new(what(), errno))
    }

    pub(crate) fn handle(&self) -> &ffi::Image {
        &self.inner
    }

    /// Its cluster.
    #[must_use]
    pub fn cluster(&self) -> &Arc<Cluster> {
        self.pool.cluster()
    }

    /// What tells it from every other image, also from one that has its name later: the cluster's fsid, the pool's
    /// number, the image's id, and the snapshot's number.
    #[must_use]
    pub fn identity(&self) -> String {
        let snapshot = self.snapshot.map(|id| format!("@{id}")).unwrap_or_default();
        format!("{}/{}/{}{snapshot}", self.cluster().fsid(), self.pool.id(), self.id)
    }

    /// Bytes that it has now.
    ///
    /// # Errors
    /// [`Error`].
    pub fn size(&self) -> Result<u64, Error> {
        let size = self.inner.size();
        size.map_err(|errno| Error::new(format!("cannot read the size of the image {}", self.name), errno))
    }

    /// Bytes that lie in one object before the next one follows: a power of two.
    #[must_use]
    pub fn stripe_unit(&self) -> u64 {
        self.stripe_unit
    }

    /// Over how many objects stripes go.
    ///
    /// # Errors
    /// [`Error`].
    pub fn stripe_count(&self) -> Result<u64, Error> {
        let count = self.inner.stripe_count();
        count.map_err(|errno| {
            Error::new(format!("cannot read the striping of the image {}", self.name), errno)
        })
    }

    /// Its features, as bits (`RBD_FEATURE_…`).
    ///
    /// # Errors
    /// [`Error`].
    pub fn features(&self) -> Result<u64, Error> {
        let features = self.inner.features();
        features.map_err(|errno| {
            Error::new(format!("cannot read the features of the image {}", self.name), errno)
        })
    }

    /// Of one that is mirrored by its journal, librbd tells so only when it is written.
    fn is_primary(&self) -> Result<bool, Error> {
        Ok(self.features()? & NON_PRIMARY == 0)
    }

    /// Whether completed writes may be in this process only until they are flushed: the image's own configuration, or
    /// its pool's, has `rbd_cache` or a persistent write-back cache.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        self.cached
    }

    /// Deallocating less than so many bytes frees nothing; 0 is no limit.
    #[must_use]
    pub fn discard_granularity(&self) -> u64 {
        self.discard_granularity
    }

    /// The bytes of a compare-and-write that librbd does in one step, if it is within a multiple of as many; 0 is none.
    #[must_use]
    pub fn compare_and_write_max(&self) -> u64 {
        match ffi::rbd_version() {
            _ if self.encrypted => 0,
            Ok((1, minor, _)) if minor < REEF => SECTOR,
            Ok(_) => self.stripe_unit,
            Err(_) => 0,
        }
    }

    /// Calls `tell` when the header changes, once it was asked for with [`Image::take_changed`]: on a thread of librbd,
    /// where it must neither block nor call Ceph. Only the first call counts.
    pub fn on_change(&self, tell: impl Fn() + Send + Sync + 'static) {
        let _ = self.changes.tell.set(Box::new(tell));
    }

    /// Whether the header has changed since this was asked last: perhaps the size.
    pub fn take_changed(&self) -> bool {
        self.changes.any.swap(false, Ordering::Acquire)
    }

    /// Looks whether it is still there, and remembers if it is not.
    ///
    /// # Errors
    /// [`Error`].
    pub fn presence(&self) -> Result<Presence, Error> {
        if self.id.is_empty() {
            return Ok(Presence::There);
        }
        if !self.pool.exists(&format!("rbd_header.{}", self.id))? {
            self.removed.store(true, Ordering::Relaxed);
            return Ok(Presence::Removed);
        }
        let named = self.pool.read(&format!("rbd_id.{}", self.name), 256)?;
        // A text, with its length in four bytes in front of it.
        let is_it = named.is_some_and(|bytes| bytes.get(4..) == Some(self.id.as_bytes()));
        if !is_it {
            return Ok(Presence::Renamed);
        }
        if !self.is_primary()? {
            return Ok(Presence::NotPrimary);
        }
        Ok(self.lock()?.map_or(Presence::There, Presence::Locked))
    }

    /// The other clients that have it open, and of these who held the lock when it was opened here. One that has died counts for
    /// half a minute more.
    ///
    /// # Errors
    /// [`Error`].
    pub fn other_openers(&self) -> Result<Vec<Opener>, Error> {
        let failed = |errno| Error::new(format!("cannot list who has the image {} open", self.name), errno);
        let own = self.cluster().address()?;
        let writer = self.inner.lock_of_writer().map_err(failed)?;
        let others = self.inner.watchers().map_err(failed)?.into_iter().filter(|it| *it != own);
        let has_lock = |address: &String| writer.as_ref().is_some_and(|writer| writer.address == *address);
        let mut openers: Vec<Opener> =
            others.map(|address| Opener { has_lock: has_lock(&address), address }).collect();
        openers.sort();
        openers.dedup();
        Ok(openers)
    }

    /// Whether it was found to be removed.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }
}

impl core::fmt::Debug for Image {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Image").field("name", &self.name).field("id", &self.id).finish_non_exhaustive()
    }
}

fn load(image: &ffi::Image, encryption: &Encryption, named: &str) -> Result<(), Error> {
    let luks = if encryption.luks == 1 { Luks::Luks1 } else { Luks::Luks2 };
    let path = &encryption.passphrase_file;
    let read = std::fs::read(path).map_err(|error| {
        let what = format!("cannot read the passphrase of the image {named} from {}", path.display());
        Error::File { what, cause: error.to_string(), advice: "" }
    })?;
    let mut loaded = image.load_encryption(luks, &read);
    // `rbd` of Ceph 16 leaves a newline at the end out when it formats an image, and that of Ceph 18 does not.
    if let (Err(libc::EPERM), Some(line)) = (loaded, read.strip_suffix(b"\n")) {
        loaded = image.load_encryption(luks, line);
    }
    loaded.map_err(|errno| {
        let advice = match errno {
            libc::EPERM => return Error::Passphrase { image: named.to_owned(), file: path.clone() },
            libc::ENOSYS | libc::ENOTSUP => "librbd must be of Pacific or newer, with encryption".to_owned(),
            _ => format!("is it encrypted with LUKS {}?", encryption.luks),
        };
        Error::with(format!("cannot decrypt the image {named}"), errno, advice)
    })
}
