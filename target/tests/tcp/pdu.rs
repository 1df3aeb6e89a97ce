//! PDUs byte by byte: what the target sends, and what a host sends.

use nvme_proto::{Cqe, Sqe};
use nvmf_memory::Crc32c;
use zerocopy::{FromBytes, IntoBytes};

/// Types of PDUs.
pub(crate) const COMMAND: u8 = 0x04;
pub(crate) const H2C_DATA: u8 = 0x06;
const HDGSTF: u8 = 1;
const DDGSTF: u8 = 2;
pub(crate) const LAST: u8 = 4;
pub(crate) const SUCCESS: u8 = 8;

/// What ICReq asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) hpda: u8,
    pub(crate) header: bool,
    pub(crate) data: bool,
    pub(crate) maxr2t: u32,
}

impl Ask {
    pub(crate) const DIGESTS: [Self; 4] = [
        Self { hpda: 0, header: false, data: false, maxr2t: 0 },
        Self { hpda: 0, header: true, data: false, maxr2t: 0 },
        Self { hpda: 0, header: false, data: true, maxr2t: 0 },
        Self { hpda: 0, header: true, data: true, maxr2t: 0 },
    ];
    pub(crate) const BOTH: Self = Self::DIGESTS[3];

    pub(crate) fn ic_req(self) -> [u8; 128] {
        let mut pdu = [0; 128];
        (pdu[2], pdu[4], pdu[10]) = (128, 128, self.hpda);
        pdu[11] = u8::from(self.header) | u8::from(self.data) << 1;
        pdu[12..16].copy_from_slice(&self.maxr2t.to_le_bytes());
        pdu
    }
}

/// H2CTermReq without the header of the PDU at fault.
pub(crate) fn h2c_term_req() -> [u8; 24] {
    let mut pdu = [0; 24];
    (pdu[0], pdu[2], pdu[4], pdu[8]) = (2, 24, 24, 1);
    pdu
}

/// What the target sends.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Pdu {
    Response(Cqe),
    Data {
        cid: u16,
        offset: u32,
        data: Vec<u8>,
        flags: u8,
    },
    R2t {
        cid: u16,
        ttag: u16,
        offset: u32,
        len: u32,
    },
    Term {
        fes: u16,
        fei: u32,
        header: Vec<u8>,
    },
    /// The connection ended.
    End,
}

impl Pdu {
    /// The PDU, which must be right in every byte.
    pub(crate) fn parse(ask: Ask, pdu: &[u8]) -> Self {
        let (kind, flags, hlen, pdo) = (pdu[0], pdu[1], usize::from(pdu[2]), usize::from(pdu[3]));
        let plen = u32_at(pdu, 4) as usize;
        assert_eq!(hlen, 24, "HLEN of {pdu:02x?}");
        if kind == 0x03 {
            assert!((24..=152).contains(&plen) && flags == 0, "{pdu:02x?}");
            assert_eq!(pdu[14..24], [0; 10], "reserved bytes of C2HTermReq");
            return Self::Term { fes: u16_at(pdu, 8), fei: u32_at(pdu, 10), header: pdu[24..].to_vec() };
        }
        assert_eq!(flags & HDGSTF != 0, ask.header, "HDGSTF of {kind:#x}");
        let header_end = hlen + if ask.header { 4 } else { 0 };
        if ask.header {
            assert_eq!(u32_at(pdu, hlen), Crc32c::of(&pdu[..hlen]), "header digest");
        }
        match kind {
            0x05 => {
                assert_eq!((flags & !HDGSTF, pdo, plen), (0, 0, header_end));
                let cqe = Cqe::read_from_bytes(&pdu[8..24]).unwrap();
                assert_eq!((cqe.sqid.get(), cqe.status.get() & 1), (0, 0), "SQID and the phase are reserved");
                Self::Response(cqe)
            }
            0x07 => {
                let digest = if ask.data { 4 } else { 0 };
                assert_eq!(flags & DDGSTF != 0, ask.data, "DDGSTF");
                assert_eq!(flags & !(HDGSTF | DDGSTF | LAST | SUCCESS), 0, "reserved flags");
                assert!(flags & SUCCESS == 0 || flags & LAST != 0, "SUCCESS without LAST_PDU");
                let align = (usize::from(ask.hpda) + 1) * 4;
                assert_eq!(pdo, header_end.next_multiple_of(align), "PDO with HPDA {}", ask.hpda);
                assert!(pdu[header_end..pdo].iter().all(|&byte| byte == 0), "padding");
                assert_eq!((u16_at(pdu, 10), u32_at(pdu, 20)), (0, 0), "reserved bytes of C2HData");
                let data = pdu[pdo..plen - digest].to_vec();
                assert_eq!(u32_at(pdu, 16) as usize, data.len(), "DATAL");
                assert!(!data.is_empty(), "C2HData without data");
                if ask.data {
                    assert_eq!(u32_at(pdu, plen - 4), Crc32c::of(&data), "data digest");
                }
                let flags = flags & (LAST | SUCCESS);
                Self::Data { cid: u16_at(pdu, 8), offset: u32_at(pdu, 12), data, flags }
            }
            0x09 => {
                assert_eq!((flags & !HDGSTF, pdo, plen), (0, 0, header_end));
                assert_eq!(u32_at(pdu, 20), 0, "reserved bytes of R2T");
                let (cid, ttag) = (u16_at(pdu, 8), u16_at(pdu, 10));
                Self::R2t { cid, ttag, offset: u32_at(pdu, 12), len: u32_at(pdu, 16) }
            }
            other => panic!("a PDU of type {other:#x}"),
        }
    }

    /// FES and FEI of a termination request.
    pub(crate) fn fatal(&self) -> (u16, u32) {
        match self {
            Self::Term { fes, fei, .. } => (*fes, *fei),
            other => panic!("no termination request: {other:?}"),
        }
    }
}

/// An R2T, as H2CData answer it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct R2t {
    pub(crate) cid: u16,
    pub(crate) ttag: u16,
    pub(crate) offset: u32,
    pub(crate) len: u32,
}

impl Ask {
    /// A PDU of the host's with right digests.
    pub(crate) fn build(self, header: &[u8], data: &[u8]) -> Vec<u8> {
        let mut pdu = header.to_vec();
        let header_end = header.len() + if self.header { 4 } else { 0 };
        let digest = if self.data && !data.is_empty() { 4 } else { 0 };
        pdu[1] |= if self.header { HDGSTF } else { 0 } | if digest > 0 { DDGSTF } else { 0 };
        pdu[2] = header.len() as u8;
        pdu[3] = if data.is_empty() { 0 } else { header_end as u8 };
        let plen = (header_end + data.len() + digest) as u32;
        pdu[4..8].copy_from_slice(&plen.to_le_bytes());
        if self.header {
            pdu.extend(Crc32c::of(&pdu).to_le_bytes());
        }
        pdu.extend(data);
        if digest > 0 {
            pdu.extend(Crc32c::of(data).to_le_bytes());
        }
        pdu
    }

    pub(crate) fn capsule(self, sqe: &Sqe, data: &[u8]) -> Vec<u8> {
        let mut header = [0; 72];
        header[0] = COMMAND;
        header[8..].copy_from_slice(sqe.as_bytes());
        self.build(&header, data)
    }

    pub(crate) fn h2c_data(self, r2t: R2t, offset: u32, data: &[u8], last: bool) -> Vec<u8> {
        let mut header = [0; 24];
        (header[0], header[1]) = (H2C_DATA, if last { LAST } else { 0 });
        header[8..10].copy_from_slice(&r2t.cid.to_le_bytes());
        header[10..12].copy_from_slice(&r2t.ttag.to_le_bytes());
        header[12..16].copy_from_slice(&offset.to_le_bytes());
        header[16..20].copy_from_slice(&(data.len() as u32).to_le_bytes());
        self.build(&header, data)
    }

    /// All H2CData that answer an R2T for `data`, the data of the whole command, in pieces of so many bytes.
    pub(crate) fn answer(self, r2t: R2t, data: &[u8], piece: u32) -> Vec<u8> {
        let end = r2t.offset + r2t.len;
        let pieces = (r2t.offset..end).step_by(piece as usize).map(|at| {
            let to = end.min(at + piece);
            self.h2c_data(r2t, at, &data[at as usize..to as usize], to == end)
        });
        pieces.collect::<Vec<_>>().concat()
    }
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}
