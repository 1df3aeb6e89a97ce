//! Operations on files: their steps, their bounce buffers, their failures.

use super::{BOUNCE_LEN, Device, Devices, slot};
use crate::disk::LockId;
use crate::uring::Event;
use crate::uring::file::{Command, FileOperation, Next, is_interrupted};
use nvmf_block::{BlockError, BlockOp, Buffer, Completion, Tag};
use nvmf_memory::BufferIndex;

/// An operation on a file or block device.
pub(super) struct Operation {
    pub(super) tag: Tag,
    /// The device's slot, in [`Devices::devices`] and in the ring's table of files.
    pub(super) device: u32,
    pub(super) file: FileOperation,
    pub(super) bounce: Option<BufferIndex>,
    /// What it has locked.
    pub(super) lock: Option<LockId>,
}

impl Devices {
    /// Does an operation's next step. `Some`: it is complete.
    pub(super) fn go_on(&mut self, index: usize, next: Next) -> Option<Completion> {
        match next {
            Next::Continue if self.operation(index).file.is_sharing() => self.share(index),
            Next::Continue => {
                let operation = self.operation(index);
                let (device, command) = (operation.device, operation.file.command());
                if command == Command::Fdatasync && !self.join_sync(index) {
                    return None;
                }
                self.push(index, device, command);
                None
            }
            Next::NeedBounce => {
                self.awaiting_bounce.push_back(index);
                self.hand_out_bounce();
                None
            }
            Next::Done(result) => Some(self.finish(index, result)),
        }
    }

    pub(super) fn operation(&mut self, index: usize) -> &mut Operation {
        self.operations[index].as_mut().expect("the kernel completes what is in flight, once")
    }

    fn device_of(&mut self, index: usize) -> &mut Device {
        let slot = self.operation(index).device;
        self.devices[slot as usize].as_mut().expect("a device stays until its last operation completed")
    }

    /// Gives bounce buffers to the operations that wait for one, as far as there are any.
    fn hand_out_bounce(&mut self) {
        while self.bounce.available() > 0 {
            let Some(at) = (0..self.awaiting_bounce.len()).find(|&at| self.may_take_bounce(at)) else {
                return;
            };
            let index = self.awaiting_bounce.remove(at).expect("it was found there");
            let bounce = self.bounce.take().expect("one is available");
            let buffer =
                Buffer { region: self.bounce_region, offset: self.bounce.offset(bounce), len: BOUNCE_LEN };
            self.device_of(index).bounces += 1;
            let operation = self.operations[index].as_mut().expect("what waits is in flight");
            operation.bounce = Some(bounce);
            operation.file.give_bounce(buffer, self.ring.regions());
            self.go_on(index, Next::Continue);
        }
    }

    /// The rule for the depth: a device has at most as many buffers as are free.
    fn may_take_bounce(&mut self, waiting: usize) -> bool {
        let index = self.awaiting_bounce[waiting];
        self.attached == 1 || self.device_of(index).bounces < self.bounce.available()
    }

    fn put_bounce(&mut self, index: usize) {
        if let Some(bounce) = self.operation(index).bounce.take() {
            self.device_of(index).bounces -= 1;
            self.bounce.put(bounce);
        }
    }

    fn finish(&mut self, index: usize, result: Result<(), BlockError>) -> Completion {
        self.put_bounce(index);
        let operation = self.operations[index].take().expect("it is in flight");
        self.free.push(index);
        self.hand_out_bounce();
        if let BlockOp::Share { source, .. } = operation.file.op() {
            self.on_over(slot(source), None);
        }
        self.on_over(operation.device, operation.lock);
        Completion { tag: operation.tag, result }
    }

    /// Whether the operation begins a sync; otherwise it shares the next one.
    fn join_sync(&mut self, index: usize) -> bool {
        self.put_bounce(index);
        self.hand_out_bounce();
        self.device_of(index).syncs.join(index)
    }

    pub(super) fn on_event(&mut self, event: Event) -> Option<Completion> {
        let Event { index, result } = event;
        if self.operation(index).file.is_syncing() {
            self.on_synced(index, result)
        } else {
            self.on_result(index, result)
        }
    }

    /// A sync has ended, for one operation or several.
    fn on_synced(&mut self, index: usize, result: i32) -> Option<Completion> {
        let slot = self.operation(index).device;
        if is_interrupted(result) {
            self.push(index, slot, Command::Fdatasync);
            return None;
        }
        while let Some(index) = self.devices[slot as usize].as_mut().and_then(|device| device.syncs.take()) {
            let completion = self.on_result(index, result);
            self.ready.extend(completion);
        }
        if let Some(next) = self.devices[slot as usize].as_mut().and_then(|device| device.syncs.begin()) {
            self.push(next, slot, Command::Fdatasync);
        }
        self.ready.pop_front()
    }

    pub(super) fn on_result(&mut self, index: usize, result: i32) -> Option<Completion> {
        let mut file = self.operation(index).file;
        if file.is_sharing() {
            self.note_unshared(index, result);
        }
        let failure = file.failure(result);
        let mut next = file.on_result(result, self.ring.regions());
        self.operation(index).file = file;
        let disk = &self.device_of(index).disk;
        match next {
            // What cannot be shared is written.
            Next::Done(Err(_)) if file.is_sharing() => {}
            Next::Done(Err(error)) if error != BlockError::CompareFailed => {
                disk.record.on_failure(failure);
                if file.may_lose_cache(error) {
                    disk.record.on_cache_lost(failure);
                    next = Next::Done(Err(BlockError::CacheLost));
                }
            }
            // The kernel reports a loss once: the flushes after that one would succeed.
            Next::Done(Ok(())) if file.makes_durable() && disk.record.is_cache_lost() => {
                next = Next::Done(Err(BlockError::CacheLost));
            }
            // A long operation returns its bounce buffer after each piece if others wait.
            Next::Continue if !self.awaiting_bounce.is_empty() && file.has_bounce() && !file.is_syncing() => {
                self.operation(index).file.take_bounce();
                self.put_bounce(index);
                next = Next::NeedBounce;
            }
            _ => {}
        }
        self.go_on(index, next)
    }
}
