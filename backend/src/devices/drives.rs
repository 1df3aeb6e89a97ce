//! Namespaces of NVMe drives: a ring of their own, whose entries hold their commands.

use super::{Devices, DevicesError, slot};
use crate::disk::Kind;
use crate::uring::file::Command;
use crate::uring::nvme::Namespace;
use crate::uring::{Event, NvmeRing};
use nvmf_block::{Completion, DeviceId};
use std::os::fd::RawFd;

impl Devices {
    /// Makes a drive usable as device `id`.
    pub(super) fn set_drive(&mut self, id: DeviceId, file: RawFd) -> Result<(), DevicesError> {
        if self.drives.is_none() {
            let ring = NvmeRing::beside(&self.ring, self.depth as u32)?;
            self.ring.watch(ring.fd()).expect("there is room for it");
            self.drives = Some(Box::new(ring));
        }
        let ring = self.drives.as_mut().expect("it was just made");
        ring.set_file(slot(id), file).map_err(DevicesError::File)
    }

    /// Passes a command of operation `index` on.
    pub(super) fn push(&mut self, index: usize, slot: u32, command: Command) {
        match self.drive(slot) {
            None if self.is_image(slot) => self.push_to_image(index, slot, command),
            None => self.ring.push(index, slot, command, self.is_served(slot)),
            Some(drive) => {
                let ring = self.drives.as_mut().expect("it was made for the drive");
                ring.push_nvme(index, slot, drive, command);
            }
        }
    }

    fn is_image(&self, slot: u32) -> bool {
        self.devices[slot as usize].as_ref().is_some_and(|device| device.image().is_some())
    }

    /// Whether a submission may wait for its file system's server.
    fn is_served(&self, slot: u32) -> bool {
        let device = self.devices[slot as usize].as_ref();
        device.is_some_and(|device| matches!(&device.disk.kind, Kind::File(file) if file.served.is_some()))
    }

    fn drive(&self, slot: u32) -> Option<Namespace> {
        self.devices[slot as usize].as_ref().and_then(|device| device.drive)
    }

    /// What drives have completed, as far as there is room.
    pub(super) fn poll_all_drives(&mut self, completions: &mut Vec<Completion>) {
        let (room, mut found) = (completions.capacity(), false);
        while completions.len() < room
            && let Some(event) = self.drives.as_mut().and_then(|drives| drives.pop())
        {
            completions.extend(self.on_drive_event(event));
            found = true;
        }
        if let Some(drives) = &mut self.drives {
            drives.on_poll(found);
        }
    }

    /// Starts what was pushed, to files and to drives.
    pub(super) fn submit_all(&mut self) {
        self.ring.submit();
        if let Some(drives) = &mut self.drives {
            drives.submit();
        }
    }

    /// A drive's command is complete. `Some`: so is its operation.
    fn on_drive_event(&mut self, event: Event) -> Option<Completion> {
        let command = self.operation(event.index).file.command();
        self.on_event(Event { result: Namespace::result(event.result, command), ..event })
    }
}
