//! One connection: from commands to PDUs, and from bytes to responses.

use super::super::{Arrival, Data, OpenQueue, Payload, Refused, slot_data_len};
use core::time::Duration;
use nvme_proto::tcp::{
    C2hData, DataAlignment, Digests, FatalError, FatalErrorStatus, IcReq, IcResp, R2t, Receiver,
};
use nvme_proto::{Cid, Qid};
use nvmf_host::{Command, DataPointer};
use nvmf_memory::{Crc32c, Memory};
use nvmf_stream::{Frame, Outbox, Region, Stream, TlsError};
use nvmf_tcp::host::{Commands, Transfer, agreed};
use nvmf_tcp::{End, Event, Head, PduReceiver, ToController};
use std::collections::VecDeque;
use std::io::ErrorKind;
use zerocopy::transmute;

/// In-capsule data that every controller takes on the admin queue, in bytes.
const ADMIN_IN_CAPSULE: usize = 8192;
/// H2CData PDUs that wait for the socket at once: commands that come later wait behind no more than these.
const H2C_AHEAD: usize = 8;

/// How a connection ends.
#[derive(Debug)]
pub(super) enum Ended {
    /// Closed between two PDUs.
    Peer,
    /// Ended without a word of the controller's, over TLS.
    Cut,
    /// Closed within a PDU, reset, or never made.
    Broken(std::io::Error),
    /// The controller says that we broke the protocol.
    Terminated(FatalError),
    /// The controller broke the protocol: with the termination request that says how, where the standard has one.
    Violation(Option<FatalError>),
    /// It does not use the digests that were asked for.
    Digests(FatalError),
    /// It was not set up in time.
    TimedOut,
    /// TLS could not be had.
    Tls(TlsError),
    /// The controller answered ICReq with an alert of TLS.
    WantsTls,
}

impl Ended {
    /// Whether the controller is known to have ended its side. A broken pipe is what is left of a reset that was reported
    /// before. Over TLS only what is protected by the key counts.
    pub(super) fn peer_has_ended(&self, over_tls: bool) -> bool {
        match self {
            Self::Peer | Self::Terminated(_) => true,
            Self::Broken(error) => {
                !over_tls
                    && matches!(
                        error.kind(),
                        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof
                    )
            }
            Self::Cut
            | Self::Violation(_)
            | Self::Digests(_)
            | Self::TimedOut
            | Self::Tls(_)
            | Self::WantsTls => false,
        }
    }
}

/// How far the set-up has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// TCP connects.
    Connecting,
    /// The TLS handshake is under way.
    Securing,
    /// ICReq was sent.
    Initializing,
    /// ICResp was accepted.
    Ready,
}

/// A command whose memory is in use.
#[derive(Debug)]
struct Slot {
    cid: Cid,
    /// Where its data are.
    place: Option<(Memory, usize)>,
    /// PDUs of it that have not left.
    pdus: u32,
    /// In the list of those that answer an R2T.
    asked: bool,
    /// It has its response.
    complete: bool,
}

/// Where the data of the PDU under way go: into the command's memory, from this offset.
#[derive(Debug)]
struct Target {
    slot: u16,
    offset: usize,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) qid: Qid,
    pub(super) stream: Stream,
    /// PDUs to be sent, each with the slot of its command.
    pub(super) outbox: Outbox<Head, Option<u16>>,
    /// In the list of those with something to send.
    pub(super) listed: bool,
    pub(super) phase: Phase,
    /// When the set-up has failed.
    pub(super) deadline: Duration,
    request: IcReq,
    receiver: PduReceiver,
    to_controller: ToController,
    digests: Digests,
    maxh2cdata: u32,
    commands: Commands,
    slots: Vec<Option<Slot>>,
    /// The slot of a command, by the low bits of its CID.
    slot_of: Vec<u16>,
    /// Commands that answer an R2T, by slot.
    asked: VecDeque<u16>,
    target: Option<Target>,
    memory: Memory,
    slot_data: usize,
}

impl Connection {
    /// A connection that is being made.
    pub(super) fn new(
        now: Duration,
        queue: &OpenQueue<'_>,
        stream: Stream,
        memory: Memory,
        digests: Digests,
    ) -> Self {
        let entries = usize::from(queue.entries);
        // Every R2T is taken on its own, and data may begin anywhere.
        let request = IcReq { alignment: DataAlignment::default(), digests, maxr2t: 1 };
        Self {
            qid: queue.qid,
            stream,
            outbox: Outbox::with_capacity(entries + H2C_AHEAD),
            listed: false,
            phase: Phase::Connecting,
            deadline: now.saturating_add(queue.timeout),
            request,
            receiver: PduReceiver::new(Receiver::Host),
            to_controller: ToController::new(Digests::default(), DataAlignment::default()),
            digests: Digests::default(),
            maxh2cdata: 0,
            commands: Commands::new(entries, 0),
            slots: (0..entries).map(|_| None).collect(),
            slot_of: vec![0; entries.next_power_of_two()],
            asked: VecDeque::with_capacity(entries),
            target: None,
            memory,
            slot_data: slot_data_len(queue.qid),
        }
    }

    /// Bytes of memory that a queue needs for its slots.
    pub(super) fn memory_len(queue: &OpenQueue<'_>) -> usize {
        usize::from(queue.entries) * slot_data_len(queue.qid)
    }

    /// TCP is connected: ICReq is the first to be sent.
    pub(super) fn on_connected(&mut self) {
        self.phase = Phase::Initializing;
        self.send_pdu(ToController::ic_req(&self.request), None, None);
    }

    /// Nothing is in flight, and so many commands can be from now on.
    pub(super) fn resize(&mut self, entries: u16) {
        let entries = usize::from(entries).clamp(1, self.slots.len());
        self.commands = Commands::new(entries, self.maxh2cdata);
        self.slot_of.truncate(entries.next_power_of_two());
    }

    fn slot_of(&self, cid: Cid) -> u16 {
        self.slot_of[usize::from(cid.0) & (self.slot_of.len() - 1)]
    }

    /// Whether the connection stands between two PDUs of the controller's.
    pub(super) fn is_between_pdus(&self) -> bool {
        self.receiver.is_between_pdus()
    }

    /// Whether there is something to send.
    pub(super) fn has_more(&self) -> bool {
        !self.outbox.is_empty() || !self.asked.is_empty()
    }

    pub(super) fn send(
        &mut self,
        index: u16,
        cid: Cid,
        command: &Command,
        data: Data<'_, Memory>,
    ) -> Result<(), Refused> {
        if self.phase != Phase::Ready {
            return Err(Refused::NoRoom);
        }
        let own = usize::from(index) * self.slot_data;
        let slot_len = |len: usize| u32::try_from(len).ok().filter(|_| len <= self.slot_data);
        let (pointer, transfer, place) = match data {
            Data::None => (DataPointer::Transport { len: 0 }, Transfer::None, None),
            Data::Bytes { bytes, in_capsule } => {
                let len = slot_len(bytes.len()).ok_or(Refused::NoRoom)?;
                self.memory.write(own, bytes);
                let in_capsule = in_capsule || (self.qid.is_admin() && bytes.len() <= ADMIN_IN_CAPSULE);
                let (pointer, transfer) = to_controller(len, in_capsule);
                (pointer, transfer, Some((self.memory.clone(), own)))
            }
            Data::IntoSlot { len } => {
                slot_len(len as usize).ok_or(Refused::NoRoom)?;
                (DataPointer::Transport { len }, Transfer::ToHost(len), Some((self.memory.clone(), own)))
            }
            Data::User { region, offset, len, payload } => {
                let (pointer, transfer) = match payload {
                    Payload::FromController => (DataPointer::Transport { len }, Transfer::ToHost(len)),
                    Payload::ToController => to_controller(len, false),
                    Payload::InCapsule => to_controller(len, true),
                };
                (pointer, transfer, Some((region.clone(), offset)))
            }
        };
        let in_capsule = if let DataPointer::InCapsule { len } = pointer { len } else { 0 };
        let sqe = transmute!(command.encode(cid, pointer));
        let head = self.to_controller.command(sqe, in_capsule).ok_or(Refused::NoRoom)?;
        let out = place.as_ref().filter(|_| in_capsule > 0).map(|(memory, offset)| Region {
            memory: memory.clone(),
            offset: *offset,
            len: in_capsule as usize,
        });
        self.send_pdu(head, Some(index), out);
        self.commands.begin(cid, transfer);
        let at = usize::from(cid.0) & (self.slot_of.len() - 1);
        self.slot_of[at] = index;
        let slot = Slot { cid, place, pdus: 1, asked: false, complete: false };
        self.slots[usize::from(index)] = Some(slot);
        Ok(())
    }

    /// A PDU of the command in this slot, with a digest behind its data where digests are on.
    fn send_pdu(&mut self, head: Head, slot: Option<u16>, data: Option<Region>) {
        let digest = |data: &Region| Crc32c::of_memory(&data.memory, data.offset, data.len).to_le_bytes();
        let trailer = data.as_ref().filter(|_| self.digests.data).map(digest);
        self.outbox.push(Frame { head, data, trailer, note: slot });
    }

    /// The command in this slot is complete; whether its memory is released.
    pub(super) fn complete(&mut self, index: u16) -> bool {
        let Some(slot) = &mut self.slots[usize::from(index)] else { return true };
        slot.complete = true;
        if core::mem::take(&mut slot.asked) {
            self.asked.retain(|&asked| asked != index);
        }
        self.release(index)
    }

    fn release(&mut self, index: u16) -> bool {
        self.slots[usize::from(index)].take_if(|slot| slot.complete && slot.pdus == 0).is_some()
    }

    /// The socket took so many bytes.
    pub(super) fn on_sent(&mut self, bytes: usize, arrivals: &mut VecDeque<Arrival>) {
        let Self { outbox, slots, qid, .. } = self;
        outbox.on_sent(bytes, |index| {
            let Some(index) = index else { return };
            let slot = &mut slots[usize::from(index)];
            if let Some(slot) = slot {
                slot.pdus -= 1;
            }
            if slot.take_if(|slot| slot.complete && slot.pdus == 0).is_some() {
                arrivals.push_back(Arrival::Released(*qid, index));
            }
        });
    }

    /// Adds what R2Ts ask for, as far as it may wait for the socket.
    pub(super) fn answer_r2ts(&mut self) {
        while self.outbox.len() < H2C_AHEAD
            && let Some(&index) = self.asked.front()
        {
            let Some(slot) = &mut self.slots[usize::from(index)] else {
                self.asked.pop_front();
                continue;
            };
            let data = self.commands.next_h2c_data(slot.cid);
            let head = data.and_then(|data| Some((data, self.to_controller.h2c_data(&data)?)));
            if let (Some((data, head)), Some((memory, start))) = (head, &slot.place) {
                let (offset, len) = (start + data.offset as usize, data.len as usize);
                let out = Region { memory: memory.clone(), offset, len };
                slot.pdus += 1;
                self.send_pdu(head, Some(index), Some(out));
                if !data.last {
                    continue;
                }
            }
            if let Some(slot) = &mut self.slots[usize::from(index)] {
                slot.asked = false;
            }
            self.asked.pop_front();
        }
    }

    /// Where the next bytes of the stream go straight to: memory, offset, length.
    pub(super) fn direct(&self) -> Option<(&Memory, usize, usize)> {
        let left = self.receiver.data_left() as usize;
        let (memory, at) = self.place().filter(|_| left > 0)?;
        Some((memory, at, left))
    }

    /// The place of the next bytes of data.
    fn place(&self) -> Option<(&Memory, usize)> {
        let Target { slot, offset } = self.target.as_ref()?;
        let (memory, start) = self.slots[usize::from(*slot)].as_ref()?.place.as_ref()?;
        Some((memory, start + offset))
    }

    /// So many bytes were received straight into [`Connection::direct`].
    pub(super) fn on_direct(&mut self, len: usize, arrivals: &mut VecDeque<Arrival>) {
        let Some((memory, at)) = self.place() else { return };
        let memory = memory.clone();
        let event = self.receiver.on_memory(&memory, at, len);
        self.on_placed(len, event, arrivals);
    }

    /// So many bytes of data were put in place.
    fn on_placed(&mut self, len: usize, event: Option<Event>, arrivals: &mut VecDeque<Arrival>) {
        if let Some(target) = &mut self.target {
            target.offset += len;
        }
        if let Some(Event::DataEnd { intact }) = event {
            self.on_data_end(intact, arrivals);
        }
    }

    /// Takes bytes of the stream.
    pub(super) fn on_bytes(
        &mut self,
        mut bytes: &[u8],
        arrivals: &mut VecDeque<Arrival>,
    ) -> Result<(), Ended> {
        // The content type of an alert, and the version: no PDU type is this one.
        if self.phase == Phase::Initializing && bytes.starts_with(&[21, 3]) {
            return Err(Ended::WantsTls);
        }
        while !bytes.is_empty() {
            let left = self.receiver.data_left() as usize;
            let used = if left == 0 {
                let (used, event) = self.receiver.on_bytes(bytes)?;
                if let Some(event) = event {
                    self.on_event(event, arrivals)?;
                }
                used
            } else {
                let len = left.min(bytes.len());
                if let Some((memory, at)) = self.place() {
                    memory.write(at, &bytes[..len]);
                }
                let event = self.receiver.on_data(&bytes[..len]);
                self.on_placed(len, event, arrivals);
                len
            };
            bytes = &bytes[used..];
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event, arrivals: &mut VecDeque<Arrival>) -> Result<(), Ended> {
        match event {
            Event::IcResp(response) => self.on_ic_resp(&response)?,
            Event::Response(cqe) => {
                let completion = self.commands.on_response(&cqe)?;
                arrivals.push_back(Arrival::Response(self.qid, transmute!(completion.cqe), None));
            }
            Event::C2hData(data) => self.on_c2h_data(&data)?,
            Event::DataEnd { intact } => self.on_data_end(intact, arrivals),
            Event::R2t(r2t) => self.on_r2t(&r2t)?,
            Event::Terminated(error) => return Err(Ended::Terminated(error)),
            // The receiver has no other for a host.
            Event::IcReq(_) | Event::Command { .. } | Event::H2cData(_) => {
                let status = FatalErrorStatus::PDU_SEQUENCE_ERROR;
                return Err(FatalError { status, information: 0 }.into());
            }
        }
        Ok(())
    }

    fn on_ic_resp(&mut self, response: &IcResp) -> Result<(), Ended> {
        self.digests = agreed(&self.request, response).map_err(Ended::Digests)?;
        self.receiver.agree(self.digests, self.request.alignment);
        self.to_controller = ToController::new(self.digests, response.alignment);
        self.maxh2cdata = response.maxh2cdata;
        self.commands = Commands::new(self.slots.len(), self.maxh2cdata);
        self.phase = Phase::Ready;
        Ok(())
    }

    fn on_c2h_data(&mut self, data: &C2hData) -> Result<(), FatalError> {
        let placement = self.commands.on_data(data)?;
        self.target = Some(Target { slot: self.slot_of(placement.cid), offset: placement.offset as usize });
        Ok(())
    }

    fn on_data_end(&mut self, intact: bool, arrivals: &mut VecDeque<Arrival>) {
        self.target = None;
        if let Some(completion) = self.commands.on_data_end(intact) {
            arrivals.push_back(Arrival::Response(self.qid, transmute!(completion.cqe), None));
        }
    }

    fn on_r2t(&mut self, r2t: &R2t) -> Result<(), FatalError> {
        self.commands.on_r2t(r2t)?;
        let index = self.slot_of(r2t.cid);
        if let Some(slot) = &mut self.slots[usize::from(index)]
            && !core::mem::replace(&mut slot.asked, true)
        {
            self.asked.push_back(index);
        }
        Ok(())
    }

    /// The termination request for what the controller did.
    pub(super) fn terminate(&mut self, error: FatalError) -> Vec<u8> {
        self.receiver.terminate(error).as_bytes().to_vec()
    }
}

fn to_controller(len: u32, in_capsule: bool) -> (DataPointer, Transfer) {
    if in_capsule {
        (DataPointer::InCapsule { len }, Transfer::None)
    } else {
        (DataPointer::Transport { len }, Transfer::ToController(len))
    }
}

impl From<End> for Ended {
    fn from(end: End) -> Self {
        match end {
            End::Fatal(error) => error.into(),
            End::Close => Self::Violation(None),
        }
    }
}

impl From<FatalError> for Ended {
    fn from(error: FatalError) -> Self {
        Self::Violation(Some(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_tls_only_what_the_key_protects_is_an_end() {
        for kind in [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe, ErrorKind::UnexpectedEof] {
            assert!(Ended::Broken(kind.into()).peer_has_ended(false));
            assert!(!Ended::Broken(kind.into()).peer_has_ended(true));
        }
        assert!(Ended::Peer.peer_has_ended(false) && Ended::Peer.peer_has_ended(true));
        assert!(!Ended::Cut.peer_has_ended(true));
    }
}
