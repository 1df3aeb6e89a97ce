//! One queue pair: its capsules and receives, and the keys of its commands.
//!
//! The memory of a command is released when its SEND completed (its bytes are no longer needed), its response came, and
//! the key that it exposed is dead, in whatever order.

use super::super::{Arrival, Data, OpenQueue, Payload, Refused, slot_data_len};
use nvme_proto::{Cid, Cqe, Qid, Sqe};
use nvmf_host::{Command, DataPointer, Violation};
use nvmf_memory::{Memory, OutOfMemory};
use nvmf_rdma::{
    Access, Completion, CompletionQueueId, MemoryRegion, PostError, Provider, QueuePairAttributes,
    QueuePairId, ReceiveRequest, RegisterError, RemoteKey, ResourceError, SendOperation, SendRequest, Sge,
    WorkRequestId,
};

/// Bytes between two receive buffers: a response and room to see that one is too long.
const RECEIVE_STRIDE: usize = 64;

/// Our names for work requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkRequest {
    /// A capsule that is sent from the memory of its slot.
    Send(u16),
    Receive(u16),
    Invalidate(u16),
    /// The invalidation of a key whose command was never sent.
    InvalidateUnused,
    /// A capsule that was copied: its slot may be another command's by now.
    SendCopied,
}

impl WorkRequest {
    fn id(self, qid: Qid) -> WorkRequestId {
        let (kind, index) = match self {
            Self::Send(index) => (0_u64, index),
            Self::Receive(index) => (1, index),
            Self::Invalidate(index) => (2, index),
            Self::InvalidateUnused => (3, 0),
            Self::SendCopied => (4, 0),
        };
        WorkRequestId(kind << 32 | u64::from(qid.0) << 16 | u64::from(index))
    }

    pub(super) fn parse(id: WorkRequestId) -> (Qid, Self) {
        let index = id.0 as u16;
        let request = match id.0 >> 32 {
            0 => Self::Send(index),
            1 => Self::Receive(index),
            2 => Self::Invalidate(index),
            3 => Self::InvalidateUnused,
            _ => Self::SendCopied,
        };
        (Qid((id.0 >> 16) as u16), request)
    }
}

/// What a command holds.
#[derive(Debug)]
struct Slot {
    sent: bool,
    complete: bool,
    key: Option<RemoteKey>,
}

impl Slot {
    fn is_released(&self) -> bool {
        self.sent && self.complete && self.key.is_none()
    }
}

#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) id: QueuePairId,
    pub(super) qid: Qid,
    slots: Vec<Option<Slot>>,
    memory: Memory,
    region: MemoryRegion,
    slot_data: usize,
    /// Receives to post and keys to invalidate, once the provider takes them.
    pending_receives: Vec<u16>,
    pending_invalidations: Vec<u16>,
    unused_keys: Vec<RemoteKey>,
    per_command_keys: bool,
    /// Whether the provider copies a capsule without data when it is posted.
    copies_capsules: bool,
    /// Copied capsules since the last that completes visibly.
    silent: u16,
    /// Commands that are complete and wait for a completion to release their memory.
    unreleased: u16,
    /// A command found no room: a completion makes some.
    lacks_room: bool,
}

/// The queue could not be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum MakeError {
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    #[error(transparent)]
    Register(#[from] RegisterError),
    #[error(transparent)]
    Resource(#[from] ResourceError),
}

/// Why a command was not sent.
#[derive(Debug)]
pub(super) enum NotSent {
    NoRoom,
    NoKey(RegisterError),
}

impl QueuePair {
    /// A queue pair for so many commands, its receives posted.
    pub(super) fn new<P: Provider>(
        provider: &mut P,
        cq: CompletionQueueId,
        queue: &OpenQueue<'_>,
    ) -> Result<Self, MakeError> {
        let (qid, entries) = (queue.qid, queue.entries);
        let count = usize::from(entries);
        let slot_data = slot_data_len(qid);
        let memory = Memory::alloc(count * (RECEIVE_STRIDE + Sqe::LEN + slot_data))?;
        let capabilities = provider.capabilities();
        let per_command_keys = capabilities.per_command_keys;
        let region = provider.register(&memory, local_access(per_command_keys))?;
        let id = provider.create_queue_pair(&QueuePairAttributes {
            send_cq: cq,
            receive_cq: cq,
            shared_receive_queue: None,
            // A SEND and an invalidation for each command.
            max_send: u32::from(entries) * 2,
            max_receive: u32::from(entries),
            max_exposed: u32::from(entries),
        });
        let id = match id {
            Ok(id) => id,
            Err(error) => {
                provider.deregister(region.local_key);
                return Err(error.into());
            }
        };
        let mut queue = Self {
            id,
            qid,
            slots: (0..entries).map(|_| None).collect(),
            memory,
            region,
            slot_data,
            pending_receives: (0..entries).rev().collect(),
            pending_invalidations: Vec::with_capacity(count),
            unused_keys: Vec::new(),
            per_command_keys,
            copies_capsules: capabilities.max_inline as usize >= Sqe::LEN,
            silent: 0,
            unreleased: 0,
            lacks_room: false,
        };
        queue.post_pending(provider);
        Ok(queue)
    }

    /// Completions that it can have outstanding.
    pub(super) fn completions_max(entries: u16) -> u32 {
        u32::from(entries) * 3
    }

    /// Whether this queue's commands hold keys, or keys are still to be invalidated.
    pub(super) fn holds_keys(&self) -> bool {
        !self.unused_keys.is_empty() || self.slots.iter().flatten().any(|slot| slot.key.is_some())
    }

    /// Whether something of the queue goes on when what was posted to the send queue completes.
    pub(super) fn awaits_sends(&self) -> bool {
        self.unreleased > 0 || self.lacks_room || !self.unused_keys.is_empty()
    }

    fn receive_offset(index: u16) -> usize {
        usize::from(index) * RECEIVE_STRIDE
    }

    fn slot_offset(&self, index: u16) -> usize {
        self.slots.len() * RECEIVE_STRIDE + usize::from(index) * (Sqe::LEN + self.slot_data)
    }

    /// Copies the data of a slot.
    pub(super) fn read_data(&self, index: u16, into: &mut [u8]) {
        self.memory.read(self.slot_offset(index) + Sqe::LEN, into);
    }

    fn sge(&self, offset: usize, len: u32) -> Sge {
        Sge { local_key: self.region.local_key, offset, len }
    }

    pub(super) fn send<P: Provider>(
        &mut self,
        provider: &mut P,
        index: u16,
        cid: Cid,
        command: &Command,
        data: Data<'_, MemoryRegion>,
    ) -> Result<(), NotSent> {
        // Until it is sent.
        self.lacks_room = true;
        let (pointer, key) = self.point(provider, index, data)?;
        let sqe = command.encode(cid, pointer);
        let is_copied = self.copies_capsules && !data.is_in_capsule();
        let posted = match is_copied {
            true => self.post_copied(provider, &sqe),
            false => self.post(provider, index, &sqe, data),
        };
        posted.map_err(|_| {
            self.unused_keys.extend(key);
            NotSent::NoRoom
        })?;
        self.lacks_room = false;
        self.slots[usize::from(index)] = Some(Slot { sent: is_copied, complete: false, key });
        Ok(())
    }

    /// The command's data pointer, and the key that it exposes.
    fn point<P: Provider>(
        &self,
        provider: &mut P,
        index: u16,
        data: Data<'_, MemoryRegion>,
    ) -> Result<(DataPointer, Option<RemoteKey>), NotSent> {
        let behind_sqe = self.slot_offset(index) + Sqe::LEN;
        let (sge, region, access) = match data {
            Data::None => return Ok((DataPointer::None, None)),
            Data::Bytes { bytes, in_capsule } => {
                let len = u32::try_from(bytes.len())
                    .ok()
                    .filter(|_| bytes.len() <= self.slot_data)
                    .ok_or(NotSent::NoRoom)?;
                self.memory.write(behind_sqe, bytes);
                if in_capsule {
                    return Ok((DataPointer::InCapsule { len }, None));
                }
                (self.sge(behind_sqe, len), &self.region, Access::REMOTE_READ)
            }
            Data::IntoSlot { len } if len as usize > self.slot_data => return Err(NotSent::NoRoom),
            Data::IntoSlot { len } => (self.sge(behind_sqe, len), &self.region, Access::REMOTE_WRITE),
            Data::User { len, payload: Payload::InCapsule, .. } => {
                return Ok((DataPointer::InCapsule { len }, None));
            }
            Data::User { region, offset, len, payload } => {
                let access =
                    if payload == Payload::ToController { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
                (Sge { local_key: region.local_key, offset, len }, region, access)
            }
        };
        if self.per_command_keys {
            let exposed = provider.expose(self.id, sge, access).map_err(NotSent::NoKey)?;
            let (address, key) = (exposed.address, exposed.key);
            let pointer = DataPointer::Keyed { address, len: sge.len, key: key.0, invalidate: true };
            return Ok((pointer, Some(key)));
        }
        let remote = region.remote.ok_or(NotSent::NoRoom)?;
        let address = remote.address + sge.offset as u64;
        Ok((DataPointer::Keyed { address, len: sge.len, key: remote.key.0, invalidate: false }, None))
    }

    /// Sends a capsule from the memory of its slot.
    fn post<P: Provider>(
        &self,
        provider: &mut P,
        index: u16,
        sqe: &[u8; Sqe::LEN],
        data: Data<'_, MemoryRegion>,
    ) -> Result<(), PostError> {
        let slot = self.slot_offset(index);
        self.memory.write(slot, sqe);
        let behind = match data {
            Data::Bytes { bytes, in_capsule: true } => bytes.len(),
            _ => 0,
        };
        let capsule = self.sge(slot, u32::try_from(Sqe::LEN + behind).expect("a slot is small"));
        let gather = match data {
            Data::User { region, offset, len, payload: Payload::InCapsule } => {
                &[capsule, Sge { local_key: region.local_key, offset, len }][..]
            }
            _ => &[capsule][..],
        };
        let operation = message(nvmf_rdma::Payload::Gather(gather));
        let id = WorkRequest::Send(index).id(self.qid);
        provider.post_send(self.id, SendRequest { id, operation, signaled: true })
    }

    /// Sends a capsule that the provider copies. Nothing waits for its completion but the places of the send queue.
    fn post_copied<P: Provider>(&mut self, provider: &mut P, sqe: &[u8; Sqe::LEN]) -> Result<(), PostError> {
        let signaled = usize::from(self.silent) + 1 >= self.slots.len().div_ceil(2);
        let operation = message(nvmf_rdma::Payload::Inline(sqe));
        let id = WorkRequest::SendCopied.id(self.qid);
        provider.post_send(self.id, SendRequest { id, operation, signaled })?;
        self.silent = if signaled { 0 } else { self.silent + 1 };
        Ok(())
    }

    /// A work request of this queue completed well.
    pub(super) fn on_completion<P: Provider>(
        &mut self,
        provider: &mut P,
        request: WorkRequest,
        completion: &Completion,
    ) -> Option<Arrival> {
        let index = match request {
            WorkRequest::Send(index) => {
                self.slots[usize::from(index)].as_mut()?.sent = true;
                index
            }
            WorkRequest::Invalidate(index) => {
                self.slots[usize::from(index)].as_mut()?.key = None;
                index
            }
            WorkRequest::InvalidateUnused | WorkRequest::SendCopied => return None,
            WorkRequest::Receive(index) => return Some(self.on_receive(provider, index, completion)),
        };
        if !self.release(index) {
            return None;
        }
        self.unreleased -= 1;
        Some(Arrival::Released(self.qid, index))
    }

    fn on_receive<P: Provider>(
        &mut self,
        provider: &mut P,
        receive: u16,
        completion: &Completion,
    ) -> Arrival {
        let mut response = [0; Cqe::LEN];
        self.memory.read(Self::receive_offset(receive), &mut response);
        self.pending_receives.push(receive);
        self.post_pending(provider);
        let len = completion.byte_len as usize;
        if len != Cqe::LEN {
            return Arrival::Violation(Violation::ResponseLength { qid: self.qid, len });
        }
        Arrival::Response(self.qid, response, completion.invalidated.map(|key| key.0))
    }

    /// The command in this slot is complete; whether its memory is released.
    pub(super) fn complete<P: Provider>(
        &mut self,
        provider: &mut P,
        index: u16,
        invalidated: Option<u32>,
    ) -> Result<bool, Violation> {
        let Some(slot) = &mut self.slots[usize::from(index)] else { return Ok(true) };
        if let Some(key) = invalidated {
            // The command stays incomplete: a completion of its SEND that comes behind this releases nothing.
            if slot.key != Some(RemoteKey(key)) {
                return Err(Violation::ForeignKey { qid: self.qid, key });
            }
            slot.key = None;
        }
        slot.complete = true;
        if slot.key.is_some() {
            self.pending_invalidations.push(index);
            self.post_pending(provider);
        }
        let released = self.release(index);
        self.unreleased += u16::from(!released);
        Ok(released)
    }

    fn release(&mut self, index: u16) -> bool {
        self.slots[usize::from(index)].take_if(|slot| slot.is_released()).is_some()
    }

    /// Posts the receives and invalidations that are pending, until the provider takes no more.
    pub(super) fn post_pending<P: Provider>(&mut self, provider: &mut P) {
        while let Some(&index) = self.pending_receives.last() {
            let buffer = self.sge(Self::receive_offset(index), Cqe::LEN as u32);
            let request = ReceiveRequest { id: WorkRequest::Receive(index).id(self.qid), buffer };
            if provider.post_receive(self.id, request).is_err() {
                break;
            }
            self.pending_receives.pop();
        }
        while let Some(&index) = self.pending_invalidations.last() {
            let key = self.slots[usize::from(index)].as_ref().and_then(|slot| slot.key);
            if let Some(key) = key
                && !self.invalidate(provider, WorkRequest::Invalidate(index), key)
            {
                break;
            }
            self.pending_invalidations.pop();
        }
        while let Some(&key) = self.unused_keys.last() {
            if !self.invalidate(provider, WorkRequest::InvalidateUnused, key) {
                break;
            }
            self.unused_keys.pop();
        }
    }

    fn invalidate<P: Provider>(&self, provider: &mut P, request: WorkRequest, key: RemoteKey) -> bool {
        let operation = SendOperation::LocalInvalidate { key };
        provider
            .post_send(self.id, SendRequest { id: request.id(self.qid), operation, signaled: true })
            .is_ok()
    }

    /// Ends the queue pair, and with it every key.
    pub(super) fn destroy<P: Provider>(self, provider: &mut P) {
        provider.destroy_queue_pair(self.id);
        provider.deregister(self.region.local_key);
    }
}

fn message(payload: nvmf_rdma::Payload<'_>) -> SendOperation<'_> {
    SendOperation::Send { payload, invalidate: None, solicited: false }
}

impl From<NotSent> for Refused {
    fn from(error: NotSent) -> Self {
        match error {
            NotSent::NoRoom => Self::NoRoom,
            NotSent::NoKey(error) => Self::NoKey(error.to_string()),
        }
    }
}

/// The access that our own memory is registered with.
pub(super) fn local_access(per_command_keys: bool) -> Access {
    if per_command_keys {
        Access::LOCAL_WRITE
    } else {
        Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE
    }
}
