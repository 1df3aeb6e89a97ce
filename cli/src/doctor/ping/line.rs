//! One connection: its queue pair, its memory, and what is posted on it. Both ends have one.

use super::message::{LEN, Message};
use anyhow::{Context, Result};
use nvmf_memory::Memory;
use nvmf_rdma::{
    Access, CompletionQueueId, ConnectParameters, MemoryRegion, Payload, PostError, PrivateData, Provider,
    QueuePairAttributes, QueuePairId, ReceiveRequest, RemoteMemory, SendOperation, SendRequest, Sge,
    WorkRequestId,
};
use std::time::Duration;

/// Bytes of one RDMA WRITE or READ when bandwidth is measured, and the longest message.
pub(super) const CHUNK: usize = 64 << 10;
/// How many of them are in flight at once.
pub(super) const DEPTH: usize = 16;
/// Receives posted. The ends take turns, so only one message is in flight at a time.
const RECEIVES: usize = 4;

/// Bytes that the peer may read and write.
pub(super) const EXPOSED: usize = CHUNK * DEPTH;
/// The source of our writes and the destination of our reads, outside of the memory that the peer may access.
const OWN: usize = 0;
const RECEIVE: usize = OWN + CHUNK * DEPTH;
const SEND: usize = RECEIVE + CHUNK * RECEIVES;
const ALL: usize = SEND + CHUNK;

/// Completion queue entries that a line needs.
pub(super) const ENTRIES: u32 = (DEPTH + RECEIVES + 4) as u32;

/// The work that a completion's number names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Receive(usize),
    Send,
    Bulk,
}

impl Work {
    fn id(self) -> WorkRequestId {
        WorkRequestId(match self {
            Self::Receive(slot) => slot as u64,
            Self::Send => 1 << 32,
            Self::Bulk => 2 << 32,
        })
    }

    pub(super) fn of(id: WorkRequestId) -> Self {
        match id.0 >> 32 {
            0 => Self::Receive(usize::try_from(id.0).unwrap_or(0).min(RECEIVES - 1)),
            1 => Self::Send,
            _ => Self::Bulk,
        }
    }
}

/// This side of a connection.
pub(super) struct Line {
    pub(super) qp: QueuePairId,
    memory: Memory,
    region: MemoryRegion,
    exposed: Memory,
    exposed_region: MemoryRegion,
    /// The peer's memory, once its message named it.
    pub(super) peer: Option<RemoteMemory>,
    /// SENDs in flight: their bytes must not be changed.
    pub(super) sending: usize,
    /// WRITEs and READs in flight.
    pub(super) bulk: usize,
}

impl Line {
    /// A queue pair with its receives posted.
    pub(super) fn new<P: Provider>(provider: &mut P, cq: CompletionQueueId) -> Result<Self> {
        let alloc = |len| Memory::alloc(len).context("no memory for a connection");
        let (memory, exposed) = (alloc(ALL)?, alloc(EXPOSED)?);
        let capabilities = provider.capabilities();
        // A provider without per-connection keys gives the peer the region's own key.
        let remote = match capabilities.per_command_keys {
            true => Access::LOCAL_READ,
            false => Access::REMOTE_READ | Access::REMOTE_WRITE,
        };
        let mut regions = Vec::with_capacity(2);
        for (memory, access) in [(&memory, Access::LOCAL_READ), (&exposed, remote)] {
            match provider.register(memory, Access::LOCAL_WRITE | access) {
                Ok(region) => regions.push(region),
                Err(error) => {
                    regions.iter().for_each(|region| provider.deregister(region.local_key));
                    return Err(error).context("cannot register memory");
                }
            }
        }
        let (region, exposed_region) = (regions[0], regions[1]);
        let attributes = QueuePairAttributes {
            send_cq: cq,
            receive_cq: cq,
            shared_receive_queue: None,
            max_send: DEPTH as u32 + 4,
            max_receive: RECEIVES as u32,
            max_exposed: RECEIVES as u32,
        };
        let made = provider.create_queue_pair(&attributes);
        if made.is_err() {
            regions.iter().for_each(|region| provider.deregister(region.local_key));
        }
        let qp = made.context("cannot make a queue pair")?;
        let mut line = Self { qp, memory, region, exposed, exposed_region, peer: None, sending: 0, bulk: 0 };
        for slot in 0..RECEIVES {
            if let Err(error) = line.post_receive(provider, slot) {
                line.end(provider);
                return Err(error).context("cannot post a receive");
            }
        }
        Ok(line)
    }

    /// Releases everything.
    pub(super) fn end<P: Provider>(&mut self, provider: &mut P) {
        provider.destroy_queue_pair(self.qp);
        provider.deregister(self.region.local_key);
        provider.deregister(self.exposed_region.local_key);
    }

    fn sge(&self, offset: usize, len: usize) -> Sge {
        Sge { local_key: self.region.local_key, offset, len: u32::try_from(len).unwrap_or(u32::MAX) }
    }

    /// Gives the peer of this established connection a key for the memory that it may access.
    pub(super) fn expose<P: Provider>(&self, provider: &mut P) -> Result<RemoteMemory> {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let all = Sge { local_key: self.exposed_region.local_key, offset: 0, len: EXPOSED as u32 };
        provider.expose(self.qp, all, access).context("cannot expose memory")
    }

    pub(super) fn post_receive<P: Provider>(
        &mut self,
        provider: &mut P,
        slot: usize,
    ) -> Result<(), PostError> {
        let buffer = self.sge(RECEIVE + slot * CHUNK, CHUNK);
        provider.post_receive(self.qp, ReceiveRequest { id: Work::Receive(slot).id(), buffer })
    }

    /// The start of what a receive holds.
    pub(super) fn received(&self, slot: usize) -> [u8; LEN] {
        let mut head = [0; LEN];
        self.memory.read(RECEIVE + slot * CHUNK, &mut head);
        head
    }

    /// Sends a message, padded to `len` bytes. The previous one must have completed.
    pub(super) fn send<P: Provider>(
        &mut self,
        provider: &mut P,
        message: Message,
        len: usize,
    ) -> Result<(), PostError> {
        self.memory.write(SEND, &message.emit());
        let payload = [self.sge(SEND, len.clamp(LEN, CHUNK))];
        let operation =
            SendOperation::Send { payload: Payload::Gather(&payload), invalidate: None, solicited: true };
        provider.post_send(self.qp, SendRequest { id: Work::Send.id(), operation, signaled: true })?;
        self.sending += 1;
        Ok(())
    }

    /// RDMA WRITE of `size` bytes that end with `mark`, to the start of the peer's memory.
    pub(super) fn write_mark<P: Provider>(
        &mut self,
        provider: &mut P,
        size: usize,
        mark: u8,
    ) -> Result<(), PostError> {
        self.memory.write(OWN + size - 1, &[mark]);
        self.post_write(provider, 0, size)
    }

    /// Clears the mark that the peer wrote.
    pub(super) fn clear(&self, size: usize) {
        self.exposed.fill(0, size, 0);
    }

    /// The mark: the last of the `size` bytes that the peer writes.
    pub(super) fn mark(&self, size: usize) -> u8 {
        let mut mark = [0];
        self.exposed.read(size - 1, &mut mark);
        mark[0]
    }

    /// Posts RDMA WRITEs or READs of one chunk each, up to the limit in flight.
    pub(super) fn fill<P: Provider>(&mut self, provider: &mut P, read: bool) -> Result<(), PostError> {
        while self.bulk < DEPTH {
            // Always the same chunk: the data do not matter.
            let offset = self.bulk * CHUNK;
            if read { self.post_read(provider, offset)? } else { self.post_write(provider, offset, CHUNK)? }
        }
        Ok(())
    }

    fn post_write<P: Provider>(
        &mut self,
        provider: &mut P,
        offset: usize,
        len: usize,
    ) -> Result<(), PostError> {
        let remote = self.part(offset, len).ok_or(PostError::Invalid)?;
        let payload = [self.sge(OWN + offset, len)];
        let operation = SendOperation::Write { payload: Payload::Gather(&payload), remote };
        provider.post_send(self.qp, SendRequest { id: Work::Bulk.id(), operation, signaled: true })?;
        self.bulk += 1;
        Ok(())
    }

    fn post_read<P: Provider>(&mut self, provider: &mut P, offset: usize) -> Result<(), PostError> {
        let remote = self.part(offset, CHUNK).ok_or(PostError::Invalid)?;
        let operation = SendOperation::Read { into: self.sge(OWN + offset, CHUNK), remote };
        provider.post_send(self.qp, SendRequest { id: Work::Bulk.id(), operation, signaled: true })?;
        self.bulk += 1;
        Ok(())
    }

    /// A part of the peer's memory; `None` when it did not name so much.
    fn part(&self, offset: usize, len: usize) -> Option<RemoteMemory> {
        let peer = self.peer?;
        let end = offset.checked_add(len)?;
        if end > usize::try_from(peer.len).ok()? {
            return None;
        }
        let address = peer.address.checked_add(u64::try_from(offset).ok()?)?;
        Some(RemoteMemory { key: peer.key, address, len: u32::try_from(len).ok()? })
    }
}

/// Connection parameters of both sides.
pub(super) fn parameters<P: Provider>(provider: &P, timeout: Duration) -> ConnectParameters {
    let depth = provider.capabilities().max_read_depth.min(DEPTH as u16);
    let private_data = PrivateData::new(super::message::GREETING).unwrap_or(PrivateData::EMPTY);
    ConnectParameters { private_data, responder_resources: depth, initiator_depth: depth, timeout }
}
