//! One connection: from bytes to capsules and data, and back.

use super::capsules::{Capsule, Capsules, Kind, Slot};
use super::outbox::{Done, Outbox};
use crate::exec::place::Place;
use crate::exec::queue::slots;
use crate::exec::transport::{Arrival, Piece};
use crate::limits::{CHUNKS_MAX, ENTRIES_MIN, H2C_DATA_MAX};
use arrayvec::ArrayVec;
use nvme_proto::tcp::{
    C2hData, DataAlignment, Digests, FatalError, FatalErrorStatus, H2cData, IcReq, IcResp,
};
use nvme_proto::{Cid, Cqe, Sqe, Status};
use nvmf_memory::Memory;
use nvmf_stream::{Deadline, Stream, TlsError};
use nvmf_subsystem::limits::{CQE_LEN, SQE_LEN};
use nvmf_tcp::controller::Transfers;
use nvmf_tcp::{End, Event, PduReceiver, ToHost};
use std::collections::VecDeque;

/// How a connection ends that its host broke.
#[derive(Debug)]
pub(super) enum Ended {
    /// Closed between two PDUs.
    Peer,
    /// Reset, or closed within a PDU.
    Broken,
    /// TLS broke, or the host ended it with an alert.
    Tls(String),
    /// The host says that we broke the protocol.
    Terminated(FatalError),
    /// The host broke the protocol: with the termination request that says how, where the standard has one.
    Violation(Option<FatalError>),
    /// More commands than its queue has entries.
    Overrun,
    /// The data of a capsule did not arrive in time.
    Stalled,
}

impl Ended {
    /// How a connection ends whose socket has failed.
    pub(super) fn of(error: &std::io::Error) -> Self {
        let tls = error.get_ref().filter(|source| source.is::<TlsError>());
        tls.map_or(Self::Broken, |error| Self::Tls(error.to_string()))
    }
}

/// A part of a command's data that the host is to send: one chunk.
#[derive(Debug)]
struct Pull {
    chunk: u8,
    memory: Memory,
    at: usize,
    offset: u32,
    len: u32,
    /// Bytes that arrived.
    received: u32,
}

/// What a request wants from the host, in the order of its offsets.
#[derive(Debug, Default)]
struct Pulls {
    cid: u16,
    chunks: ArrayVec<Pull, CHUNKS_MAX>,
    /// Chunks that the R2T which is outstanding asks for.
    asked: usize,
    /// In the list of those that are to ask.
    listed: bool,
}

/// Where the data of the PDU under way go.
#[derive(Debug)]
enum Target {
    /// Nowhere: they are read off the stream.
    Nowhere,
    /// A capsule's slot; so many bytes are there.
    Capsule(Capsule, u32),
    /// A slot that is still to be had.
    AwaitSlot(Sqe),
    /// Chunks of a request.
    Pull(u16),
}

pub(super) struct Connection {
    pub(super) queue: u32,
    pub(super) stream: Stream,
    pub(super) outbox: Outbox,
    /// In the list of those with something to send.
    pub(super) listed: bool,
    /// When an orderly end is given up; set once it began.
    pub(super) closing: Option<Deadline>,
    /// How often the data of the capsule under way were found to be still under way.
    pub(super) capsule_checks: u32,
    receiver: PduReceiver,
    to_host: ToHost,
    digests: Digests,
    transfers: Transfers,
    pulls: Vec<Pulls>,
    /// Requests that are to ask for data.
    asking: Vec<u16>,
    target: Target,
    kind: Kind,
    entries: u16,
    /// Commands that arrived and were not answered.
    commands: u16,
    /// Bytes that came behind a capsule that found no slot.
    held: Vec<u8>,
}

impl Connection {
    /// The connection of a host that asked for it with `request`: the answer is the first thing to be sent.
    pub(super) fn new(queue: u32, stream: Stream, mut receiver: PduReceiver, request: &IcReq) -> Self {
        let answer = IcResp {
            alignment: DataAlignment::default(),
            digests: request.digests,
            maxh2cdata: H2C_DATA_MAX,
        };
        receiver.agree(request.digests, answer.alignment);
        let mut outbox = Outbox::with_capacity(1);
        outbox.add(ToHost::ic_resp(&answer), None);
        let mut connection = Self {
            queue,
            stream,
            outbox,
            listed: false,
            closing: None,
            capsule_checks: 0,
            receiver,
            to_host: ToHost::new(request.digests, request.alignment),
            digests: request.digests,
            transfers: Transfers::new(slots(ENTRIES_MIN).into(), H2C_DATA_MAX),
            pulls: Vec::new(),
            asking: Vec::new(),
            target: Target::Nowhere,
            kind: Kind::Admin,
            entries: 0,
            commands: 0,
            held: Vec::new(),
        };
        connection.resize(ENTRIES_MIN, None);
        connection
    }

    /// Bytes of memory that one takes whose queue has so many entries.
    pub(super) fn bytes(entries: u16) -> usize {
        let slot = size_of::<Pulls>()
            + size_of::<u16>()
            + Transfers::SLOT_BYTES
            + (CHUNKS_MAX + 1) * Outbox::PDU_BYTES;
        size_of::<Self>() + usize::from(slots(entries)) * slot
    }

    /// The queue is to take so many entries; `in_capsule_len` bytes of data in its capsules, if it is an I/O queue.
    pub(super) fn resize(&mut self, entries: u16, in_capsule_len: Option<u32>) {
        let count = usize::from(slots(entries));
        if let Some(len) = in_capsule_len {
            self.kind = Kind::Io;
            self.receiver.set_in_capsule_len_max(len);
        }
        self.entries = entries;
        if count <= self.pulls.len() {
            return;
        }
        // The Connect's own data, if an R2T asked for them, are here.
        self.transfers = Transfers::new(count, H2C_DATA_MAX);
        self.pulls.resize_with(count, Pulls::default);
        self.asking.reserve(count);
        self.outbox.reserve(count * (CHUNKS_MAX + 1));
    }

    /// Whether the connection stands between two PDUs of the host's.
    pub(super) fn is_between_pdus(&self) -> bool {
        self.receiver.is_between_pdus()
    }

    /// Whether a capsule waits for a slot.
    pub(super) fn awaits_slot(&self) -> bool {
        matches!(self.target, Target::AwaitSlot(_))
    }

    /// Whether a capsule's data are under way: they hold a slot.
    pub(super) fn holds_slot(&self) -> bool {
        matches!(self.target, Target::Capsule(..))
    }

    /// Whether a capsule waits for a slot that there is now.
    pub(super) fn may_go_on(&self, capsules: &Capsules) -> bool {
        capsules.may_take(self.kind, self.queue)
    }

    /// Keeps bytes until a capsule has its slot.
    pub(super) fn hold(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Takes the bytes that were kept, as [`Connection::on_bytes`].
    pub(super) fn on_held(
        &mut self,
        capsules: &mut Capsules,
        arrivals: &mut VecDeque<(u32, Arrival<Capsule>)>,
    ) -> Result<(), Ended> {
        // With its slot a capsule can go on, even if no byte behind its header is here yet.
        if !self.take_slot(capsules) {
            return Ok(());
        }
        let mut held = core::mem::take(&mut self.held);
        let used = self.on_bytes(&held, capsules, arrivals)?;
        if used < held.len() {
            held.drain(..used);
            self.held = held;
        }
        Ok(())
    }

    /// Where the next bytes of the stream go straight to: memory, offset, length.
    pub(super) fn direct<'a>(&'a self, capsules: &'a Capsules) -> Option<(&'a Memory, usize, usize)> {
        let left = self.receiver.data_left() as usize;
        if left == 0 {
            return None;
        }
        let (memory, at, room) = self.place(capsules)?;
        Some((memory, at, room.min(left)))
    }

    /// The place of the next bytes of data, and how many bytes there are.
    fn place<'a>(&'a self, capsules: &'a Capsules) -> Option<(&'a Memory, usize, usize)> {
        match &self.target {
            Target::Capsule(Capsule { slot: Some(slot), .. }, have) => {
                let (memory, at) = capsules.memory(*slot);
                Some((memory, at + *have as usize, usize::MAX))
            }
            Target::Pull(slot) => {
                let pull = self.pulls[usize::from(*slot)].next()?;
                Some((&pull.memory, pull.at + pull.received as usize, (pull.len - pull.received) as usize))
            }
            _ => None,
        }
    }

    /// So many bytes were received straight into [`Connection::direct`].
    pub(super) fn on_direct(
        &mut self,
        len: usize,
        capsules: &Capsules,
        arrivals: &mut VecDeque<(u32, Arrival<Capsule>)>,
    ) {
        let Some((memory, at, _)) = self.place(capsules) else { return };
        let (memory, at) = (memory.clone(), at);
        let event = self.receiver.on_memory(&memory, at, len);
        self.on_placed(len, event, arrivals);
    }

    /// So many bytes of data were put in place.
    fn on_placed(
        &mut self,
        len: usize,
        event: Option<Event>,
        arrivals: &mut VecDeque<(u32, Arrival<Capsule>)>,
    ) {
        let bytes = u32::try_from(len).expect("a PDU's length has 32 bits");
        match &mut self.target {
            Target::Capsule(_, have) => *have += bytes,
            Target::Pull(slot) => self.pulls[usize::from(*slot)].on_received(bytes),
            Target::Nowhere | Target::AwaitSlot(_) => {}
        }
        if let Some(Event::DataEnd { intact }) = event {
            self.on_data_end(intact, arrivals);
        }
    }

    /// Takes bytes of the stream: all of them, unless a capsule finds no slot.
    pub(super) fn on_bytes(
        &mut self,
        mut bytes: &[u8],
        capsules: &mut Capsules,
        arrivals: &mut VecDeque<(u32, Arrival<Capsule>)>,
    ) -> Result<usize, Ended> {
        let whole = bytes.len();
        while !bytes.is_empty() {
            if self.awaits_slot() && !self.take_slot(capsules) {
                break;
            }
            let left = self.receiver.data_left() as usize;
            let used = if left == 0 {
                let (used, event) = self.receiver.on_bytes(bytes)?;
                if let Some(event) = event {
                    self.on_event(event, capsules, arrivals)?;
                }
                used
            } else {
                let placed = self.place(capsules);
                let len = placed.map_or(usize::MAX, |(.., room)| room).min(left).min(bytes.len());
                if let Some((memory, at, _)) = placed {
                    memory.write(at, &bytes[..len]);
                }
                let event = self.receiver.on_data(&bytes[..len]);
                self.on_placed(len, event, arrivals);
                len
            };
            bytes = &bytes[used..];
        }
        Ok(whole - bytes.len())
    }

    /// Takes a slot for the capsule that waits for one, if there is one.
    fn take_slot(&mut self, capsules: &mut Capsules) -> bool {
        let Target::AwaitSlot(sqe) = &self.target else { return true };
        let Some(slot) = capsules.take(self.kind, self.queue) else { return false };
        self.capsule_checks = 0;
        self.target = Target::Capsule(capsule(*sqe, Some(slot)), 0);
        true
    }

    fn on_event(
        &mut self,
        event: Event,
        capsules: &mut Capsules,
        arrivals: &mut VecDeque<(u32, Arrival<Capsule>)>,
    ) -> Result<(), Ended> {
        match event {
            Event::Command { sqe, data_len } => {
                self.commands += 1;
                if self.commands > self.entries {
                    return Err(Ended::Overrun);
                }
                if data_len == 0 {
                    let arrival = Arrival::Capsule(self.queue, capsule(sqe, None), SQE_LEN as u32, true);
                    arrivals.push_back((self.queue, arrival));
                } else {
                    self.target = Target::AwaitSlot(sqe);
                    self.take_slot(capsules);
                }
            }
            Event::H2cData(data) => self.on_h2c_data(&data)?,
            Event::DataEnd { intact } => self.on_data_end(intact, arrivals),
            Event::Terminated(error) => return Err(Ended::Terminated(error)),
            // The receiver has no other for a controller that agreed.
            Event::IcReq(_) | Event::IcResp(_) | Event::Response(_) | Event::C2hData(_) | Event::R2t(_) => {
                let status = FatalErrorStatus::PDU_SEQUENCE_ERROR;
                return Err(Ended::Violation(Some(FatalError { status, information: 0 })));
            }
        }
        Ok(())
    }

    fn on_h2c_data(&mut self, data: &H2cData) -> Result<(), Ended> {
        let placement = self.transfers.on_data(data).map_err(|error| Ended::Violation(Some(error)))?;
        self.target = if placement.discard { Target::Nowhere } else { Target::Pull(placement.slot) };
        Ok(())
    }

    /// The data of a PDU are here.
    fn on_data_end(&mut self, intact: bool, arrivals: &mut VecDeque<(u32, Arrival<Capsule>)>) {
        match core::mem::replace(&mut self.target, Target::Nowhere) {
            Target::Capsule(capsule, len) => {
                let len = SQE_LEN as u32 + len;
                arrivals.push_back((self.queue, Arrival::Capsule(self.queue, capsule, len, intact)));
            }
            Target::Pull(slot) => {
                let Some(arrival) = self.transfers.on_data_end(intact) else { return };
                let pulls = &mut self.pulls[usize::from(slot)];
                while let Some(pull) = pulls.chunks.first()
                    && pull.received == pull.len
                {
                    let place = Place::new(self.queue, slot, pull.chunk);
                    arrivals.push_back((self.queue, Arrival::Pulled(place, arrival.intact)));
                    pulls.chunks.remove(0);
                    pulls.asked -= 1;
                }
                if arrival.last {
                    self.list(slot);
                }
            }
            Target::Nowhere | Target::AwaitSlot(_) => {
                let _ = self.transfers.on_data_end(intact);
            }
        }
    }

    /// Lists a request that is to ask for data, if it can.
    fn list(&mut self, slot: u16) {
        let pulls = &mut self.pulls[usize::from(slot)];
        let can = pulls.asked == 0 && !pulls.chunks.is_empty();
        if can && !core::mem::replace(&mut pulls.listed, true) {
            self.asking.push(slot);
        }
    }

    /// Whether requests are to ask for data.
    pub(super) fn asks(&self) -> bool {
        !self.asking.is_empty()
    }

    /// Sends the R2Ts that are due, each for all chunks that its request has buffers for.
    pub(super) fn ask(&mut self) {
        for at in 0..self.asking.len() {
            let slot = self.asking[at];
            let pulls = &mut self.pulls[usize::from(slot)];
            pulls.listed = false;
            let (Some(first), Some(last)) = (pulls.chunks.first(), pulls.chunks.last()) else { continue };
            let (offset, end) = (first.offset, last.offset + last.len);
            pulls.asked = pulls.chunks.len();
            let r2t = self.transfers.begin(slot, Cid(pulls.cid), offset, end - offset);
            if let Some(head) = r2t.and_then(|r2t| self.to_host.r2t(&r2t)) {
                self.outbox.add(head, None);
            }
        }
        self.asking.clear();
    }

    /// A chunk has its buffer.
    pub(super) fn pull(&mut self, place: Place, piece: Piece, memory: &Memory, at: usize) -> bool {
        let (offset, len) = (piece.offset, piece.len);
        if !offset.is_multiple_of(4) || !len.is_multiple_of(4) {
            return false;
        }
        let pulls = &mut self.pulls[usize::from(place.slot())];
        pulls.cid = piece.cid;
        pulls.chunks.push(Pull {
            chunk: place.chunk(),
            memory: memory.clone(),
            at,
            offset,
            len,
            received: 0,
        });
        self.list(place.slot());
        true
    }

    pub(super) fn push(
        &mut self,
        place: Place,
        piece: Piece,
        own: (&Memory, usize),
        borrowed: Option<(&Memory, usize)>,
        signaled: bool,
    ) -> bool {
        let Piece { cid, offset, len, last, .. } = piece;
        let data = C2hData { cid: Cid(cid), offset, len, last, success: false };
        let Some(head) = self.to_host.c2h_data(&data) else { return false };
        let done = if signaled { Done::Pushed(place) } else { Done::Unsignaled(place) };
        let range = own.1..own.1 + len as usize;
        self.outbox.add_data(head, range, own.0, borrowed, self.digests.data, done);
        true
    }

    pub(super) fn respond(&mut self, place: Place, cqe: &[u8; CQE_LEN]) {
        self.commands = self.commands.saturating_sub(1);
        let cqe: Cqe = zerocopy::transmute!(*cqe);
        // The last data may say that all is well, where there is nothing else to say.
        let plain = cqe.status() == Status::SUCCESS && cqe.result() == 0 && cqe.sqhd.get() == Cqe::SQHD_NONE;
        if !(plain && self.outbox.succeed(place)) {
            self.outbox.add(self.to_host.response(cqe), Some(Done::Responded(place)));
        }
    }

    /// The termination request for what the host did.
    pub(super) fn terminate(&mut self, error: FatalError) -> Vec<u8> {
        self.receiver.terminate(error).as_bytes().to_vec()
    }
}

impl Pulls {
    /// The chunk that the next data go to.
    fn next(&self) -> Option<&Pull> {
        self.chunks.iter().find(|pull| pull.received < pull.len)
    }

    fn on_received(&mut self, bytes: u32) {
        if let Some(pull) = self.chunks.iter_mut().find(|pull| pull.received < pull.len) {
            pull.received += bytes;
        }
    }
}

impl From<End> for Ended {
    fn from(end: End) -> Self {
        match end {
            End::Fatal(error) => Self::Violation(Some(error)),
            End::Close => Self::Violation(None),
        }
    }
}

fn capsule(sqe: Sqe, slot: Option<Slot>) -> Capsule {
    Capsule { sqe: zerocopy::transmute!(sqe), slot }
}
