//! Images of Ceph clusters: their operations go to librbd, and come back by one descriptor for all of them.

use super::{Device, Devices, DevicesError};
use crate::disk::Kind;
use crate::disk::rbd::ImageDisk;
use crate::uring::Event;
use crate::uring::file::Command;
use nvmf_block::{BlockOp, Buffer, Completion};
use nvmf_rados::{Bytes, Completions, Request};
use std::time::{Duration, Instant};

/// How long dropping it waits for what is in flight, unless that was drained before.
const DROP_TIMEOUT: Duration = Duration::from_secs(10);

/// A worker's operations on images.
pub(super) struct Images {
    completions: Completions,
    drop_timeout: Duration,
    /// What the ring watches.
    watch: usize,
}

impl Images {
    fn drain(&mut self, deadline: Instant, mut on_complete: impl FnMut(usize)) {
        loop {
            while let Some((index, _)) = self.completions.take() {
                on_complete(index);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if self.completions.in_flight() == 0 || left.is_zero() {
                return;
            }
            if self.completions.may_sleep() {
                self.completions.wait(left);
            }
        }
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        self.drain(Instant::now() + self.drop_timeout, |_| ());
    }
}

impl Device {
    pub(super) fn image(&self) -> Option<&ImageDisk> {
        match &self.disk.kind {
            Kind::Image(disk) => Some(disk),
            Kind::File(_) | Kind::Ram(_) | Kind::Null => None,
        }
    }

    /// Whether it is a compare-and-write that the device does in one step, without a lock of ours.
    pub(super) fn compares_and_writes(&self, op: &BlockOp) -> bool {
        let BlockOp::CompareAndWrite { range, .. } = *op else { return false };
        let geometry = &self.disk.geometry;
        let place = geometry.byte_offset(range).zip(geometry.bytes_in(range));
        let is_done =
            |image: &ImageDisk| place.is_some_and(|(start, len)| image.compares_and_writes(start, len));
        self.image().is_some_and(is_done)
    }
}

impl Devices {
    /// Makes what images need, for the first of them.
    pub(super) fn prepare_for_images(&mut self) -> Result<(), DevicesError> {
        if self.images.is_none() {
            let completions = Completions::new(self.depth as u32).map_err(DevicesError::Wakeup)?;
            let watch = self.ring.watch(completions.fd()).expect("there is room for it");
            self.images = Some(Box::new(Images { completions, drop_timeout: DROP_TIMEOUT, watch }));
        }
        Ok(())
    }

    /// Passes a command of operation `index` on.
    pub(super) fn push_to_image(&mut self, index: usize, slot: u32, command: Command) {
        let op = self.operations[index].as_ref().expect("it is in flight").file.op();
        let device = self.devices[slot as usize].as_ref();
        let image = &device.and_then(Device::image).expect("it is on an image").image;
        let images = self.images.as_mut().expect("they were made for the image");
        let regions = self.ring.regions();
        let bytes = |buffer: Buffer| Bytes {
            memory: regions.memory(buffer.region),
            offset: buffer.offset,
            len: buffer.len,
        };
        let request = match command {
            Command::Read { at, into } => Request::Read { at, into: bytes(into) },
            Command::Write { at, from, .. } => Request::Write { at, from: bytes(from) },
            Command::CompareAndWrite { at, data } => Request::CompareAndWrite { at, data: bytes(data) },
            Command::Fallocate { at, len, .. } => match op {
                BlockOp::WriteZeroes { deallocate, .. } => {
                    Request::WriteZeroes { at, len, thick: !deallocate }
                }
                _ => Request::Discard { at, len },
            },
            Command::Fdatasync => Request::Flush,
            Command::Deallocate { .. } => unreachable!("an image has Fallocate"),
        };
        images.completions.submit(index, image, request);
    }

    /// What images have completed, as far as there is room.
    pub(super) fn poll_images(&mut self, completions: &mut Vec<Completion>) {
        let Some(images) = &mut self.images else { return };
        if self.ring.take_fired(images.watch) {
            images.completions.on_readable();
        }
        let room = completions.capacity();
        while completions.len() < room
            && let Some((index, result)) = self.images.as_mut().and_then(|images| images.completions.take())
        {
            completions.extend(self.on_image_event(index, result));
        }
    }

    /// Whether no image has completed anything; the descriptor says when one has.
    pub(super) fn may_sleep_for_images(&self) -> bool {
        self.images.as_ref().is_none_or(|images| images.completions.may_sleep())
    }

    /// Whether all that is in flight is on images, which take hundreds of microseconds.
    #[must_use]
    pub fn is_far(&self) -> bool {
        let on_images = self.images.as_ref().map_or(0, |images| images.completions.in_flight());
        on_images > 0 && on_images == self.in_flight()
    }

    /// Waits for images, up to `deadline`, and discards what completes.
    pub(super) fn drain_images(&mut self, deadline: Instant) {
        let Some(images) = &mut self.images else { return };
        images.drop_timeout = Duration::ZERO;
        images.drain(deadline, |index| self.operations[index] = None);
    }

    /// An image's command is complete. `Some`: so is its operation.
    fn on_image_event(&mut self, index: usize, result: i64) -> Option<Completion> {
        let operation = self.operation(index);
        let (slot, command) = (operation.device, operation.file.command());
        if result == -i64::from(libc::ESHUTDOWN)
            && let Some(disk) = self.devices[slot as usize].as_ref().and_then(Device::image)
        {
            disk.image.cluster().on_fenced();
        }
        let result = match (i32::try_from(result).unwrap_or(-libc::EIO), command) {
            // As a file tells it.
            (0, Command::Write { from, .. }) => i32::try_from(from.len).unwrap_or(i32::MAX),
            // It has become shorter.
            (result, Command::Read { .. } | Command::Write { .. }) if result == -libc::EINVAL => 0,
            (result, _) => result,
        };
        self.on_event(Event { index, result })
    }
}
