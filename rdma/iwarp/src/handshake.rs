//! MPA connection set-up without I/O: bytes become a frame, and two frames become an [`Agreement`].

use crate::config::{Crc, IwarpConfig, MAX_READ_DEPTH};
use crate::wire::mpa::{
    DEPTH_NONE, Enhanced, FRAME_HEADER_LEN, FRAME_LEN_MAX, Flags, Frame, FrameError, Kind,
};
use nvmf_rdma::{ConnectParameters, PrivateData};

/// Collects one frame, and not one byte more: what follows belongs to the stream.
#[derive(Debug, Clone)]
pub(crate) struct FrameReader {
    kind: Kind,
    bytes: [u8; FRAME_LEN_MAX],
    have: usize,
    want: usize,
}

impl FrameReader {
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, bytes: [0; FRAME_LEN_MAX], have: 0, want: FRAME_HEADER_LEN }
    }

    /// Where the next bytes go; never empty before the frame is whole.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.have..self.want]
    }

    /// Whether not a byte has come.
    pub(crate) fn is_empty(&self) -> bool {
        self.have == 0
    }

    /// The bytes that came first; zeroes behind them.
    pub(crate) fn beginning<const N: usize>(&self) -> [u8; N] {
        *self.bytes.first_chunk().expect("the buffer is longer")
    }

    /// `n` bytes were put into [`FrameReader::room`].
    pub(crate) fn on_filled(&mut self, n: usize) -> Result<Option<Frame>, FrameError> {
        self.have += n;
        if self.have == FRAME_HEADER_LEN && self.want == FRAME_HEADER_LEN {
            let header = self.bytes.first_chunk().expect("the buffer is longer");
            self.want = Frame::len_of(self.kind, header)?;
        }
        if self.have < self.want { Ok(None) } else { Frame::parse(self.kind, &self.bytes[..self.have]) }
    }
}

/// The zero-length message after which a responder in peer-to-peer mode may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rtr {
    Write,
    Read,
}

/// What both sides have settled on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreement {
    pub(crate) crc: bool,
    /// Reads of the peer's that we serve at once.
    pub(crate) responder_resources: u16,
    /// Reads of ours that may be outstanding.
    pub(crate) initiator_depth: u16,
    /// Initiator: to be sent. Responder: to be waited for.
    pub(crate) rtr: Option<Rtr>,
    /// The peer takes FPDUs longer than a TCP segment.
    pub(crate) large_fpdu: bool,
}

/// Why a reply does not make a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The layer above rejected it; its reason is in the reply.
    Rejected,
    Protocol(&'static str),
}

/// The read depths that a request states: what its sender serves, and what it wants. Where it states none, the largest.
pub(crate) fn peer_depths(request: &Frame) -> (u16, u16) {
    let depth = |word: u16| if word == DEPTH_NONE { MAX_READ_DEPTH } else { word };
    match request.enhanced {
        Some(words) => (depth(words.ird), depth(words.ord)),
        None => (MAX_READ_DEPTH, MAX_READ_DEPTH),
    }
}

/// The initiator's request.
pub(crate) fn request(config: &IwarpConfig, parameters: &ConnectParameters, revision: u8) -> Frame {
    let enhanced = (revision == 2).then(|| {
        let p2p = config.peer_to_peer;
        let ord = parameters.initiator_depth.min(MAX_READ_DEPTH);
        Enhanced {
            ird: parameters.responder_resources.min(MAX_READ_DEPTH),
            // A zero-length READ as the indication takes one credit; cards insist on being offered it.
            ord: if p2p { ord.max(1) } else { ord },
            peer_to_peer: p2p,
            send_rtr: false,
            write_rtr: p2p,
            read_rtr: p2p,
        }
    });
    let flags = Flags::default()
        .with(Flags::CRC, config.crc == Crc::On)
        .with(Flags::ENHANCED, enhanced.is_some())
        .with(Flags::LARGE_FPDU, true);
    Frame { kind: Kind::Request, flags, revision, enhanced, private_data: parameters.private_data }
}

/// Whether a request can be answered at all.
pub(crate) fn check_request(config: &IwarpConfig, request: &Frame) -> Result<(), &'static str> {
    if request.flags.has(Flags::MARKERS) {
        return Err("it wants MPA markers");
    }
    if config.crc == Crc::Off && request.flags.has(Flags::CRC) {
        return Err("it wants CRCs, which are off here");
    }
    let no_known_rtr = |words: Enhanced| words.peer_to_peer && !words.write_rtr && !words.read_rtr;
    if request.enhanced.is_some_and(no_known_rtr) {
        return Err("it offers no ready-to-receive indication that is known");
    }
    Ok(())
}

/// The responder's answer to a request that [`check_request`] passed.
pub(crate) fn accept(
    config: &IwarpConfig,
    parameters: &ConnectParameters,
    request: &Frame,
) -> (Frame, Agreement) {
    let crc = config.crc == Crc::On || request.flags.has(Flags::CRC);
    let large_fpdu = request.flags.has(Flags::LARGE_FPDU);
    let (peer_ird, _) = peer_depths(request);
    let initiator_depth = parameters.initiator_depth.min(peer_ird).min(MAX_READ_DEPTH);
    let responder_resources = parameters.responder_resources.min(MAX_READ_DEPTH);
    let rtr = request.enhanced.filter(|words| words.peer_to_peer).map(|words| match words.write_rtr {
        true => Rtr::Write,
        false => Rtr::Read,
    });
    let enhanced = request.enhanced.map(|_| Enhanced {
        ird: responder_resources.max(u16::from(rtr == Some(Rtr::Read))),
        ord: initiator_depth,
        peer_to_peer: rtr.is_some(),
        send_rtr: false,
        write_rtr: rtr == Some(Rtr::Write),
        read_rtr: rtr == Some(Rtr::Read),
    });
    let flags = Flags::default()
        .with(Flags::CRC, crc)
        .with(Flags::ENHANCED, enhanced.is_some())
        .with(Flags::LARGE_FPDU, large_fpdu);
    let private_data = parameters.private_data;
    let reply = Frame { kind: Kind::Reply, flags, revision: request.revision, enhanced, private_data };
    (reply, Agreement { crc, responder_resources, initiator_depth, rtr, large_fpdu })
}

/// The responder's no.
pub(crate) fn reject(request: &Frame, private_data: &PrivateData) -> Frame {
    let flags = Flags::REJECT
        .with(Flags::ENHANCED, request.enhanced.is_some())
        .with(Flags::CRC, request.flags.has(Flags::CRC));
    Frame {
        kind: Kind::Reply,
        flags,
        revision: request.revision,
        enhanced: request.enhanced.map(|_| Enhanced::default()),
        private_data: *private_data,
    }
}

/// What the initiator makes of the reply to its `request`.
pub(crate) fn on_reply(
    config: &IwarpConfig,
    parameters: &ConnectParameters,
    request: &Frame,
    reply: &Frame,
) -> Result<Agreement, Refusal> {
    if reply.flags.has(Flags::REJECT) {
        return Err(Refusal::Rejected);
    }
    if reply.flags.has(Flags::MARKERS) {
        return Err(Refusal::Protocol("its reply wants MPA markers"));
    }
    if reply.revision != request.revision || reply.enhanced.is_some() != request.enhanced.is_some() {
        return Err(Refusal::Protocol("its reply is of another MPA revision than the request"));
    }
    let crc = config.crc == Crc::On || reply.flags.has(Flags::CRC);
    if config.crc == Crc::Off && crc {
        return Err(Refusal::Protocol("its reply wants CRCs, which are off here"));
    }
    let (peer_ird, _) = peer_depths(reply);
    let rtr = match (request.enhanced, reply.enhanced) {
        (Some(asked), Some(words)) if asked.peer_to_peer && words.peer_to_peer => Some(
            chosen_rtr(words).ok_or(Refusal::Protocol("its reply chose no ready-to-receive indication"))?,
        ),
        _ => None,
    };
    let responder_resources = parameters.responder_resources.min(MAX_READ_DEPTH);
    if reply.enhanced.is_some_and(|words| words.ord != DEPTH_NONE && words.ord > responder_resources) {
        return Err(Refusal::Protocol("it wants more RDMA READs outstanding than were offered"));
    }
    let initiator_depth = parameters.initiator_depth.min(peer_ird).min(MAX_READ_DEPTH);
    let large_fpdu = reply.flags.has(Flags::LARGE_FPDU);
    Ok(Agreement { crc, responder_resources, initiator_depth, rtr, large_fpdu })
}

fn chosen_rtr(words: Enhanced) -> Option<Rtr> {
    if words.write_rtr { Some(Rtr::Write) } else { words.read_rtr.then_some(Rtr::Read) }
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
