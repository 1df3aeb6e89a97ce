//! What is sent before data: header, header digest, padding.

use core::fmt;
use nvme_proto::tcp::pdu::{CapsuleCmdPdu, CapsuleRespPdu};
use nvme_proto::tcp::terminate::{ERROR_DATA_LEN_MAX, TermReqPdu};
use nvme_proto::tcp::{
    C2hData, DIGEST_LEN, DataAlignment, Digests, FatalError, Flags, H2cData, IcReq, IcResp, Layout, Link,
    PduType, R2t, Receiver,
};
use nvme_proto::{Cqe, Sqe};
use nvmf_memory::Crc32c;
use zerocopy::{Immutable, IntoBytes};

/// The most bytes before data: a command's header and digest (76) with an alignment of 72.
pub const HEAD_LEN_MAX: usize = 144;

/// Bytes of the longest termination request.
pub const TERMINATION_LEN_MAX: usize = TermReqPdu::LEN + ERROR_DATA_LEN_MAX as usize;

/// A few bytes to send.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bytes<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

/// All bytes of a PDU before its data: header, header digest, padding. The data digest, if data digests are used and
/// there are data, is the caller's to append: [`Crc32c::finish`], little-endian.
pub type Head = Bytes<HEAD_LEN_MAX>;

/// A whole termination request.
pub type Termination = Bytes<TERMINATION_LEN_MAX>;

impl<const N: usize> Bytes<N> {
    const EMPTY: Self = Self { bytes: [0; N], len: 0 };

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

impl<const N: usize> AsRef<[u8]> for Bytes<N> {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl<const N: usize> fmt::Debug for Bytes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", self.as_bytes())
    }
}

impl Head {
    fn new((layout, pdu): (Layout, impl IntoBytes + Immutable)) -> Self {
        let mut head = Self::EMPTY;
        head.push(pdu.as_bytes());
        if layout.header_digest().is_some() {
            let digest = Crc32c::of(head.as_bytes());
            head.push(&digest.to_le_bytes());
        }
        // Padding is zeros, which are there already.
        head.len = layout.data().start;
        head
    }

    /// Sets SUCCESS in a C2HData that is not sent yet, and renews the header digest: the command succeeded, and no
    /// response follows. Does nothing, and returns `false`, if this is no C2HData with LAST_PDU.
    pub fn set_success(&mut self) -> bool {
        let [kind, flags, hlen, ..] = &mut self.bytes;
        let (hlen, set) = (usize::from(*hlen), Flags(*flags));
        if PduType(*kind) != PduType::C2H_DATA || !set.contains(Flags::LAST_PDU) {
            return false;
        }
        *flags = (set | Flags::SUCCESS).0;
        if set.contains(Flags::HEADER_DIGEST) {
            let digest = Crc32c::of(&self.bytes[..hlen]);
            self.bytes[hlen..hlen + DIGEST_LEN as usize].copy_from_slice(&digest.to_le_bytes());
        }
        true
    }
}

/// What a controller sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToHost(Link);

impl ToHost {
    /// With what ICReq and ICResp agreed on; `alignment` is HPDA.
    #[must_use]
    pub fn new(digests: Digests, alignment: DataAlignment) -> Self {
        Self(Link { receiver: Receiver::Host, digests, alignment })
    }

    /// ICResp. No digest protects it.
    ///
    /// # Panics
    /// When MAXH2CDATA is less than 4096 or not a multiple of 4.
    #[must_use]
    pub fn ic_resp(response: &IcResp) -> Head {
        let mut head = Head::EMPTY;
        head.push(response.emit().as_bytes());
        head
    }

    /// CapsuleResp.
    #[must_use]
    pub fn response(&self, cqe: Cqe) -> Head {
        // `None` is for a link towards a controller, which this is not.
        CapsuleRespPdu::new(cqe, self.0).map_or(Head::EMPTY, Head::new)
    }

    /// C2HData, up to its data. `None` if offset and length are not whole dwords, the length is 0 or more than PLEN can
    /// say, or `success` is said without `last`.
    #[must_use]
    pub fn c2h_data(&self, data: &C2hData) -> Option<Head> {
        data.emit(self.0).map(Head::new)
    }

    /// R2T. `None` if offset and length are not whole dwords, or the length is 0.
    #[must_use]
    pub fn r2t(&self, r2t: &R2t) -> Option<Head> {
        r2t.emit(self.0).map(Head::new)
    }
}

/// What a host sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToController(Link);

impl ToController {
    /// With what ICReq and ICResp agreed on; `alignment` is CPDA.
    #[must_use]
    pub fn new(digests: Digests, alignment: DataAlignment) -> Self {
        Self(Link { receiver: Receiver::Controller, digests, alignment })
    }

    /// ICReq. No digest protects it.
    ///
    /// # Panics
    /// When MAXR2T is not from 1 to 2^32.
    #[must_use]
    pub fn ic_req(request: &IcReq) -> Head {
        let mut head = Head::EMPTY;
        head.push(request.emit().as_bytes());
        head
    }

    /// CapsuleCmd, up to its in-capsule data. `None` if their length is more than PLEN can say.
    #[must_use]
    pub fn command(&self, sqe: Sqe, data_len: u32) -> Option<Head> {
        CapsuleCmdPdu::new(sqe, data_len, self.0).map(Head::new)
    }

    /// H2CData, up to its data. `None` if offset and length are not whole dwords, or the length is 0 or more than PLEN
    /// can say.
    #[must_use]
    pub fn h2c_data(&self, data: &H2cData) -> Option<Head> {
        data.emit(self.0).map(Head::new)
    }
}

/// The termination request that the receiver of `header` answers it with: `error`, and at most 128 bytes of the header.
#[must_use]
pub fn termination(receiver: Receiver, error: FatalError, header: &[u8]) -> Termination {
    let kind = match receiver {
        Receiver::Controller => PduType::C2H_TERM_REQ,
        Receiver::Host => PduType::H2C_TERM_REQ,
    };
    let len = header.len().min(ERROR_DATA_LEN_MAX as usize);
    let mut termination = Termination::EMPTY;
    if let Some(pdu) = TermReqPdu::new(kind, error, len as u32) {
        termination.push(pdu.as_bytes());
        termination.push(&header[..len]);
    }
    termination
}
