//! An NVMe/TCP host, written by hand, one queue at a time: it sends and shows every byte.

use crate::pdu::u32_at;
pub(crate) use crate::pdu::{Ask, LAST, Pdu, R2t, SUCCESS};
use crate::world::{BLOCK, SUBSYSTEM, World};

pub(crate) const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

use nvme_proto::fabrics::connect::{Connect, ConnectAttributes, ConnectData, Connected};
use nvme_proto::fabrics::property::{Configuration, Property, PropertySet};
use nvme_proto::nvm::rw::ReadWrite;
use nvme_proto::opcode::NvmOpcode;
use nvme_proto::{Cntlid, Cqe, HostId, Nqn, Nsid, Qid, SglDescriptor, Sqe, Status};
use nvmf_stream::{Chunk, Received, Secured, Stream, StreamConfig, TlsConnector, TlsError};
use nvmf_tls::Psk;
use socket2::{Domain, SockAddr, Socket, Type};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use zerocopy::IntoBytes;

/// One connection.
pub(crate) struct Host {
    pub(crate) socket: TcpStream,
    /// TLS over that socket.
    tls: Option<Stream>,
    pub(crate) ask: Ask,
    pub(crate) maxh2cdata: u32,
    /// Bytes that arrived.
    arrived: VecDeque<u8>,
    /// Of a PDU that the connection ended within.
    pub(crate) rest: Vec<u8>,
    ended: bool,
    next_cid: u16,
    /// C2HData that had SUCCESS, CapsuleResp.
    pub(crate) successes: usize,
    pub(crate) responses: usize,
}

impl Host {
    /// A TCP connection from the machine with this number: 127.0.0.N.
    pub(crate) fn tcp(world: &World, machine: u8) -> Self {
        Self::tcp_with(world, machine, None)
    }

    /// The same with a receive buffer of so many bytes.
    pub(crate) fn tcp_with(world: &World, machine: u8, receive_buffer: Option<usize>) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        if let Some(len) = receive_buffer {
            socket.set_recv_buffer_size(len).unwrap();
        }
        socket.bind(&SockAddr::from(SocketAddr::from(([127, 0, 0, machine], 0)))).unwrap();
        socket.connect(&SockAddr::from(world.address)).unwrap();
        socket.set_tcp_nodelay(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self {
            socket: socket.into(),
            tls: None,
            ask: Ask::default(),
            maxh2cdata: 0,
            arrived: VecDeque::new(),
            rest: Vec::new(),
            ended: false,
            next_cid: 1,
            successes: 0,
            responses: 0,
        }
    }

    /// A TCP connection on which TLS begins; what becomes of it: [`Host::secure`].
    pub(crate) fn tls(world: &World, machine: u8, keys: &[Psk]) -> Self {
        let mut host = Self::tcp(world, machine);
        let socket = host.socket.try_clone().unwrap();
        let mut stream = Stream::take_over(&StreamConfig::default(), socket).unwrap();
        stream.connect_tls(&TlsConnector::new(keys).unwrap()).unwrap();
        host.tls = Some(stream);
        host
    }

    /// Ends the handshake.
    pub(crate) fn secure(&mut self, world: &mut World) -> Result<Secured, TlsError> {
        let stream = self.tls.as_mut().unwrap();
        world.until("a handshake", |_| stream.handshake().transpose())
    }

    /// The Admin queue of a host with TLS, and its controller's ID.
    pub(crate) fn secure_admin(world: &mut World, host: u8, keys: &[Psk]) -> (Self, Cntlid) {
        let mut admin = Self::tls(world, host, keys);
        admin.secure(world).expect("a handshake");
        admin.initialize(world, Ask::default());
        let cntlid = admin.connect(world, host, &Queue::ADMIN).expect("an Admin queue");
        admin.enable(world);
        (admin, cntlid)
    }

    /// The stream of TLS.
    pub(crate) fn stream(&self) -> &Stream {
        self.tls.as_ref().unwrap()
    }

    /// A connection that ICReq and ICResp opened.
    pub(crate) fn open(world: &mut World, machine: u8, ask: Ask) -> Self {
        let mut host = Self::tcp(world, machine);
        host.initialize(world, ask);
        host
    }

    pub(crate) fn initialize(&mut self, world: &mut World, ask: Ask) {
        self.send(world, &ask.ic_req());
        let response = self.take(world, 128).expect("ICResp");
        let expected = u8::from(ask.header) | u8::from(ask.data) << 1;
        assert_eq!(response[..12], [1, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, expected]);
        assert!(response[16..].iter().all(|&byte| byte == 0), "reserved bytes of ICResp");
        self.maxh2cdata = u32_at(&response, 12);
        self.ask = ask;
    }

    /// Sends bytes, all of them if the target takes them.
    pub(crate) fn send(&mut self, world: &mut World, bytes: &[u8]) {
        let mut sent = 0;
        world.until("the target reads", |_| {
            while sent < bytes.len() {
                let written = match &self.tls {
                    Some(stream) => match stream.try_send(&[Chunk::Bytes(&bytes[sent..])]) {
                        Ok(0) => return stream.flush().err().map(drop),
                        written => written,
                    },
                    None => self.socket.write(&bytes[sent..]),
                };
                match written {
                    Ok(n) => sent += n,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                    // The test sees that in its own way.
                    Err(_) => return Some(()),
                }
            }
            Some(())
        });
    }

    /// Looks what arrived.
    pub(crate) fn receive(&mut self) {
        let mut bytes = [0; 65536];
        while !self.ended {
            let read = match &self.tls {
                Some(stream) => match stream.receive(None, &mut bytes) {
                    Ok(Received::Nothing) => return drop(stream.flush()),
                    Ok(Received::End | Received::Cut) => Ok(0),
                    Ok(Received::Bytes { staged, .. }) => Ok(staged),
                    Err(error) => Err(error),
                },
                None => self.socket.read(&mut bytes),
            };
            match read {
                Ok(0) => self.ended = true,
                Ok(n) => self.arrived.extend(&bytes[..n]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.ended = true,
            }
        }
    }

    /// The next bytes; `None` when the connection ends before.
    pub(crate) fn take(&mut self, world: &mut World, len: usize) -> Option<Vec<u8>> {
        world.until("bytes from the target", |_| {
            self.receive();
            (self.arrived.len() >= len || self.ended).then_some(())
        });
        (self.arrived.len() >= len).then(|| self.arrived.drain(..len).collect())
    }

    /// Bytes that arrived and were not looked at.
    pub(crate) fn waiting(&mut self) -> usize {
        self.receive();
        self.arrived.len()
    }

    /// The next PDU, whole and right.
    pub(crate) fn pdu(&mut self, world: &mut World) -> Pdu {
        let Some(common) = self.take(world, 8) else {
            assert!(self.arrived.is_empty(), "the connection ended within a header");
            return Pdu::End;
        };
        let plen = u32_at(&common, 4) as usize;
        assert!((8..1 << 20).contains(&plen), "PLEN of {common:02x?}");
        let Some(rest) = self.take(world, plen - 8) else { return Pdu::End };
        let pdu = Pdu::parse(self.ask, &[common, rest].concat());
        self.responses += usize::from(matches!(pdu, Pdu::Response(_)));
        self.successes += usize::from(matches!(pdu, Pdu::Data { flags, .. } if flags & SUCCESS != 0));
        pdu
    }

    /// The same where the connection may end within a PDU.
    pub(crate) fn pdu_or_end(&mut self, world: &mut World) -> Pdu {
        world.until("a PDU or the end", |_| {
            self.receive();
            let len = (self.arrived.len() >= 8).then(|| {
                let plen: Vec<u8> = self.arrived.range(4..8).copied().collect();
                u32_at(&plen, 0) as usize
            });
            (self.ended || len.is_some_and(|len| self.arrived.len() >= len)).then_some(())
        });
        let len = self.arrived.len();
        if len < 8 || len < u32_at(&self.arrived.range(4..8).copied().collect::<Vec<u8>>(), 0) as usize {
            self.rest = self.arrived.drain(..).collect();
        }
        self.pdu(world)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// [`Ask::capsule`].
    pub(crate) fn capsule(&self, sqe: &Sqe, data: &[u8]) -> Vec<u8> {
        self.ask.capsule(sqe, data)
    }

    /// [`Ask::h2c_data`].
    pub(crate) fn h2c_data(&self, r2t: R2t, offset: u32, data: &[u8], last: bool) -> Vec<u8> {
        self.ask.h2c_data(r2t, offset, data, last)
    }

    /// [`Ask::answer`].
    pub(crate) fn answer(&self, r2t: R2t, data: &[u8], piece: u32) -> Vec<u8> {
        self.ask.answer(r2t, data, piece)
    }

    pub(crate) fn cid(&mut self) -> u16 {
        self.next_cid = self.next_cid.wrapping_add(1);
        self.next_cid
    }

    /// Sends a command, with data in its capsule. Returns its CID.
    pub(crate) fn start(&mut self, world: &mut World, sqe: &Sqe, in_capsule: &[u8]) -> u16 {
        let cid = self.cid();
        let mut sqe = *sqe;
        sqe.cid = cid.into();
        let capsule = self.capsule(&sqe, in_capsule);
        self.send(world, &capsule);
        cid
    }

    pub(crate) fn r2t(&mut self, world: &mut World) -> R2t {
        match self.pdu(world) {
            Pdu::R2t { cid, ttag, offset, len } => R2t { cid, ttag, offset, len },
            other => panic!("no R2T: {other:?}"),
        }
    }

    /// The end of a command that is the only one under way: its completion, none where the data said SUCCESS, and its
    /// data. R2Ts are answered with parts of `data`.
    pub(crate) fn finish(&mut self, world: &mut World, of: u16, data: &[u8]) -> (Option<Cqe>, Vec<u8>) {
        let mut found = Vec::new();
        let mut last = false;
        loop {
            match self.pdu(world) {
                Pdu::Response(cqe) => {
                    assert_eq!(cqe.cid().0, of);
                    assert!(found.is_empty() || last || !cqe.status().is_success(), "LAST_PDU is missing");
                    return (Some(cqe), found);
                }
                Pdu::Data { cid, offset, data, flags } => {
                    assert_eq!((cid, offset as usize), (of, found.len()), "C2HData in order, without a gap");
                    assert!(!last, "C2HData behind the last");
                    found.extend(data);
                    last = flags & LAST != 0;
                    if flags & SUCCESS != 0 {
                        return (None, found);
                    }
                }
                Pdu::R2t { cid, ttag, offset, len } => {
                    assert_eq!(cid, of);
                    let r2t = R2t { cid, ttag, offset, len };
                    let answer = self.answer(r2t, data, self.maxh2cdata);
                    self.send(world, &answer);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Runs a command that moves data either way or none.
    pub(crate) fn run(&mut self, world: &mut World, sqe: &Sqe, in_capsule: &[u8]) -> (Status, Vec<u8>) {
        let cid = self.start(world, sqe, in_capsule);
        let (cqe, data) = self.finish(world, cid, &[]);
        (cqe.map_or(Status::SUCCESS, |cqe| cqe.status()), data)
    }

    /// Writes in the capsule.
    pub(crate) fn write(&mut self, world: &mut World, lba: u64, data: &[u8]) -> Status {
        let sqe = write(lba, SglDescriptor::in_capsule(0, data.len() as u32), data.len());
        self.run(world, &sqe, data).0
    }

    /// Writes by R2T.
    pub(crate) fn write_r2t(&mut self, world: &mut World, lba: u64, data: &[u8]) -> Status {
        let sqe = write(lba, SglDescriptor::transport(data.len() as u32), data.len());
        let cid = self.start(world, &sqe, &[]);
        let (cqe, _) = self.finish(world, cid, data);
        cqe.expect("a write has a response").status()
    }

    pub(crate) fn read(&mut self, world: &mut World, lba: u64, len: usize) -> Vec<u8> {
        let (status, data) = self.run(world, &read(lba, len), &[]);
        assert!(status.is_success(), "{status}");
        data
    }

    /// Something that shows that the queue works.
    pub(crate) fn check(&mut self, world: &mut World, seed: u32) {
        let data = pattern(seed, 4096);
        let lba = 1024 + u64::from(seed % 64) * 8;
        assert_eq!(self.write(world, lba, &data), Status::SUCCESS);
        assert!(self.read(world, lba, 4096) == data, "the data came back different");
    }

    pub(crate) fn connect(&mut self, world: &mut World, host: u8, queue: &Queue) -> Result<Cntlid, Cqe> {
        let (sqe, data) = (queue.command(SglDescriptor::in_capsule(0, 1024)), queue.data(host));
        let cid = self.start(world, &sqe, data.as_bytes());
        let (cqe, _) = self.finish(world, cid, &[]);
        let cqe = cqe.expect("Connect has a response");
        if cqe.status().is_success() { Ok(Connected::parse(cqe.dw0.get()).cntlid) } else { Err(cqe) }
    }

    /// A controller of the host with this number, enabled: its Admin queue, and its ID.
    pub(crate) fn admin(world: &mut World, host: u8, ask: Ask) -> (Self, Cntlid) {
        Self::admin_with(world, host, ask, &Queue::ADMIN)
    }

    pub(crate) fn admin_with(world: &mut World, host: u8, ask: Ask, queue: &Queue) -> (Self, Cntlid) {
        let mut admin = Self::open(world, host, ask);
        let cntlid = admin.connect(world, host, queue).expect("an Admin queue");
        admin.enable(world);
        (admin, cntlid)
    }

    /// Enables the controller.
    pub(crate) fn enable(&mut self, world: &mut World) {
        let enable = PropertySet { property: Property::CC, size: 0, value: Configuration::ENABLE.0.into() };
        assert_eq!(self.run(world, &enable.emit(), &[]).0, Status::SUCCESS);
    }

    /// An I/O queue.
    pub(crate) fn io(world: &mut World, host: u8, ask: Ask, qid: u16, cntlid: Cntlid) -> Self {
        Self::io_with(world, host, ask, &Queue { qid, cntlid, ..Queue::ADMIN })
    }

    pub(crate) fn io_with(world: &mut World, host: u8, ask: Ask, queue: &Queue) -> Self {
        let mut io = Self::open(world, host, ask);
        io.connect(world, host, queue).expect("an I/O queue");
        io
    }

    /// Ends the connection at once: RST.
    pub(crate) fn reset(self) {
        socket2::SockRef::from(&self.socket).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

/// What a Connect asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queue {
    pub(crate) qid: u16,
    pub(crate) entries: u16,
    pub(crate) cntlid: Cntlid,
    pub(crate) flow_control: bool,
    pub(crate) kato_ms: u32,
    pub(crate) subsystem: &'static str,
}

impl Queue {
    pub(crate) const ADMIN: Self = Self {
        qid: 0,
        entries: 32,
        cntlid: Cntlid::DYNAMIC,
        flow_control: true,
        kato_ms: 600_000,
        subsystem: SUBSYSTEM,
    };

    pub(crate) fn command(&self, sgl: SglDescriptor) -> Sqe {
        let attributes =
            if self.flow_control { ConnectAttributes::default() } else { ConnectAttributes::DISSQFC };
        let kato_ms = if self.qid == 0 { self.kato_ms } else { 0 };
        let connect =
            Connect { recfmt: 0, qid: Qid(self.qid), sqsize_z: self.entries - 1, attributes, kato_ms };
        Sqe { sgl, ..connect.emit() }
    }

    pub(crate) fn data(&self, host: u8) -> ConnectData {
        let hostnqn: Nqn =
            format!("nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-0000000000{host:02x}")
                .parse()
                .unwrap();
        ConnectData::new(HostId([host; 16]), self.cntlid, &self.subsystem.parse().unwrap(), &hostnqn)
    }
}

pub(crate) fn write(lba: u64, sgl: SglDescriptor, len: usize) -> Sqe {
    Sqe { sgl, ..ReadWrite::new(lba, len as u32 / BLOCK).emit(NvmOpcode::WRITE, Nsid(1)) }
}

pub(crate) fn read(lba: u64, len: usize) -> Sqe {
    let sgl = SglDescriptor::transport(len as u32);
    Sqe { sgl, ..ReadWrite::new(lba, len as u32 / BLOCK).emit(NvmOpcode::READ, Nsid(1)) }
}

pub(crate) fn pattern(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| ((at / 512).wrapping_mul(31) ^ at ^ seed.wrapping_mul(0x9e37)) as u8).collect()
}
