//! A stream of bytes becomes events.

use crate::head::{Termination, termination};
use nvme_proto::tcp::{
    C2hData, CommonHeader, DIGEST_LEN, DataAlignment, Digests, FatalError, FatalErrorStatus, H2cData, IcReq,
    IcResp, Layout, Link, Pdu, PduError, PduType, R2t, Receiver,
};
use nvme_proto::{Cqe, Sqe};
use nvmf_memory::{Crc32c, Memory};

/// Bytes of in-capsule data that every controller takes with Admin and Fabrics commands, whatever IOCCSZ says.
pub const ADMIN_IN_CAPSULE_LEN: u32 = 8192;

/// The longest header, those of ICReq and ICResp.
const HEADER_LEN_MAX: usize = 128;

/// What arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The host begins. The controller answers, and then calls [`PduReceiver::agree`].
    IcReq(IcReq),
    /// The controller's answer. The host checks it ([`crate::host::agreed`]), and then calls [`PduReceiver::agree`].
    IcResp(IcResp),
    /// A command. `data_len` bytes of in-capsule data follow; [`Event::DataEnd`] ends them if there are any.
    Command {
        /// The command.
        sqe: Sqe,
        /// Bytes of in-capsule data: at most what [`PduReceiver::set_in_capsule_len_max`] allows.
        data_len: u32,
    },
    /// A command's response.
    Response(Cqe),
    /// Data from the host follow. Whether they may come, [`crate::controller::Transfers::on_data`] knows.
    H2cData(H2cData),
    /// Data from the controller follow. Whether they may come, [`crate::host::Commands::on_data`] knows.
    C2hData(C2hData),
    /// The controller asks for data. Whether it may, [`crate::host::Commands::on_r2t`] knows.
    R2t(R2t),
    /// The data of the PDU under way are complete.
    DataEnd {
        /// Whether the data digest is right; true where none is used. Wrong data fail their command with Transient
        /// Transport Error, and the connection lives.
        intact: bool,
    },
    /// The other side ends the connection, for this reason. Whatever else arrives is ignored; nothing more is sent.
    Terminated(FatalError),
}

/// Why the connection is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum End {
    /// With a termination request that says why: [`PduReceiver::terminate`].
    #[error("{0}: terminate the connection")]
    Fatal(FatalError),
    /// At once and without a termination request: what arrived is an invalid one itself.
    #[error("an invalid termination request: close the connection")]
    Close,
}

impl From<FatalError> for End {
    fn from(error: FatalError) -> Self {
        Self::Fatal(error)
    }
}

impl From<PduError> for End {
    fn from(error: PduError) -> Self {
        match error {
            PduError::Fatal(error) => Self::Fatal(error),
            // A header is parsed when it is complete, so nothing is missing from it.
            PduError::Close | PduError::Incomplete { .. } => Self::Close,
        }
    }
}

/// How far the initialization of the connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// ICReq or ICResp is the next PDU.
    Initialize,
    /// It arrived, and what it says is not agreed yet.
    Agree,
    /// Any other PDU may come.
    Ready,
}

/// Which part of a PDU the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The first byte of a PDU.
    Between,
    /// The common header.
    Common,
    /// The rest of the header, and its digest.
    Header,
    /// This many bytes of padding, then data.
    Pad { left: usize, layout: Layout },
    /// Data.
    Data { left: u32, layout: Layout },
    /// The data digest, of which these many bytes have arrived.
    DataDigest { received: [u8; DIGEST_LEN as usize], len: usize },
    /// The connection ends: every byte is ignored.
    Over,
}

/// The receiving end of one connection. It holds at most one header.
#[derive(Debug)]
pub struct PduReceiver {
    link: Link,
    phase: Phase,
    stage: Stage,
    in_capsule_len_max: u32,
    /// The header of the PDU under way, or of the last one, with its digest.
    header: [u8; HEADER_LEN_MAX],
    /// Bytes of it that are there.
    have: usize,
    /// Bytes of it that there will be.
    need: usize,
    /// Of the data under way; none where no digest is used, or where the caller did not show the data.
    crc: Option<Crc32c>,
}

impl PduReceiver {
    /// For a new connection, whose next PDU is ICReq towards a controller, and ICResp towards a host.
    #[must_use]
    pub fn new(receiver: Receiver) -> Self {
        let link = Link { receiver, digests: Digests::default(), alignment: DataAlignment::default() };
        Self {
            link,
            phase: Phase::Initialize,
            stage: Stage::Between,
            in_capsule_len_max: ADMIN_IN_CAPSULE_LEN,
            header: [0; HEADER_LEN_MAX],
            have: 0,
            need: CommonHeader::LEN,
            crc: None,
        }
    }

    /// What ICReq and ICResp agreed on: from now on other PDUs may come. `alignment` is what this side asked for: CPDA
    /// of a controller, HPDA of a host.
    ///
    /// # Panics
    /// When ICReq or ICResp has not arrived, or was agreed on already.
    pub fn agree(&mut self, digests: Digests, alignment: DataAlignment) {
        assert_eq!(self.phase, Phase::Agree, "agreed before or twice after ICReq or ICResp");
        self.link = Link { digests, alignment, ..self.link };
        self.phase = Phase::Ready;
    }

    /// The most in-capsule data that a command may have, in bytes; [`ADMIN_IN_CAPSULE_LEN`] until this says otherwise.
    /// More ends the connection (Data Transfer Limit Exceeded).
    pub fn set_in_capsule_len_max(&mut self, len: u32) {
        self.in_capsule_len_max = len;
    }

    /// Takes bytes of the stream, up to the next event or to data. Returns how many it took.
    ///
    /// It takes no data: with [`PduReceiver::data_left`] above 0 it takes nothing.
    ///
    /// # Errors
    /// Why the connection is to end. The receiver ignores whatever follows.
    pub fn on_bytes(&mut self, bytes: &[u8]) -> Result<(usize, Option<Event>), End> {
        let mut used = 0;
        while used < bytes.len() {
            match self.step(&bytes[used..]) {
                Ok((0, None)) => break,
                Ok((len, None)) => used += len,
                Ok((len, event)) => return Ok((used + len, event)),
                Err(end) => {
                    self.stage = Stage::Over;
                    return Err(end);
                }
            }
        }
        Ok((used, None))
    }

    /// Bytes of data that the stream goes on with.
    #[must_use]
    pub fn data_left(&self) -> u32 {
        match self.stage {
            Stage::Data { left, .. } => left,
            _ => 0,
        }
    }

    /// Whether the data digest needs to see the data: [`PduReceiver::on_data`] or [`PduReceiver::on_memory`].
    #[must_use]
    pub fn wants_data_bytes(&self) -> bool {
        self.crc.is_some()
    }

    /// These are the next data. Returns [`Event::DataEnd`] if they are the last and no digest follows.
    ///
    /// # Panics
    /// With more than [`PduReceiver::data_left`].
    pub fn on_data(&mut self, bytes: &[u8]) -> Option<Event> {
        if let Some(crc) = &mut self.crc {
            crc.update(bytes);
        }
        self.data_arrived(bytes.len())
    }

    /// As [`PduReceiver::on_data`], for data that were received into `memory`. They are read only for the data digest.
    ///
    /// # Panics
    /// With more than [`PduReceiver::data_left`], or when a range that must be read is not within `memory`.
    pub fn on_memory(&mut self, memory: &Memory, offset: usize, len: usize) -> Option<Event> {
        if let Some(crc) = &mut self.crc {
            crc.update_memory(memory, offset, len);
        }
        self.data_arrived(len)
    }

    /// As [`PduReceiver::on_data`], for data that nobody shows to the digest, such as those that are thrown away. Where
    /// a digest is used, the data count as damaged.
    ///
    /// # Panics
    /// With more than [`PduReceiver::data_left`].
    pub fn on_placed(&mut self, len: usize) -> Option<Event> {
        if len > 0 {
            self.crc = None;
        }
        self.data_arrived(len)
    }

    /// Whether all PDUs are complete: a connection that is closed now lost none in the middle.
    #[must_use]
    pub fn is_between_pdus(&self) -> bool {
        matches!(self.stage, Stage::Between)
    }

    /// Whether the connection ends, so that every byte is ignored.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// Ends the connection: the termination request to send, with the header of the PDU under way or else of the last.
    /// From now on every byte is ignored.
    pub fn terminate(&mut self, error: FatalError) -> Termination {
        self.stage = Stage::Over;
        let (kind, have) = (PduType(self.header[0]), self.have);
        let header_len = have.min(usize::from(kind.header_len().unwrap_or(u8::MAX)));
        // Peers want to see at least the common header.
        let len = header_len.max(CommonHeader::LEN);
        self.header[header_len..len].fill(0);
        termination(self.link.receiver, error, &self.header[..len])
    }

    /// Takes the bytes of one stage. `Ok((0, None))` if the bytes are data.
    fn step(&mut self, bytes: &[u8]) -> Result<(usize, Option<Event>), End> {
        match &mut self.stage {
            Stage::Between => {
                (self.have, self.need, self.stage) = (0, CommonHeader::LEN, Stage::Common);
                self.step(bytes)
            }
            Stage::Common => {
                let used = self.fill(bytes);
                if self.have == self.need {
                    self.on_common()?;
                }
                Ok((used, None))
            }
            Stage::Header => {
                let used = self.fill(bytes);
                let event = if self.have == self.need { Some(self.on_header()?) } else { None };
                Ok((used, event))
            }
            Stage::Pad { left, layout } => {
                let used = bytes.len().min(*left);
                *left -= used;
                if *left == 0 {
                    self.stage = Stage::Data { left: layout.data_len(), layout: *layout };
                }
                Ok((used, None))
            }
            Stage::Data { .. } => Ok((0, None)),
            Stage::DataDigest { received, len } => {
                let used = bytes.len().min(received.len() - *len);
                received[*len..*len + used].copy_from_slice(&bytes[..used]);
                *len += used;
                if *len < received.len() {
                    return Ok((used, None));
                }
                let received = u32::from_le_bytes(*received);
                let intact = self.crc.take().is_some_and(|crc| crc.finish() == received);
                self.stage = Stage::Between;
                Ok((used, Some(Event::DataEnd { intact })))
            }
            Stage::Over => Ok((bytes.len(), None)),
        }
    }

    /// Adds to the header what it needs.
    fn fill(&mut self, bytes: &[u8]) -> usize {
        let used = bytes.len().min(self.need - self.have);
        self.header[self.have..self.have + used].copy_from_slice(&bytes[..used]);
        self.have += used;
        used
    }

    /// The first 8 bytes are there. Without a header digest they are believed, and judged at once.
    fn on_common(&mut self) -> Result<(), End> {
        let common = CommonHeader::read(&self.header)?;
        let end = common.header_end(self.link);
        if !matches!(end, Err(PduError::Close)) && common.kind.receiver() == Some(self.link.receiver) {
            self.check_sequence(common.kind)?;
        }
        if !self.link.digests.header || !common.kind.may_have_header_digest() {
            common.check(self.link)?;
        }
        (self.need, self.stage) = (end?, Stage::Header);
        Ok(())
    }

    /// ICReq and ICResp come first and once; a termination request may always come.
    fn check_sequence(&self, kind: PduType) -> Result<(), FatalError> {
        let is_initialize = matches!(kind, PduType::IC_REQ | PduType::IC_RESP);
        let is_expected = match self.phase {
            _ if kind.is_term_req() => true,
            Phase::Initialize => is_initialize,
            Phase::Agree => false,
            Phase::Ready => !is_initialize,
        };
        if is_expected {
            return Ok(());
        }
        Err(FatalError { status: FatalErrorStatus::PDU_SEQUENCE_ERROR, information: 0 })
    }

    /// The whole header is there, and its digest.
    fn on_header(&mut self) -> Result<Event, End> {
        let common = CommonHeader::read(&self.header)?;
        let header_len = usize::from(common.hlen);
        if let Some((header, digest)) = self.header[..self.need].split_at_checked(header_len)
            && let Ok(digest) = <[u8; DIGEST_LEN as usize]>::try_from(digest)
        {
            let received = u32::from_le_bytes(digest);
            if Crc32c::of(header) != received {
                let status = FatalErrorStatus::HEADER_DIGEST_ERROR;
                return Err(FatalError { status, information: received }.into());
            }
        }
        let layout = common.check(self.link)?;
        let event = self.event(Pdu::parse(&self.header, &layout)?, &layout)?;
        match event {
            Event::IcReq(_) | Event::IcResp(_) => self.phase = Phase::Agree,
            Event::Terminated(_) => {
                self.stage = Stage::Over;
                return Ok(event);
            }
            _ => {}
        }
        self.crc = layout.data_digest().map(|_| Crc32c::new());
        self.stage = match layout.data().start - self.need {
            _ if layout.data_len() == 0 => Stage::Between,
            0 => Stage::Data { left: layout.data_len(), layout },
            left => Stage::Pad { left, layout },
        };
        Ok(event)
    }

    fn event(&self, pdu: Pdu, layout: &Layout) -> Result<Event, FatalError> {
        Ok(match pdu {
            Pdu::IcReq(request) => Event::IcReq(request),
            Pdu::IcResp(response) => Event::IcResp(response),
            Pdu::TermReq(error) => Event::Terminated(error),
            Pdu::CapsuleCmd(_) if layout.data_len() > self.in_capsule_len_max => {
                let status = FatalErrorStatus::DATA_TRANSFER_LIMIT_EXCEEDED;
                return Err(FatalError { status, information: 0 });
            }
            Pdu::CapsuleCmd(sqe) => Event::Command { sqe, data_len: layout.data_len() },
            Pdu::CapsuleResp(cqe) => Event::Response(cqe),
            Pdu::H2cData(data) => Event::H2cData(data),
            Pdu::C2hData(data) => Event::C2hData(data),
            Pdu::R2t(r2t) => Event::R2t(r2t),
        })
    }

    fn data_arrived(&mut self, len: usize) -> Option<Event> {
        let left = self.data_left();
        let rest = u32::try_from(len).ok().and_then(|len| left.checked_sub(len));
        let rest = rest.unwrap_or_else(|| panic!("{len} bytes of data where {left} are left"));
        let Stage::Data { left, layout } = &mut self.stage else { return None };
        *left = rest;
        if rest > 0 {
            return None;
        }
        if layout.data_digest().is_some() {
            self.stage = Stage::DataDigest { received: [0; DIGEST_LEN as usize], len: 0 };
            return None;
        }
        self.stage = Stage::Between;
        Some(Event::DataEnd { intact: true })
    }
}
