//! One queue: its queue pair, its commands in flight, its capsules and receives.
//!
//! A command is done when three things have happened, in whatever order: its SEND completed (its bytes are no longer needed), its response came, and
//! the key that it exposed is dead. Only then is its memory given back.

use core::time::Duration;
use nvme_proto::{Cqe, Qid, Sqe};
use nvmf_host::{Command, CommandId, DataPointer, FlowControl, Outcome, Queue, Violation};
use nvmf_memory::{Memory, OutOfMemory};
use nvmf_rdma::{
    Access, Completion, CompletionQueueId, MemoryRegion, PostError, Provider, QueuePairAttributes,
    QueuePairId, ReceiveRequest, RegisterError, RemoteKey, ResourceError, SendOperation, SendRequest, Sge,
    WorkRequestId,
};

/// Bytes between two receive buffers: a response and room to see that one is too long.
const RECEIVE_STRIDE: usize = 64;
/// Data bytes behind the SQE of an I/O queue's capsule slot: Connect's are the most.
const IO_SLOT_DATA: usize = 1024;

/// Whose a command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The association's own.
    Association(CommandId),
    /// The user's admin command of this number.
    Admin(u32),
    /// A part of this operation.
    Operation(u32),
}

/// The data of a command.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Data<'a> {
    None,
    /// These bytes, copied into the command's slot.
    Bytes {
        bytes: &'a [u8],
        in_capsule: bool,
    },
    /// The controller writes so many bytes into the command's slot.
    IntoSlot {
        len: u32,
    },
    /// The user's memory.
    User {
        sge: Sge,
        direction: Payload,
    },
}

/// Which way the user's memory is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Payload {
    /// The controller writes it.
    FromController,
    /// The controller reads it.
    ToController,
    /// It goes with the capsule.
    InCapsule,
}

/// Why a command was not sent: nothing of it is held.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Try again after the next completion.
    NoRoom,
    /// The provider has no key for its memory.
    NoKey(RegisterError),
}

/// A command that is done with its memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Finished {
    pub(crate) owner: Owner,
    pub(crate) outcome: Outcome,
    /// Where its slot's data lie in the queue's memory.
    pub(crate) data_offset: usize,
}

/// The state of a queue pair's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    Connecting,
    Connected,
    Closed,
}

/// Our names for work requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkRequest {
    Send(u16),
    Receive(u16),
    Invalidate(u16),
    /// The invalidation of a key whose command was never sent.
    InvalidateUnused,
}

impl WorkRequest {
    fn id(self, qid: Qid) -> WorkRequestId {
        let (kind, index) = match self {
            Self::Send(index) => (0_u64, index),
            Self::Receive(index) => (1, index),
            Self::Invalidate(index) => (2, index),
            Self::InvalidateUnused => (3, 0),
        };
        WorkRequestId(kind << 32 | u64::from(qid.0) << 16 | u64::from(index))
    }

    pub(crate) fn parse(id: WorkRequestId) -> (Qid, Self) {
        let index = id.0 as u16;
        let request = match id.0 >> 32 {
            0 => Self::Send(index),
            1 => Self::Receive(index),
            2 => Self::Invalidate(index),
            _ => Self::InvalidateUnused,
        };
        (Qid((id.0 >> 16) as u16), request)
    }
}

#[derive(Debug)]
struct Request {
    owner: Owner,
    sent: bool,
    outcome: Option<Outcome>,
    key: Option<RemoteKey>,
}

/// A queue and its queue pair.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) id: QueuePairId,
    pub(crate) qid: Qid,
    pub(crate) link: LinkState,
    commands: Queue<u16>,
    requests: Vec<Option<Request>>,
    free: Vec<u16>,
    pub(crate) memory: Memory,
    region: MemoryRegion,
    slot_data: usize,
    /// Receives to post and keys to invalidate, once the provider takes them.
    pending_receives: Vec<u16>,
    pending_invalidations: Vec<u16>,
    unused_keys: Vec<RemoteKey>,
    per_command_keys: bool,
}

/// The queue could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MakeError {
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    #[error(transparent)]
    Register(#[from] RegisterError),
    #[error(transparent)]
    Resource(#[from] ResourceError),
}

impl QueuePair {
    /// A queue pair of `entries` commands, its receives posted.
    pub(crate) fn new<P: Provider>(
        provider: &mut P,
        cq: CompletionQueueId,
        qid: Qid,
        entries: u16,
    ) -> Result<Self, MakeError> {
        let count = usize::from(entries);
        let slot_data =
            if qid.is_admin() { nvmf_host::limits::ADMIN_DATA_MAX as usize } else { IO_SLOT_DATA };
        let memory = Memory::alloc(count * (RECEIVE_STRIDE + Sqe::LEN + slot_data))?;
        let per_command_keys = provider.capabilities().per_command_keys;
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
            link: LinkState::Connecting,
            commands: Queue::new(qid, entries, FlowControl::Sqhd),
            requests: (0..entries).map(|_| None).collect(),
            free: (0..entries).rev().collect(),
            memory,
            region,
            slot_data,
            pending_receives: (0..entries).rev().collect(),
            pending_invalidations: Vec::with_capacity(count),
            unused_keys: Vec::new(),
            per_command_keys,
        };
        queue.post_pending(provider);
        Ok(queue)
    }

    /// Completions that it can have outstanding.
    pub(crate) fn completions_max(entries: u16) -> u32 {
        u32::from(entries) * 3
    }

    /// What Connect agreed on.
    pub(crate) fn agree(&mut self, entries: u16, flow_control: FlowControl) {
        self.commands.agree(entries, flow_control);
    }

    /// Commands that can be sent now.
    pub(crate) fn room(&self) -> usize {
        if self.link == LinkState::Connected { self.commands.room().min(self.free.len()) } else { 0 }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        self.commands.poll_timeout()
    }

    /// Keys that this queue's commands hold, or that are still to be invalidated.
    pub(crate) fn keys_in_use(&self) -> usize {
        let held = self.requests.iter().flatten().filter(|request| request.key.is_some());
        held.count() + self.unused_keys.len()
    }

    /// Whether a command is overdue.
    pub(crate) fn expired(&mut self, now: Duration) -> bool {
        self.commands.pop_expired(now).is_some()
    }

    fn receive_offset(index: u16) -> usize {
        usize::from(index) * RECEIVE_STRIDE
    }

    fn slot_offset(&self, index: u16) -> usize {
        self.requests.len() * RECEIVE_STRIDE + usize::from(index) * (Sqe::LEN + self.slot_data)
    }

    fn sge(&self, offset: usize, len: u32) -> Sge {
        Sge { local_key: self.region.local_key, offset, len }
    }

    /// Sends a command.
    ///
    /// # Errors
    /// [`Refused`]: nothing was sent, nothing is held.
    pub(crate) fn send<P: Provider>(
        &mut self,
        provider: &mut P,
        owner: Owner,
        command: &Command,
        data: Data<'_>,
        user: Option<&MemoryRegion>,
        deadline: Option<Duration>,
    ) -> Result<(), Refused> {
        if self.room() == 0 {
            return Err(Refused::NoRoom);
        }
        let index = self.free.pop().ok_or(Refused::NoRoom)?;
        let Ok(cid) = self.commands.submit(index, deadline) else {
            self.free.push(index);
            return Err(Refused::NoRoom);
        };
        let sent = self.point(provider, index, data, user).and_then(|(pointer, key)| {
            let sqe = command.encode(cid, pointer);
            self.memory.write(self.slot_offset(index), &sqe);
            self.post(provider, index, data).map_err(|_| {
                self.unused_keys.extend(key);
                Refused::NoRoom
            })?;
            Ok(key)
        });
        match sent {
            Ok(key) => {
                self.requests[usize::from(index)] = Some(Request { owner, sent: false, outcome: None, key });
                Ok(())
            }
            Err(refused) => {
                self.commands.cancel(cid);
                self.free.push(index);
                Err(refused)
            }
        }
    }

    /// The command's data pointer, and the key that it exposes.
    fn point<P: Provider>(
        &self,
        provider: &mut P,
        index: u16,
        data: Data<'_>,
        user: Option<&MemoryRegion>,
    ) -> Result<(DataPointer, Option<RemoteKey>), Refused> {
        let behind_sqe = self.slot_offset(index) + Sqe::LEN;
        let (sge, region, access) = match data {
            Data::None => return Ok((DataPointer::None, None)),
            Data::Bytes { bytes, in_capsule } => {
                let len = u32::try_from(bytes.len())
                    .ok()
                    .filter(|_| bytes.len() <= self.slot_data)
                    .ok_or(Refused::NoRoom)?;
                self.memory.write(behind_sqe, bytes);
                if in_capsule {
                    return Ok((DataPointer::InCapsule { len }, None));
                }
                (self.sge(behind_sqe, len), Some(&self.region), Access::REMOTE_READ)
            }
            Data::IntoSlot { len } => (self.sge(behind_sqe, len), Some(&self.region), Access::REMOTE_WRITE),
            Data::User { sge, direction: Payload::InCapsule } => {
                return Ok((DataPointer::InCapsule { len: sge.len }, None));
            }
            Data::User { sge, direction: Payload::ToController } => (sge, user, Access::REMOTE_READ),
            Data::User { sge, direction: Payload::FromController } => (sge, user, Access::REMOTE_WRITE),
        };
        if self.per_command_keys {
            let exposed = provider.expose(self.id, sge, access).map_err(Refused::NoKey)?;
            let (address, key) = (exposed.address, exposed.key);
            return Ok((
                DataPointer::Keyed { address, len: sge.len, key: key.0, invalidate: true },
                Some(key),
            ));
        }
        let remote = region.and_then(|region| region.remote).ok_or(Refused::NoRoom)?;
        let address = remote.address + sge.offset as u64;
        Ok((DataPointer::Keyed { address, len: sge.len, key: remote.key.0, invalidate: false }, None))
    }

    fn post<P: Provider>(&self, provider: &mut P, index: u16, data: Data<'_>) -> Result<(), PostError> {
        let slot = self.slot_offset(index);
        let behind = match data {
            Data::Bytes { bytes, in_capsule: true } => bytes.len(),
            _ => 0,
        };
        let capsule = self.sge(slot, u32::try_from(Sqe::LEN + behind).expect("a slot is small"));
        let gather = match data {
            Data::User { sge, direction: Payload::InCapsule } => &[capsule, sge][..],
            _ => &[capsule][..],
        };
        let payload = nvmf_rdma::Payload::Gather(gather);
        let operation = SendOperation::Send { payload, invalidate: None, solicited: false };
        let id = WorkRequest::Send(index).id(self.qid);
        provider.post_send(self.id, SendRequest { id, operation, signaled: true })
    }

    /// A work request of this queue completed well.
    ///
    /// # Errors
    /// [`Violation`]: the association must end.
    pub(crate) fn on_completion<P: Provider>(
        &mut self,
        provider: &mut P,
        request: WorkRequest,
        completion: &Completion,
    ) -> Result<Option<Finished>, Violation> {
        match request {
            WorkRequest::Send(index) => {
                if let Some(request) = &mut self.requests[usize::from(index)] {
                    request.sent = true;
                }
                Ok(self.finish(index))
            }
            WorkRequest::Invalidate(index) => {
                if let Some(request) = &mut self.requests[usize::from(index)] {
                    request.key = None;
                }
                Ok(self.finish(index))
            }
            WorkRequest::InvalidateUnused => Ok(None),
            WorkRequest::Receive(index) => self.on_response(provider, index, completion),
        }
    }

    fn on_response<P: Provider>(
        &mut self,
        provider: &mut P,
        receive: u16,
        completion: &Completion,
    ) -> Result<Option<Finished>, Violation> {
        let mut capsule = [0; RECEIVE_STRIDE];
        let len = (completion.byte_len as usize).min(RECEIVE_STRIDE);
        self.memory.read(Self::receive_offset(receive), &mut capsule[..len]);
        self.pending_receives.push(receive);
        let answered = self.commands.on_completion(&capsule[..len]);
        let (index, outcome) = match answered {
            Ok(answered) => answered,
            Err(violation) => {
                self.post_pending(provider);
                return Err(violation);
            }
        };
        if let Some(request) = &mut self.requests[usize::from(index)] {
            request.outcome = Some(outcome);
            if let Some(key) = completion.invalidated {
                if request.key != Some(key) {
                    return Err(Violation::ForeignKey { qid: self.qid, key: key.0 });
                }
                request.key = None;
            }
            if request.key.is_some() {
                self.pending_invalidations.push(index);
            }
        }
        self.post_pending(provider);
        Ok(self.finish(index))
    }

    fn finish(&mut self, index: u16) -> Option<Finished> {
        let slot = &mut self.requests[usize::from(index)];
        let request =
            slot.take_if(|request| request.sent && request.outcome.is_some() && request.key.is_none())?;
        self.free.push(index);
        let data_offset = self.slot_offset(index) + Sqe::LEN;
        Some(Finished { owner: request.owner, outcome: request.outcome?, data_offset })
    }

    /// Posts the receives and invalidations that are pending, until the provider takes no more.
    pub(crate) fn post_pending<P: Provider>(&mut self, provider: &mut P) {
        while let Some(&index) = self.pending_receives.last() {
            let buffer = self.sge(Self::receive_offset(index), Cqe::LEN as u32);
            let request = ReceiveRequest { id: WorkRequest::Receive(index).id(self.qid), buffer };
            if provider.post_receive(self.id, request).is_err() {
                break;
            }
            self.pending_receives.pop();
        }
        while let Some(&index) = self.pending_invalidations.last() {
            let key = self.requests[usize::from(index)].as_ref().and_then(|request| request.key);
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

    /// Ends the queue pair, and with it every key; the commands that were in flight have an unknown fate.
    pub(crate) fn destroy<P: Provider>(self, provider: &mut P) -> impl Iterator<Item = Owner> {
        provider.destroy_queue_pair(self.id);
        provider.deregister(self.region.local_key);
        self.requests.into_iter().flatten().map(|request| request.owner)
    }
}

/// The access that our own memory is registered with.
pub(crate) fn local_access(per_command_keys: bool) -> Access {
    if per_command_keys {
        Access::LOCAL_WRITE
    } else {
        Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE
    }
}
