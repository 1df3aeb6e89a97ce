//! Peers that mean no good over NVMe/TCP, and a host that verifies what it writes.

use crate::{BLOCK, BOUND, DELAY, StopAtEnd, Target, sockets, subsystem};
use nvme_proto::fabrics::connect::{Connect, ConnectAttributes, ConnectData, Connected};
use nvme_proto::fabrics::property::{Configuration, Property, PropertySet};
use nvme_proto::nvm::rw::ReadWrite;
use nvme_proto::opcode::{AdminOpcode, NvmOpcode};
use nvme_proto::tcp::{DataAlignment, Digests, H2cData, IcReq};
use nvme_proto::{Cid, Cntlid, Cqe, HostId, Nqn, Nsid, Qid, SglDescriptor, Sqe};
use nvmf_subsystem::Port;
use nvmf_target::transport::tcp::{Tcp, TcpOptions};
use nvmf_tcp::ToController;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::AtomicBool;
use std::time::Instant;
use zerocopy::{FromBytes, IntoBytes};

const IN_CAPSULE: usize = 16 << 10;

/// One queue, whose socket blocks.
pub(crate) struct Queue {
    socket: TcpStream,
    to: ToController,
    cid: u16,
    host: u8,
}

impl Queue {
    /// A connection of this host's from the machine 127.0.0.N, with ICReq and ICResp exchanged.
    pub(crate) fn open(address: SocketAddr, machine: u8, host: u8) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let source = SocketAddr::from(([127, 0, 0, machine], 0));
        socket.bind(&SockAddr::from(source)).expect("an address of this machine");
        socket.connect(&SockAddr::from(address)).expect("a connection");
        socket.set_tcp_nodelay(true).expect("an option");
        socket.set_read_timeout(Some(BOUND)).expect("an option");
        let digests = Digests { header: false, data: false };
        let request = IcReq { alignment: DataAlignment::default(), digests, maxr2t: 1 };
        let to = ToController::new(digests, DataAlignment::default());
        let mut queue = Self { socket: socket.into(), to, cid: 0, host };
        queue.write(ToController::ic_req(&request).as_bytes());
        assert_eq!(queue.read(128)[0], 1, "ICResp");
        queue
    }

    pub(crate) fn socket(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("the target takes it");
    }

    pub(crate) fn read(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.socket.read_exact(&mut bytes).expect("the target answers");
        bytes
    }

    /// A command as bytes.
    fn capsule(&mut self, sqe: &Sqe, data: &[u8]) -> Vec<u8> {
        self.cid = self.cid.wrapping_add(1);
        let sqe = Sqe { cid: self.cid.into(), ..*sqe };
        let head = self.to.command(sqe, data.len() as u32).expect("a short capsule");
        [head.as_bytes(), data].concat()
    }

    pub(crate) fn start(&mut self, sqe: &Sqe, data: &[u8]) {
        let capsule = self.capsule(sqe, data);
        self.write(&capsule);
    }

    /// Runs a command, which succeeds; R2Ts are answered with `source`.
    pub(crate) fn run(&mut self, sqe: &Sqe, in_capsule: &[u8], source: &[u8]) -> (Cqe, Vec<u8>) {
        let begun = Instant::now();
        self.start(sqe, in_capsule);
        let mut found = Vec::new();
        loop {
            let common = self.read(8);
            let plen = u32::from_le_bytes(common[4..].try_into().expect("four bytes"));
            let rest = self.read(plen as usize - 8);
            match common[0] {
                0x05 => {
                    let cqe = Cqe::read_from_bytes(&rest).expect("16 bytes");
                    assert!(cqe.status().is_success(), "{}", cqe.status());
                    assert!(begun.elapsed() < DELAY, "{sqe:?} takes too long");
                    return (cqe, found);
                }
                0x07 => found.extend(&rest[16..]),
                0x09 => {
                    let word =
                        |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().expect("four bytes"));
                    let ttag = u16::from_le_bytes([rest[2], rest[3]]);
                    let (offset, len) = (word(4), word(8));
                    for at in (offset..offset + len).step_by(128 << 10) {
                        let end = (offset + len).min(at + (128 << 10));
                        let last = end == offset + len;
                        let data = H2cData { cid: Cid(self.cid), ttag, offset: at, len: end - at, last };
                        let head = self.to.h2c_data(&data).expect("whole dwords");
                        let pdu = [head.as_bytes(), &source[at as usize..end as usize]].concat();
                        self.write(&pdu);
                    }
                }
                other => panic!("a PDU of type {other:#x}: {rest:02x?}"),
            }
        }
    }

    fn connect_command(&self, qid: u16, cntlid: Cntlid, nqn: &Nqn) -> (Sqe, ConnectData) {
        let kato_ms = if qid == 0 { 120_000 } else { 0 };
        let attributes = ConnectAttributes::default();
        let sqe = Connect { recfmt: 0, qid: Qid(qid), sqsize_z: 31, attributes, kato_ms }.emit();
        let data = ConnectData::new(HostId([self.host; 16]), cntlid, nqn, &Nqn::from_uuid([self.host; 16]));
        (Sqe { sgl: SglDescriptor::in_capsule(0, 1024), ..sqe }, data)
    }

    pub(crate) fn connect(&mut self, qid: u16, cntlid: Cntlid, nqn: &Nqn) -> Cntlid {
        let (sqe, data) = self.connect_command(qid, cntlid, nqn);
        let cqe = self.run(&sqe, data.as_bytes(), &[]).0;
        if qid == 0 {
            let set = PropertySet { property: Property::CC, size: 0, value: Configuration::ENABLE.0.into() };
            self.run(&set.emit(), &[], &[]);
        }
        Connected::parse(cqe.dw0.get()).cntlid
    }

    /// Admin queue and I/O queue of a host.
    pub(crate) fn host(address: SocketAddr, machine: u8, host: u8) -> (Self, Self) {
        let mut admin = Self::open(address, machine, host);
        let cntlid = admin.connect(0, Cntlid::DYNAMIC, &subsystem());
        let mut io = Self::open(address, machine, host);
        io.connect(1, cntlid, &subsystem());
        (admin, io)
    }

    /// Writes and reads back.
    pub(crate) fn verify(&mut self, round: u64, len: usize) {
        let lba = round % 16 * 1024;
        let data: Vec<u8> = (0..len).map(|at| (at as u64 / 7 + round) as u8).collect();
        if len <= IN_CAPSULE {
            self.run(&transfer(NvmOpcode::WRITE, lba, len, true), &data, &[]);
        } else {
            self.run(&transfer(NvmOpcode::WRITE, lba, len, false), &[], &data);
        }
        let (_, found) = self.run(&transfer(NvmOpcode::READ, lba, len, false), &[], &[]);
        assert!(found == data, "{len} bytes of round {round} came back different");
    }
}

pub(crate) fn transfer(opcode: NvmOpcode, lba: u64, len: usize, in_capsule: bool) -> Sqe {
    let bytes = len as u32;
    let sgl = if in_capsule { SglDescriptor::in_capsule(0, bytes) } else { SglDescriptor::transport(bytes) };
    Sqe { sgl, ..ReadWrite::new(lba, bytes / BLOCK).emit(opcode, Nsid(1)) }
}

/// Peers that stop wherever they like, from one machine. They read nothing from here on.
pub(crate) fn peers(address: SocketAddr) -> Vec<Queue> {
    let mut peers = Vec::new();
    for at in 0..60 {
        let mut peer = Queue::open(address, 2, 2);
        let (sqe, data) = peer.connect_command(0, Cntlid::DYNAMIC, &subsystem());
        match at % 3 {
            // No Connect, half of one, one whose data must be asked for.
            0 => {}
            1 => {
                let capsule = peer.capsule(&sqe, data.as_bytes());
                peer.write(&capsule[..500]);
            }
            _ => peer.start(&Sqe { sgl: SglDescriptor::transport(1024), ..sqe }, &[]),
        }
        peers.push(peer);
    }
    for host in 0..4 {
        let mut admin = Queue::open(address, 2, 50 + host);
        let cntlid = admin.connect(0, Cntlid::DYNAMIC, &subsystem());
        for qid in 1..=2 {
            let mut io = Queue::open(address, 2, 50 + host);
            io.connect(qid, cntlid, &subsystem());
            // Behind what the honest host verifies.
            for at in 0..24 {
                let opcode = if at % 2 == 0 { NvmOpcode::WRITE } else { NvmOpcode::READ };
                let len = [4096, 128 << 10][usize::from(at % 4 < 2)];
                io.start(&transfer(opcode, 24 * 1024, len, false), &[]);
            }
            let write = transfer(NvmOpcode::WRITE, 24 * 1024, IN_CAPSULE, true);
            let capsule = io.capsule(&write, &[0; IN_CAPSULE]);
            io.write(&capsule[..IN_CAPSULE / 2]);
            peers.push(io);
        }
        peers.push(admin);
    }
    let mut discovery = Queue::open(address, 2, 99);
    discovery.connect(0, Cntlid::DYNAMIC, &Nqn::DISCOVERY);
    let page = Sqe::new(AdminOpcode::GET_LOG_PAGE.0).with_dwords([0x03ff_0070, 0, 0, 0, 0, 0]);
    for _ in 0..16 {
        discovery.start(&Sqe { sgl: SglDescriptor::transport(4096), ..page }, &[]);
    }
    peers.push(discovery);
    peers
}

#[test]
fn hostile_tcp_peers_do_not_delay_an_honest_host() {
    let _alone = crate::alone();
    let folder = tempfile::tempdir().expect("a folder");
    let port = Port::tcp(1, SocketAddr::from(([127, 0, 0, 1], 4420)));
    let target = Target::start(&folder.path().join("disk"), port, |devices, settings| {
        Tcp::new(devices, settings, TcpOptions::default()).expect("a transport")
    });
    let stop = AtomicBool::new(false);
    let noise: [&[u8]; 4] = [b"", &[0, 0, 128, 0, 128], b"GET / HTTP/1.1\r\n\r\n", &[0x16, 3, 1, 2, 0, 1]];
    std::thread::scope(|scope| {
        scope.spawn(|| sockets(target.address, noise, &stop));
        let _stop = StopAtEnd(&stop);
        let _peers = peers(target.address);
        let (_admin, mut io) = Queue::host(target.address, 1, 1);
        for round in 0..60 {
            io.verify(round, [512, 4096, 16 << 10, 128 << 10, 512 << 10][round as usize % 5]);
        }
        // Those that hold what they were given lose it.
        target.until("stopped transfers end", || {
            io.verify(7, 4096);
            target.count("transfer_timeouts") >= 8
        });
        // A second host comes in while others go on as before.
        let (_second_admin, mut second) = Queue::host(target.address, 3, 3);
        second.verify(3, 128 << 10);
        io.verify(5, 512 << 10);
    });
}
