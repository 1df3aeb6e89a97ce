//! What the receiver refuses, with the fatal error status and information of each.

use crate::driver::{
    ALL, BOTH, Driver, MAXH2CDATA, NONE, alignment, fatal, initialize, refused, renew_digest, to_controller,
    to_host, with_data,
};
use nvme_proto::tcp::{
    C2hData, CommonHeader, Digests, FatalError, FatalErrorStatus, H2cData, Link, R2t, Receiver,
};
use nvme_proto::{Cid, Cqe, Sqe, Status};
use nvmf_tcp::head::termination;
use nvmf_tcp::{End, Event, PduReceiver};
use std::slice;

const ROLES: [Receiver; 2] = [Receiver::Controller, Receiver::Host];
const CID: Cid = Cid(5);

/// One PDU of each type that this side may receive once ICReq and ICResp are over, with 8 bytes of data where it may
/// have data, and the length of its header.
fn pdus(receiver: Receiver, digests: Digests) -> Vec<(Vec<u8>, usize)> {
    match receiver {
        Receiver::Controller => {
            let to = to_controller(digests);
            let data = H2cData { cid: CID, ttag: 1, offset: 0, len: 8, last: true };
            vec![
                (with_data(to.command(Sqe::new(1), 8).unwrap(), &[1; 8], digests), 72),
                (with_data(to.h2c_data(&data).unwrap(), &[2; 8], digests), 24),
            ]
        }
        Receiver::Host => {
            let to = to_host(digests);
            let data = C2hData { cid: CID, offset: 0, len: 8, last: true, success: false };
            vec![
                (to.response(Cqe::new(CID, Status::SUCCESS, 0)).as_bytes().to_vec(), 24),
                (to.r2t(&R2t { cid: CID, ttag: 1, offset: 0, len: 8 }).unwrap().as_bytes().to_vec(), 24),
                (with_data(to.c2h_data(&data).unwrap(), &[3; 8], digests), 24),
            ]
        }
    }
}

/// Each PDU changed by `change`, its header digest right, must end the connection like this.
fn all_refused(change: impl Fn(&mut Vec<u8>), digests: &[Digests], end: End) {
    for &digests in digests {
        for receiver in ROLES {
            for (mut pdu, header_len) in pdus(receiver, digests) {
                change(&mut pdu);
                if digests.header {
                    renew_digest(&mut pdu, header_len);
                }
                assert_eq!(refused(receiver, digests, &pdu), end, "{receiver:?} {digests:?} {pdu:x?}");
            }
        }
    }
}

#[test]
fn unknown_type_is_field_0() {
    for kind in [0x08, 0x0a, 0x0b, 0x0c, 0x7f, 0xff] {
        all_refused(|pdu| pdu[0] = kind, &ALL, fatal(1, 0));
    }
}

#[test]
fn type_of_the_other_direction_is_field_0() {
    for receiver in ROLES {
        for digests in ALL {
            let others = if receiver == Receiver::Host { Receiver::Controller } else { Receiver::Host };
            for (pdu, _) in pdus(others, digests) {
                assert_eq!(refused(receiver, digests, &pdu), fatal(1, 0), "{receiver:?}");
            }
            let ic = initialize(others, NONE, alignment(0));
            assert_eq!(refused(receiver, digests, ic.as_bytes()), fatal(1, 0));
        }
    }
}

#[test]
fn reserved_flags_are_field_1() {
    for bit in 4..8 {
        all_refused(|pdu| pdu[1] |= 1 << bit, &ALL, fatal(1, 1));
    }
    for receiver in ROLES {
        let mut ic = initialize(receiver, NONE, alignment(0)).as_bytes().to_vec();
        ic[1] = 1;
        let mut driver = Driver::new(receiver, NONE, alignment(0));
        assert_eq!(driver.feed(&ic), Err(fatal(1, 1)));
    }
}

#[test]
fn digest_flags_that_were_not_agreed_are_field_1() {
    let (no_header, no_data) =
        ([NONE, Digests { header: false, data: true }], [NONE, Digests { header: true, data: false }]);
    all_refused(|pdu| pdu[1] |= 1, &no_header, fatal(1, 1));
    all_refused(|pdu| pdu[1] |= 2, &no_data, fatal(1, 1));
}

#[test]
fn missing_digest_flags_are_field_1() {
    let header = [BOTH, Digests { header: true, data: false }];
    all_refused(|pdu| pdu[1] &= !1, &header, fatal(1, 1));
    for receiver in ROLES {
        for (mut pdu, header_len) in pdus(receiver, BOTH).into_iter().filter(|(pdu, _)| pdu[1] & 2 != 0) {
            pdu[1] &= !2;
            renew_digest(&mut pdu, header_len);
            assert_eq!(refused(receiver, BOTH, &pdu), fatal(1, 1));
        }
    }
}

#[test]
fn data_digest_flag_without_data_is_field_1() {
    let mut pdu = to_controller(BOTH).command(Sqe::new(1), 0).unwrap().as_bytes().to_vec();
    pdu[1] |= 2;
    renew_digest(&mut pdu, 72);
    assert_eq!(refused(Receiver::Controller, BOTH, &pdu), fatal(1, 1));
}

#[test]
fn success_without_last_is_field_1() {
    for digests in ALL {
        let data = C2hData { cid: CID, offset: 0, len: 8, last: true, success: true };
        let mut pdu = with_data(to_host(digests).c2h_data(&data).unwrap(), &[0; 8], digests);
        pdu[1] &= !4;
        if digests.header {
            renew_digest(&mut pdu, 24);
        }
        assert_eq!(refused(Receiver::Host, digests, &pdu), fatal(1, 1));
    }
}

#[test]
fn wrong_hlen_is_field_2() {
    for digests in ALL {
        for receiver in ROLES {
            for (pdu, header_len) in pdus(receiver, digests) {
                for hlen in (0..=255).filter(|&hlen| usize::from(hlen) != header_len) {
                    let mut pdu = pdu.clone();
                    pdu[2] = hlen;
                    assert_eq!(refused(receiver, digests, &pdu), fatal(1, 2), "HLEN {hlen}");
                }
            }
        }
    }
}

#[test]
fn wrong_pdo_is_field_3() {
    for digests in ALL {
        for receiver in ROLES {
            for (pdu, header_len) in pdus(receiver, digests).into_iter().filter(|(pdu, _)| pdu[3] != 0) {
                let right = pdu[3];
                // Within the header, within its digest, not aligned, at the end, behind it.
                for pdo in [0, 1, right - 4, right - 1, right + 1, right + 2, pdu.len() as u8, 0xfc] {
                    let mut pdu = pdu.clone();
                    pdu[3] = pdo;
                    if digests.header {
                        renew_digest(&mut pdu, header_len);
                    }
                    assert_eq!(refused(receiver, digests, &pdu), fatal(1, 3), "PDO {pdo}");
                }
            }
        }
    }
}

#[test]
fn pdo_against_our_alignment_is_field_3() {
    let mut driver = Driver::new(Receiver::Host, NONE, alignment(1));
    driver.feed(initialize(Receiver::Host, NONE, alignment(0)).as_bytes()).unwrap();
    let data = C2hData { cid: CID, offset: 0, len: 8, last: true, success: false };
    let mut pdu = with_data(to_host(NONE).c2h_data(&data).unwrap(), &[0; 8], NONE);
    assert_eq!(pdu[3], 24);
    driver.feed(&pdu).unwrap();
    pdu[3] = 28;
    pdu[4] += 4;
    assert_eq!(driver.feed(&pdu), Err(fatal(1, 3)));
}

#[test]
fn plen_below_the_header_is_field_4() {
    for plen in [0, 8, 23, 71] {
        let head = to_controller(NONE).command(Sqe::new(1), 0).unwrap();
        let mut pdu = head.as_bytes().to_vec();
        pdu[4..8].copy_from_slice(&u32::to_le_bytes(plen));
        assert_eq!(refused(Receiver::Controller, NONE, &pdu), fatal(1, 4));
    }
    let head = to_controller(BOTH).command(Sqe::new(1), 0).unwrap();
    let mut pdu = head.as_bytes().to_vec();
    pdu[4] -= 1;
    renew_digest(&mut pdu, 72);
    assert_eq!(refused(Receiver::Controller, BOTH, &pdu), fatal(1, 4));
}

#[test]
fn plen_of_a_pdu_without_data_is_field_4() {
    for digests in ALL {
        for (mut pdu, header_len) in pdus(Receiver::Host, digests).into_iter().take(2) {
            pdu[4] += 4;
            if digests.header {
                renew_digest(&mut pdu, header_len);
            }
            assert_eq!(refused(Receiver::Host, digests, &pdu), fatal(1, 4));
        }
    }
    for (receiver, plen) in
        [(Receiver::Controller, 127), (Receiver::Controller, 129), (Receiver::Host, 1 << 31)]
    {
        let mut ic = initialize(receiver, NONE, alignment(0)).as_bytes().to_vec();
        ic[4..8].copy_from_slice(&u32::to_le_bytes(plen));
        assert_eq!(Driver::new(receiver, NONE, alignment(0)).feed(&ic), Err(fatal(1, 4)));
    }
}

#[test]
fn plen_with_no_room_for_data_before_their_digest_is_field_4() {
    for len in [1, 4] {
        let mut pdu = with_data(to_controller(BOTH).command(Sqe::new(1), 8).unwrap(), &[0; 8], BOTH);
        pdu[4] = 76 + len;
        renew_digest(&mut pdu, 72);
        assert_eq!(refused(Receiver::Controller, BOTH, &pdu), fatal(1, 4));
    }
}

#[test]
fn the_lowest_invalid_field_is_reported() {
    // Every field wrong; then one after the other is right. PLEN leaves no room for data before their digest.
    let right = to_controller(BOTH).command(Sqe::new(1), 8).unwrap();
    let link = Link { receiver: Receiver::Controller, digests: BOTH, alignment: alignment(0) };
    let mut pdu = right.as_bytes()[..8].to_vec();
    pdu.copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 80, 0, 0, 0]);
    for field in 0..5 {
        let error = FatalError::invalid_field(field);
        assert_eq!(CommonHeader::read(&pdu).unwrap().check(link), Err(error.into()));
        pdu[field] = right.as_bytes()[field];
    }
    // Without a header digest all is judged as soon as the first 8 bytes are there.
    let right = to_controller(NONE).command(Sqe::new(1), 8).unwrap();
    let mut pdu = [0xff, 0xff, 0xff, 0xff, 80, 0, 0, 0];
    for field in 0..4 {
        assert_eq!(refused(Receiver::Controller, NONE, &pdu), fatal(1, field as u32));
        pdu[field] = right.as_bytes()[field];
    }
}

#[test]
fn datal_that_differs_from_the_pdu_is_field_16() {
    for digests in ALL {
        for (receiver, at) in [(Receiver::Controller, 1), (Receiver::Host, 2)] {
            for change in [1, 4, -1, -4, -8, i32::MAX] {
                let (mut pdu, _) = pdus(receiver, digests).remove(at);
                let datal = u32::from_le_bytes(pdu[16..20].try_into().unwrap()).wrapping_add_signed(change);
                pdu[16..20].copy_from_slice(&datal.to_le_bytes());
                if digests.header {
                    renew_digest(&mut pdu, 24);
                }
                assert_eq!(refused(receiver, digests, &pdu), fatal(1, 16), "DATAL {datal}");
            }
        }
    }
}

#[test]
fn offsets_and_lengths_of_r2t_in_part_dwords_are_fields_12_and_16() {
    for (at, value, field) in [(12, 1, 12), (16, 0, 16), (16, 6, 16)] {
        let (mut pdu, _) = pdus(Receiver::Host, NONE).remove(1);
        pdu[at] = value;
        assert_eq!(refused(Receiver::Host, NONE, &pdu), fatal(1, field));
    }
}

#[test]
fn offset_and_length_beyond_4_gib_are_out_of_range() {
    for (receiver, at) in [(Receiver::Controller, 1), (Receiver::Host, 1), (Receiver::Host, 2)] {
        let (mut pdu, _) = pdus(receiver, NONE).remove(at);
        pdu[12..16].copy_from_slice(&0xffff_fffc_u32.to_le_bytes());
        assert_eq!(refused(receiver, NONE, &pdu), fatal(4, 0));
    }
}

#[test]
fn wrong_header_digest_is_status_3_with_the_digest_received() {
    for digests in [BOTH, Digests { header: true, data: false }] {
        for receiver in ROLES {
            for (pdu, header_len) in pdus(receiver, digests) {
                // Any byte but the type, HDGSTF and HLEN, which are needed to find the digest.
                for at in (1..header_len + 4).filter(|at| *at != 2) {
                    let mut pdu = pdu.clone();
                    pdu[at] ^= 0x40;
                    let received = u32::from_le_bytes(pdu[header_len..header_len + 4].try_into().unwrap());
                    assert_eq!(refused(receiver, digests, &pdu), fatal(3, received), "byte {at}");
                }
            }
        }
    }
}

#[test]
fn plen_is_not_believed_before_the_header_digest() {
    let mut pdu = with_data(to_controller(BOTH).command(Sqe::new(1), 8).unwrap(), &[0; 8], BOTH);
    pdu[4..8].copy_from_slice(&[0; 4]);
    let mut driver = Driver::ready(Receiver::Controller, BOTH);
    driver.feed(&pdu[..75]).unwrap();
    assert_eq!(driver.receiver.data_left(), 0);
    assert!(matches!(
        driver.feed(&pdu[75..76]),
        Err(End::Fatal(FatalError { status: FatalErrorStatus::HEADER_DIGEST_ERROR, .. }))
    ));
}

#[test]
fn wrong_data_digest_is_an_event_and_the_connection_lives() {
    for digests in [BOTH, Digests { header: false, data: true }] {
        for receiver in ROLES {
            let with_data = |(pdu, _): &(Vec<u8>, usize)| pdu[3] != 0;
            for (pdu, _) in pdus(receiver, digests).into_iter().filter(with_data) {
                for at in pdu.len() - 12..pdu.len() {
                    let mut damaged = pdu.clone();
                    damaged[at] ^= 1;
                    let mut driver = Driver::ready(receiver, digests);
                    driver.feed(&[damaged, pdu.clone()].concat()).unwrap();
                    let events = driver.events();
                    assert_eq!(events[1], Event::DataEnd { intact: false }, "byte {at}");
                    assert_eq!(events[2..], [events[0], Event::DataEnd { intact: true }]);
                }
            }
        }
    }
}

#[test]
fn only_ic_comes_first() {
    for receiver in ROLES {
        for (pdu, _) in pdus(receiver, NONE) {
            let mut driver = Driver::new(receiver, NONE, alignment(0));
            assert_eq!(driver.feed(&pdu), Err(fatal(2, 0)));
        }
    }
}

#[test]
fn ic_comes_only_once() {
    for receiver in ROLES {
        for digests in ALL {
            let ic = initialize(receiver, NONE, alignment(0));
            assert_eq!(refused(receiver, digests, ic.as_bytes()), fatal(2, 0));
        }
    }
}

#[test]
fn nothing_comes_before_ic_resp_is_sent() {
    let mut receiver = PduReceiver::new(Receiver::Controller);
    let ic = initialize(Receiver::Controller, NONE, alignment(0));
    assert_eq!(receiver.on_bytes(ic.as_bytes()).unwrap().0, 128);
    let command = to_controller(NONE).command(Sqe::new(1), 0).unwrap();
    assert_eq!(receiver.on_bytes(command.as_bytes()), Err(fatal(2, 0)));

    let mut receiver = PduReceiver::new(Receiver::Controller);
    receiver.on_bytes(ic.as_bytes()).unwrap();
    assert_eq!(receiver.on_bytes(ic.as_bytes()), Err(fatal(2, 0)));
}

#[test]
fn ic_req_fields() {
    for (at, value, field) in [(2, 24, 2), (4, 129, 4), (8, 1, 8), (9, 1, 8), (10, 32, 10)] {
        let mut ic = initialize(Receiver::Controller, NONE, alignment(0)).as_bytes().to_vec();
        ic[at] = value;
        let mut driver = Driver::new(Receiver::Controller, NONE, alignment(0));
        assert_eq!(driver.feed(&ic), Err(fatal(1, field)), "byte {at}");
    }
}

#[test]
fn ic_resp_fields() {
    for (at, value, field) in [(2, 24, 2), (4, 129, 4), (8, 1, 8), (10, 32, 10), (12, 1, 12), (13, 8, 12)] {
        let mut ic = initialize(Receiver::Host, NONE, alignment(0)).as_bytes().to_vec();
        ic[at] = value;
        let mut driver = Driver::new(Receiver::Host, NONE, alignment(0));
        assert_eq!(driver.feed(&ic), Err(fatal(1, field)), "byte {at}");
    }
}

#[test]
fn every_hpda_is_taken() {
    for z in 0..32 {
        let mut driver = Driver::new(Receiver::Controller, NONE, alignment(0));
        driver.feed(initialize(Receiver::Controller, NONE, alignment(z)).as_bytes()).unwrap();
        assert!(matches!(driver.events()[..], [Event::IcReq(request)] if request.alignment == alignment(z)));
    }
}

#[test]
fn more_in_capsule_data_than_allowed_are_status_5() {
    for digests in ALL {
        for (limit, len, refused) in
            [(None, 8192, false), (None, 8196, true), (Some(16384), 16384, false), (Some(16384), 16388, true)]
        {
            let mut driver = Driver::ready(Receiver::Controller, digests);
            if let Some(limit) = limit {
                driver.receiver.set_in_capsule_len_max(limit);
            }
            let head = to_controller(digests).command(Sqe::new(1), len).unwrap();
            let result = driver.feed(head.as_bytes());
            assert_eq!(result, if refused { Err(fatal(5, 0)) } else { Ok(()) }, "{len} of {limit:?}");
            assert_eq!(driver.receiver.data_left(), if refused { 0 } else { len });
        }
    }
}

#[test]
fn termination_requests_are_taken_at_any_time() {
    let error = FatalError { status: FatalErrorStatus::PDU_SEQUENCE_ERROR, information: 7 };
    for (receiver, sender) in [(Receiver::Controller, Receiver::Host), (Receiver::Host, Receiver::Controller)]
    {
        for header in [&[][..], &[4; 8], &[4; 128]] {
            let request = termination(sender, error, header);
            let request = if header.is_empty() { &request.as_bytes()[..24] } else { request.as_bytes() };
            for digests in ALL {
                for mut driver in
                    [Driver::new(receiver, digests, alignment(0)), Driver::ready(receiver, digests)]
                {
                    driver.feed(&[request, &[1; 200]].concat()).unwrap();
                    assert_eq!(driver.events(), [Event::Terminated(error)]);
                    assert!(driver.receiver.is_over() && !driver.receiver.is_between_pdus());
                }
            }
        }
    }
}

#[test]
fn invalid_termination_requests_are_not_answered() {
    let error = FatalError::invalid_field(0);
    let good = termination(Receiver::Host, error, &[4; 8]);
    for digests in ALL {
        for plen in [0, 8, 23, 153, u32::MAX] {
            let mut request = good.as_bytes().to_vec();
            request[4..8].copy_from_slice(&plen.to_le_bytes());
            assert_eq!(refused(Receiver::Controller, digests, &request), End::Close);
        }
        let mut request = good.as_bytes().to_vec();
        request[2] = 25;
        assert_eq!(refused(Receiver::Controller, digests, &request), End::Close);
        request[2] = 24;
        assert_eq!(refused(Receiver::Host, digests, &request), End::Close);
    }
}

#[test]
fn nothing_comes_after_our_termination() {
    let error = FatalError::invalid_field(0);
    for digests in ALL {
        let (pdu, _) = pdus(Receiver::Controller, digests).remove(0);
        for at in 0..pdu.len() {
            let mut driver = Driver::ready(Receiver::Controller, digests);
            driver.feed(&pdu[..at]).unwrap();
            driver.receiver.terminate(error);
            driver.seen.clear();
            assert_eq!(driver.receiver.data_left(), 0);
            driver.feed(&pdu).unwrap();
            assert!(driver.seen.is_empty());
        }
    }
}

#[test]
fn our_termination_has_the_header_without_its_digest() {
    for digests in ALL {
        let (pdu, header_len) = pdus(Receiver::Controller, digests).remove(0);
        let error = FatalError::invalid_field(8);
        let header_of = |driver: &mut Driver| driver.receiver.terminate(error).as_bytes()[24..].to_vec();
        // Data under way, and behind them: the header that announced them.
        for at in [header_len + 4, pdu.len() - 1, pdu.len()] {
            let mut driver = Driver::ready(Receiver::Controller, digests);
            driver.feed(&pdu[..at]).unwrap();
            assert_eq!(header_of(&mut driver), pdu[..header_len], "{digests:?} after byte {at}");
        }
        // A part of the next header, filled up to 8 bytes.
        let mut driver = Driver::ready(Receiver::Controller, digests);
        driver.feed(&[&pdu[..], &pdu[..3]].concat()).unwrap();
        assert_eq!(header_of(&mut driver), [4, pdu[1], 72, 0, 0, 0, 0, 0]);
    }
    let mut fresh = Driver::new(Receiver::Host, NONE, alignment(0));
    let request = fresh.receiver.terminate(FatalError::invalid_field(0));
    assert_eq!((request.as_bytes().len(), request.as_bytes()[0]), (32, 2));
}

#[test]
fn our_termination_answers_a_refused_header() {
    let mut driver = Driver::ready(Receiver::Controller, NONE);
    let pdu = [4, 0, 71, 72, 80, 0, 0, 0];
    let Err(End::Fatal(error)) = driver.feed(&pdu) else { panic!("an HLEN of 71 was taken") };
    let request = driver.receiver.terminate(error);
    assert_eq!(request.as_bytes()[..14], [3, 0, 24, 0, 32, 0, 0, 0, 1, 0, 2, 0, 0, 0]);
    assert_eq!(request.as_bytes()[24..], pdu);
    // The other side takes it.
    let mut host = Driver::ready(Receiver::Host, BOTH);
    host.feed(request.as_bytes()).unwrap();
    assert_eq!(host.events(), [Event::Terminated(error)]);
}

#[test]
fn a_length_of_4_gib_holds_nothing() {
    let size = size_of::<PduReceiver>();
    assert!(size < 1024, "a receiver of {size} bytes");
    let mut driver = Driver::ready(Receiver::Controller, NONE);
    let data = H2cData { cid: CID, ttag: 0, offset: 0, len: u32::MAX - 27, last: true };
    let head = to_controller(NONE).h2c_data(&data).unwrap();
    driver.feed(head.as_bytes()).unwrap();
    assert_eq!(driver.receiver.data_left(), u32::MAX - 27);
    assert_eq!(driver.receiver.on_data(slice::from_ref(&0)), None);
    assert!(driver.receiver.data_left() > MAXH2CDATA);
}
