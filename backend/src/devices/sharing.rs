//! Operations that share blocks: which devices may, and their way through a thread.

use super::{Device, Devices, slot};
use crate::disk::sharing::Share;
use crate::disk::{Kind, Note};
use crate::uring::file::is_interrupted;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nvmf_block::{BlockOp, BlockRange, Completion, DeviceId};
use std::sync::Arc;
use std::time::Instant;

impl Devices {
    /// As [`nvmf_block::Backend::sharing_unit`]: two files are not tried again after a lasting refusal.
    pub(super) fn unit_of_pair(&self, source: DeviceId, to: DeviceId) -> Option<u32> {
        let device = |id| self.device(id).filter(|device| !device.closing);
        let (source, to) = (device(source)?, device(to)?);
        let place = |device: &Device| match &device.disk.kind {
            Kind::File(file) => file.place,
            Kind::Image(_) | Kind::Ram(_) | Kind::Null => None,
        };
        let (from, at) = (place(source)?, place(to)?);
        let block_size = to.disk.geometry.block_size;
        let may = source.disk.geometry.block_size == block_size
            && !to.disk.geometry.read_only
            && !to.unshared.contains(&source.id);
        may.then(|| from.unit_with(at, block_size))
    }

    /// Whether `range` of `source` can be tried.
    pub(super) fn may_share(&self, source: DeviceId, to: DeviceId, range: BlockRange) -> bool {
        self.unit_of_pair(source, to).is_some()
            && self.device(source).is_some_and(|device| device.disk.geometry.contains(range))
    }

    /// Has a thread do it. `Some`: there can be none.
    pub(super) fn share(&mut self, index: usize) -> Option<Completion> {
        let operation = self.operation(index);
        let BlockOp::Share { range, source, from, .. } = operation.file.op() else { return None };
        let to = operation.device;
        let to =
            self.devices[to as usize].as_ref().expect("a device stays until its last operation completed");
        let source = self.devices[slot(source) as usize].as_ref().expect("likewise");
        let block_size = u64::from(to.disk.geometry.block_size);
        let share = Share {
            index,
            device: to.id,
            source: Arc::clone(&source.disk),
            from: from * block_size,
            to: Arc::clone(&to.disk),
            at: range.start * block_size,
            len: range.blocks * block_size,
        };
        let Err(_) = self.sharers.share(share) else { return None };
        self.on_result(index, -libc::EOPNOTSUPP)
    }

    /// Remembers that these two devices never share blocks, if that is what the result says.
    pub(super) fn note_unshared(&mut self, index: usize, result: i32) {
        let passes = matches!(-result, libc::ENOSPC | libc::EDQUOT | libc::EIO | libc::ENOMEM);
        let operation = self.operation(index);
        let (BlockOp::Share { source, .. }, to) = (operation.file.op(), operation.device) else { return };
        if result >= 0 || passes || is_interrupted(result) {
            return;
        }
        if let Some(to) = self.devices[to as usize].as_mut().filter(|to| !to.unshared.contains(&source)) {
            to.unshared.push(source);
        }
    }

    /// A device is gone, and its name with it.
    pub(super) fn forget_unshared(&mut self, id: DeviceId) {
        self.devices.iter_mut().flatten().for_each(|device| device.unshared.retain(|&other| other != id));
    }

    /// Waits for the threads, up to `deadline`: what they have done is over.
    pub(super) fn drain_sharers(&mut self, deadline: Instant) {
        loop {
            while let Some((_, note)) = self.mail.take() {
                if let Note::Shared { index, .. } = note {
                    self.operations[index] = None;
                }
            }
            let any = self.operations.iter().flatten().any(|operation| operation.file.is_sharing());
            let left = deadline.saturating_duration_since(Instant::now());
            if !any || left.is_zero() {
                return;
            }
            let mut readable = [PollFd::new(self.mail.borrowed(), PollFlags::POLLIN)];
            let _ = poll(&mut readable, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
        }
    }
}
