//! A target in the same process that does what a test tells it: NVMe/RDMA over loopback, without an engine behind it.

use core::time::Duration;
use nvme_proto::admin::ana::AnaWriter;
use nvme_proto::admin::cross_controller_reset::{
    ControllerInstance, CrossControllerReset, ResetLogEntry, ResetLogHeader, ResetStatus,
};
use nvme_proto::admin::features::QueueCounts;
use nvme_proto::admin::identify::{
    Cns, DescriptorWriter, IdList, Identify, IdentifyController, IdentifyNamespace, NamespaceIdType,
    NvmController, cmic, fuses, oncs, sgls, vwc,
};
use nvme_proto::admin::log_page::{AnaState, GetLogPage, LogPageId};
use nvme_proto::fabrics::connect::{Connect, Connected};
use nvme_proto::fabrics::fabrics_type;
use nvme_proto::fabrics::property::{Capabilities, Property, PropertyGet, PropertySet};
use nvme_proto::nvm::fused::FusedOperation;
use nvme_proto::nvm::{CopyCommand, DsmRange, ReadWrite};
use nvme_proto::opcode::{AdminOpcode, FabricsType, NvmOpcode};
use nvme_proto::rdma::{AcceptData, Request};
use nvme_proto::sgl::Sgl;
use nvme_proto::{Cntlid, Cqe, Nsid, Qid, Sqe, Status};
use nvmf_memory::Memory;
use nvmf_rdma::loopback::{Fabric, Loopback};
use nvmf_rdma::{
    Access, CmEvent, Completion, CompletionQueueId, ConnectParameters, MemoryRegion, Opcode, Payload,
    PrivateData, Provider, QueuePairAttributes, QueuePairId, ReceiveRequest, RemoteKey, RemoteMemory,
    SendOperation, SendRequest, Sge, WcStatus, WorkRequestId,
};
use std::collections::BTreeMap;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Bytes of a capsule: an SQE and what may come behind it.
const CAPSULE: usize = Sqe::LEN + 4096;
/// Receives of a queue.
const RECEIVES: usize = 64;
/// Blocks that it copies at once.
pub(crate) const COPY_BLOCKS: u32 = 100;
/// Bytes of the memory that data pass through.
const SCRATCH: usize = 1 << 20;

pub(crate) const CNTLID: u16 = 1;

/// What a namespace is made of.
pub(crate) struct Disk {
    pub(crate) uuid: [u8; 16],
    pub(crate) block_size: usize,
    pub(crate) bytes: Vec<u8>,
}

impl Disk {
    pub(crate) fn new(uuid: u8, block_size: usize, blocks: usize) -> Self {
        Self { uuid: [uuid; 16], block_size, bytes: vec![uuid; block_size * blocks] }
    }
}

/// Which key a response invalidates.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Invalidate {
    Own,
    None,
    /// That of the oldest command that is held back.
    OfHeld,
}

/// A command of the host's.
#[derive(Clone)]
pub(crate) struct Capsule {
    pub(crate) qp: QueuePairId,
    pub(crate) sqe: Sqe,
    data: Vec<u8>,
}

struct Queue {
    qid: Option<Qid>,
    memory: Memory,
    region: MemoryRegion,
    /// Commands taken, and so SQHD; the host's queue has so many entries.
    head: u16,
    entries: u16,
}

impl Capsule {
    /// The first block that an I/O command names.
    pub(crate) fn first_block(&self) -> u64 {
        ReadWrite::parse(&self.sqe).slba
    }
}

pub(crate) struct Target {
    provider: Loopback,
    cq: CompletionQueueId,
    scratch: Memory,
    region: MemoryRegion,
    queues: BTreeMap<QueuePairId, Queue>,
    completions: Vec<Completion>,
    pub(crate) disks: BTreeMap<u32, Disk>,
    pub(crate) write_cache: bool,
    /// Its namespaces are write protected.
    pub(crate) read_only: bool,
    pub(crate) transfer_pages: u8,
    pub(crate) traffic_based_keep_alive: bool,
    pub(crate) invalidate: Invalidate,
    /// Commands that get this status.
    pub(crate) refuse: fn(&Capsule, bool) -> Option<Status>,
    /// I/O commands are held back.
    pub(crate) hold: bool,
    /// Admin commands are held back that the host's user sent, or anyone: those with this opcode.
    pub(crate) hold_admin: Option<AdminOpcode>,
    pub(crate) held: Vec<Capsule>,
    /// What is held back is carried out even after its connection is gone.
    pub(crate) late: bool,
    /// It has Cross-Controller Reset: each Admin queue has a controller of its own.
    pub(crate) resets: bool,
    /// Controllers of other targets that it was asked to reset.
    pub(crate) reset: Vec<Cntlid>,
    /// Reports how its namespaces can be reached: all of them so.
    pub(crate) access: Option<AnaState>,
    /// Reads of the log page for which a reset is under way; it is answered at once when this is 0.
    pub(crate) reset_takes: u32,
    pub(crate) cntlid: u16,
    /// It takes no connection.
    pub(crate) closed: bool,
    /// The I/O commands that came: opcode, NSID, first block, FUA.
    pub(crate) seen: Vec<(NvmOpcode, u32, u64, bool)>,
    pub(crate) keep_alives: u32,
    /// The status of the first command of a pair.
    first: Option<Status>,
    event_requests: Vec<Capsule>,
    configuration: u32,
}

impl Target {
    pub(crate) fn new(fabric: &Fabric, address: std::net::SocketAddr) -> Self {
        let mut provider = fabric.provider();
        let cq = provider.create_completion_queue(4096).unwrap();
        provider.listen(address, 16).unwrap();
        let scratch = Memory::alloc(SCRATCH).unwrap();
        let region = provider.register(&scratch, Access::LOCAL_WRITE).unwrap();
        Self {
            provider,
            cq,
            scratch,
            region,
            queues: BTreeMap::new(),
            completions: Vec::with_capacity(64),
            disks: BTreeMap::new(),
            write_cache: true,
            read_only: false,
            transfer_pages: 0,
            traffic_based_keep_alive: false,
            invalidate: Invalidate::Own,
            refuse: |_, _| None,
            hold: false,
            hold_admin: None,
            held: Vec::new(),
            late: false,
            resets: false,
            reset: Vec::new(),
            access: None,
            reset_takes: 0,
            cntlid: CNTLID,
            closed: false,
            seen: Vec::new(),
            keep_alives: 0,
            first: None,
            event_requests: Vec::new(),
            configuration: 0,
        }
    }

    /// Does what there is to do; whether that was something.
    pub(crate) fn turn(&mut self, now: Duration) -> bool {
        let mut worked = false;
        while let Some(event) = self.provider.poll_cm(now) {
            worked = true;
            self.on_event(now, &event);
        }
        let mut completions = core::mem::take(&mut self.completions);
        self.provider.poll_cq(self.cq, &mut completions);
        for completion in completions.drain(..) {
            worked = true;
            self.on_completion(&completion);
        }
        self.completions.append(&mut completions);
        self.completions.reserve(64);
        self.provider.flush();
        worked
    }

    /// Ends every connection, as a target that stops does. What was held back is dropped.
    pub(crate) fn disconnect(&mut self) {
        self.forget();
        for qp in core::mem::take(&mut self.queues).into_keys() {
            self.provider.disconnect(qp);
            self.provider.destroy_queue_pair(qp);
        }
    }

    /// Ends the connections of the I/O queues, as a target does whose host broke a rule there. What was held back stays.
    pub(crate) fn disconnect_io(&mut self) {
        for (qp, _) in self.queues.extract_if(.., |_, queue| queue.qid != Some(Qid(0))) {
            self.provider.disconnect(qp);
            self.provider.destroy_queue_pair(qp);
        }
    }

    fn forget(&mut self) {
        self.first = None;
        if !self.late {
            self.held.clear();
        }
        self.event_requests.clear();
        self.configuration = 0;
    }

    /// Announces a change of the namespaces.
    pub(crate) fn announce(&mut self) {
        let request = self.event_requests.remove(0);
        let event = nvme_proto::admin::async_event::AsyncEvent::ATTACHED_NAMESPACE_ATTRIBUTE_CHANGED.emit();
        self.respond(&request, Status::SUCCESS, event, None);
        self.provider.flush();
    }

    /// Changes how its namespaces can be reached, and announces it.
    pub(crate) fn set_access(&mut self, access: AnaState) {
        self.access = Some(access);
        if !self.event_requests.is_empty() {
            let request = self.event_requests.remove(0);
            let event = nvme_proto::admin::async_event::AsyncEvent::ANA_CHANGE.emit();
            self.respond(&request, Status::SUCCESS, event, None);
            self.provider.flush();
        }
    }

    /// Carries out the oldest command that is held back.
    pub(crate) fn release(&mut self) {
        let capsule = self.held.remove(0);
        self.execute(&capsule);
        self.provider.flush();
    }

    /// Carries out what is held back, though nobody waits for it any more.
    pub(crate) fn carry_out_late(&mut self) {
        for capsule in core::mem::take(&mut self.held) {
            self.execute_io(&capsule);
        }
    }

    /// Answers a command that is held back without carrying it out.
    pub(crate) fn answer(&mut self, at: usize, status: Status) {
        let capsule = self.held.remove(at);
        self.respond(&capsule, status, 0, None);
        self.provider.flush();
    }

    /// Sends the host a response to a command that it may have forgotten.
    pub(crate) fn write_late(&mut self, capsule: &Capsule) -> WcStatus {
        self.deliver(capsule, &[0xbb; 512])
    }

    fn on_event(&mut self, now: Duration, event: &CmEvent) {
        match event {
            CmEvent::ConnectRequest { request, .. } if self.closed => {
                self.provider.reject(*request, &PrivateData::EMPTY);
            }
            CmEvent::ConnectRequest { request, private_data, .. } => {
                let asked = Request::parse(private_data.as_bytes()).unwrap();
                let attributes = QueuePairAttributes {
                    send_cq: self.cq,
                    receive_cq: self.cq,
                    shared_receive_queue: None,
                    max_send: 256,
                    max_receive: RECEIVES as u32,
                    max_exposed: 0,
                };
                let qp = self.provider.create_queue_pair(&attributes).unwrap();
                let memory = Memory::alloc(CAPSULE * (RECEIVES + 1)).unwrap();
                let region = self.provider.register(&memory, Access::LOCAL_WRITE).unwrap();
                let queue = Queue { qid: None, memory, region, head: 0, entries: asked.hrqsize };
                self.queues.insert(qp, queue);
                (0..RECEIVES).for_each(|index| self.post_receive(qp, index));
                let data = AcceptData::new(asked.hrqsize);
                let parameters = ConnectParameters {
                    private_data: PrivateData::new(data.as_bytes()).unwrap(),
                    responder_resources: 0,
                    initiator_depth: 16,
                    timeout: Duration::from_secs(3),
                };
                // The host may have given it up while this target was silent.
                if self.provider.accept(now, *request, qp, &parameters).is_err() {
                    self.provider.destroy_queue_pair(qp);
                    self.queues.remove(&qp);
                }
            }
            CmEvent::Disconnected { queue_pair, .. } => {
                self.provider.destroy_queue_pair(*queue_pair);
                self.queues.remove(queue_pair);
                if self.queues.is_empty() {
                    self.forget();
                }
            }
            CmEvent::Established { .. } | CmEvent::ConnectFailed { .. } | CmEvent::DeviceRemoved => {}
        }
    }

    fn post_receive(&mut self, qp: QueuePairId, index: usize) {
        let key = self.queues[&qp].region.local_key;
        let buffer = Sge { local_key: key, offset: index * CAPSULE, len: CAPSULE as u32 };
        let id = WorkRequestId(index as u64);
        self.provider.post_receive(qp, ReceiveRequest { id, buffer }).unwrap();
    }

    fn on_completion(&mut self, completion: &Completion) {
        if completion.opcode != Opcode::Receive || !completion.status.is_success() {
            return;
        }
        let (qp, index) = (completion.queue_pair, completion.id.0 as usize);
        let Some(queue) = self.queues.get_mut(&qp) else { return };
        queue.head = (queue.head + 1) % queue.entries;
        let mut bytes = vec![0; completion.byte_len as usize];
        queue.memory.read(index * CAPSULE, &mut bytes);
        self.post_receive(qp, index);
        let (sqe, data) = Sqe::read_from_prefix(&bytes).unwrap();
        let capsule = Capsule { qp, sqe, data: data.to_vec() };
        if fabrics_type(&capsule.sqe) == Some(FabricsType::CONNECT) {
            let qid = Connect::parse(&capsule.sqe).qid;
            self.queues.get_mut(&qp).unwrap().qid = Some(qid);
        }
        if self.is_io(&capsule) {
            let rw = ReadWrite::parse(&capsule.sqe);
            self.seen.push((NvmOpcode(capsule.sqe.opcode), capsule.sqe.nsid().0, rw.slba, rw.fua));
            if self.hold {
                return self.held.push(capsule);
            }
        } else if self.hold_admin == Some(AdminOpcode(capsule.sqe.opcode)) {
            return self.held.push(capsule);
        }
        self.execute(&capsule);
    }

    fn is_io(&self, capsule: &Capsule) -> bool {
        let qid = self.queues.get(&capsule.qp).and_then(|queue| queue.qid);
        qid.is_some_and(|qid| !qid.is_admin()) && fabrics_type(&capsule.sqe).is_none()
    }

    fn execute(&mut self, capsule: &Capsule) {
        let io = self.is_io(capsule);
        if let Some(status) = (self.refuse)(capsule, io) {
            if FusedOperation::parse(capsule.sqe.flags) == FusedOperation::FIRST {
                self.first = Some(status);
            }
            return self.respond(capsule, status, 0, None);
        }
        if io { self.execute_io(capsule) } else { self.execute_admin(capsule) }
    }

    fn execute_io(&mut self, capsule: &Capsule) {
        let nsid = capsule.sqe.nsid().0;
        let Some(block_size) = self.disks.get(&nsid).map(|disk| disk.block_size) else {
            return self.respond(capsule, Status::INVALID_NAMESPACE.with_dnr(), 0, None);
        };
        let opcode = NvmOpcode(capsule.sqe.opcode);
        let rw = ReadWrite::parse(&capsule.sqe);
        let start = rw.slba as usize * block_size;
        let range = start..start + rw.blocks as usize * block_size;
        let mut status = Status::SUCCESS;
        let fused = FusedOperation::parse(capsule.sqe.flags);
        if fused == FusedOperation::SECOND {
            let first = self.first.take().expect("nothing came between the two");
            if !first.is_success() {
                return self.respond(capsule, Status::ABORTED_FAILED_FUSED, 0, None);
            }
        }
        assert!(self.first.is_none(), "{opcode:?} came between a pair");
        match opcode {
            NvmOpcode::COPY => {
                let [sdlba, high, dword12, ..] = capsule.sqe.dwords();
                let copy = CopyCommand::parse(sdlba, high, dword12);
                let data = self.fetch(capsule);
                let source = copy.source_ranges(&data).unwrap().next().unwrap();
                assert!(source.blocks <= COPY_BLOCKS && copy.ranges == 1);
                let (from, to) = (source.slba as usize * block_size, copy.sdlba as usize * block_size);
                let len = source.blocks as usize * block_size;
                self.disks.get_mut(&nsid).unwrap().bytes.copy_within(from..from + len, to);
            }
            NvmOpcode::READ => {
                let bytes = self.disks[&nsid].bytes[range].to_vec();
                self.deliver(capsule, &bytes);
            }
            NvmOpcode::WRITE => {
                let bytes = self.fetch(capsule);
                self.disks.get_mut(&nsid).unwrap().bytes[range].copy_from_slice(&bytes);
            }
            NvmOpcode::COMPARE => {
                let bytes = self.fetch(capsule);
                if self.disks[&nsid].bytes[range] != bytes {
                    status = Status::COMPARE_FAILURE;
                }
            }
            NvmOpcode::WRITE_ZEROES => self.disks.get_mut(&nsid).unwrap().bytes[range].fill(0),
            NvmOpcode::DATASET_MANAGEMENT => {
                let range = DsmRange::read_from_bytes(&self.fetch(capsule)[..16]).unwrap();
                let start = range.slba.get() as usize * block_size;
                let end = start + range.blocks.get() as usize * block_size;
                self.disks.get_mut(&nsid).unwrap().bytes[start..end].fill(0);
            }
            _ => {}
        }
        if fused == FusedOperation::FIRST {
            self.first = Some(status);
        }
        self.respond(capsule, status, 0, None);
    }

    fn execute_admin(&mut self, capsule: &Capsule) {
        let sqe = &capsule.sqe;
        let mut result = 0_u64;
        match (AdminOpcode(sqe.opcode), fabrics_type(sqe)) {
            (_, Some(FabricsType::CONNECT)) => {
                if self.resets && Connect::parse(sqe).qid == Qid(0) {
                    self.cntlid += 1;
                }
                let connected = Connected {
                    cntlid: Cntlid(self.cntlid),
                    authentication_required: false,
                    secure_channel_required: false,
                };
                result = connected.emit().into();
            }
            (_, Some(FabricsType::PROPERTY_SET)) => {
                self.configuration = PropertySet::parse(sqe).value as u32;
            }
            (_, Some(_)) => {
                result = match PropertyGet::parse(sqe).property {
                    Property::CAP => Capabilities::new(128, 15).0,
                    Property::VS => 0x0002_0000,
                    // Ready, or shut down, as CC has it.
                    _ if self.configuration >> 14 & 0b11 != 0 => 0b1001,
                    _ => 1,
                };
            }
            (AdminOpcode::ASYNC_EVENT_REQUEST, _) => {
                return self.event_requests.push(Capsule { qp: capsule.qp, sqe: *sqe, data: Vec::new() });
            }
            (AdminOpcode::IDENTIFY, _) => {
                let page = self.identify(&Identify::parse(sqe));
                self.deliver(capsule, &page);
            }
            (AdminOpcode::GET_LOG_PAGE, _)
                if GetLogPage::parse(sqe).lid == LogPageId::CROSS_CONTROLLER_RESET =>
            {
                self.reset_takes -= 1;
                let (status, cntlid) = match self.reset_takes {
                    0 => (ResetStatus::SUCCESSFUL, Cntlid(self.cntlid - 1)),
                    _ => (ResetStatus::IN_PROGRESS, Cntlid(self.cntlid - 1)),
                };
                if self.reset_takes == 0 {
                    self.held.clear();
                }
                let impacted = ControllerInstance { cntlid, uniquifier: 1, random: 0 };
                let entry = ResetLogEntry::new(&impacted, Cntlid(self.cntlid), status);
                self.deliver(capsule, &[ResetLogHeader::new(1).as_bytes(), entry.as_bytes()].concat());
            }
            (AdminOpcode::GET_LOG_PAGE, _) if GetLogPage::parse(sqe).lid == LogPageId::ANA => {
                let mut page = vec![0; 4096];
                let mut writer = AnaWriter::new(&mut page, 1).unwrap();
                let state = self.access.expect("it reports it");
                writer.push(1, 1, state, self.disks.keys().copied().map(Nsid)).unwrap();
                self.deliver(capsule, &page);
            }
            (AdminOpcode::GET_LOG_PAGE, _) => {
                let len = sqe.sgl.parse().map_or(0, |sgl| sgl.len());
                self.deliver(capsule, &vec![0; len as usize]);
            }
            (AdminOpcode::SET_FEATURES, _) if sqe.cdw10.get() == 7 => {
                result = QueueCounts { submission: 4, completion: 4 }.emit().into();
            }
            (AdminOpcode::CROSS_CONTROLLER_RESET, _) => {
                let impacted = CrossControllerReset::parse(sqe).impacted;
                if impacted.cntlid.0 >> 8 != self.cntlid >> 8 {
                    self.reset.push(impacted.cntlid);
                    return self.respond(capsule, Status::SUCCESS, 1, None);
                }
                assert_eq!(
                    (impacted.cntlid.0, impacted.random),
                    (self.cntlid - 1, u64::from(self.cntlid) - 1)
                );
                result = u64::from(self.reset_takes == 0);
                if self.reset_takes == 0 {
                    self.held.clear();
                }
            }
            (AdminOpcode::KEEP_ALIVE, _) => self.keep_alives += 1,
            _ => {}
        }
        self.respond(capsule, Status::SUCCESS, result as u32, Some((result >> 32) as u32));
    }

    fn identify(&self, identify: &Identify) -> Vec<u8> {
        let nsid = identify.nsid.0;
        match identify.cns {
            Cns::CONTROLLER => {
                let mut page = IdentifyController::new();
                page.cntlid = self.cntlid.into();
                page.ciu = self.resets.into();
                page.cirn = u64::from(self.cntlid).into();
                page.kas = 10.into();
                page.ioccsz = ((CAPSULE / 16) as u32).into();
                page.iorcsz = 1.into();
                page.sgls = (sgls::SUPPORTED | sgls::KSDBDS | sgls::SAOS).into();
                page.mdts = self.transfer_pages;
                page.oaes = (1 << 8 | 1 << 11).into();
                page.cmic = if self.access.is_some() { cmic::ANARS } else { 0 };
                page.anatt = 10;
                let copies = oncs::WRITE_ZEROES | oncs::COMPARE | oncs::COPY;
                page.oncs = (oncs::DATASET_MANAGEMENT | copies).into();
                page.fuses = fuses::COMPARE_AND_WRITE.into();
                page.cdfs = 1.into();
                page.vwc = if self.write_cache { vwc::PRESENT } else { 0 };
                page.ctratt = u32::from(self.traffic_based_keep_alive).wrapping_shl(6).into();
                page.aerl_z = 3;
                page.msdbd = 1;
                page.as_bytes().to_vec()
            }
            Cns::COMMAND_SET_CONTROLLER => NvmController::new_zeroed().as_bytes().to_vec(),
            Cns::ACTIVE_NAMESPACES => IdList::new(self.disks.keys().copied()).as_bytes().to_vec(),
            Cns::NAMESPACE => {
                let mut page = IdentifyNamespace::new_zeroed();
                if let Some(disk) = self.disks.get(&nsid) {
                    page.nsattr = self.read_only.into();
                    page.nsze = ((disk.bytes.len() / disk.block_size) as u64).into();
                    page.mssrl = (COPY_BLOCKS as u16).into();
                    page.mcl = (2 * COPY_BLOCKS).into();
                    page.lbaf[0].lbads = disk.block_size.trailing_zeros() as u8;
                }
                page.as_bytes().to_vec()
            }
            Cns::NAMESPACE_DESCRIPTORS => {
                let mut page = [0; 4096];
                let uuid = self.disks.get(&nsid).map_or([0; 16], |disk| disk.uuid);
                DescriptorWriter::new(&mut page).push(NamespaceIdType::UUID, &uuid);
                page.to_vec()
            }
            _ => vec![0; 4096],
        }
    }

    /// The data that come with a command, or that it points at.
    fn fetch(&mut self, capsule: &Capsule) -> Vec<u8> {
        let Ok(Sgl::Keyed { address, len, key, .. }) = capsule.sqe.sgl.parse() else {
            return capsule.data.clone();
        };
        let remote = RemoteMemory { key: RemoteKey(key), address, len };
        let into = Sge { local_key: self.region.local_key, offset: 0, len };
        let status = self.transfer(capsule.qp, SendOperation::Read { into, remote });
        assert_eq!(status, WcStatus::Success, "the host exposed what it points at");
        let mut bytes = vec![0; len as usize];
        self.scratch.read(0, &mut bytes);
        bytes
    }

    fn deliver(&mut self, capsule: &Capsule, bytes: &[u8]) -> WcStatus {
        let Ok(Sgl::Keyed { address, len, key, .. }) = capsule.sqe.sgl.parse() else { panic!("no key") };
        let bytes = &bytes[..bytes.len().min(len as usize)];
        self.scratch.write(0, bytes);
        let remote = RemoteMemory { key: RemoteKey(key), address, len };
        let from = Sge { local_key: self.region.local_key, offset: 0, len: bytes.len() as u32 };
        self.transfer(capsule.qp, SendOperation::Write { payload: Payload::Gather(&[from]), remote })
    }

    /// Posts and waits: nothing is under way for long on this fabric.
    fn transfer(&mut self, qp: QueuePairId, operation: SendOperation<'_>) -> WcStatus {
        const ID: WorkRequestId = WorkRequestId(1 << 40);
        if self.provider.post_send(qp, SendRequest { id: ID, operation, signaled: true }).is_err() {
            return WcStatus::Flushed;
        }
        let mut others = Vec::new();
        for _ in 0..100 {
            let mut completions = Vec::with_capacity(64);
            self.provider.flush();
            self.provider.poll_cq(self.cq, &mut completions);
            let status = completions.iter().find(|done| done.id == ID).map(|done| done.status);
            others.extend(completions.into_iter().filter(|done| done.id != ID));
            if let Some(status) = status {
                self.completions.append(&mut others);
                return status;
            }
        }
        panic!("a transfer does not end");
    }

    fn respond(&mut self, capsule: &Capsule, status: Status, dw0: u32, dw1: Option<u32>) {
        let Some(queue) = self.queues.get(&capsule.qp) else { return };
        let mut cqe = Cqe::new(capsule.sqe.cid(), status, dw0);
        if let Some(dw1) = dw1 {
            cqe = cqe.with_result(u64::from(dw1) << 32 | u64::from(dw0));
        }
        cqe.sqhd = queue.head.into();
        let key = |sqe: &Sqe| match sqe.sgl.parse() {
            Ok(Sgl::Keyed { key, len: 1.., .. }) => Some(RemoteKey(key)),
            _ => None,
        };
        let invalidate = match self.invalidate {
            Invalidate::Own => key(&capsule.sqe),
            Invalidate::None => None,
            Invalidate::OfHeld if self.is_io(capsule) => self.held.first().and_then(|held| key(&held.sqe)),
            Invalidate::OfHeld => key(&capsule.sqe),
        };
        let payload = Payload::Inline(cqe.as_bytes());
        let operation = SendOperation::Send { payload, invalidate, solicited: false };
        let request = SendRequest { id: WorkRequestId(1 << 41), operation, signaled: true };
        // A connection that is gone takes no response.
        let _ = self.provider.post_send(capsule.qp, request);
    }
}
