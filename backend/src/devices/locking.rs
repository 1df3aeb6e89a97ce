//! Ranges that are locked for a compare-and-write: which operations have to wait, and what waits for a lock.

use super::{Device, Devices, slot};
use crate::disk::{LockId, Note};
use crate::uring::Event;
use nvmf_block::{BlockOp, BlockRange, Completion, DeviceId, Tag};

/// A locked range of a device, which nothing but the lock's owner may begin to change.
#[derive(Debug)]
pub(super) struct LockedRange {
    lock: LockId,
    range: BlockRange,
    /// Nothing of this worker's that changes it is under way, and the lock's owner knows.
    quiet: bool,
}

impl LockedRange {
    /// One that was locked before the device was attached.
    pub(super) fn before_us((lock, range): (LockId, BlockRange)) -> Self {
        Self { lock, range, quiet: true }
    }
}

/// An operation that waits for its lock: a compare-and-write, or another change that found its range locked. Its range
/// and buffer were checked.
pub(super) struct AwaitsLock {
    lock: LockId,
    tag: Tag,
    device: DeviceId,
    op: BlockOp,
    start: u64,
    len: usize,
}

impl Device {
    /// Whether an operation locks its range, whoever uses that: a compare-and-write that the device does not do in one
    /// step.
    pub(super) fn locks(&self, op: &BlockOp) -> bool {
        matches!(op, BlockOp::CompareAndWrite { .. }) && !self.compares_and_writes(op)
    }

    /// Whether an operation that would lock nothing changes a range that is locked.
    pub(super) fn keeps_out(&self, op: &BlockOp) -> bool {
        // Mostly there are none.
        !self.locked.is_empty()
            && op.writes()
            && !self.locks(op)
            && op.range().is_some_and(|range| self.locked.iter().any(|locked| locked.range.overlaps(range)))
    }
}

impl Devices {
    /// Whether an operation has to be refused for now. The first change of a device that finds its range locked waits for
    /// a lock itself, so it has its turn however many compare-and-writes come after it; those behind it are refused.
    pub(super) fn is_held_up(&self, device: &Device, op: &BlockOp) -> bool {
        let waits = |other: &AwaitsLock| other.device == device.id && !device.locks(&other.op);
        device.keeps_out(op) && self.awaiting_lock.iter().any(waits)
    }

    /// Asks for the lock of an operation. It goes on when the lock is granted.
    pub(super) fn await_lock(&mut self, tag: Tag, device: DeviceId, op: BlockOp, start: u64, len: usize) {
        let range = op.range().expect("it has one");
        let Some(of) = self.device_mut(device) else { return };
        of.in_flight += 1;
        let lock = of.disk.locks.ask(of.member, range);
        self.awaiting_lock.push(AwaitsLock { lock, tag, device, op, start, len });
        self.read_mail();
    }

    /// Does what other workers, and this one, have said of locks.
    pub(super) fn read_mail(&mut self) {
        while let Some((id, note)) = self.mail.take() {
            match note {
                Note::Locked { lock, range } => {
                    if let Some(device) = self.device_mut(id) {
                        device.locked.push(LockedRange { lock, range, quiet: false });
                        self.settle_locks(slot(id));
                    }
                }
                Note::Released(lock) => {
                    if let Some(device) = self.device_mut(id) {
                        device.locked.retain(|locked| locked.lock != lock);
                    }
                }
                Note::Shared { index, result } => {
                    let completion = self.on_event(Event { index, result });
                    self.ready.extend(completion);
                }
                Note::Granted(lock) => {
                    let at = self.awaiting_lock.iter().position(|op| op.lock == lock && op.device == id);
                    if let Some(at) = at {
                        let AwaitsLock { tag, op, start, len, .. } = self.awaiting_lock.remove(at);
                        if let Some(result) = self.begin(tag, id, op, start, len, Some(lock)) {
                            self.ready.push_back(Completion { tag, result });
                            self.on_over(slot(id), Some(lock));
                        } else {
                            // What began it has counted it once more.
                            self.device_mut(id).into_iter().for_each(|device| device.in_flight -= 1);
                        }
                    }
                }
            }
        }
    }

    /// An operation on a device with locked ranges is over: those that waited for it may be quiet now.
    pub(super) fn settle_locks(&mut self, slot: u32) {
        let Some(device) = self.devices[slot as usize].as_ref() else { return };
        let changes = |op: &BlockOp, range| op.writes() && op.range().is_some_and(|of| of.overlaps(range));
        for at in 0..device.locked.len() {
            let LockedRange { lock, range, quiet } = device.locked[at];
            let on_ring = || {
                let here = self.operations.iter().flatten().filter(|operation| operation.device == slot);
                here.map(|operation| operation.file.op())
            };
            let in_memory = || self.at_once.iter().filter(|operation| operation.is_on(slot)).map(|o| o.op());
            if !quiet && !on_ring().chain(in_memory()).any(|op| changes(&op, range)) {
                device.disk.locks.on_quiet(device.member, lock);
                self.quieted.push(lock);
            }
        }
        while let Some(lock) = self.quieted.pop() {
            let device = self.devices[slot as usize].as_mut().expect("it was there");
            device
                .locked
                .iter_mut()
                .filter(|locked| locked.lock == lock)
                .for_each(|locked| locked.quiet = true);
        }
    }
}
