//! The handshake and the queue pair engine without a socket: what the fuzz targets drive. Not part of the crate's
//! contract.

pub mod placement;

use crate::config::IwarpConfig;
use crate::handshake::{self, Agreement, FrameReader, Refusal};
use crate::qp::{Domain, QueuePair, Role, Stop};
use crate::wire::mpa::{Frame, FrameError, Kind};
use core::time::Duration;
use nvmf_memory::Memory;
use nvmf_rdma::{
    Access, CompletionQueueId, ConnectParameters, LocalKey, Payload, PrivateData, QueuePairAttributes,
    QueuePairId, ReceiveRequest, RemoteKey, RemoteMemory, SendOperation, SendRequest, Sge, WcStatus,
    WorkRequestId,
};
use std::collections::VecDeque;

/// Reads one frame from `bytes`, in pieces of at most `piece`: the frame and its length; `None` when it is not whole.
///
/// # Errors
/// [`FrameError`].
pub fn read_frame(kind: Kind, bytes: &[u8], piece: usize) -> Result<Option<(Frame, usize)>, FrameError> {
    let (mut reader, mut at) = (FrameReader::new(kind), 0);
    while at < bytes.len() {
        let room = reader.room();
        let n = room.len().min(piece.max(1)).min(bytes.len() - at);
        room[..n].copy_from_slice(&bytes[at..at + n]);
        at += n;
        if let Some(frame) = reader.on_filled(n)? {
            return Ok(Some((frame, at)));
        }
    }
    Ok(None)
}

/// What we offer.
#[must_use]
pub fn parameters() -> ConnectParameters {
    ConnectParameters {
        private_data: PrivateData::EMPTY,
        responder_resources: 16,
        initiator_depth: 16,
        timeout: Duration::from_secs(1),
    }
}

/// The request that we would send.
#[must_use]
pub fn request(config: &IwarpConfig, revision: u8) -> Frame {
    handshake::request(config, &parameters(), revision)
}

/// Our answer to a request; `None`: we hang up.
#[must_use]
pub fn answer(config: &IwarpConfig, request: &Frame) -> Option<Frame> {
    handshake::check_request(config, request).ok()?;
    Some(handshake::accept(config, &parameters(), request).0)
}

/// Our no to a request.
#[must_use]
pub fn refusal(request: &Frame) -> Frame {
    handshake::reject(request, &PrivateData::EMPTY)
}

/// Whether the reply to our request makes a connection, and how many RDMA READs of ours may then be outstanding.
///
/// # Errors
/// Why not.
pub fn judge(config: &IwarpConfig, request: &Frame, reply: &Frame) -> Result<u16, &'static str> {
    match handshake::on_reply(config, &parameters(), request, reply) {
        Ok(agreement) => Ok(agreement.initiator_depth),
        Err(Refusal::Rejected) => Err("rejected"),
        Err(Refusal::Protocol(text)) => Err(text),
    }
}

/// What memory is filled with before anything happens.
const FILL: u8 = 0xa5;
const MEMORY_LEN: usize = 16 * 1024;
const RECEIVE_LEN: u32 = 256;
const RECEIVES: usize = 4;
/// What the peer may write: STag 0x101.
const WRITABLE: core::ops::Range<usize> = 4096..4196;
/// What the peer may read: STag 0x201.
const READABLE: core::ops::Range<usize> = 8192..9192;
/// Where an RDMA READ of ours lands.
const SINK: core::ops::Range<usize> = 12288..12588;
const QP: QueuePairId = QueuePairId(1);
const CQ: CompletionQueueId = CompletionQueueId(0);

/// An established queue pair with receives posted, a window to write, a window to read and an RDMA READ of its own
/// under way.
#[derive(Debug)]
pub struct Established {
    domain: Domain,
    qp: QueuePair,
    memory: Memory,
    region: LocalKey,
    posted: u64,
    over: bool,
}

impl Established {
    /// As one side or the other; with CRCs or without.
    ///
    /// # Panics
    /// When memory is short.
    #[must_use]
    pub fn new(responder: bool, crc: bool) -> Self {
        let mut domain = Domain::new(&IwarpConfig::default());
        domain.completion_queues.push(VecDeque::new());
        let memory = Memory::alloc(MEMORY_LEN).expect("memory");
        memory.fill(0, MEMORY_LEN, FILL);
        let region = domain.stags.register(&memory, Access::LOCAL_WRITE).expect("a key").local_key;
        for (range, access) in [(WRITABLE, Access::REMOTE_WRITE), (READABLE, Access::REMOTE_READ)] {
            let range = Sge { local_key: region, offset: range.start, len: range.len() as u32 };
            domain.stags.expose(QP, range, access).expect("a key");
        }
        let attributes = QueuePairAttributes {
            send_cq: CQ,
            receive_cq: CQ,
            shared_receive_queue: None,
            max_send: 16,
            max_receive: RECEIVES as u32,
            max_exposed: 1,
        };
        let mut qp = QueuePair::new(QP, &attributes);
        let role = if responder { Role::Responder } else { Role::Initiator };
        let agreement =
            Agreement { crc, responder_resources: 4, initiator_depth: 4, rtr: None, large_fpdu: true };
        qp.start(role, &agreement, 1024);
        let mut this = Self { domain, qp, memory, region, posted: 0, over: false };
        for _ in 0..RECEIVES - 1 {
            this.post_receive();
        }
        this.post_read();
        this.post_send(b"hello");
        this
    }

    /// Posts a receive; a full queue refuses it.
    pub fn post_receive(&mut self) {
        if self.over {
            return;
        }
        let offset = (self.posted as usize % RECEIVES) * RECEIVE_LEN as usize;
        let buffer = Sge { local_key: self.region, offset, len: RECEIVE_LEN };
        let request = ReceiveRequest { id: WorkRequestId(self.posted), buffer };
        let taken = self.qp.post_receive(&mut self.domain, &request).is_ok();
        self.posted += u64::from(taken);
    }

    /// An RDMA READ of ours.
    pub fn post_read(&mut self) {
        let into = Sge { local_key: self.region, offset: SINK.start, len: SINK.len() as u32 };
        let remote = RemoteMemory { key: RemoteKey(0x77), address: 0x1000, len: into.len };
        self.post(SendOperation::Read { into, remote });
    }

    /// A SEND of ours.
    pub fn post_send(&mut self, bytes: &[u8]) {
        let payload = Payload::Inline(bytes);
        self.post(SendOperation::Send { payload, invalidate: None, solicited: false });
    }

    fn post(&mut self, operation: SendOperation<'_>) {
        if self.over {
            return;
        }
        let request = SendRequest { id: WorkRequestId(self.posted), operation, signaled: true };
        let taken = self.qp.post_send(&self.domain, &request).is_ok();
        self.posted += u64::from(taken);
    }

    /// Bytes of the peer's, as the provider takes them: as much as can go straight into place, the rest through the
    /// parser.
    pub fn on_bytes(&mut self, mut bytes: &[u8]) {
        if self.over {
            return;
        }
        if let Some((memory, offset, len)) = self.qp.direct(&self.domain, 1) {
            let n = len.min(bytes.len());
            memory.write(offset, &bytes[..n]);
            self.qp.on_placed(n);
            bytes = &bytes[n..];
        }
        if let Err(stop) = self.qp.on_bytes(&mut self.domain, bytes) {
            self.end(Some(stop));
        }
    }

    /// Lets the socket take at most `budget` bytes; which.
    pub fn send(&mut self, budget: usize) -> Vec<u8> {
        if self.over {
            return Vec::new();
        }
        if let Err(stop) = self.qp.fill(&mut self.domain, usize::MAX) {
            self.end(Some(stop));
            return Vec::new();
        }
        let mut bytes = Vec::new();
        self.qp.chunks().append_to(&mut bytes);
        bytes.truncate(budget);
        self.qp.on_sent(&mut self.domain, bytes.len());
        bytes
    }

    fn end(&mut self, stop: Option<Stop>) {
        let final_bytes = self.qp.fail(&mut self.domain, stop);
        assert!(final_bytes.len() < 64 * 1024, "the end of an FPDU and a Terminate");
        self.over = true;
    }

    /// Whether the stream is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// Ends the stream, and checks what must hold of it.
    ///
    /// # Panics
    /// When a work request completed not at all or twice, or when a byte changed that the peer was not given.
    pub fn finish(mut self) {
        if !self.over {
            self.end(None);
        }
        let mut seen = vec![false; self.posted as usize];
        for completion in &self.domain.completion_queues[0] {
            let seen = &mut seen[completion.id.0 as usize];
            assert!(!core::mem::replace(seen, true), "two completions of {completion:?}");
            assert!(completion.status != WcStatus::Success || completion.byte_len <= RECEIVE_LEN.max(300));
        }
        assert!(seen.iter().all(|seen| *seen), "a work request without a completion: {seen:?}");
        let mut bytes = vec![0; MEMORY_LEN];
        self.memory.read(0, &mut bytes);
        let received = 0..RECEIVES * RECEIVE_LEN as usize;
        let given = [received, WRITABLE, SINK];
        let wrong = (0..MEMORY_LEN).find(|at| bytes[*at] != FILL && !given.iter().any(|r| r.contains(at)));
        assert_eq!(wrong, None, "a byte changed that the peer was not given");
    }
}
