//! Files whose file system asks a server, of a network or in user space, which may hang.

use rustix::fs::{FsWord, fstatfs};
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex, PoisonError};

/// Such file systems, by the kernel's numbers (`linux/magic.h`).
const FILE_SYSTEMS: [FsWord; 10] = [
    0x6573_5546, // FUSE: GlusterFS, ceph-fuse, s3fs, ...
    0x6969,      // NFS
    0x00c3_6400, // CephFS
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB 2 and 3
    0x0102_1997, // 9p
    0x0bd0_0bd0, // Lustre
    0x0116_1970, // GFS2
    0x7461_636f, // OCFS2
    0x5346_414f, // AFS
];

/// A file of such a file system. Whoever submits to it, looks at it or closes it may be put to sleep until the server
/// answers, so workers, which have others to serve, do nothing of that themselves.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    file_system: u64,
    /// What workers have opened. It is closed by whoever drops the disk.
    opened: Arc<Mutex<Vec<File>>>,
}

impl Served {
    /// `None`: its file system asks nobody.
    pub(super) fn of(file: &File, metadata: &Metadata) -> Option<Self> {
        let kind = fstatfs(file).ok()?.f_type & 0xffff_ffff;
        FILE_SYSTEMS.contains(&kind).then(|| Self::on(metadata.dev()))
    }

    fn on(file_system: u64) -> Self {
        Self { file_system, opened: Arc::default() }
    }

    /// The file system, by the number of its device.
    pub(super) fn file_system(&self) -> u64 {
        self.file_system
    }

    /// Keeps a worker's file open until the disk is dropped.
    pub(crate) fn keep(&self, opened: File) {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).push(opened);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Disk, DiskSpec, Kind};
    use super::*;
    use crate::{Devices, DevicesOptions};
    use nvmf_block::{Backend as _, DeviceId};
    use std::path::Path;

    const DEVICE: DeviceId = DeviceId(1);

    /// A local file, treated as one that a server has.
    fn served(path: &Path) -> Disk {
        let spec = DiskSpec::Path { path: path.to_owned(), create: Some(4 << 20) };
        let mut disk = Disk::open(&spec, None, false).unwrap();
        let inner = Arc::get_mut(&mut disk.0).unwrap();
        let Kind::File(file) = &mut inner.kind else { unreachable!("it is a file") };
        assert!(file.served.is_none(), "its file system asks nobody");
        file.served = Some(Served::on(7));
        disk
    }

    fn descriptors(path: &Path) -> usize {
        let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        links.filter(|link| std::fs::read_link(link.path()).is_ok_and(|of| of == path)).count()
    }

    #[test]
    fn file_that_a_server_has_conforms() {
        let folder = tempfile::tempdir().unwrap();
        let disk = served(&folder.path().join("disk.img"));
        let mut devices = Devices::new(DevicesOptions { depth: 64 }).unwrap();
        devices.attach(DEVICE, &disk).unwrap();
        crate::devices::tests::conforms(&mut devices, DEVICE);
    }

    #[test]
    fn file_that_a_server_has_is_closed_by_who_drops_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("disk.img");
        let disk = served(&path);
        let mut workers = [4, 4].map(|depth| Devices::new(DevicesOptions { depth }).unwrap());
        for devices in &mut workers {
            devices.attach(DEVICE, &disk).unwrap();
            devices.detach(DEVICE);
            assert!(devices.geometry(DEVICE).is_none(), "it is gone");
        }
        drop(workers);
        assert_eq!(descriptors(&path), 3);
        drop(disk);
        assert_eq!(descriptors(&path), 0);
    }
}
