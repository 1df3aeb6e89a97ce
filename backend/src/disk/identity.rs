//! The identity of a disk: a UUID that belongs to the file or device behind it, and not to the name under which it is
//! exported.
//!
//! - **File:** stored in the extended attribute `user.nvmf.uuid`, which a writable disk gets when it has none. Stable over
//!   restarts, renames, and copies or restores that keep attributes. A copy without attributes gets a UUID of its own.
//! - **File without that attribute**, because its file system has none or the disk is read-only: derived from inode number and
//!   birth time. Stable over restarts and renames, and kept when the file gets the attribute later. Any copy, and any move to
//!   another file system, changes it.
//! - **The same on a file system without birth times:** derived from file system and inode number. A new file may reuse the
//!   inode number of a deleted one, and then has its UUID.
//! - **Block device:** derived from its WWID, device-mapper UUID or MD UUID, and the first sector of a partition. Stable over
//!   restarts, renaming and moving to another port. Devices without any of these have none.
//! - **Generic device of an NVMe drive:** that of the block device of the same namespace.
//! - **Loop device:** that of its file, or derived from it if it begins at an offset.
//! - **RBD image:** derived from the cluster's fsid, the pool's number, the image's id and the snapshot's number. Stable over
//!   restarts and renames; an image that is made anew under the name is another.
//! - **Memory, null:** random, new at each opening, shared by the clones of a [`Disk`](super::Disk).
//!
//! A copy that keeps attributes (`cp -a`, `rsync -X`, a snapshot of the file system) has the same UUID. Before both
//! are exported, remove it from one of them: `setfattr -x user.nvmf.uuid FILE`.

use rustix::fs::{AtFlags, StatxFlags, XattrFlags, fgetxattr, fsetxattr, statx};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use uuid::Uuid;

/// The attribute that holds a file's UUID, in its hyphenated form.
const ATTRIBUTE: &str = "user.nvmf.uuid";
/// The namespace of derived UUIDs (version 5).
const NAMESPACE: Uuid = Uuid::from_u128(0x7a6f_3a52_0c1d_4b6e_9d57_5b1f_2f0e_c184);
/// How many levels of loop devices are followed.
const LOOPS_MAX: u32 = 4;

/// The identity of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The same for the same file or device.
    pub uuid: Uuid,
    /// Its origin, which decides what it is stable over.
    pub source: IdentitySource,
}

/// The origin of an identity. What each is stable over: see the table of [`Disk::identity`](super::Disk::identity)'s
/// module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdentitySource {
    /// The file's extended attribute `user.nvmf.uuid`.
    Attribute,
    /// The file's inode number and birth time: it has no attribute, and none can be written.
    Birth,
    /// The file's inode number and file system: there is no birth time either.
    Inode,
    /// The block device's WWID, device-mapper UUID or MD UUID, with the start of the partition.
    Device,
    /// The id of an RBD image, with its pool and cluster.
    Image,
    /// Random, for memory and null disks.
    Random,
}

impl Identity {
    /// The identity that the file or device of this path has, or gets when a disk is opened there; `None` for a device
    /// without a persistent identifier. Changes nothing, and opens no device.
    ///
    /// # Errors
    /// The path cannot be looked at, a file not be opened for reading, or its attribute holds no UUID.
    pub fn of_path(path: &Path) -> io::Result<Option<Self>> {
        let metadata = std::fs::metadata(path)?;
        if metadata.file_type().is_block_device() {
            return of_device_number(metadata.rdev(), false);
        }
        if metadata.file_type().is_char_device() {
            return of_drive(metadata.rdev());
        }
        of_regular_file(&File::open(path)?, false).map(Some)
    }
}

fn derived(source: IdentitySource, from: &str) -> Identity {
    Identity { uuid: Uuid::new_v5(&NAMESPACE, from.as_bytes()), source }
}

/// The identity of an RBD image.
pub(super) fn of_image(name: &str) -> Identity {
    derived(IdentitySource::Image, &format!("rbd:{name}"))
}

/// The identity of a disk that does not outlive the process.
pub(super) fn random() -> Identity {
    Identity { uuid: Uuid::new_v4(), source: IdentitySource::Random }
}

/// The identity of a file or block device; `None` for a device without a persistent identifier.
pub(super) fn of_file(file: &File, writable: bool) -> io::Result<Option<Identity>> {
    let metadata = file.metadata()?;
    if metadata.file_type().is_block_device() {
        return of_device_number(metadata.rdev(), writable);
    }
    if metadata.file_type().is_char_device() {
        return of_drive(metadata.rdev());
    }
    of_regular_file(file, writable).map(Some)
}

fn of_device_number(number: u64, writable: bool) -> io::Result<Option<Identity>> {
    let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
    of_device(Path::new(&format!("/sys/dev/block/{major}:{minor}")), writable, LOOPS_MAX)
}

/// That of the block device of the same namespace: a disk stays the same, whichever of the two is served.
fn of_drive(number: u64) -> io::Result<Option<Identity>> {
    super::nvme::block_device_number(number).map_or(Ok(None), |number| of_device_number(number, false))
}

fn of_regular_file(file: &File, writable: bool) -> io::Result<Identity> {
    let born = of_inode(file)?;
    let stored = |uuid| Identity { uuid, source: IdentitySource::Attribute };
    match attribute(file) {
        Ok(Some(uuid)) => return Ok(stored(uuid)),
        Ok(None) if writable => {}
        Err(error) if error.kind() != io::ErrorKind::Unsupported => return Err(error),
        _ => return Ok(born),
    }
    // The same UUID as a read-only export of the file had before. But an inode number alone may be reused.
    let uuid = if born.source == IdentitySource::Birth { born.uuid } else { Uuid::new_v4() };
    match fsetxattr(file, ATTRIBUTE, uuid.to_string().as_bytes(), XattrFlags::CREATE) {
        Ok(()) => file.sync_all().map(|()| stored(uuid)),
        Err(Errno::EXIST) => Ok(attribute(file)?.map_or(born, stored)),
        Err(
            Errno::OPNOTSUPP
            | Errno::NOSYS
            | Errno::PERM
            | Errno::ACCESS
            | Errno::ROFS
            | Errno::NOSPC
            | Errno::DQUOT,
        ) => Ok(born),
        Err(errno) => Err(errno.into()),
    }
}

/// The UUID in the file's attribute, if it has one.
fn attribute(file: &File) -> io::Result<Option<Uuid>> {
    let mut value = [0; 64];
    let length = match fgetxattr(file, ATTRIBUTE, &mut value) {
        Ok(length) => length,
        Err(Errno::NODATA) => return Ok(None),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Err(io::ErrorKind::Unsupported.into()),
        Err(Errno::RANGE) => return Err(not_a_uuid()),
        Err(errno) => return Err(errno.into()),
    };
    Uuid::try_parse_ascii(value[..length].trim_ascii()).map(Some).map_err(|_| not_a_uuid())
}

fn not_a_uuid() -> io::Error {
    let message =
        format!("the attribute {ATTRIBUTE} holds no UUID: remove it (setfattr -x {ATTRIBUTE} FILE)");
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// The identity that follows from a file's inode. The file system's identifier is used only where there is no birth
/// time: for some file systems it is the device number, which depends on the order in which devices are found.
fn of_inode(file: &File) -> io::Result<Identity> {
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    match statx(file, c"", AtFlags::EMPTY_PATH, wanted) {
        Ok(inode) if StatxFlags::from_bits_retain(inode.stx_mask).contains(wanted) => {
            let (number, born) = (inode.stx_ino, inode.stx_btime);
            let from = format!("inode {number} born {}.{:09}", born.tv_sec, born.tv_nsec);
            Ok(derived(IdentitySource::Birth, &from))
        }
        Ok(_) | Err(Errno::NOSYS) => {
            let (number, system) = (file.metadata()?.ino(), rustix::fs::fstatvfs(file)?.f_fsid);
            Ok(derived(IdentitySource::Inode, &format!("inode {number} of file system {system:x}")))
        }
        Err(errno) => Err(errno.into()),
    }
}

/// The identity of the block device whose folder in sysfs this is.
fn of_device(folder: &Path, writable: bool, loops: u32) -> io::Result<Option<Identity>> {
    let read = |name: &str| {
        let text = std::fs::read_to_string(folder.join(name)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    if read("partition").is_some() {
        let Some(start) = read("start") else { return Ok(None) };
        let whole = of_device(&folder.join(".."), writable, loops)?;
        return Ok(whole.map(|whole| part(whole, &format!("partition at sector {start}"))));
    }
    if let Some(path) = read("loop/backing_file") {
        // The file may have been deleted, or belong to another mount namespace.
        let Some(file) = (loops > 0).then(|| File::open(&path).ok()).flatten() else { return Ok(None) };
        let metadata = file.metadata()?;
        let whole = if metadata.file_type().is_block_device() {
            let number = metadata.rdev();
            let name = format!("{}:{}", nix::sys::stat::major(number), nix::sys::stat::minor(number));
            of_device(&folder.with_file_name(name), writable, loops - 1)?
        } else {
            Some(of_regular_file(&file, writable)?)
        };
        let offset = read("loop/offset").filter(|offset| offset != "0");
        return Ok(whole.map(|whole| match offset {
            Some(offset) => part(whole, &format!("from byte {offset} on")),
            None => whole,
        }));
    }
    let names = ["wwid", "device/wwid", "dm/uuid", "md/uuid"];
    let named = names.iter().find_map(|name| read(name).map(|text| format!("{name} {text}")));
    Ok(named.map(|named| derived(IdentitySource::Device, &named)))
}

/// The identity of a part of a device or file.
fn part(whole: Identity, which: &str) -> Identity {
    Identity { uuid: Uuid::new_v5(&whole.uuid, which.as_bytes()), ..whole }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn write(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn identity(path: &Path, writable: bool) -> Identity {
        of_file(&File::open(path).unwrap(), writable).unwrap().unwrap()
    }

    /// Whether the file system of the temporary folder keeps user attributes.
    fn has_attributes(path: &Path) -> bool {
        let found = attribute(&File::open(path).unwrap());
        !matches!(found, Err(error) if error.kind() == io::ErrorKind::Unsupported)
    }

    #[test]
    fn a_file_keeps_its_uuid_when_renamed_and_a_copy_gets_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let [path, renamed, copy] =
            ["disk.img", "renamed.img", "copy.img"].map(|name| folder.path().join(name));
        write(&path, "content");
        let read_only = identity(&path, false);
        let first = identity(&path, true);
        assert_eq!(identity(&path, true), first);
        std::fs::rename(&path, &renamed).unwrap();
        assert_eq!(identity(&renamed, false), first);
        assert_eq!(Identity::of_path(&renamed).unwrap(), Some(first));
        std::fs::write(&copy, std::fs::read(&renamed).unwrap()).unwrap();
        assert_ne!(identity(&copy, true).uuid, first.uuid);
        if has_attributes(&copy) {
            assert_eq!(first.source, IdentitySource::Attribute);
            assert_ne!(read_only.source, IdentitySource::Attribute, "a read-only disk is not written to");
        }
        if read_only.source == IdentitySource::Birth {
            assert_eq!(read_only.uuid, first.uuid, "what it was known by before it was writable");
        }
    }

    #[test]
    fn a_file_system_without_attributes_gives_a_derived_uuid() {
        // proc keeps neither attributes nor times of birth.
        let first = identity(Path::new("/proc/version"), true);
        assert_eq!(first.source, IdentitySource::Inode);
        assert_eq!(identity(Path::new("/proc/version"), true), first);
        assert_ne!(identity(Path::new("/proc/cmdline"), true).uuid, first.uuid);
    }

    #[test]
    fn an_invalid_attribute_is_an_error_that_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        write(&path, "");
        if !has_attributes(&path) {
            eprintln!("not checked: {} keeps no user attributes", folder.path().display());
            return;
        }
        for value in ["not a uuid", &"long".repeat(100)] {
            let file = File::open(&path).unwrap();
            fsetxattr(&file, ATTRIBUTE, value.as_bytes(), XattrFlags::empty()).unwrap();
            let error = of_file(&file, true).unwrap_err().to_string();
            assert!(error.contains("setfattr -x user.nvmf.uuid"), "{error}");
        }
    }

    /// A folder like `/sys/dev/block`, of links into a tree of devices.
    fn sysfs(root: &Path, device: &str, number: &str) -> std::path::PathBuf {
        let (target, link) = (root.join("devices").join(device), root.join("block").join(number));
        std::fs::create_dir_all(&target).unwrap();
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(&target, &link).unwrap();
        link
    }

    #[test]
    fn a_device_is_identified_by_the_kernels_identifier_and_its_partition() {
        let root = tempfile::tempdir().unwrap();
        let id = |folder: &Path| of_device(folder, true, LOOPS_MAX).unwrap();
        let nvme = sysfs(root.path(), "nvme0n1", "259:0");
        assert_eq!(id(&nvme), None, "no name, no identity");
        write(&nvme.join("wwid"), "eui.0025385b71b0f6c1\n");
        let whole = id(&nvme).unwrap();
        assert_eq!(whole.source, IdentitySource::Device);
        let renumbered = sysfs(root.path(), "nvme7n1", "259:9");
        write(&renumbered.join("wwid"), "eui.0025385b71b0f6c1\n");
        assert_eq!(id(&renumbered), Some(whole));

        let [first, second] = ["nvme0n1/nvme0n1p1", "nvme0n1/nvme0n1p2"].map(|name| {
            let folder = sysfs(root.path(), name, name.rsplit('/').next().unwrap());
            write(&folder.join("partition"), "1\n");
            folder
        });
        write(&first.join("start"), "2048\n");
        write(&second.join("start"), "4096\n");
        let (first, second) = (id(&first).unwrap().uuid, id(&second).unwrap().uuid);
        assert!(first != second && first != whole.uuid && second != whole.uuid);

        let mapped = sysfs(root.path(), "dm-0", "254:0");
        write(&mapped.join("dm/uuid"), "\n");
        assert_eq!(id(&mapped), None, "device-mapper has no UUID for it");
        write(&mapped.join("dm/uuid"), "LVM-oGZ1\n");
        assert_eq!(id(&mapped).unwrap().source, IdentitySource::Device);
    }

    #[test]
    fn a_loop_device_has_its_files_identity() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("disk.img");
        write(&file, "content");
        let folder = sysfs(root.path(), "loop0", "7:0");
        write(&folder.join("loop/backing_file"), &format!("{}\n", file.display()));
        write(&folder.join("loop/offset"), "0\n");
        let id = || of_device(&folder, true, LOOPS_MAX).unwrap();
        assert_eq!(id(), Some(identity(&file, true)));
        write(&folder.join("loop/offset"), "1048576\n");
        assert_ne!(id().unwrap().uuid, identity(&file, true).uuid);
        write(&folder.join("loop/backing_file"), "/nowhere/disk.img (deleted)\n");
        assert_eq!(id(), None);
    }
}
