//! One NVMe/TCP connection of a host, which sends anything and checks what it is sent.

use super::command::Made;
use super::ledger::Ledger;
use super::neighbour::{Data, HonestQueue};
use super::target::Target;
use crate::input::Input;
use core::time::Duration;
use nvme_proto::tcp::terminate::ERROR_DATA_LEN_MAX;
use nvme_proto::tcp::{DataAlignment, Digests, H2cData, IcReq, R2t, Receiver};
use nvme_proto::{Cid, Cntlid, Cqe, SglDescriptor, Sqe, Status};
use nvmf_target::exec::transport::Transport;
use nvmf_tcp::host::agreed;
use nvmf_tcp::{Crc32c, Event, PduReceiver, ToController};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

/// The machine of the honest host: 127.0.0.200.
const HONEST: u8 = 200;
/// In-capsule data of an I/O queue, at the most.
const IN_CAPSULE_LEN: u32 = 8192;
/// Bytes that wait for the target to read, at the most.
const UNSENT_MAX: usize = 256 * 1024;
/// Pieces of one PDU, at the most.
const PIECES_MAX: usize = 16;
/// Turns that a hostile host waits for an answer.
const PATIENCE: usize = 300;

pub(super) struct TcpHost {
    socket: TcpStream,
    receiver: PduReceiver,
    /// ICReq, and what ICResp said.
    asked: Option<IcReq>,
    sender: ToController,
    digests: Digests,
    maxh2cdata: u32,
    /// Where PDUs end is unknown: what comes is not looked at.
    deaf: bool,
    pub(super) reading: bool,
    ended: bool,
    /// Bytes behind the header of a termination request.
    behind: usize,
    unsent: VecDeque<u8>,
    scratch: Box<[u8]>,
    pub(super) ledger: Ledger,
    r2ts: Vec<R2t>,
    next_cid: u16,
    /// C2HData under way: CID, and whether they are in place of a response.
    arriving: Option<(Cid, bool)>,
    /// The data that came since the last command, if anyone wants them, and the last response.
    found: Option<Vec<u8>>,
    answer: Option<Cqe>,
    pub(super) spoil: Spoil,
}

/// What becomes of the next PDU on its way.
#[derive(Default)]
pub(super) struct Spoil {
    /// Bits that flip, and where.
    pub(super) flip: Option<(u8, u8)>,
    /// It ends so much too early.
    pub(super) cut: usize,
    /// Bytes that are sent at a time; 0: all. Of all later PDUs, too.
    pub(super) piece: usize,
}

impl TcpHost {
    /// A TCP connection from the machine with this number: 127.0.0.N.
    pub(super) fn open(address: SocketAddr, machine: u8) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        // Ports of connections that inputs before this one have left closed.
        socket.set_reuse_address(true).expect("an option of all sockets");
        let local = SocketAddr::from(([127, 0, 0, machine], 0));
        socket.bind(&SockAddr::from(local)).expect("a loopback address");
        socket.connect(&SockAddr::from(address)).expect("the target listens");
        socket.set_tcp_nodelay(true).expect("an option of TCP");
        socket.set_nonblocking(true).expect("an option of all sockets");
        let digests = Digests::default();
        Self {
            socket: socket.into(),
            receiver: PduReceiver::new(Receiver::Host),
            asked: None,
            sender: ToController::new(digests, DataAlignment::default()),
            digests,
            maxh2cdata: 4096,
            deaf: false,
            reading: true,
            ended: false,
            behind: 0,
            unsent: VecDeque::new(),
            scratch: vec![0; 16384].into(),
            ledger: Ledger::default(),
            r2ts: Vec::new(),
            next_cid: 0,
            arriving: None,
            found: None,
            answer: None,
            spoil: Spoil::default(),
        }
    }

    /// Ends its connection: RST, or FIN.
    pub(super) fn close(self, reset: bool) {
        if reset {
            SockRef::from(&self.socket).set_linger(Some(Duration::ZERO)).expect("an option of all sockets");
        }
    }

    /// FIN, after which it still reads.
    pub(super) fn close_half(&self) {
        // The target may have ended it already.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    pub(super) fn initialize<T: Transport>(&mut self, target: &mut Target<T>, request: IcReq) {
        if self.spoil.flip.is_some() || self.spoil.cut > 0 {
            self.deaf |= self.asked.is_none();
        }
        self.asked = self.asked.or(Some(request));
        self.send_pdu(target, ToController::ic_req(&request).as_bytes(), &[]);
    }

    /// Bytes that are no PDU of ours.
    pub(super) fn send_raw<T: Transport>(&mut self, target: &mut Target<T>, bytes: &[u8]) {
        self.deaf |= self.asked.is_none();
        self.ledger.give_up();
        self.send(target, bytes);
    }

    fn send<T: Transport>(&mut self, target: &mut Target<T>, bytes: &[u8]) {
        let piece = if self.spoil.piece == 0 { bytes.len() } else { self.spoil.piece };
        for bytes in bytes.chunks(piece.max(bytes.len() / PIECES_MAX).max(1)) {
            self.unsent.extend(bytes);
            self.flush();
            if self.spoil.piece > 0 {
                target.tick();
            }
        }
    }

    /// A PDU, whole and right, unless it is spoiled.
    fn send_pdu<T: Transport>(&mut self, target: &mut Target<T>, head: &[u8], data: &[u8]) {
        let mut pdu = [head, data].concat();
        if self.digests.data && !data.is_empty() {
            pdu.extend(Crc32c::of(data).to_le_bytes());
        }
        let cut = core::mem::take(&mut self.spoil.cut).min(pdu.len());
        pdu.truncate(pdu.len() - cut);
        let flip = self.spoil.flip.take().filter(|&(at, _)| usize::from(at) < pdu.len());
        if let Some((at, flip)) = flip {
            pdu[usize::from(at)] ^= flip;
        }
        if cut > 0 || flip.is_some() {
            self.ledger.give_up();
        }
        self.send(target, &pdu);
    }

    fn has_room(&self) -> bool {
        self.unsent.len() < UNSENT_MAX
    }

    fn cid(&mut self) -> u16 {
        self.next_cid = self.next_cid.wrapping_add(1);
        self.next_cid
    }

    /// Sends a command with so many in-capsule data as there are.
    pub(super) fn send_command<T: Transport>(&mut self, target: &mut Target<T>, sqe: &Sqe, data: &[u8]) {
        let Some(head) = self.sender.command(*sqe, data.len() as u32).filter(|_| self.has_room()) else {
            return;
        };
        self.ledger.on_sent(sqe);
        self.send_pdu(target, head.as_bytes(), data);
    }

    /// Sends a command whose data pointer, data and CID the input says.
    pub(super) fn send_made<T: Transport>(
        &mut self,
        target: &mut Target<T>,
        input: &mut Input<'_>,
        made: Made,
    ) {
        let Made { mut sqe, len } = made;
        let choice = input.u8();
        let is_write = sqe.opcode & 3 == 1;
        let mut in_capsule_len = 0;
        sqe.sgl = match choice & 7 {
            3 => SglDescriptor::in_capsule(input.u8().into(), len),
            4 => SglDescriptor::transport(super::command::length(input)),
            5 => SglDescriptor::keyed(0x1000, len, 7, true),
            6 => SglDescriptor::in_capsule_list(0, len),
            7 => zerocopy::transmute!(input.array::<16>()),
            _ if is_write && choice & 1 == 0 && len <= IN_CAPSULE_LEN => {
                in_capsule_len = len;
                SglDescriptor::in_capsule(0, len)
            }
            _ => SglDescriptor::transport(len),
        };
        if choice & 8 != 0 {
            in_capsule_len = super::command::length(input).min(2 * IN_CAPSULE_LEN);
        }
        let reused = (choice & 16 != 0).then(|| self.ledger.outstanding(input.u8().into())).flatten();
        sqe.cid = reused.unwrap_or_else(|| self.cid()).into();
        let mut data = if choice & 32 != 0 { input.take(64).to_vec() } else { Vec::new() };
        data.resize(in_capsule_len as usize, choice);
        self.send_command(target, &sqe, &data);
    }

    /// Sends a Connect; where its data are, the input says.
    pub(super) fn send_connect<T: Transport>(
        &mut self,
        target: &mut Target<T>,
        input: &mut Input<'_>,
        made: Made,
        data: &[u8],
    ) {
        let choice = input.u8();
        if choice & 0x80 != 0 {
            return self.send_made(target, input, made);
        }
        let cid = self.cid().into();
        self.send_command(target, &Sqe { sgl: SglDescriptor::in_capsule(0, 1024), cid, ..made.sqe }, data);
    }

    /// Answers all R2Ts with the data that they ask for.
    pub(super) fn answer_r2ts<T: Transport>(&mut self, target: &mut Target<T>, byte: u8) {
        for r2t in core::mem::take(&mut self.r2ts) {
            let (mut offset, end) = (r2t.offset, r2t.offset + r2t.len);
            while offset < end && self.has_room() {
                let len = (end - offset).min(self.maxh2cdata);
                let last = offset + len == end;
                self.send_h2c(target, &H2cData { cid: r2t.cid, ttag: r2t.ttag, offset, len, last }, byte);
                offset += len;
            }
        }
    }

    /// Sends H2CData for the last R2T that are right in part or not at all.
    pub(super) fn answer_wrongly<T: Transport>(&mut self, target: &mut Target<T>, input: &mut Input<'_>) {
        let choice = input.u8();
        let none = R2t { cid: Cid(1), ttag: 0, offset: 0, len: 4096 };
        let r2t = self.r2ts.last().copied().unwrap_or(none);
        let mut data = H2cData { cid: r2t.cid, ttag: r2t.ttag, offset: r2t.offset, len: r2t.len, last: true };
        if choice & 1 != 0 {
            // A part, after which the rest may follow.
            let part = (u32::from(input.u8()) * 64 + 4).min(data.len);
            (data.len, data.last) = (part, part == data.len);
        }
        if choice & 2 != 0 {
            data.cid.0 ^= u16::from(input.u8());
        }
        if choice & 4 != 0 {
            data.ttag ^= u16::from(input.u8());
        }
        if choice & 8 != 0 {
            data.offset = data.offset.wrapping_add_signed(i32::from(input.u8() as i8) * 4);
        }
        if choice & 16 != 0 {
            data.len = super::command::length(input).min(UNSENT_MAX as u32);
        }
        data.last ^= choice & 32 != 0;
        let right = choice & !1 == 0;
        if let Some(last) = self.r2ts.last_mut().filter(|_| right) {
            (last.offset, last.len) = (last.offset + data.len, last.len - data.len);
            if last.len == 0 {
                self.r2ts.pop();
            }
        }
        self.send_h2c(target, &data, choice);
    }

    fn send_h2c<T: Transport>(&mut self, target: &mut Target<T>, data: &H2cData, byte: u8) {
        let Some(head) = self.sender.h2c_data(data).filter(|_| self.has_room()) else { return };
        self.send_pdu(target, head.as_bytes(), &vec![byte; data.len as usize]);
    }

    fn flush(&mut self) {
        while !self.unsent.is_empty() && !self.ended {
            match self.socket.write(self.unsent.as_slices().0) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.unsent.clear(),
            }
        }
    }

    /// Sends what is left, and takes what came.
    pub(super) fn poll(&mut self) {
        self.flush();
        while self.reading && !self.ended {
            match self.socket.read(&mut self.scratch) {
                Ok(0) => self.ended = true,
                Ok(len) => {
                    let bytes = core::mem::take(&mut self.scratch);
                    self.on_bytes(&bytes[..len]);
                    self.scratch = bytes;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.ended = true,
            }
        }
    }

    fn on_bytes(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && !self.deaf {
            if self.receiver.is_over() {
                // The rest of the termination request is the header at fault.
                self.behind += bytes.len();
                assert!(self.behind <= ERROR_DATA_LEN_MAX as usize, "bytes behind a termination request");
                return;
            }
            let left = self.receiver.data_left() as usize;
            let (used, event) = if left > 0 {
                let used = left.min(bytes.len());
                if let Some(found) = &mut self.found {
                    found.extend(&bytes[..used]);
                }
                (used, self.receiver.on_data(&bytes[..used]))
            } else {
                self.receiver
                    .on_bytes(bytes)
                    .unwrap_or_else(|end| panic!("the target sends a wrong PDU: {end}"))
            };
            bytes = &bytes[used..];
            if let Some(event) = event {
                self.on_event(event);
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::IcResp(response) => {
                let request = self.asked.expect("ICResp without ICReq");
                self.digests = agreed(&request, &response).expect("the digests that were asked for");
                self.receiver.agree(self.digests, request.alignment);
                self.sender = ToController::new(self.digests, response.alignment);
                self.maxh2cdata = response.maxh2cdata;
            }
            Event::Response(cqe) => {
                self.r2ts.retain(|r2t| r2t.cid != cqe.cid());
                self.ledger.on_response(&cqe);
                self.answer = Some(cqe);
            }
            Event::C2hData(data) => {
                assert!(data.len > 0, "C2HData without data");
                self.ledger.on_data(data.cid.0, data.offset, data.len);
                self.arriving = Some((data.cid, data.success));
            }
            Event::DataEnd { intact } => {
                assert!(intact, "a wrong data digest");
                let (cid, success) = self.arriving.take().expect("data are under way");
                if success {
                    self.ledger.on_success(cid.0);
                    self.answer = Some(Cqe::new(cid, Status::SUCCESS, 0));
                }
            }
            Event::R2t(r2t) => {
                self.ledger.on_r2t(r2t.cid.0, r2t.offset, r2t.len);
                self.r2ts.push(r2t);
            }
            Event::Terminated(_) => {}
            Event::IcReq(_) | Event::Command { .. } | Event::H2cData(_) => panic!("a host's PDU: {event:?}"),
        }
    }

    /// Runs a command and answers its R2Ts. `None` if the target does not answer for so long.
    fn run_for<T: Transport>(
        &mut self,
        target: &mut Target<T>,
        sqe: &Sqe,
        data: Data<'_>,
        turns: usize,
    ) -> Option<(Cqe, Vec<u8>)> {
        let (sgl, in_capsule): (_, &[u8]) = match data {
            Data::None => (SglDescriptor::transport(0), &[]),
            Data::InCapsule(data) => (SglDescriptor::in_capsule(0, data.len() as u32), data),
            Data::ToTarget(data) => (SglDescriptor::transport(data.len() as u32), &[]),
            Data::ToHost(len) => (SglDescriptor::transport(len), &[]),
        };
        let cid = self.cid();
        (self.answer, self.found) = (None, matches!(data, Data::ToHost(_)).then(Vec::new));
        self.send_command(target, &Sqe { sgl, cid: cid.into(), ..*sqe }, in_capsule);
        for _ in 0..turns {
            target.tick();
            self.poll();
            while let (Data::ToTarget(data), Some(r2t)) = (data, self.r2ts.pop()) {
                let range = r2t.offset as usize..(r2t.offset + r2t.len) as usize;
                let R2t { cid, ttag, offset, len } = r2t;
                assert!(len <= self.maxh2cdata, "the honest host's transfers are short");
                let head = self.sender.h2c_data(&H2cData { cid, ttag, offset, len, last: true });
                self.send_pdu(target, head.expect("a valid H2CData").as_bytes(), &data[range]);
            }
            if let Some(cqe) = self.answer.take_if(|cqe| cqe.cid.get() == cid) {
                return Some((cqe, self.found.take().unwrap_or_default()));
            }
            if self.ended {
                break;
            }
        }
        None
    }

    /// As an honest host begins: `None` if the target does not let it.
    pub(super) fn begin<T: Transport>(
        &mut self,
        target: &mut Target<T>,
        request: IcReq,
        connecting: &super::command::Connecting,
    ) -> Option<()> {
        use zerocopy::IntoBytes;
        self.initialize(target, request);
        self.wait_for_ic_resp(target);
        let data = Data::InCapsule(connecting.data.as_bytes());
        let (cqe, _) = self.run_for(target, &connecting.sqe, data, PATIENCE)?;
        let enables = cqe.status().is_success() && connecting.is_admin();
        if enables {
            self.run_for(target, &super::command::enable(), Data::None, PATIENCE)?;
        }
        Some(())
    }

    fn wait_for_ic_resp<T: Transport>(&mut self, target: &mut Target<T>) {
        for _ in 0..PATIENCE {
            target.tick();
            self.poll();
            if self.ended || self.maxh2cdata > 4096 {
                break;
            }
        }
    }
}

impl<T: Transport> HonestQueue<T> for TcpHost {
    type Network = ();

    fn connect_data(data: &[u8]) -> Data<'_> {
        Data::InCapsule(data)
    }

    fn open(target: &mut Target<T>, (): &(), _qid: u16, _cntlid: Cntlid) -> Self {
        let mut host = TcpHost::open(target.address, HONEST);
        let digests = Digests { header: true, data: true };
        host.initialize(target, IcReq { alignment: DataAlignment::default(), digests, maxr2t: 1 });
        host.wait_for_ic_resp(target);
        host
    }

    fn run(&mut self, target: &mut Target<T>, sqe: &Sqe, data: Data<'_>) -> (Cqe, Vec<u8>) {
        let answer = self.run_for(target, sqe, data, super::target::TURNS_MAX);
        answer
            .unwrap_or_else(|| panic!("the honest host got no answer; its connection ended: {}", self.ended))
    }
}
