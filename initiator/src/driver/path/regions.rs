//! Memory that operations use, as one path's transport knows it, and the parts of operations that move it.

use super::queue::Second;
use super::{Owner, Path};
use crate::driver::Op;
use crate::transport::{Data, Payload, Transport, TransportError};
use core::time::Duration;
use nvmf_block::{Buffer, RegionId};
use nvmf_host::io::{Part, PartData};
use nvmf_memory::Memory;

pub(super) struct Region<R> {
    pub(super) memory: Memory,
    pub(super) region: R,
}

impl<T: Transport> Path<T> {
    pub(in crate::driver) fn register(
        &mut self,
        id: RegionId,
        memory: &Memory,
    ) -> Result<(), TransportError> {
        let region = self.transport.register(memory)?;
        let index = usize::from(id.0);
        if self.regions.len() <= index {
            self.regions.resize_with(index + 1, || None);
        }
        self.deregister(id);
        self.regions[index] = Some(Region { memory: memory.clone(), region });
        Ok(())
    }

    /// Whether a buffer lies in its region.
    pub(in crate::driver) fn holds(&self, buffer: &Buffer) -> bool {
        let region = self.regions.get(usize::from(buffer.region.0)).and_then(Option::as_ref);
        region.is_some_and(|region| region.memory.contains(buffer.offset, buffer.len))
    }

    /// Sends a part of an operation on this queue; `false`: it was not sent.
    pub(in crate::driver) fn send_part(
        &mut self,
        now: Duration,
        queue: usize,
        index: u32,
        op: &Op,
        part: &Part,
    ) -> bool {
        // It was found to lie in its region.
        let user = op.buffer().and_then(|buffer| {
            let region = self.regions.get(usize::from(buffer.region.0))?.as_ref()?;
            Some((&region.region, buffer.offset))
        });
        let user_data = |at: usize, len, payload| {
            user.map_or(Data::None, |(region, start)| Data::User { region, offset: start + at, len, payload })
        };
        let data = match part.data {
            PartData::None => Data::None,
            PartData::Range { ref bytes, in_capsule } => Data::Bytes { bytes, in_capsule },
            PartData::Source { ref bytes, in_capsule } => Data::Bytes { bytes, in_capsule },
            PartData::FromController { offset, len } => user_data(offset, len, Payload::FromController),
            PartData::ToController { offset, len, in_capsule } => {
                let payload = if in_capsule { Payload::InCapsule } else { Payload::ToController };
                user_data(offset, len, payload)
            }
        };
        let deadline = Some(now.saturating_add(self.config.io_timeout));
        let Some(Some(pair)) = self.queues.get_mut(queue) else { return false };
        match pair.send(&mut self.transport, Owner::Operation(index), &part.command, data, deadline) {
            Ok(()) => {
                self.on_sent(now);
                true
            }
            Err(refused) => {
                self.on_refused(now, queue, refused);
                false
            }
        }
    }

    /// Sends the second part of a pair, whose first was sent on this queue just now: at once, or as soon as it can be, before anything
    /// else.
    pub(in crate::driver) fn send_second(
        &mut self,
        now: Duration,
        queue: usize,
        index: u32,
        op: Op,
        part: Part,
    ) {
        if !self.send_part(now, queue, index, &op, &part)
            && let Some(Some(pair)) = self.queues.get_mut(queue)
        {
            pair.second = Some(Second { index, op, part });
            self.seconds += 1;
        }
    }

    /// Sends the second parts that could not be sent with their first.
    pub(in crate::driver) fn send_seconds(&mut self, now: Duration) {
        if self.seconds == 0 {
            return;
        }
        for queue in 0..self.queues.len() {
            let second = self.queues[queue].as_mut().and_then(|queue| queue.second.take());
            if let Some(Second { index, op, part }) = second {
                self.seconds -= 1;
                self.send_second(now, queue, index, op, part);
            }
        }
    }

    /// Whether both commands of a pair find room in an I/O queue.
    pub(in crate::driver) fn has_room_for_pairs(&self) -> bool {
        self.queues.iter().skip(1).flatten().all(|queue| queue.capacity() >= 2)
    }

    pub(in crate::driver) fn deregister(&mut self, id: RegionId) {
        if let Some(region) = self.regions.get_mut(usize::from(id.0)).and_then(Option::take) {
            self.transport.deregister(region.region);
        }
    }
}
