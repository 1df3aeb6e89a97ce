use super::*;
use core::time::Duration;
use proptest::prelude::*;

fn parameters(responder_resources: u16, initiator_depth: u16) -> ConnectParameters {
    let private_data = PrivateData::new(b"hello").unwrap();
    ConnectParameters { private_data, responder_resources, initiator_depth, timeout: Duration::from_secs(1) }
}

fn with(crc: Crc, peer_to_peer: bool) -> IwarpConfig {
    IwarpConfig { crc, peer_to_peer, ..IwarpConfig::default() }
}

/// Both sides' view after one exchange.
fn meet(
    initiator: &IwarpConfig,
    responder: &IwarpConfig,
    revision: u8,
) -> (Result<Agreement, Refusal>, Agreement) {
    let (ours, theirs) = (parameters(16, 4), parameters(2, 32));
    let asked = request(initiator, &ours, revision);
    assert_eq!(check_request(responder, &asked), Ok(()));
    let (reply, accepted) = accept(responder, &theirs, &asked);
    (on_reply(initiator, &ours, &asked, &reply), accepted)
}

#[test]
fn crc_is_on_when_either_side_asks() {
    for (initiator, responder, crc) in [
        (Crc::Auto, Crc::Auto, false),
        (Crc::On, Crc::Auto, true),
        (Crc::Auto, Crc::On, true),
        (Crc::On, Crc::On, true),
        (Crc::Off, Crc::Off, false),
    ] {
        let (ours, theirs) = meet(&with(initiator, true), &with(responder, true), 2);
        assert_eq!((ours.unwrap().crc, theirs.crc), (crc, crc), "{initiator:?} {responder:?}");
    }
    let (ours, _) = meet(&with(Crc::Off, true), &with(Crc::On, true), 2);
    assert!(matches!(ours, Err(Refusal::Protocol(text)) if text.contains("CRC")));
    let asked = request(&with(Crc::On, true), &parameters(1, 1), 2);
    assert!(check_request(&with(Crc::Off, true), &asked).is_err());
}

#[test]
fn read_depths_are_the_lesser_of_both() {
    let (ours, theirs) = meet(&with(Crc::Auto, true), &with(Crc::Auto, true), 2);
    let ours = ours.unwrap();
    assert_eq!((ours.initiator_depth, ours.responder_resources), (2, 16));
    assert_eq!((theirs.initiator_depth, theirs.responder_resources), (16, 2));
    assert_eq!((ours.rtr, theirs.rtr), (Some(Rtr::Write), Some(Rtr::Write)));
}

#[test]
fn without_peer_to_peer_or_in_revision_1_there_is_no_indication() {
    let (ours, theirs) = meet(&with(Crc::Auto, false), &with(Crc::Auto, true), 2);
    assert_eq!((ours.unwrap().rtr, theirs.rtr), (None, None));
    let (ours, theirs) = meet(&with(Crc::Auto, true), &with(Crc::Auto, true), 1);
    assert_eq!((ours.unwrap().rtr, theirs.rtr), (None, None));
}

/// A stock Linux host: revision 2, IRD 128, ORD 0, nothing else. Its reply must have both words and revision 2.
#[test]
fn the_reply_to_a_stock_linux_host() {
    let mut bytes = *b"MPA ID Req Frame\x10\x02\x00\x04\x00\x80\x00\x00";
    let asked = Frame::parse(Kind::Request, &bytes).unwrap().unwrap();
    assert_eq!(peer_depths(&asked), (128, 0));
    let (reply, agreement) = accept(&with(Crc::Auto, true), &parameters(0, 16), &asked);
    assert_eq!((agreement.initiator_depth, agreement.crc, agreement.large_fpdu), (16, false, false));
    assert_eq!((reply.flags, reply.revision), (Flags::ENHANCED, 2));
    assert_eq!(reply.enhanced, Some(Enhanced { ord: 16, ..Enhanced::default() }));
    bytes[16] = 0x90;
    let asked = Frame::parse(Kind::Request, &bytes).unwrap().unwrap();
    assert!(check_request(&with(Crc::Auto, true), &asked).unwrap_err().contains("markers"));
}

#[test]
fn a_card_that_offers_only_a_read_gets_a_read_and_a_credit_for_it() {
    let asked = Frame {
        enhanced: Some(Enhanced { peer_to_peer: true, read_rtr: true, ord: 1, ..Enhanced::default() }),
        ..request(&with(Crc::Auto, true), &parameters(0, 0), 2)
    };
    let (reply, agreement) = accept(&with(Crc::Auto, true), &parameters(0, 0), &asked);
    assert_eq!(agreement.rtr, Some(Rtr::Read));
    let words = reply.enhanced.unwrap();
    assert!(words.read_rtr && !words.write_rtr && words.ird == 1);
}

#[test]
fn replies_that_make_no_connection() {
    let config = with(Crc::Auto, true);
    let ours = parameters(4, 4);
    let asked = request(&config, &ours, 2);
    let (good, _) = accept(&config, &parameters(4, 4), &asked);
    let answer = |reply: &Frame| on_reply(&config, &ours, &asked, reply).unwrap_err();
    assert_eq!(answer(&reject(&asked, &PrivateData::new(b"no").unwrap())), Refusal::Rejected);
    let text = |reply: Frame| match answer(&reply) {
        Refusal::Protocol(text) => text,
        Refusal::Rejected => panic!("not a rejection"),
    };
    assert!(text(Frame { flags: Flags(0x90), ..good }).contains("markers"));
    assert!(text(Frame { revision: 1, enhanced: None, ..good }).contains("revision"));
    let words = Enhanced { ord: 5, ..good.enhanced.unwrap() };
    assert!(text(Frame { enhanced: Some(words), ..good }).contains("more RDMA READs"));
    let words = Enhanced { write_rtr: false, ..good.enhanced.unwrap() };
    assert!(text(Frame { enhanced: Some(words), ..good }).contains("ready-to-receive"));
}

proptest! {
    #[test]
    fn a_frame_comes_whole_however_it_is_cut(
        data in proptest::collection::vec(any::<u8>(), 0..=256),
        steps in proptest::collection::vec(1..40usize, 300),
    ) {
        let mut frame = request(&with(Crc::Auto, true), &parameters(3, 3), 2);
        frame.private_data = PrivateData::new(&data).unwrap();
        let mut bytes = [0; FRAME_LEN_MAX];
        let len = frame.emit(&mut bytes);
        let (mut reader, mut at) = (FrameReader::new(Kind::Request), 0);
        for step in steps {
            let room = reader.room();
            let n = room.len().min(step);
            room[..n].copy_from_slice(&bytes[at..at + n]);
            at += n;
            if let Some(got) = reader.on_filled(n).unwrap() {
                prop_assert_eq!((got, at), (frame, len));
                return Ok(());
            }
        }
        prop_assert!(false, "the frame never came");
    }
}
