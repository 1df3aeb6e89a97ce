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

/// How often a peer begins its set-up anew: the target may close a connection that is slow, or one too many of its
/// address.
const ATTEMPTS: usize = 20;

/// The target closed the connection, or did not set it up.
#[derive(Debug)]
pub(crate) struct Gone(String);

/// Does a set-up anew while the target ends its connections: on a busy machine it may be slower than the target waits.
pub(crate) fn set_up<T>(mut attempt: impl FnMut() -> Result<T, Gone>) -> T {
    let mut causes = Vec::new();
    for _ in 0..ATTEMPTS {
        match attempt() {
            Ok(done) => return done,
            Err(Gone(cause)) => causes.push(cause),
        }
    }
    panic!("no set-up succeeds: {causes:?}");
}

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
    pub(crate) fn established(address: SocketAddr, qid: u16, cntlid: Cntlid) -> Result<Self, Gone> {
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
            CmEvent::Established { .. } => Some(Ok(())),
            other => Some(Err(Gone(format!("{other:?}")))),
        })?;
        Ok(peer)
    }

    pub(crate) fn with_host(self, host: u8) -> Self {
        Self { host, ..self }
    }

    fn now(&self) -> Duration {
        self.begun.elapsed() + Duration::from_secs(1)
    }

    fn until<T>(&mut self, mut done: impl FnMut(&mut Self) -> Option<Result<T, Gone>>) -> Result<T, Gone> {
        let begun = Instant::now();
        loop {
            if let Some(result) = done(self) {
                return result;
            }
            if begun.elapsed() > BOUND {
                return Err(Gone("the target does not answer".into()));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn expose(&mut self, len: u32) -> Result<SglDescriptor, Gone> {
        let range = Sge { local_key: self.region.local_key, offset: DATA, len };
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let remote = self.provider.expose(self.qp, range, access).map_err(|error| Gone(error.to_string()))?;
        Ok(SglDescriptor::keyed(remote.address, len, remote.key.0, true))
    }

    fn send(&mut self, mut sqe: Sqe, in_capsule: &[u8]) -> Result<u16, Gone> {
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
        self.provider.post_send(self.qp, request).map_err(|error| Gone(error.to_string()))?;
        self.provider.flush();
        Ok(cid)
    }

    fn response(&mut self, cid: u16) -> Result<Cqe, Gone> {
        let cqe = self.until(|peer| {
            let mut completions = Vec::with_capacity(16);
            peer.provider.poll_cq(peer.cq, &mut completions);
            peer.provider.flush();
            completions.iter().filter(|done| done.opcode == Opcode::Receive).find_map(|done| {
                if !done.status.is_success() {
                    return Some(Err(Gone(done.status.to_string())));
                }
                let mut cqe = [0; 16];
                peer.memory.read(SLOTS * CAPSULE + done.id.0 as usize * 16, &mut cqe);
                Cqe::read_from_bytes(&cqe).ok().filter(|cqe| cqe.cid.get() == cid).map(Ok)
            })
        })?;
        if !cqe.status().is_success() {
            return Err(Gone(cqe.status().to_string()));
        }
        Ok(cqe)
    }

    fn connect_data(&self, cntlid: Cntlid, subsystem: &Nqn) -> ConnectData {
        ConnectData::new(HostId([self.host; 16]), cntlid, subsystem, &Nqn::from_uuid([self.host; 16]))
    }

    fn connect_command(qid: u16) -> Sqe {
        let (attributes, kato_ms) = (ConnectAttributes::default(), if qid == 0 { 120_000 } else { 0 });
        Connect { recfmt: 0, qid: Qid(qid), sqsize_z: 31, attributes, kato_ms }.emit()
    }

    /// A Connect whose data must be read.
    pub(crate) fn send_connect(&mut self, qid: u16, cntlid: Cntlid, subsystem: &Nqn) -> Result<u16, Gone> {
        let data = self.connect_data(cntlid, subsystem);
        self.memory.write(DATA, data.as_bytes());
        let mut sqe = Self::connect_command(qid);
        sqe.sgl = self.expose(1024)?;
        self.send(sqe, &[])
    }

    /// Connects an Admin queue and enables its controller.
    pub(crate) fn connect_admin(&mut self, subsystem: &Nqn) -> Result<Cntlid, Gone> {
        let cid = self.send_connect(0, Cntlid::DYNAMIC, subsystem)?;
        let cntlid = Connected::parse(self.response(cid)?.dw0.get()).cntlid;
        let set = PropertySet { property: Property::CC, size: 0, value: Configuration::ENABLE.0.into() };
        let cid = self.send(set.emit(), &[])?;
        self.response(cid)?;
        Ok(cntlid)
    }

    /// Connects an I/O queue.
    pub(crate) fn connect_io(&mut self, qid: u16, cntlid: Cntlid, subsystem: &Nqn) -> Result<(), Gone> {
        let data = self.connect_data(cntlid, subsystem);
        let mut sqe = Self::connect_command(qid);
        sqe.sgl = SglDescriptor::in_capsule(0, 1024);
        let cid = self.send(sqe, data.as_bytes())?;
        self.response(cid)?;
        Ok(())
    }

    /// A read or a write that moves data.
    pub(crate) fn send_transfer(&mut self, write: bool, len: u32) -> Result<(), Gone> {
        let opcode = if write { NvmOpcode::WRITE } else { NvmOpcode::READ };
        // Behind what the honest host verifies.
        let mut sqe = ReadWrite::new(24 * 1024, len / 512).emit(opcode, Nsid(1));
        sqe.sgl = self.expose(len)?;
        self.send(sqe, &[])?;
        Ok(())
    }

    /// Get Log Page, 4096 bytes of the discovery log.
    pub(crate) fn send_log_page(&mut self) -> Result<(), Gone> {
        let mut sqe = Sqe::new(AdminOpcode::GET_LOG_PAGE.0).with_dwords([0x03ff_0070, 0, 0, 0, 0, 0]);
        sqe.sgl = self.expose(4096)?;
        self.send(sqe, &[])?;
        Ok(())
    }
}
