extern crate std;

use super::header::CommonHeader;
use super::initialize::{H2C_DATA_LEN_MIN, InitializePdu};
use super::pdu::{CapsuleCmdPdu, CapsuleRespPdu};
use super::terminate::{ERROR_DATA_LEN_MAX, TermReqPdu};
use super::*;
use crate::ident::Cid;
use crate::{Cqe, Sqe, Status};
use proptest::prelude::*;
use std::vec::Vec;
use zerocopy::IntoBytes;

fn link(receiver: Receiver, header: bool, data: bool, alignment_z: u8) -> Link {
    let alignment = DataAlignment::from_dwords_z(alignment_z).unwrap();
    Link { receiver, digests: Digests { header, data }, alignment }
}

const PLAIN: Link = Link {
    receiver: Receiver::Controller,
    digests: Digests { header: false, data: false },
    alignment: match DataAlignment::from_dwords_z(0) {
        Some(dword) => dword,
        None => unreachable!(),
    },
};

fn read(bytes: &[u8], link: Link) -> Result<(Layout, Pdu), PduError> {
    let layout = CommonHeader::read(bytes)?.check(link)?;
    Ok((layout, Pdu::parse(bytes, &layout)?))
}

fn header(kind: PduType, flags: u8, hlen: u8, pdo: u8, plen: u32) -> CommonHeader {
    CommonHeader { kind, flags: Flags(flags), hlen, pdo, plen: plen.into() }
}

/// The offset that a termination request would complain of.
fn invalid_field(header: CommonHeader, link: Link) -> Option<u32> {
    match header.check(link) {
        Err(PduError::Fatal(FatalError {
            status: FatalErrorStatus::INVALID_PDU_HEADER_FIELD,
            information,
        })) => Some(information),
        _ => None,
    }
}

#[test]
fn icreq_and_icresp_bytes() {
    let mut bytes = [0; 128];
    bytes[..16].copy_from_slice(&[0, 0, 128, 0, 128, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0]);
    let digests = Digests { header: true, data: true };
    let request = IcReq { alignment: DataAlignment::default(), digests, maxr2t: 4 };
    assert_eq!(read(&bytes, PLAIN).unwrap().1, Pdu::IcReq(request));
    assert_eq!(request.emit().as_bytes(), bytes);

    bytes[..16].copy_from_slice(&[1, 0, 128, 0, 128, 0, 0, 0, 0, 0, 1, 1, 0, 0, 2, 0]);
    let response = IcResp {
        alignment: DataAlignment::from_dwords_z(1).unwrap(),
        digests: Digests { header: true, data: false },
        maxh2cdata: 0x20000,
    };
    let to_host = Link { receiver: Receiver::Host, ..PLAIN };
    assert_eq!(read(&bytes, to_host).unwrap().1, Pdu::IcResp(response));
    assert_eq!(response.emit().as_bytes(), bytes);
    assert_eq!(response.alignment.bytes(), 8);
}

#[test]
fn icresp_with_an_invalid_field_names_it() {
    let good = IcResp { alignment: DataAlignment::default(), digests: Digests::default(), maxh2cdata: 4096 };
    for (at, value, field) in [(8, 1, 8), (10, 32, 10), (13, 0x0f, 12), (12, 1, 12)] {
        let mut pdu = good.emit();
        pdu.as_mut_bytes()[at] = value;
        assert_eq!(IcResp::parse(&pdu), Err(FatalError::invalid_field(field)));
    }
    assert_eq!(good.maxh2cdata, H2C_DATA_LEN_MIN);
    let most = IcReq { alignment: good.alignment, digests: good.digests, maxr2t: 1 << 32 };
    assert_eq!(IcReq::parse(&most.emit()), Ok(most));
}

#[test]
fn a_command_capsule_with_data_and_digests() {
    let link = link(Receiver::Controller, true, true, 3);
    let (layout, pdu) = CapsuleCmdPdu::new(Sqe::new(1), 512, link).unwrap();
    // Header, its digest, 4 bytes of padding up to the multiple of 16, data, their digest.
    assert_eq!(pdu.as_bytes()[..10], [4, 3, 72, 80, 0x54, 2, 0, 0, 1, 0x40]);
    assert_eq!(layout.header_digest(), Some(72..76));
    assert_eq!((layout.data(), layout.data_digest(), layout.pdu_len()), (80..592, Some(592..596), 596));
    assert_eq!(read(pdu.as_bytes(), link), Ok((layout, Pdu::CapsuleCmd(Sqe::new(1)))));

    let (layout, pdu) = CapsuleCmdPdu::new(Sqe::new(1), 0, link).unwrap();
    assert_eq!(pdu.as_bytes()[..8], [4, 1, 72, 0, 76, 0, 0, 0]);
    assert_eq!((layout.data(), layout.data_digest(), layout.pdu_len()), (76..76, None, 76));
}

#[test]
fn a_transfer_as_a_linux_host_sees_it() {
    let to_host = Link { receiver: Receiver::Host, ..PLAIN };
    let r2t = R2t { cid: Cid(0x1234), ttag: 7, offset: 0x2000, len: 0x1000 };
    let (_, pdu) = r2t.emit(to_host).unwrap();
    let bytes = [9, 0, 24, 0, 24, 0, 0, 0, 0x34, 0x12, 7, 0, 0, 0x20, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0];
    assert_eq!(pdu.as_bytes(), bytes);
    assert_eq!(read(&bytes, to_host).unwrap().1, Pdu::R2t(r2t));

    let data = H2cData { cid: Cid(0x1234), ttag: 7, offset: 0x2000, len: 0x1000, last: true };
    let (layout, pdu) = data.emit(PLAIN).unwrap();
    assert_eq!(pdu.as_bytes()[..12], [6, 4, 24, 24, 0x18, 0x10, 0, 0, 0x34, 0x12, 7, 0]);
    assert_eq!(layout.data(), 24..0x1018);

    let data = C2hData { cid: Cid(1), offset: 0, len: 512, last: true, success: true };
    let (_, pdu) = data.emit(to_host).unwrap();
    assert_eq!(pdu.as_bytes()[..12], [7, 12, 24, 24, 0x18, 2, 0, 0, 1, 0, 0, 0]);
    assert_eq!(C2hData { last: false, ..data }.emit(to_host), None);
    assert_eq!(data.emit(PLAIN), None);

    let cqe = Cqe::new(Cid(5), Status::SUCCESS, 0);
    let (layout, pdu) = CapsuleRespPdu::new(cqe, to_host).unwrap();
    assert_eq!(pdu.as_bytes()[..8], [5, 0, 24, 0, 24, 0, 0, 0]);
    assert_eq!(read(pdu.as_bytes(), to_host), Ok((layout, Pdu::CapsuleResp(cqe))));
}

#[test]
fn the_first_invalid_field_is_reported() {
    let digests = link(Receiver::Controller, true, true, 0);
    let wide = link(Receiver::Controller, false, false, 1);
    let host = Link { receiver: Receiver::Host, ..PLAIN };
    let cases = [
        (header(PduType(8), 0, 24, 0, 24), PLAIN, 0),
        (header(PduType::R2T, 0, 24, 0, 24), PLAIN, 0),
        (header(PduType::CAPSULE_CMD, 0, 72, 0, 72), digests, 1),
        (header(PduType::CAPSULE_CMD, 3, 72, 0, 76), digests, 1),
        (header(PduType::CAPSULE_CMD, 1, 72, 76, 80), digests, 1),
        (header(PduType::CAPSULE_CMD, 2, 72, 72, 80), PLAIN, 1),
        (header(PduType::C2H_DATA, 8, 24, 24, 28), host, 1),
        (header(PduType::CAPSULE_CMD, 0, 71, 0, 72), PLAIN, 2),
        (header(PduType::CAPSULE_CMD, 0, 72, 71, 80), PLAIN, 3),
        (header(PduType::CAPSULE_CMD, 0, 72, 73, 80), PLAIN, 3),
        (header(PduType::CAPSULE_CMD, 0, 72, 76, 96), wide, 3),
        (header(PduType::CAPSULE_CMD, 0, 72, 80, 80), PLAIN, 3),
        (header(PduType::CAPSULE_CMD, 0, 72, 0, 71), PLAIN, 4),
        (header(PduType::CAPSULE_CMD, 3, 72, 76, 80), digests, 4),
        (header(PduType::CAPSULE_RESP, 0, 24, 0, 25), host, 4),
        (header(PduType::IC_REQ, 0, 128, 0, 129), PLAIN, 4),
    ];
    for (at, (header, link, field)) in cases.into_iter().enumerate() {
        assert_eq!(invalid_field(header, link), Some(field), "case {at}: {header:?}");
    }
}

#[test]
fn reserved_flags_are_refused() {
    let all = [
        (PduType::IC_REQ, Receiver::Controller, 0x00),
        (PduType::IC_RESP, Receiver::Host, 0x00),
        (PduType::CAPSULE_CMD, Receiver::Controller, 0x03),
        (PduType::CAPSULE_RESP, Receiver::Host, 0x01),
        (PduType::H2C_DATA, Receiver::Controller, 0x07),
        (PduType::C2H_DATA, Receiver::Host, 0x0f),
        (PduType::R2T, Receiver::Host, 0x01),
    ];
    let both = Digests { header: true, data: true };
    for ((kind, receiver, defined), digests) in
        all.into_iter().flat_map(|pdu| [(pdu, both), (pdu, Digests::default())])
    {
        let link = Link { receiver, digests, ..PLAIN };
        let layout = Layout::new(kind, Flags(0), if kind.may_have_data() { 4 } else { 0 }, link).unwrap();
        for bit in (0..8).map(|bit| 1u8 << bit).filter(|bit| defined & bit == 0) {
            let mut header = layout.header();
            assert_eq!(header.check(link), Ok(layout));
            header.flags.0 |= bit;
            assert_eq!(invalid_field(header, link), Some(1), "{kind:?} with flag {bit:#x}");
        }
    }
}

#[test]
fn pdo_without_data_is_ignored() {
    let pdus = [
        (header(PduType::CAPSULE_CMD, 0, 72, 9, 72), Receiver::Controller),
        (header(PduType::CAPSULE_RESP, 0, 24, 9, 24), Receiver::Host),
        (header(PduType::IC_REQ, 0, 128, 9, 128), Receiver::Controller),
    ];
    for (header, receiver) in pdus {
        let layout = header.check(Link { receiver, ..PLAIN }).unwrap();
        assert_eq!((layout.flags(), layout.data_len()), (Flags(0), 0));
    }
}

#[test]
fn header_end_believes_only_type_and_hlen() {
    let digests = link(Receiver::Controller, true, true, 0);
    // Flags other than HDGSTF, PDO and PLEN are nonsense here: that is for `check`, behind the header digest.
    assert_eq!(header(PduType::CAPSULE_CMD, 0xfd, 72, 1, 3).header_end(digests), Ok(76));
    assert_eq!(header(PduType::IC_REQ, 0, 128, 1, 3).header_end(digests), Ok(128));
    assert_eq!(header(PduType::H2C_TERM_REQ, 0xff, 24, 1, 24).header_end(digests), Ok(24));
    let wrong = [
        (header(PduType(0x0a), 1, 72, 0, 76), 0),
        (header(PduType::R2T, 1, 24, 0, 28), 0),
        (header(PduType::CAPSULE_CMD, 0, 71, 0, 76), 1),
        (header(PduType::CAPSULE_CMD, 1, 71, 0, 76), 2),
    ];
    for (header, field) in wrong {
        let error = FatalError::invalid_field(field);
        assert_eq!(header.header_end(digests), Err(error.into()), "{header:?}");
        assert_eq!(header.check(digests), Err(error.into()), "{header:?}");
    }
    assert_eq!(header(PduType::H2C_TERM_REQ, 0, 24, 0, 23).header_end(digests), Err(PduError::Close));
}

#[test]
fn lengths_and_ranges_must_agree() {
    let data = H2cData { cid: Cid(1), ttag: 1, offset: u32::MAX - 511, len: 512, last: false };
    let (_, pdu) = data.emit(PLAIN).unwrap();
    let beyond = FatalError { status: FatalErrorStatus::DATA_TRANSFER_OUT_OF_RANGE, information: 0 };
    assert_eq!(read(pdu.as_bytes(), PLAIN), Err(beyond.into()));
    let mut bytes: Vec<u8> = H2cData { offset: 0, ..data }.emit(PLAIN).unwrap().1.as_bytes().into();
    bytes[16] = 1;
    assert_eq!(read(&bytes, PLAIN), Err(FatalError::invalid_field(16).into()));
    assert_eq!(H2cData { len: u32::MAX, ..data }.emit(PLAIN), None);
}

#[test]
fn a_transfer_of_no_or_odd_length_is_an_invalid_field() {
    let to_host = Link { receiver: Receiver::Host, ..PLAIN };
    let (_, r2t) = R2t { cid: Cid(1), ttag: 1, offset: 0, len: 4 }.emit(to_host).unwrap();
    let (_, h2c) = H2cData { cid: Cid(1), ttag: 1, offset: 0, len: 4, last: true }.emit(PLAIN).unwrap();
    let (_, c2h) =
        C2hData { cid: Cid(1), offset: 0, len: 4, last: true, success: false }.emit(to_host).unwrap();
    for (pdu, link) in [(r2t, to_host), (h2c, PLAIN), (c2h, to_host)] {
        let with = |offset: u32, len: u32| {
            let mut pdu = pdu;
            let bytes = pdu.as_mut_bytes();
            bytes[12..16].copy_from_slice(&offset.to_le_bytes());
            bytes[16..20].copy_from_slice(&len.to_le_bytes());
            if pdu.common.kind != PduType::R2T {
                pdu.common.pdo = if len > 0 { 24 } else { 0 };
                pdu.common.plen = (24 + len).into();
            }
            read(pdu.as_bytes(), link).map(|_| ())
        };
        assert_eq!(with(4, 8), Ok(()));
        assert_eq!(with(1, 4), Err(FatalError::invalid_field(12).into()));
        assert_eq!(with(0, 3), Err(FatalError::invalid_field(16).into()));
        assert_eq!(with(0, 0), Err(FatalError::invalid_field(16).into()));
    }
    for (offset, len) in [(1, 4), (0, 3), (0, 0)] {
        assert_eq!(R2t { cid: Cid(1), ttag: 1, offset, len }.emit(to_host), None);
        assert_eq!(H2cData { cid: Cid(1), ttag: 1, offset, len, last: true }.emit(PLAIN), None);
        let c2h = C2hData { cid: Cid(1), offset, len, last: true, success: false };
        assert_eq!(c2h.emit(to_host), None);
    }
}

#[test]
fn a_bad_termination_request_closes_the_connection() {
    let bad = [
        header(PduType::H2C_TERM_REQ, 0, 23, 0, 24),
        header(PduType::C2H_TERM_REQ, 0, 24, 0, 24),
        header(PduType::H2C_TERM_REQ, 0, 24, 0, 23),
    ];
    for header in bad {
        assert_eq!(header.check(PLAIN), Err(PduError::Close), "{header:?}");
    }
}

#[test]
fn a_termination_request_says_why_and_is_never_answered() {
    let error = FatalError::invalid_field(2);
    let pdu = TermReqPdu::new(PduType::H2C_TERM_REQ, error, 72).unwrap();
    assert_eq!(pdu.as_bytes()[..16], [2, 0, 24, 0, 96, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0]);
    let (layout, read) = read(pdu.as_bytes(), PLAIN).unwrap();
    assert_eq!((read, layout.data()), (Pdu::TermReq(error), 24..96));
    for plen in [0, 23, 24 + ERROR_DATA_LEN_MAX + 1, u32::MAX] {
        assert_eq!(header(PduType::H2C_TERM_REQ, 0, 24, 0, plen).check(PLAIN), Err(PduError::Close));
    }
    assert_eq!(TermReqPdu::new(PduType::H2C_TERM_REQ, error, ERROR_DATA_LEN_MAX + 1), None);
    assert_eq!(TermReqPdu::new(PduType::R2T, error, 0), None);
    assert_eq!(std::format!("{error}"), "invalid PDU header field at byte 2");
}

#[test]
fn a_part_of_a_pdu_asks_for_the_rest() {
    let bytes = IcReq { alignment: DataAlignment::default(), digests: Digests::default(), maxr2t: 1 }.emit();
    let bytes = bytes.as_bytes();
    for len in 0..128 {
        let need = if len < 8 { 8 } else { InitializePdu::LEN };
        assert_eq!(read(&bytes[..len], PLAIN), Err(PduError::Incomplete { need }));
    }
}

fn any_link() -> impl Strategy<Value = Link> {
    (any::<bool>(), any::<bool>(), any::<bool>(), 0u8..32).prop_map(|(host, header, data, z)| {
        link(if host { Receiver::Host } else { Receiver::Controller }, header, data, z)
    })
}

proptest! {
    #[test]
    fn any_bytes_are_a_pdu_or_an_error(mut bytes in prop::collection::vec(any::<u8>(), 0..160), kind in 0u8..12, likely: bool, link in any_link()) {
        if let [first, _, hlen, _, plen, rest @ ..] = &mut bytes[..] && likely {
            // Of purely random bytes too few would get beyond the header's length.
            *first = kind;
            *hlen = PduType(kind).header_len().unwrap_or(0);
            *plen = plen.saturating_add(*hlen);
            rest.iter_mut().take(3).for_each(|byte| *byte = 0);
        }
        if let Ok((layout, pdu)) = read(&bytes, link) {
            prop_assert_eq!(layout.kind().receiver(), Some(link.receiver));
            let header_end = layout.header_digest().map_or(layout.header_len(), |digest| digest.end);
            let end = layout.data_digest().map_or(layout.data().end, |digest| digest.end);
            prop_assert!(header_end <= layout.data().start);
            prop_assert_eq!(end, layout.pdu_len() as usize);
            if let Pdu::H2cData(data) = pdu {
                prop_assert_eq!(data.len, layout.data_len());
            }
        }
    }

    #[test]
    fn a_layout_survives_the_wire(kind in 0u8..12, flags: u8, data_len in prop_oneof![Just(0), any::<u32>()], link in any_link()) {
        if let Some(layout) = Layout::new(PduType(kind), Flags(flags), data_len, link) {
            prop_assert_eq!(layout.header().check(link), Ok(layout));
            if data_len > 0 {
                prop_assert!(layout.data().start.is_multiple_of(usize::from(link.alignment.bytes())));
            }
        }
    }

    #[test]
    fn transfers_survive_the_wire(cid: u16, ttag: u16, dwords in (0..1u32 << 29, 1..1u32 << 28), last: bool, success: bool, digests: (bool, bool), z in 0u8..32) {
        let (cid, offset, len) = (Cid(cid), dwords.0 * 4, dwords.1 * 4);
        let (header, data) = digests;
        let (to_controller, to_host) = (link(Receiver::Controller, header, data, z), link(Receiver::Host, header, data, z));
        let pdu = H2cData { cid, ttag, offset, len, last };
        let (layout, raw) = pdu.emit(to_controller).unwrap();
        prop_assert_eq!(read(raw.as_bytes(), to_controller), Ok((layout, Pdu::H2cData(pdu))));
        let pdu = C2hData { cid, offset, len, last, success: success && last };
        let (layout, raw) = pdu.emit(to_host).unwrap();
        prop_assert_eq!(read(raw.as_bytes(), to_host), Ok((layout, Pdu::C2hData(pdu))));
        let pdu = R2t { cid, ttag, offset, len };
        let (layout, raw) = pdu.emit(to_host).unwrap();
        prop_assert_eq!(read(raw.as_bytes(), to_host), Ok((layout, Pdu::R2t(pdu))));
    }

    #[test]
    fn agreements_and_errors_survive_the_wire(z in 0u8..32, header: bool, data: bool, maxr2t in 1u64..=1 << 32, h2c_data_dwords_max in 1024u32..1 << 30, status: u16, information: u32, error_data_len in 0u32..=128) {
        let Link { alignment, digests, .. } = link(Receiver::Host, header, data, z);
        let maxh2cdata = h2c_data_dwords_max * 4;
        let request = IcReq { alignment, digests, maxr2t };
        prop_assert_eq!(IcReq::parse(&request.emit()), Ok(request));
        let response = IcResp { alignment, digests, maxh2cdata };
        prop_assert_eq!(IcResp::parse(&response.emit()), Ok(response));
        let error = FatalError { status: FatalErrorStatus(status), information };
        let raw = TermReqPdu::new(PduType::H2C_TERM_REQ, error, error_data_len).unwrap();
        prop_assert_eq!(read(raw.as_bytes(), PLAIN).unwrap().1, Pdu::TermReq(error));
    }
}
