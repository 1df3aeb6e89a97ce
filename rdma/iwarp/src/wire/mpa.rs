//! MPA: the request and reply frames, and the framing of FPDUs (RFC 5044, RFC 6581).

use nvmf_rdma::PrivateData;
use thiserror::Error;
use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a frame before its private data.
pub const FRAME_HEADER_LEN: usize = 20;
/// Bytes of the enhanced words, which count as private data.
pub const ENHANCED_LEN: usize = 4;
/// The longest frame that is taken or sent.
pub const FRAME_LEN_MAX: usize = FRAME_HEADER_LEN + ENHANCED_LEN + PrivateData::MAX;
/// Bytes of the length field of an FPDU.
pub const LENGTH_LEN: usize = 2;
/// Bytes of the CRC field of an FPDU, which is there whether it is used or not.
pub const CRC_LEN: usize = 4;
/// In an IRD or ORD word: no value, do not negotiate.
pub const DEPTH_NONE: u16 = 0x3fff;

/// Zero bytes between the ULPDU and the CRC, for `len` bytes of length field and ULPDU.
#[must_use]
pub fn pad_len(len: usize) -> usize {
    len.wrapping_neg() & 3
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawFrame {
    key: [u8; 16],
    flags: u8,
    revision: u8,
    pd_length: U16,
}
const _: () = assert!(size_of::<RawFrame>() == FRAME_HEADER_LEN);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEnhanced {
    ird: U16,
    ord: U16,
}
const _: () = assert!(size_of::<RawEnhanced>() == ENHANCED_LEN);

/// Request or reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// From the initiator.
    Request,
    /// From the responder.
    Reply,
}

impl Kind {
    fn key(self) -> &'static [u8; 16] {
        match self {
            Self::Request => b"MPA ID Req Frame",
            Self::Reply => b"MPA ID Rep Frame",
        }
    }
}

/// The flags byte. Unknown bits are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// M: the sender wants markers.
    pub const MARKERS: Self = Self(0x80);
    /// C: the sender wants CRCs.
    pub const CRC: Self = Self(0x40);
    /// R: the reply is a refusal.
    pub const REJECT: Self = Self(0x20);
    /// S: enhanced connection set-up; the private data begin with the IRD and ORD words.
    pub const ENHANCED: Self = Self(0x10);
    /// Linux siw's own: the sender takes FPDUs longer than a TCP segment.
    pub const LARGE_FPDU: Self = Self(0x08);

    /// Whether all bits of `other` are set.
    #[must_use]
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These, and `other` if `on`.
    #[must_use]
    pub fn with(self, other: Self, on: bool) -> Self {
        if on { Self(self.0 | other.0) } else { self }
    }
}

/// The IRD and ORD words of revision 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Enhanced {
    /// Reads that the sender serves at once (14 bits).
    pub ird: u16,
    /// Reads that the sender wants outstanding (14 bits).
    pub ord: u16,
    /// A: peer-to-peer mode.
    pub peer_to_peer: bool,
    /// B: a zero-length SEND may be, or is, the ready-to-receive indication.
    pub send_rtr: bool,
    /// C: a zero-length RDMA WRITE.
    pub write_rtr: bool,
    /// D: a zero-length RDMA READ.
    pub read_rtr: bool,
}

impl Enhanced {
    fn from_raw(raw: &RawEnhanced) -> Self {
        let (ird, ord) = (raw.ird.get(), raw.ord.get());
        Self {
            ird: ird & DEPTH_NONE,
            ord: ord & DEPTH_NONE,
            peer_to_peer: ird & 0x8000 != 0,
            send_rtr: ird & 0x4000 != 0,
            write_rtr: ord & 0x8000 != 0,
            read_rtr: ord & 0x4000 != 0,
        }
    }

    fn to_raw(self) -> RawEnhanced {
        let bits = |high: bool, low: bool| u16::from(high) << 15 | u16::from(low) << 14;
        RawEnhanced {
            ird: U16::new(self.ird & DEPTH_NONE | bits(self.peer_to_peer, self.send_rtr)),
            ord: U16::new(self.ord & DEPTH_NONE | bits(self.write_rtr, self.read_rtr)),
        }
    }
}

/// A request or reply frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Which.
    pub kind: Kind,
    /// Flags; [`Flags::ENHANCED`] is set exactly when `enhanced` is there.
    pub flags: Flags,
    /// 0, 1 or 2.
    pub revision: u8,
    /// Revision 2 with S.
    pub enhanced: Option<Enhanced>,
    /// What is left for the layer above.
    pub private_data: PrivateData,
}

/// What is wrong with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The first 16 bytes are not the key: this is not iWARP.
    #[error("the MPA key is wrong")]
    Key,
    /// A revision that is not known.
    #[error("the MPA revision is unknown")]
    Revision,
    /// More private data than is taken.
    #[error("the MPA private data are too long")]
    TooLong,
    /// Enhanced, but without room for the two words.
    #[error("the MPA private data are too short for the IRD and ORD words")]
    Enhanced,
}

impl FrameError {
    /// The text, for events that carry one.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Key => "the MPA key is wrong",
            Self::Revision => "the MPA revision is unknown",
            Self::TooLong => "the MPA private data are too long",
            Self::Enhanced => "the MPA private data are too short for the IRD and ORD words",
        }
    }
}

impl Frame {
    /// How long the frame is that begins with `header`. Nothing longer than [`FRAME_LEN_MAX`] passes.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn len_of(kind: Kind, header: &[u8; FRAME_HEADER_LEN]) -> Result<usize, FrameError> {
        let raw: &RawFrame = zerocopy::transmute_ref!(header);
        if &raw.key != kind.key() {
            return Err(FrameError::Key);
        }
        if raw.revision > 2 {
            return Err(FrameError::Revision);
        }
        let enhanced = raw.revision == 2 && Flags(raw.flags).has(Flags::ENHANCED);
        let (min, max) =
            if enhanced { (ENHANCED_LEN, ENHANCED_LEN + PrivateData::MAX) } else { (0, PrivateData::MAX) };
        match usize::from(raw.pd_length.get()) {
            len if len < min => Err(FrameError::Enhanced),
            len if len > max => Err(FrameError::TooLong),
            len => Ok(FRAME_HEADER_LEN + len),
        }
    }

    /// Parses a whole frame; `None` while bytes are missing. Bytes after the frame are ignored.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn parse(kind: Kind, bytes: &[u8]) -> Result<Option<Self>, FrameError> {
        let Some(header) = bytes.first_chunk() else { return Ok(None) };
        let len = Self::len_of(kind, header)?;
        let Some(mut data) = bytes.get(FRAME_HEADER_LEN..len) else { return Ok(None) };
        let raw: &RawFrame = zerocopy::transmute_ref!(header);
        let mut flags = Flags(raw.flags);
        let mut enhanced = None;
        if flags.has(Flags::ENHANCED) && raw.revision == 2 {
            let (words, rest) = RawEnhanced::ref_from_prefix(data).map_err(|_| FrameError::Enhanced)?;
            (enhanced, data) = (Some(Enhanced::from_raw(words)), rest);
        } else {
            flags.0 &= !Flags::ENHANCED.0;
        }
        let private_data = PrivateData::new(data).ok_or(FrameError::TooLong)?;
        Ok(Some(Self { kind, flags, revision: raw.revision, enhanced, private_data }))
    }

    /// Writes the frame to the front of `into`; how long it is.
    #[must_use]
    pub fn emit(&self, into: &mut [u8; FRAME_LEN_MAX]) -> usize {
        let data = self.private_data.as_bytes();
        let words = if self.enhanced.is_some() { ENHANCED_LEN } else { 0 };
        let (header, rest) = into.split_at_mut(FRAME_HEADER_LEN);
        let raw = RawFrame {
            key: *self.kind.key(),
            flags: self.flags.0,
            revision: self.revision,
            pd_length: U16::new(u16::try_from(words + data.len()).expect("bounded by PrivateData::MAX")),
        };
        header.copy_from_slice(raw.as_bytes());
        if let Some(enhanced) = self.enhanced {
            rest[..words].copy_from_slice(enhanced.to_raw().as_bytes());
        }
        rest[words..words + data.len()].copy_from_slice(data);
        FRAME_HEADER_LEN + words + data.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_request_of_a_stock_linux_host() {
        let mut bytes = b"MPA ID Req Frame\x10\x02\x00\x24\x00\x80\x00\x00".to_vec();
        bytes.extend_from_slice(&[0, 0, 0, 0, 0x20, 0, 0x1f, 0]);
        bytes.resize(20 + 36, 0);
        assert_eq!(Frame::parse(Kind::Request, &bytes[..bytes.len() - 1]), Ok(None));
        let frame = Frame::parse(Kind::Request, &bytes).unwrap().unwrap();
        assert_eq!(frame.flags, Flags::ENHANCED);
        assert_eq!(frame.enhanced, Some(Enhanced { ird: 128, ..Enhanced::default() }));
        assert_eq!(frame.private_data.as_bytes()[4..8], [0x20, 0, 0x1f, 0]);
        assert_eq!(frame.private_data.as_bytes().len(), 32);
        let mut again = [0; FRAME_LEN_MAX];
        let len = frame.emit(&mut again);
        assert_eq!(again[..len], bytes);
    }

    #[test]
    fn the_reply_of_a_stock_linux_target() {
        let mut bytes = b"MPA ID Rep Frame\x10\x02\x00\x24\x00\x00\x00\x80\x00\x00\x20\x00".to_vec();
        bytes.resize(20 + 36, 0);
        let frame = Frame::parse(Kind::Reply, &bytes).unwrap().unwrap();
        assert_eq!(frame.enhanced, Some(Enhanced { ord: 128, ..Enhanced::default() }));
        assert_eq!(Frame::parse(Kind::Request, &bytes), Err(FrameError::Key));
    }

    #[test]
    fn lengths_are_capped_before_anything_is_read() {
        let head = |revision, flags, len: u16| {
            let mut bytes = *b"MPA ID Req Frame\0\0\0\0";
            (bytes[16], bytes[17]) = (flags, revision);
            bytes[18..].copy_from_slice(&len.to_be_bytes());
            Frame::len_of(Kind::Request, &bytes)
        };
        assert_eq!(head(1, 0, 256), Ok(276));
        assert_eq!(head(1, 0, 257), Err(FrameError::TooLong));
        assert_eq!(head(2, 0x10, 260), Ok(280));
        assert_eq!(head(2, 0x10, 261), Err(FrameError::TooLong));
        assert_eq!(head(2, 0x10, 3), Err(FrameError::Enhanced));
        assert_eq!(head(3, 0, 0), Err(FrameError::Revision));
        assert_eq!(head(1, 0, 0xffff), Err(FrameError::TooLong));
    }

    #[test]
    fn pads_to_four() {
        assert_eq!([0, 1, 2, 3, 4, 82].map(pad_len), [0, 3, 2, 1, 0, 2]);
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed(
            reply: bool, revision in 0..3u8, flags: u8, ird in 0..0x4000u16, ord in 0..0x4000u16,
            bits: [bool; 4], data in proptest::collection::vec(any::<u8>(), 0..=256),
        ) {
            let enhanced = revision == 2 && flags & 0x10 != 0;
            let frame = Frame {
                kind: if reply { Kind::Reply } else { Kind::Request },
                flags: Flags(if enhanced { flags } else { flags & !0x10 }),
                revision,
                enhanced: enhanced.then_some(Enhanced {
                    ird, ord, peer_to_peer: bits[0], send_rtr: bits[1], write_rtr: bits[2], read_rtr: bits[3],
                }),
                private_data: PrivateData::new(&data).unwrap(),
            };
            let mut bytes = [0; FRAME_LEN_MAX];
            let len = frame.emit(&mut bytes);
            prop_assert_eq!(Frame::parse(frame.kind, &bytes[..len]), Ok(Some(frame)));
            prop_assert_eq!(Frame::parse(frame.kind, &bytes[..len - 1]), Ok(None));
        }

        #[test]
        fn any_bytes_are_survived(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), keyed: bool) {
            if keyed && bytes.len() >= 16 {
                bytes[..16].copy_from_slice(b"MPA ID Req Frame");
            }
            let _ = Frame::parse(Kind::Request, &bytes);
        }
    }
}
