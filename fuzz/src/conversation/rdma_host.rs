//! One queue pair of a host on the loopback fabric, which sends anything and checks what it is sent.

use super::command::{self, Connecting, Made};
use super::ledger::Ledger;
use super::neighbour::{Data, HonestQueue};
use super::target::{TURNS_MAX, Target};
use crate::input::Input;
use core::time::Duration;
use nvme_proto::rdma::{AcceptData, Request};
use nvme_proto::{Cntlid, Cqe, Qid, SglDescriptor, Sqe};
use nvmf_memory::Memory;
use nvmf_rdma::loopback::{Fabric, Loopback};
use nvmf_rdma::{
    Access, CmEvent, CompletionQueueId, ConnectParameters, MemoryRegion, Opcode, Payload, PrivateData,
    Provider, QueuePairAttributes, QueuePairId, ReceiveRequest, RemoteKey, RemoteMemory, SendOperation,
    SendRequest, Sge, WorkRequestId,
};
use nvmf_target::transport::rdma::Rdma;
use std::net::SocketAddr;
use zerocopy::{FromBytes, IntoBytes};

/// The machine of the honest host: 192.0.2.200.
const HONEST: u8 = 200;
/// Commands under way, and responses that receives are posted for.
const SLOTS: usize = 32;
/// A capsule longer than any queue takes.
const CAPSULE: usize = 8192;
/// Memory that is exposed.
const DATA: usize = 128 * 1024;
/// In-capsule data of an I/O queue, at the most.
pub(super) const IN_CAPSULE_LEN: u32 = 4096;
/// Turns that a hostile host waits for an answer.
const PATIENCE: usize = 300;
/// Marks the receives among work requests.
const RECEIVE: u64 = 1 << 32;

pub(super) struct RdmaHost {
    provider: Loopback,
    qp: QueuePairId,
    cq: CompletionQueueId,
    memory: Memory,
    region: MemoryRegion,
    data: Memory,
    data_region: MemoryRegion,
    /// Places of capsules that nothing is sent from.
    free: Vec<usize>,
    exposed: Vec<RemoteMemory>,
    pub(super) ledger: Ledger,
    next_cid: u16,
    answer: Option<Cqe>,
    pub(super) established: bool,
    pub(super) ended: bool,
    /// Receives are posted again.
    pub(super) receives: bool,
}

impl RdmaHost {
    /// A queue pair that asks for a connection from the machine with this number.
    pub(super) fn open(
        fabric: &Fabric,
        target: &Target<Rdma<Loopback>>,
        machine: u8,
        private_data: PrivateData,
        depths: (u16, u16),
    ) -> Self {
        let mut provider = fabric.provider();
        let cq = provider.create_completion_queue(256).expect("a completion queue");
        let attributes = QueuePairAttributes {
            send_cq: cq,
            receive_cq: cq,
            shared_receive_queue: None,
            max_send: 128,
            max_receive: SLOTS as u32,
            max_exposed: 128,
        };
        let qp = provider.create_queue_pair(&attributes).expect("a queue pair");
        let memory = Memory::alloc(SLOTS * (CAPSULE + Cqe::LEN)).expect("memory");
        let region = provider.register(&memory, Access::LOCAL_WRITE).expect("a region");
        let data = Memory::alloc(DATA).expect("memory");
        let data_region = provider.register(&data, Access::LOCAL_WRITE).expect("a region");
        let mut host = Self {
            provider,
            qp,
            cq,
            memory,
            region,
            data,
            data_region,
            free: (0..SLOTS).collect(),
            exposed: Vec::new(),
            ledger: Ledger::default(),
            next_cid: 0,
            answer: None,
            established: false,
            ended: false,
            receives: true,
        };
        (0..SLOTS).for_each(|slot| host.post_receive(slot));
        let (responder_resources, initiator_depth) = depths;
        let timeout = Duration::from_secs(5);
        let parameters = ConnectParameters { private_data, responder_resources, initiator_depth, timeout };
        let source = SocketAddr::from(([192, 0, 2, machine], 0));
        host.provider
            .connect(target.now, qp, target.address, Some(source), &parameters)
            .expect("an idle queue pair");
        host
    }

    /// The private data of an honest host.
    pub(super) fn request(qid: u16, cntlid: Cntlid) -> PrivateData {
        let cntlid = if qid == 0 { Cntlid(0) } else { cntlid };
        let request = Request { qid: Qid(qid), hrqsize: 32, hsqsize: 32, cntlid };
        PrivateData::new(request.emit().as_bytes()).expect("32 bytes")
    }

    fn post_receive(&mut self, slot: usize) {
        let offset = SLOTS * CAPSULE + slot * Cqe::LEN;
        let buffer = Sge { local_key: self.region.local_key, offset, len: Cqe::LEN as u32 };
        let request = ReceiveRequest { id: WorkRequestId(RECEIVE | slot as u64), buffer };
        // The target may have hung up.
        let _ = self.provider.post_receive(self.qp, request);
    }

    fn cid(&mut self) -> u16 {
        self.next_cid = self.next_cid.wrapping_add(1);
        self.next_cid
    }

    /// A key for bytes of its data: for the target to read and write.
    fn expose(&mut self, offset: usize, len: u32) -> Option<RemoteMemory> {
        let range = Sge { local_key: self.data_region.local_key, offset, len };
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let remote = self.provider.expose(self.qp, range, access).ok()?;
        self.exposed.push(remote);
        Some(remote)
    }

    /// Sends a capsule, whole or not. `invalidate` is no key of the target's: it has none.
    pub(super) fn send_bytes(&mut self, bytes: &[u8], invalidate: Option<RemoteKey>) {
        let Some(slot) = self.free.pop() else { return };
        let bytes = &bytes[..bytes.len().min(CAPSULE)];
        if let Ok((sqe, _)) = Sqe::read_from_prefix(bytes) {
            self.ledger.on_sent(&sqe);
        }
        self.memory.write(slot * CAPSULE, bytes);
        let local_key = self.region.local_key;
        let sge = [Sge { local_key, offset: slot * CAPSULE, len: bytes.len() as u32 }];
        let operation = SendOperation::Send { payload: Payload::Gather(&sge), invalidate, solicited: true };
        self.post(slot, operation);
    }

    fn post(&mut self, slot: usize, operation: SendOperation<'_>) {
        let request = SendRequest { id: WorkRequestId(slot as u64), operation, signaled: true };
        if self.provider.post_send(self.qp, request).is_err() {
            self.free.push(slot);
        }
        self.provider.flush();
    }

    /// RDMA READ or WRITE of memory that the target has not exposed, or the end of a key of its own.
    pub(super) fn meddle(&mut self, input: &mut Input<'_>) {
        let [choice, key, address, len] = input.array();
        let Some(slot) = self.free.pop() else { return };
        let local_key = self.region.local_key;
        let into = Sge { local_key, offset: slot * CAPSULE, len: u32::from(len) };
        let key = RemoteKey(key.into());
        let remote = RemoteMemory { key, address: u64::from(address) << 8, len: len.into() };
        let key = self.exposed.get(usize::from(address)).map_or(key, |remote| remote.key);
        let operation = match choice % 3 {
            0 => SendOperation::Read { into, remote },
            1 => SendOperation::Write { payload: Payload::Gather(&[into]), remote },
            _ => return self.post(slot, SendOperation::LocalInvalidate { key }),
        };
        self.post(slot, operation);
    }

    /// Ends the registration of its data, while keys of it are with the target, and makes another.
    pub(super) fn register_again(&mut self) {
        self.provider.deregister(self.data_region.local_key);
        self.data_region = self.provider.register(&self.data, Access::LOCAL_WRITE).expect("a region");
    }

    /// Sends a command whose data pointer, data and CID the input says.
    pub(super) fn send_made(&mut self, input: &mut Input<'_>, made: Made) {
        let Made { mut sqe, len } = made;
        let choice = input.u8();
        let is_write = sqe.opcode & 3 == 1;
        let mut in_capsule_len = 0;
        sqe.sgl = match choice & 7 {
            3 => SglDescriptor::in_capsule(input.u8().into(), len),
            4 => self.wrong_key(input, len),
            5 => SglDescriptor::transport(len),
            6 => SglDescriptor::in_capsule_list(0, len),
            7 => zerocopy::transmute!(input.array::<16>()),
            0 if is_write && len <= IN_CAPSULE_LEN => {
                in_capsule_len = len;
                SglDescriptor::in_capsule(0, len)
            }
            _ if len == 0 => SglDescriptor::keyed(0, 0, 0, false),
            _ => match self.expose(0, len.min(DATA as u32)) {
                Some(remote) => {
                    SglDescriptor::keyed(remote.address, remote.len, remote.key.0, choice & 64 == 0)
                }
                None => return,
            },
        };
        if choice & 8 != 0 {
            in_capsule_len = command::length(input).min(2 * IN_CAPSULE_LEN);
        }
        let reused = (choice & 16 != 0).then(|| self.ledger.outstanding(input.u8().into())).flatten();
        sqe.cid = reused.unwrap_or_else(|| self.cid()).into();
        let mut data = if choice & 32 != 0 { input.take(64).to_vec() } else { Vec::new() };
        data.resize(in_capsule_len as usize, choice);
        self.send_bytes(&[sqe.as_bytes(), &data].concat(), None);
    }

    /// A key that is exposed no more, or not for that.
    fn wrong_key(&mut self, input: &mut Input<'_>, len: u32) -> SglDescriptor {
        let [choice, nth, by] = input.array();
        let count = self.exposed.len().max(1);
        let none = RemoteMemory { key: RemoteKey(1), address: 0, len };
        let mut remote = self.exposed.get(usize::from(nth) % count).copied().unwrap_or(none);
        if choice & 1 != 0 {
            remote.key.0 ^= u32::from(by);
        }
        if choice & 2 != 0 {
            remote.address = remote.address.wrapping_add_signed(i64::from(by as i8));
        }
        let len = if choice & 4 != 0 { remote.len.saturating_add(by.into()) } else { len };
        SglDescriptor::keyed(remote.address, len.min(0x00ff_ffff), remote.key.0, choice & 8 == 0)
    }

    /// Sends a Connect; where its data are, the input says.
    pub(super) fn send_connect(&mut self, input: &mut Input<'_>, connecting: &Connecting) {
        let choice = input.u8();
        self.data.write(0, connecting.data.as_bytes());
        if choice & 0x80 != 0 {
            return self.send_made(input, Made { sqe: connecting.sqe, len: 1024 });
        }
        let cid = self.cid();
        self.send_with(&connecting.sqe, cid, Data::ToTarget(connecting.data.as_bytes()));
    }

    /// Sends a command as an honest host does.
    fn send_with(&mut self, sqe: &Sqe, cid: u16, data: Data<'_>) {
        let mut keyed = |len: u32| {
            let remote = self.expose(0, len)?;
            Some(SglDescriptor::keyed(remote.address, len, remote.key.0, true))
        };
        let (sgl, in_capsule): (_, &[u8]) = match data {
            Data::None => (Some(SglDescriptor::keyed(0, 0, 0, false)), &[]),
            Data::InCapsule(data) => (Some(SglDescriptor::in_capsule(0, data.len() as u32)), data),
            Data::ToTarget(data) => (keyed(data.len() as u32), &[]),
            Data::ToHost(len) => (keyed(len), &[]),
        };
        // Without one, the connection has ended.
        let Some(sgl) = sgl else { return };
        let sqe = Sqe { sgl, cid: cid.into(), ..*sqe };
        self.send_bytes(&[sqe.as_bytes(), in_capsule].concat(), None);
    }

    /// Takes what came.
    pub(super) fn poll(&mut self, now: Duration) {
        let mut completions = Vec::with_capacity(64);
        self.provider.poll_cq(self.cq, &mut completions);
        for completion in completions {
            let slot = (completion.id.0 & !RECEIVE) as usize;
            if completion.opcode != Opcode::Receive {
                self.free.push(slot);
            } else if completion.status.is_success() {
                assert_eq!(completion.byte_len as usize, Cqe::LEN, "a response is 16 bytes");
                self.on_response(slot, completion.invalidated);
                if self.receives {
                    self.post_receive(slot);
                }
            }
        }
        while let Some(event) = self.provider.poll_cm(now) {
            match event {
                CmEvent::Established { private_data, .. } => {
                    assert!(AcceptData::parse(private_data.as_bytes()).is_some(), "{private_data:?}");
                    self.established = true;
                }
                CmEvent::ConnectFailed { .. } | CmEvent::Disconnected { .. } => self.ended = true,
                other => panic!("{other:?} at a host"),
            }
        }
        self.provider.flush();
    }

    fn on_response(&mut self, slot: usize, invalidated: Option<RemoteKey>) {
        let mut cqe = [0; Cqe::LEN];
        self.memory.read(SLOTS * CAPSULE + slot * Cqe::LEN, &mut cqe);
        let cqe = Cqe::read_from_bytes(&cqe).expect("16 bytes");
        if let Some(key) = invalidated {
            assert!(self.ledger.names_key(cqe.cid.get(), key.0), "{cqe:?} invalidates {key:?}");
            self.exposed.retain(|remote| remote.key != key);
        }
        self.ledger.on_response(&cqe);
        self.answer = Some(cqe);
    }

    fn wait(
        &mut self,
        target: &mut Target<Rdma<Loopback>>,
        turns: usize,
        done: impl Fn(&Self) -> bool,
    ) -> Option<()> {
        (0..turns).find_map(|_| {
            target.tick();
            self.poll(target.now);
            (done(self) || self.ended).then_some(())
        })
    }

    fn run_for(
        &mut self,
        target: &mut Target<Rdma<Loopback>>,
        sqe: &Sqe,
        data: Data<'_>,
        turns: usize,
    ) -> Option<(Cqe, Vec<u8>)> {
        let cid = self.cid();
        self.answer = None;
        if let Data::ToTarget(data) = data {
            self.data.write(0, data);
        }
        self.send_with(sqe, cid, data);
        self.wait(target, turns, |host| host.answer.is_some_and(|cqe| cqe.cid.get() == cid))?;
        let cqe = self.answer.take().filter(|cqe| cqe.cid.get() == cid)?;
        let mut found = vec![0; if let Data::ToHost(len) = data { len as usize } else { 0 }];
        self.data.read(0, &mut found);
        Some((cqe, found))
    }

    /// As an honest host begins: `None` if the target does not let it.
    pub(super) fn begin(
        &mut self,
        target: &mut Target<Rdma<Loopback>>,
        connecting: &Connecting,
    ) -> Option<()> {
        self.wait(target, PATIENCE, |host| host.established)?;
        let data = Data::ToTarget(connecting.data.as_bytes());
        let (cqe, _) = self.run_for(target, &connecting.sqe, data, PATIENCE)?;
        if cqe.status().is_success() && connecting.is_admin() {
            self.run_for(target, &command::enable(), Data::None, PATIENCE)?;
        }
        Some(())
    }

    pub(super) fn queue_pair(&self) -> QueuePairId {
        self.qp
    }

    pub(super) fn disconnect(&mut self) {
        self.provider.disconnect(self.qp);
    }
}

impl Drop for RdmaHost {
    /// The connection ends at once.
    fn drop(&mut self) {
        self.provider.destroy_queue_pair(self.qp);
        self.provider.flush();
    }
}

impl HonestQueue<Rdma<Loopback>> for RdmaHost {
    type Network = Fabric;

    fn connect_data(data: &[u8]) -> Data<'_> {
        // There are none in the capsules of an Admin queue.
        Data::ToTarget(data)
    }

    fn open(target: &mut Target<Rdma<Loopback>>, fabric: &Fabric, qid: u16, cntlid: Cntlid) -> Self {
        let mut host = RdmaHost::open(fabric, target, HONEST, Self::request(qid, cntlid), (4, 0));
        let established = host.wait(target, TURNS_MAX, |host| host.established);
        assert!(established.is_some() && !host.ended, "no connection for an honest host");
        host
    }

    fn run(&mut self, target: &mut Target<Rdma<Loopback>>, sqe: &Sqe, data: Data<'_>) -> (Cqe, Vec<u8>) {
        let answer = self.run_for(target, sqe, data, TURNS_MAX);
        answer
            .unwrap_or_else(|| panic!("the honest host got no answer; its connection ended: {}", self.ended))
    }
}
