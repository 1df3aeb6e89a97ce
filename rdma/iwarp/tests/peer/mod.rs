//! A provider under test, and a peer that writes raw bytes to it.
#![allow(dead_code, reason = "each test file uses its part")]

use core::time::Duration;
use nvmf_iwarp::wire::mpa::{FRAME_LEN_MAX, Flags, Frame, Kind, pad_len};
use nvmf_iwarp::wire::rdmap::{Header, READ_REQUEST_LEN};
use nvmf_iwarp::{IwarpConfig, IwarpProvider};
use nvmf_memory::Memory;
use nvmf_rdma::{
    Access, CmEvent, Completion, CompletionQueueId, ConnectParameters, MemoryRegion, PrivateData, Provider,
    QueuePairAttributes, QueuePairId, ReceiveRequest, RequestId, Sge, WorkRequestId,
};
use socket2::{Domain, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

/// What no wait of a test exceeds.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// For how long what must come is waited for: on a machine that is busy elsewhere, too.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn parameters(timeout: Duration) -> ConnectParameters {
    ConnectParameters {
        private_data: PrivateData::EMPTY,
        responder_resources: 2,
        initiator_depth: 2,
        timeout,
    }
}

pub(crate) struct Side {
    pub(crate) provider: IwarpProvider,
    pub(crate) cq: CompletionQueueId,
    pub(crate) address: SocketAddr,
    pub(crate) events: Vec<CmEvent>,
    pub(crate) done: Vec<Completion>,
    /// The clock that the provider is told: it stands still unless a test moves it.
    pub(crate) now: Duration,
}

impl Side {
    pub(crate) fn new(config: IwarpConfig) -> Self {
        let mut provider = IwarpProvider::new(config).unwrap();
        let cq = provider.create_completion_queue(1024).unwrap();
        let (_, address) = provider.listen("127.0.0.1:0".parse().unwrap(), 64).unwrap();
        Self { provider, cq, address, events: Vec::new(), done: Vec::new(), now: Duration::from_secs(1) }
    }

    pub(crate) fn turn(&mut self) {
        let mut polled = Vec::with_capacity(64);
        self.provider.poll_cq(self.cq, &mut polled);
        self.done.append(&mut polled);
        while let Some(event) = self.provider.poll_cm(self.now) {
            self.events.push(event);
        }
    }

    pub(crate) fn until<T>(&mut self, what: &str, mut found: impl FnMut(&mut Self) -> Option<T>) -> T {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            self.turn();
            if let Some(found) = found(self) {
                return found;
            }
            std::thread::yield_now();
        }
        panic!("waited in vain for {what}: {:?} {:?}", self.events, self.done);
    }

    pub(crate) fn event<T>(&mut self, what: &str, pick: impl Fn(&CmEvent) -> Option<T>) -> T {
        self.until(what, |side| {
            let at = side.events.iter().position(|event| pick(event).is_some())?;
            pick(&side.events.remove(at))
        })
    }

    pub(crate) fn request(&mut self) -> RequestId {
        self.event("a request", |event| match event {
            CmEvent::ConnectRequest { request, .. } => Some(*request),
            _ => None,
        })
    }

    pub(crate) fn queue_pair(&mut self) -> QueuePairId {
        let attributes = QueuePairAttributes {
            send_cq: self.cq,
            receive_cq: self.cq,
            shared_receive_queue: None,
            max_send: 16,
            max_receive: 16,
            max_exposed: 16,
        };
        self.provider.create_queue_pair(&attributes).unwrap()
    }

    pub(crate) fn region(&mut self, access: Access) -> (Memory, MemoryRegion) {
        let memory = Memory::alloc(4096).unwrap();
        let region = self.provider.register(&memory, access).unwrap();
        (memory, region)
    }

    pub(crate) fn receive(&mut self, qp: QueuePairId, id: u64, region: &MemoryRegion, len: u32) {
        let buffer = Sge { local_key: region.local_key, offset: 0, len };
        self.provider.post_receive(qp, ReceiveRequest { id: WorkRequestId(id), buffer }).unwrap();
    }

    /// Accepts the next request.
    pub(crate) fn accept(&mut self) -> QueuePairId {
        let (request, qp) = (self.request(), self.queue_pair());
        self.provider.accept(self.now, request, qp, &parameters(TIMEOUT)).unwrap();
        qp
    }

    pub(crate) fn ended(&mut self, qp: QueuePairId) -> String {
        let cause = self.event("an end", |event| match event {
            CmEvent::Disconnected { queue_pair, cause } if *queue_pair == qp => Some(cause.to_string()),
            CmEvent::ConnectFailed { queue_pair, failure } if *queue_pair == qp => Some(failure.to_string()),
            _ => None,
        });
        // What was flushed came before it.
        self.turn();
        cause
    }
}

/// A raw TCP connection that speaks MPA revision 1.
pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    pub(crate) fn connect(side: &Side) -> Self {
        let stream = TcpStream::connect(side.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_nonblocking(true).unwrap();
        Self(stream)
    }

    /// From an address of this machine.
    pub(crate) fn connect_from(address: [u8; 4], side: &Side) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
        socket.connect(&side.address.into()).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self(socket.into())
    }

    pub(crate) fn frame(flags: Flags) -> Vec<u8> {
        let private_data = PrivateData::EMPTY;
        let frame = Frame { kind: Kind::Request, flags, revision: 1, enhanced: None, private_data };
        let mut bytes = [0; FRAME_LEN_MAX];
        let len = frame.emit(&mut bytes);
        bytes[..len].to_vec()
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("a small write fits");
    }

    /// The next `len` bytes; fewer when the peer closes.
    pub(crate) fn read(&mut self, side: &mut Side, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut part = [0; 1024];
        if len == 0 {
            return bytes;
        }
        side.until("bytes", |_| {
            let room = (len - bytes.len()).min(part.len());
            match self.0.read(&mut part[..room]) {
                Ok(0) => Some(()),
                Ok(n) => {
                    bytes.extend_from_slice(&part[..n]);
                    (bytes.len() == len).then_some(())
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => None,
                Err(_) => Some(()),
            }
        });
        bytes
    }

    /// Set up, with the flags given.
    pub(crate) fn established(side: &mut Side, flags: Flags) -> (Self, QueuePairId) {
        let mut raw = Self::connect(side);
        raw.send(&Self::frame(flags));
        let qp = side.accept();
        let reply = raw.read(side, 20);
        assert_eq!(reply[..16], *b"MPA ID Rep Frame");
        (raw, qp)
    }

    /// The Terminate's control word: what comes up to the end of the stream is nothing but the Terminate.
    pub(crate) fn terminate(&mut self, side: &mut Side) -> [u8; 4] {
        let bytes = self.read(side, 4096);
        let (header, len) = Header::parse(&bytes[..20]).expect("a Terminate");
        assert_eq!(header, Header::Terminate { msn: 1, mo: 0 });
        assert_eq!(bytes.len(), (20 + len).next_multiple_of(4) + 4, "one Terminate, and then the end");
        bytes[20..24].try_into().unwrap()
    }
}

/// An FPDU without a CRC.
pub(crate) fn fpdu(header: Header, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; READ_REQUEST_LEN];
    let len = header.emit(payload.len(), &mut head);
    let mut bytes = [&head[..len], payload].concat();
    bytes.resize(bytes.len() + pad_len(bytes.len()) + 4, 0);
    bytes
}

pub(crate) fn send(msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    fpdu(Header::Send { last: true, invalidate: None, solicited: false, msn, mo }, payload)
}
