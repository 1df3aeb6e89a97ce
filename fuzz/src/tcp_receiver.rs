//! Target: the byte stream of an NVMe/TCP connection, at either side, with the side's ledger.

use crate::input::Input;
use nvme_proto::tcp::{
    CommonHeader, DataAlignment, Digests, FatalError, Flags, IcReq, IcResp, Layout, Link, PduType, Receiver,
};
use nvme_proto::{Cid, Status};
use nvmf_tcp::controller::Transfers;
use nvmf_tcp::host::{Commands, Transfer};
use nvmf_tcp::{Crc32c, End, Event, PduReceiver, ToController, ToHost};
use zerocopy::IntoBytes;

const SLOTS: u16 = 20;
const MAXH2CDATA: u32 = 4096;
/// Bits of a CID that are the slot, with this many slots.
const SLOT_MASK: u16 = 31;

/// What is still to come of a transfer, as the model has it.
#[derive(Clone, Copy, Default)]
struct Range {
    next: u32,
    end: u32,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    /// The command under way.
    command: Option<(Cid, Transfer)>,
    /// Data that may arrive: of an R2T, or of a read.
    arriving: Range,
    /// Data that the controller asked for and that are not sent.
    asked: Range,
    ttag: u16,
}

struct Connection {
    link: Link,
    receiver: PduReceiver,
    transfers: Transfers,
    commands: Commands,
    model: [Slot; SLOTS as usize],
    /// The slot that was used last.
    last: u16,
    /// Bytes of data that the PDU under way still has.
    data_left: u32,
    terminated: bool,
}

/// Arbitrary bytes or well-framed PDUs with arbitrary fields, in arbitrary pieces, between commands and R2Ts of ours.
/// No data are placed where they were not asked for, each command completes once, and nothing follows an error.
///
/// # Panics
/// When an invariant is violated.
pub fn tcp_receiver(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.u8();
    let mut connection = Connection::new(choice);
    if choice & 0x80 == 0 {
        connection.initialize();
    }
    while !input.is_empty() {
        let event = input.u8();
        match event % 8 {
            0 => connection.feed(input.take(usize::from(event >> 3) * 8 + 1)),
            1 => connection.begin(input.u8(), input.u8(), input.u8()),
            2 => connection.transfers.end(u16::from(input.u8()) % SLOTS),
            3 => connection.send(usize::from(event >> 3)),
            4 => connection.respond(input.u8(), event >> 3),
            _ => connection.pdu(&mut input, usize::from(event >> 3) * 5 + 1),
        }
    }
}

impl Connection {
    fn new(choice: u8) -> Self {
        let receiver = if choice & 1 != 0 { Receiver::Host } else { Receiver::Controller };
        let digests = Digests { header: choice & 2 != 0, data: choice & 4 != 0 };
        let alignment = DataAlignment::from_dwords_z(choice >> 3 & 15).expect("less than 32");
        Self {
            link: Link { receiver, digests, alignment },
            receiver: PduReceiver::new(receiver),
            transfers: Transfers::new(usize::from(SLOTS), MAXH2CDATA),
            commands: Commands::new(usize::from(SLOTS), MAXH2CDATA),
            model: [Slot::default(); SLOTS as usize],
            last: 0,
            data_left: 0,
            terminated: false,
        }
    }

    fn initialize(&mut self) {
        let Link { alignment, digests, .. } = self.link;
        let head = match self.link.receiver {
            Receiver::Controller => ToController::ic_req(&IcReq { alignment, digests, maxr2t: 1 }),
            Receiver::Host => ToHost::ic_resp(&IcResp { alignment, digests, maxh2cdata: MAXH2CDATA }),
        };
        self.feed(head.as_bytes());
    }

    fn slot(&mut self, slot: u16) -> &mut Slot {
        &mut self.model[usize::from(slot)]
    }

    /// A new R2T of ours, or a new command.
    fn begin(&mut self, slot: u8, offset: u8, len: u8) {
        let (index, offset, len) = (u16::from(slot) % SLOTS, u32::from(offset) * 4, u32::from(len) * 32);
        self.last = index;
        let cid = Cid(index | u16::from(slot >> 5) << 5);
        match self.link.receiver {
            Receiver::Controller => {
                let free = !self.transfers.is_outstanding(index);
                let r2t = self.transfers.begin(index, cid, offset, len);
                assert_eq!(r2t.is_some(), free && len > 0, "slot {index}");
                let Some(r2t) = r2t else { return };
                let arriving = Range { next: offset, end: offset + len };
                let command = Some((cid, Transfer::ToController(len)));
                *self.slot(index) = Slot { command, arriving, ttag: r2t.ttag, ..Slot::default() };
            }
            Receiver::Host if self.model[usize::from(index)].command.is_none() => {
                let transfer = match offset / 4 % 3 {
                    0 => Transfer::None,
                    1 => Transfer::ToHost(len),
                    _ => Transfer::ToController(len),
                };
                self.commands.begin(cid, transfer);
                let end = if let Transfer::ToHost(len) = transfer { len } else { 0 };
                let arriving = Range { next: 0, end };
                *self.slot(index) = Slot { command: Some((cid, transfer)), arriving, ..Slot::default() };
            }
            Receiver::Host => {}
        }
    }

    /// Sends up to so many H2CData of the last command.
    fn send(&mut self, count: usize) {
        let Some((cid, _)) = self.slot(self.last).command else { return };
        for _ in 0..count {
            let Some(data) = self.commands.next_h2c_data(cid) else { break };
            let asked = &mut self.model[usize::from(self.last)].asked;
            assert!(data.offset == asked.next && (1..=MAXH2CDATA).contains(&data.len));
            asked.next += data.len;
            assert!(asked.next <= asked.end && data.last == (asked.next == asked.end));
            assert!(ToController::new(self.link.digests, self.link.alignment).h2c_data(&data).is_some());
        }
    }

    /// A response capsule for the last command, or for any.
    fn respond(&mut self, cid: u8, choice: u8) {
        let known = self.slot(self.last).command.filter(|_| choice & 1 != 0);
        let cid = known.map_or(Cid(cid.into()), |(cid, _)| cid);
        let status = if choice & 2 != 0 { Status::SUCCESS } else { Status::INTERNAL_ERROR };
        let head = ToHost::new(self.link.digests, DataAlignment::default());
        self.feed(head.response(nvme_proto::Cqe::new(cid, status, 0)).as_bytes());
    }

    /// A PDU that is framed rightly, with arbitrary fields or those that are expected next, in pieces of `piece` bytes.
    fn pdu(&mut self, input: &mut Input<'_>, piece: usize) {
        let (kind, choice, len) = (PduType(input.u8() % 12), input.u8(), input.u8());
        let mut header = [0; 128];
        header[8..24].copy_from_slice(&input.array::<16>());
        let hlen = usize::from(kind.header_len().unwrap_or(24));
        let len =
            if kind.may_have_data() { u32::from(len) * if choice & 32 != 0 { 32 } else { 1 } } else { 0 };
        let last = Flags::LAST_PDU.when(choice & 4 != 0);
        let success = Flags::SUCCESS.when(choice & 12 == 12);
        let link = Link { receiver: kind.receiver().unwrap_or(Receiver::Host), ..self.link };
        let Some(layout) = Layout::new(kind, last | success, len, link) else { return };
        header[..CommonHeader::LEN].copy_from_slice(layout.header().as_bytes());
        if choice & 1 != 0 {
            let slot = *self.slot(self.last);
            let cid = slot.command.map_or(0, |(cid, _)| cid.0);
            header[8..10].copy_from_slice(&cid.to_le_bytes());
            header[10..12].copy_from_slice(&slot.ttag.to_le_bytes());
            let next = if kind == PduType::R2T { slot.asked.end } else { slot.arriving.next };
            if choice & 64 == 0 {
                header[12..16].copy_from_slice(&next.to_le_bytes());
            }
        }
        if choice & 2 != 0 && kind.may_have_data() {
            header[16..20].copy_from_slice(&len.to_le_bytes());
        }
        let mut pdu = header[..hlen].to_vec();
        if layout.header_digest().is_some() {
            pdu.extend_from_slice(&Crc32c::of(&header[..hlen]).to_le_bytes());
        }
        pdu.resize(layout.data().end, choice);
        if layout.data_digest().is_some() {
            let digest = Crc32c::of(&pdu[layout.data()]) ^ u32::from(choice & 16);
            pdu.extend_from_slice(&digest.to_le_bytes());
        }
        pdu.chunks(piece).for_each(|piece| self.feed(piece));
    }

    fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let left = self.receiver.data_left();
            assert!(left <= self.data_left && (left == 0 || !self.receiver.is_between_pdus()));
            if left > 0 {
                let (data, rest) = bytes.split_at(bytes.len().min(left as usize));
                self.data_left -= data.len() as u32;
                let event = self.receiver.on_data(data);
                bytes = rest;
                self.on_event(event);
                continue;
            }
            match self.receiver.on_bytes(bytes) {
                Ok((used, event)) => {
                    assert!(used > 0 && !(self.terminated && event.is_some()));
                    bytes = &bytes[used..];
                    self.on_event(event);
                }
                Err(End::Fatal(error)) => return self.terminate(error),
                Err(End::Close) => self.terminated = true,
            }
            assert!(!self.terminated || self.receiver.is_over());
        }
    }

    fn on_event(&mut self, event: Option<Event>) {
        let Some(event) = event else { return };
        let result = match event {
            Event::IcReq(_) | Event::IcResp(_) => {
                self.receiver.agree(self.link.digests, self.link.alignment);
                Ok(())
            }
            Event::Command { data_len, .. } => {
                self.data_left = data_len;
                Ok(())
            }
            Event::H2cData(data) => self.transfers.on_data(&data).map(|placement| {
                self.data_left = placement.len;
                let slot = self.slot(placement.slot);
                assert_eq!(slot.command.map(|(cid, _)| cid), Some(data.cid));
                place(&mut slot.arriving, placement.offset, placement.len);
                assert_eq!(placement.last, slot.arriving.next == slot.arriving.end);
            }),
            Event::C2hData(data) => self.commands.on_data(&data).map(|placement| {
                self.data_left = placement.len;
                let slot = self.slot(placement.cid.0 & SLOT_MASK);
                assert_eq!(slot.command.map(|(cid, _)| cid), Some(data.cid));
                place(&mut slot.arriving, placement.offset, placement.len);
            }),
            Event::R2t(r2t) => self.commands.on_r2t(&r2t).map(|()| {
                let slot = self.slot(r2t.cid.0 & SLOT_MASK);
                let Some((_, Transfer::ToController(len))) = slot.command else {
                    panic!("{r2t:?} was taken")
                };
                assert!(r2t.offset == slot.asked.end && r2t.offset == slot.asked.next);
                slot.asked.end += r2t.len;
                assert!(slot.asked.end <= len);
            }),
            Event::Response(cqe) => self.commands.on_response(&cqe).map(|completion| {
                self.completed(completion.cqe.cid(), completion.cqe.status().is_success());
            }),
            Event::DataEnd { intact } => {
                assert!(self.data_left == 0 && (intact || self.link.digests.data));
                match self.link.receiver {
                    Receiver::Controller => drop(self.transfers.on_data_end(intact)),
                    Receiver::Host => {
                        let completion = self.commands.on_data_end(intact);
                        completion
                            .inspect(|end| self.completed(end.cqe.cid(), end.cqe.status().is_success()));
                    }
                }
                Ok(())
            }
            Event::Terminated(_) => {
                self.terminated = true;
                Ok(())
            }
        };
        if let Err(error) = result {
            self.terminate(error);
        }
    }

    /// A command completes once, and a success has all its data.
    fn completed(&mut self, cid: Cid, success: bool) {
        let slot = self.slot(cid.0 & SLOT_MASK);
        let command = slot.command.take();
        assert_eq!(command.map(|(cid, _)| cid), Some(cid));
        if let (true, Some((_, transfer))) = (success, command) {
            match transfer {
                Transfer::None => {}
                Transfer::ToHost(_) => assert_eq!(slot.arriving.next, slot.arriving.end),
                Transfer::ToController(len) => assert_eq!((slot.asked.next, slot.asked.end), (len, len)),
            }
        }
    }

    /// Ends the connection. The other side understands why.
    fn terminate(&mut self, error: FatalError) {
        self.terminated = true;
        let request = self.receiver.terminate(error);
        assert!((32..=152).contains(&request.as_bytes().len()) && self.receiver.data_left() == 0);
        let others = match self.link.receiver {
            Receiver::Controller => Receiver::Host,
            Receiver::Host => Receiver::Controller,
        };
        let (_, event) =
            PduReceiver::new(others).on_bytes(request.as_bytes()).expect("a valid termination request");
        assert_eq!(event, Some(Event::Terminated(error)));
    }
}

fn place(range: &mut Range, offset: u32, len: u32) {
    assert!(offset == range.next && len > 0 && len <= range.end - range.next, "{len} at {offset}");
    range.next += len;
}
