//! What a hostile controller may send: it ends the connection, and touches no memory but that of the commands under
//! way.

use crate::site::{BOTH, NONE, Site};
use core::time::Duration;
use nvme_proto::tcp::{C2hData, DataAlignment, Digests, R2t};
use nvme_proto::{Cid, Cqe, Status};
use nvmf_initiator::transport::{Event, Payload, Transport};
use nvmf_memory::Crc32c;
use nvmf_tcp::ToHost;

/// Bytes that the commands under way move.
const LEN: u32 = 8192;
/// CIDs of a read and of a write that wait for their data.
const READ: u16 = 0x11;
const WRITE: u16 = 0x22;

impl Site {
    /// What the host sends last; the connection has ended by the controller's fault.
    pub(crate) fn rest_after_end(&mut self) -> Vec<u8> {
        // Or the host waits for this end.
        self.peer.shutdown(std::net::Shutdown::Write).unwrap();
        let cause = self.ending();
        assert!(cause.contains("the controller broke the protocol"), "{cause}");
        self.rest()
    }
}

/// A queue with a read and a write under way.
fn busy(digests: Digests) -> Site {
    let mut site = Site::ready(digests);
    site.read(0, READ, LEN);
    site.user(1, WRITE, LEN, Payload::ToController, 1);
    site.receive(if digests.header { 76 } else { 72 });
    site
}

/// Sends it to a host with commands under way: the connection ends with this termination request.
fn ends_with(digests: Digests, bytes: &[u8], status: u16, field: Option<u32>, what: &str) {
    let mut site = busy(digests);
    site.write(bytes);
    let last = site.rest_after_end();
    assert_eq!(last[..4], [2, 0, 24, 0], "{what}: a termination request");
    let (fes, fei) =
        (u16::from_le_bytes([last[8], last[9]]), u32::from_le_bytes(last[10..14].try_into().unwrap()));
    assert_eq!(fes, status, "{what}: FES");
    if let Some(field) = field {
        assert_eq!(fei, field, "{what}: FEI");
    }
    assert!(site.is_untouched_but(LEN as usize), "{what}");
    assert!(site.arrivals.is_empty(), "{what}: {:?}", site.arrivals);
}

fn sender() -> ToHost {
    ToHost::new(NONE, DataAlignment::default())
}

/// A PDU of the controller's with 24 bytes of header.
fn pdu(kind: u8, flags: u8, pdo: u8, plen: u32, rest: [u8; 16]) -> Vec<u8> {
    [&[kind, flags, 24, pdo][..], &plen.to_le_bytes(), &rest].concat()
}

/// The fields of C2HData and R2T.
fn transfer(cid: u16, ttag: u16, offset: u32, len: u32) -> [u8; 16] {
    let bytes =
        [&cid.to_le_bytes()[..], &ttag.to_le_bytes(), &offset.to_le_bytes(), &len.to_le_bytes(), &[0; 4]];
    bytes.concat().try_into().unwrap()
}

#[test]
fn header_of_any_length_is_refused() {
    for kind in [0x03, 0x05, 0x07, 0x09] {
        for hlen in (0..=255_u8).filter(|&hlen| hlen != 24) {
            // Without a header digest the same code looks at it: a few suffice.
            let with_none = [0, 23, 25, 255].contains(&hlen);
            for digests in [BOTH, NONE].into_iter().take(1 + usize::from(with_none)) {
                let mut site = busy(digests);
                let mut bytes = [0xee; 512];
                bytes[..8].copy_from_slice(&[kind, u8::from(digests.header), hlen, 0, 0, 2, 0, 0]);
                site.write(&bytes);
                site.peer.shutdown(std::net::Shutdown::Write).unwrap();
                let cause = site.ending();
                assert!(cause.contains("broke the protocol"), "type {kind}, HLEN {hlen}: {cause}");
                assert!(site.is_untouched_but(0) && site.arrivals.is_empty(), "type {kind}, HLEN {hlen}");
            }
        }
    }
}

#[test]
fn unknown_types_and_those_of_the_host_are_refused() {
    for kind in (0..=255_u8).filter(|kind| ![0x01, 0x02, 0x03, 0x05, 0x07, 0x09].contains(kind)) {
        ends_with(NONE, &pdu(kind, 0, 0, 24, [0; 16]), 1, Some(0), &format!("type {kind:#04x}"));
    }
    // The host's own termination request is not answered with one.
    let mut site = busy(NONE);
    site.write(&pdu(2, 0, 0, 24, [0; 16]));
    assert!(site.ending().contains("the controller broke the protocol"));
}

#[test]
fn bad_r2t_ends_the_connection() {
    let raw = |cid, offset, len| pdu(9, 0, 0, 24, transfer(cid, 1, offset, len));
    ends_with(NONE, &raw(WRITE, 0, 0), 1, Some(16), "no length");
    ends_with(NONE, &raw(WRITE, 2, 8), 1, Some(12), "odd offset");
    ends_with(NONE, &raw(WRITE, 0, LEN + 4), 4, None, "beyond the transfer");
    ends_with(NONE, &raw(WRITE, LEN, 4), 4, None, "behind the transfer");
    ends_with(NONE, &raw(WRITE, 4, u32::MAX - 3), 4, None, "a sum that wraps");
    ends_with(NONE, &raw(WRITE, 4096, 4096), 2, None, "not where it goes on");
    ends_with(NONE, &raw(READ, 0, LEN), 1, Some(8), "for a read");
    ends_with(NONE, &raw(0x33, 0, 4), 1, Some(8), "for no command");
    let with_data = pdu(9, 0, 24, 28, transfer(WRITE, 1, 0, LEN));
    ends_with(NONE, &[&with_data[..], &[0; 4]].concat(), 1, None, "with data");
    ends_with(NONE, &pdu(9, 4, 0, 24, transfer(WRITE, 1, 0, LEN)), 1, Some(1), "with LAST_PDU");
}

#[test]
fn r2t_before_what_was_sent_ends_the_connection() {
    let mut site = busy(NONE);
    let first = R2t { cid: Cid(WRITE), ttag: 1, offset: 0, len: 4096 };
    site.write(sender().r2t(&first).unwrap().as_bytes());
    site.receive(24 + 4096);
    site.write(sender().r2t(&first).unwrap().as_bytes());
    let last = site.rest_after_end();
    assert_eq!((last[0], last[8]), (2, 2), "a termination request: PDU sequence error");
}

#[test]
fn bad_data_end_the_connection() {
    let data = |cid, offset, len: u32, plen: u32, flags| {
        let mut bytes = pdu(7, flags, 24, plen, transfer(cid, 0, offset, len));
        bytes.resize(24 + 2 * LEN as usize, 0xee);
        bytes
    };
    let whole = |cid, offset, len| data(cid, offset, len, 24 + len, 4);
    ends_with(NONE, &whole(WRITE, 0, 4096), 1, Some(8), "for a write");
    ends_with(NONE, &whole(0x33, 0, 4096), 1, Some(8), "for no command");
    ends_with(NONE, &whole(READ, 0, LEN + 4), 4, None, "more than the command reads");
    ends_with(NONE, &whole(READ, LEN, 4), 4, None, "behind what the command reads");
    ends_with(NONE, &whole(READ, 4096, 4096), 2, None, "a gap");
    ends_with(NONE, &whole(READ, u32::MAX - 3, 8), 4, None, "a sum that wraps");
    ends_with(NONE, &data(READ, 0, 4096, 24 + 4100, 4), 1, Some(16), "DATAL is not PLEN's");
    ends_with(NONE, &data(READ, 0, 4096, 24 + 4092, 4), 1, Some(16), "DATAL is not PLEN's");
    ends_with(NONE, &data(READ, 0, 0, 24, 4), 1, None, "no data");
    ends_with(NONE, &data(READ, 0, LEN, 24 + LEN, 0), 2, None, "all data without LAST_PDU");
    let twice = [data(READ, 0, 4, 28, 4)[..28].to_vec(), data(READ, 4, 4, 28, 4)[..28].to_vec()].concat();
    ends_with(NONE, &twice, 2, None, "behind LAST_PDU");
}

#[test]
fn flags_that_do_not_belong_end_the_connection() {
    let data = |flags| {
        let mut bytes = pdu(7, flags, 24, 24 + 4096, transfer(READ, 0, 0, 4096));
        bytes.resize(24 + 4096, 0xee);
        bytes
    };
    for (flags, what) in [
        (0x08, "SUCCESS without LAST_PDU"),
        (0x05, "HDGSTF without header digests"),
        (0x06, "DDGSTF without data digests"),
        (0x14, "a reserved flag"),
        (0x84, "a reserved flag"),
    ] {
        ends_with(NONE, &data(flags), 1, Some(1), what);
    }
    let response =
        |flags| pdu(5, flags, 0, 24, zerocopy::transmute!(Cqe::new(Cid(READ), Status::SUCCESS, 0)));
    for flags in [0x01, 0x02, 0x04, 0x08, 0x10, 0x80] {
        ends_with(NONE, &response(flags), 1, Some(1), "a response's flags");
    }
    // In use and not set.
    let digest = |pdu: &[u8]| [pdu, &Crc32c::of(pdu).to_le_bytes()].concat();
    let mut bare = pdu(5, 0, 0, 28, zerocopy::transmute!(Cqe::new(Cid(READ), Status::SUCCESS, 0)));
    bare = digest(&bare);
    let mut site = busy(BOTH);
    site.write(&bare);
    let last = site.rest_after_end();
    assert_eq!(last[0], 2);
    assert!(site.arrivals.is_empty());
}

#[test]
fn response_to_no_command_ends_the_connection() {
    let response = |cid| sender().response(Cqe::new(Cid(cid), Status::SUCCESS, 0)).as_bytes().to_vec();
    // Another sequence in the same slot, and a slot without a command.
    for cid in [READ ^ 0x10, READ ^ 0x8000, 0x0f, 0xffff] {
        ends_with(NONE, &response(cid), 1, Some(20), &format!("CID {cid:#06x}"));
    }
    let mut site = busy(NONE);
    let refused = sender().response(Cqe::new(Cid(READ), Status::INTERNAL_ERROR, 0));
    site.write(refused.as_bytes());
    assert_eq!(site.response(), (Cid(READ), Status::INTERNAL_ERROR));
    assert_eq!(site.tcp.complete(site.qid, 0, None), Ok(true));
    site.write(refused.as_bytes());
    let last = site.rest_after_end();
    assert_eq!((last[0], last[8], last[10]), (2, 1, 20), "a second response");
}

#[test]
fn data_after_the_response_touch_nothing() {
    let mut site = busy(NONE);
    site.write(sender().response(Cqe::new(Cid(READ), Status::INTERNAL_ERROR, 0)).as_bytes());
    assert_eq!(site.response(), (Cid(READ), Status::INTERNAL_ERROR));
    assert_eq!(site.tcp.complete(site.qid, 0, None), Ok(true));
    let data = C2hData { cid: Cid(READ), offset: 0, len: 4096, last: true, success: false };
    site.write(&[sender().c2h_data(&data).unwrap().as_bytes(), &[0xee; 4096]].concat());
    site.rest_after_end();
    assert!(site.is_untouched_but(0));
}

#[test]
fn foreign_records_in_the_stream_end_the_connection() {
    // Of TLS: an alert, a ticket, KeyUpdate, an empty record; and HTTP.
    let records: [&[u8]; 5] = [
        &[21, 3, 3, 0, 2, 2, 40],
        &[22, 3, 3, 0, 4, 4, 0, 0, 0],
        &[22, 3, 3, 0, 5, 24, 0, 0, 1, 0],
        &[23, 3, 3, 0, 0],
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ];
    for record in records {
        let mut site = busy(NONE);
        site.write(record);
        site.write(&[0; 8]);
        site.peer.shutdown(std::net::Shutdown::Write).unwrap();
        let cause = site.ending();
        assert!(cause.contains("broke the protocol"), "{cause}");
        assert!(site.is_untouched_but(0) && site.arrivals.is_empty());
    }
}

#[test]
fn termination_by_the_controller_is_reported_with_its_reason() {
    let mut site = busy(NONE);
    let reason = [&[2, 0, 24 + 8, 0, 0, 0][..], &[0; 10]].concat();
    site.write(&[&pdu(3, 0, 0, 24 + 8, reason.try_into().unwrap())[..], &[0; 8]].concat());
    let cause = site.ending();
    assert!(cause.starts_with("the controller terminated it: "), "{cause}");
    let mut site = busy(NONE);
    site.write(&pdu(3, 0, 0, 23, [0; 16]));
    assert!(site.ending().contains("an invalid termination request"));
}

#[test]
fn end_within_a_pdu_is_a_broken_connection() {
    let data = C2hData { cid: Cid(READ), offset: 0, len: LEN, last: true, success: false };
    let bytes = [sender().c2h_data(&data).unwrap().as_bytes(), &[0xee; LEN as usize]].concat();
    for cut in [1, 8, 23, 24, 25, 4096, bytes.len() - 1] {
        let mut site = busy(NONE);
        site.write(&bytes[..cut]);
        site.peer.shutdown(std::net::Shutdown::Write).unwrap();
        let cause = site.ending();
        assert!(!cause.contains("closed it"), "{cut} bytes: {cause}");
        assert!(site.is_untouched_but(LEN as usize) && site.arrivals.is_empty());
    }
}

/// Whether the controller is said to know of the loss: it then carries out nothing more of the lost commands.
fn knows(site: &mut Site) -> bool {
    match site.event() {
        Event::Disconnected { peer_has_ended, .. } => peer_has_ended,
        event => panic!("{event:?}"),
    }
}

#[test]
fn controller_knows_of_a_loss_only_if_it_ended_the_connection() {
    let mut closed = busy(NONE);
    closed.peer.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(knows(&mut closed), "it closed");

    let mut within = busy(NONE);
    within.write(&[7]);
    within.peer.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(knows(&mut within), "it closed within a PDU");

    let mut terminated = busy(NONE);
    terminated.write(&[&pdu(3, 0, 0, 24 + 8, [0; 16])[..], &[0; 8]].concat());
    assert!(knows(&mut terminated), "it said so");

    // The bad PDU is the end for the host; the controller may be carrying out what it has.
    let mut bad = busy(NONE);
    bad.write(&pdu(9, 0, 0, 24, transfer(WRITE, 1, 0, LEN + 4)));
    bad.peer.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(!knows(&mut bad), "the host ended it");

    for orderly in [true, false] {
        let mut ours = busy(NONE);
        ours.tcp.disconnect(ours.qid, orderly);
        if orderly {
            ours.peer.shutdown(std::net::Shutdown::Write).unwrap();
        }
        assert!(!knows(&mut ours), "the host closed it");
    }
}

/// Until then something of the lost commands may still reach the controller.
#[test]
fn loss_is_reported_when_the_connection_is_gone_and_not_before() {
    let mut site = busy(NONE);
    site.write(&pdu(9, 0, 0, 24, transfer(WRITE, 1, 0, LEN + 4)));
    let last = site.receive(24);
    assert_eq!(last[..4], [2, 0, 24, 0], "a termination request");
    for _ in 0..20 {
        site.turn();
        let event = site.tcp.poll_event(Duration::ZERO);
        assert!(event.is_none(), "the controller has not closed: {event:?}");
    }
    site.peer.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(!knows(&mut site));
}

#[test]
fn nothing_arrives_of_a_destroyed_queue() {
    let mut site = busy(NONE);
    let refused = |cid| sender().response(Cqe::new(Cid(cid), Status::INTERNAL_ERROR, 0)).as_bytes().to_vec();
    site.write(&[refused(READ), refused(WRITE)].concat());
    let begun = std::time::Instant::now();
    let first = loop {
        assert!(begun.elapsed() < Duration::from_secs(20), "no response arrived");
        site.tcp.poll();
        if let Some(first) = site.tcp.next_arrival() {
            break first;
        }
    };
    site.tcp.destroy(site.qid);
    let second = site.tcp.next_arrival();
    assert!(second.is_none(), "{first:?}, {second:?}");
}
