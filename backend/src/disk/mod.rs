//! Disks: opened once, before any worker uses them.

mod block_device;
mod error;
mod file;
mod health;
mod identity;
pub mod image;
pub(crate) mod nvme;
mod range_locks;
pub(crate) mod rbd;
pub(crate) mod served;
pub(crate) mod sharing;
mod temperature;

use crate::ram::RamDisk;
pub use error::OpenError;
pub use health::{FailedOperation, Failure, Health};
pub use identity::{Identity, IdentitySource};
use nvmf_block::Geometry;
pub(crate) use range_locks::{LockId, Mail, MemberId, Note, RangeLocks};
pub use rbd::{ImageSource, Opener, Presence};
use rustix::fs::OFlags;
use served::Served;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
pub use temperature::Thermometer;

/// How long to retry while a disk is in use, and how often.
const IN_USE_TIMEOUT: Duration = Duration::from_secs(3);
const IN_USE_INTERVAL: Duration = Duration::from_millis(10);

/// What to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskSpec {
    /// A file, a block device, or the generic device of an NVMe drive's namespace.
    Path {
        /// Its path.
        path: PathBuf,
        /// If it does not exist: create a sparse file of this many bytes.
        create: Option<u64>,
    },
    /// An image of a Ceph cluster.
    Rbd(ImageSource),
    /// Zeroed memory, freed with the last handle.
    Memory {
        /// Bytes.
        size: u64,
    },
    /// Discards writes, reads zeroes.
    Null {
        /// Bytes.
        size: u64,
    },
}

/// A disk to look at, if anybody has it still by then.
#[derive(Debug, Clone)]
pub struct DiskToLookAt(Weak<Inner>);

impl DiskToLookAt {
    /// The disk, for a look. A cluster may not answer that for hours: who waits until nobody uses an image, which
    /// [`Disk::is_shared`] says, does not wait for looks at it. `None`: nobody has it any more.
    #[must_use]
    pub fn get(&self) -> Option<Disk> {
        let disk = Disk(self.0.upgrade()?);
        match &disk.0.kind {
            Kind::Image(_) => disk.with_blocks(disk.0.geometry.blocks).ok().flatten(),
            Kind::File(_) | Kind::Ram(_) | Kind::Null => Some(disk),
        }
    }
}

/// An open disk. A clone is cheap; each worker attaches its own.
#[derive(Debug, Clone)]
pub struct Disk(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) kind: Kind,
    pub(crate) geometry: Geometry,
    /// Failures, in all workers.
    pub(crate) record: Arc<health::Record>,
    /// Locked ranges, in all workers.
    pub(crate) locks: Arc<RangeLocks>,
    /// The identity of a memory or null disk.
    random: Identity,
}

#[derive(Debug)]
pub(crate) enum Kind {
    File(FileDisk),
    Image(rbd::ImageDisk),
    Ram(RamDisk),
    Null,
}

/// A file or block device.
#[derive(Debug)]
pub(crate) struct FileDisk {
    /// Open, and locked against a second export while it is open.
    pub(crate) file: File,
    /// The alignment that the device needs of buffers; 1 through the page cache, which copies.
    pub(crate) memory_alignment: usize,
    /// Bypasses the page cache.
    pub(crate) direct: bool,
    /// A write can be durable by itself. None through the page cache is, nor of a regular file, of which its file system may
    /// have other writes there: it would overlap the syncs of the same open file, and could take the error that one of
    /// them is to be told of.
    pub(crate) write_through: bool,
    /// What it is, if it is the generic device of an NVMe drive's namespace.
    pub(crate) drive: Option<nvme::Drive>,
    /// Where its blocks are, if it is a regular file, whose blocks its file system may share with another.
    pub(crate) place: Option<sharing::Place>,
    /// The block device below.
    pub(crate) below: block_device::Below,
    /// If its file system asks a server.
    pub(crate) served: Option<Served>,
}

impl FileDisk {
    /// The file opened once more, for one worker. The kernel reports a failed writeback once per open file, and every
    /// worker has to hear of it; past the page cache, too, which file systems fall back to. `None` for a file that all
    /// may share.
    pub(crate) fn for_worker(&self) -> io::Result<Option<File>> {
        let kind = self.file.metadata()?.file_type();
        if !(kind.is_file() || kind.is_block_device()) {
            return Ok(None);
        }
        let flags = rustix::fs::fcntl_getfl(&self.file)?;
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let mut options = OpenOptions::new();
        options.read(true).write(flags.contains(OFlags::RDWR));
        options.custom_flags((flags & OFlags::DIRECT).bits().cast_signed());
        options.open(path).map(Some)
    }

    /// The same open file once more.
    fn try_clone(&self) -> io::Result<Self> {
        let drive = self.drive.as_ref().map(nvme::Drive::try_clone).transpose()?;
        let served = self.served.clone();
        let Self { memory_alignment, direct, write_through, place, below, .. } = *self;
        let file = self.file.try_clone()?;
        Ok(Self { file, memory_alignment, direct, write_through, drive, place, below, served })
    }
}

impl Disk {
    /// Opens a disk. `block_size`: bytes in a logical block, instead of the default. Tries again for three seconds while the disk is in
    /// use: the kernel takes the rings of a process apart after the process has ended, which may take a busy machine seconds, and only
    /// then closes their files. A daemon that restarts must not fail on its own locks.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(spec: &DiskSpec, block_size: Option<u32>, read_only: bool) -> Result<Self, OpenError> {
        let deadline = Instant::now() + IN_USE_TIMEOUT;
        loop {
            match Self::open_at_once(spec, block_size, read_only) {
                Err(OpenError::InUse { .. }) if Instant::now() < deadline => {
                    std::thread::sleep(IN_USE_INTERVAL)
                }
                opened => return opened,
            }
        }
    }

    /// The same without waiting for its last user.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_at_once(
        spec: &DiskSpec,
        block_size: Option<u32>,
        read_only: bool,
    ) -> Result<Self, OpenError> {
        let (kind, mut geometry) = match spec {
            DiskSpec::Path { path, create } => open_path(path, *create, block_size, read_only)?,
            DiskSpec::Rbd(source) => rbd::open(source, block_size, read_only)?,
            DiskSpec::Memory { size } => {
                let geometry = whole_blocks("the memory disk", *size, block_size, 512)?;
                let ram = RamDisk::new(*size).map_err(|_| OpenError::Memory { bytes: *size })?;
                (Kind::Ram(ram), Geometry { deallocate: true, zero_after_deallocate: true, ..geometry })
            }
            DiskSpec::Null { size } => (Kind::Null, whole_blocks("the null disk", *size, block_size, 512)?),
        };
        geometry.read_only |= read_only;
        Ok(Self::new(kind, geometry))
    }

    /// Opens an image on a connection of the caller's, which may be fenced by itself. `source` says where it is there.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_image(
        cluster: &Arc<nvmf_rados::Cluster>,
        source: &ImageSource,
        block_size: Option<u32>,
        read_only: bool,
    ) -> Result<Self, OpenError> {
        let (kind, geometry) = rbd::open_on(cluster, source, block_size, read_only)?;
        Ok(Self::new(kind, Geometry { read_only: geometry.read_only || read_only, ..geometry }))
    }

    /// Opens a regular file through the page cache, for measurements.
    ///
    /// # Errors
    /// As [`Disk::open`].
    pub fn open_buffered(path: &Path, block_size: Option<u32>, read_only: bool) -> Result<Self, OpenError> {
        let (kind, geometry) = file::open(path, block_size, read_only, false)?;
        Ok(Self::new(kind, Geometry { read_only, ..geometry }))
    }

    fn new(kind: Kind, geometry: Geometry) -> Self {
        let random = identity::random();
        Self(Arc::new(Inner { kind, geometry, record: Arc::default(), locks: Arc::default(), random }))
    }

    /// Its geometry.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    /// The UUID of the file or device behind it; [`IdentitySource`] says what it is stable over. `None` for a block
    /// device without a persistent identifier: then the caller chooses. A file that has none and is open for writing
    /// gets one, stored in an extended attribute. This may block.
    ///
    /// # Errors
    /// The attribute holds no UUID, or cannot be read, written or synced.
    pub fn identity(&self) -> io::Result<Option<Identity>> {
        match &self.0.kind {
            Kind::File(file) => identity::of_file(&file.file, !self.0.geometry.read_only),
            Kind::Image(disk) => Ok(Some(identity::of_image(&disk.image.identity()))),
            Kind::Ram(_) | Kind::Null => Ok(Some(self.0.random)),
        }
    }

    /// The same disk, if its file or device has become longer: see [`Disk::resized`]. Blocks.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn grown(&self) -> io::Result<Option<Self>> {
        let resized = self.resized()?;
        Ok(resized.filter(|disk| disk.0.geometry.blocks > self.0.geometry.blocks))
    }

    /// The same disk, if its file or device has become longer or shorter, with the length that it has now, for
    /// [`crate::Devices::resize`]: perhaps no block is left. The file stays open and locked, and the record of its
    /// health goes on. Blocks.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn resized(&self) -> io::Result<Option<Self>> {
        let geometry = self.0.geometry;
        let bytes = match &self.0.kind {
            Kind::File(FileDisk { file, drive: Some(drive), .. }) => nvme::bytes(file, &drive.namespace)?,
            Kind::File(FileDisk { file, .. }) => {
                let mut end: &File = file;
                end.seek(SeekFrom::End(0))?
            }
            Kind::Image(disk) => disk.bytes()?,
            Kind::Ram(_) | Kind::Null => return Ok(None),
        };
        let blocks = bytes / u64::from(geometry.block_size);
        if blocks == geometry.blocks { Ok(None) } else { self.with_blocks(blocks) }
    }

    /// The same disk, shown with so many blocks, whatever it has.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn with_blocks(&self, blocks: u64) -> io::Result<Option<Self>> {
        let geometry = self.0.geometry;
        let kind = match &self.0.kind {
            Kind::File(file) => Kind::File(file.try_clone()?),
            Kind::Image(disk) => Kind::Image(disk.clone()),
            Kind::Ram(_) | Kind::Null => return Ok(None),
        };
        Ok(Some(Self(Arc::new(Inner {
            kind,
            geometry: Geometry { blocks, ..geometry },
            record: Arc::clone(&self.0.record),
            locks: Arc::clone(&self.0.locks),
            random: self.0.random,
        }))))
    }

    /// Whether the path still leads to this disk: to the file or the device that is open. Memory is everywhere. Blocks.
    ///
    /// # Errors
    /// The operating system's error.
    pub fn is_at(&self, path: &Path) -> io::Result<bool> {
        let Kind::File(FileDisk { file, .. }) = &self.0.kind else { return Ok(true) };
        let place = |metadata: &std::fs::Metadata| match metadata.file_type().is_block_device() {
            true => (metadata.rdev(), 0),
            false => (metadata.dev(), metadata.ino()),
        };
        Ok(place(&file.metadata()?) == place(&std::fs::metadata(path)?))
    }

    /// Whether an image is still where it was opened. What was removed fails from then on, as zeroes would be read of it.
    /// Everything else is there. Blocks.
    ///
    /// # Errors
    /// The cluster's error.
    pub fn presence(&self) -> io::Result<Presence> {
        match &self.0.kind {
            Kind::Image(disk) => disk.presence(),
            Kind::File(_) | Kind::Ram(_) | Kind::Null => Ok(Presence::There),
        }
    }

    /// The other clients that have an image open and could write it; of other disks nothing is known. Blocks.
    ///
    /// # Errors
    /// The cluster's error.
    pub fn other_openers(&self) -> io::Result<Vec<Opener>> {
        match &self.0.kind {
            Kind::Image(disk) => disk.image.other_openers().map_err(io::Error::other),
            Kind::File(_) | Kind::Ram(_) | Kind::Null => Ok(Vec::new()),
        }
    }

    /// Whether an image was found to be removed, when [`Disk::presence`] looked last.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        matches!(&self.0.kind, Kind::Image(disk) if disk.image.is_removed())
    }

    /// Whether the cluster has fenced the client that an image is open by, at any time since. librbd writes no more then, also
    /// when the fence has ended: only another connection can.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        matches!(&self.0.kind, Kind::Image(disk) if disk.image.cluster().is_fenced())
    }

    /// Whether writes of an image that was opened for reading would end if it were opened for writing. Blocks.
    ///
    /// # Errors
    /// Somebody has locked it, or the cluster's error.
    pub fn check_writable(&self) -> io::Result<()> {
        match &self.0.kind {
            Kind::Image(disk) => disk.check_writable(),
            Kind::File(_) | Kind::Ram(_) | Kind::Null => Ok(()),
        }
    }

    /// Has an image call `tell` when its size may have changed, on a thread of librbd that must not be blocked. Other disks
    /// never do: they have to be looked at.
    pub fn on_change(&self, tell: impl Fn() + Send + Sync + 'static) {
        if let Kind::Image(disk) = &self.0.kind {
            disk.image.on_change(tell);
        }
    }

    /// Whether it is an image whose size may have changed since this was asked last.
    #[must_use]
    pub fn take_changed(&self) -> bool {
        matches!(&self.0.kind, Kind::Image(disk) if disk.image.take_changed())
    }

    /// The file system that a look at it waits for, if that asks a server: files of the same hang together.
    #[must_use]
    pub fn served_by(&self) -> Option<u64> {
        match &self.0.kind {
            Kind::File(file) => file.served.as_ref().map(Served::file_system),
            Kind::Image(_) | Kind::Ram(_) | Kind::Null => None,
        }
    }

    /// What a look at it waits for, if it is not this machine: disks with the same hang together.
    #[must_use]
    pub fn cluster(&self) -> Option<&str> {
        match &self.0.kind {
            Kind::Image(disk) => Some(disk.image.cluster().fsid()),
            Kind::File(_) | Kind::Ram(_) | Kind::Null => None,
        }
    }

    /// What a look at it needs.
    #[must_use]
    pub fn to_look_at(&self) -> DiskToLookAt {
        DiskToLookAt(Arc::downgrade(&self.0))
    }

    /// Whether others hold a clone of this handle: workers that have not closed the disk yet.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Whether I/O bypasses the page cache (`O_DIRECT`). Otherwise data are copied once more, and writes stay in this
    /// machine's memory until they are flushed.
    #[must_use]
    pub fn direct(&self) -> bool {
        match &self.0.kind {
            Kind::File(file) => file.direct,
            Kind::Image(_) | Kind::Ram(_) | Kind::Null => true,
        }
    }

    /// The SMART / Health Information log page of the drive behind it, 512 bytes (NVMe Base); `None` for what is no
    /// generic device of an NVMe drive. The kernel wants `CAP_SYS_ADMIN`. Blocks.
    ///
    /// # Errors
    /// The system's error, or the drive's status.
    pub fn smart_log(&self) -> io::Result<Option<[u8; 512]>> {
        match &self.0.kind {
            Kind::File(FileDisk { file, drive: Some(_), .. }) => nvme::smart_log(file).map(Some),
            _ => Ok(None),
        }
    }

    /// The number of the block device below: of the file system of a file. `None`: there is none.
    fn device_below(&self) -> Option<u64> {
        match &self.0.kind {
            Kind::File(file) => file.below.number(),
            Kind::Image(_) | Kind::Ram(_) | Kind::Null => None,
        }
    }

    /// Its failures since it was opened. This is cheap enough to call every few seconds; nothing is logged here.
    #[must_use]
    pub fn health(&self) -> Health {
        self.0.record.health()
    }

    /// The last of them, and how long ago it was.
    #[must_use]
    pub fn last_failure(&self) -> Option<(Failure, Duration)> {
        self.0.record.last().map(|(failure, at)| (failure, at.elapsed()))
    }

    /// Whether a power loss may undo completed writes, read from the kernel again: the cache mode of a block device
    /// can change while it is open, and [`Disk::geometry`] stays as it was. No file system is asked: one that hangs keeps
    /// nobody waiting.
    #[must_use]
    pub fn volatile_write_cache(&self) -> bool {
        match &self.0.kind {
            Kind::File(file) if file.drive.is_some() => self.0.geometry.volatile_write_cache,
            Kind::File(file) => file.below.volatile_write_cache(file.direct),
            Kind::Image(_) => self.0.geometry.volatile_write_cache,
            Kind::Ram(_) | Kind::Null => false,
        }
    }

    /// Bytes that the device below writes atomically with respect to power loss (its physical block size). A logical
    /// block that is larger may be torn by a power loss. `None`: not known, or nothing survives a power loss.
    #[must_use]
    pub fn atomic_unit(&self) -> Option<u32> {
        match &self.0.kind {
            Kind::File(file) => file.below.atomic_unit(),
            Kind::Image(_) | Kind::Ram(_) | Kind::Null => None,
        }
    }
}

/// Whether this is the generic character device of an NVMe drive's namespace (`/dev/ngXnY`), which can be a disk.
#[must_use]
pub fn is_nvme_generic(metadata: &std::fs::Metadata) -> bool {
    metadata.file_type().is_char_device() && nvme::is_generic(metadata)
}

/// The geometry of `bytes` bytes, in blocks of the size asked for, else of 4096 bytes, else of 512.
fn whole_blocks(what: &str, bytes: u64, asked: Option<u32>, least: u32) -> Result<Geometry, OpenError> {
    let fits = |size: u32| bytes.is_multiple_of(u64::from(size));
    let block_size = asked.unwrap_or(if fits(4096) { least.max(4096) } else { least });
    if !Geometry::is_block_size(block_size) {
        return Err(OpenError::NoBlockSize { what: what.to_owned(), block_size });
    }
    if bytes == 0 {
        return Err(OpenError::Empty { what: what.to_owned() });
    }
    if !fits(block_size) {
        return Err(OpenError::Size { what: what.to_owned(), bytes, block_size });
    }
    Ok(Geometry::new(block_size, bytes / u64::from(block_size)))
}

fn open_path(
    path: &Path,
    create: Option<u64>,
    asked: Option<u32>,
    read_only: bool,
) -> Result<(Kind, Geometry), OpenError> {
    match (std::fs::metadata(path), create) {
        (Ok(metadata), _) if metadata.file_type().is_block_device() => {
            return block_device::open(path, &metadata, asked, read_only);
        }
        (Ok(metadata), _) if metadata.file_type().is_char_device() => {
            return nvme::open(path, &metadata, asked, read_only);
        }
        (Ok(metadata), _) if metadata.file_type().is_file() => {}
        (Ok(_), _) => return Err(OpenError::WrongKind { path: path.to_owned() }),
        (Err(error), Some(bytes)) if error.kind() == io::ErrorKind::NotFound => {
            file::create(path, bytes, asked)?;
        }
        (Err(error), _) if error.kind() == io::ErrorKind::NotFound => {
            return Err(OpenError::Missing { path: path.to_owned() });
        }
        (Err(source), _) => return Err(OpenError::Os { path: path.to_owned(), source }),
    }
    file::open(path, asked, read_only, true)
}

/// Locks a disk: for one writer, or any number of readers.
fn lock(file: &File, path: &Path, read_only: bool) -> Result<(), OpenError> {
    match if read_only { file.try_lock_shared() } else { file.try_lock() } {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse { path: path.to_owned() }),
        Err(TryLockError::Error(source)) => Err(OpenError::Os { path: path.to_owned(), source }),
    }
}

#[cfg(test)]
impl Disk {
    /// A device whose reads hang: the read end of a pipe that nobody writes to. The caller keeps the other end open.
    pub(crate) fn hanging(block_size: u32, blocks: u64) -> (Self, std::io::PipeWriter) {
        let (reader, writer) = std::io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(reader));
        let below = block_device::Below::default();
        let kind = Kind::File(FileDisk {
            file,
            memory_alignment: 1,
            direct: false,
            write_through: false,
            drive: None,
            place: None,
            below,
            served: None,
        });
        (Self::new(kind, Geometry::new(block_size, blocks)), writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn open(path: &Path, create: Option<u64>) -> Result<Disk, OpenError> {
        Disk::open(&DiskSpec::Path { path: path.to_owned(), create }, None, false)
    }

    #[test]
    fn open_errors_say_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        assert!(open(&path, None).unwrap_err().to_string().contains("does not exist: create it"));
        assert!(
            open(folder.path(), None).unwrap_err().to_string().contains("neither a file nor a block device")
        );
        assert!(open(&path, Some(1000)).unwrap_err().to_string().contains("no multiple"));
        let disk = open(&path, Some(1 << 20)).unwrap();
        assert_eq!((disk.geometry().block_size, disk.geometry().blocks), (4096, 256));
        assert!(open(&path, None).unwrap_err().to_string().contains("is in use"));
        drop(disk);
        std::fs::write(&path, [0; 1536]).unwrap();
        assert_eq!(open(&path, None).unwrap().geometry().block_size, 512);
        std::fs::write(&path, [0; 100]).unwrap();
        assert!(
            open(&path, None)
                .unwrap_err()
                .to_string()
                .contains("100 bytes, which is no multiple of its 512-byte blocks")
        );
        std::fs::write(&path, []).unwrap();
        assert!(open(&path, None).unwrap_err().to_string().contains("is empty"));
    }

    #[test]
    fn grown_file_is_same_disk_with_more_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        let disk = open(&path, Some(1 << 20)).unwrap();
        assert!(disk.grown().unwrap().is_none());
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len((2 << 20) + 100).unwrap();
        let grown = disk.grown().unwrap().unwrap();
        assert_eq!((grown.geometry().blocks, disk.geometry().blocks), (512, 256), "whole blocks only");
        assert_eq!(grown.identity().unwrap(), disk.identity().unwrap());
        assert!(grown.grown().unwrap().is_none());
        drop(disk);
        assert!(open(&path, None).unwrap_err().to_string().contains("is in use"), "it stays locked");
    }

    /// A descriptor that cannot be asked anything stands for a file system that does not answer.
    #[test]
    fn file_system_is_not_asked_what_is_below_an_open_disk() {
        let folder = tempfile::tempdir().unwrap();
        let (kind, geometry) =
            open_path(&folder.path().join("disk.img"), Some(1 << 20), None, false).unwrap();
        let Kind::File(disk) = kind else { panic!("no file") };
        let below = disk.below;
        let before = Disk::new(Kind::File(disk), geometry);
        let (other, _writer) = Disk::hanging(512, 8);
        let Kind::File(other) = Arc::into_inner(other.0).unwrap().kind else { panic!("no file") };
        let other = Disk::new(Kind::File(FileDisk { below, ..other }), geometry);
        assert_eq!(other.device_below(), before.device_below());
        assert_eq!(other.device_below(), Some(std::fs::metadata(folder.path()).unwrap().dev()));
        assert_eq!((other.atomic_unit(), other.volatile_write_cache()), (before.atomic_unit(), true));
    }

    #[test]
    fn file_prefers_whole_blocks_of_its_file_system() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        drop(open(&path, Some(1 << 20)).unwrap());
        let file_system = u32::try_from(rustix::fs::statvfs(&path).unwrap().f_frsize).unwrap();
        for block_size in [512, 4096, 65536] {
            let spec = DiskSpec::Path { path: path.clone(), create: None };
            let Ok(disk) = Disk::open(&spec, Some(block_size), false) else { continue };
            let preferred = disk.geometry().preferred;
            let blocks = (file_system / block_size).max(1);
            assert_eq!((preferred.write, preferred.write_alignment), (blocks, blocks));
            assert_eq!((preferred.deallocate, preferred.deallocate_alignment), (blocks, blocks));
            assert_eq!(preferred.boundary, 0);
        }
    }

    #[test]
    fn invalid_block_sizes_are_refused() {
        for block_size in [0, 1, 256, 1000, 131_072] {
            let spec = DiskSpec::Null { size: 131_072_000 };
            let error = Disk::open(&spec, Some(block_size), false).unwrap_err().to_string();
            assert!(error.contains("power of two from 512 to 65536"), "{error}");
        }
    }

    #[test]
    fn a_created_file_is_private_and_sparse() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        drop(open(&path, Some(1 << 30)).unwrap());
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!((metadata.len(), metadata.mode() & 0o777), (1 << 30, 0o600));
        assert!(metadata.blocks() < 2048, "sparse");
        let path = folder.path().join("too-large.img");
        assert!(open(&path, Some(1 << 63)).is_err());
        assert!(!path.exists(), "a file that could not be created is removed");
    }

    #[test]
    fn readers_share_a_file_and_exclude_writers() {
        let folder = tempfile::tempdir().unwrap();
        let spec = DiskSpec::Path { path: folder.path().join("disk.img"), create: Some(1 << 20) };
        let first = Disk::open(&spec, None, true).unwrap();
        let second = Disk::open(&spec, None, true).unwrap();
        assert!(first.geometry().read_only && second.geometry().read_only);
        assert!(matches!(Disk::open(&spec, None, false), Err(OpenError::InUse { .. })));
        drop((first, second));
        assert!(Disk::open(&spec, None, false).is_ok());
    }

    #[test]
    fn a_file_system_without_direct_io_works() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let disk = open(&folder.path().join("disk.img"), Some(8192)).unwrap();
        assert_eq!(disk.geometry().bytes(), 8192);
    }
}
