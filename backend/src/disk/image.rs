//! Making the file of a disk: empty, or with the content of another.
//!
//! A file gets its name when it is complete and durable, so that what is stopped half-way leaves nothing that looks like
//! a disk. A name that exists is never taken.

use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags, RenameFlags, SeekFrom, linkat, renameat_with, seek};
use rustix::io::Errno;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Bytes that are copied before it is asked whether to go on.
const PIECE: u64 = 16 << 20;

/// How much of a new file's space is taken at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// None: it is taken when data are written.
    Sparse,
    /// All of it, so that no write fails for lack of space.
    Allocated,
}

/// How a clone came to its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cloned {
    /// It shares the blocks of its source, until one of the two changes them.
    Shared,
    /// It has a copy of its own.
    Copied,
}

/// Why a file was not made.
#[derive(Debug, Error)]
pub enum ImageError {
    /// There is something of that name.
    #[error("{} exists: choose another name, or remove it first", .0.display())]
    Exists(PathBuf),
    /// No disk can have so many bytes.
    #[error("a disk of {0} bytes cannot be: choose a multiple of 512, and not 0")]
    Size(u64),
    /// The source is not a regular file.
    #[error("{} is not a regular file: only files can be cloned", .0.display())]
    NotAFile(PathBuf),
    /// The file system cannot share blocks.
    #[error(
        "{} cannot share the blocks of {}: that takes one file system which can (XFS, Btrfs); --copy \
         copies the data, and takes that nothing writes to them: a namespace that has them is removed for so long, or \
         read-only from the start",
        path.display(), source_path.display()
    )]
    NotShared {
        /// The file to be made.
        path: PathBuf,
        /// The file to be cloned.
        source_path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The data cannot be copied while they change.
    #[error(
        "{} is in use, and a copy of what changes meanwhile is no disk: take its namespace out for so long, or serve it \
         read-only from the start; file systems that share blocks (XFS, Btrfs) need neither", .0.display()
    )]
    InUse(PathBuf),
    /// It was told to stop.
    #[error("stopped before it was complete: there is no file {}", .0.display())]
    Stopped(PathBuf),
    /// The system's error.
    #[error("cannot make {}{}", path.display(), super::error::hint(source))]
    Os {
        /// The file to be made.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The source cannot be read.
    #[error("cannot read {}{}", path.display(), super::error::hint(source))]
    Source {
        /// The file to be cloned.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// Creates a file of `bytes` zeroes, readable by its owner only. It is durable when this returns. Blocks.
///
/// # Errors
/// [`ImageError`]: there is no file then.
pub fn create(path: &Path, bytes: u64, space: Space) -> Result<(), ImageError> {
    if bytes == 0 || !bytes.is_multiple_of(512) {
        return Err(ImageError::Size(bytes));
    }
    let os = |source| ImageError::Os { path: path.to_owned(), source };
    let new = NewFile::begin(path)?;
    new.file.set_len(bytes).map_err(os)?;
    if space == Space::Allocated {
        rustix::fs::fallocate(&new.file, FallocateFlags::empty(), 0, bytes).map_err(|e| os(e.into()))?;
    }
    new.finish()
}

/// Creates a file with the content of another, readable by its owner only, and without the other's UUID. It is durable
/// when this returns. Blocks.
///
/// Where blocks can be shared, the content is that of one moment: every write that had completed when this was called
/// is in it, and others may go on. Otherwise the data are copied if `may_copy`, and nobody may have the source open for
/// writing as a disk meanwhile; `go_on` is asked now and then.
///
/// # Errors
/// [`ImageError`]: there is no file then.
pub fn clone(
    source: &Path,
    path: &Path,
    may_copy: bool,
    go_on: impl Fn() -> bool,
) -> Result<Cloned, ImageError> {
    let from = |error| ImageError::Source { path: source.to_owned(), source: error };
    let os = |source| ImageError::Os { path: path.to_owned(), source };
    // Opening something else may wait, or do something.
    if !std::fs::metadata(source).map_err(from)?.is_file() {
        return Err(ImageError::NotAFile(source.to_owned()));
    }
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(source).map_err(from)?;
    let metadata = file.metadata().map_err(from)?;
    if !metadata.is_file() {
        return Err(ImageError::NotAFile(source.to_owned()));
    }
    let new = NewFile::begin(path)?;
    let how = match rustix::fs::ioctl_ficlone(&new.file, &file) {
        Ok(()) => Cloned::Shared,
        Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::NOSYS) if may_copy => {
            match file.try_lock_shared() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(ImageError::InUse(source.to_owned())),
                Err(TryLockError::Error(error)) => return Err(from(error)),
            }
            new.file.set_len(metadata.size()).map_err(os)?;
            match copy(&file, &new.file, &go_on) {
                Ok(true) => Cloned::Copied,
                Ok(false) => return Err(ImageError::Stopped(path.to_owned())),
                Err(error) => return Err(os(error)),
            }
        }
        Err(error @ (Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::NOSYS)) => {
            let (path, source_path) = (path.to_owned(), source.to_owned());
            return Err(ImageError::NotShared { path, source_path, source: error.into() });
        }
        Err(error) => return Err(os(error.into())),
    };
    new.finish()?;
    Ok(how)
}

/// Copies what is not a hole. `false`: it was stopped.
fn copy(from: &File, to: &File, go_on: &impl Fn() -> bool) -> io::Result<bool> {
    let mut end = 0;
    loop {
        let start = match seek(from, SeekFrom::Data(end)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        end = seek(from, SeekFrom::Hole(start))?;
        let (mut source, mut target) = (from, to);
        source.seek(io::SeekFrom::Start(start))?;
        target.seek(io::SeekFrom::Start(start))?;
        let mut left = end - start;
        while left > 0 {
            if !go_on() {
                return Ok(false);
            }
            let piece = left.min(PIECE);
            if io::copy(&mut source.take(piece), &mut target)? != piece {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the source has become shorter"));
            }
            left -= piece;
        }
    }
}

/// A file that has no name yet, or one that nobody takes for a disk; dropping it removes it.
struct NewFile<'a> {
    file: File,
    path: &'a Path,
    /// Its name until it is complete, on file systems that need one.
    draft: Option<PathBuf>,
}

impl<'a> NewFile<'a> {
    fn begin(path: &'a Path) -> Result<Self, ImageError> {
        if path.symlink_metadata().is_ok() {
            return Err(ImageError::Exists(path.to_owned()));
        }
        let os = |source| ImageError::Os { path: path.to_owned(), source };
        let name = path.file_name().ok_or_else(|| os(io::ErrorKind::InvalidInput.into()))?;
        let options = || OpenOptions::new().read(true).write(true).mode(0o600).clone();
        let nameless = OFlags::TMPFILE.bits().cast_signed();
        match options().custom_flags(nameless).open(folder(path)) {
            Ok(file) => return Ok(Self { file, path, draft: None }),
            // The file system has no files without a name.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {}
            Err(error) => return Err(os(error)),
        }
        let mut draft = name.to_owned();
        draft.push(format!(".{}.new", std::process::id()));
        let draft = path.with_file_name(draft);
        let file = options().create_new(true).open(&draft).map_err(os)?;
        Ok(Self { file, path, draft: Some(draft) })
    }

    /// Makes it durable and gives it its name.
    fn finish(mut self) -> Result<(), ImageError> {
        let os = |source: io::Error| match source.kind() {
            io::ErrorKind::AlreadyExists => ImageError::Exists(self.path.to_owned()),
            _ => ImageError::Os { path: self.path.to_owned(), source },
        };
        self.file.sync_data().map_err(os)?;
        match &self.draft {
            None => {
                let file = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                linkat(CWD, file, CWD, self.path, AtFlags::SYMLINK_FOLLOW).map_err(|e| os(e.into()))?;
            }
            Some(draft) => {
                match renameat_with(CWD, draft, CWD, self.path, RenameFlags::NOREPLACE) {
                    Err(Errno::INVAL | Errno::NOSYS) => std::fs::hard_link(draft, self.path),
                    renamed => renamed.map_err(io::Error::from),
                }
                .map_err(os)?;
            }
        }
        sync_folder(folder(self.path)).map_err(|error| {
            // A file that stayed behind would be in the way of the next try.
            let _ = std::fs::remove_file(self.path);
            os(error)
        })?;
        self.remove_draft();
        Ok(())
    }

    fn remove_draft(&mut self) {
        if let Some(draft) = self.draft.take() {
            let _ = std::fs::remove_file(draft);
        }
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        self.remove_draft();
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes a file's name durable: it is content of its folder, which a flush of the file need not cover. For folders
/// that we may not read, and file systems that cannot flush a folder, there is nothing more to do.
fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Disk, DiskSpec, OpenError};

    fn open(path: &Path) -> Result<Disk, OpenError> {
        Disk::open(&DiskSpec::Path { path: path.to_owned(), create: None }, None, false)
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn new_disk_is_private_and_takes_its_space_when_asked() {
        let folder = tempfile::tempdir().unwrap();
        for (space, least) in [(Space::Sparse, 0), (Space::Allocated, 2048)] {
            let path = folder.path().join(format!("{space:?}.img"));
            create(&path, 1 << 20, space).unwrap();
            let metadata = std::fs::metadata(&path).unwrap();
            assert_eq!((metadata.len(), metadata.mode() & 0o777), (1 << 20, 0o600));
            assert!(metadata.blocks() >= least && (least > 0 || metadata.blocks() == 0), "{space:?}");
            assert_eq!(open(&path).unwrap().geometry().bytes(), 1 << 20);
        }
    }

    #[test]
    fn name_that_exists_is_refused_even_as_a_dangling_link() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        std::os::unix::fs::symlink("/nonexistent", &path).unwrap();
        assert!(matches!(create(&path, 512, Space::Sparse), Err(ImageError::Exists(_))));
        std::fs::remove_file(&path).unwrap();
        // One that came meanwhile.
        let new = NewFile::begin(&path).unwrap();
        std::fs::write(&path, "mine").unwrap();
        assert!(matches!(new.finish(), Err(ImageError::Exists(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        assert_eq!(names(folder.path()), ["disk.img"]);
    }

    #[test]
    fn size_that_no_disk_has_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for bytes in [0, 100, 513] {
            let made = create(&folder.path().join("disk.img"), bytes, Space::Sparse);
            assert!(matches!(made, Err(ImageError::Size(_))));
        }
        let made = create(&folder.path().join("disk.img"), 1 << 63, Space::Sparse);
        assert!(matches!(made, Err(ImageError::Os { .. })));
        assert!(names(folder.path()).is_empty(), "nothing is left behind");
    }

    #[test]
    fn file_system_without_nameless_files_leaves_none_but_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        let draft = |name: &str| {
            let draft = folder.path().join(name);
            let file = OpenOptions::new().read(true).write(true).create_new(true).open(&draft).unwrap();
            NewFile { file, path: &path, draft: Some(draft) }
        };
        drop(draft("one.new"));
        assert!(names(folder.path()).is_empty());
        draft("two.new").finish().unwrap();
        assert_eq!(names(folder.path()), ["disk.img"]);
        assert!(matches!(draft("three.new").finish(), Err(ImageError::Exists(_))));
        assert_eq!(names(folder.path()), ["disk.img"]);
    }

    #[test]
    fn copy_has_the_bytes_and_the_holes_and_another_identity() {
        // In memory: a file system that shares no blocks.
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let (source, path) = (folder.path().join("disk.img"), folder.path().join("clone.img"));
        create(&source, 64 << 20, Space::Sparse).unwrap();
        let pattern: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        let file = OpenOptions::new().write(true).open(&source).unwrap();
        for at in [0, 20 << 20, (64 << 20) - 400_000] {
            std::os::unix::fs::FileExt::write_all_at(&file, &pattern, at).unwrap();
        }
        let refused = clone(&source, &path, false, || true).unwrap_err();
        assert!(matches!(refused, ImageError::NotShared { .. }), "{refused}");
        assert!(refused.to_string().contains("--copy"), "{refused}");
        assert!(matches!(clone(&source, &path, true, || false), Err(ImageError::Stopped(_))));
        assert!(!path.exists());
        assert_eq!(clone(&source, &path, true, || true).unwrap(), Cloned::Copied);
        assert!(std::fs::read(&source).unwrap() == std::fs::read(&path).unwrap());
        let blocks = std::fs::metadata(&path).unwrap().blocks();
        assert!(blocks * 512 < 4 << 20, "{blocks} blocks: holes stay holes");
        let identity = |path| open(path).unwrap().identity().unwrap();
        assert_ne!(identity(&source), identity(&path));
    }

    #[test]
    fn disk_that_may_be_written_is_not_copied() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let (source, path) = (folder.path().join("disk.img"), folder.path().join("clone.img"));
        create(&source, 1 << 20, Space::Sparse).unwrap();
        let disk = open(&source).unwrap();
        assert!(matches!(clone(&source, &path, true, || true), Err(ImageError::InUse(_))));
        assert!(!path.exists());
        drop(disk);
        let spec = DiskSpec::Path { path: source.clone(), create: None };
        let _reader = Disk::open(&spec, None, true).unwrap();
        assert_eq!(clone(&source, &path, true, || true).unwrap(), Cloned::Copied, "readers change nothing");
        assert!(matches!(clone(folder.path(), &path, true, || true), Err(ImageError::NotAFile(_))));
    }
}
