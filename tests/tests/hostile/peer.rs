//! A peer that sends what it likes, and stops when it likes.

use nvme_proto::fabrics::connect::{Connect, ConnectAttributes, ConnectData, Connected};
use nvme_proto::fabrics::property::{Configuration, Property, PropertySet};
use nvme_proto::nvm::rw::ReadWrite;
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::rdma::Request;
use nvme_proto::{Cntlid, Cqe, HostId, Nqn, Nsid, Qid, SglDescriptor, Sqe};
use nvmf_iwarp::{IwarpConfig, IwarpProvider};
use nvmf_memory::Memory;
use nvmf_rdma::{
    Access, CmEvent, CompletionQueueId, ConnectParameters, MemoryRegion, Opcode, Payload, PrivateData,
    Provider, QueuePairAttributes, QueuePairId, ReceiveRequest, SendOperation, SendRequest, Sge,
    WorkRequestId,
};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

const BOUND: Duration = Duration::from_secs(20);
const SLOTS: usize = 40;
const CAPSULE: usize = 8192;
/// Where the memory begins that is exposed.
const DATA: usize = SLOTS * (CAPSULE + 16);
const DATA_LEN: usize = 256 << 10;

/// One queue pair of a hostile host.
pub(crate) struct Peer {
    provider: IwarpProvider,
    qp: QueuePairId,
    cq: CompletionQueueId,
    memory: Memory,
    region: MemoryRegion,
    host: u8,
    next_cid: u16,
    begun: Instant,
}

impl Peer {
    /// A connection for this queue, from an address of its own.
    pub(crate) fn established(address: SocketAddr, qid: u16, cntlid: Cntlid) -> Self {
        let mut provider = IwarpProvider::new(IwarpConfig::default()).expect("a provider");
        let cq = provider.create_completion_queue(1024).expect("a completion queue");
        let attributes = QueuePairAttributes {
            send_cq: cq,
            receive_cq: cq,
            shared_receive_queue: None,
            max_send: 256,
            max_receive: SLOTS as u32,
            max_exposed: SLOTS as u32,
        };
        let qp = provider.create_queue_pair(&attributes).expect("a queue pair");
        let memory = Memory::alloc(DATA + DATA_LEN).expect("memory");
        let region = provider.register(&memory, Access::LOCAL_WRITE).expect("a registration");
        for slot in 0..SLOTS {
            let buffer = Sge { local_key: region.local_key, offset: SLOTS * CAPSULE + slot * 16, len: 16 };
            let request = ReceiveRequest { id: WorkRequestId(slot as u64), buffer };
            provider.post_receive(qp, request).expect("a receive");
        }
        let mut peer = Self { provider, qp, cq, memory, region, host: 2, next_cid: 0, begun: Instant::now() };
        let request = Request { qid: Qid(qid), hrqsize: 32, hsqsize: 32, cntlid };
        let parameters = ConnectParameters {
            private_data: PrivateData::new(request.emit().as_bytes()).expect("32 bytes fit"),
            responder_resources: 16,
            initiator_depth: 1,
            timeout: BOUND,
        };
        let source = SocketAddr::from(([127, 0, 0, 2], 0));
        peer.provider.connect(peer.now(), qp, address, Some(source), &parameters).expect("a connection");
        peer.until(|peer| match peer.provider.poll_cm(peer.now())? {
            CmEvent::Established { .. } => Some(()),
            other => panic!("{other:?}"),
        });
        peer
    }

    pub(crate) fn with_host(self, host: u8) -> Self {
        Self { host, ..self }
    }

    fn now(&self) -> Duration {
        self.begun.elapsed() + Duration::from_secs(1)
    }

    fn until<T>(&mut self, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(value) = done(self) {
                return value;
            }
            assert!(begun.elapsed() < BOUND, "the target does not answer");
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn expose(&mut self, len: u32) -> SglDescriptor {
        let range = Sge { local_key: self.region.local_key, offset: DATA, len };
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let remote = self.provider.expose(self.qp, range, access).expect("a key");
        SglDescriptor::keyed(remote.address, len, remote.key.0, true)
    }

    fn send(&mut self, mut sqe: Sqe, in_capsule: &[u8]) -> u16 {
        let cid = self.next_cid;
        self.next_cid += 1;
        sqe.cid = cid.into();
        let offset = usize::from(cid) % SLOTS * CAPSULE;
        let capsule = [sqe.as_bytes(), in_capsule].concat();
        self.memory.write(offset, &capsule);
        let sge = [Sge { local_key: self.region.local_key, offset, len: capsule.len() as u32 }];
        let operation =
            SendOperation::Send { payload: Payload::Gather(&sge), invalidate: None, solicited: true };
        let request = SendRequest { id: WorkRequestId(1 << 32), operation, signaled: true };
        self.provider.post_send(self.qp, request).expect("a place in the send queue");
        self.provider.flush();
        cid
    }

    fn response(&mut self, cid: u16) -> Cqe {
        let cqe = self.until(|peer| {
            let mut completions = Vec::with_capacity(16);
            peer.provider.poll_cq(peer.cq, &mut completions);
            peer.provider.flush();
            completions.iter().filter(|done| done.opcode == Opcode::Receive).find_map(|done| {
                assert!(done.status.is_success(), "{}", done.status);
                let mut cqe = [0; 16];
                peer.memory.read(SLOTS * CAPSULE + done.id.0 as usize * 16, &mut cqe);
                Cqe::read_from_bytes(&cqe).ok().filter(|cqe| cqe.cid.get() == cid)
            })
        });
        assert!(cqe.status().is_success(), "{}", cqe.status());
        cqe
    }

    fn connect_data(&self, cntlid: Cntlid, subsystem: &Nqn) -> ConnectData {
        ConnectData::new(HostId([self.host; 16]), cntlid, subsystem, &Nqn::from_uuid([self.host; 16]))
    }

    fn connect_command(qid: u16) -> Sqe {
        let (attributes, kato_ms) = (ConnectAttributes::default(), if qid == 0 { 120_000 } else { 0 });
        Connect { recfmt: 0, qid: Qid(qid), sqsize_z: 31, attributes, kato_ms }.emit()
    }

    /// A Connect whose data must be read.
    pub(crate) fn send_connect(&mut self, qid: u16, cntlid: Cntlid, subsystem: &Nqn) -> u16 {
        let data = self.connect_data(cntlid, subsystem);
        self.memory.write(DATA, data.as_bytes());
        let mut sqe = Self::connect_command(qid);
        sqe.sgl = self.expose(1024);
        self.send(sqe, &[])
    }

    /// Connects an Admin queue and enables its controller.
    pub(crate) fn connect_admin(&mut self, subsystem: &Nqn) -> Cntlid {
        let cid = self.send_connect(0, Cntlid::DYNAMIC, subsystem);
        let cntlid = Connected::parse(self.response(cid).dw0.get()).cntlid;
        let set = PropertySet { property: Property::CC, size: 0, value: Configuration::ENABLE.0.into() };
        let cid = self.send(set.emit(), &[]);
        self.response(cid);
        cntlid
    }

    /// Connects an I/O queue.
    pub(crate) fn connect_io(&mut self, qid: u16, cntlid: Cntlid, subsystem: &Nqn) {
        let data = self.connect_data(cntlid, subsystem);
        let mut sqe = Self::connect_command(qid);
        sqe.sgl = SglDescriptor::in_capsule(0, 1024);
        let cid = self.send(sqe, data.as_bytes());
        self.response(cid);
    }

    /// A read or a write that moves data.
    pub(crate) fn send_transfer(&mut self, write: bool, len: u32) {
        let opcode = if write { NvmOpcode::WRITE } else { NvmOpcode::READ };
        // Behind what the honest host verifies.
        let mut sqe = ReadWrite::new(24 * 1024, len / 512).emit(opcode, Nsid(1));
        sqe.sgl = self.expose(len);
        self.send(sqe, &[]);
    }

    /// Get Log Page, 4096 bytes of the discovery log.
    pub(crate) fn send_log_page(&mut self) {
        let mut sqe = Sqe::new(AdminOpcode::GET_LOG_PAGE.0).with_dwords([0x03ff_0070, 0, 0, 0, 0, 0]);
        sqe.sgl = self.expose(4096);
        self.send(sqe, &[]);
    }
}
