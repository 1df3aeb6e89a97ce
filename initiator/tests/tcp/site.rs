//! A queue, and the controller's end of its connection.

use core::time::Duration;
use nvme_proto::tcp::{DataAlignment, Digests, IcReq, IcResp};
use nvme_proto::{Cid, Cqe, Nqn, Qid, Sqe, Status};
use nvmf_host::Command;
use nvmf_initiator::TcpOptions;
use nvmf_initiator::transport::{Arrival, Data, Event, OpenQueue, Payload, Tcp, Transport};
use nvmf_memory::Memory;
use nvmf_tcp::ToHost;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

/// Longer than anything here takes.
const TIME_MAX: Duration = Duration::from_secs(20);
/// Entries of the queue.
pub(crate) const ENTRIES: u16 = 16;
/// Bytes of the user's memory. Operations use a part in its middle.
pub(crate) const MEMORY: usize = 4 << 20;
/// Where that part starts.
pub(crate) const START: usize = 64 << 10;
/// What the rest of the memory holds.
pub(crate) const UNTOUCHED: u8 = 0xa5;

pub(crate) const NONE: Digests = Digests { header: false, data: false };
pub(crate) const BOTH: Digests = Digests { header: true, data: true };

pub(crate) struct Site {
    pub(crate) tcp: Tcp,
    pub(crate) peer: TcpStream,
    pub(crate) memory: Memory,
    pub(crate) qid: Qid,
    pub(crate) request: [u8; 128],
    start: Instant,
    /// Events that came before they were asked for.
    pub(crate) arrivals: Vec<Arrival>,
}

/// What a well-behaved controller grants.
pub(crate) fn ic_resp(digests: Digests) -> IcResp {
    IcResp { alignment: DataAlignment::default(), digests, maxh2cdata: 128 << 10 }
}

impl Site {
    /// A connection whose controller has read ICReq, and answered nothing.
    pub(crate) fn asking(qid: Qid, digests: Digests) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = TcpOptions::default().with_digests(digests.header, digests.data);
        let mut tcp = Tcp::new(&options, &Nqn::from_uuid([1; 16]), &Nqn::DISCOVERY).unwrap();
        tcp.prepare(1, ENTRIES).unwrap();
        let queue = OpenQueue {
            qid,
            entries: ENTRIES,
            address: listener.local_addr().unwrap(),
            source: None,
            private_data: &[0; 32],
            timeout: Duration::from_secs(10),
        };
        tcp.open(Duration::ZERO, &queue).unwrap();
        let (peer, _) = listener.accept().unwrap();
        peer.set_nodelay(true).unwrap();
        peer.set_read_timeout(Some(TIME_MAX)).unwrap();
        let memory = Memory::alloc(MEMORY).unwrap();
        memory.fill(0, MEMORY, UNTOUCHED);
        let (start, arrivals) = (Instant::now(), Vec::new());
        let mut site = Self { tcp, peer, memory, qid, request: [0; 128], start, arrivals };
        let request = site.receive(128);
        site.request.copy_from_slice(&request);
        site
    }

    /// A connection that is set up.
    pub(crate) fn ready(digests: Digests) -> Self {
        Self::ready_with(Qid(1), &ic_resp(digests))
    }

    pub(crate) fn ready_with(qid: Qid, response: &IcResp) -> Self {
        let mut site = Self::asking(qid, response.digests);
        site.write(ToHost::ic_resp(response).as_bytes());
        assert!(matches!(site.event(), Event::Connected { .. }));
        site.tcp.resize(qid, ENTRIES);
        site
    }

    pub(crate) fn asked(&self) -> IcReq {
        let pdu = zerocopy::FromBytes::read_from_bytes(&self.request[..]).unwrap();
        IcReq::parse(&pdu).unwrap()
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn turn(&mut self) {
        self.tcp.poll();
        while let Some(arrival) = self.tcp.next_arrival() {
            self.arrivals.push(arrival);
        }
        self.tcp.flush();
    }

    /// Turns until there is what is looked for.
    pub(crate) fn until<R>(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> Option<R>) -> R {
        while self.now() < TIME_MAX {
            self.turn();
            if let Some(found) = look(self) {
                return found;
            }
            std::thread::yield_now();
        }
        panic!("{what} did not come; arrivals: {:?}", self.arrivals)
    }

    /// The next event.
    pub(crate) fn event(&mut self) -> Event {
        self.until("an event", |site| {
            let now = site.now();
            site.tcp.poll_event(now)
        })
    }

    /// Why the connection ended; the peer's end stays open.
    pub(crate) fn ending(&mut self) -> String {
        match self.event() {
            Event::Disconnected { qid, cause, .. } if qid == self.qid => cause,
            Event::Failed(qid, failure) if qid == self.qid => failure.to_string(),
            event => panic!("{event:?}"),
        }
    }

    /// The next arrival.
    pub(crate) fn arrival(&mut self) -> Arrival {
        self.until("an arrival", |site| (!site.arrivals.is_empty()).then(|| site.arrivals.remove(0)))
    }

    /// The next response; its status.
    pub(crate) fn response(&mut self) -> (Cid, Status) {
        match self.arrival() {
            Arrival::Response(_, cqe, None) => {
                let cqe: Cqe = zerocopy::transmute!(cqe);
                (cqe.cid(), cqe.status())
            }
            arrival => panic!("{arrival:?}"),
        }
    }

    /// Sends as the controller.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        // A connection that has ended takes no more, which the test sees elsewhere.
        match self.peer.write_all(bytes) {
            Err(error) if ![ErrorKind::ConnectionReset, ErrorKind::BrokenPipe].contains(&error.kind()) => {
                panic!("{error}")
            }
            _ => {}
        }
    }

    /// Receives so many bytes as the controller.
    pub(crate) fn receive(&mut self, len: usize) -> Vec<u8> {
        let (mut bytes, mut have) = (vec![0; len], 0);
        self.peer.set_nonblocking(true).unwrap();
        while have < len && self.now() < TIME_MAX {
            self.turn();
            match self.peer.read(&mut bytes[have..]) {
                Ok(0) => panic!("the host closed after {have} of {len} bytes"),
                Ok(n) => have += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(error) => panic!("after {have} of {len} bytes: {error}"),
            }
        }
        self.peer.set_nonblocking(false).unwrap();
        assert_eq!(have, len, "bytes from the host");
        bytes
    }

    /// Receives until the host's end of stream, or until it resets the connection.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A reset discards what was not read, an end of stream does not.
        let _ = self.peer.read_to_end(&mut bytes);
        bytes
    }

    pub(crate) fn send(&mut self, slot: u16, cid: u16, opcode: u8, data: Data<'_, Memory>) {
        let command = Command::new(Sqe::new(opcode));
        self.tcp.send(self.qid, slot, Cid(cid), &command, data).unwrap();
        self.tcp.flush();
    }

    /// Sends a read of so many bytes, and reads its capsule.
    pub(crate) fn read(&mut self, slot: u16, cid: u16, len: u32) -> Vec<u8> {
        self.user(slot, cid, len, Payload::FromController, 2);
        let digest = if self.asked().digests.header { 4 } else { 0 };
        self.receive(72 + digest)
    }

    /// Sends a command on the user's memory.
    pub(crate) fn user(&mut self, slot: u16, cid: u16, len: u32, payload: Payload, opcode: u8) {
        let memory = self.memory.share();
        self.send(slot, cid, opcode, Data::User { region: &memory, offset: START, len, payload });
    }

    /// Whether the memory of the user's holds what it held, but for so many bytes from the start of its part.
    pub(crate) fn is_untouched_but(&self, len: usize) -> bool {
        let mut bytes = vec![0; MEMORY];
        self.memory.read(0, &mut bytes);
        let is_untouched = |bytes: &[u8]| bytes.iter().all(|&byte| byte == UNTOUCHED);
        is_untouched(&bytes[..START]) && is_untouched(&bytes[START + len..])
    }
}
