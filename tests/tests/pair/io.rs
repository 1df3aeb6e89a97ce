//! Block operations of the host, split into commands.

use crate::rig::{Data, Owner, Pair};
use nvmf_block::BlockError;
use nvmf_host::io::PartData;
use nvmf_host::{Nsid, Operation};

impl Pair {
    /// Runs one operation, with its commands distributed over all I/O queues and as many at once as the queues allow.
    pub(crate) fn io(
        &mut self,
        nsid: u32,
        operation: Operation,
        buffer: &mut [u8],
    ) -> Result<(), BlockError> {
        let parts = self.host.namespace(Nsid(nsid)).ok_or(BlockError::Gone)?.split(operation)?;
        for part in parts {
            let data = match part.data {
                PartData::None => Data::None,
                PartData::FromController { len, .. } => Data::Exposed(vec![0xee; len as usize]),
                PartData::ToController { offset, len, in_capsule } => {
                    let bytes = buffer[offset..][..len as usize].to_vec();
                    if in_capsule { Data::InCapsule(bytes) } else { Data::Exposed(bytes) }
                }
                PartData::Range { bytes, in_capsule: true } => Data::InCapsule(bytes.to_vec()),
                PartData::Range { bytes, in_capsule: false } => Data::Exposed(bytes.to_vec()),
                PartData::Source { bytes, in_capsule: true } => Data::InCapsule(bytes.to_vec()),
                PartData::Source { bytes, in_capsule: false } => Data::Exposed(bytes.to_vec()),
            };
            let place = match part.data {
                PartData::FromController { offset, .. } => offset,
                _ => usize::MAX,
            };
            let qid = self.queue_with_room();
            self.send(qid, Owner::Io(place), &part.command, data);
        }
        self.settle();
        let mut result = Ok(());
        for (place, status, bytes) in core::mem::take(&mut self.done) {
            if !status.is_success() {
                result = Err(nvmf_host::status::block_error(status));
            } else if place != usize::MAX {
                buffer[place..][..bytes.len()].copy_from_slice(&bytes);
            }
        }
        result
    }

    fn queue_with_room(&mut self) -> u16 {
        let roomiest = |this: &Self| {
            let io = this.connections.range(1..).map(|(&qid, connection)| (connection.host.room(), qid));
            io.max().filter(|&(room, _)| room > 0)
        };
        if roomiest(self).is_none() {
            self.settle();
        }
        roomiest(self).expect("there is an I/O queue").1
    }
}
