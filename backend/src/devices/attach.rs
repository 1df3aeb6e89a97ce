//! Attaching disks, and letting go of their files.

use super::locking::LockedRange;
use super::syncs::Syncs;
use super::{Device, Devices, DevicesError, slot};
use crate::disk::{Disk, FileDisk, Inner, Kind};
use nvmf_block::DeviceId;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

/// A disk that was opened for one worker.
#[derive(Debug)]
pub struct OpenedDisk {
    disk: Disk,
    /// Its file, opened once more.
    own: Option<File>,
}

impl Disk {
    /// Whether [`Disk::for_worker`] opens a file, and so may block for as long as the disk does.
    #[must_use]
    pub fn is_opened_anew(&self) -> bool {
        matches!(self.0.kind, Kind::File(_))
    }

    /// Opens it for one worker, for [`Devices::attach_opened`]. Blocks for as long as the disk does.
    ///
    /// # Errors
    /// [`DevicesError::OpenAgain`].
    pub fn for_worker(&self) -> Result<OpenedDisk, DevicesError> {
        let own = match &self.0.kind {
            Kind::File(file) => file.for_worker().map_err(DevicesError::OpenAgain)?,
            Kind::Image(_) | Kind::Ram(_) | Kind::Null => None,
        };
        Ok(OpenedDisk { disk: self.clone(), own })
    }
}

impl OpenedDisk {
    /// The ring holds its file now, if it was attached.
    fn let_go(self, is_attached: bool) {
        let Self { disk, mut own } = self;
        if let (Kind::File(FileDisk { served: Some(served), .. }), true) = (&disk.0.kind, is_attached) {
            own.take().into_iter().for_each(|own| served.keep(own));
        }
        let_go(disk.0, own);
    }
}

/// To close a file of a server takes as long as that takes to answer, which a worker does not wait for.
pub(super) fn let_go(disk: Arc<Inner>, own: Option<File>) {
    let is_served = matches!(&disk.kind, Kind::File(FileDisk { served: Some(_), .. }));
    if is_served && (own.is_some() || Arc::strong_count(&disk) == 1) {
        let _ = std::thread::Builder::new().name("close-file".into()).spawn(move || drop((disk, own)));
    }
}

impl Devices {
    /// Attaches a disk as device `id`.
    ///
    /// # Errors
    /// [`DevicesError::Device`], [`DevicesError::OpenAgain`], [`DevicesError::File`].
    pub fn attach(&mut self, id: DeviceId, disk: &Disk) -> Result<(), DevicesError> {
        self.attach_opened(id, disk.for_worker()?)
    }

    /// The same with a disk that was opened for this worker elsewhere: nothing of this waits for the disk.
    ///
    /// # Errors
    /// [`DevicesError::Device`], [`DevicesError::File`].
    pub fn attach_opened(&mut self, id: DeviceId, opened: OpenedDisk) -> Result<(), DevicesError> {
        let attached = self.add(id, &opened);
        opened.let_go(attached.is_ok());
        attached
    }

    fn add(&mut self, id: DeviceId, opened: &OpenedDisk) -> Result<(), DevicesError> {
        let OpenedDisk { disk, own } = opened;
        let index = slot(id) as usize;
        if self.devices.get(index).is_some_and(Option::is_some) {
            return Err(DevicesError::Device(id));
        }
        if let Kind::File(file) = &disk.0.kind {
            // What the ring holds stays open and locked.
            self.set_files(id, file, own.as_ref()).inspect_err(|_| self.clear_files(slot(id)))?;
        }
        if let Kind::Image(_) = &disk.0.kind {
            self.prepare_for_images()?;
        }
        if self.devices.len() <= index {
            self.devices.resize_with(index + 1, || None);
        }
        let memory = match &disk.0.kind {
            // Borrowed reads count references: each worker has its own counter.
            Kind::Ram(disk) => Some(disk.memory().share()),
            Kind::File(_) | Kind::Image(_) | Kind::Null => None,
        };
        let drive = match &disk.0.kind {
            Kind::File(file) => file.drive.as_ref().map(|drive| drive.namespace),
            Kind::Image(_) | Kind::Ram(_) | Kind::Null => None,
        };
        // It was opened before it got the length that it has now.
        let latest = self.expected.remove(&id).flatten();
        let disk = latest.unwrap_or_else(|| disk.clone()).0;
        let (member, locked) = disk.locks.join(id, &self.mail);
        self.devices[index] = Some(Device {
            id,
            disk,
            memory,
            drive,
            in_flight: 0,
            bounces: 0,
            syncs: Syncs::default(),
            locked: locked.into_iter().map(LockedRange::before_us).collect(),
            member,
            unshared: Vec::new(),
            closing: false,
        });
        self.attached += 1;
        Ok(())
    }

    /// Device `id` is to be attached: until it is, or is detached, operations for it fail with
    /// [`BlockError::Path`](nvmf_block::BlockError::Path), and not as those for a device that is gone.
    pub fn expect(&mut self, id: DeviceId) {
        self.expected.insert(id, None);
    }

    /// Gives a disk's files to the ring.
    fn set_files(&mut self, id: DeviceId, file: &FileDisk, own: Option<&File>) -> Result<(), DevicesError> {
        let slot = slot(id);
        // The ring holds on to both: to the one with the lock, so that no other process serves the disk while the
        // kernel still has operations of this one, even if it was killed.
        let used = own.unwrap_or(&file.file);
        self.ring.set_file(slot, used.as_raw_fd()).map_err(DevicesError::File)?;
        self.ring.hold_file(slot, file.file.as_raw_fd()).map_err(DevicesError::File)?;
        // Threads of the kernel that wait for a disk that hangs leave others to the rest.
        self.ring.allow_waiting(self.depth as u32).map_err(DevicesError::File)?;
        if file.drive.is_some() {
            self.set_drive(id, file.file.as_raw_fd())?;
        }
        Ok(())
    }

    /// The kernel releases the files of a slot. If this fails, the next attach to the slot replaces them.
    pub(super) fn clear_files(&mut self, slot: u32) {
        let _ = self.ring.set_file(slot, -1);
        let _ = self.ring.hold_file(slot, -1);
    }
}
